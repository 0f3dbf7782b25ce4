"""Torsional and rolling friction (condim 4 and 6): rows of a contact about which bodies turn against each other.

MuJoCo's elliptic cone, sum (r_i / mu_i)^2 <= r_n^2, has coefficients of sliding friction mu, and of torsional and
rolling friction in metres. If velocities of turning are multiplied by the lengths l_i = mu_i / mu, and angular impulses
divided by them, it is Coulomb's cone |r| <= mu r_n with more tangents: every law of contact holds as it is.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.collide import Contacts
from knuckle.contact.nearest import Nearest
from knuckle.contact.rows import WorldAxes, carried_sides, moved_by
from knuckle.contact.surfaces import surfaces
from knuckle.kinematics import Articulation, link_velocities
from knuckle.model.geometry import Geometry
from knuckle.model.model import Model
from knuckle.tree import rows, sum_rows

FRICTIONLESS, TORSIONAL, ROLLING = 1, 4, 6  # condim
LEAST_SLIDING = 1e-5  # of contacts with friction of turning; MuJoCo's least
Axes = Float[Array, "contact turn 3"]


def contact_dimensions(geometry: Geometry, contacts: Contacts) -> np.ndarray:
    """condim of each contact."""
    return surfaces(geometry, contacts.shape_a, contacts.shape_b).condim


def turning_rows(condim: np.ndarray, planar: bool) -> int:
    """How many rows of turning each contact has: about the normal and two tangents; in a plane, about its normal."""
    most = int(np.max(condim, initial=FRICTIONLESS))
    if planar:
        return int(most >= ROLLING)
    return {TORSIONAL: 1, ROLLING: 3}.get(most, 0)


def sliding_with_turning(condim: np.ndarray, friction: Float[Array, " contact"]) -> Float[Array, " contact"]:
    """Sliding friction as used: none in contacts of condim 1, and not zero where it is the unit of other friction."""
    if np.any(condim > 3):
        friction = jnp.where(condim > 3, jnp.maximum(friction, LEAST_SLIDING), friction)
    return jnp.where(condim == FRICTIONLESS, 0.0, friction) if np.any(condim == FRICTIONLESS) else friction


def turning_axes(
    geometry: Geometry,
    contacts: Contacts,
    condim: np.ndarray,
    frame: Axes,
    sliding: Float[Array, " contact"],
    planar: bool,
) -> Axes:
    """Axes of turning in the world times lengths mu_i / mu [m]; zero in contacts without such friction."""
    friction = surfaces(geometry, contacts.shape_a, contacts.shape_b).coefficients
    kinds = ((2, ROLLING),) if planar else ((1, TORSIONAL), (2, ROLLING), (2, ROLLING))
    kinds = kinds[: turning_rows(condim, planar)]
    there = np.stack([condim >= least for _, least in kinds], axis=1)
    turning = jnp.stack([friction[:, column] for column, _ in kinds], axis=1)
    lengths = turning / jnp.maximum(sliding, LEAST_SLIDING)[:, None]
    axes = frame[:, 2:] if planar else frame[:, : len(kinds)]
    return jnp.where(there, lengths, 0.0)[:, :, None] * axes


def turning_speeds(
    model: Model, body: Articulation, contacts: Contacts, axes: Axes, qd
) -> Float[Array, "contact turn"]:
    """How a turns against b about the axes, times their lengths [m/s]."""
    carried = carried_sides(contacts)
    moving = rows(link_velocities(model, body.axes, qd), carried.link)
    R = rows(body.root.rotation, model.topology.links.root_of[carried.link])
    angular = jnp.asarray(carried.sign, axes.dtype)[:, None] * spatial.apply(R, moving[:, :3])
    return spatial.apply(axes, sum_rows(angular, carried.contact, len(contacts)))


def turning_wrenches(
    model: Model, body: Articulation, contacts: Contacts, axes: Axes, impulse: Float[Array, "contact turn"]
) -> Float[Array, "link 6"]:
    """What impulses of turning are to the links: [torque; force], world axes."""
    carried = carried_sides(contacts)
    torque = jnp.asarray(carried.sign, axes.dtype)[:, None] * rows(
        spatial.apply_transpose(axes, impulse), carried.contact
    )
    return sum_rows(jnp.pad(torque, ((0, 0), (0, 3))), carried.link, len(model.topology.parent))


def turning_jacobian(
    model: Model, world: WorldAxes, contacts: Contacts, axes: Axes, near: Nearest
) -> Float[Array, "near turn dof"]:
    """Velocity of turning per unit joint speed, of the nearest contacts."""
    sign = near.pick_fixed(moved_by(model, contacts.link_a) - moved_by(model, contacts.link_b), axes.dtype)
    angular = jnp.asarray(sign)[:, :, None] * world.angular[None]
    return jnp.sum(near.pick(axes)[:, :, None, :] * angular[:, None, :, :], axis=-1)


def turning_motion(R: Float[Array, "contact 3 3"], axes: Axes) -> Float[Array, "contact turn 6"]:
    """Velocity of turning per spatial velocity of the links, in frames that R turns to the world's."""
    return jnp.pad(spatial.compose(axes, R), ((0, 0), (0, 0), (0, 3)))
