"""Bounding boxes and balls: which pairs of shapes cannot touch within a step, so that their test is left out."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.laws import over_blocks
from knuckle.contact.pairs import Pair
from knuckle.contact.vertices import corners_of
from knuckle.kinematics import Articulation, Poses, link_velocities
from knuckle.model.geometry import SCALES, Geometry
from knuckle.model.model import Model
from knuckle.prescribed import BodyMotion
from knuckle.tree import rows

SLACK = 2.0  # times the fastest motion, that pairs may come nearer: impulses make links faster
LEAST_REACH = 0.01  # [m]; half of it if one of two shapes cannot move


class Box(NamedTuple):
    """A box along the axes of a shape's frame that holds it."""

    center: Float[Array, "shape 3"]
    half: Float[Array, "shape 3"]

    @property
    def radius(self) -> Float[Array, " shape"]:
        """Of the ball about its centre that holds it."""
        with jax.ensure_compile_time_eval():
            return jnp.sqrt(spatial.dot(self.half, self.half))


def bounding_boxes(geometry: Geometry, shapes: list[int]) -> Box:
    """Of shapes but planes, whose box has no size."""
    with jax.ensure_compile_time_eval():
        size = rows(jnp.asarray(geometry.size), np.array(shapes, int))
    center, half, by_size = (np.zeros((len(shapes), *width)) for width in ((3,), (3,), (3, 3)))
    for k, shape in enumerate(shapes):
        kind = geometry.kind[shape]
        if kind in SCALES:
            corners = corners_of(geometry, shape)
            center[k], half[k] = 0.5 * (corners.min(axis=0) + corners.max(axis=0)), 0.5 * np.ptp(corners, axis=0)
        else:
            by_size[k] = _HALF_LENGTHS[kind]
    with jax.ensure_compile_time_eval():
        own = spatial.apply(jnp.asarray(by_size, size.dtype), size)
        return Box(jnp.asarray(center, size.dtype) * size, own + jnp.asarray(half, size.dtype) * jnp.abs(size))


_HALF_LENGTHS = {  # by sizes
    "plane": np.zeros((3, 3)),
    "sphere": np.array([[1.0, 0.0, 0.0]] * 3),
    "capsule": np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
    "cylinder": np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
    "box": np.eye(3),
    "ellipsoid": np.eye(3),
}


def clearance(geometry: Geometry, a: tuple[list[int], Poses], b: tuple[list[int], Poses]) -> Float[Array, " pair"]:
    """A lower bound of the gap of each pair, without derivative [m]; the second shape may be a plane."""
    (box_a, at_a), (box_b, at_b) = ((bounding_boxes(geometry, shapes), at) for shapes, at in (a, b))

    def centers(a: Poses, center_a, b: Poses, center_b) -> Float[Array, "pair 3"]:
        """From those of b to those of a."""
        ends = (at.position + spatial.apply(at.rotation, center) for at, center in ((a, center_a), (b, center_b)))
        return jnp.subtract(*ends)

    def over_planes(a: Poses, center_a, half_a, b: Poses, center_b) -> Float[Array, " pair"]:
        normal = b.rotation[:, :, 2]
        lowest = spatial.dot(jnp.abs(spatial.apply_transpose(a.rotation, normal)), half_a)
        return spatial.dot(normal, centers(a, center_a, b, center_b)) - lowest

    def between_boxes(a: Poses, center_a, half_a, b: Poses, center_b, half_b) -> Float[Array, " pair"]:
        """Along the line of the centres, of balls, and along the axes of both boxes (the best of Ericson, 4.4.1)."""
        apart = centers(a, center_a, b, center_b)
        radii = (jnp.sqrt(spatial.dot(half, half)) for half in (half_a, half_b))
        balls = jnp.sqrt(spatial.dot(apart, apart)) - sum(radii)
        turned = jnp.abs(spatial.compose(jnp.swapaxes(a.rotation, -1, -2), b.rotation))
        along_a = jnp.abs(spatial.apply_transpose(a.rotation, apart)) - half_a - spatial.apply(turned, half_b)
        along_b = jnp.abs(spatial.apply_transpose(b.rotation, apart)) - half_b - spatial.apply_transpose(turned, half_a)
        return jnp.maximum(balls, jnp.max(jnp.maximum(along_a, along_b), axis=-1))

    is_plane = np.array([geometry.kind[shape] == "plane" for shape in b[0]])
    found = []
    if is_plane.any():
        found.append(over_blocks(over_planes, at_a, box_a.center, box_a.half, at_b, box_b.center))
    if not is_plane.all():
        ends = at_a, box_a.center, box_a.half, at_b, box_b.center, box_b.half
        found.append(over_blocks(between_boxes, *ends))
    return jax.lax.stop_gradient(found[0] if len(found) == 1 else jnp.where(is_plane, *found))


def fastest(model: Model, body: Articulation, v: Float[Array, " dof"]) -> Float[Array, ""]:
    """A bound of the speed of any point of any shape [m/s], without derivative."""
    geometry = model.geometry
    index = np.flatnonzero(np.array(geometry.link) >= 0)
    if not len(index):
        return jnp.zeros((), v.dtype)
    model, body, v = jax.lax.stop_gradient((model, body, v))
    links, arm = _longest_arms(geometry, index)
    moving = rows(link_velocities(model, body.axes, v), links)
    angular, at_root = moving[:, :3], moving[:, 3:]
    linear = at_root + spatial.cross(angular, rows(body.in_root.position, links))
    squared = spatial.dot(linear, linear) + arm**2 * spatial.dot(angular, angular)
    return jnp.sqrt(2 * jnp.max(squared))  # (a + b)^2 <= 2 (a^2 + b^2): one root for all


def _longest_arms(geometry: Geometry, index: np.ndarray) -> tuple[np.ndarray, Float[Array, " link"]]:
    """Links that carry some shapes, and how far these reach from the links' origins [m]."""
    with jax.ensure_compile_time_eval():
        placed = rows(jnp.asarray(geometry.position), index)
        arm = jnp.sqrt(spatial.dot(placed, placed)) + _extent(geometry, index)
        links, number = np.unique(np.array(geometry.link, int)[index], return_inverse=True)
        return links, jnp.zeros(len(links), arm.dtype).at[number].max(arm)


def fastest_prescribed(model: Model, body: Articulation, moving: BodyMotion) -> Float[Array, ""]:
    """A bound of the speed of any point of a shape on a prescribed body; of a plane, of points where shapes are."""
    geometry = model.geometry
    index = np.flatnonzero(np.array(moving.shape_body, int) >= 0)
    if not len(index):
        return jnp.zeros((), moving.velocity.dtype)
    model, body, moving = jax.lax.stop_gradient((model, body, moving))
    owner = np.array(moving.shape_body, int)[index]
    origin = rows(moving.pose, owner)[:, :3]
    own = rows(jnp.asarray(geometry.position), index) - origin
    arm = jnp.sqrt(spatial.dot(own, own)) + _extent(geometry, index)
    is_plane = np.array([geometry.kind[shape] == "plane" for shape in index])
    if is_plane.any():
        links = np.array(geometry.link, int)
        others = np.flatnonzero(links >= 0)
        R, p = rows(body.root, model.topology.links.root_of[links[others]])
        at = p + spatial.apply(R, rows(body.in_root.position, links[others]))
        placed = rows(jnp.asarray(geometry.position), others)
        size = jnp.sqrt(spatial.dot(placed, placed)) + _extent(geometry, others)
        apart = at[None, :, :] - origin[:, None, :]
        far = jnp.max(jnp.sqrt(spatial.dot(apart, apart)) + size[None, :], axis=1, initial=0.0)
        arm = jnp.where(is_plane, far, arm)
    turning, going = (jnp.sqrt(spatial.dot(x, x)) for x in (moving.velocity[:, :3], moving.velocity[:, 3:]))
    return jnp.max(rows(going, owner) + rows(turning, owner) * arm)


def _extent(geometry: Geometry, index: np.ndarray) -> Float[Array, " shape"]:
    """How far shapes reach from their frames [m]; planes have no size."""
    box = bounding_boxes(geometry, index.tolist())
    return jnp.sqrt(spatial.dot(box.center, box.center)) + box.radius


def movers_of(model: Model, pairs: tuple[Pair, ...], moving: BodyMotion | None) -> int:
    """How many of the two shapes of a pair may move: one if the other is always on the world, which stands still."""
    link = model.geometry.link
    return 1 if moving is None and all(min(link[pair.a], link[pair.b]) < 0 for pair in pairs) else 2


def reach_of(
    model: Model,
    body: Articulation,
    dt,
    *velocities: Float[Array, " dof"],
    moving: BodyMotion | None = None,
    movers: int = 2,
) -> Float[Array, ""]:
    """How far apart shapes may be that touch within the step [m]; `movers`: how many of two shapes may move."""
    speeds = [fastest(model, body, v) for v in velocities]
    speeds += [] if moving is None else [fastest_prescribed(model, body, moving)]
    return movers * (0.5 * LEAST_REACH + SLACK * dt * jnp.max(jnp.stack(speeds)))
