"""Forward dynamics in O(n): the articulated-body algorithm (RBDA, Table 7.1).

The velocity terms are gathered by RNEA, so what remains is the solution of M qdd = tau - bias: articulated inertias
eliminate one degree of freedom at a time (an L^T D L factorisation along the branches), and two sweeps solve.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.dynamics.rnea import Wrench, inverse_dynamics, rnea
from knuckle.kinematics import articulation
from knuckle.model.model import Model
from knuckle.tree import Tree, inward, outward, rows

Vec = Float[Array | np.ndarray, " n"]


class Factor(NamedTuple):
    """The mass matrix, factored along the branches: per degree of freedom its axis S, U = IA S and 1/D."""

    S: Float[Array, "dof 6"]
    U: Float[Array, "dof 6"]
    D_inverse: Float[Array, " dof"]


def aba(model: Model, q: Vec, qd: Vec, tau: Vec, wrench: Wrench | None = None, prescribed: Vec | None = None) -> Vec:
    """Accelerations under joint forces tau and external wrenches on the links (see `rnea`).

    Degrees of freedom that follow a path (`Topology.prescribed`) have the accelerations `prescribed`, or zero, whatever
    acts on them: hybrid dynamics (RBDA 9.2). Other entries of `prescribed` must be zero.

    The derivative is dqdd = M^-1 (dtau - dRNEA at fixed qdd), with the factors of the solution at hand.
    """
    return _solved(model, q, qd, tau, wrench, prescribed)


@jax.custom_jvp
def _solved(model, q, qd, tau, wrench, prescribed):
    return _solve_with_factor(model, q, qd, tau, wrench, prescribed)[0]


def _solve_with_factor(model, q, qd, tau, wrench, prescribed=None):
    body = articulation(model, q)
    factor = factor_mass_matrix(model, body.axes, body.inertia)
    known = jnp.zeros_like(qd) if prescribed is None else prescribed
    bias = inverse_dynamics(model, body, qd, known, wrench)
    qdd = solve_mass_matrix(model.topology.dofs, factor, tau - bias)
    return qdd if prescribed is None else qdd + prescribed, factor


def _derivative(primals, tangents):
    leaves, structure = jax.tree.flatten(primals)
    directions = jax.tree.leaves(tangents, is_leaf=lambda t: isinstance(t, SymbolicZero))
    active = [k for k, t in enumerate(directions) if not isinstance(t, SymbolicZero)]
    qdd, factor = _solve_with_factor(*primals)

    def imbalance(values):
        filled = list(leaves)
        for k, value in zip(active, values, strict=True):
            filled[k] = value
        model, q, qd, tau, wrench, prescribed = jax.tree.unflatten(structure, filled)
        known = None if prescribed is None else prescribed - primals[-1]
        return tau - rnea(model, q, qd, qdd if known is None else qdd + known, wrench), known

    _, (change, known) = jax.jvp(imbalance, ([leaves[k] for k in active],), ([directions[k] for k in active],))
    dqdd = solve_mass_matrix(primals[0].topology.dofs, factor, change)
    return qdd, dqdd if known is None else dqdd + known


_solved.defjvp(_derivative, symbolic_zeros=True)


def factor_mass_matrix(model: Model, axes: Float[Array, "dof 6"], inertia: Float[Array, "link 6 6"]) -> Factor:
    """Articulated inertias from the tips to the roots, one degree of freedom at a time; 1/D = 0 of prescribed ones."""
    topology = model.topology
    carried = rows(inertia, topology.dof_link)
    carried = jnp.where(topology.last_dof[:, None, None], carried, jnp.zeros_like(carried))

    def eliminate(children, node):
        S, I, armature, *held = node
        IA = children + I
        U = spatial.apply(IA, S)
        D = spatial.dot(S, U) + armature
        D = jnp.where(held[0], 0.0, D) if held else D
        D_inverse = inverse_or_zero(D) if topology.weightless_tips or held else 1 / D
        return IA - spatial.outer(U, U) * D_inverse[:, None, None], (U, D_inverse)

    zero = jnp.zeros((6, 6), axes.dtype)
    held = (jnp.asarray(topology.is_prescribed),) if topology.prescribed else ()
    _, (U, D_inverse) = inward(topology.dofs, eliminate, zero, (axes, carried, jnp.asarray(model.armature), *held))
    return Factor(axes, U, D_inverse)


def inverse_or_zero(D: Array) -> Array:
    """1/D; zero where a joint moves nothing, so that it does not accelerate."""
    heavy = D > 0
    return jnp.where(heavy, 1 / jnp.where(heavy, D, jnp.ones_like(D)), jnp.zeros_like(D))


def solve_mass_matrix(dofs: Tree, factor: Factor, force: Vec) -> Vec:
    """x with M x = force: forces to the roots, accelerations back to the tips."""

    u = half_solve(dofs, factor, force) * factor.D_inverse

    def from_parent(above, node):
        a, _ = above
        S, U, D_inverse, u = node
        x = u - spatial.dot(U, a) * D_inverse
        return a + S * x[:, None], x

    at_rest = (jnp.zeros((len(dofs.roots), 6), force.dtype), jnp.zeros(len(dofs.roots), force.dtype))
    return outward(dofs, from_parent, at_rest, (*factor, u))[1]


def half_solve(dofs: Tree, factor: Factor, force: Vec) -> Vec:
    """H force, where M^-1 = H^T D^-1 H: the sweep to the roots."""

    def to_parent(p, node):
        S, U, D_inverse, force = node
        u = force - spatial.dot(S, p)
        return p + U * (u * D_inverse)[:, None], u

    return inward(dofs, to_parent, jnp.zeros(6, force.dtype), (*factor, force))[1]


def inverse_mass_matrix(model: Model, q: Vec) -> Float[Array, "dof dof"]:
    """M^-1, column by column through the factors."""
    body = articulation(model, q)
    factor = factor_mass_matrix(model, body.axes, body.inertia)
    unit_forces = jnp.eye(model.nv, dtype=q.dtype)
    return jnp.asarray(jax.vmap(lambda e: solve_mass_matrix(model.topology.dofs, factor, e))(unit_forces))
