"""Rules for reductions, cumulative operations, matrix products, arg-extremes and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jax.lax import Precision

from knuckle.native.ir import BOOL, Node, is_float
from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_elementwise import as_dtype, result
from knuckle.native.lower_shape import reshaped
from knuckle.native.structure import make_if_cheap
from knuckle.native.trace import UnsupportedValue
from knuckle.native.values import (
    SCALAR_LIMIT,
    Memory,
    Nodes,
    Scalars,
    Value,
    for_loop,
    memory,
    nest,
    objects,
    scalars,
    whole,
)

PARTIAL_SUMS = 8  # a long sum is kept in this many parts, so that vectors of lanes add it up in the same order
SPARSE_WORK = 20000  # multiplications; a product with many zeros and fewer than these is written out
DENSE_WORK = 512  # multiplications; a product with no zeros and more than these is a loop
REDUCERS = {
    "reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "max", "reduce_min": "min", "reduce_and": "and",
    "reduce_or": "or", "reduce_xor": "xor",
}  # fmt: skip
CUMULATIVE = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


def identity_of(op: str, dtype: str):
    if op in ("add", "or", "xor"):
        return False if dtype == BOOL else 0
    if op == "mul":
        return 1
    if op == "and":
        return True if dtype == BOOL else -1
    if is_float(dtype):
        return -np.inf if op == "max" else np.inf
    if dtype == BOOL:
        return op == "min"
    limits = np.iinfo(dtype)
    return limits.min if op == "max" else limits.max


def fold_nodes(b: Lowering, op: str, nodes: Sequence[Node]) -> Node:
    """One after the other up to eight; longer runs in halves, which is quicker and more accurate."""
    if len(nodes) > 8:
        half = len(nodes) // 2
        return b.binary(op, fold_nodes(b, op, nodes[:half]), fold_nodes(b, op, nodes[half:]))
    total = nodes[0]
    for node in nodes[1:]:
        total = b.binary(op, total, node)
    return total


@rule(*REDUCERS, reads=("axes",), harmless=("out_sharding",))
def _reduce(b: Lowering, equation, x: Value):
    op, axes = REDUCERS[equation.primitive], tuple(equation.params["axes"])
    shape, dtype = result(equation)
    return reduced(b, op, x, axes, shape, dtype)


def reduced(b: Lowering, op: str, x: Value, axes: tuple[int, ...], shape, dtype: str) -> Value:
    if not axes:
        return x
    if isinstance(x, Memory) and math.prod(x.shape) > (64 if x.dense else SCALAR_LIMIT):
        return _reduce_memory(b, op, x, axes, shape, dtype)
    data = scalars(b, x).data
    kept = [a for a in range(data.ndim) if a not in axes]
    inner = math.prod(data.shape[a] for a in axes)
    rows = data.transpose([*kept, *axes]).reshape(*(data.shape[a] for a in kept), inner)
    out = objects(shape)
    for place in np.ndindex(*shape):
        row = list(rows[place])
        out[place] = fold_nodes(b, op, row) if row else b.constant(identity_of(op, dtype), dtype)
    return Scalars(out, dtype)


def _reduce_memory(b: Lowering, op: str, x: Memory, axes: tuple[int, ...], shape, dtype: str) -> Value:
    kept = [a for a in range(len(x.shape)) if a not in axes]
    out = whole(b, b.allocate(dtype, max(math.prod(shape), 1)), shape, dense=True)
    inner = [(x.shape[a], x.strides[a]) for a in axes]

    def body(places: list[Node]) -> None:
        total = running(b, op, x, places[0], inner, dtype)
        b.store(out.contents, places[1], total)

    sizes = [x.shape[a] for a in kept]
    nest(b, sizes, [x.offset, out.offset], [[x.strides[a] for a in kept], list(out.strides)], body)
    return out


def running(b: Lowering, op: str, x: Memory, start: Node, inner: list[tuple[int, int]], dtype: str) -> Node:
    """The reduction over nested strided axes from `start` on, several partial results along the last axis."""
    if len(inner) == 1:
        n, stride = inner[0]
        return partial_reduction(
            b, op, dtype, n, lambda i: b.load(x.contents, b.add_(start, b.mul_(i, b.index(stride))))
        )
    n, stride = inner[0]

    def turn(counter: Node, totals: list[Node]) -> list[Node]:
        place = b.add_(start, b.mul_(counter, b.index(stride)))
        return [b.binary(op, totals[0], running(b, op, x, place, inner[1:], dtype))]

    return for_loop(b, n, [b.constant(identity_of(op, dtype), dtype)], turn)[0]


def partial_reduction(b: Lowering, op: str, dtype: str, count: int, term: Callable[[Node], Node]) -> Node:
    """op over term(0) .. term(count - 1), kept in eight parts that are joined at the end."""
    groups, rest = divmod(count, PARTIAL_SUMS)
    parts: list[Node] = []
    if groups:
        first = [b.constant(identity_of(op, dtype), dtype)] * PARTIAL_SUMS

        def turn(counter: Node, totals: list[Node]) -> list[Node]:
            base = b.mul_(counter, b.index(PARTIAL_SUMS))
            return [b.binary(op, t, term(b.add_(base, b.index(k)))) for k, t in enumerate(totals)]

        parts = for_loop(b, groups, first, turn)
    tail = [term(b.index(groups * PARTIAL_SUMS + k)) for k in range(rest)]
    for k, node in enumerate(tail):
        if k < len(parts):
            parts[k] = b.binary(op, parts[k], node)
        else:
            parts.append(node)
    return pairwise(b, op, parts) if parts else b.constant(identity_of(op, dtype), dtype)


def pairwise(b: Lowering, op: str, nodes: Sequence[Node]) -> Node:
    if len(nodes) == 1:
        return nodes[0]
    half = len(nodes) // 2
    return b.binary(op, pairwise(b, op, nodes[:half]), pairwise(b, op, nodes[half:]))


@rule("argmax", "argmin", reads=("axes",), harmless=("index_dtype",))
def _arg_extreme(b: Lowering, equation, x: Value):
    """The first place of the extreme; a NaN wins, as in JAX."""
    (axis,) = equation.params["axes"]
    shape, dtype = result(equation)
    word = "gt" if equation.primitive == "argmax" else "lt"
    x = scalars(b, x)
    lines = np.moveaxis(x.data, axis, -1)
    out = objects(shape)

    def better(first: tuple[Node, Node], second: tuple[Node, Node]) -> tuple[Node, Node]:
        """Of two values with their places, of which the first stands before the second."""
        (best, where), (candidate, other) = first, second
        wins = b.binary(word, candidate, best)
        if is_float(x.dtype):
            wins = b.or_(wins, b.binary("ne", candidate, candidate))
            wins = b.and_(wins, b.binary("eq", best, best))
        return b.select(wins, candidate, best), b.select(wins, other, where)

    for place in np.ndindex(*shape):
        left = [(candidate, b.constant(i, dtype)) for i, candidate in enumerate(lines[place])]
        while len(left) > 1:  # neighbours in pairs: as many comparisons as one by one, and few that wait for others
            paired = [better(*pair) for pair in zip(left[::2], left[1::2], strict=False)]
            left = paired + left[2 * len(paired) :]
        out[place] = left[0][1]
    return Scalars(out, dtype)


@rule(*CUMULATIVE, reads=("axis", "reverse"))
def _cumulative(b: Lowering, equation, x: Value):
    op, axis, reverse = CUMULATIVE[equation.primitive], equation.params["axis"], equation.params["reverse"]
    shape, dtype = result(equation)
    if math.prod(shape) > SCALAR_LIMIT:
        return _cumulative_memory(b, op, memory(b, x), axis, reverse, shape, dtype)
    out = scalars(b, x).data.copy()
    lines = np.moveaxis(out, axis, 0)
    lines = lines[::-1] if reverse else lines
    for place in np.ndindex(*lines.shape):
        if place[0]:
            lines[place] = b.binary(op, lines[(place[0] - 1, *place[1:])], lines[place])
    return Scalars(out, dtype)


def _cumulative_memory(b: Lowering, op: str, x: Memory, axis: int, reverse: bool, shape, dtype: str) -> Value:
    out = whole(b, b.allocate(dtype, math.prod(shape)), shape, dense=True)
    others = [a for a in range(len(shape)) if a != axis]
    n = shape[axis]

    def body(places: list[Node]) -> None:
        def turn(counter: Node, totals: list[Node]) -> list[Node]:
            i = b.sub_(b.index(n - 1), counter) if reverse else counter
            value = b.load(x.contents, b.add_(places[0], b.mul_(i, b.index(x.strides[axis]))))
            total = b.binary(op, totals[0], value)
            b.store(out.contents, b.add_(places[1], b.mul_(i, b.index(out.strides[axis]))), total)
            return [total]

        for_loop(b, n, [b.constant(identity_of(op, dtype), dtype)], turn)

    sizes = [shape[a] for a in others]
    nest(b, sizes, [x.offset, out.offset], [[x.strides[a] for a in others], [out.strides[a] for a in others]], body)
    return replace(out, contents=b.rewritten(out.contents))


@rule("dot_general", reads=("dimension_numbers", "precision"), harmless=("preferred_element_type", "out_sharding"))
def _dot_general(b: Lowering, equation, x: Value, y: Value):
    (cx, cy), (bx, by) = equation.params["dimension_numbers"]
    check_precision(equation.params["precision"])
    shape, dtype = result(equation)
    x, y = as_dtype(b, x, dtype), as_dtype(b, y, dtype)
    fx = [a for a in range(len(x.shape)) if a not in (*cx, *bx)]
    fy = [a for a in range(len(y.shape)) if a not in (*cy, *by)]
    sizes = [math.prod(x.shape[a] for a in group) for group in (bx, fx, cx)] + [math.prod(y.shape[a] for a in fy)]
    batch, m, k, n = sizes
    left = _three(b, x, (bx, fx, cx), (batch, m, k))
    right = _three(b, y, (by, fy, cy), (batch, n, k))
    product = None
    if k == 0 or _is_sparse_or_small(left, right, batch * m * n * k):
        product = _unrolled_product(b, left, right, dtype)
    elif _meets_constants(left, right):
        product = make_if_cheap(b, batch * m * n, lambda: _unrolled_product(b, left, right, dtype))
    if product is not None:
        return Scalars(product.reshape(shape), dtype)
    return reshaped(b, _product_loops(b, memory(b, left), memory(b, right), dtype), shape)


def check_precision(precision) -> None:
    """JAX's levels of precision are all met; an algorithm that rounds operands or sums is not followed."""
    levels = precision if isinstance(precision, tuple) else (precision,)
    if not all(level is None or isinstance(level, Precision) for level in levels):
        raise UnsupportedValue(f"with precision={precision}")


def _three(b: Lowering, x: Value, groups, shape) -> Value:
    """The operand as [batch, rows, contracted]."""
    order = [a for group in groups for a in group]
    if isinstance(x, Scalars):
        return Scalars(x.data.transpose(order).reshape(shape), x.dtype)
    turned = replace(x, shape=tuple(x.shape[a] for a in order), strides=tuple(x.strides[a] for a in order))
    return reshaped(b, turned, shape)


def _is_sparse_or_small(left: Value, right: Value, work: int) -> bool:
    """Whether a product is written out: small, or mostly zeros."""
    if work <= DENSE_WORK:
        return True
    if any(isinstance(v, Memory) and (v.dense or math.prod(v.shape) > SCALAR_LIMIT) for v in (left, right)):
        return False
    if isinstance(left, Memory) and isinstance(right, Memory):
        return False
    products = np.einsum("bmk,bnk->", _nonzero(left), _nonzero(right))
    return products <= 8 * DENSE_WORK or (products <= work / 2 and products <= SPARSE_WORK)


def _nonzero(value: Value) -> np.ndarray:
    if isinstance(value, Memory):
        return np.ones(value.shape)
    flat = [not (n.op == "const" and n.attr == 0) for n in value.data.reshape(-1)]
    return np.array(flat, dtype=float).reshape(value.shape)


def _meets_constants(left: Value, right: Value) -> bool:
    """Whether an array in memory that is not large is multiplied by one of scalars, which may hold zeros."""
    stored = [v for v in (left, right) if isinstance(v, Memory)]
    return len(stored) == 1 and math.prod(stored[0].shape) <= SCALAR_LIMIT


def _unrolled_product(b: Lowering, x: Value, y: Value, dtype: str) -> Nodes:
    left, right = scalars(b, x).data, scalars(b, y).data
    batch, m, _ = left.shape
    n = right.shape[1]
    out = objects((batch, m, n))
    here = [_nonzero(Scalars(side, dtype)).astype(bool) for side in (left, right)]
    for p, i, j in np.ndindex(batch, m, n):
        both = np.flatnonzero(here[0][p, i] & here[1][p, j])
        terms = [b.binary("mul", left[p, i, c], right[p, j, c]) for c in both]
        out[p, i, j] = sum_of_terms(b, terms, dtype)
    return out


def sum_of_terms(b: Lowering, terms: list[Node], dtype: str) -> Node:
    return fold_nodes(b, "add", terms) if terms else b.zero(dtype)


def _product_loops(b: Lowering, left: Memory, right: Memory, dtype: str) -> Memory:
    """out[p, i, j] = sum over c of left[p, i, c] right[p, j, c], with the loop order that reads memory in order."""
    (batch, m, k), n = left.shape, right.shape[1]
    out = whole(b, b.allocate(dtype, batch * m * n), (batch, m, n), dense=True)
    along_columns = right.strides[1] in (0, 1) and n > 1
    along_rows = left.strides[1] in (0, 1) and m > 1

    def per_batch(p: Node, _):
        bases = [b.add_(v.offset, b.mul_(p, b.index(v.strides[0]))) for v in (left, right, out)]
        if along_columns or (n == 1 and not along_rows):
            if n == 1:
                _rows(b, left, right, out, bases, m, n, k, swap=False)
            else:
                _columns(b, left, right, out, bases, m, n, k, swap=False)
        elif along_rows:
            _columns(b, right, left, out, bases, n, m, k, swap=True)
        elif m == 1:
            _rows(b, right, left, out, bases, n, m, k, swap=True)
        else:
            _rows(b, left, right, out, bases, m, n, k, swap=False)
        return []

    for_loop(b, batch, [], per_batch)
    return out


def _columns(
    b: Lowering, left: Memory, right: Memory, out: Memory, bases: list[Node], m: int, n: int, k: int, swap: bool
):
    """Neighbouring results in lanes: out[i, j] over j, four rows i at a time so that each load serves four sums."""
    left_base, right_base = (bases[1], bases[0]) if swap else (bases[0], bases[1])
    row_step, column_step = (out.strides[2], out.strides[1]) if swap else (out.strides[1], out.strides[2])

    def block(i0: Node, rows: int) -> None:
        def column(j: Node, _):
            start = b.add_(right_base, b.mul_(j, b.index(right.strides[1])))

            def turn(c: Node, totals: list[Node]) -> list[Node]:
                weight = b.load(right.contents, b.add_(start, b.mul_(c, b.index(right.strides[2]))))
                nexts = []
                for r, total in enumerate(totals):
                    place = b.add_(left_base, b.mul_(b.add_(i0, b.index(r)), b.index(left.strides[1])))
                    x = b.load(left.contents, b.add_(place, b.mul_(c, b.index(left.strides[2]))))
                    nexts.append(b.fma(weight, x, total))
                return nexts

            totals = for_loop(b, k, [b.constant(0, out.dtype)] * rows, turn)
            for r, total in enumerate(totals):
                at = b.add_(bases[2], b.mul_(b.add_(i0, b.index(r)), b.index(row_step)))
                b.store(out.contents, b.add_(at, b.mul_(j, b.index(column_step))), total)
            return []

        for_loop(b, n, [], column, "kernel")

    blocks(b, m, 4, block)


def blocks(b: Lowering, count: int, size: int, block: Callable[[Node, int], None]) -> None:
    groups, rest = divmod(count, size)
    if groups:

        def turn(group: Node, _) -> list[Node]:
            block(b.mul_(group, b.index(size)), size)
            return []

        for_loop(b, groups, [], turn)
    if rest:
        block(b.index(groups * size), rest)


def _rows(b: Lowering, left: Memory, right: Memory, out: Memory, bases: list[Node], m: int, n: int, k: int, swap: bool):
    """Each result a running sum along the contracted axis, in eight partial sums that fill the lanes."""
    left_base, right_base = (bases[1], bases[0]) if swap else (bases[0], bases[1])
    row_step, column_step = (out.strides[2], out.strides[1]) if swap else (out.strides[1], out.strides[2])
    groups, rest = divmod(k, PARTIAL_SUMS)
    block_size = 4

    def place(base: Node, index: Node, stride: int) -> Node:
        return b.add_(base, b.mul_(index, b.index(stride)))

    def block(i0: Node, rows: int, j: Node) -> None:
        starts = [place(left_base, b.add_(i0, b.index(r)), left.strides[1]) for r in range(rows)]
        other = place(right_base, j, right.strides[1])
        parts = whole(b, b.allocate(out.dtype, rows * PARTIAL_SUMS), (rows, PARTIAL_SUMS))

        def lane(l_: Node, _):
            def turn(g: Node, totals: list[Node]) -> list[Node]:
                c = b.add_(b.mul_(g, b.index(PARTIAL_SUMS)), l_)
                y = b.load(right.contents, place(other, c, right.strides[2]))
                return [
                    b.fma(b.load(left.contents, place(s, c, left.strides[2])), y, t)
                    for s, t in zip(starts, totals, strict=True)
                ]

            totals = for_loop(b, groups, [b.constant(0, out.dtype)] * rows, turn)
            for r, total in enumerate(totals):
                b.store(parts.contents, b.add_(l_, b.index(r * PARTIAL_SUMS)), total)
            return []

        if groups:
            for_loop(b, PARTIAL_SUMS, [], lane, "kernel")
        done = b.rewritten(parts.contents)
        for r in range(rows):
            sums = [b.load_at(done, r * PARTIAL_SUMS + q) for q in range(PARTIAL_SUMS)] if groups else []
            total = pairwise(b, "add", sums) if sums else b.constant(0, out.dtype)
            for q in range(rest):
                c = b.index(groups * PARTIAL_SUMS + q)
                y = b.load(right.contents, place(other, c, right.strides[2]))
                total = b.fma(b.load(left.contents, place(starts[r], c, left.strides[2])), y, total)
            at = place(place(bases[2], b.add_(i0, b.index(r)), row_step), j, column_step)
            b.store(out.contents, at, total)

    def column(j: Node, _):
        blocks(b, m, block_size, lambda i0, rows: block(i0, rows, j))
        return []

    for_loop(b, n, [], column)
