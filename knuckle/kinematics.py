"""Where links and frames are, how they move, and their Jacobians."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.model.joints import joint_poses, motion_axes
from knuckle.model.model import Model
from knuckle.tree import outward, outward_sum, rows, sum_rows

Vec = Float[Array | np.ndarray, " n"]


class Poses(NamedTuple):
    """Rotation matrix and position of each link or frame in the world: R_WB, p_WB."""

    rotation: Float[Array, "body 3 3"]
    position: Float[Array, "body 3"]


class Articulation(NamedTuple):
    """Axes and inertias of all links in the frame of their tree's root link.

    In one common frame the recursions of dynamics need no transforms; the root's own frame keeps numbers small far from
    the world's origin, and its axes and inertia constant.
    """

    axes: Float[Array, "dof 6"]  # motion per unit speed of each degree of freedom (Featherstone's S)
    inertia: Float[Array, "link 6 6"]
    in_root: Poses  # each link in its root link
    root: Poses  # root links in the world


def in_parents(model: Model, q: Vec) -> tuple[Poses, Float[Array, "link 3 3"]]:
    """Each link's pose in its parent, and the rotation that its joint makes."""
    R_joint, p_joint = joint_poses(model, q)
    R_place = spatial.rotation_of_quaternion(jnp.asarray(model.rotation))
    position = jnp.asarray(model.position) + spatial.apply(R_place, p_joint)
    return Poses(spatial.compose(R_place, R_joint), position), R_joint


def _place(above: Poses, local: Poses) -> Poses:
    return Poses(
        spatial.compose(above.rotation, local.rotation), above.position + spatial.apply(above.rotation, local.position)
    )


def _identity(count: int, dtype) -> Poses:
    return Poses(jnp.broadcast_to(jnp.eye(3, dtype=dtype), (count, 3, 3)), jnp.zeros((count, 3), dtype))


def _in_roots(model: Model, local: Poses) -> tuple[Poses, Poses]:
    """Each link's pose in its root link, and the roots' poses in the world."""
    tree = model.topology.links
    is_root = np.array(model.topology.parent) < 0
    start = _identity(len(is_root), local.position.dtype)
    below = Poses(
        jnp.where(is_root[:, None, None], start.rotation, local.rotation),
        jnp.where(is_root[:, None], start.position, local.position),
    )
    in_root = outward(tree, _place, _identity(len(tree.roots), local.position.dtype), below)
    return in_root, rows(local, tree.roots)


def articulation(model: Model, q: Vec) -> Articulation:
    """Axes and inertias of all links at coordinates q."""
    local, R_joint = in_parents(model, q)
    in_root, root = _in_roots(model, local)
    R, p = rows(in_root, model.topology.dof_link)
    axes = motion_axes(model, R_joint)
    angular = spatial.apply(R, axes[:, :3])
    linear = spatial.apply(R, axes[:, 3:]) + spatial.cross(p, angular)
    body = model.inertia
    inertia = spatial.inertia_matrix(
        jnp.asarray(body.mass), jnp.asarray(body.com), jnp.asarray(body.moment), in_root.rotation, in_root.position
    )
    return Articulation(jnp.concatenate([angular, linear], axis=1), inertia, in_root, root)


def link_velocities(model: Model, axes: Float[Array, "dof 6"], qd: Vec) -> Float[Array, "link 6"]:
    """Spatial velocity of each link in its root's frame: the sum of its ancestors' joint velocities."""
    topology = model.topology
    joint = sum_rows(axes * qd[:, None], topology.dof_link, len(topology.parent))
    return outward_sum(topology.links, joint, jnp.zeros((len(topology.links.roots), 6), qd.dtype))


def origin_velocities(model: Model, q: Vec, qd: Vec) -> tuple[Float[Array, "link 3"], Float[Array, "link 6"]]:
    """Where the origin of each link is in the world, and how it turns and moves, [angular; linear] in world axes."""
    body = articulation(model, q)
    R, p = rows(body.root, model.topology.links.root_of)
    velocity = link_velocities(model, body.axes, qd)
    angular, at_root = velocity[:, :3], velocity[:, 3:]
    linear = at_root + spatial.cross(angular, body.in_root.position)
    moving = jnp.concatenate([spatial.apply(R, angular), spatial.apply(R, linear)], axis=1)
    return p + spatial.apply(R, body.in_root.position), moving


def poses(model: Model, q: Vec) -> Poses:
    """Pose of each link in the world."""
    local, _ = in_parents(model, q)
    in_root, root = _in_roots(model, local)
    return _place(rows(root, model.topology.links.root_of), in_root)


def frame_poses(model: Model, q: Vec) -> Poses:
    """Pose in the world of each named frame, in the order of `model.frames.names`."""
    frames = model.frames
    on_link = Poses(spatial.rotation_of_quaternion(jnp.asarray(frames.rotation)), jnp.asarray(frames.position))
    return _place(_carriers(poses(model, q), frames.link), on_link)


def _carriers(world: Poses, links: tuple[int, ...]) -> Poses:
    """Poses of the links named by number, of which -1 is the world."""
    with_world = Poses(*(jnp.concatenate([a, w]) for a, w in zip(world, _identity(1, world[1].dtype), strict=True)))
    return rows(with_world, np.array(links, int) % (len(world.position) + 1))


def frame_pose(model: Model, q: Vec, name: str) -> Poses:
    """Pose in the world (R_WF, p_WF) of one link or frame."""
    link, R_LF, p_LF = locate(model, name)
    R, p = (a[0] for a in _carriers(poses(model, q), (link,)))
    return Poses(spatial.compose(R, R_LF), p + spatial.apply(R, p_LF))


def locate(model: Model, name: str) -> tuple[int, Float[Array, "3 3"], Float[Array, "3"]]:
    """The link that carries a named link or frame, and its pose there."""
    frames = model.frames
    if name in model.link_names:
        dtype = jnp.asarray(model.position).dtype
        return model.link_names.index(name), jnp.eye(3, dtype=dtype), jnp.zeros(3, dtype)
    if name in frames.names:
        k = frames.names.index(name)
        R = spatial.rotation_of_quaternion(jnp.asarray(frames.rotation[k]))
        return frames.link[k], R, jnp.asarray(frames.position[k])
    raise ValueError(f"no link or frame {name!r}; there are {', '.join((*model.link_names, *frames.names))}")


def jacobian(model: Model, q: Vec, name: str) -> Float[Array, "6 dof"]:
    """Velocity [angular; linear] of a link or frame's origin, in world axes, per unit speed of each freedom."""
    link, _, p_LF = locate(model, name)
    if link < 0:
        return jnp.zeros((6, model.nv), q.dtype)
    return point_jacobian(model, q, link, p_LF)


def point_jacobian(model: Model, q: Vec, link: int, point: Float[Array, "3"]) -> Float[Array, "6 dof"]:
    """Velocity [angular; linear], in world axes, of a point given in a link's frame, per unit speed of each freedom."""
    topology = model.topology
    body = articulation(model, q)
    moves = topology.links.ancestors[topology.dof_link, link]
    axes = jnp.where(moves[:, None], body.axes, jnp.zeros_like(body.axes))
    at = body.in_root.position[link] + spatial.apply(body.in_root.rotation[link], point)
    angular = axes[:, :3]
    linear = axes[:, 3:] + spatial.cross(angular, jnp.broadcast_to(at, angular.shape))
    R = body.root.rotation[topology.links.root_of[link]]
    turned = [spatial.apply(jnp.broadcast_to(R, (model.nv, 3, 3)), part) for part in (angular, linear)]
    return jnp.concatenate(turned, axis=1).T


def frame_velocity(model: Model, q: Vec, qd: Vec, name: str) -> Float[Array, "6"]:
    """Velocity [angular; linear] of a link or frame's origin in world axes."""
    return spatial.apply(jacobian(model, q, name), qd)


def center_of_mass(model: Model, q: Vec) -> Float[Array, "3"]:
    """Centre of mass of all moving links, in the world."""
    R, p = poses(model, q)
    mass = jnp.asarray(model.inertia.mass)
    com = p + spatial.apply(R, jnp.asarray(model.inertia.com))
    return jnp.sum(mass[:, None] * com, axis=0) / jnp.sum(mass)
