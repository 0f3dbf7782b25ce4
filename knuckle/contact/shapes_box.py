"""Box against box: separating axes, then the overlap of two faces, the crossing of two edges or the nearest corner."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.manifold import pick_all, spread
from knuckle.contact.shapes_plane import FACE_CORNERS, box_face
from knuckle.contact.shapes_round import point_box
from knuckle.contact.touch import INACTIVE_GAP, NEARER, Placed, Touch, constant, inactive_where, one_hot, pick, sign

PARALLEL_SINE_SQUARED = 1e-6  # edges closer to parallel than 1e-3 rad have no axis of their own
ON_EDGE = 1e-9  # of a size; faces of equal boxes meet edge on edge, where rounding must not decide
NEARLY_FACE = 0.9998  # cosine; an edges' axis closer than 1.1 degrees to a face's normal gives way to the face
BOX_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))

Row = Float[Array, " pair"]
Vec3 = Float[Array, "pair 3"]


class Axes(NamedTuple):
    """The best separating axes: unit vectors from b towards a, and how far they separate (negative: overlap)."""

    face: Int[Array, " pair"]  # 0 to 2: of a; 3 to 5: of b
    face_normal: Vec3
    edges: Int[Array, " pair"]  # 3 i + j for edge i of a and edge j of b
    edge_normal: Vec3
    use_edges: Bool[Array, " pair"]
    apart: Bool[Array, " pair"]


def box_box(a: Placed, b: Placed) -> Touch:
    """Up to four points of two faces' overlap, or one of crossing edges; apart, the nearest point stands first.

    (Separating axes: Gottschalk et al. 1996. Faces are preferred to edges that look nearly the same way, so that a
    stack keeps its four points.)
    """
    axes = _axes(a, b)
    faces = spread(_face_overlap(a, b, axes))
    crossing, interior = _edge_crossing(a, b, axes)
    corner = _nearest_corner(a, b)
    nearest, none = faces.gap[:, 0], faces.gap[:, 0] == INACTIVE_GAP
    by_corner = (corner.gap[:, 0] < NEARER * nearest) & (axes.apart | none)
    one_point = axes.use_edges | by_corner
    single = _select(axes.use_edges & (interior | ~axes.apart), crossing, corner)
    alone = inactive_where(jnp.arange(4)[None] > 0, Touch(*(jnp.repeat(x, 4, axis=1) for x in single)))
    return _select(one_point, alone, faces)


def _select(condition: Bool[Array, " pair"], yes: Touch, no: Touch) -> Touch:
    return Touch(*(jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y) for x, y in zip(yes, no, strict=True)))


def _axes(a: Placed, b: Placed) -> Axes:
    sides_a, sides_b = jnp.swapaxes(a.rotation, 1, 2), jnp.swapaxes(b.rotation, 1, 2)  # rows are axes
    faces = jnp.concatenate([sides_a, sides_b], axis=1)
    crosses = spatial.cross(jnp.repeat(sides_a, 3, axis=1), jnp.tile(sides_b, (1, 3, 1)))
    squared = spatial.dot(crosses, crosses)
    edges = crosses * jax.lax.rsqrt(jnp.maximum(squared, PARALLEL_SINE_SQUARED))[..., None]
    face_gap, faces = _separation(a, b, faces)
    edge_gap, edges = _separation(a, b, edges)
    edge_gap = jnp.where(squared < PARALLEL_SINE_SQUARED, jnp.full_like(edge_gap, -jnp.inf), edge_gap)
    face, edge = jnp.argmax(face_gap, axis=1), jnp.argmax(edge_gap, axis=1)
    face_normal, edge_normal = pick(faces, face), pick(edges, edge)
    same_way = jnp.abs(spatial.dot(face_normal, edge_normal)) > NEARLY_FACE
    best_face, best_edge = pick(face_gap, face), pick(edge_gap, edge)
    apart = jnp.maximum(best_face, best_edge) > 0
    return Axes(face, face_normal, edge, edge_normal, (best_edge > best_face) & ~same_way, apart)


def _separation(
    a: Placed, b: Placed, axes: Float[Array, "pair axis 3"]
) -> tuple[Float[Array, "pair axis"], Float[Array, "pair axis 3"]]:
    """Gap along each axis (without derivative), and the axis turned from b towards a."""
    along = spatial.dot(axes, (a.position - b.position)[:, None])
    reach = sum(jnp.sum(jnp.abs(spatial.compose(axes, x.rotation)) * x.size[:, None], axis=-1) for x in (a, b))
    return jax.lax.stop_gradient(jnp.abs(along) - reach), axes * sign(along)[..., None]


def _nearest_corner(a: Placed, b: Placed) -> Touch:
    """The corner of either box that is nearest to, or deepest in, the other box."""
    of_a, of_b = _corners_in(a, b), _corners_in(b, a)
    flipped = Touch(of_b.gap, of_b.point, -of_b.normal)
    both = Touch(*(jnp.concatenate([x, y], axis=1) for x, y in zip(of_a, flipped, strict=True)))
    return pick_all(both, jnp.argmin(jax.lax.stop_gradient(both.gap), axis=1)[:, None])


def _corners_in(a: Placed, b: Placed) -> Touch:
    """The corners of a against the box b."""
    corners = a.to_world(constant(BOX_CORNERS, a.size, (a.size.shape[0], 8, 3)) * a.size[:, None])
    local = spatial.apply_transpose(b.rotation[:, None], corners - b.position[:, None])
    gap, way_out = point_box(local, jnp.broadcast_to(b.size[:, None], local.shape))
    normal = spatial.apply(b.rotation[:, None], way_out)
    return Touch(gap, corners - 0.5 * gap[..., None] * normal, normal)


def _edge_crossing(a: Placed, b: Placed, axes: Axes) -> tuple[Touch, Bool[Array, " pair"]]:
    """Nearest points of the two edges across the edges' axis, and whether they lie within both edges."""
    edge_a, edge_b = one_hot(axes.edges // 3, 3), one_hot(axes.edges % 3, 3)
    middle_a, along_a, half_a = _edge(a, edge_a, -axes.edge_normal)
    middle_b, along_b, half_b = _edge(b, edge_b, axes.edge_normal)
    offset, cosine = middle_a - middle_b, spatial.dot(along_a, along_b)
    on_a, on_b = spatial.dot(along_a, offset), spatial.dot(along_b, offset)
    sine_squared = jnp.maximum(1 - cosine**2, jnp.full_like(cosine, PARALLEL_SINE_SQUARED))
    s, t = (cosine * on_b - on_a) / sine_squared, (on_b - cosine * on_a) / sine_squared
    interior = (jnp.abs(s) <= half_a) & (jnp.abs(t) <= half_b)
    p_a = middle_a + jnp.clip(s, -half_a, half_a)[:, None] * along_a
    p_b = middle_b + jnp.clip(t, -half_b, half_b)[:, None] * along_b
    gap = spatial.dot(axes.edge_normal, p_a - p_b)
    return Touch(gap[:, None], 0.5 * (p_a + p_b)[:, None], axes.edge_normal[:, None]), interior


def _edge(box: Placed, edge: Bool[Array, "pair 3"], towards: Vec3) -> tuple[Vec3, Vec3, Row]:
    """Middle, direction and half length of the edge of a kind that lies furthest in a direction."""
    zero = jnp.zeros_like(box.size)
    side = sign(spatial.apply_transpose(box.rotation, towards)) * box.size
    middle = box.position + spatial.apply(box.rotation, jnp.where(edge, zero, side))
    along = spatial.apply(box.rotation, jnp.where(edge, jnp.ones_like(zero), zero))
    return middle, along, jnp.sum(jnp.where(edge, box.size, zero), axis=1)


class Face(NamedTuple):
    """A box's face as a frame: x and y within it, z outwards, the origin in its middle."""

    rotation: Float[Array, "pair 3 3"]
    position: Vec3
    half: Float[Array, "pair 2"]


def _face_overlap(a: Placed, b: Placed, axes: Axes) -> Touch:
    """Corners of the overlap of the reference face and of the face that meets it, seen along the former's normal."""
    of_a = axes.face < 3
    outward = jnp.where(of_a[:, None], -axes.face_normal, axes.face_normal)
    reference = _face(_choose(of_a, a, b), axes.face % 3, outward)
    other = _choose(of_a, b, a)
    facing = spatial.apply_transpose(other.rotation, outward)
    side = jnp.argmax(jnp.abs(jax.lax.stop_gradient(facing)), axis=1)
    corners = other.to_world(box_face(other.size, side, -sign(pick(facing, side))))
    local = spatial.apply_transpose(reference.rotation[:, None], corners - reference.position[:, None])
    inside, valid = _overlap_corners(local, reference.half)
    surface = inside * constant([1.0, 1.0, 0.5], inside, inside.shape)
    point = reference.position[:, None] + spatial.apply(reference.rotation[:, None], surface)
    normal = jnp.broadcast_to(axes.face_normal[:, None], point.shape)
    return inactive_where(~valid, Touch(inside[..., 2], point, normal))


def _choose(condition: Bool[Array, " pair"], yes: Placed, no: Placed) -> Placed:
    return Placed(*(jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y) for x, y in zip(yes, no, strict=True)))


def _face(box: Placed, axis: Int[Array, " pair"], outward: Vec3) -> Face:
    """The face of a box across one of its axes, on the side of `outward`, which is plus or minus that axis."""
    sides = jnp.swapaxes(box.rotation, 1, 2)
    order = jnp.stack([(axis + 1) % 3, (axis + 2) % 3], axis=1)
    within = jnp.take_along_axis(sides, order[..., None], axis=1)
    rotation = jnp.stack([within[:, 0], within[:, 1], outward], axis=2)
    position = box.position + pick(box.size, axis)[:, None] * outward
    return Face(rotation, position, jnp.take_along_axis(box.size, order, axis=1))


def _overlap_corners(
    quad: Float[Array, "pair 4 3"], half: Float[Array, "pair 2"]
) -> tuple[Float[Array, "pair 12 3"], Bool[Array, "pair 12"]]:
    """Corners of a flat quadrilateral cut to a rectangle in x and y: ends of its cut edges, and those corners of the
    rectangle that lie under it. The second result says which of them there are."""
    start, along = quad, jnp.roll(quad, -1, axis=1) - quad
    low, high = _cut(start[..., :2], along[..., :2], half)
    ends = [start + t[..., None] * along for t in (low, high)]
    here = low <= high
    flat = constant(FACE_CORNERS, half, (half.shape[0], 4, 2)) * half[:, None]
    corner = jnp.concatenate([flat, _height(quad, flat)[..., None]], axis=-1)
    return jnp.concatenate([*ends, corner], axis=1), jnp.concatenate([here, here, _within(flat, start, along)], axis=1)


def _cut(start, along, half) -> tuple[Float[Array, "pair 4"], Float[Array, "pair 4"]]:
    """The part [low, high] of each edge, in 0 to 1, within the rectangle; empty where low > high (Liang-Barsky)."""
    half = half[:, None]
    still = jnp.abs(along) < ON_EDGE * half
    rate = jnp.where(still, jnp.ones_like(along), along)
    one, other = (-half - start) / rate, (half - start) / rate
    outside = still & (jnp.abs(start) > (1 + 2 * ON_EDGE) * half)
    enter = jnp.where(
        still, jnp.where(outside, jnp.full_like(rate, 2.0), -jnp.ones_like(rate)), jnp.minimum(one, other)
    )
    leave = jnp.where(still, jnp.full_like(rate, 2.0), jnp.maximum(one, other))
    low = jnp.clip(jnp.max(enter, axis=-1), 0, None)
    high = jnp.clip(jnp.min(leave, axis=-1), None, 1)
    return low, high


def _height(quad: Float[Array, "pair 4 3"], flat: Float[Array, "pair 4 2"]) -> Float[Array, "pair 4"]:
    """z of the quadrilateral's plane at given x and y."""
    corner = quad[:, 0]
    normal = spatial.cross(quad[:, 1] - corner, quad[:, 3] - corner)
    steep = jnp.where(normal[:, 2] == 0, jnp.ones_like(normal[:, 2]), normal[:, 2])
    slope = -normal[:, :2] / steep[:, None]
    return corner[:, 2:] + spatial.dot(flat - corner[:, None, :2], slope[:, None])


def _within(flat, start, along) -> Bool[Array, "pair 4"]:
    """Whether points lie on one side of all edges of a convex quadrilateral, or on an edge but for rounding."""
    arm = flat[:, :, None] - start[:, None, :, :2]
    turn = along[:, None, :, 0] * arm[..., 1] - along[:, None, :, 1] * arm[..., 0]
    slack = ON_EDGE * spatial.dot(along[..., :2], along[..., :2])[:, None]
    return jnp.all(turn >= -slack, axis=-1) | jnp.all(turn <= slack, axis=-1)
