"""The derivative of a solved step: that of the solution, not of the search that found it (implicit function theorem).

Where u(r) are the rows' velocities and F the imbalance of their laws, dr = -(F_r + F_u (A + R))^-1 dF at fixed r. The
velocity of the joints at fixed r is differentiated by the rule of `aba`, so that A itself never is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from knuckle import spatial
from knuckle.contact.coupling import Coupling, Rows, joined, layout_of, split
from knuckle.contact.laws import Blocks, Law, Scale, over_blocks
from knuckle.contact.system import Laws, System, Vec, block_scales, refined_solution, slopes


@jax.custom_jvp
def known(value: Array, other: Array) -> Array:
    """A value with the derivative of another way to compute it, which is left out where no derivative is asked."""
    return value


@known.defjvp
def _of_other(primals, tangents):
    return primals[0], tangents[1]


@jax.custom_jvp
def at_solution(laws: Laws, u: Vec, v: Vec, r: Vec, coupling: Coupling, R: Rows) -> tuple[Vec, Vec]:
    """Impulses r and joint velocities v of a solved step, where u and v were computed at fixed r."""
    return r, v


def _derivative(primals, tangents):
    laws, u, v, r, coupling, R = primals
    laws_change, du, dv = tangents[0], zero_or(tangents[1], u), zero_or(tangents[2], v)
    if not r.size:
        return (r, v), (r, dv)
    parts, moving = split(layout_of(laws), r), split(layout_of(laws), u)
    system = System(coupling, R, moving, laws)
    scales = block_scales(system)
    at = slopes(laws, parts, moving, scales)
    change = tuple(
        over_blocks(spatial.apply, slope.by_velocity, own)
        for slope, own in zip(at, split(layout_of(laws), du), strict=True)
    )
    by_laws = (_change_by_law(*own) for own in zip(laws, laws_change, parts, moving, scales, strict=True))
    rhs = tuple(-own if other is None else -(own + other) for own, other in zip(change, by_laws, strict=True))
    dr, more = refined_solution(system, at, scales, rhs)
    return (r, v), (joined(dr), dv + more)


at_solution.defjvp(_derivative, symbolic_zeros=True)


def _change_by_law(law: Law, tangent: Law, r: Blocks, u: Blocks, scale: Scale) -> Blocks | None:
    """How the imbalance changes with the numbers of the law; None if they do not change."""
    if all(isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(tangent, is_leaf=is_zero)):
        return None
    ways = jax.tree.map(zero_or, tangent, law, is_leaf=is_zero)

    def off(law: Law, way: Law, r: Blocks, u: Blocks, scale: Scale) -> Blocks:
        return jax.jvp(lambda law: law.imbalance(r, u, scale), (law,), (way,))[1]

    return over_blocks(off, law, ways, r, u, scale)


def is_zero(tangent) -> bool:
    return isinstance(tangent, SymbolicZero)


def zero_or(tangent, like: Array) -> Array:
    """A tangent as an array."""
    return jnp.zeros_like(like) if is_zero(tangent) else tangent
