"""Which calls are worth a function: long ones made several times are compiled once, the others opened."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

SCALAR_LIMIT = 1024  # elements; larger arrays are worked on by loops
PRODUCT_LIMIT = 4096  # multiplications of a matrix product; most larger ones are loops
SHORTEST = 1500  # scalar operations, by estimate; shorter functions are opened wherever they are called
SAVED = 6000  # scalar operations; a function is outlined if that saves writing as many again
LOOP_SIZE = 40  # operations that a loop over an array in memory takes to write
MOVES = {
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "expand_dims", "gather", "iota", "pad",
    "reshape", "rev", "slice", "split", "squeeze", "stack", "transpose", "unstack",
}  # fmt: skip


class Outlining:
    """Which calls of one jaxpr are worth a function, by their number and the length of what they call."""

    def __init__(self, jaxpr: Any, inner_of: Callable[[Any], Any | None]):
        self._inner_of = inner_of  # the jaxpr that an equation only wraps, if it is a call
        self._sizes: dict[int, int] = {}
        self._calls: Counter[int] = Counter()
        self._count(jaxpr, 1)

    def _count(self, jaxpr: Any, times: int) -> None:
        """The calls in a jaxpr and in what it calls; only those that may be long enough are looked into."""
        inner = [self._inner_of(e) for e in jaxpr.eqns]
        for key, group in _grouped([j for j in inner if j is not None and self.size(j) >= SHORTEST]).items():
            self._calls[key] += times * len(group)
            self._count(group[0], times * len(group))

    def size(self, jaxpr: Any) -> int:
        """A rough count of the scalar operations that a jaxpr is written as."""
        if id(jaxpr) not in self._sizes:
            self._sizes[id(jaxpr)] = sum(self._equation_size(e) for e in jaxpr.eqns)
        return self._sizes[id(jaxpr)]

    def _equation_size(self, equation: Any) -> int:
        inner = self._inner_of(equation)
        if inner is not None:
            return self.size(inner)
        name, out = equation.primitive.name, equation.outvars[0].aval if equation.outvars else None
        if name in MOVES or out is None:
            return 0
        nested = [j for v in equation.params.values() for j in _jaxprs_in(v)]
        if nested:
            return sum(self.size(j) for j in nested)
        work = getattr(out, "size", 1)
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            work *= math.prod(equation.invars[0].aval.shape[a] for a in contracted)
        limit = PRODUCT_LIMIT if name == "dot_general" else SCALAR_LIMIT
        return work if work <= limit else LOOP_SIZE

    def is_worth_it(self, jaxpr: Any) -> bool:
        size = self.size(jaxpr)
        return size >= SHORTEST and (self._calls[id(jaxpr)] - 1) * size >= SAVED


def _grouped(jaxprs: list[Any]) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for jaxpr in jaxprs:
        groups.setdefault(id(jaxpr), []).append(jaxpr)
    return groups


def _jaxprs_in(value: Any) -> list[Any]:
    if hasattr(value, "eqns"):
        return [value]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [j for v in value for j in _jaxprs_in(v)] if isinstance(value, (tuple, list)) else []
