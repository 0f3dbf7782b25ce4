"""Primitives written in terms of others: traced as JAX functions, then lowered like any other code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from knuckle.native.lower import Lowering, rule
from knuckle.native.trace import UnsupportedValue, flatten, without_dead_code
from knuckle.native.values import Value


def derived(*names: str, reads: Collection[str] = (), harmless: Collection[str] = ()):
    """Register the JAX function that a primitive is replaced by: function(params, *arrays) -> array(s)."""

    def register(function):
        @rule(*names, reads=reads, harmless=harmless)
        def _by_derivation(b: Lowering, equation, *values: Value):
            return lower_derived(b, function, equation.params, *values)

        return function

    return register


def lower_derived(b: Lowering, function: Callable, params: Mapping[str, Any], *values: Value) -> list[Value]:
    """Lower `function` of the parameters and some arrays in place of a primitive.

    It is traced with 64-bit types allowed, as single precision may be worked out in double, and with x64 off the
    arrays may still be such.
    """
    avals = [jax.ShapeDtypeStruct(v.shape, np.dtype(v.dtype)) for v in values]
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        closed = jax.make_jaxpr(lambda *arrays: function(params, *arrays))(*avals)
    outer, b.origin = b.origin, b.origin or b.around[-1]
    results = b.run(flatten(without_dead_code(closed)), values)
    b.origin = outer
    return results


JACOBI_SWEEPS = 12  # double precision is reached in 6 to 10 for n up to 100


@derived("eigh", reads=("lower", "subset_by_index"), harmless=("algorithm", "sort_eigenvalues"))
def eigh_jacobi(params, a):
    """Eigenvalues and vectors of a symmetric matrix by cyclic Jacobi rotations (Golub and Van Loan, 8.5)."""
    if a.ndim > 2:
        return jax.vmap(lambda one: eigh_jacobi(params, one))(a)
    n = a.shape[-1]
    triangle = jnp.tril(a) if params["lower"] else jnp.triu(a).T
    a = triangle + jnp.tril(triangle, -1).T
    low, high = params["subset_by_index"] or (0, n)
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
    order = jnp.argsort(values)[low:high]
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
        beta = jnp.where(jnp.signbit(alpha), norm, -norm)
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


@derived("qr", reads=("full_matrices", "pivoting"), harmless=("use_magma",))
def qr_loop(params, a):
    if a.ndim > 2:
        return jax.vmap(lambda one: qr_loop(params, one))(a)
    if params["pivoting"]:
        raise UnsupportedValue("with pivoting=True")
    m, n = a.shape
    packed, taus = householder(a)
    k = m if params["full_matrices"] else min(m, n)
    wide = jnp.zeros((m, k), a.dtype).at[:, : min(n, k)].set(packed[:, : min(n, k)])
    return [householder_product_loop(params, wide, taus), jnp.triu(packed[:k])]
