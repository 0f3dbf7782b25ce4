"""Rows that couple any joints: contacts between links, equalities. Newton's step solves a matrix over the joints."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from knuckle import spatial
from knuckle.contact.coupling import Coupling, Layout, joined, split, springs
from knuckle.contact.laws import over_blocks
from knuckle.contact.rows import Jacobian, WorldAxes, point_velocities, response
from knuckle.dynamics.aba import Factor, half_solve
from knuckle.kinematics import Poses
from knuckle.model.topology import Topology
from knuckle.tree import Tree

Maps = Float[Array, "contact axis dof"]


class JointPoints(NamedTuple):
    """Where contacts are, the links of their sides (len(links) is the world), and how joints move a's against b's."""

    link: Int[Array, "contact side"]
    sign: Float[Array, "contact dof"]  # 1 forwards, -1 backwards, 0 not at all
    point: Float[Array, "contact 3"]  # world
    frame: Float[Array, "contact axis 3"]
    turning: Float[Array, "contact turn 3"] | None


class JointSpace(Coupling):
    """A through the mass matrix: for more rows than joints."""

    points: JointPoints
    axes: WorldAxes
    root: Poses
    joint: Jacobian  # of the rows that are no contacts
    mass: Float[Array, "dof dof"]
    factor: Factor
    layout: Layout = eqx.field(static=True)
    topology: Topology = eqx.field(static=True)
    maps: Maps | None = None  # J of the contacts, where it is used repeatedly

    @property
    def dofs(self) -> Tree:
        return self.topology.dofs

    @property
    def contact(self) -> Maps:
        """J of the contacts."""
        return over_blocks(self.maps_at, self.points) if self.maps is None else self.maps

    def maps_at(self, at: JointPoints) -> Maps:
        """J of some contacts."""
        velocity = point_velocities(self.axes, at.sign, at.point)
        J = jnp.sum(at.frame[:, :, None, :] * velocity[:, None, :, :], axis=-1)
        if at.turning is None:
            return J
        turned = at.sign[:, :, None] * self.axes.angular[None]
        return jnp.concatenate([J, jnp.sum(at.turning[:, :, None, :] * turned[:, None, :, :], axis=-1)], axis=1)

    def held(self):
        return eqx.tree_at(lambda x: x.maps, self, self.contact, is_leaf=lambda x: x is None)

    @property
    def J(self) -> Jacobian:
        contact = self.contact
        return jnp.concatenate([contact.reshape(-1, contact.shape[2]), self.joint])

    def contact_velocity(self, v):
        return spatial.apply(self.contact, jnp.broadcast_to(v, (len(self.points.point), *v.shape)))

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
