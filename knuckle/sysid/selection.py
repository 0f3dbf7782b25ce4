"""Which segments of long recordings a fit uses: as many as memory and time allow, spread over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import numpy as np

if TYPE_CHECKING:
    from knuckle.sysid.shots import Shots

BLOCK = 4  # consecutive segments that are taken together, so that continuity between them counts
MEMORY = 2**28  # bytes of the Jacobian's largest array; all of a fit takes some five times as much
EVALUATIONS = 40  # of the Jacobian in a search, so many at least must fit into its time
FEWEST = 8  # segments


def blocks_in_spread_order(runs: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Blocks of consecutive segments (run, number) of runs with so many each, such that any first few are spread out.

    The order is that of van der Corput: the middle, the quarters, the eighths, ...
    """
    blocks = [
        [(run, k) for k in range(first, min(first + BLOCK, count))]
        for run, count in enumerate(runs)
        for first in range(0, count, BLOCK)
    ]
    places = np.arange(len(blocks), dtype=np.uint64)
    digits, key = max(len(blocks) - 1, 1).bit_length(), np.zeros(len(blocks), np.uint64)
    for _ in range(digits):
        key, places = (key << np.uint64(1)) | (places & np.uint64(1)), places >> np.uint64(1)
    return (blocks[i] for i in np.argsort(key, kind="stable"))


def most_in_memory(samples: int, entries: int, numbers: int) -> int:
    """How many segments of so many samples and entries, by so many free numbers, the memory allows."""
    return max(MEMORY // max(8 * samples * entries * numbers, 1), FEWEST)


def subset(shots: Shots, kept: np.ndarray) -> Shots:
    """Some of the segments, in their order; one whose follower is not among them is tied to none."""
    kept = np.asarray(kept)
    part = jax.tree.map(lambda leaf: np.asarray(leaf)[kept], shots)
    followed = np.append(np.diff(kept) == 1, False)
    return eqx.tree_at(lambda s: s.joined, part, np.asarray(part.joined) * followed)


def spread_out(shots: Shots, count: int) -> Shots:
    """At most so many segments, in blocks that are spread over all recordings."""
    if shots.count <= count:
        return shots
    ends = np.flatnonzero(np.asarray(shots.joined) == 0) + 1
    starts = np.concatenate([[0], ends[ends < shots.count]])
    lengths = np.diff(np.append(starts, shots.count))
    chosen: list[int] = []
    for block in blocks_in_spread_order(lengths.tolist()):
        chosen += [int(starts[run]) + k for run, k in block]
        if len(chosen) >= count:
            break
    return subset(shots, np.sort(chosen[: max(count, 1)]))
