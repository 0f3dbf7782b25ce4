"""Singular values by one-sided Jacobi rotations (Golub and Van Loan, 8.6.3), after a QR factorisation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from knuckle.native.lower_derived import JACOBI_SWEEPS, derived, householder, householder_product_loop


@derived("svd", reads=("full_matrices", "compute_uv", "subset_by_index"), harmless=("algorithm",))
def svd_jacobi(params, a):
    """Singular values in descending order; the signs of the vectors are not those of LAPACK."""
    m, n = a.shape[-2:]
    low, high = params["subset_by_index"] or (0, min(m, n))
    full, with_vectors = params["full_matrices"], params["compute_uv"]
    if min(m, n) == 0:
        return _empty(a, full, with_vectors)
    one = _tall if m >= n else _wide
    for _ in range(a.ndim - 2):
        one = jax.vmap(one, in_axes=(0, None))
    u, values, vt = one(a, full)
    values = values[..., low:high]
    if not with_vectors:
        return [values]
    if not full:
        u, vt = u[..., low:high], vt[..., low:high, :]
    return [values, u, vt]


def _empty(a, full: bool, with_vectors: bool):
    """JAX's result for a matrix without elements: unit matrices."""
    *lead, m, n = a.shape
    values = jnp.zeros((*lead, 0), a.dtype)
    sizes = (m, m if full else 0), (n if full else 0, n)
    vectors = [jnp.broadcast_to(jnp.eye(*size, dtype=a.dtype), (*lead, *size)) for size in sizes]
    return [values, *vectors] if with_vectors else [values]


def _wide(a, full: bool):
    u, values, vt = _tall(a.T, full)
    return vt.T, values, u.T


def _tall(a, full: bool):
    """U, s and V' of A = Q R with R = U' s V': the columns of R V are orthogonal, so that their QR factor is U'."""
    m, n = a.shape
    largest = jnp.max(jnp.abs(a))
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0).astype(a.dtype)
    packed, taus = householder(a / scale)
    turned, v = _orthogonal_columns(jnp.triu(packed[:n]))
    norms = jnp.sqrt(jnp.sum(turned * turned, axis=0))
    order = jnp.argsort(-norms)
    norms, v = norms[order], v[:, order]
    inner, inner_taus = householder(turned[:, order])
    signs = jnp.where(jnp.diagonal(inner) < 0, -1.0, 1.0).astype(a.dtype)
    small = householder_product_loop({}, inner, inner_taus) * signs
    columns = m if full else n
    wide = jnp.zeros((m, columns), a.dtype).at[:, :n].set(packed)
    q = householder_product_loop({}, wide, taus)
    u = jnp.concatenate([q[:, :n] @ small, q[:, n:]], axis=1)
    bad = ~jnp.isfinite(largest)
    return [jnp.where(bad, jnp.nan, x).astype(a.dtype) for x in (u, norms * scale, v.T)]


def _orthogonal_columns(a):
    """A V with orthogonal columns, and V, by cyclic rotations of pairs of columns (kept as rows)."""
    n = a.shape[1]
    first, second = np.triu_indices(n, 1)
    pairs = (jnp.asarray(first, jnp.int32), jnp.asarray(second, jnp.int32))

    def rotate(k, state):
        rows, v = state
        p, q = pairs[0][k], pairs[1][k]
        x, y = rows[p], rows[q]
        off, alpha, beta = jnp.sum(x * y), jnp.sum(x * x), jnp.sum(y * y)
        theta = (beta - alpha) / (2 * jnp.where(off == 0, 1.0, off))
        t = jnp.where(theta >= 0, 1.0, -1.0) / (jnp.abs(theta) + jnp.sqrt(theta * theta + 1))
        t = jnp.where(off == 0, 0.0, t).astype(a.dtype)
        c = 1 / jnp.sqrt(t * t + 1)
        s = t * c

        def turned(m):
            return m.at[p].set(c * m[p] - s * m[q]).at[q].set(s * m[p] + c * m[q])

        return turned(rows), turned(v)

    def sweep(_, state):
        return lax.fori_loop(0, len(first), rotate, state)

    start = (a.T, jnp.eye(n, dtype=a.dtype))
    rows, v = lax.fori_loop(0, JACOBI_SWEEPS, sweep, start) if n > 1 else start
    return rows.T, v.T
