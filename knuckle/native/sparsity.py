"""Zeros of arguments that are compiled in: values stay free, but where they are exactly zero the code knows it.

A robot passed as an argument has its axes and placements full of zeros. Without knowing them, a step of a double
pendulum takes ten times the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

MOST_PATTERNS = 4  # versions for different zeros; further patterns share one that knows none

Zeros = dict[int, np.ndarray]  # marks of the elements that are zero, by the number of the leaf


def chosen_leaves(where: Callable, tree: Any) -> tuple[int, ...]:
    """The numbers of the leaves of (args, kwargs) that `where(*args, **kwargs)` returns."""
    args, kwargs = jax.tree.unflatten(tree, range(tree.num_leaves))
    return tuple(jax.tree.leaves(where(*args, **kwargs)))


def zeros_of(leaves: Sequence[Any], numbers: Sequence[int]) -> Zeros:
    """Where the chosen leaves are positive zero; leaves whose values are not known now are left out."""
    return {n: _bits(leaves[n]) == 0 for n in numbers if _is_known(leaves[n])}


def zero_pattern(leaves: Sequence[Any], numbers: Sequence[int]) -> tuple[bytes, ...]:
    """A key for `zeros_of`, made fast: it is needed in every call."""
    return tuple([(_bits(leaves[n]) == 0).tobytes() if _is_known(leaves[n]) else b"" for n in numbers])


def _is_known(leaf: Any) -> bool:
    if type(leaf) is not np.ndarray and (not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer)):
        return False
    return leaf.dtype.kind == "f" and leaf.dtype.itemsize in (4, 8)


def _bits(leaf: Any) -> np.ndarray:
    array = np.ascontiguousarray(leaf)
    return array.view(np.int64 if array.dtype.itemsize == 8 else np.int32).reshape(leaf.shape)


def with_zeros(values: Sequence[Any], zeros: Zeros) -> list[Any]:
    """The values with constants where they are known to be zero."""
    return [
        jnp.where(zeros[n], jnp.zeros_like(value), value) if n in zeros and zeros[n].any() else value
        for n, value in enumerate(values)
    ]
