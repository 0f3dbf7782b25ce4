"""A square-root Kalman filter and Rauch-Tung-Striebel smoother of a linear system; it knows no robots.

x[k+1] = A[k] x[k] + c[k] + B[k] w[k] with w of unit covariance, measured as 0 = r[k] + H[k] x[k] + noise. Covariances
are kept as factors, propagated by QR decompositions (Kaminski, Bryson, Schmidt 1971): they stay positive although
measurements may be a million times better than the prior, and process noise may leave directions out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from knuckle import native

CHUNK = 64  # times that compiled code goes through at once: one program for recordings of any length


class Linear(NamedTuple):
    """A linear system over time."""

    A: np.ndarray  # (step, n, n)
    c: np.ndarray  # (step, n)
    B: np.ndarray  # (step, n, p)
    H: np.ndarray  # (time, m, n)
    r: np.ndarray  # (time, m)
    noise: np.ndarray  # (time, m), standard deviations; infinite where nothing was measured
    mean: np.ndarray  # (n,), at the first time
    factor: np.ndarray  # (n, n), of its covariance factor factor^T


@dataclass(frozen=True)
class Estimates:
    """Means and covariances at all times, by measurements up to then and by all; innovations over their deviation."""

    filtered: np.ndarray  # (time, n)
    filtered_covariance: np.ndarray
    mean: np.ndarray  # (time, n)
    covariance: np.ndarray
    gain: np.ndarray  # (step, n, n): covariance of x[k], x[k+1] is gain[k] covariance[k+1]
    innovations: np.ndarray  # (time, m), NaN where nothing was measured
    log_likelihood: float


def smooth_linear(system: Linear) -> Estimates:
    """Filter forwards, then smooth backwards."""
    times, _, n = system.H.shape
    seen = np.isfinite(system.noise)
    weight = np.where(seen, 1 / np.where(seen, system.noise, 1.0), 0.0)
    rows = (
        _padded(system.A, times, np.eye(n)), _padded(system.c, times, 0.0), _padded(system.B, times, 0.0),
        _padded(system.H * weight[..., None], times, 0.0), _padded(system.r * weight, times, 0.0),
    )  # fmt: skip
    state, parts = (np.array(system.mean, float), np.array(system.factor.T, float)), []
    for a in range(0, len(rows[0]), CHUNK):
        state, found = _forwards(state, tuple(part[a : a + CHUNK] for part in rows))
        parts.append(found)
    backwards = (parts[-1].mean[-1], parts[-1].root[-1].T @ parts[-1].root[-1])
    ends = []
    for part in reversed(parts):
        backwards, found = _backwards(backwards, tuple(part[:5]))
        ends.append(found)
    mean, covariance = (np.concatenate(part)[:times] for part in zip(*reversed(ends), strict=True))
    forward = _Forward(*(np.concatenate(part)[:times] for part in zip(*parts, strict=True)))
    mean[-1], covariance[-1] = forward.mean[-1], forward.root[-1].T @ forward.root[-1]
    spread = np.sum(np.log(system.noise[seen])) + 0.5 * np.log(2 * np.pi) * np.count_nonzero(seen)
    return Estimates(
        forward.mean, np.einsum("kji,kjl->kil", forward.root, forward.root), mean, covariance, forward.gain[:-1],
        np.where(seen, forward.innovation, np.nan), float(forward.density.sum() - spread),
    )  # fmt: skip


class _Forward(NamedTuple):
    """What the filter keeps of each time; covariances are root^T root."""

    mean: Any
    root: Any
    following: Any  # the mean that it predicts for the next time
    gain: Any
    left: Any  # root of what stays unknown of a state if the next one is known
    innovation: Any
    density: Any  # logarithm of that of the measurements, but for the scale of the noise


def _padded(rows: np.ndarray, times: int, filling) -> np.ndarray:
    """Rows up to a multiple of the chunk: steps that change nothing, times at which nothing was measured."""
    whole = np.empty((-(-times // CHUNK) * CHUNK, *rows.shape[1:]))
    whole[: len(rows)], whole[len(rows) :] = rows, filling
    return whole


@native.jit
def _forwards(state, rows):
    def one(state, row):
        m, root = state
        A, c, B, H, r = row
        m, root, innovation, density = _update(m, root, H, r)
        after, following = _predict(A, B, root), A @ m + c
        return (following, after[0]), _Forward(m, root, following, *after[1:], innovation, density)

    return jax.lax.scan(one, state, rows)


@native.jit
def _backwards(state, rows):
    def one(state, row):
        mean, covariance = state
        m, _, following, gain, left = row
        new = (m + gain @ (mean - following), left.T @ left + gain @ covariance @ gain.T)
        return new, new

    return jax.lax.scan(one, state, rows, reverse=True)


def _update(m, root, H, r):
    """Mean and root after measurements of unit noise, innovations over their deviation, and the log density."""
    count, n = H.shape
    top = jnp.concatenate([jnp.eye(count), jnp.zeros((count, n))], axis=1)
    R = _reflected(jnp.concatenate([top, jnp.concatenate([root @ H.T, root], axis=1)]), count)
    own, off = R[:count, :count], -(r + H @ m)
    white = solve_triangular(own, off, trans=1)
    innovation = off / jnp.sqrt(jnp.sum(jnp.square(own), axis=0))
    density = -0.5 * white @ white - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(own))))
    return m + R[:count, count:].T @ white, R[count:, count:], innovation, density


def _predict(A, B, root):
    """Root after a step, the smoother's gain, and the root of what stays unknown of a state if the next is known."""
    n = A.shape[0]
    below = jnp.concatenate([B.T, jnp.zeros((B.shape[1], n))], axis=1)
    R = _reflected(jnp.concatenate([jnp.concatenate([root @ A.T, root], axis=1), below]), n)
    return R[:n, :n], solve_triangular(R[:n, :n], R[:n, n:]).T, R[n:, n:]


def _reflected(rows, count: int):
    """Rows after Householder reflections that make the first `count` columns upper triangular."""
    places = jnp.arange(rows.shape[0])

    def reflect(j, rows):
        x = jnp.where(places >= j, rows[:, j], 0.0)
        size = jnp.sqrt(x @ x)
        first = jnp.where(rows[j, j] < 0, -size, size)
        v = x + jnp.where(places == j, first, 0.0)
        square = v @ v
        factor = jnp.where(square > 0, 2 / jnp.where(square > 0, square, 1.0), 0.0)
        return rows - (factor * v)[:, None] * (v @ rows)[None]

    row, column = np.indices(rows.shape)
    below = (row > column) & (column < count)  # rounding is left there
    return jnp.where(below, 0.0, jax.lax.fori_loop(0, count, reflect, rows))
