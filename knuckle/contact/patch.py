"""The flat part where two convex shapes face each other: their faces, edges or points, cut to each other.

Seen along the normal, the part of a shape that is nearly furthest along it is a polygon (a face, a cylinder's cap), a
segment (an edge, a capsule's or a cylinder's side) or a point. All are taken as polygons of a fixed number of corners,
each the furthest one in one of as many directions across the normal, so corners may stand repeatedly.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.manifold import spread
from knuckle.contact.support import Convex
from knuckle.contact.touch import INACTIVE_GAP, Touch, constant, inactive_where, length_and_direction

CORNERS = 8
SLOPE = 0.03  # tangent; what lies further back than this, seen from the contact, belongs to another face
SLACK = 1e-9  # of the extent; edges on each other count as crossing
UNEVEN = 1e-6  # of the extent; how far corners of a face may lie off its plane
FLATTEST = 1e-10  # of the squared extent, added to a polygon's moments: a segment has no slope across itself
_ANGLES = 0.1 + 2 * np.pi * np.arange(CORNERS) / CORNERS  # turned, so that aligned edges are no ties
_WAYS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)

Vec3 = Float[Array, "3"]
Scalar = Float[Array, ""]
Ring = Float[Array, "corner 2"]


class Outline(NamedTuple):
    """A polygon seen along the normal, counter-clockwise, and the height of its corners along the normal."""

    flat: Ring
    height: Float[Array, " corner"]


def patch(a: Convex, b: Convex, witness: tuple[Scalar, Vec3, Vec3], slots: int) -> Touch:
    """Up to `slots` contacts (2 or 4) that span the patch; the witness (gap, point, normal) alone where it is a point.

    A place where polygons seem deeper than the witness is dropped: there they are not flat. Which corners and edges
    meet has no derivative.
    """
    gap, point, n = witness
    scale = jax.lax.stop_gradient(a.extent + b.extent)
    frame = _frame(a, n)
    origin = jax.lax.stop_gradient(point)
    of_a, of_b = _outline(a, -n, frame, origin), _outline(b, n, frame, origin)
    on_a, there_a = _cut(of_a, of_b, scale)
    on_b, there_b = _cut(of_b, of_a, scale)
    low = jnp.concatenate([_height(of_b, on_a.flat, scale), on_b.height])
    high = jnp.concatenate([on_a.height, _height(of_a, on_b.flat, scale)])
    flat = jnp.concatenate([on_a.flat, on_b.flat])
    place = jnp.concatenate([flat, 0.5 * (low + high)[:, None]], axis=1)
    there = jnp.concatenate([there_a, there_b]) & (high - low >= gap - UNEVEN * scale)
    normals = jnp.broadcast_to(n[None], place.shape)
    found = inactive_where(~there, Touch(high - low, origin[None] + spatial.compose(place, frame), normals))
    return _with_witness(found, witness, scale, slots)


def _frame(shape: Convex, n: Vec3) -> Float[Array, "3 3"]:
    """Two tangents and the normal as rows; the first tangent lies along an axis of the shape, seen along the normal."""
    turned = jnp.abs(spatial.apply_transpose(shape.rotation, jax.lax.stop_gradient(n)))
    axis = shape.rotation.T[jnp.argmin(turned)]
    tangent = spatial.normalize(axis - spatial.dot(axis, n) * n)
    return jnp.stack([tangent, spatial.cross(n, tangent), n])


def _with_witness(found: Touch, witness: tuple[Scalar, Vec3, Vec3], scale: Scalar, slots: int) -> Touch:
    """The witness joins the choice where nothing else is as deep, and stands alone if the others add nothing."""
    alone = Touch(*(x[None] for x in witness))
    known = jnp.min(found.gap) <= alone.gap + SLACK * scale
    every = Touch(*(jnp.concatenate([x, y])[None] for x, y in zip(found, inactive_where(known, alone), strict=True)))
    chosen = Touch(*(x[0, :slots] for x in spread(every, scale)))
    single = chosen.gap[1] == INACTIVE_GAP
    padded = inactive_where(jnp.arange(slots) > 0, Touch(*(jnp.repeat(x, slots, axis=0) for x in alone)))
    return Touch(*(jnp.where(single, x, y) for x, y in zip(padded, chosen, strict=True)))


def _outline(shape: Convex, outward: Vec3, frame: Float[Array, "3 3"], origin: Vec3) -> Outline:
    """The part of a shape that is nearly furthest along a unit vector, in a frame of two tangents and the normal."""
    ways = spatial.compose(constant(_WAYS, frame, _WAYS.shape), frame[:2])
    core = shape.position[None] + spatial.apply(
        shape.rotation[None], shape.local_corner(_corner_labels(shape, outward, ways, origin))
    )
    points = core + _rim(shape, outward, ways) + (shape.radius * outward)[None] - origin[None]
    local = spatial.compose(points, frame.T)
    return Outline(local[:, :2], local[:, 2])


def _corner_labels(shape: Convex, outward: Vec3, ways: Float[Array, "corner 3"], origin: Vec3) -> Array:
    """For each way, the furthest of those corners of the core that lie nearly furthest outwards.

    Slopes are seen from the point of contact: a corner that is furthest would do only where no other is, too.
    """
    still, outward, ways = jax.lax.stop_gradient((shape, outward, ways))
    across, towards = spatial.compose(ways, still.rotation), spatial.apply_transpose(still.rotation, outward)
    middle = spatial.apply_transpose(still.rotation, jax.lax.stop_gradient(origin) - still.position)
    most = still.highest(lambda x: [spatial.dot(x, towards)])[1][0]

    def along_ways(x: Vec3) -> list[Scalar]:
        drop, arm = most - spatial.dot(x, towards), x - middle
        arm = arm - spatial.dot(arm, towards) * towards
        near = (drop * drop <= SLOPE**2 * spatial.dot(arm, arm)) | (drop <= UNEVEN * still.extent)
        along = spatial.apply(across, x)
        return list(jnp.where(near, along, -jnp.inf))

    return still.highest(along_ways)[0]


def _rim(shape: Convex, outward: Vec3, ways: Float[Array, "corner 3"]) -> Float[Array, "corner 3"]:
    """Points of the smooth part: of a disc that looks outwards its rim in all ways, else one point."""
    disc = constant([1.0, 1.0, 0.0], outward, (3,))
    seen = spatial.apply_transpose(shape.rotation, jax.lax.stop_gradient(outward)) * disc
    flat = shape.is_disc & (spatial.dot(seen, seen) < SLOPE**2)
    local = spatial.compose(ways, shape.rotation) * disc[None]
    _, radial = length_and_direction(local, constant([1.0, 0.0, 0.0], local, local.shape))
    rim = spatial.apply(shape.rotation[None], radial * shape.smooth_half[None])
    lowest = shape.smooth(outward)[0]
    return jnp.where(flat, rim, jnp.broadcast_to(lowest[None], rim.shape))


def _cut(ring: Outline, other: Outline, scale: Scalar) -> tuple[Outline, Bool[Array, " end"]]:
    """Both ends of the part of each edge within another polygon, and which of them there are (Cyrus and Beck 1978).

    Beside its edges, a polygon is bounded in each way by its furthest corner: so that a segment ends.
    """
    normals, bounds = _half_planes(other)
    step = Outline(*(jnp.roll(x, -1, axis=0) - x for x in ring))
    room = bounds[None] + SLACK * scale - spatial.compose(ring.flat, normals.T)
    rate = spatial.compose(step.flat, normals.T)
    still = jnp.abs(rate) <= 1e-12 * scale
    share = room / jnp.where(still, jnp.ones_like(rate), rate)
    zero, one = jnp.zeros_like(share), jnp.ones_like(share)
    enter = jnp.where(~still & (rate < 0), share, jnp.where(still & (room < 0), 2 * one, zero))
    leave = jnp.where(~still & (rate > 0), share, one)
    low, high = jnp.max(jnp.maximum(enter, zero), axis=1), jnp.min(jnp.minimum(leave, one), axis=1)
    there = low <= high
    ends = [_along(ring, step, jnp.clip(t, 0, 1)) for t in (low, high)]
    return Outline(*(jnp.concatenate(x) for x in zip(*ends, strict=True))), jnp.concatenate([there, there])


def _along(ring: Outline, step: Outline, share: Float[Array, " corner"]) -> Outline:
    return Outline(ring.flat + share[:, None] * step.flat, ring.height + share * step.height)


def _half_planes(ring: Outline) -> tuple[Float[Array, "side 2"], Float[Array, " side"]]:
    """Unit vectors outwards, and how far the polygon reaches along them; zero for corners that stand repeatedly."""
    edge = jnp.roll(ring.flat, -1, axis=0) - ring.flat
    across = jnp.stack([edge[:, 1], -edge[:, 0]], axis=1)
    _, across = length_and_direction(across, jnp.zeros_like(across))
    normals = jnp.concatenate([across, constant(_WAYS, across, _WAYS.shape)])
    return normals, spatial.dot(normals, jnp.concatenate([ring.flat, ring.flat]))


def _height(ring: Outline, at: Float[Array, "end 2"], scale: Scalar) -> Float[Array, " end"]:
    """Height over given places of the plane that fits a polygon's corners best."""
    middle = jnp.mean(ring.flat, axis=0)
    level = jnp.mean(ring.height)
    arm = ring.flat - middle[None]
    moments = spatial.compose(arm.T, arm) + FLATTEST * scale**2 * jnp.eye(2, dtype=arm.dtype)
    right = spatial.apply_transpose(arm, ring.height - level)
    determinant = moments[0, 0] * moments[1, 1] - moments[0, 1] ** 2
    x = moments[1, 1] * right[0] - moments[0, 1] * right[1]
    y = moments[0, 0] * right[1] - moments[0, 1] * right[0]
    slope = jnp.stack([x, y]) / determinant
    return level + spatial.dot(at - middle[None], slope[None])
