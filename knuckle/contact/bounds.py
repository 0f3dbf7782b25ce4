"""Bounding boxes and balls: which pairs of shapes cannot touch within a step, so that their test is left out."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.vertices import corners_of
from knuckle.kinematics import Articulation, Poses, link_velocities
from knuckle.model.geometry import SCALES, Geometry
from knuckle.model.model import Model
from knuckle.tree import rows

SLACK = 2.0  # times the fastest motion, that pairs may come nearer: impulses make links faster
LEAST_REACH = 0.01  # [m]


class Box(NamedTuple):
    """A box along the axes of a shape's frame that holds it."""

    center: Float[Array, "shape 3"]
    half: Float[Array, "shape 3"]

    @property
    def radius(self) -> Float[Array, " shape"]:
        """Of the ball about its centre that holds it."""
        return jnp.sqrt(spatial.dot(self.half, self.half))


def bounding_boxes(geometry: Geometry, shapes: list[int]) -> Box:
    """Of shapes but planes, whose box has no size."""
    size = rows(jnp.asarray(geometry.size), np.array(shapes, int))
    center, half, by_size = (np.zeros((len(shapes), *width)) for width in ((3,), (3,), (3, 3)))
    for k, shape in enumerate(shapes):
        kind = geometry.kind[shape]
        if kind in SCALES:
            corners = corners_of(geometry, shape)
            center[k], half[k] = 0.5 * (corners.min(axis=0) + corners.max(axis=0)), 0.5 * np.ptp(corners, axis=0)
        else:
            by_size[k] = _HALF_LENGTHS[kind]
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
    center_a, center_b = (
        at.position + spatial.apply(at.rotation, box.center) for box, at in ((box_a, at_a), (box_b, at_b))
    )
    apart, normal = center_a - center_b, at_b.rotation[:, :, 2]
    between = jnp.sqrt(spatial.dot(apart, apart)) - box_a.radius - box_b.radius
    lowest = spatial.dot(jnp.abs(spatial.apply_transpose(at_a.rotation, normal)), box_a.half)
    is_plane = np.array([geometry.kind[shape] == "plane" for shape in b[0]])
    return jax.lax.stop_gradient(jnp.where(is_plane, spatial.dot(normal, apart) - lowest, between))


def fastest(model: Model, body: Articulation, v: Float[Array, " dof"]) -> Float[Array, ""]:
    """A bound of the speed of any point of any shape [m/s], without derivative."""
    geometry = model.geometry
    index = np.flatnonzero(np.array(geometry.link) >= 0)
    if not len(index):
        return jnp.zeros((), v.dtype)
    model, body, v = jax.lax.stop_gradient((model, body, v))
    box = bounding_boxes(geometry, index.tolist())
    placed = rows(jnp.asarray(geometry.position), index)
    arm = jnp.sqrt(spatial.dot(placed, placed)) + jnp.sqrt(spatial.dot(box.center, box.center)) + box.radius
    moving = link_velocities(model, body.axes, v)
    angular, at_root = moving[:, :3], moving[:, 3:]
    linear = at_root + spatial.cross(angular, body.in_root.position)
    links = np.array(geometry.link, int)[index]
    turning, going = (rows(jnp.sqrt(spatial.dot(x, x)), links) for x in (angular, linear))
    return jnp.max(going + turning * arm)


def reach_of(model: Model, body: Articulation, dt, *velocities: Float[Array, " dof"]) -> Float[Array, ""]:
    """How far apart shapes may be that touch within the step [m]."""
    speed = jnp.max(jnp.stack([fastest(model, body, v) for v in velocities]))
    return LEAST_REACH + SLACK * 2 * dt * speed
