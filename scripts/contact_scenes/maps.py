"""Projections that laws of contact are written with, in NumPy."""

from __future__ import annotations

import numpy as np

TOUCHING, CORNER = 2e-6, 4e-7  # [m], as the contact model documents


def solve_scaled(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solutions of positive definite systems, scaled by their diagonals: masses differ by 1e6."""
    scale = 1 / np.sqrt(np.einsum("sii->si", A))
    inner = scale[:, :, None] * A * scale[:, None, :]
    return scale * np.linalg.solve(inner, (scale * b)[..., None])[..., 0]


def beyond_touching(gap: np.ndarray) -> np.ndarray:
    far, start = (x + np.sqrt(x * x + CORNER**2) for x in (gap - TOUCHING, -TOUCHING + 0 * gap))
    return 0.5 * (far - start)


def length(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(x * x, axis=-1))


def on_cone(x: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """The nearest point with |x_t| <= mu x_n."""
    n, t = x[..., 0], length(x[..., 1:])
    inside, polar = (n >= 0) & (t <= mu * n), mu * t <= -n
    push = np.where(inside, n, np.where(polar, 0.0, (n + mu * t) / (1 + mu * mu)))
    shrink = np.where(inside, 1.0, mu * push / np.maximum(t, 1e-300))
    return np.concatenate([push[..., None], shrink[..., None] * x[..., 1:]], axis=-1)


def soft_cone(x: np.ndarray, kappa: float) -> np.ndarray:
    """The point of |x_t| < x_n whose eigenvalues are (a + sqrt(a^2 + 4 kappa^2)) / 2 for x's eigenvalues a."""
    n, t = x[..., 0], length(x[..., 1:])
    roots = ((a, np.sqrt(a * a + 4 * kappa**2)) for a in (n + t, n - t))
    more, less = (np.where(a > 0, 0.5 * (a + root), 2 * kappa**2 / (root + np.abs(a))) for a, root in roots)
    at_axis = 0.5 * (1 + n / np.sqrt(n * n + 4 * kappa**2))
    shrink = np.where(t > 1e-6 * kappa, 0.5 * (more - less) / np.maximum(t, 1e-300), at_axis)
    return np.concatenate([0.5 * (more + less)[..., None], shrink[..., None] * x[..., 1:]], axis=-1)


def on_square(x: np.ndarray, radius: np.ndarray) -> np.ndarray:
    return np.clip(x, -radius[..., None], radius[..., None])


def on_diamond(x: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The nearest point with |x| + |y| <= radius (planar contacts: |x| <= radius)."""
    if x.shape[-1] == 1:
        return on_square(x, radius)
    size = np.abs(x)
    excess = np.maximum((np.sum(size, axis=-1) - radius) / 2, 0.0)[..., None]
    cut = np.maximum(size - excess, 0.0)
    alone = size > size[..., ::-1]
    cut = np.where((excess > np.min(size, axis=-1, keepdims=True)), np.where(alone, radius[..., None], 0.0), cut)
    return np.sign(x) * cut
