"""Arrays that stay scalars beyond the limits of size, because most of the work on them vanishes.

Inertias of many links, say, are large arrays, but most of their elements are zero, constant or repeated. Whether that
is so is found by trial: the scalars are made, and given up where they take more than half an operation per element.
Dense arrays are given up early, and all trials of a program together are bounded, so compile time is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from knuckle.native.ir import Builder

Nodes = Any  # a numpy array of nodes
TRIAL_LIMIT = 8192  # elements; larger arrays are not tried
TRIALS_LIMIT = 30_000  # values that all trials of a program may ask for


def make_if_cheap(b: Builder, size: int, make: Callable[[], Nodes]) -> Nodes | None:
    """What `make` gives for an array of this size; None if that takes more than half a new value per element."""
    if size > TRIAL_LIMIT or b.tried > TRIALS_LIMIT:
        return None
    before = b.made
    found = b.within(size // 2, make)
    b.tried += b.made - before
    return found


def has_structure(nodes: Nodes) -> bool:
    """Whether an array holds constants, or repeats half of its elements: then operations on it may vanish."""
    flat = nodes.reshape(-1)
    return any(node.op == "const" for node in flat) or 2 * len({id(node) for node in flat}) <= flat.size
