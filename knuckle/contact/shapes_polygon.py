"""Convex polygons in the plane of a planar model, against each other, circles (spheres) and capsules.

All shapes are taken in the x-y plane of a polygon, in which the others lie too: a circle is a corner and a capsule an
edge, with a radius.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.touch import (
    INACTIVE_GAP,
    NEARER,
    Placed,
    Touch,
    constant,
    inactive_where,
    length_and_direction,
    pick,
)

LEAST_EDGE = 1e-12  # [m]; corners that stand twice make no edge

Flat = Float[Array, "pair corner 2"]
Row = Float[Array, " pair"]


class Outline(NamedTuple):
    """Corners counter-clockwise in the plane, and the radius round them."""

    corners: Flat
    radius: Row

    @property
    def edges(self) -> Flat:
        return jnp.roll(self.corners, -1, axis=1) - self.corners


def polygon_polygon(a: Placed, b: Placed) -> Touch:
    """Two points: the ends of the part of an edge that faces an edge of the other."""
    return _touch(a, _in_plane(a, a, a.vertices), _in_plane(a, b, b.vertices))


def sphere_polygon(a: Placed, b: Placed) -> Touch:
    """One point."""
    circle = _in_plane(b, a, jnp.zeros_like(a.position)[:, None], a.size[:, 0])
    touch = _touch(b, _in_plane(b, b, b.vertices), circle)
    return Touch(*(x[:, :1] for x in _turned(touch)))


def capsule_polygon(a: Placed, b: Placed) -> Touch:
    """Two points, as for an edge."""
    ends = constant([[0.0, 0.0, -1.0], [0.0, 0.0, 1.0]], a.size, (a.size.shape[0], 2, 3)) * a.size[:, None, 1:2]
    return _turned(_touch(b, _in_plane(b, b, b.vertices), _in_plane(b, a, ends, a.size[:, 0])))


def _turned(touch: Touch) -> Touch:
    return touch._replace(normal=-touch.normal)


def _in_plane(
    plane: Placed, shape: Placed, corners: Float[Array, "pair corner 3"], radius: Row | None = None
) -> Outline:
    world = shape.to_world(corners)
    flat = spatial.apply_transpose(plane.rotation[:, None], world - plane.position[:, None])[..., :2]
    return Outline(flat, jnp.zeros_like(flat[:, 0, 0]) if radius is None else radius)


class FlatTouch(NamedTuple):
    """Two slots in the plane: gap of the cores, the point midway between them, and the normal."""

    gap: Float[Array, "pair 2"]
    point: Float[Array, "pair 2 2"]
    normal: Float[Array, "pair 2 2"]


def _touch(plane: Placed, a: Outline, b: Outline) -> Touch:
    """Contacts of outlines in the x-y plane of a placement, back in the world."""
    flat = _cores(a, b)
    radii = a.radius + b.radius
    gap = jnp.where(flat.gap == INACTIVE_GAP, flat.gap, flat.gap - radii[:, None])
    point = flat.point + 0.5 * (b.radius - a.radius)[:, None, None] * flat.normal
    normal = spatial.apply(plane.rotation[:, None, :, :2], flat.normal)
    world = plane.position[:, None] + spatial.apply(plane.rotation[:, None, :, :2], point)
    return Touch(gap, world, normal)


def _cores(a: Outline, b: Outline) -> FlatTouch:
    """Overlapping: the edges of least overlap, cut to each other. Apart: the nearest corner stands first."""
    of_a, of_b = _best_edge(a, b), _best_edge(b, a)
    by_a = of_a.gap >= of_b.gap
    faces = _select(by_a, _turn_flat(_cut_edges(a, b, of_a)), _cut_edges(b, a, of_b))
    corner = _nearest_corner(a, b)
    apart = jnp.maximum(of_a.gap, of_b.gap) > 0
    none = jnp.min(faces.gap, axis=1) == INACTIVE_GAP
    by_corner = (corner.gap[:, 0] < NEARER * jnp.min(faces.gap, axis=1)) & (apart | none)
    return _select(by_corner, corner, faces)


class Edge(NamedTuple):
    """The edge of an outline that separates another most."""

    number: Array
    normal: Float[Array, "pair 2"]  # outwards
    gap: Row


def _best_edge(a: Outline, b: Outline) -> Edge:
    outward, exists = _outward(a)
    reach = spatial.dot(outward[:, :, None], b.corners[:, None] - a.corners[:, :, None])
    gap = jax.lax.stop_gradient(jnp.min(reach, axis=2))
    gap = jnp.where(exists, gap, jnp.full_like(gap, -jnp.inf))
    best = jnp.argmax(gap, axis=1)
    return Edge(best, pick(outward, best), pick(gap, best))


def _outward(outline: Outline) -> tuple[Flat, Bool[Array, "pair corner"]]:
    """Unit normals of the edges, and which corners have an edge to the next."""
    along = outline.edges
    squared = spatial.dot(along, along)
    exists = squared > LEAST_EDGE**2
    length = jnp.sqrt(jnp.where(exists, squared, jnp.ones_like(squared)))
    return jnp.stack([along[..., 1], -along[..., 0]], axis=-1) / length[..., None], exists


def _cut_edges(a: Outline, b: Outline, edge: Edge) -> FlatTouch:
    """The edge of b that faces a's most, cut to the width of a's edge; the normal looks from a to b."""
    start, along = pick(a.corners, edge.number), pick(a.edges, edge.number)
    tangent = jnp.stack([-edge.normal[:, 1], edge.normal[:, 0]], axis=-1)
    width = spatial.dot(along, tangent)
    first, second = _facing_edge(b, edge.normal)
    x0, x1 = spatial.dot(first - start, tangent), spatial.dot(second - start, tangent)
    y0, y1 = spatial.dot(first - start, edge.normal), spatial.dot(second - start, edge.normal)
    steep = jnp.abs(x1 - x0) < LEAST_EDGE
    slope = jnp.where(steep, jnp.zeros_like(y0), (y1 - y0) / jnp.where(steep, jnp.ones_like(x0), x1 - x0))
    low, high = jnp.minimum(x0, x1), jnp.maximum(x0, x1)
    zero = jnp.zeros_like(width)
    ends = jnp.stack([jnp.clip(low, zero, width), jnp.clip(high, zero, width)], axis=1)
    height = y0[:, None] + slope[:, None] * (ends - x0[:, None])
    normal = jnp.broadcast_to(edge.normal[:, None], (*ends.shape, 2))
    point = start[:, None] + ends[..., None] * tangent[:, None] + 0.5 * height[..., None] * normal
    missed = (high < 0) | (low > width)
    single = high - low < LEAST_EDGE
    empty = jnp.stack([missed, missed | single], axis=1)
    return FlatTouch(*inactive_where(empty, Touch(height, point, normal)))


def _facing_edge(b: Outline, normal: Float[Array, "pair 2"]) -> tuple[Float[Array, "pair 2"], Float[Array, "pair 2"]]:
    """Ends of the edge of b that looks most against a normal; a single corner is both."""
    outward, exists = _outward(b)
    facing = jnp.where(exists, spatial.dot(outward, normal[:, None]), jnp.full_like(b.corners[..., 0], 2.0))
    best = jnp.argmin(jax.lax.stop_gradient(facing), axis=1)
    return pick(b.corners, best), pick(jnp.roll(b.corners, -1, axis=1), best)


def _nearest_corner(a: Outline, b: Outline) -> FlatTouch:
    """The corner of either outline that is nearest to an edge of the other; the second slot is inactive."""
    on_a, on_b = _corners_to_edges(b, a), _corners_to_edges(a, b)
    single = _select(on_a.gap[:, 0] <= on_b.gap[:, 0], _turn_flat(on_a), on_b)
    empty = jnp.broadcast_to(jnp.array([[False, True]]), single.gap.shape)
    return FlatTouch(*inactive_where(empty, Touch(*single)))


def _corners_to_edges(a: Outline, b: Outline) -> FlatTouch:
    """The corner of a that is nearest to the outline of b, in both slots; the normal looks from b to a."""
    start, along = b.corners[:, None], b.edges[:, None]
    arm = a.corners[:, :, None] - start
    squared = spatial.dot(along, along)
    share = spatial.dot(arm, along) / jnp.where(squared > LEAST_EDGE**2, squared, jnp.ones_like(squared))
    away = arm - jnp.clip(share, 0, 1)[..., None] * along
    count = away.shape[1] * away.shape[2]
    away = away.reshape(-1, count, 2)
    corner = jnp.broadcast_to(a.corners[:, :, None], arm.shape).reshape(-1, count, 2)
    best = jnp.argmin(jax.lax.stop_gradient(spatial.dot(away, away)), axis=1)
    gap, normal = length_and_direction(pick(away, best), constant([0.0, 1.0], away, (away.shape[0], 2)))
    point = pick(corner, best) - 0.5 * gap[:, None] * normal
    return FlatTouch(*(jnp.repeat(x[:, None], 2, axis=1) for x in (gap, point, normal)))


def _turn_flat(touch: FlatTouch) -> FlatTouch:
    return touch._replace(normal=-touch.normal)


def _select(condition: Bool[Array, " pair"], yes: FlatTouch, no: FlatTouch) -> FlatTouch:
    return FlatTouch(
        *(jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y) for x, y in zip(yes, no, strict=True))
    )
