"""What factorisations and triangular solves of larger matrices are made of: strips of columns, rows in groups.

All of them rest on one sweep over a strip of columns that lies packed in memory, one row after the other. Groups of
eight rows take off products with the rows above, which are running sums in registers over one long loop; then the
triangle on the diagonal is solved in registers (left-looking block algorithms, Golub and Van Loan, 3.2.11 and 4.2.9).
Loops have numbers of turns that are found at run time, so code is as short for 500 rows as for 50.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from knuckle.native.ir import Contents, Node
from knuckle.native.lower import Lowering
from knuckle.native.lower_shape import reshaped
from knuckle.native.values import Memory, Value, for_loop, memory, row_major

GROUP = 8  # rows that are worked on at once, and columns in one vector
Index = Node | int


@dataclass(frozen=True)
class View:
    """A matrix in a buffer: element (i, j) is at base + i * row + j * column; what is read is what is there now."""

    b: Lowering
    contents: Contents
    base: Node
    row: int
    column: int = 1

    def place(self, i: Index, j: Index) -> Node:
        """Known distances are added last: neighbours share the rest, and the processor adds them for nothing."""
        (i, down), (j, right) = _apart(self.b, i), _apart(self.b, j)
        b = self.b
        start = b.add_(b.add_(self.base, b.mul_(i, b.index(self.row))), b.mul_(j, b.index(self.column)))
        return b.add_(b.index(down * self.row + right * self.column), start)

    def get(self, i: Index, j: Index) -> Node:
        return self.b.load(self.b.rewritten(self.contents), self.place(i, j))

    def put(self, i: Index, j: Index, value: Node) -> None:
        self.b.store(self.contents, self.place(i, j), value)


def _apart(b: Lowering, i: Index) -> tuple[Node, int]:
    """An index as something found at run time plus a known distance."""
    if isinstance(i, int):
        return b.index(0), i
    if i.op == "const":
        return b.index(0), int(i.attr)
    if i.op == "add" and i.args[0].op == "const":
        return i.args[1], int(i.args[0].attr)
    return i, 0


def new_view(b: Lowering, dtype: str, rows: int, columns: int) -> View:
    return View(b, b.allocate(dtype, max(rows * columns, 1)), b.index(0), columns)


def groups_of(n: int) -> int:
    return -(-n // GROUP)


def spread_width(n: int) -> int:
    """Columns of a padded row: an odd number of vectors, so that rows fall on different sets of the cache."""
    return (groups_of(n) | 1) * GROUP


def plus(b: Lowering, i: Index, j: Index) -> Node:
    i, j = (b.index(k) if isinstance(k, int) else k for k in (i, j))
    return b.add_(i, j)


def times(b: Lowering, i: Index, factor: int) -> Node:
    return b.mul_(b.index(i) if isinstance(i, int) else i, b.index(factor))


def minus(b: Lowering, i: Index, j: Index) -> Node:
    i, j = (b.index(k) if isinstance(k, int) else k for k in (i, j))
    return b.sub_(i, j)


def each(b: Lowering, count: Index, body: Callable[[Node], None], kind: str = "for") -> None:
    def turn(counter: Node, _) -> list[Node]:
        body(counter)
        return []

    for_loop(b, count, [], turn, kind)


def over_lanes(b: Lowering, count: Index, body: Callable[[Node], None]) -> None:
    """`body` of each column, eight columns at once."""
    each(b, count, body, "kernel")


def take_off(b: Lowering, sums: list[Node], a: View, x: View, at: Index, start: Index, groups: Index, column: Node):
    """sums[r] minus a[at + r, k] x[k, column] over `groups` of eight k from `start` on."""

    def turn(counter: Node, so_far: list[Node]) -> list[Node]:
        sums, first = list(so_far), plus(b, start, times(b, counter, GROUP))
        for k in [plus(b, first, step) for step in range(GROUP)]:
            right = x.get(k, column)
            sums = [b.sub_(s, b.mul_(a.get(plus(b, at, r), k), right)) for r, s in enumerate(sums)]
        return sums

    return for_loop(b, groups, sums, turn)


def solve_group(b: Lowering, sums: Sequence[Node], a: View, at: Index, lower: bool, scales: Sequence[Node] | None):
    """The triangle of a group of rows on the diagonal; `scales` are the reciprocals of its diagonal, None for ones."""
    x = list(sums)
    rows = range(len(x)) if lower else range(len(x))[::-1]
    for done, r in enumerate(rows):
        if scales is not None:
            x[r] = b.mul_(x[r], scales[r])
        for s in rows[done + 1 :]:
            x[s] = b.sub_(x[s], b.mul_(a.get(plus(b, at, s), plus(b, at, r)), x[r]))
    return x


def get_rows(x: View, at: Index, count: int, column: Index) -> list[Node]:
    return [x.get(plus(x.b, at, r), column) for r in range(count)]


def put_rows(x: View, at: Index, column: Index, values: Sequence[Node]) -> None:
    for r, value in enumerate(values):
        x.put(plus(x.b, at, r), column, value)


def stacked(b: Lowering, x: Value) -> Memory:
    """A stack of matrices with its leading axes as one, in memory."""
    *lead, m, n = x.shape
    return memory(b, reshaped(b, x, (math.prod(lead), m, n)))


def view_of(b: Lowering, stack: Memory, p: Node) -> View:
    """Matrix number p of a stack."""
    base = b.add_(stack.offset, b.mul_(p, b.index(stack.strides[0])))
    return View(b, stack.contents, base, stack.strides[1], stack.strides[2])


def padded_copy(b: Lowering, a: View, rows: int, columns: int, dtype: str) -> View:
    """A copy in whole groups of rows and columns; what is added is zero."""
    height, width = groups_of(rows) * GROUP, spread_width(columns)
    copy, zero = new_view(b, dtype, height, width), b.zero(dtype)

    def row(i: Node) -> None:
        over_lanes(b, columns, lambda j: copy.put(i, j, a.get(i, j)))
        for j in range(columns, groups_of(columns) * GROUP):
            copy.put(i, j, zero)

    each(b, rows, row)
    for i in range(rows, height):
        over_lanes(b, groups_of(columns) * GROUP, lambda j, i=i: copy.put(i, j, zero))
    return copy


def padded(b: Lowering, a: View, rows: int, columns: int, dtype: str) -> View:
    """The matrix as it is if its rows are contiguous and it is made of whole groups, else a copy that is."""
    whole = a.column == 1 and rows % GROUP == 0 and columns % GROUP == 0
    return a if whole else padded_copy(b, a, rows, columns, dtype)


def shifted(a: View, column: Node) -> View:
    """The matrix from a column on."""
    return View(a.b, a.contents, a.b.add_(a.base, a.b.mul_(column, a.b.index(a.column))), a.row, a.column)


def in_stack(b: Lowering, contents: Contents, shape: tuple[int, ...], steps: Sequence[int]) -> Memory:
    """A stack of padded matrices (or vectors) as an array: `steps` from one to the next, and from row to row."""
    lead = shape[: len(shape) - len(steps)]
    strides = (*[s * steps[0] for s in row_major(lead)], *steps[1:], 1)
    return Memory(b.rewritten(contents), b.index(0), shape, strides, dense=True)
