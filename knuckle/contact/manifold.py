"""Few contact points that stand for many: which to keep of a flat contact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.touch import Touch, inactive_where, pick, sign

SLOPE = 0.2  # a point may lie this much higher per distance that it stands further out
AT_ONCE = 16  # vertices
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


def spread_on_plane(
    vertices: Float[Array, "point 3"], R: Float[Array, "3 3"]
) -> tuple[Int[Array, "4"], Bool[Array, "4"]]:
    """Which vertices `spread` keeps over a plane, and which slots are empty; columns of R: the plane's axes, last up.

    Passes over blocks of vertices, whose cost and code do not grow with their number beyond that.
    """
    count = len(vertices)
    filled = jnp.pad(vertices, ((0, -count % AT_ONCE), (0, 0)), mode="edge")
    table = jnp.swapaxes(filled.reshape(-1, AT_ONCE, 3), 1, 2)

    def furthest(score):
        return _furthest(lambda block: score(*(jnp.sum(R[:, k : k + 1] * block, axis=0) for k in range(3))), table)

    first, _ = furthest(lambda x, y, z: -z)
    x_0, y_0, z_0 = spatial.apply_transpose(R, vertices[first])

    def up(z):
        return (z - z_0) / SLOPE

    def reach(x, y):
        return jnp.sqrt((x - x_0) ** 2 + (y - y_0) ** 2)

    second, length = furthest(lambda x, y, z: reach(x, y) - up(z))
    _, widest = furthest(lambda x, y, z: reach(x, y))
    along = spatial.apply_transpose(R, vertices[second])[:2] - jnp.stack([x_0, y_0])
    along = spatial.normalize(along)

    def across(x, y):
        return along[0] * (y - y_0) - along[1] * (x - x_0)

    third, width = furthest(lambda x, y, z: jnp.abs(across(x, y)) - up(z))
    side = sign(across(*spatial.apply_transpose(R, vertices[third])[:2]))
    fourth, other_width = furthest(lambda x, y, z: -side * across(x, y) - up(z))
    empty = jnp.stack([length, width, other_width]) <= NARROW * widest
    others = jnp.where(empty, first, jnp.stack([second, third, fourth]))
    return jnp.concatenate([first[None], others]), jnp.concatenate([jnp.zeros(1, bool), empty])


def _furthest(score, table: Float[Array, "block 3 lane"]) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """The number of the vertex with the highest score, and that."""

    def turn(number, best):
        value, block = best
        new = score(table[number])
        better = new > value
        return jnp.where(better, new, value), jnp.where(better, number, block)

    lanes = table.shape[2]
    start = jnp.full(lanes, -jnp.inf, table.dtype), jnp.zeros(lanes, jnp.int32)
    value, block = jax.lax.fori_loop(jnp.int32(0), jnp.int32(len(table)), turn, start)
    lane = jnp.argmax(value).astype(jnp.int32)
    return block[lane] * lanes + lane, value[lane]


def _highest(score: Float[Array, "pair point"]) -> tuple[Int[Array, " pair"], Float[Array, " pair"]]:
    best = jnp.argmax(score, axis=1)
    return best, pick(score, best)


def pick_all(touch: Touch, index: Int[Array, "pair slot"]) -> Touch:
    """The contacts that indices name."""
    return Touch(*(_pick_slots(x, index) for x in touch))


def _pick_slots(x: Array, index: Array) -> Array:
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)
