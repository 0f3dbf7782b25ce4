"""Shapes against a plane, whose solid side is below its z axis. Each takes the shape (a) and the plane (b)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.manifold import pick_all
from knuckle.contact.touch import Placed, Touch, constant, length_and_direction, one_hot, pick, sign

CAPSULE_ENDS = np.array([[-1.0], [1.0]])
FACE_CORNERS = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
# Along and across the lowest direction of a cylinder's rim, and which cap: the lowest point of either cap, and two more
# on the lower cap, a third of a turn on. (MuJoCo's choice; upright, three points stand on the plane.)
RIM_POINTS = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, -1.0], [-0.5, 0.75**0.5, 1.0], [-0.5, -(0.75**0.5), 1.0]])


def _touch(points: Float[Array, "pair point 3"], radius: Float[Array, " pair"], plane: Placed) -> Touch:
    """Balls of one radius per pair, against the plane."""
    normal = jnp.broadcast_to(plane.axis[:, None], points.shape)
    gap = spatial.dot(normal, points - plane.position[:, None]) - radius[:, None]
    return Touch(gap, points - (radius[:, None] + 0.5 * gap)[..., None] * normal, normal)


def _no_radius(a: Placed) -> Float[Array, " pair"]:
    return jnp.zeros_like(a.size[:, 0])


def sphere_plane(a: Placed, b: Placed) -> Touch:
    """One point."""
    return _touch(a.position[:, None], a.size[:, 0], b)


def capsule_plane(a: Placed, b: Placed) -> Touch:
    """Two points: the balls at both ends."""
    ends = constant(CAPSULE_ENDS, a.size, (a.size.shape[0], 2, 1)) * (a.size[:, 1:2] * a.axis)[:, None]
    return _touch(a.position[:, None] + ends, a.size[:, 0], b)


def ellipsoid_plane(a: Placed, b: Placed) -> Touch:
    """One point, the lowest: x = -D^2 n/|D n| with the half lengths D and the normal n in the shape's axes."""
    scaled = a.size * spatial.apply_transpose(a.rotation, b.axis)
    lowest = -a.size * spatial.normalize(scaled)
    return _touch(a.to_world(lowest[:, None]), _no_radius(a), b)


def box_plane(a: Placed, b: Placed) -> Touch:
    """Four points: the corners of the face that faces the plane most, weighed by the box's size.

    A box touches a plane in at most one face, so eight corners would only add rows that never act; this face has the
    lowest corner always.
    """
    reach = a.size * spatial.apply_transpose(a.rotation, b.axis)
    down = jnp.argmax(jnp.abs(jax.lax.stop_gradient(reach)), axis=-1)
    corners = box_face(a.size, down, -sign(pick(reach, down)))
    return _touch(a.to_world(corners), _no_radius(a), b)


def box_face(size: Float[Array, "pair 3"], axis: Array, side: Float[Array, " pair"]) -> Float[Array, "pair 4 3"]:
    """Corners, in order round it, of the box's face that looks along side times an axis given by number."""
    count = size.shape[0]
    pattern = constant(FACE_CORNERS, size, (count, 4, 2))
    middle = jnp.broadcast_to(side[:, None], (count, 4))
    faces = [_columns(k, middle, pattern) for k in range(3)]
    marks = one_hot(axis, 3)
    signs = sum(jnp.where(marks[:, k, None, None], faces[k], jnp.zeros_like(faces[k])) for k in range(3))
    return signs * size[:, None]


def _columns(k: int, middle: Float[Array, "pair 4"], pattern: Float[Array, "pair 4 2"]) -> Float[Array, "pair 4 3"]:
    columns = [pattern[..., 0], pattern[..., 1]]
    columns.insert(k, middle)
    return jnp.stack(columns, axis=-1)


def cylinder_plane(a: Placed, b: Placed) -> Touch:
    """Four points on the rims: the lowest of each cap, and two more on the lower cap."""
    radius, half_length = a.size[:, 0], a.size[:, 1]
    normal = spatial.apply_transpose(a.rotation, b.axis)
    flat = constant([1.0, 1.0, 0.0], normal, normal.shape)
    _, low = length_and_direction(-normal * flat, constant([1.0, 0.0, 0.0], normal, normal.shape))
    across = jnp.stack([-low[:, 1], low[:, 0], jnp.zeros_like(radius)], axis=-1)
    cap = -sign(normal[:, 2]) * half_length
    up = constant([0.0, 0.0, 1.0], normal, normal.shape) * cap[:, None]
    parts = jnp.stack([radius[:, None] * low, radius[:, None] * across, up], axis=1)
    return _touch(
        a.to_world(spatial.compose(constant(RIM_POINTS, parts, (parts.shape[0], 4, 3)), parts)), _no_radius(a), b
    )


def points_plane(a: Placed, b: Placed) -> Touch:
    """One contact for each of the points."""
    return _touch(a.to_world(a.vertices), _no_radius(a), b)


def polygon_plane(a: Placed, b: Placed) -> Touch:
    """Two points, the lowest corners of a polygon that stands upright on the plane."""
    everything = _touch(a.to_world(a.vertices), _no_radius(a), b)
    gap = jax.lax.stop_gradient(everything.gap)
    first = jnp.argmin(gap, axis=1)
    second = jnp.argmin(jnp.where(one_hot(first, gap.shape[1]), jnp.full_like(gap, jnp.inf), gap), axis=1)
    return pick_all(everything, jnp.stack([first, second], axis=1))
