"""Rows on a tree of links: contacts with what does not move, limits and dry friction of single degrees of freedom.

In Newton's step (see `coupling`) such a contact adds X^T K X to the inertia of its link, X the velocities of its point
per spatial velocity of the link, and a joint's row adds K to its armature. So one sweep of the articulated-body
algorithm solves it, whatever the number of rows. Where contacts slide K has no symmetry: U = IA S and W = IA^T S.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from knuckle import spatial
from knuckle.contact.coupling import Coupling, Rows, Spring, springs
from knuckle.contact.laws import Blocks, over_blocks
from knuckle.contact.turning import turning_motion
from knuckle.dynamics.aba import Factor, inverse_or_zero
from knuckle.kinematics import Poses
from knuckle.tree import Tree, add_rows, inward, outward, outward_sum, rows, sum_rows

Maps = Float[Array, "contact axis 6"]


class Motion(NamedTuple):
    """Velocities of the link that each degree of freedom moves, in its root's frame, and of the joints."""

    link: Float[Array, "dof 6"]
    joint: Float[Array, " dof"]


class TreePoints(NamedTuple):
    """Where contacts are; `sign` is -1 where the link is the second side."""

    root: Int[Array, " contact"]
    point: Float[Array, "contact 3"]  # world
    frame: Float[Array, "contact axis 3"]
    sign: Float[Array, " contact"]
    turning: Float[Array, "contact turn 3"] | None


class TreeSpace(Coupling):
    """A through articulated inertias."""

    points: TreePoints
    roots: Poses
    factor: Factor
    inertia: Float[Array, "dof 6 6"]  # of the link, at the last of its degrees of freedom
    armature: Float[Array, " dof"]
    carrier: Int[Array, " contact"] | None  # the last degree of freedom of each contact's link, where that is traced
    fixed_carrier: tuple[int, ...] = eqx.field(static=True)  # and where it is not
    joints: tuple[tuple[int, ...], ...] = eqx.field(static=True)  # the degree of freedom of each other row, by law
    dofs: Tree = eqx.field(static=True)
    weightless_tips: bool = eqx.field(static=True)
    maps: Maps | None = None  # X, where it is used repeatedly

    @property
    def X(self) -> Maps:
        """Velocity of contacts per spatial velocity of their links, in their roots' frames."""
        return over_blocks(self.maps_at, self.points) if self.maps is None else self.maps

    def maps_at(self, at: TreePoints) -> Maps:
        """X of some contacts."""
        R, p = self.roots if len(self.roots.position) == 1 else _picked(self.roots, at.root)
        X = point_motion(R, p, at.point, at.frame * at.sign[:, None, None])
        if at.turning is None:
            return X
        R = jnp.broadcast_to(R, (len(at.point), 3, 3))
        return jnp.concatenate([X, turning_motion(R, at.turning * at.sign[:, None, None])], axis=1)

    def held(self):
        return eqx.tree_at(lambda x: x.maps, self, self.X, is_leaf=lambda x: x is None)

    def velocity(self, r):
        return self._rows(self._response(r))

    def joint_velocity(self, r):
        return self._response(r).joint

    def diagonal(self):
        L, joint = self.inverse_inertias()
        return over_blocks(diagonal_at, self.X, self.pick(L)), *self.of_joints(joint)

    def inverse_inertias(self) -> tuple[Float[Array, "dof 6 6"], Float[Array, " dof"]]:
        return inverse_inertias(self.dofs, self.factor)

    def contact_velocity(self, v):
        return over_blocks(spatial.apply, self.X, self.pick(self.dof_velocities(v)))

    def dof_velocities(self, v: Float[Array, " dof"]) -> Float[Array, "dof 6"]:
        """Of the link that each degree of freedom moves, in its root's frame, at velocities of the joints."""
        S = self.factor.S
        return outward_sum(self.dofs, S * v[:, None], jnp.zeros((len(self.dofs.roots), 6), S.dtype))

    def solve(self, slopes, R, rhs):
        parts = springs(slopes, R, rhs)
        forces = self._forces(tuple(spring.g for spring in parts))
        moved = self._rows(swept(self.dofs, self.factor.S, *self._factors_with(parts), *forces))
        return tuple(spring.impulse(u) for spring, u in zip(parts, moved, strict=True))

    def refined(self, slopes, positive_R, R, rhs):
        """The refinement takes back the momentum that impulses and velocities disagree by: J^T dr - M dv."""
        parts = springs(slopes, positive_R, rhs)
        S, factors = self.factor.S, self._factors_with(parts)
        motion = swept(self.dofs, S, *factors, *self._forces(tuple(spring.g for spring in parts)))
        dr = tuple(spring.impulse(u) for spring, u in zip(parts, self._rows(motion), strict=True))
        force, joint_force = self._forces(dr)
        own_armature = jnp.where(jnp.isfinite(self.armature), self.armature, 0.0)  # infinite: follows a path
        left = force - spatial.apply(self.inertia, motion.link), joint_force - own_armature * motion.joint
        more = swept(self.dofs, S, *factors, *left)
        back = (over_blocks(spatial.apply, spring.K, u) for spring, u in zip(parts, self._rows(more), strict=True))
        return jax.tree.map(jnp.subtract, dr, tuple(back)), motion.joint + more.joint

    def _factors_with(self, parts: list[Spring]) -> tuple[Array, Array, Array]:
        """Factors of M + J^T K J."""
        contact, *joints = parts
        stiff = self._collect(over_blocks(stiffness_at_link, self.X, contact.K))
        return self.sprung(stiff, self.onto_joints(spring.K[:, :, 0] for spring in joints))

    def pick(self, per_dof: Float[Array, "dof ..."]) -> Float[Array, "contact ..."]:
        """What the links of the contacts have."""
        return rows(per_dof, np.array(self.fixed_carrier, int)) if self.carrier is None else per_dof[self.carrier]

    def _collect(self, per_contact: Float[Array, "contact ..."]) -> Float[Array, "dof ..."]:
        """Sums over the contacts of each link."""
        count = len(self.dofs.parent)
        if self.carrier is None:
            return add_rows(per_contact, np.array(self.fixed_carrier, int), count)
        return jnp.zeros((count, *per_contact.shape[1:]), per_contact.dtype).at[self.carrier].add(per_contact)

    def of_joints(self, per_dof: Float[Array, " dof"]) -> Rows:
        return rows_of_joints(self.joints, per_dof)

    def onto_joints(self, parts) -> Float[Array, " dof"]:
        return onto_joints(self.joints, jnp.zeros(len(self.dofs.parent), self.factor.S.dtype), parts)

    def _rows(self, motion: Motion) -> Rows:
        """Velocities of the rows."""
        return over_blocks(spatial.apply, self.X, self.pick(motion.link)), *self.of_joints(motion.joint)

    def _forces(self, r: Rows) -> tuple[Float[Array, "dof 6"], Float[Array, " dof"]]:
        """Impulses on links, as spatial forces, and on joints."""
        contact, *joints = r
        return self._collect(over_blocks(spatial.apply_transpose, self.X, contact)), self.onto_joints(joints)

    def _response(self, r: Rows) -> Motion:
        S, U, D_inverse = self.factor
        return swept(self.dofs, S, U, U, D_inverse, *self._forces(r))

    def sprung(self, on_links: Float[Array, "dof 6 6"], on_joints: Float[Array, " dof"]):
        """Factors U, W and 1/D of M + J^T K J."""
        S = self.factor.S

        def eliminate(children, node):
            S, I, armature = node
            IA = children + I
            U, W = spatial.apply(IA, S), spatial.apply_transpose(IA, S)
            D = spatial.dot(S, U) + armature
            D_inverse = inverse_or_zero(D) if self.weightless_tips else 1 / D
            return IA - spatial.outer(U, W) * D_inverse[:, None, None], (U, W, D_inverse)

        zero, nodes = jnp.zeros((6, 6), S.dtype), (S, self.inertia + on_links, self.armature + on_joints)
        return inward(self.dofs, eliminate, zero, nodes)[1]


def _picked(poses: Poses, index: Int[Array, " contact"]) -> Poses:
    return Poses(*(jnp.take(x, index, axis=0, mode="clip") for x in poses))


def point_motion(
    R: Float[Array, "contact 3 3"],
    p: Float[Array, "contact 3"],
    point: Float[Array, "contact 3"],
    frame: Float[Array, "contact axis 3"],
) -> Maps:
    """Velocity of points along the axes of their frames per spatial velocity of their links, in frames R, p."""
    axes = spatial.compose(frame, R)
    arm = jnp.broadcast_to(spatial.apply_transpose(R, point - p)[:, None], axes.shape)
    return jnp.concatenate([spatial.cross(arm, axes), axes], axis=2)


def inverse_inertias(dofs: Tree, factor: Factor) -> tuple[Float[Array, "dof 6 6"], Float[Array, " dof"]]:
    """What the links that each degree of freedom moves, and the joints themselves, show to an impulse."""

    def from_parent(above, node):
        """The inverse inertia that the link of a degree of freedom shows, and the joint's own."""
        L, _ = above
        S, U, D_inverse = node
        LU = spatial.apply(L, U) * D_inverse[:, None]
        own = D_inverse + spatial.dot(U, LU) * D_inverse
        w = LU - 0.5 * own[:, None] * S
        return L - (spatial.outer(S, w) + spatial.outer(w, S)), own

    roots, dtype = len(dofs.roots), factor.S.dtype
    still = jnp.zeros((roots, 6, 6), dtype), jnp.zeros(roots, dtype)
    return outward(dofs, from_parent, still, tuple(factor))


def rows_of_joints(joints: tuple[tuple[int, ...], ...], per_dof: Float[Array, " dof"]) -> Rows:
    """What the degrees of freedom of rows have, law by law."""
    return tuple(rows(per_dof, np.array(own, int))[:, None] for own in joints)


def onto_joints(joints: tuple[tuple[int, ...], ...], total: Float[Array, " dof"], parts) -> Float[Array, " dof"]:
    """With the sums over the rows of each joint."""
    for own, part in zip(joints, parts, strict=True):
        total = total + sum_rows(part[:, 0], np.array(own, int), len(total))
    return total


def stiffness_at_link(X: Maps, K: Float[Array, "contact axis axis"]) -> Float[Array, "contact 6 6"]:
    return spatial.compose(jnp.swapaxes(X, 1, 2), spatial.compose(K, X))


def diagonal_at(X: Maps, L: Float[Array, "contact 6 6"]) -> Blocks:
    """The diagonal of X L X^T."""
    return spatial.dot(X, spatial.compose(X, L))


def swept(dofs: Tree, S, U, W, D_inverse, force: Float[Array, "dof 6"], joint_force: Float[Array, " dof"]) -> Motion:
    """The motion that impulses cause, from the factors of an inertia: to the roots and back."""

    def to_parent(p, node):
        S, U, D_inverse, force, joint_force = node
        p = p - force
        u = (joint_force - spatial.dot(S, p)) * D_inverse
        return p + U * u[:, None], u

    def from_parent(above, node):
        a, _ = above
        S, W, D_inverse, u = node
        x = u - spatial.dot(W, a) * D_inverse
        return a + S * x[:, None], x

    zero, roots = jnp.zeros(6, S.dtype), len(dofs.roots)
    _, u = inward(dofs, to_parent, zero, (S, U, D_inverse, force, joint_force))
    still = jnp.zeros((roots, 6), S.dtype), jnp.zeros(roots, S.dtype)
    return Motion(*outward(dofs, from_parent, still, (S, W, D_inverse, u)))
