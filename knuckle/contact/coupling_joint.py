"""Rows that couple any joints: contacts between links, equalities. Newton's step solves a matrix over the joints."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.coupling import Coupling, Layout, joined, split, springs
from knuckle.contact.rows import Jacobian, response
from knuckle.dynamics.aba import Factor, half_solve
from knuckle.tree import Tree


class JointSpace(Coupling):
    """A through the mass matrix: for more rows than joints."""

    J: Jacobian
    mass: Float[Array, "dof dof"]
    factor: Factor
    own: Float[Array, " row"]  # the diagonal of A
    layout: Layout = eqx.field(static=True)
    dofs: Tree = eqx.field(static=True)

    @staticmethod
    def of(layout: Layout, dofs: Tree, factor: Factor, mass: Float[Array, "dof dof"], J: Jacobian) -> JointSpace:
        reduced = jnp.asarray(jax.vmap(lambda row: half_solve(dofs, factor, row))(J))
        return JointSpace(J, mass, factor, spatial.apply(reduced**2, factor.D_inverse), layout, dofs)

    def velocity(self, r):
        return split(self.layout, spatial.apply(self.J, self.joint_velocity(r)))

    def diagonal(self):
        return split(self.layout, self.own)

    def joint_velocity(self, r):
        return response(self.dofs, self.factor, self.J, joined(r))

    def solve(self, slopes, R, rhs):
        parts, start, pushed = springs(slopes, R, rhs), 0, []
        for spring in parts:
            count, block = spring.g.shape
            rows = self.J[start : start + count * block].reshape(count, block, self.J.shape[1])
            pushed.append(spatial.compose(spring.K, rows).reshape(count * block, self.J.shape[1]))
            start += count * block
        g, KJ = joined(tuple(spring.g for spring in parts)), jnp.concatenate(pushed)
        stiffness = jnp.matmul(self.J.T, KJ, precision=jax.lax.Precision.HIGHEST)
        idle = jnp.where(jnp.diagonal(self.mass) > 0, 0.0, 1.0)  # a joint that moves nothing stays
        dv = jnp.linalg.solve(self.mass + stiffness + jnp.diag(idle), spatial.apply_transpose(self.J, g))
        return split(self.layout, g - spatial.apply(KJ, dv))
