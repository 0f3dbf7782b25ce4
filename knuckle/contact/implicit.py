"""The derivative of a solved step: that of the solution, not of the search that found it (implicit function theorem).

Where u(r) are the rows' velocities and F the imbalance of their laws, dr = -(F_r + F_u (A + R))^-1 dF at fixed r. The
velocity of the joints at fixed r is differentiated by the rule of `aba`, so that A itself never is.
"""

from __future__ import annotations

import jax
from jaxtyping import Array

from knuckle.contact.coupling import Coupling, Rows, joined, layout_of, split
from knuckle.contact.system import Laws, System, Vec, block_scales, imbalance, refined_solution, slopes


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


@at_solution.defjvp
def _derivative(primals, tangents):
    laws, u, v, r, coupling, R = primals
    if not r.size:
        return (r, v), (r, tangents[2])
    parts, moving = split(layout_of(laws), r), split(layout_of(laws), u)
    system = System(coupling, R, moving, laws)
    scales = block_scales(system)

    def off(laws, u):
        return imbalance(laws, parts, split(layout_of(laws), u), scales)

    _, change = jax.jvp(off, (laws, u), tuple(tangents[:2]))
    rhs = jax.tree.map(lambda x: -x, change)
    dr = refined_solution(system, slopes(laws, parts, moving, scales), scales, rhs)
    return (r, v), (joined(dr), tangents[2] + coupling.joint_velocity(dr))
