"""Rules for linear algebra: written out for small matrices, loops for large ones."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from knuckle.native.ir import BOOL, Node, code_of
from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_dense import (
    cholesky_in_memory,
    lu_in_memory,
    permutation_in_memory,
    transposed,
)
from knuckle.native.lower_derived import lower_derived
from knuckle.native.lower_elementwise import result
from knuckle.native.lower_factors import cholesky_blocked, lu_blocked
from knuckle.native.lower_reduce import sum_of_terms
from knuckle.native.lower_triangular import solve_blocked
from knuckle.native.values import (
    Memory,
    Nodes,
    Scalars,
    Value,
    count_variables,
    from_numpy,
    map_nodes,
    memory,
    objects,
    scalars,
)

UNROLLED_CHOLESKY = 24  # rows; larger matrices use loops
UNROLLED_LU = 8
UNROLLED_SOLVE = 4000  # products of a triangular solve; of one with more rows than STEPS_LIMIT a quarter
STEPS_LIMIT = 32  # rows; larger matrices are worked on in blocks, by loops over the steps too


def _dot(b: Lowering, x, y, dtype: str) -> Node:
    return sum_of_terms(b, [b.mul_(p, q) for p, q in zip(x, y, strict=True)], dtype)


def cholesky_factor(b: Lowering, a: Nodes, dtype: str) -> tuple[Nodes, Node]:
    """L with L L' = A, from the lower triangle of A (Golub and Van Loan, 4.2.5), and whether A is positive definite."""
    n = a.shape[0]
    low = objects((n, n))
    low.fill(b.constant(0, dtype))
    one, positive = b.constant(1, dtype), b.constant(True, BOOL)
    for j in range(n):
        square = b.sub_(a[j, j], _dot(b, low[j, :j], low[j, :j], dtype))
        positive = b.and_(positive, b.binary("lt", b.zero(dtype), square))
        low[j, j] = b.unary("sqrt", square)
        scale = b.div_(one, low[j, j])
        for i in range(j + 1, n):
            low[i, j] = b.mul_(b.sub_(a[i, j], _dot(b, low[i, :j], low[j, :j], dtype)), scale)
    return low, positive


@rule("cholesky")
def _cholesky(b: Lowering, equation, x: Value):
    if 0 in x.shape:
        return Scalars(objects(x.shape), x.dtype)
    if x.shape[-1] > STEPS_LIMIT:
        return cholesky_blocked(b, x)
    if x.shape[-1] > UNROLLED_CHOLESKY:
        return lower_derived(b, lambda _, low: nan_unless_positive(low), {}, cholesky_in_memory(b, x))
    data = scalars(b, x).data
    out, triangle = objects(data.shape), np.tri(data.shape[-1], dtype=bool)
    for place in np.ndindex(*data.shape[:-2]):
        low, positive = cholesky_factor(b, data[place], x.dtype)
        low[triangle] = [_nan_unless(b, positive, node) for node in low[triangle]]
        out[place] = low
    return Scalars(out, x.dtype)


def nan_unless_positive(low):
    """A Cholesky factor, NaN all over its triangle where an element of the diagonal is not positive."""
    positive = jnp.all(jnp.diagonal(low, axis1=-2, axis2=-1) > 0, axis=-1)
    rows = jnp.arange(low.shape[-1])
    return jnp.where(positive[..., None, None] | (rows[:, None] < rows), low, jnp.nan)


def _nan_unless(b: Lowering, positive: Node, node: Node) -> Node:
    return b.select(positive, node, b.constant(np.nan, node.dtype))


def _is_marked(node: Node, test: Node | None = None) -> bool:
    """Whether a value is NaN unless `test` (or some test) holds."""
    if node.op != "select" or (test is not None and node.args[0] is not test):
        return False
    return node.args[2].op == "const" and bool(np.isnan(node.args[2].attr))


def _without_marks(a: Nodes) -> tuple[Nodes, Node | None]:
    """A triangle without the NaN that a failed factorisation puts all over it, and the test that puts it there.

    If the whole diagonal is NaN unless a test holds, so is each element of a solution, and it may be marked instead:
    fewer values, and the first rows do not wait for the last pivot.
    """
    diagonal = np.diagonal(a)
    if not len(diagonal) or not all(_is_marked(node) for node in diagonal):
        return a, None
    test = diagonal[0].args[0]
    if not all(_is_marked(node, test) for node in diagonal):
        return a, None
    return map_nodes(lambda node: node.args[1] if _is_marked(node, test) else node, a), test


def substitute(b: Lowering, a: Nodes, rhs: Nodes, lower: bool, unit: bool, dtype: str) -> Nodes:
    """x with A x = rhs for a triangle A, row by row."""
    n = a.shape[0]
    x = objects(rhs.shape)
    for i in range(n) if lower else reversed(range(n)):
        known = slice(0, i) if lower else slice(i + 1, n)
        for k in range(rhs.shape[1]):
            rest = b.sub_(rhs[i, k], _dot(b, a[i, known], x[known, k], dtype))
            x[i, k] = rest if unit else b.div_(rest, a[i, i])
    return x


@rule("triangular_solve", reads=("left_side", "lower", "transpose_a", "unit_diagonal"), harmless=("conjugate_a",))
def _triangular_solve(b: Lowering, equation, a: Value, rhs: Value):
    p = equation.params
    if not _is_short(a, rhs):
        return _solve_by_rows(b, p, memory(b, a), rhs)
    matrix, right = scalars(b, a).data, scalars(b, rhs).data
    out = objects(right.shape)
    for place in np.ndindex(*matrix.shape[:-2]):
        one, other = matrix[place], right[place]
        one, test = (one, None) if p["unit_diagonal"] else _without_marks(one)
        transposed, lower = p["transpose_a"], p["lower"]
        if not p["left_side"]:
            other, transposed = other.T, not transposed
        if transposed:
            one, lower = one.T, not lower
        solution = substitute(b, one, other, lower, p["unit_diagonal"], a.dtype)
        if test is not None and not all(_is_marked(node, test) for node in other.reshape(-1)):
            solution = map_nodes(lambda node, test=test: _nan_unless(b, test, node), solution)
        out[place] = solution if p["left_side"] else solution.T
    return Scalars(out, a.dtype)


def _is_short(a: Value, rhs: Value) -> bool:
    """Whether a triangular solve is better written out: few rows, or mostly zeros."""
    columns = math.prod(rhs.shape) // max(a.shape[-1], 1)
    if a.shape[-1] <= STEPS_LIMIT:
        return columns * a.shape[-1] ** 2 <= UNROLLED_SOLVE
    return isinstance(a, Scalars) and columns * count_variables(a) <= UNROLLED_SOLVE // 4


def _solve_by_rows(b: Lowering, params, a: Memory, rhs: Value) -> Value:
    lower = params["lower"]
    if not params["left_side"]:
        rhs = transposed(rhs)
    if params["transpose_a"] == params["left_side"]:
        a, lower = transposed(a), not lower
    x = solve_blocked(b, a, rhs, lower, params["unit_diagonal"])
    return x if params["left_side"] else transposed(x)


@rule("lu")
def _lu(b: Lowering, equation, x: Value):
    """LU with partial pivoting (Golub and Van Loan, 3.4.1): factors, pivots, permutation."""
    m, n = x.shape[-2:]
    if 0 in x.shape:
        return _lu_of_nothing(b, x)
    if max(m, n) > STEPS_LIMIT:
        return lu_blocked(b, x)
    if max(m, n) > UNROLLED_LU:
        return lu_in_memory(b, x)
    data = scalars(b, x).data
    factors, pivots, orders = [], [], []
    for place in np.ndindex(*data.shape[:-2]):
        factor, pivot, order = factor_with_pivots(b, data[place].copy(), x.dtype)
        factors.append(factor)
        pivots.append(pivot)
        orders.append(order)
    shape = data.shape[:-2]
    i4 = code_of(np.int32)
    return [
        Scalars(_stacked(factors, (*shape, m, n)), x.dtype),
        Scalars(_stacked(pivots, (*shape, min(m, n))), i4),
        Scalars(_stacked(orders, (*shape, m)), i4),
    ]


def _lu_of_nothing(b: Lowering, x: Value):
    *lead, m, n = x.shape
    order = from_numpy(b, np.broadcast_to(np.arange(m, dtype=np.int32), (*lead, m)))
    return [Scalars(objects(x.shape), x.dtype), Scalars(objects((*lead, min(m, n))), "i4"), order]


def _stacked(parts: list[Nodes], shape) -> Nodes:
    out = objects((len(parts), *parts[0].shape))
    for i, part in enumerate(parts):
        out[i] = part
    return out.reshape(shape)


def factor_with_pivots(b: Lowering, a: Nodes, dtype: str):
    m, n = a.shape
    order = np.array([b.constant(i, "i4") for i in range(m)], dtype=object)
    pivots = objects((min(m, n),))
    for k in range(min(m, n)):
        best, where = b.unary("abs", a[k, k]), b.constant(k, "i4")
        for i in range(k + 1, m):
            size = b.unary("abs", a[i, k])
            bigger = b.binary("gt", size, best)
            best, where = b.select(bigger, size, best), b.select(bigger, b.constant(i, "i4"), where)
        pivots[k] = where
        for i in range(k + 1, m):
            here = b.binary("eq", where, b.constant(i, "i4"))
            for column in range(n):
                a[k, column], a[i, column] = _swapped(b, here, a[k, column], a[i, column])
            order[k], order[i] = _swapped(b, here, order[k], order[i])
        zero = b.binary("eq", a[k, k], b.constant(0, dtype))
        scale = b.div_(b.constant(1, dtype), b.select(zero, b.constant(1, dtype), a[k, k]))
        for i in range(k + 1, m):
            a[i, k] = b.mul_(a[i, k], scale)
            for column in range(k + 1, n):
                a[i, column] = b.sub_(a[i, column], b.mul_(a[i, k], a[k, column]))
    return a, pivots, order


def _swapped(b: Lowering, test: Node, x: Node, y: Node) -> tuple[Node, Node]:
    return b.select(test, y, x), b.select(test, x, y)


@rule("lu_pivots_to_permutation", harmless=("permutation_size",))
def _pivots_to_permutation(b: Lowering, equation, pivots: Value):
    shape, dtype = result(equation)
    return permutation_in_memory(b, pivots, shape, dtype)
