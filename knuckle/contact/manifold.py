"""Few contact points that stand for many: which to keep of a flat contact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from knuckle import spatial
from knuckle.contact.touch import Touch, inactive_where, pick, sign

SLOPE = 0.2  # a point may lie this much higher per distance that it stands further out
NARROW = 1e-3  # a point that widens the contact by less than this share of its length adds nothing


def spread(touch: Touch, extent: Float[Array, ""] | None = None) -> Touch:
    """At most four contacts per pair: the deepest, and those that span the most, less their height over SLOPE.

    Slots for which no further point is worth taking are inactive: where it adds less than a share NARROW of the
    contact's length, or of `extent` where that is given. The choice has no derivative.
    """
    gap, point, normal = (jax.lax.stop_gradient(x) for x in touch)
    first = jnp.argmin(gap, axis=1)
    height = (gap - jnp.min(gap, axis=1, keepdims=True)) / SLOPE
    arm = point - pick(point, first)[:, None]
    arm = arm - spatial.dot(arm, normal)[..., None] * normal
    reach = jnp.sqrt(spatial.dot(arm, arm))
    second, length = _highest(reach - height)
    along = spatial.normalize(pick(arm, second))
    across = spatial.dot(arm, spatial.cross(pick(normal, first), along)[:, None])
    third, width = _highest(jnp.abs(across) - height)
    fourth, other_width = _highest(-across * sign(pick(across, third))[:, None] - height)
    least = NARROW * (jnp.max(reach, axis=1) if extent is None else jnp.broadcast_to(extent, length.shape))
    empty = jnp.stack([length <= least, width <= least, other_width <= least], axis=1)
    others = jnp.where(empty, first[:, None], jnp.stack([second, third, fourth], axis=1))
    chosen = pick_all(touch, jnp.concatenate([first[:, None], others], axis=1))
    return inactive_where(jnp.pad(empty, ((0, 0), (1, 0))), chosen)


def _highest(score: Float[Array, "pair point"]) -> tuple[Int[Array, " pair"], Float[Array, " pair"]]:
    best = jnp.argmax(score, axis=1)
    return best, pick(score, best)


def pick_all(touch: Touch, index: Int[Array, "pair slot"]) -> Touch:
    """The contacts that indices name."""
    return Touch(*(_pick_slots(x, index) for x in touch))


def _pick_slots(x: Array, index: Array) -> Array:
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)
