"""Corners of convex shapes as one constant table, and the search for those with the highest scores.

Eight corners make a block, each coordinate on its own row: native code reads a block as three vectors. Shapes of one
mesh share its blocks. Scales are not part of the table, so that nothing is copied if they are traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

LANES = 8

Vec3 = Float[Array, "3"]
Table = Float[Array, "block 3 lane"]
Scores = Callable[[Vec3], list[Float[Array, ""]]]


class Corners(NamedTuple):
    """Where the corners of shapes stand in a table, one row per shape: blocks from `start` up to before `stop`."""

    start: Int[Array | np.ndarray, "*shape"]
    stop: Int[Array | np.ndarray, "*shape"]
    furthest: Float[Array | np.ndarray, "*shape 3"]  # largest absolute value of each unscaled coordinate
    span: Float[Array | np.ndarray, "*shape 3"]  # from the smallest to the largest value of each
    middle: Float[Array | np.ndarray, "*shape 3"]  # between these

    @property
    def blocks(self) -> tuple[Any, Any]:
        return self.start, self.stop


def tabulate(shapes: list[np.ndarray]) -> tuple[Float[np.ndarray, "block 3 lane"], Corners]:
    """The table of the unscaled corners of shapes, and where each shape's are; a block is filled by its last corner."""
    places: dict[bytes, tuple[int, int]] = {}
    blocks: list[np.ndarray] = []
    for corners in shapes:
        key = corners.tobytes()
        if key not in places:
            filled = np.pad(corners, ((0, -len(corners) % LANES), (0, 0)), mode="edge")
            new = filled.reshape(-1, LANES, 3).swapaxes(1, 2)
            places[key] = len(blocks), len(blocks) + len(new)
            blocks.extend(new)
    start, stop = np.array([places[corners.tobytes()] for corners in shapes], np.int32).T
    furthest = np.array([np.abs(corners).max(axis=0) for corners in shapes])
    span = np.array([np.ptp(corners, axis=0) for corners in shapes])
    middle = np.array([0.5 * (corners.min(axis=0) + corners.max(axis=0)) for corners in shapes])
    return np.array(blocks), Corners(start, stop, furthest, span, middle)


def corner(table: Table, index: Int[Array, "*batch"]) -> Float[Array, "*batch 3"]:
    """Unscaled corners by number."""
    return table[index // LANES, :, index % LANES]


def highest(
    table: Table, span: tuple[Any, Any], scores: Scores, through: Int[Array, " place"] | None = None
) -> tuple[Int[Array, " score"], Float[Array, " score"]]:
    """Numbers of the corners that have the highest of some scores, functions of the unscaled corner, and these.

    `span`: the first block and the one after the last, or, where they are listed in `through`, places there.
    """
    from knuckle.native import lanes  # slow to import

    count = len(jax.eval_shape(lambda x: scores(x), jax.ShapeDtypeStruct((3,), table.dtype)))
    start, stop = (jnp.asarray(x, jnp.int32) for x in span)
    first = start if through is None else through[start]

    def of_lane(column: Float[Array, "block 3"]):
        def turn(number, best):
            block = number if through is None else through[number]
            new = scores(jax.lax.dynamic_index_in_dim(column, block, keepdims=False))
            better = [x > value for x, (value, _) in zip(new, best, strict=True)]
            return [
                (jnp.where(yes, x, value), jnp.where(yes, block, place))
                for yes, x, (value, place) in zip(better, new, best, strict=True)
            ]

        nothing = [(jnp.full((), -jnp.inf, table.dtype), first)] * count
        return jax.lax.fori_loop(start, stop, turn, nothing)

    best = [_best_of_lanes(value, place) for value, place in lanes(of_lane, in_axes=2)(table)]
    return jnp.stack([index for _, index in best]), jnp.stack([value for value, _ in best])


def _best_of_lanes(value: Float[Array, " lane"], block: Int[Array, " lane"]) -> tuple[Array, Array]:
    """The highest value and the number of its corner; of equal ones the first lane's. Winners of pairs meet in turn."""
    left = [(value[k], block[k] * LANES + k) for k in range(LANES)]
    while len(left) > 1:
        pairs = zip(left[::2], left[1::2], strict=True)
        left = [jax.tree.map(lambda x, y, wins=b[0] > a[0]: jnp.where(wins, y, x), a, b) for a, b in pairs]
    return left[0]
