"""Rows that couple any joints: contacts between links, equalities. Newton's step solves a matrix over the joints."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.coupling import Coupling, Layout, joined, split, springs
from knuckle.contact.laws import over_blocks
from knuckle.contact.rows import Jacobian, response
from knuckle.dynamics.aba import Factor, half_solve
from knuckle.tree import Tree


class JointSpace(Coupling):
    """A through the mass matrix: for more rows than joints."""

    contact: Float[Array, "contact axis dof"]  # J of the contacts
    joint: Jacobian  # and of the other rows
    mass: Float[Array, "dof dof"]
    factor: Factor
    layout: Layout = eqx.field(static=True)
    dofs: Tree = eqx.field(static=True)

    @staticmethod
    def of(layout: Layout, dofs: Tree, factor: Factor, mass: Float[Array, "dof dof"], J: Jacobian) -> JointSpace:
        (count, axes), *_ = layout
        contact = J[: count * axes].reshape(count, axes, J.shape[1])
        return JointSpace(contact, J[count * axes :], mass, factor, layout, dofs)

    @property
    def J(self) -> Jacobian:
        return jnp.concatenate([self.contact.reshape(-1, self.contact.shape[2]), self.joint])

    def velocity(self, r):
        return split(self.layout, spatial.apply(self.J, self.joint_velocity(r)))

    def diagonal(self):
        def of_rows(J: Jacobian) -> Float[Array, " row"]:
            reduced = jnp.asarray(jax.vmap(lambda row: half_solve(self.dofs, self.factor, row))(J))
            return spatial.dot(reduced**2, self.factor.D_inverse[None])

        return split(self.layout, over_blocks(of_rows, self.J))

    def joint_velocity(self, r):
        return response(self.dofs, self.factor, self.J, joined(r))

    def solve(self, slopes, R, rhs):
        parts, start, pushed, J = springs(slopes, R, rhs), 0, [], self.J
        for spring in parts:
            count, block = spring.g.shape
            rows = J[start : start + count * block].reshape(count, block, J.shape[1])
            pushed.append(spatial.compose(spring.K, rows).reshape(count * block, J.shape[1]))
            start += count * block
        g, KJ = joined(tuple(spring.g for spring in parts)), jnp.concatenate(pushed)
        stiffness = jnp.matmul(J.T, KJ, precision=jax.lax.Precision.HIGHEST)
        idle = jnp.where(jnp.diagonal(self.mass) > 0, 0.0, 1.0)  # a joint that moves nothing stays
        dv = jnp.linalg.solve(self.mass + stiffness + jnp.diag(idle), spatial.apply_transpose(J, g))
        return split(self.layout, g - spatial.apply(KJ, dv))
