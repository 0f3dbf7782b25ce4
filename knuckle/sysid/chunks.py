"""Functions over many segments, a few at a time: one compiled program serves any number of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from knuckle.native.runtime import available_cores

SAMPLES = 400  # of all segments of a chunk, about: much longer to simulate than a call takes
FEWEST, MOST = 8, 256  # segments of a chunk


def chunk_size(samples: int) -> int:
    """Segments of so many samples that are worth a call."""
    return min(max(SAMPLES // samples, FEWEST), MOST)


def in_chunks(function: Callable, size: int | None, threads: int | None = 1) -> Callable:
    """function(z, starts, shots), which returns arrays with one row for each segment, called on `size` at a time.

    Up to twice as many are done in one call, by a program of their own.
    size: None: all in one call. threads: that call it at the same time; None: one for each core.
    """
    if size is None:
        return function

    def whole(z: np.ndarray, starts: np.ndarray, shots):
        count = len(starts)
        if count <= 2 * size:
            return function(z, starts, shots)

        def chunk(first: int):
            rows = np.minimum(np.arange(first, first + size), count - 1)  # the last segment again where none is left
            with jax.enable_x64(True):  # of each thread its own
                return jax.tree.map(np.asarray, function(z, starts[rows], jax.tree.map(lambda a: a[rows], shots)))

        firsts = range(0, count, size)
        parts = [chunk(0)]  # compiles
        results = jax.tree.map(lambda part: np.empty((count, *part.shape[1:]), part.dtype), parts[0])

        def place(first: int, part) -> None:
            kept = min(size, count - first)
            for result, values in zip(jax.tree.leaves(results), jax.tree.leaves(part), strict=True):
                result[first : first + kept] = values[:kept]

        place(0, parts[0])
        most = available_cores() if threads is None else threads
        if most == 1:
            for first in firsts[1:]:
                place(first, chunk(first))
            return results
        with ThreadPoolExecutor(most) as pool:
            list(pool.map(lambda first: place(first, chunk(first)), firsts[1:]))
        return results

    return whole
