"""LU and Cholesky factors of larger matrices, strip by strip (see `lower_blocked`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from knuckle.native.ir import BOOL, INDEX, Node
from knuckle.native.lower import Lowering
from knuckle.native.lower_blocked import (
    GROUP,
    Index,
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


@dataclass(frozen=True)
class Panel:
    """A strip of eight columns on its way to be factored: rows of the strip, groups in all, number of the strip."""

    b: Lowering
    strip: View
    factors: View
    groups: int
    number: Node

    @property
    def first(self) -> Node:
        """The row of the panel's diagonal."""
        return times(self.b, self.number, GROUP)

    def each_below(self, body: Callable[[list[Node]], None]) -> None:
        """`body` of the rows of each group below the diagonal's."""
        b, start = self.b, plus(self.b, self.first, GROUP)

        def group(g: Node) -> None:
            at = plus(b, start, times(b, g, GROUP))
            body([plus(b, at, r) for r in range(GROUP)])

        each(b, minus(b, self.groups - 1, self.number), group)

    def diagonal_rows(self) -> list[Node]:
        return [plus(self.b, self.first, r) for r in range(GROUP)]

    def eliminate(self, j: Node, scale: Node, pivot: Callable[[Node], Node], diagonal: Node | None = None) -> None:
        """Column j times `scale` below the diagonal; its products with `pivot` are taken off the columns after it."""
        b, strip, factors = self.b, self.strip, self.factors

        def set_factors(rows: list[Node]) -> None:
            for i in rows:
                factors.put(0, i, b.mul_(strip.get(i, j), scale))

        set_factors(self.diagonal_rows())
        self.each_below(set_factors)

        def column(c: Node) -> None:
            after, here, along = b.binary("gt", c, j), b.binary("eq", c, j), pivot(c)

            def changed(i: Node, old: Node) -> Node:
                factor = factors.get(0, i)
                new = b.sub_(old, b.mul_(factor, along))
                return b.select(after, new, b.select(here, factor, old))

            for r, i in enumerate(self.diagonal_rows()):
                old = strip.get(i, c)
                below = b.binary("gt", b.index(r), j)
                new = b.select(below, changed(i, old), old)
                if diagonal is not None:
                    new = b.select(b.and_(here, b.binary("eq", b.index(r), j)), diagonal, new)
                strip.put(i, c, new)

            def rows_below(rows: list[Node]) -> None:
                for i in rows:
                    strip.put(i, c, changed(i, strip.get(i, c)))

            self.each_below(rows_below)

        over_lanes(b, GROUP, column)


Candidate = tuple[Node, Node]  # for the pivot: size and row


def lu_blocked(b: Lowering, x: Value) -> tuple[Memory, Memory, Memory]:
    """LU with partial pivoting, strip by strip (Golub and Van Loan, 3.4.7): factors, pivots, permutation."""
    *lead, m, n = x.shape
    count, steps, groups, width = math.prod(lead), min(m, n), groups_of(m), spread_width(n)
    height, stack = groups * GROUP, stacked(b, x)
    result = b.allocate(x.dtype, count * height * width)
    pivots, order = b.allocate("i4", count * steps), b.allocate("i4", count * height)
    strip, factors = new_view(b, x.dtype, height, GROUP), new_view(b, x.dtype, 1, height)

    def one(p: Node) -> None:
        source = padded(b, view_of(b, stack, p), m, n, x.dtype)
        lu = View(b, result, times(b, p, height * width), width)
        places = View(b, order, times(b, p, height), height)
        chosen = View(b, pivots, times(b, p, steps), steps)
        over_lanes(b, height, lambda i: places.put(0, i, b.convert(i, "i4")))

        def panel(g: Node) -> None:
            first = times(b, g, GROUP)
            columns, above = shifted(source, first), b.min_(g, b.index(groups))

            def sweep(c: Node) -> None:
                def rows(at: Node) -> list[Node]:
                    found = [b.convert(places.get(0, plus(b, at, r)), INDEX) for r in range(GROUP)]
                    return [columns.get(i, c) for i in found]

                def solved(q: Node) -> None:
                    at = times(b, q, GROUP)
                    sums = take_off(b, rows(at), lu, strip, at, 0, q, c)
                    put_rows(strip, at, c, solve_group(b, sums, lu, at, True, None))

                def updated(q: Node) -> None:
                    at = times(b, b.add_(q, above), GROUP)
                    put_rows(strip, at, c, take_off(b, rows(at), lu, strip, at, 0, above, c))

                each(b, above, solved)
                each(b, minus(b, groups, above), updated)

            over_lanes(b, GROUP, sweep)
            here = Panel(b, strip, factors, groups, g)
            left = b.min_(b.index(GROUP), minus(b, steps, first))
            each(b, left, lambda j: pivot_column(here, lu, places, chosen, j, x.dtype))
            store_strip(b, shifted(lu, first), strip, 0, groups)

        each(b, groups_of(n), panel)

    each(b, count, one)
    shapes = (
        (result, (*lead, m, n), (height * width, width)),
        (pivots, (*lead, steps), (steps,)),
        (order, (*lead, m), (height,)),
    )
    return tuple(in_stack(b, contents, shape, steps) for contents, shape, steps in shapes)  # type: ignore[return-value]


def store_strip(b: Lowering, target: View, strip: View, start: Index, groups: Index) -> None:
    """Copy groups of rows of a strip to the same rows of a matrix."""

    def column(c: Node) -> None:
        def group(g: Node) -> None:
            at = plus(b, start, times(b, g, GROUP))
            put_rows(target, at, c, get_rows(strip, at, GROUP, c))

        each(b, groups, group)

    over_lanes(b, GROUP, column)


def pivot_column(panel: Panel, lu: View, places: View, chosen: View, j: Node, dtype: str) -> None:
    """Bring the largest element of column j to the diagonal, and eliminate below it."""
    b, strip, one = panel.b, panel.strip, panel.b.constant(1, dtype)
    k = b.add_(panel.first, j)
    where = largest_row(panel, k, j, dtype)
    chosen.put(0, k, b.convert(where, "i4"))
    exchange_rows(View(b, places.contents, places.base, 1), k, where, b.index(0))
    over_lanes(b, GROUP, lambda c: exchange_rows(strip, k, where, c))
    over_lanes(b, panel.first, lambda c: exchange_rows(lu, k, where, c))
    pivot = strip.get(k, j)
    scale = b.div_(one, b.select(b.binary("eq", pivot, b.zero(dtype)), one, pivot))
    panel.eliminate(j, scale, lambda c: strip.get(k, c))


def exchange_rows(x: View, k: Node, where: Node, column: Node) -> None:
    one, other = x.get(k, column), x.get(where, column)
    x.put(k, column, other)
    x.put(where, column, one)


def largest_row(panel: Panel, k: Node, j: Node, dtype: str) -> Node:
    """The first row from k on with the largest element of column j; rows that were added are zero and never chosen."""
    b, strip = panel.b, panel.strip

    def better(one: Candidate, other: Candidate) -> Candidate:
        bigger = b.binary("gt", other[0], one[0])
        return b.select(bigger, other[0], one[0]), b.select(bigger, other[1], one[1])

    def best(candidates: Sequence[Candidate]) -> Candidate:
        half = len(candidates) // 2
        return candidates[0] if half == 0 else better(best(candidates[:half]), best(candidates[half:]))

    def size(i: Node) -> Node:
        return b.unary("abs", strip.get(i, j))

    none = b.constant(-1, dtype)
    rows = panel.diagonal_rows()
    inside = [(b.select(b.binary("lt", b.index(r), j), none, size(i)), i) for r, i in enumerate(rows)]
    found = better((size(k), k), best(inside))
    start = plus(b, panel.first, GROUP)

    def group(g: Node, so_far: list[Node]) -> list[Node]:
        at = plus(b, start, times(b, g, GROUP))
        return list(
            better((so_far[0], so_far[1]), best([(size(i), i) for i in [plus(b, at, r) for r in range(GROUP)]]))
        )

    return for_loop(b, minus(b, panel.groups - 1, panel.number), list(found), group)[1]


def cholesky_blocked(b: Lowering, x: Value) -> Memory:
    """L with L L' = A, from the lower triangle, strip by strip (Golub and Van Loan, 4.2.9)."""
    *lead, n, _ = x.shape
    count, groups, width = math.prod(lead), groups_of(n), spread_width(n)
    height, stack = groups * GROUP, stacked(b, x)
    result = b.allocate(x.dtype, count * height * width)
    strip, across = new_view(b, x.dtype, height, GROUP), new_view(b, x.dtype, height, GROUP)
    factors, zero, unit = new_view(b, x.dtype, 1, height), b.zero(x.dtype), b.constant(1, x.dtype)

    def one(p: Node) -> None:
        source = padded(b, view_of(b, stack, p), n, n, x.dtype)
        low = View(b, result, times(b, p, height * width), width)

        def panel(g: Node) -> None:
            first = times(b, g, GROUP)
            columns = shifted(source, first)

            def turned(c: Node) -> None:
                each(b, g, lambda q: put_rows(across, times(b, q, GROUP), c, columns_of_row(low, b.add_(first, c), q)))

            def sweep(c: Node) -> None:
                def updated(q: Node) -> None:
                    at = b.add_(first, times(b, q, GROUP))
                    sums = get_rows(columns, at, GROUP, c)
                    put_rows(strip, at, c, take_off(b, sums, low, across, at, 0, g, c))

                each(b, minus(b, groups, g), updated)

            over_lanes(b, GROUP, turned)
            over_lanes(b, GROUP, sweep)
            here = Panel(b, strip, factors, groups, g)

            def column(j: Node) -> None:
                root = b.unary("sqrt", strip.get(b.add_(first, j), j))
                here.eliminate(j, b.div_(unit, root), lambda c: factors.get(0, b.add_(first, c)), root)

            each(b, b.min_(b.index(GROUP), minus(b, n, first)), column)
            target = shifted(low, first)

            def finished(c: Node) -> None:
                each(b, g, lambda q: put_rows(target, times(b, q, GROUP), c, [zero] * GROUP))
                for r, i in enumerate(here.diagonal_rows()):
                    target.put(i, c, b.select(b.binary("gt", c, b.index(r)), zero, strip.get(i, c)))

            over_lanes(b, GROUP, finished)
            store_strip(b, target, strip, plus(b, first, GROUP), minus(b, groups - 1, g))

        each(b, groups, panel)
        mark_unless_positive(b, low, n, x.dtype)

    each(b, count, one)
    return in_stack(b, result, tuple(x.shape), (height * width, width))


def mark_unless_positive(b: Lowering, low: View, n: int, dtype: str) -> None:
    """NaN all over the triangle of a factor if an element of its diagonal is not positive, as in JAX."""
    zero, nan = b.zero(dtype), b.constant(math.nan, dtype)

    def also(i: Node, so_far: list[Node]) -> list[Node]:
        return [b.and_(so_far[0], b.binary("lt", zero, low.get(i, i)))]

    (positive,) = for_loop(b, n, [b.constant(True, BOOL)], also)

    def row(i: Node) -> None:
        over_lanes(b, plus(b, i, 1), lambda c: low.put(i, c, b.select(positive, low.get(i, c), nan)))

    each(b, n, row)


def columns_of_row(a: View, row: Node, group: Node) -> list[Node]:
    """Eight elements of a row."""
    start = times(a.b, group, GROUP)
    return [a.get(row, plus(a.b, start, k)) for k in range(GROUP)]
