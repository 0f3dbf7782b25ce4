"""Triangular solves of larger matrices, group of rows by group (see `lower_blocked`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from knuckle.native.ir import Node
from knuckle.native.lower import Lowering
from knuckle.native.lower_blocked import (
    GROUP,
    View,
    each,
    get_rows,
    groups_of,
    in_stack,
    minus,
    new_view,
    over_lanes,
    padded,
    plus,
    put_rows,
    shifted,
    solve_group,
    spread_width,
    stacked,
    take_off,
    times,
    view_of,
)
from knuckle.native.values import Memory, Value, for_loop


def solve_blocked(b: Lowering, a: Memory, rhs: Value, lower: bool, unit: bool) -> Memory:
    """x with A x = rhs for a triangle A."""
    *lead, n, columns = rhs.shape
    count, width = math.prod(lead), columns if columns == 1 else spread_width(columns)
    triangles, right = stacked(b, a), stacked(b, rhs)
    result = b.allocate(a.dtype, count * n * width)
    scales = None if unit else new_view(b, a.dtype, 1, n)

    def one(p: Node) -> None:
        triangle, source = view_of(b, triangles, p), view_of(b, right, p)
        target = View(b, result, times(b, p, n * width), width)
        if scales is not None:
            store_reciprocals(b, scales, triangle, n, a.dtype)
        sweep = Sweep(b, triangle, n, lower, scales, a.dtype)
        if columns == 1:
            sweep.solve_vector(source, target)
        else:
            sweep.solve_strips(padded(b, source, n, columns, a.dtype), target, columns)

    each(b, count, one)
    return in_stack(b, result, tuple(rhs.shape), (n * width, width))


def store_reciprocals(b: Lowering, scales: View, a: View, n: int, dtype: str) -> None:
    """Those of the diagonal."""
    over_lanes(b, n, lambda i: scales.put(0, i, b.div_(b.constant(1, dtype), a.get(i, i))))


@dataclass(frozen=True)
class Sweep:
    """Substitution through a triangle, group of rows by group: downwards if it is a lower one, else upwards."""

    b: Lowering
    a: View
    n: int
    lower: bool
    scales: View | None
    dtype: str

    def each_group(self, body: Callable[[Node, Node, Node, int], None]) -> None:
        """`body` of a group's first row, the first of the rows before it, how many groups these are, and its rows."""
        b, n = self.b, self.n
        groups, rest = divmod(n, GROUP)

        def group(q: Node, rows: int) -> None:
            done = times(b, q, GROUP)
            at = done if self.lower else minus(b, n - rows, done)
            body(at, b.index(0) if self.lower else plus(b, at, rows), q, rows)

        each(b, groups, lambda q: group(q, GROUP))
        if rest:
            group(b.index(groups), rest)

    def solved(self, sums: Sequence[Node], at: Node) -> list[Node]:
        scales = None if self.scales is None else [self.scales.get(0, plus(self.b, at, r)) for r in range(len(sums))]
        return solve_group(self.b, sums, self.a, at, self.lower, scales)

    def solve_strips(self, source: View, target: View, columns: int) -> None:
        b = self.b
        strip = new_view(b, self.dtype, self.n, GROUP)

        def one(s: Node) -> None:
            start = times(b, s, GROUP)
            given, found = shifted(source, start), shifted(target, start)

            def sweep(c: Node) -> None:
                def group(at: Node, before: Node, groups: Node, rows: int) -> None:
                    sums = take_off(b, get_rows(given, at, rows, c), self.a, strip, at, before, groups, c)
                    x = self.solved(sums, at)
                    put_rows(strip, at, c, x)
                    put_rows(found, at, c, x)

                self.each_group(group)

            over_lanes(b, GROUP, sweep)

        each(b, groups_of(columns), one)

    def solve_vector(self, source: View, target: View) -> None:
        """By dot products if rows of the triangle are contiguous, else by multiples of its columns."""
        x = View(self.b, target.contents, target.base, 0)
        over_lanes(self.b, self.n, lambda i: x.put(0, i, source.get(i, 0)))
        if self.a.row == 1 and self.a.column != 1:
            self._by_columns(x)
        else:
            self._by_rows(x)

    def _by_rows(self, x: View) -> None:
        b, a = self.b, self.a
        partial = new_view(b, self.dtype, GROUP, GROUP)
        zero = b.zero(self.dtype)

        def group(at: Node, before: Node, groups: Node, rows: int) -> None:
            def lane(c: Node) -> None:
                def turn(counter: Node, sums: list[Node]) -> list[Node]:
                    k = b.add_(plus(b, before, times(b, counter, GROUP)), c)
                    right = x.get(0, k)
                    return [b.add_(s, b.mul_(a.get(plus(b, at, r), k), right)) for r, s in enumerate(sums)]

                for r, s in enumerate(for_loop(b, groups, [zero] * rows, turn)):
                    partial.put(r, c, s)

            over_lanes(b, GROUP, lane)
            products = [pairwise(b, [partial.get(r, c) for c in range(GROUP)]) for r in range(rows)]
            sums = [b.sub_(x.get(0, plus(b, at, r)), product) for r, product in enumerate(products)]
            for r, value in enumerate(self.solved(sums, at)):
                x.put(0, plus(b, at, r), value)

        self.each_group(group)

    def _by_columns(self, x: View) -> None:
        b, a = self.b, self.a

        def group(at: Node, before: Node, groups: Node, rows: int) -> None:
            values = self.solved([x.get(0, plus(b, at, r)) for r in range(rows)], at)
            for r, value in enumerate(values):
                x.put(0, plus(b, at, r), value)
            start, count = (plus(b, at, rows), minus(b, self.n - rows, at)) if self.lower else (b.index(0), at)

            def row(i: Node) -> None:
                place = b.add_(start, i)
                rest = x.get(0, place)
                for r, value in enumerate(values):
                    rest = b.sub_(rest, b.mul_(a.get(place, plus(b, at, r)), value))
                x.put(0, place, rest)

            over_lanes(b, count, row)

        self.each_group(group)


def pairwise(b: Lowering, terms: Sequence[Node]) -> Node:
    half = len(terms) // 2
    return terms[0] if half == 0 else b.add_(pairwise(b, terms[:half]), pairwise(b, terms[half:]))
