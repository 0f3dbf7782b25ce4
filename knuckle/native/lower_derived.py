"""Primitives written in terms of others: traced as JAX functions, then lowered like any other code."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from knuckle.native.ir import Node, is_float
from knuckle.native.lower import Lowering, rule
from knuckle.native.trace import flatten, without_dead_code
from knuckle.native.values import SCALAR_LIMIT, Scalars, Value, objects, scalars

DERIVED: dict[str, Callable] = {}


def derived(*names: str):
    """Register the JAX function that a primitive is replaced by: function(params, *arrays)."""

    def register(function):
        for name in names:
            DERIVED[name] = function
        return function

    return register


def lower_derived(b: Lowering, name: str, equation, *values: Value) -> list[Value]:
    avals = [jax.ShapeDtypeStruct(v.shape, np.dtype(v.dtype)) for v in values]
    function = DERIVED[name]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        closed = jax.make_jaxpr(lambda *arrays: function(equation.params, *arrays))(*avals)
    return b.run(flatten(without_dead_code(closed)), values)


@derived("cholesky")
def cholesky_loop(params, a):
    """Column by column over the rows below (Golub and Van Loan, 4.2.5)."""
    n = a.shape[-1]
    rows = jnp.arange(n)

    def column(j, low):
        rest = a[..., :, j] - jnp.einsum("...ik,...k->...i", low, low[..., j, :])
        values = rest / jnp.sqrt(rest[..., j])[..., None]
        return low.at[..., :, j].set(jnp.where(rows >= j, values, 0))

    return lax.fori_loop(0, n, column, jnp.zeros_like(a))


@derived("triangular_solve")
def triangular_solve_loop(params, a, rhs):
    lower = params["lower"]
    if not params["left_side"]:
        rhs = jnp.swapaxes(rhs, -1, -2)
    if params["transpose_a"] == params["left_side"]:
        a, lower = jnp.swapaxes(a, -1, -2), not lower
    n = a.shape[-1]

    def row(step, x):
        i = step if lower else n - 1 - step
        # rows of x that are not solved yet are zero, so the whole product may be taken
        rest = rhs[..., i, :] - jnp.einsum("...k,...km->...m", a[..., i, :], x)
        value = rest if params["unit_diagonal"] else rest / a[..., i, i][..., None]
        return x.at[..., i, :].set(value)

    x = lax.fori_loop(0, n, row, jnp.zeros_like(rhs))
    return x if params["left_side"] else jnp.swapaxes(x, -1, -2)


@derived("lu")
def lu_loop(params, a):
    if a.ndim > 2:
        return jax.vmap(lambda one: lu_loop(params, one))(a)
    m, n = a.shape
    rows, columns = jnp.arange(m), jnp.arange(n)

    def eliminate(k, state):
        a, pivots, order = state
        sizes = jnp.where(rows >= k, jnp.abs(a[:, k]), -1.0)
        where = jnp.argmax(sizes).astype(jnp.int32)
        a = a.at[k].set(a[where]).at[where].set(a[k])
        order = order.at[k].set(order[where]).at[where].set(order[k])
        pivot = jnp.where(a[k, k] == 0, 1.0, a[k, k])
        factors = jnp.where(rows > k, a[:, k] / pivot, 0)
        a = a - factors[:, None] * jnp.where(columns > k, a[k], 0)
        a = a.at[:, k].set(jnp.where(rows > k, factors, a[:, k]))
        return a, pivots.at[k].set(where), order

    start = (a, jnp.zeros(min(m, n), jnp.int32), jnp.arange(m, dtype=jnp.int32))
    return lax.fori_loop(0, min(m, n), eliminate, start)


JACOBI_SWEEPS = 12  # double precision is reached in 6 to 10 for n up to 100


@derived("eigh")
def eigh_jacobi(params, a):
    """Eigenvalues and vectors of a symmetric matrix by cyclic Jacobi rotations (Golub and Van Loan, 8.5)."""
    if a.ndim > 2:
        return jax.vmap(lambda one: eigh_jacobi(params, one))(a)
    n = a.shape[-1]
    triangle = jnp.tril(a) if params["lower"] else jnp.triu(a).T
    a = triangle + jnp.tril(triangle, -1).T
    first, second = np.triu_indices(n, 1)
    pairs = (jnp.asarray(first, jnp.int32), jnp.asarray(second, jnp.int32))

    def rotate(k, state):
        a, vectors = state
        p, q = pairs[0][k], pairs[1][k]
        off = a[p, q]
        safe = jnp.where(off == 0, 1.0, off)
        theta = (a[q, q] - a[p, p]) / (2 * safe)
        t = jnp.where(theta >= 0, 1.0, -1.0) / (jnp.abs(theta) + jnp.sqrt(theta * theta + 1))
        t = jnp.where(off == 0, 0.0, t).astype(a.dtype)
        c = 1 / jnp.sqrt(t * t + 1)
        s = t * c

        def turned(m):
            row_p, row_q = m[p], m[q]
            return m.at[p].set(c * row_p - s * row_q).at[q].set(s * row_p + c * row_q)

        return turned(turned(a).T).T, turned(vectors)

    if n > 1:

        def sweep(_, state):
            return lax.fori_loop(0, len(first), rotate, state)

        a, vectors = lax.fori_loop(0, JACOBI_SWEEPS, sweep, (a, jnp.eye(n, dtype=a.dtype)))
    else:
        vectors = jnp.eye(n, dtype=a.dtype)
    values = jnp.diagonal(a)
    order = jnp.argsort(values)
    values, vectors = values[order], vectors[order].T
    return [vectors, values]


def householder(a):
    """Householder vectors below the diagonal, R above it, and their factors (LAPACK geqrf)."""
    m, n = a.shape
    rows, columns = jnp.arange(m), jnp.arange(n)

    def reflect(k, state):
        a, taus = state
        x = jnp.where(rows >= k, a[:, k], 0)
        alpha = a[k, k]
        tail = jnp.sum(jnp.where(rows > k, x * x, 0))
        norm = jnp.sqrt(alpha * alpha + tail)
        beta = jnp.where(alpha >= 0, -norm, norm)
        trivial = tail == 0
        beta = jnp.where(trivial, alpha, beta)
        tau = jnp.where(trivial, 0, (beta - alpha) / jnp.where(beta == 0, 1, beta)).astype(a.dtype)
        scale = jnp.where(trivial, 1, alpha - beta)
        v = jnp.where(rows > k, x / scale, jnp.where(rows == k, 1, 0)).astype(a.dtype)
        product = v @ a
        a = a - jnp.where(columns > k, tau * v[:, None] * product[None, :], 0)
        column = jnp.where(rows > k, v, jnp.where(rows == k, beta, a[:, k]))
        return a.at[:, k].set(column), taus.at[k].set(tau)

    return lax.fori_loop(0, min(m, n), reflect, (a, jnp.zeros(min(m, n), a.dtype)))


@derived("geqrf")
def geqrf_loop(params, a):
    return jax.vmap(householder)(a) if a.ndim > 2 else householder(a)


@derived("householder_product")
def householder_product_loop(params, a, taus):
    if a.ndim > 2:
        return jax.vmap(lambda x, t: householder_product_loop(params, x, t))(a, taus)
    m, n = a.shape
    rows = jnp.arange(m)

    def reflect(step, q):
        k = taus.shape[0] - 1 - step
        v = jnp.where(rows > k, a[:, k], jnp.where(rows == k, 1, 0)).astype(a.dtype)
        return q - taus[k] * v[:, None] * (v @ q)[None, :]

    return lax.fori_loop(0, taus.shape[0], reflect, jnp.eye(m, n, dtype=a.dtype))


@derived("qr")
def qr_loop(params, a):
    if a.ndim > 2:
        return jax.vmap(lambda one: qr_loop(params, one))(a)
    m, n = a.shape
    packed, taus = householder(a)
    k = m if params["full_matrices"] else min(m, n)
    wide = jnp.zeros((m, k), a.dtype).at[:, : min(n, k)].set(packed[:, : min(n, k)])
    return [householder_product_loop(params, wide, taus), jnp.triu(packed[:k])]


@derived("erf_inv")
def erf_inv_newton(params, y):
    """Giles' approximation, then two Newton steps (Giles, Approximating the erfinv function, 2010)."""
    inside = jnp.clip(y, -1, 1)
    w = -jnp.log1p(-inside * inside)
    small = jnp.asarray(
        [2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
         0.246640727, 1.50140941], y.dtype)  # fmt: skip
    large = jnp.asarray(
        [-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
         1.00167406, 2.83297682], y.dtype)  # fmt: skip
    central = w < 5
    at = jnp.where(central, w - 2.5, jnp.sqrt(jnp.maximum(w, 0)) - 3.0)
    x = jnp.zeros_like(y)
    for k in range(9):
        x = x * at + jnp.where(central, small[k], large[k])
    x = x * inside
    for _ in range(2):
        tail = jnp.where(inside >= 0, lax.erfc(x) - (1 - inside), (1 + inside) - lax.erfc(-x))
        x = x + tail / (2 / np.sqrt(np.pi) * jnp.exp(-x * x))
    edge = jnp.where(y == 1, jnp.inf, jnp.where(y == -1, -jnp.inf, jnp.nan)).astype(y.dtype)
    return jnp.where(jnp.abs(y) < 1, x, edge)


@derived("lgamma")
def lgamma_lanczos(params, x):
    """Lanczos' approximation with g = 7, n = 9, reflected below one half; infinite at the poles and at infinity."""
    coefficients = [
        676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
        -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
    ]  # fmt: skip
    reflected = x < 0.5
    z = jnp.where(reflected, -x, x - 1)
    series = jnp.full_like(x, 0.99999999999980993)
    for i, c in enumerate(coefficients):
        series = series + c / (z + (i + 1))
    log_t = np.log(7.5) + jnp.log1p(z / 7.5)
    value = 0.5 * np.log(2 * np.pi) + (z + 0.5 - (z + 7.5) / log_t) * log_t + jnp.log(series)
    beyond = jnp.abs(x) - jnp.floor(jnp.abs(x))  # |sin pi x| from the distance to the nearest integer
    sine = jnp.sin(np.pi * jnp.where(beyond > 0.5, 1 - beyond, beyond))
    mirrored = jnp.where(sine == 0, jnp.inf, np.log(np.pi) - jnp.log(sine) - value)
    return jnp.where(jnp.isinf(x), jnp.inf, jnp.where(reflected, mirrored, value)).astype(x.dtype)


@derived("cumlogsumexp")
def cumlogsumexp_scan(params, x):
    moved = jnp.moveaxis(x, params["axis"], 0)

    def step(total, row):
        total = jnp.logaddexp(total, row)
        return total, total

    start = jnp.full(moved.shape[1:], -jnp.inf, x.dtype)
    return jnp.moveaxis(lax.scan(step, start, moved, reverse=params["reverse"])[1], 0, params["axis"])


@derived("threefry2x32")
def threefry(params, *words):
    """The Threefry 2x32 hash with 20 rounds (Salmon et al., 2011)."""
    key_1, key_2, x_1, x_2 = words
    shape = jnp.broadcast_shapes(*[w.shape for w in words])
    key_1, key_2, x_1, x_2 = (jnp.broadcast_to(w, shape) for w in (key_1, key_2, x_1, x_2))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = (key_1, key_2, key_1 ^ key_2 ^ np.uint32(0x1BD11BDA))
    x_1, x_2 = x_1 + keys[0], x_2 + keys[1]
    for group in range(5):
        for r in rotations[group % 2]:
            x_1 = x_1 + x_2
            x_2 = (x_2 << np.uint32(r)) | (x_2 >> np.uint32(32 - r))
            x_2 = x_1 ^ x_2
        x_1 = x_1 + keys[(group + 1) % 3]
        x_2 = x_2 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return [x_1, x_2]


@rule("erf_inv", "lgamma", "cumlogsumexp", "threefry2x32")
def _by_derivation(b: Lowering, equation, *values: Value):
    return lower_derived(b, equation.primitive, equation, *values)


def _precedes(b: Lowering, x: tuple[Node, ...], y: tuple[Node, ...], keys: int) -> Node:
    """Whether row x comes strictly before row y; NaN after everything, as in JAX."""
    before = b.constant(False, "b1")
    tied = b.constant(True, "b1")
    for p, q in zip(x[:keys], y[:keys], strict=True):
        less, same = b.binary("lt", p, q), b.binary("eq", p, q)
        if is_float(p.dtype):
            p_number, q_nan = b.binary("eq", p, p), b.binary("ne", q, q)
            less = b.or_(less, b.and_(p_number, q_nan))
            same = b.or_(same, b.and_(b.unary("not", p_number), q_nan))
        before = b.or_(before, b.and_(tied, less))
        tied = b.and_(tied, same)
    return before


def sorted_rows(b: Lowering, rows: list[tuple[Node, ...]], keys: int) -> list[tuple[Node, ...]]:
    """Stable sort by odd-even transposition: n rounds of exchanges between neighbours."""
    rows = list(rows)
    for turn in range(len(rows)):
        for i in range(turn % 2, len(rows) - 1, 2):
            swap = _precedes(b, rows[i + 1], rows[i], keys)
            low = tuple(b.select(swap, q, p) for p, q in zip(rows[i], rows[i + 1], strict=True))
            high = tuple(b.select(swap, p, q) for p, q in zip(rows[i], rows[i + 1], strict=True))
            rows[i], rows[i + 1] = low, high
    return rows


@rule("sort")
def _sort(b: Lowering, equation, *operands: Value):
    axis, keys = equation.params["dimension"], equation.params["num_keys"]
    length = operands[0].shape[axis]
    if length > 48 or operands[0].shape[axis] * int(np.prod(operands[0].shape)) > 16 * SCALAR_LIMIT:
        return lower_derived(b, "sort", equation, *operands)
    lines = [np.moveaxis(scalars(b, v).data, axis, -1) for v in operands]
    outs = [objects(line.shape) for line in lines]
    for place in np.ndindex(*lines[0].shape[:-1]):
        rows = sorted_rows(b, list(zip(*[line[place] for line in lines], strict=True)), keys)
        for out, column in zip(outs, zip(*rows, strict=True), strict=True):
            for i, node in enumerate(column):
                out[(*place, i)] = node
    return [Scalars(np.moveaxis(out, -1, axis), v.dtype) for out, v in zip(outs, operands, strict=True)]


@derived("sort")
def sort_insertion(params, *operands):
    """Stable insertion of each row among those before it."""
    axis, keys = params["dimension"], params["num_keys"]
    moved = [jnp.moveaxis(x, axis, -1) for x in operands]
    shape = moved[0].shape
    flat = [x.reshape(-1, shape[-1]) for x in moved]

    def precedes(x, y):
        before, tied = jnp.asarray(False), jnp.asarray(True)
        for p, q in zip(x[:keys], y[:keys], strict=True):
            less, same = p < q, p == q
            if jnp.issubdtype(p.dtype, jnp.floating):
                less = less | ((p == p) & (q != q))
                same = same | ((p != p) & (q != q))
            before, tied = before | (tied & less), tied & same
        return before

    def insert(i, rows):
        item = [r[i] for r in rows]

        def unsettled(state):
            j, rows = state
            return (j > 0) & precedes(item, [r[jnp.maximum(j - 1, 0)] for r in rows])

        def shift(state):
            j, rows = state
            return j - 1, [r.at[j].set(r[j - 1]) for r in rows]

        j, rows = lax.while_loop(unsettled, shift, (i, rows))
        return [r.at[j].set(x) for r, x in zip(rows, item, strict=True)]

    def one(rows):
        return lax.fori_loop(1, shape[-1], lambda i, r: insert(i, r), list(rows))

    results = lax.map(one, flat)
    return [jnp.moveaxis(r.reshape(shape), -1, axis) for r in results]


@rule("top_k")
def _top_k(b: Lowering, equation, x: Value):
    return lower_derived(b, "top_k", equation, x)


@derived("top_k")
def top_k_by_sort(params, x):
    k, axis = params["k"], params.get("axis", x.ndim - 1) % x.ndim
    x = jnp.moveaxis(x, axis, -1)
    places = jnp.broadcast_to(jnp.arange(x.shape[-1], dtype=jnp.int32), x.shape)
    flipped = -x if jnp.issubdtype(x.dtype, jnp.floating) else ~x
    keys, order = lax.sort([flipped, places], dimension=-1, num_keys=1, is_stable=True)
    keys = keys[..., :k]
    values = -keys if jnp.issubdtype(x.dtype, jnp.floating) else ~keys
    return [jnp.moveaxis(values, -1, axis), jnp.moveaxis(order[..., :k], -1, axis)]
