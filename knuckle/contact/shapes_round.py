"""Spheres and capsules (points and segments with a radius) against each other, boxes and cylinders."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.touch import (
    Placed,
    Touch,
    between_cores,
    constant,
    inactive_where,
    length_and_direction,
    one_hot,
    sign,
)

PARALLEL_SINE_SQUARED = 1e-6  # capsules closer to parallel than 1e-3 rad touch in two points
UP = (0.0, 0.0, 1.0)

Vec3 = Float[Array, "pair 3"]
Row = Float[Array, " pair"]


def _balls(p_a: Vec3, p_b: Vec3, radius_a: Row, radius_b: Row, fallback: Vec3) -> Touch:
    gap, normal = length_and_direction(p_a - p_b, fallback)
    return between_cores(p_a, normal, gap, radius_a, radius_b)


def sphere_sphere(a: Placed, b: Placed) -> Touch:
    """One point; concentric spheres are pushed apart along the world's z."""
    return _balls(a.position, b.position, a.size[:, 0], b.size[:, 0], constant(UP, a.position, a.position.shape))


def sphere_capsule(a: Placed, b: Placed) -> Touch:
    """One point; on the capsule's axis the normal is its x axis."""
    along = jnp.clip(spatial.dot(b.axis, a.position - b.position), -b.size[:, 1], b.size[:, 1])
    nearest = b.position + along[:, None] * b.axis
    return _balls(a.position, nearest, a.size[:, 0], b.size[:, 0], b.rotation[..., 0])


def capsule_capsule(a: Placed, b: Placed) -> Touch:
    """The closest points of two segments (Ericson, Real-Time Collision Detection, 5.1.9); where the capsules are
    parallel side by side, instead the two ends of the overlap."""
    half_a, half_b = a.size[:, 1], b.size[:, 1]
    offset = a.position - b.position
    cosine = spatial.dot(a.axis, b.axis)
    on_a, on_b = spatial.dot(a.axis, offset), spatial.dot(b.axis, offset)
    sine_squared = 1 - cosine**2
    parallel = sine_squared < PARALLEL_SINE_SQUARED
    crossing = (cosine * on_b - on_a) / jnp.where(parallel, jnp.ones_like(cosine), sine_squared)
    s = jnp.clip(jnp.where(parallel, jnp.zeros_like(cosine), crossing), -half_a, half_a)
    t = jnp.clip(cosine * s + on_b, -half_b, half_b)
    s = jnp.clip(cosine * t - on_a, -half_a, half_a)
    reach = jnp.abs(cosine) * half_b
    low, high = jnp.maximum(-half_a, -on_a - reach), jnp.minimum(half_a, -on_a + reach)
    beside = parallel & (low < high)
    s = jnp.stack([jnp.where(beside, low, s), jnp.where(beside, high, s)], axis=1)
    t = jnp.clip(cosine[:, None] * s + on_b[:, None], -half_b[:, None], half_b[:, None])
    touch = _two_balls(a, b, s, t)
    return inactive_where(jnp.stack([jnp.zeros_like(beside), ~beside], axis=1), touch)


def _two_balls(a: Placed, b: Placed, s: Float[Array, "pair 2"], t: Float[Array, "pair 2"]) -> Touch:
    """Balls at distances s and t from the middles of two capsules, along their axes."""
    p_a = a.position[:, None] + s[..., None] * a.axis[:, None]
    p_b = b.position[:, None] + t[..., None] * b.axis[:, None]
    _, fallback = length_and_direction(spatial.cross(a.axis, b.axis), b.rotation[..., 0])
    gap, normal = length_and_direction(p_a - p_b, jnp.broadcast_to(fallback[:, None], p_a.shape))
    gap = gap - (a.size[:, 0] + b.size[:, 0])[:, None]
    return Touch(gap, p_a - (a.size[:, :1] + 0.5 * gap)[..., None] * normal, normal)


def sphere_box(a: Placed, b: Placed) -> Touch:
    """One point; a centre inside the box leaves through the nearest face."""
    gap, normal = point_box(b.to_local(a.position), b.size)
    return between_cores(a.position, spatial.apply(b.rotation, normal), gap, a.size[:, 0], jnp.zeros_like(gap))


def point_box(
    p: Float[Array, "*batch 3"], half: Float[Array, "*batch 3"]
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch 3"]]:
    """Signed distance of a point from a box and the way out, in the box's axes."""
    inner = half - jnp.abs(p)
    face = one_hot(jnp.argmin(jax.lax.stop_gradient(inner), axis=-1), 3)
    way_out = jnp.where(face, sign(p), jnp.zeros_like(p))
    inside = jnp.all(inner >= 0, axis=-1)
    beyond = p - jnp.clip(p, -half, half)
    length, direction = length_and_direction(beyond, way_out)
    depth = jnp.sum(jnp.where(face, -inner, jnp.zeros_like(p)), axis=-1)
    return jnp.where(inside, depth, length), jnp.where(inside[..., None], way_out, direction)


def sphere_cylinder(a: Placed, b: Placed) -> Touch:
    """One point; a centre inside leaves through the side or the cap, whichever is nearer."""
    p = b.to_local(a.position)
    flat = constant([1.0, 1.0, 0.0], p, p.shape)
    from_axis, outward = length_and_direction(p * flat, constant([1.0, 0.0, 0.0], p, p.shape))
    upward = constant(UP, p, p.shape) * sign(p[:, 2])[:, None]
    side, cap = from_axis - b.size[:, 0], jnp.abs(p[:, 2]) - b.size[:, 1]
    zero = jnp.zeros_like(side)
    rim = jnp.maximum(side, zero)[:, None] * outward + jnp.maximum(cap, zero)[:, None] * upward
    nearer_side = side > cap
    way_out = jnp.where(nearer_side[:, None], outward, upward)
    length, direction = length_and_direction(rim, way_out)
    inside = (side <= 0) & (cap <= 0)
    gap = jnp.where(inside, jnp.where(nearer_side, side, cap), length)
    normal = jnp.where(inside[:, None], way_out, direction)
    return between_cores(a.position, spatial.apply(b.rotation, normal), gap, a.size[:, 0], zero)


def as_balls(test):
    """A sphere's test for points that were chosen in advance: each is a ball of no radius."""

    def points_test(a: Placed, b: Placed) -> Touch:
        count = a.vertices.shape[1]
        centres = a.to_world(a.vertices).reshape(-1, 3)
        each = a.repeated(count)._replace(position=centres, size=jnp.zeros((len(centres), 3), centres.dtype))
        touch = test(each, b.repeated(count))
        return Touch(*(x.reshape(-1, count, *x.shape[2:]) for x in touch))

    return points_test
