"""Rules for linear algebra: written out for small matrices, loops for large ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from knuckle.native.ir import Node, code_of
from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_dense import (
    cholesky_in_memory,
    lu_in_memory,
    permutation_in_memory,
    solve_in_memory,
    transposed,
)
from knuckle.native.lower_derived import lower_derived
from knuckle.native.lower_elementwise import result
from knuckle.native.lower_reduce import sum_of_terms
from knuckle.native.values import Memory, Nodes, Scalars, Value, memory, objects, scalars

UNROLLED_CHOLESKY = 24  # rows; larger matrices use loops
UNROLLED_LU = 8
UNROLLED_SOLVE = 4000  # products of a triangular solve
STEPS_LIMIT = 64  # rows; larger matrices use loops over the steps too


def _dot(b: Lowering, x, y, dtype: str) -> Node:
    return sum_of_terms(b, [b.mul_(p, q) for p, q in zip(x, y, strict=True)], dtype)


def per_matrix(b: Lowering, x: Value, function: Callable[[Nodes], Nodes]) -> Scalars:
    """`function` of each matrix in the last two axes."""
    data = scalars(b, x).data
    results = [function(data[place]) for place in np.ndindex(*data.shape[:-2])]
    out = objects((len(results), *results[0].shape))
    for i, matrix in enumerate(results):
        out[i] = matrix
    return Scalars(out.reshape(*data.shape[:-2], *results[0].shape), x.dtype)


def cholesky_factor(b: Lowering, a: Nodes, dtype: str) -> Nodes:
    """L with L L' = A, from the lower triangle of A (Golub and Van Loan, 4.2.5); NaN where A is not positive."""
    n = a.shape[0]
    low = objects((n, n))
    low.fill(b.constant(0, dtype))
    one = b.constant(1, dtype)
    for j in range(n):
        square = b.sub_(a[j, j], _dot(b, low[j, :j], low[j, :j], dtype))
        low[j, j] = b.unary("sqrt", square)
        scale = b.div_(one, low[j, j])
        for i in range(j + 1, n):
            low[i, j] = b.mul_(b.sub_(a[i, j], _dot(b, low[i, :j], low[j, :j], dtype)), scale)
    return low


@rule("cholesky")
def _cholesky(b: Lowering, equation, x: Value):
    if equation.params.get("symmetrize_input"):
        half = b.constant(0.5, x.dtype)
        x = per_matrix(b, x, lambda a: _symmetric(b, a, half))
    if x.shape[-1] > STEPS_LIMIT:
        return lower_derived(b, "cholesky", equation, x)
    if x.shape[-1] > UNROLLED_CHOLESKY and x.shape[0]:
        return cholesky_in_memory(b, x)
    return per_matrix(b, x, lambda a: cholesky_factor(b, a, x.dtype))


def _symmetric(b: Lowering, a: Nodes, half: Node) -> Nodes:
    out = objects(a.shape)
    for i, j in np.ndindex(*a.shape):
        out[i, j] = a[i, j] if a[i, j] is a[j, i] else b.mul_(half, b.add_(a[i, j], a[j, i]))
    return out


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


@rule("triangular_solve")
def _triangular_solve(b: Lowering, equation, a: Value, rhs: Value):
    p = equation.params
    if a.shape[-1] > STEPS_LIMIT:
        return lower_derived(b, "triangular_solve", equation, a, rhs)
    if math.prod(rhs.shape) * a.shape[-1] > UNROLLED_SOLVE:
        return _solve_by_rows(b, p, memory(b, a), rhs)
    matrix, right = scalars(b, a).data, scalars(b, rhs).data
    out = objects(right.shape)
    for place in np.ndindex(*matrix.shape[:-2]):
        one, other = matrix[place], right[place]
        transposed, lower = p["transpose_a"], p["lower"]
        if not p["left_side"]:
            other, transposed = other.T, not transposed
        if transposed:
            one, lower = one.T, not lower
        solution = substitute(b, one, other, lower, p["unit_diagonal"], a.dtype)
        out[place] = solution if p["left_side"] else solution.T
    return Scalars(out, a.dtype)


def _solve_by_rows(b: Lowering, params, a: Memory, rhs: Value) -> Value:
    lower = params["lower"]
    if not params["left_side"]:
        rhs = transposed(rhs)
    if params["transpose_a"] == params["left_side"]:
        a, lower = transposed(a), not lower
    x = solve_in_memory(b, a, rhs, lower, params["unit_diagonal"])
    return x if params["left_side"] else transposed(x)


@rule("lu")
def _lu(b: Lowering, equation, x: Value):
    """LU with partial pivoting (Golub and Van Loan, 3.4.1): factors, pivots, permutation."""
    m, n = x.shape[-2:]
    if max(m, n) > STEPS_LIMIT:
        return lower_derived(b, "lu", equation, x)
    if max(m, n) > UNROLLED_LU and min(m, n):
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


@rule("eigh", "qr", "geqrf", "householder_product", "svd")
def _iterative(b: Lowering, equation, *values: Value):
    return lower_derived(b, equation.primitive, equation, *values)


@rule("lu_pivots_to_permutation")
def _pivots_to_permutation(b: Lowering, equation, pivots: Value):
    shape, dtype = result(equation)
    return permutation_in_memory(b, pivots, shape, dtype)
