"""The step of a Levenberg-Marquardt iteration within bounds: a small quadratic programme over a box."""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dposv  # type: ignore[attr-defined]

Vector = np.ndarray
MOST_SWEEPS = 200  # over all entries, if active sets cycle


def box_step(A: np.ndarray, g: Vector, low: Vector, high: Vector) -> Vector | None:
    """Minimise g.p + p.A.p/2 over low <= p <= high by an active set; None if A is not positive definite.

    low <= 0 <= high. The step never raises the quadratic.
    """
    fixed = ((low >= 0) & (g > 0)) | ((high <= 0) & (g < 0))
    if not fixed.any():
        _, step, info = dposv(A, -g)
        if info == 0 and ((step >= low) & (step <= high)).all():
            return step
    return _active_set(A, g, low, high, fixed)


def _active_set(A: np.ndarray, g: Vector, low: Vector, high: Vector, fixed: np.ndarray) -> Vector | None:
    """Fix what would leave the box, free what is held at the wrong bound, until neither is left."""
    step = np.zeros_like(g)
    for _ in range(2 * len(g) + 1):
        solved = _on_free(A, g, step, fixed)
        if solved is None:
            return None
        outside = (solved < low) | (solved > high)
        if outside.any():
            step = np.clip(solved, low, high)
            fixed = fixed | outside
            continue
        step = solved
        slope = g + A @ step
        wrong = fixed & (((step <= low) & (slope < 0)) | ((step >= high) & (slope > 0)))
        if not wrong.any():
            return step
        fixed = fixed & ~_most(wrong, slope)
    return _by_coordinates(A, g, low, high, _better(A, g, step, _descent(A, g, low, high)))


def _by_coordinates(A: np.ndarray, g: Vector, low: Vector, high: Vector, step: Vector) -> Vector:
    """Each entry in turn at its best, until the bounds that hold are those of the minimiser: for sets that cycle."""
    step = step.copy()
    for _ in range(MOST_SWEEPS):
        for i in range(len(g)):
            step[i] = np.clip(step[i] - (g[i] + A[i] @ step) / A[i, i], low[i], high[i])
        slope = g + A @ step
        fixed = ((step <= low) & (slope >= 0)) | ((step >= high) & (slope <= 0))
        solved = _on_free(A, g, step, fixed)
        if solved is None or np.any(solved < low) or np.any(solved > high):
            continue
        slope = g + A @ solved
        if not np.any(fixed & (((solved <= low) & (slope < 0)) | ((solved >= high) & (slope > 0)))):
            return solved
    return step


def _on_free(A: np.ndarray, g: Vector, step: Vector, fixed: np.ndarray) -> Vector | None:
    """The minimiser over the free entries, the others held."""
    held = np.where(fixed, step, 0.0)
    free = np.flatnonzero(~fixed)
    if len(free):
        _, solved, info = dposv(A[np.ix_(free, free)], -(g + A @ held)[free])
        if info != 0:
            return None
        held[free] = solved
    return held


def _most(wrong: np.ndarray, slope: Vector) -> np.ndarray:
    """Of the entries held at the wrong bound, the one that would gain most."""
    chosen = np.zeros_like(wrong)
    chosen[np.argmax(np.where(wrong, np.abs(slope), -1.0))] = True
    return chosen


def _descent(A: np.ndarray, g: Vector, low: Vector, high: Vector) -> Vector:
    """A step that lowers the quadratic for certain: A is majorised by the diagonal of its absolute row sums."""
    return np.clip(-g / np.abs(A).sum(axis=1), low, high)


def _better(A: np.ndarray, g: Vector, a: Vector, b: Vector) -> Vector:
    return min((a, b), key=lambda p: float(g @ p + 0.5 * p @ A @ p))
