"""Few contact points that stand for many: which to keep of a flat contact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from knuckle import spatial
from knuckle.contact.touch import Touch, pick

SLOPE = 0.2  # a point may lie this much higher per distance that it stands further out


def spread(touch: Touch) -> tuple[Int[Array, "pair 4"], Bool[Array, "pair 4"]]:
    """Indices of four contacts per pair: the deepest, then those that span the most, minus their height over SLOPE.

    The second result marks repetitions: a slot for which no new point was worth taking. The choice has no derivative.
    """
    gap, point, normal = (jax.lax.stop_gradient(x) for x in touch)
    first = jnp.argmin(gap, axis=1)
    height = (gap - jnp.min(gap, axis=1, keepdims=True)) / SLOPE
    arm = point - pick(point, first, 1)[:, None]
    arm = arm - spatial.dot(arm, normal)[..., None] * normal
    second = jnp.argmax(_length(arm) - height, axis=1)
    along = spatial.normalize(pick(arm, second, 1))
    across = spatial.dot(arm, spatial.cross(pick(normal, first, 1), along)[:, None])
    third = jnp.argmax(jnp.abs(across) - height, axis=1)
    side = jnp.where(pick(across, third, 1) < 0, -jnp.ones_like(gap[:, 0]), jnp.ones_like(gap[:, 0]))
    fourth = jnp.argmax(-across * side[:, None] - height, axis=1)
    index = jnp.stack([first, second, third, fourth], axis=1)
    return index, _repeats(index)


def _length(v):
    return jnp.sqrt(spatial.dot(v, v))


def _repeats(index: Int[Array, "pair n"]) -> Bool[Array, "pair n"]:
    """Whether an index has stood further left."""
    count = index.shape[1]
    same = index[:, :, None] == index[:, None, :]
    left = jnp.tril(jnp.ones((count, count), bool), -1)
    return jnp.any(same & left[None], axis=2)
