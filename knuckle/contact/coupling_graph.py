"""Contacts between links of any trees: A through articulated inertias, Newton's step by elimination of links.

The velocity of a contact is the sum over its two sides of X times the spatial velocity of the side's link; X is zero on
a side that does not move. In Newton's step (see `coupling`) contacts add X_s^T K X_t to the block of links s and t.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from knuckle import spatial
from knuckle.contact.coupling import Coupling, Rows, inverse_and_stiffness, springs
from knuckle.contact.coupling_tree import inverse_inertias, onto_joints, point_motion, rows_of_joints, swept
from knuckle.contact.elimination import SIZE, Joints, Plan, eliminate, empty_blocks, place, plan
from knuckle.contact.laws import Blocks, over_blocks
from knuckle.contact.turning import turning_motion
from knuckle.dynamics.aba import Factor, half_solve
from knuckle.kinematics import Poses
from knuckle.model.topology import Topology
from knuckle.tree import outward_sum

Sides = Float[Array, "contact side axis 6"]
Stiffness = Float[Array, "contact axis axis"]


class LinkMotion(NamedTuple):
    """Velocities of links in their roots' frames, with a row for the world, and of the joints."""

    link: Float[Array, "link+1 6"]
    joint: Float[Array, " dof"]


class Points(NamedTuple):
    """Where contacts are, and the links of their sides; len(links) is the world."""

    link: Int[Array, "contact side"]
    point: Float[Array, "contact 3"]  # world
    frame: Float[Array, "contact axis 3"]
    turning: Float[Array, "contact turn 3"] | None


class GraphSpace(Coupling):
    """A through articulated inertias, for contacts of two links each."""

    points: Points
    root: Poses  # of each link, with a row for the world
    factor: Factor
    inertia: Float[Array, "link 6 6"]
    armature: Float[Array, " dof"]
    joints: tuple[tuple[int, ...], ...] = eqx.field(static=True)  # the degree of freedom of each other row, by law
    topology: Topology = eqx.field(static=True)
    within_trees: bool = eqx.field(static=True)  # whether links of one tree touch each other

    @property
    def link(self) -> Int[Array, "contact side"]:
        return self.points.link

    @property
    def X(self) -> Sides:
        """Velocities of contacts per spatial velocity of the links of their sides, in their roots' frames."""
        return over_blocks(self.sides, self.points)

    def sides(self, at: Points) -> Sides:
        """X of some contacts."""
        parts = []
        for side, sign in ((0, 1.0), (1, -1.0)):
            R, p = (jnp.take(x, at.link[:, side], axis=0, mode="clip") for x in self.root)
            X = [point_motion(R, p, at.point, sign * at.frame)]
            X += [] if at.turning is None else [turning_motion(R, sign * at.turning)]
            parts.append(jnp.concatenate(X, axis=1))
        moves = (at.link < len(self.inertia))[:, :, None, None]
        return jnp.where(moves, jnp.stack(parts, axis=1), 0.0)

    def velocity(self, r):
        return self._rows(self._response(r))

    def joint_velocity(self, r):
        return self._response(r).joint

    def diagonal(self):
        L, joint = inverse_inertias(self.topology.dofs, self.factor)
        L = self.at_links(L)
        return over_blocks(lambda X, link: self.diagonal_at(X, link, L), self.X, self.link), *self.of_joints(joint)

    def diagonal_at(self, X: Sides, link: Int[Array, "contact side"], L: Float[Array, "link+1 6 6"]) -> Blocks:
        """What contacts show to impulses along their axes; `L`: inverse inertias that links show."""
        if not self.within_trees:
            parts = jnp.take(L, link, axis=0, mode="clip")
            return jnp.sum(spatial.dot(X, spatial.compose(X, parts)), axis=1)
        S, topology = self.factor.S, self.topology
        moves = topology.links.ancestors[topology.dof_link]
        moves = jnp.asarray(np.concatenate([moves, np.zeros((topology.nv, 1))], axis=1).T, S.dtype)
        by_dof = jnp.take(moves, link, axis=0, mode="clip")[:, :, None, :] * jnp.sum(
            X[:, :, :, None, :] * S[None, None, None], axis=-1
        )
        reduced = jnp.asarray(
            jax.vmap(jax.vmap(lambda row: half_solve(topology.dofs, self.factor, row)))(jnp.sum(by_dof, axis=1))
        )
        return spatial.apply(reduced**2, jnp.broadcast_to(self.factor.D_inverse, (len(X), topology.nv)))

    def contact_velocity(self, v):
        return self._rows(LinkMotion(self.link_velocities(v), v))[0]

    def link_velocities(self, v: Float[Array, " dof"]) -> Float[Array, "link+1 6"]:
        """Of the links, in their roots' frames, at velocities of the joints; zero for the world."""
        dofs, S = self.topology.dofs, self.factor.S
        return self.at_links(outward_sum(dofs, S * v[:, None], jnp.zeros((len(dofs.roots), SIZE), S.dtype)))

    def solve(self, slopes, R, rhs):
        stiff = [over_blocks(inverse_and_stiffness, *slope, own_R) for slope, own_R in zip(slopes, R, strict=True)]

        def product(dr: Rows) -> Rows:
            moved = self.velocity(dr)
            return tuple(
                spatial.apply(F_r, x) + spatial.apply(F_u, u + own_R * x)
                for (F_r, F_u), x, u, own_R in zip(slopes, dr, moved, R, strict=True)
            )

        def solved(_, rhs: Rows) -> Rows:
            parts = springs(slopes, R, rhs)
            moved = self._sprung([part.K for part in parts], tuple(part.g for part in parts))
            return tuple(part.impulse(u) for part, u in zip(parts, moved, strict=True))

        def solved_transposed(_, rhs: Rows) -> Rows:
            turned = [jnp.swapaxes(K, 1, 2) for _, K in stiff]
            moved = self._sprung(turned, tuple(spatial.apply(K, x) for K, x in zip(turned, rhs, strict=True)))
            parts = zip(stiff, rhs, moved, strict=True)
            return tuple(spatial.apply_transpose(inverse, x - u) for (inverse, _), x, u in parts)

        return jax.lax.custom_linear_solve(product, rhs, solved, transpose_solve=solved_transposed)

    def _sprung(self, K: list[Stiffness], g: Rows) -> Rows:
        """Velocities of the rows where they push back by K, and with g."""
        world, idle = len(self.inertia), jnp.all(K[0] == 0, axis=(1, 2)) & jnp.all(g[0] == 0, axis=1)
        sides = jnp.where(idle[:, None], jnp.asarray(world, self.link.dtype), self.link)
        order = self.plan(sides, jnp.asarray(len(sides), jnp.int32))
        equations = self.equations(order, K[1:])
        X = self.X
        pushes = over_blocks(stiffness_between, X, K[0]), over_blocks(forces_at, X, g[0])
        return self._rows(equations.solve(equations.add(equations.start(), sides, *pushes), g[1:]))

    def plan(self, sides: Int[Array, "contact side"], used: Int[Array, ""]) -> Plan:
        return plan(sides, used, self.topology.parent, all_links=bool(self.joints))

    def equations(self, order: Plan, K: list[Stiffness]) -> Equations:
        """`K`: of the rows of joints."""
        armature = onto_joints(self.joints, self.armature, [part[:, :, 0] for part in K])
        S, topology = self.factor.S, self.topology
        if topology.prescribed:
            S = jnp.where(topology.is_prescribed[:, None], jnp.zeros_like(S), S)
            armature = jnp.where(topology.is_prescribed, jnp.ones_like(armature), armature)
        count, parent = len(topology.parent), np.array(topology.parent, np.int32)
        axes = jnp.swapaxes(self._per_axis(S, jnp.zeros((count, SIZE, SIZE), S.dtype)), 1, 2)
        own = self._per_axis(armature, jnp.ones((count, SIZE), S.dtype))
        up = jnp.asarray(np.where(parent < 0, count, parent).astype(np.int32)) if np.any(parent >= 0) else None
        return Equations(self, order, Joints(axes, self.inertia, own, up))

    def _per_axis(self, per_dof: Array, filled: Array) -> Array:
        """What degrees of freedom have, link by link; other places as they are filled."""
        topology = self.topology
        axis = np.arange(topology.nv) - topology.v_start[topology.dof_link]
        return filled.at[topology.dof_link, axis].set(per_dof, unique_indices=True)

    def of_axes(self, per_axis: Float[Array, "link 6"]) -> Float[Array, " dof"]:
        topology = self.topology
        axis = np.arange(topology.nv) - topology.v_start[topology.dof_link]
        return per_axis[topology.dof_link, axis]

    def at_links(self, per_dof: Float[Array, "dof ..."]) -> Float[Array, "link+1 ..."]:
        """Of the last degrees of freedom of the links; zero for the world."""
        own = per_dof[self.topology.v_stop - 1]
        return jnp.concatenate([own, jnp.zeros_like(own[:1])])

    def of_joints(self, per_dof: Float[Array, " dof"]) -> Rows:
        return rows_of_joints(self.joints, per_dof)

    def on_axes(self, g: Rows) -> Float[Array, "link 6"]:
        """Impulses of the rows of joints."""
        topology, dtype = self.topology, self.factor.S.dtype
        per_dof = onto_joints(self.joints, jnp.zeros(topology.nv, dtype), g)
        return self._per_axis(per_dof, jnp.zeros((len(topology.parent), SIZE), dtype))

    def _rows(self, motion: LinkMotion) -> Rows:
        """Velocities of the rows."""
        of_sides = jnp.take(motion.link, self.link, axis=0, mode="clip")
        return over_blocks(velocity_of, self.X, of_sides), *self.of_joints(motion.joint)

    def _response(self, r: Rows) -> LinkMotion:
        contact, *joints = r
        force = jnp.zeros((len(self.inertia) + 1, SIZE), contact.dtype)
        force = force.at[self.link].add(over_blocks(forces_at, self.X, contact), mode="clip")
        return self.response(force, tuple(joints))

    def response(self, force: Float[Array, "link+1 6"], joints: Rows) -> LinkMotion:
        """The motion that impulses on links and on rows of joints cause."""
        topology, (S, U, D_inverse) = self.topology, self.factor
        on_dofs = jnp.zeros((topology.nv, SIZE), S.dtype).at[topology.v_stop - 1].set(force[:-1], unique_indices=True)
        on_joints = onto_joints(self.joints, jnp.zeros(topology.nv, S.dtype), joints)
        motion = swept(topology.dofs, S, U, U, D_inverse, on_dofs, on_joints)
        return LinkMotion(self.at_links(motion.link), motion.joint)


class Equations(NamedTuple):
    """(M + J^T K J) dv = J^T g, filled contact by contact."""

    space: GraphSpace
    order: Plan
    joints: Joints

    def start(self):
        return empty_blocks(self.order, self.joints), jnp.zeros((len(self.joints.S) + 1, SIZE), self.joints.S.dtype)

    def add(self, sums, link: Int[Array, "contact side"], stiffness, force):
        """With contacts of these links."""
        blocks, forces = sums
        count = len(self.joints.S)
        for s in range(link.shape[1]):
            for t in range(link.shape[1]):
                blocks = blocks.at[place(link[:, s], link[:, t], count)].add(stiffness[:, s, t], mode="clip")
            forces = forces.at[link[:, s]].add(force[:, s], mode="clip")
        return blocks, forces

    def solve(self, sums, g: Rows) -> LinkMotion:
        """`g`: of the rows of joints."""
        blocks, force = sums
        link, joint = eliminate(self.order, self.joints, blocks, force, self.space.on_axes(g))
        return LinkMotion(link, self.space.of_axes(joint))


def velocity_of(X: Sides, link: Float[Array, "contact side 6"]) -> Blocks:
    return jnp.sum(spatial.apply(X, link), axis=1)


def forces_at(X: Sides, r: Blocks) -> Float[Array, "contact side 6"]:
    """Impulses as spatial forces on both links."""
    return spatial.apply_transpose(X, r[:, None])


def stiffness_between(X: Sides, K: Stiffness) -> Float[Array, "contact side side 6 6"]:
    """X_s^T K X_t of the sides s and t."""
    pushed = spatial.compose(K[:, None], X)
    return spatial.compose(jnp.swapaxes(X, 2, 3)[:, :, None], pushed[:, None])
