"""From contact points to rows: how joint velocities move them, and how impulses on them move the joints."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.collide import Contacts
from knuckle.dynamics.aba import Factor, half_solve, solve_mass_matrix
from knuckle.kinematics import Articulation
from knuckle.model.joints import plane_axes
from knuckle.model.model import Model
from knuckle.tree import Tree, rows

Vec = Float[Array | np.ndarray, " n"]
Jacobian = Float[Array, "row dof"]


class WorldAxes(NamedTuple):
    """Motion of each degree of freedom in world axes, about the world's origin shifted to `origin`."""

    angular: Float[Array, "dof 3"]
    linear: Float[Array, "dof 3"]
    origin: Float[Array, "dof 3"]


def world_axes(model: Model, body: Articulation) -> WorldAxes:
    """The axes of all degrees of freedom, turned from their roots' frames to the world's."""
    topology = model.topology
    R, p = rows(body.root, topology.links.root_of[topology.dof_link])
    return WorldAxes(spatial.apply(R, body.axes[:, :3]), spatial.apply(R, body.axes[:, 3:]), p)


def contact_frames(normal: Float[Array, "contact 3"]) -> Float[Array, "contact 3 3"]:
    """Rows: the normal and two tangents, right-handed."""
    return jnp.stack([normal, *plane_axes(normal)], axis=1)


def contact_jacobian(model: Model, axes: WorldAxes, contacts: Contacts) -> Float[Array, "contact 3 dof"]:
    """Velocity of a's point against b's, along the normal and the two tangents, per unit joint speed."""
    sign = moved_by(model, contacts.link_a) - moved_by(model, contacts.link_b)
    arm = contacts.point[:, None, :] - axes.origin[None, :, :]
    turned = spatial.cross(jnp.broadcast_to(axes.angular[None], arm.shape), arm)
    velocity = jnp.where((sign != 0)[:, :, None], sign[:, :, None] * (axes.linear[None] + turned), 0.0)
    frames = contact_frames(contacts.normal)
    return jnp.sum(frames[:, :, None, :] * velocity[:, None, :, :], axis=-1)


def moved_by(model: Model, links: tuple[int, ...]) -> Float[np.ndarray, "contact dof"]:
    """1 where a degree of freedom moves a link, else 0; nothing moves the world (-1)."""
    topology = model.topology
    moves = topology.links.ancestors[topology.dof_link].astype(float)
    moves = np.concatenate([moves, np.zeros((model.nv, 1))], axis=1)
    return moves[:, np.array(links, int)].T


def effective_inverse_mass(dofs: Tree, factor: Factor, J: Jacobian) -> Float[Array, "row row"]:
    """J M^-1 J^T by half the sweeps of a solution."""
    reduced = jax.vmap(lambda row: half_solve(dofs, factor, row))(J)
    return jnp.sum((reduced * factor.D_inverse[None, :])[:, None, :] * reduced[None, :, :], axis=-1)


def response(dofs: Tree, factor: Factor, J: Jacobian, impulse: Vec) -> Vec:
    """Change of joint velocities M^-1 J^T r."""
    return solve_mass_matrix(dofs, factor, spatial.apply_transpose(J, impulse))
