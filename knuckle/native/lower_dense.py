"""Factorisations and triangular solves of matrices of middle size: in memory, rows padded to whole vectors of lanes.

Steps are written out, rows and columns within a step are loops. A step changes the columns from the last whole vector
before it on; where that vector also holds finished columns, they are kept by a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import overload

from knuckle.native.ir import INDEX, Contents, Node
from knuckle.native.lower import Lowering
from knuckle.native.lower_reduce import blocks
from knuckle.native.lower_shape import reshaped
from knuckle.native.values import Memory, Scalars, Value, for_loop, memory, row_major

LANES = 8  # columns that are worked on at once
ROWS_AT_ONCE = 4  # rows of an update that are written out
CANDIDATES = 8  # for the pivot, compared at once


class Rows:
    """A padded matrix of a stack, in a buffer that is read as it is at that moment."""

    def __init__(self, b: Lowering, contents: Contents, base: Node, width: int):
        self.b, self.contents, self.base, self.width = b, contents, base, width

    def place(self, row: Node | int, column: Node | int) -> Node:
        b = self.b
        row, column = (b.index(i) if isinstance(i, int) else i for i in (row, column))
        return b.add_(self.base, b.add_(b.mul_(row, b.index(self.width)), column))

    def get(self, row: Node | int, column: Node | int) -> Node:
        return self.b.load(self.b.rewritten(self.contents), self.place(row, column))

    def put(self, row: Node | int, column: Node | int, value: Node) -> None:
        self.b.store(self.contents, self.place(row, column), value)


def padded(columns: int) -> int:
    return -(-columns // LANES) * LANES


def aligned(column: int) -> int:
    return column // LANES * LANES


def along(b: Lowering, start: int, stop: int, body: Callable[[Node], None]) -> None:
    """`body` of each column from `start` to `stop`, in lanes."""

    def turn(counter: Node, _) -> list[Node]:
        body(b.add_(counter, b.index(start)))
        return []

    for_loop(b, stop - start, [], turn, "kernel")


def each(b: Lowering, count: int, body: Callable[[Node], None]) -> None:
    def turn(counter: Node, _) -> list[Node]:
        body(counter)
        return []

    for_loop(b, count, [], turn)


def in_rows(b: Lowering, x: Value) -> Memory:
    """A copy of a stack of matrices with padded rows; the padding is zero."""
    *lead, m, n = x.shape
    count, width = math.prod(lead), padded(n)
    contents = b.allocate(x.dtype, max(count * m * width, 1))
    strides = (*[s * m * width for s in row_major(lead)], width, 1)
    copy = Memory(contents, b.index(0), tuple(x.shape), strides, dense=True)
    zero = b.zero(x.dtype)
    if isinstance(x, Scalars):
        flat = x.data.reshape(count * m, n)
        for row in range(count * m):
            for column in range(width):
                b.store(contents, b.index(row * width + column), flat[row, column] if column < n else zero)
        return _renewed(b, copy)
    source = _stacked(b, x)

    def one(p: Node) -> None:
        def row(i: Node) -> None:
            start = b.add_(
                b.add_(source.offset, b.mul_(p, b.index(source.strides[0]))), b.mul_(i, b.index(source.strides[1]))
            )
            place = b.mul_(b.add_(b.mul_(p, b.index(m)), i), b.index(width))

            def element(j: Node) -> None:
                value = b.load(source.contents, b.add_(start, b.mul_(j, b.index(source.strides[2]))))
                b.store(contents, b.add_(place, j), value)

            along(b, 0, n, element)
            for column in range(n, width):
                b.store(contents, b.add_(place, b.index(column)), zero)

        each(b, m, row)

    each(b, count, one)
    return _renewed(b, copy)


def _renewed(b: Lowering, view: Memory) -> Memory:
    return Memory(b.rewritten(view.contents), view.offset, view.shape, view.strides, view.dense)


def _stacked(b: Lowering, x: Memory) -> Memory:
    """The stack with its leading axes as one."""
    *lead, m, n = x.shape
    found = reshaped(b, x, (math.prod(lead), m, n))
    return memory(b, found)


def each_matrix(b: Lowering, stack: Memory, body: Callable[[Node, Rows], None]) -> None:
    """`body` of each matrix of a padded stack and its number."""
    m, width = stack.shape[-2], stack.strides[-2]

    def one(p: Node) -> None:
        body(p, Rows(b, stack.contents, b.mul_(p, b.index(m * width)), width))

    each(b, math.prod(stack.shape[:-2]), one)


def subtract_products(
    b: Lowering,
    target: Rows,
    pivot: Callable[[Node], Node],
    factor: Callable[[Node], Node],
    rows: tuple[int, int],
    columns: tuple[int, int],
    keep_up_to: int = -1,
) -> None:
    """target[i, j] -= factor(i) * pivot(j) over rows and columns; columns up to `keep_up_to` stay as they are."""

    def column(j: Node) -> None:
        along_row = pivot(j)
        changed = b.binary("gt", j, b.index(keep_up_to)) if keep_up_to >= columns[0] else None

        def block(first: Node, count: int) -> None:
            for r in range(count):
                i = b.add_(first, b.index(rows[0] + r))
                old = target.get(i, j)
                new = b.sub_(old, b.mul_(factor(i), along_row))
                target.put(i, j, new if changed is None else b.select(changed, new, old))

        blocks(b, rows[1] - rows[0], ROWS_AT_ONCE, block)

    if rows[1] > rows[0] and columns[1] > columns[0]:
        along(b, *columns, column)


def cholesky_in_memory(b: Lowering, x: Value) -> Memory:
    """L with L L' = A, from the lower triangle, as the transpose of U built row by row (Golub and Van Loan, 4.2.6)."""
    stack = in_rows(b, transposed(x))
    n = x.shape[-1]

    def one(_: Node, u: Rows) -> None:
        for k in range(n):
            _cholesky_row(b, u, k, n, x.dtype)

    each_matrix(b, stack, one)
    return transposed(_renewed(b, stack))


@overload
def transposed(x: Memory) -> Memory: ...
@overload
def transposed(x: Value) -> Value: ...
def transposed(x: Value) -> Value:
    """The matrices of a stack turned, without moving anything."""
    if isinstance(x, Scalars):
        return Scalars(x.data.swapaxes(-1, -2), x.dtype)
    shape, strides = ((*axes[:-2], axes[-1], axes[-2]) for axes in (x.shape, x.strides))
    return Memory(x.contents, x.offset, shape, strides, x.dense)


def _cholesky_row(b: Lowering, u: Rows, k: int, n: int, dtype: str) -> None:
    root = b.unary("sqrt", u.get(k, k))
    scale = b.div_(b.constant(1, dtype), root)
    zero, start = b.zero(dtype), aligned(k)

    def finished(j: Node) -> None:
        scaled = b.mul_(u.get(k, j), scale)
        right = b.select(b.binary("eq", j, b.index(k)), root, scaled)
        u.put(k, j, b.select(b.binary("lt", j, b.index(k)), zero, right))

    along(b, 0, start, lambda j: u.put(k, j, zero))
    along(b, start, start + LANES, finished)
    along(b, start + LANES, u.width, lambda j: u.put(k, j, b.mul_(u.get(k, j), scale)))
    for first in range(aligned(k + 1), u.width, LANES):
        rows, columns = (k + 1, min(first + LANES, n)), (first, first + LANES)
        subtract_products(b, u, lambda j: u.get(k, j), lambda i: u.get(k, i), rows, columns)


def lu_in_memory(b: Lowering, x: Value) -> tuple[Memory, Memory, Memory]:
    """LU with partial pivoting (Golub and Van Loan, 3.4.1): factors, pivots, permutation."""
    *lead, m, n = x.shape
    stack, count, steps = in_rows(b, x), math.prod(x.shape[:-2]), min(m, n)
    pivots, order = b.allocate("i4", max(count * steps, 1)), b.allocate("i4", max(count * m, 1))

    def one(p: Node, a: Rows) -> None:
        places = Rows(b, order, b.mul_(p, b.index(m)), m)
        chosen = Rows(b, pivots, b.mul_(p, b.index(steps)), steps)
        for i in range(m):
            places.put(0, i, b.constant(i, "i4"))
        for k in range(steps):
            where = _pivot(b, a, k, m)
            chosen.put(0, k, b.convert(where, "i4"))
            _exchange(b, places, k, where)
            _eliminate(b, a, k, m, where, x.dtype)

    each_matrix(b, stack, one)
    shapes = ((pivots, (*lead, steps)), (order, (*lead, m)))
    whole = [Memory(b.rewritten(c), b.index(0), shape, row_major(shape), dense=True) for c, shape in shapes]
    return _renewed(b, stack), whole[0], whole[1]


def _exchange(b: Lowering, row: Rows, k: Node | int, where: Node) -> None:
    one, other = row.get(0, k), row.get(0, where)
    row.put(0, k, other)
    row.put(0, where, one)


def _pivot(b: Lowering, a: Rows, k: int, m: int) -> Node:
    """The first row from k on with the largest element of column k."""

    def candidate(i: Node) -> tuple[Node, Node]:
        return b.unary("abs", a.get(i, k)), i

    def better(one: tuple[Node, Node], other: tuple[Node, Node]) -> tuple[Node, Node]:
        bigger = b.binary("gt", other[0], one[0])
        return b.select(bigger, other[0], one[0]), b.select(bigger, other[1], one[1])

    def best(rows: list[Node]) -> tuple[Node, Node]:
        if len(rows) == 1:
            return candidate(rows[0])
        half = len(rows) // 2
        return better(best(rows[:half]), best(rows[half:]))

    groups, rest = divmod(m - k, CANDIDATES)
    found = best([b.index(k + i) for i in range(rest or CANDIDATES)])
    first = k + (rest or CANDIDATES)

    def group(counter: Node, so_far: list[Node]) -> list[Node]:
        start = b.add_(b.mul_(counter, b.index(CANDIDATES)), b.index(first))
        return list(better((so_far[0], so_far[1]), best([b.add_(start, b.index(i)) for i in range(CANDIDATES)])))

    return for_loop(b, groups if rest else groups - 1, list(found), group)[1]


def _eliminate(b: Lowering, a: Rows, k: int, m: int, where: Node, dtype: str) -> None:
    def exchange(j: Node) -> None:
        one, other = a.get(k, j), a.get(where, j)
        a.put(k, j, other)
        a.put(where, j, one)

    along(b, 0, a.width, exchange)
    one, pivot = b.constant(1, dtype), a.get(k, k)
    scale = b.div_(one, b.select(b.binary("eq", pivot, b.zero(dtype)), one, pivot))

    def divide(first: Node, count: int) -> None:
        for r in range(count):
            i = b.add_(first, b.index(k + 1 + r))
            a.put(i, k, b.mul_(a.get(i, k), scale))

    blocks(b, m - k - 1, 2 * ROWS_AT_ONCE, divide)
    start, rows = aligned(k + 1), (k + 1, m)
    mixed = start + LANES if start < k + 1 else start
    for columns in ((start, mixed), (mixed, a.width)):
        subtract_products(b, a, lambda j: a.get(k, j), lambda i: a.get(i, k), rows, columns, k)


def permutation_in_memory(b: Lowering, pivots: Value, shape: tuple[int, ...], dtype: str) -> Memory:
    """The order of rows after they were exchanged one after the other, as the pivots say."""
    *lead, size = shape
    exchanges = memory(b, pivots)
    exchanges = memory(b, reshaped(b, exchanges, (math.prod(lead), pivots.shape[-1])))
    order = b.allocate(dtype, max(math.prod(shape), 1))

    def one(p: Node) -> None:
        places = Rows(b, order, b.mul_(p, b.index(size)), size)
        along(b, 0, size, lambda i: places.put(0, i, b.convert(i, dtype)))
        start = b.add_(exchanges.offset, b.mul_(p, b.index(exchanges.strides[0])))

        def step(k: Node) -> None:
            where = b.load(exchanges.contents, b.add_(start, b.mul_(k, b.index(exchanges.strides[1]))))
            _exchange(b, places, k, b.convert(where, INDEX))

        each(b, exchanges.shape[1], step)

    each(b, math.prod(lead), one)
    return Memory(b.rewritten(order), b.index(0), tuple(shape), row_major(shape), dense=True)
