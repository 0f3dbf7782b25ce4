"""From contact points to rows: how joint velocities move them, and how impulses on them move the joints."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from knuckle import spatial
from knuckle.contact.collide import Contacts
from knuckle.contact.laws import over_blocks
from knuckle.contact.nearest import Nearest
from knuckle.contact.planar import ACROSS, MotionPlane
from knuckle.dynamics.aba import Factor, aba, half_solve, solve_mass_matrix
from knuckle.kinematics import Articulation, link_velocities
from knuckle.model.joints import plane_axes
from knuckle.model.model import Model
from knuckle.tree import Tree, add_rows, rows

Vec = Float[Array | np.ndarray, " n"]
Jacobian = Float[Array, "row dof"]
MANY_ROWS = 40  # from here on a dense product pays; below, zeros of the branches are left out


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


def contact_frames(
    normal: Float[Array, "contact 3"],
    plane: Float[np.ndarray, "3"] | None,
    motion: MotionPlane | None = None,
    vary: bool = False,
) -> Float[Array, "contact axis 3"]:
    """Rows: the normal and two tangents, right-handed; in a model that moves in a plane, the tangent in it.

    `vary`: the normals are not known to be constants, so that a loop over lanes pays.

    If only the motion is known to be in a plane, normals in that plane have their first tangent in it too, so that laws
    that depend on the tangents are the same whether or not the plane is known when a step is traced.
    """
    if plane is not None:
        across = jnp.broadcast_to(jnp.asarray(plane, normal.dtype), normal.shape)
        return jnp.stack([normal, spatial.cross(across, normal)], axis=1)
    if vary:
        return over_blocks(lambda own: _frames(own, motion), normal)
    return _frames(normal, motion)


def _frames(normal: Float[Array, "contact 3"], motion: MotionPlane | None) -> Float[Array, "contact 3 3"]:
    first, second = plane_axes(normal)
    if motion is not None:
        across = jnp.broadcast_to(motion.normal, normal.shape)
        within = (motion.holds & (jnp.abs(spatial.dot(across, normal)) < ACROSS))[:, None]
        first, second = jnp.where(within, spatial.cross(across, normal), first), jnp.where(within, across, second)
    return jnp.stack([normal, first, second], axis=1)


def contact_jacobian(
    model: Model, axes: WorldAxes, contacts: Contacts, frames: Float[Array, "near axis 3"], near: Nearest
) -> Float[Array, "near axis dof"]:
    """Velocity of a's point against b's, along the axes of its frame, per unit joint speed, of the nearest contacts."""
    sign = near.pick_fixed(moved_by(model, contacts.link_a) - moved_by(model, contacts.link_b), contacts.gap.dtype)

    def along_frames(sign, point, frames) -> Float[Array, "near axis dof"]:
        velocity = point_velocities(axes, sign, point)
        return jnp.sum(frames[:, :, None, :] * velocity[:, None, :, :], axis=-1)

    return over_blocks(along_frames, sign, near.pick(contacts.point), frames)


def point_velocities(
    axes: WorldAxes, sign: Float[Array | np.ndarray, "point dof"], point: Float[Array, "point 3"]
) -> Float[Array, "point dof 3"]:
    """Velocities in the world, per unit joint speed, of points that joints move forwards (1), backwards or not (0)."""
    arm = point[:, None, :] - axes.origin[None, :, :]
    turned = spatial.cross(jnp.broadcast_to(axes.angular[None], arm.shape), arm)
    moving = jnp.asarray(sign)[:, :, None] * (axes.linear[None] + turned)
    return jnp.where((sign != 0)[:, :, None], moving, 0.0) if isinstance(sign, np.ndarray) else moving


def moved_by(model: Model, links: tuple[int, ...]) -> Float[np.ndarray, "contact dof"]:
    """1 where a degree of freedom moves a link, else 0; nothing moves the world (-1)."""
    topology = model.topology
    moves = topology.links.ancestors[topology.dof_link].astype(float)
    moves = np.concatenate([moves, np.zeros((model.nv, 1))], axis=1)
    return moves[:, np.array(links, int)].T


def effective_inverse_mass(dofs: Tree, factor: Factor, J: Jacobian) -> Float[Array, "row row"]:
    """J M^-1 J^T by half the sweeps of a solution."""
    reduced = jax.vmap(lambda row: half_solve(dofs, factor, row))(J)
    weighted = reduced * factor.D_inverse[None, :]
    if len(J) > MANY_ROWS:
        return jnp.matmul(weighted, reduced.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(weighted[:, None, :] * reduced[None, :, :], axis=-1)


def response(dofs: Tree, factor: Factor, J: Jacobian, impulse: Vec) -> Vec:
    """Change of joint velocities M^-1 J^T r."""
    return solve_mass_matrix(dofs, factor, spatial.apply_transpose(J, impulse))


def inverse_masses(model: Model, contacts: Contacts) -> Float[Array, " contact"]:
    """Sum over both sides of 1 / (mass of the link and what hangs on it) [1/kg]: the same at all coordinates."""
    with jax.ensure_compile_time_eval():
        carries = model.topology.links.ancestors.astype(float)
        own = jnp.asarray(model.inertia.mass)
        mass = jnp.sum(jnp.asarray(carries, own.dtype) * own[None, :], axis=1)
        heavy = mass > 0
        inverse = jnp.where(heavy, 1 / jnp.where(heavy, mass, 1.0), 0.0)
        if model.topology.prescribed:
            inverse = jnp.where(model.topology.is_driven, jnp.zeros_like(inverse), inverse)
        inverse = jnp.concatenate([inverse, jnp.zeros(1, inverse.dtype)])
        return inverse[np.array(contacts.link_a, int)] + inverse[np.array(contacts.link_b, int)]


def point_speeds(
    model: Model, body: Articulation, contacts: Contacts, frames: Float[Array, "contact axis 3"], qd: Vec
) -> Float[Array, "contact axis"]:
    """Velocity of a's point against b's along the axes of its frame: J qd, by the velocities of the links."""
    carried = carried_sides(contacts)

    def of_sides(R, p, moving, point, sign) -> Float[Array, "side 3"]:
        angular, linear = spatial.apply(R, moving[:, :3]), spatial.apply(R, moving[:, 3:])
        return sign[:, None] * (linear + spatial.cross(angular, point - p))

    moving, point = rows(link_velocities(model, body.axes, qd), carried.link), rows(contacts.point, carried.contact)
    velocity = over_sides(of_sides, model, body, carried.link, moving, point, jnp.asarray(carried.sign, point.dtype))
    if not np.array_equal(carried.contact, np.arange(len(contacts))):
        velocity = add_rows(velocity, carried.contact, len(contacts))
    return over_blocks(spatial.apply, frames, velocity)


def point_wrenches(
    model: Model,
    body: Articulation,
    contacts: Contacts,
    frames: Float[Array, "contact axis 3"],
    impulse: Float[Array, "contact axis"],
) -> Float[Array, "link 6"]:
    """What impulses at the contacts are to the links: [torque; force] about each link's origin, world axes."""
    carried = carried_sides(contacts)

    def of_sides(R, p, at, point, pull, sign) -> Float[Array, "side 6"]:
        force = sign[:, None] * pull
        return jnp.concatenate([spatial.cross(point - (p + spatial.apply(R, at)), force), force], axis=1)

    pull = rows(over_blocks(spatial.apply_transpose, frames, impulse), carried.contact)
    at, point = rows(body.in_root.position, carried.link), rows(contacts.point, carried.contact)
    sign = jnp.asarray(carried.sign, point.dtype)
    wrench = over_sides(of_sides, model, body, carried.link, at, point, pull, sign)
    return add_rows(wrench, carried.link, len(model.topology.parent))


def over_sides(function: Callable, model: Model, body: Articulation, link: np.ndarray, *arguments: Array) -> Array:
    """`function(R, p, *arguments)` over lanes, where R, p is the pose of the root of each link."""
    roots = model.topology.links
    if len(roots.roots) == 1:
        return over_blocks(lambda *own: function(*body.root, *own), *arguments)
    return over_blocks(function, *rows(body.root, roots.root_of[link]), *arguments)


class PickedSides(NamedTuple):
    """The links of contacts that were picked at run time; the world stands after the last link."""

    a: Int[Array, " near"]
    b: Int[Array, " near"]


def picked_sides(model: Model, contacts: Contacts, near: Nearest) -> PickedSides:
    links = len(model.topology.parent)
    a, b = (np.where(np.array(side) < 0, links, side).astype(np.int32) for side in (contacts.link_a, contacts.link_b))
    return PickedSides(near.pick(jnp.asarray(a)), near.pick(jnp.asarray(b)))


def picked_speeds(
    model: Model,
    body: Articulation,
    sides: PickedSides,
    point: Float[Array, "near 3"],
    frames: Float[Array, "near axis 3"],
    qd: Vec,
) -> Float[Array, "near axis"]:
    """`point_speeds` of contacts that were picked at run time."""
    R, p = rows(body.root, model.topology.links.root_of)
    moving = link_velocities(model, body.axes, qd)
    at_links = jnp.concatenate([spatial.apply(R, moving[:, :3]), spatial.apply(R, moving[:, 3:]), p], axis=1)
    at_links = jnp.pad(at_links, ((0, 1), (0, 0)))

    def velocity(sides: PickedSides, point: Float[Array, "near 3"], frames: Float[Array, "near axis 3"]):
        of_sides = []
        for side in sides:
            angular, linear, p = jnp.split(jnp.take(at_links, side, axis=0, mode="clip"), 3, axis=1)
            of_sides.append(linear + spatial.cross(angular, point - p))
        return spatial.apply(frames, of_sides[0] - of_sides[1])

    return over_blocks(velocity, sides, point, frames)


def picked_wrenches(
    model: Model,
    body: Articulation,
    sides: PickedSides,
    point: Float[Array, "near 3"],
    frames: Float[Array, "near axis 3"],
    impulse: Float[Array, "near axis"],
) -> Float[Array, "link 6"]:
    """`point_wrenches` of contacts that were picked at run time."""
    R, p = rows(body.root, model.topology.links.root_of)
    origin = jnp.pad(p + spatial.apply(R, body.in_root.position), ((0, 1), (0, 0)))

    def wrenches(sides: PickedSides, point, frames, impulse) -> Float[Array, "near side 6"]:
        parts = []
        for side, sign in zip(sides, (1.0, -1.0), strict=True):
            force = sign * spatial.apply_transpose(frames, impulse)
            arm = point - jnp.take(origin, side, axis=0, mode="clip")
            parts.append(jnp.concatenate([spatial.cross(arm, force), force], axis=1))
        return jnp.stack(parts, axis=1)

    total = jnp.zeros((len(origin), 6), impulse.dtype)
    both = over_blocks(wrenches, sides, point, frames, impulse)
    return total.at[jnp.stack(sides, axis=1)].add(both, mode="clip")[:-1]


class Carried(NamedTuple):
    """The sides of contacts that stand on a moving link."""

    contact: np.ndarray
    link: np.ndarray
    sign: np.ndarray


def carried_sides(contacts: Contacts) -> Carried:
    links = zip(contacts.link_a, contacts.link_b, strict=True)
    sides = [(k, link, sign) for k, ends in enumerate(links) for link, sign in zip(ends, (1.0, -1.0), strict=True)]
    contact, link, sign = (np.array([side[i] for side in sides if side[1] >= 0]) for i in range(3))
    return Carried(contact.astype(int), link.astype(int), sign)


def change_of_velocity(model: Model, q: Vec, wrench: Float[Array, "link 6"]) -> Vec:
    """What impulses on the links do to the joints' velocities, with the derivative rule of `aba`."""
    weightless = eqx.tree_at(lambda m: m.gravity, model, np.zeros(3, wrench.dtype))
    still = jnp.zeros(model.nv, wrench.dtype)
    return aba(weightless, q, still, still, wrench)
