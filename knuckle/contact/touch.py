"""What every collision test takes and gives, and the guarded vector operations they share."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial

INACTIVE_GAP = 1e3  # [m]; the gap of a slot that holds no contact point
NEARER = 0.999  # a corner stands in for faces that are apart only if it is nearer by more than rounding
TINY_SQUARED = 1e-30  # [m^2]; a shorter vector has no direction


class Placed(NamedTuple):
    """Shapes of one kind, one row per pair, in the world."""

    rotation: Float[Array, "pair 3 3"]
    position: Float[Array, "pair 3"]
    size: Float[Array, "pair 3"]
    vertices: Float[Array, "pair vertex 3"]  # scaled, in the shape's frame; no rows for shapes without vertices

    @property
    def axis(self) -> Float[Array, "pair 3"]:
        """The shape's z axis in the world."""
        return self.rotation[..., :, 2]

    def to_local(self, point: Float[Array, "pair 3"]) -> Float[Array, "pair 3"]:
        return spatial.apply_transpose(self.rotation, point - self.position)

    def to_world(self, point: Float[Array, "pair point 3"]) -> Float[Array, "pair point 3"]:
        return self.position[:, None] + spatial.apply(self.rotation[:, None], point)

    def repeated(self, count: int) -> Placed:
        """Each row `count` times, one after the other."""
        return Placed(*(jnp.repeat(a, count, axis=0) for a in self))


class Touch(NamedTuple):
    """Contact points of pairs, a fixed number each; the normal is a unit vector from b towards a."""

    gap: Float[Array, "pair point"]
    point: Float[Array, "pair point 3"]
    normal: Float[Array, "pair point 3"]


def no_touch(slots: int, dtype) -> Touch:
    """Of a pair that has no contact, in all its slots."""
    up = jnp.zeros((slots, 3), dtype).at[:, 2].set(1.0)
    return Touch(jnp.full(slots, INACTIVE_GAP, dtype), jnp.zeros_like(up), up)


def between_cores(
    core_a: Float[Array, "pair 3"],
    normal: Float[Array, "pair 3"],
    core_gap: Float[Array, " pair"],
    radius_a: Float[Array, " pair"],
    radius_b: Float[Array, " pair"],
) -> Touch:
    """One contact per pair of cores that are thickened by radii, from the witness point on the core of a."""
    gap = core_gap - radius_a - radius_b
    point = core_a - (radius_a + 0.5 * gap)[..., None] * normal
    return Touch(gap[:, None], point[:, None], normal[:, None])


def length_and_direction(
    v: Float[Array, "*batch 3"], fallback: Float[Array, "*batch 3"]
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch 3"]]:
    """|v| and v/|v|; where v vanishes, its component along the unit vector `fallback`, and that vector."""
    squared = spatial.dot(v, v)
    empty = squared < TINY_SQUARED
    length = jnp.sqrt(jnp.where(empty, jnp.ones_like(squared), squared))
    direction = jnp.where(empty[..., None], fallback, v / length[..., None])
    return jnp.where(empty, spatial.dot(v, fallback), length), direction


def constant(values, like: Float[Array, "..."], shape: tuple[int, ...]) -> Array:
    """A constant of the same type as `like`, repeated to a shape."""
    return jnp.broadcast_to(jnp.asarray(np.asarray(values, float), like.dtype), shape)


def sign(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """-1 below zero, else 1."""
    return jnp.where(x < 0, -jnp.ones_like(x), jnp.ones_like(x))


def one_hot(index: Array, count: int) -> Array:
    """Marks, along a new last axis, the entry that each index names."""
    return index[..., None] == jnp.arange(count).reshape((1,) * index.ndim + (count,))


def pick(values: Float[Array, "pair n ..."], index: Array) -> Array:
    """The entry along the second axis that each pair's index names."""
    shape = index.shape + (1,) * (values.ndim - 1)
    return jnp.take_along_axis(values, index.reshape(shape), axis=1).squeeze(1)


def inactive_where(empty: Array, touch: Touch) -> Touch:
    """Slots marked empty get the gap of no contact."""
    return touch._replace(gap=jnp.where(empty, jnp.full_like(touch.gap, INACTIVE_GAP), touch.gap))
