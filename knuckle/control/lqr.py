"""The linear-quadratic regulator in discrete time, over a finite or an infinite horizon."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

SYMMETRIC = 1e-9  # of the largest entry: asymmetry above it is an error of the caller, not rounding


@dataclass(frozen=True)
class Regulator:
    """The feedback u = -gain x and the cost to go x . value x / 2; over a finite horizon one of each per step."""

    gain: np.ndarray  # (nu, n) or (steps, nu, n)
    value: np.ndarray  # (n, n) or (steps + 1, n, n)


def lqr(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    *,
    N: ArrayLike | None = None,
    steps: int | None = None,
    final: ArrayLike | None = None,
) -> Regulator:
    """The feedback that minimises the sum of (x Q x + u R u + 2 x N u) / 2 along x' = A x + B u.

    Without `steps` the horizon is infinite (discrete algebraic Riccati equation, solved by SciPy). With `steps` it ends
    with the cost x . final x / 2 (zero if not given), by the Riccati recursion (Anderson and Moore, Optimal Control,
    section 2.4). Matrices may then differ from step to step: a first axis of that length.
    """
    if steps is None:
        if final is not None:
            raise ValueError("lqr: `final` is the cost at the end of a finite horizon, which needs steps=...")
        A, B, Q, R, N = _matrices(A, B, Q, R, N)
        return _infinite(A, B, Q, R, N)
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or int(steps) < 1:
        raise ValueError(f"lqr: steps must be a whole number of at least 1, got {steps!r}")
    A, B, Q, R, N = _matrices(A, B, Q, R, N, int(steps))
    n = A.shape[-1]
    value = np.zeros((n, n)) if final is None else _array("final", final, (n, n), None)
    _check_definite("final", value, strictly=False)
    return _finite(A, B, Q, R, N, value)


def _finite(A, B, Q, R, N, final) -> Regulator:
    values, gains = [final], []
    for a, b, q, r, cross in zip(A[::-1], B[::-1], Q[::-1], R[::-1], N[::-1], strict=True):
        value = values[-1]
        gain = scipy.linalg.solve(r + b.T @ value @ b, b.T @ value @ a + cross.T, assume_a="pos")
        closed = a - b @ gain
        value = q - cross @ gain - gain.T @ cross.T + gain.T @ r @ gain + closed.T @ value @ closed  # Joseph's form
        gains.append(gain)
        values.append((value + value.T) / 2)
    return Regulator(np.array(gains[::-1]), np.array(values[::-1]))


def _infinite(A, B, Q, R, N) -> Regulator:
    try:
        value = scipy.linalg.solve_discrete_are(A, B, Q, R, s=N)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise ValueError(f"lqr: no feedback makes the cost over an infinite horizon finite ({error})") from error
    gain = np.linalg.solve(R + B.T @ value @ B, B.T @ value @ A + N.T)
    radius = float(np.max(np.abs(np.linalg.eigvals(A - B @ gain))))
    if not radius < 1:
        wanted = "A and B must be stabilisable, and Q must see every mode that does not decay"
        raise ValueError(f"lqr: the closed loop has an eigenvalue of size {radius:.6g}, not below 1: {wanted}")
    return Regulator(gain, value)


def _matrices(A, B, Q, R, N, steps: int | None = None) -> tuple[np.ndarray, ...]:
    """All as float64 of shapes that fit, over a finite horizon with an axis of steps."""
    A, B = np.asarray(A, float), np.asarray(B, float)
    if A.ndim < 2 or B.ndim < 2:
        raise ValueError(f"lqr: A and B must be matrices, got shapes {A.shape} and {B.shape}")
    n, nu = A.shape[-1], B.shape[-1]
    A, B = _array("A", A, (n, n), steps), _array("B", B, (n, nu), steps)
    Q, R = _array("Q", Q, (n, n), steps), _array("R", R, (nu, nu), steps)
    N = _array("N", np.zeros((n, nu)) if N is None else N, (n, nu), steps)
    for name, matrix, strictly in (("Q", Q, False), ("R", R, True)):
        for one in {m.tobytes(): m for m in matrix.reshape(-1, *matrix.shape[-2:])}.values():
            _check_definite(name, one, strictly)
    return A, B, Q, R, N


def _array(name: str, given: ArrayLike, shape: tuple[int, int], steps: int | None) -> np.ndarray:
    array = np.asarray(given, float)
    allowed = [shape] if steps is None else [shape, (steps, *shape)]
    if array.shape not in allowed:
        raise ValueError(f"lqr: {name} must have shape {' or '.join(map(str, allowed))}, got {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"lqr: {name} must be finite, got {array[~np.isfinite(array)][0]}")
    return array if steps is None else np.broadcast_to(array, (steps, *shape))


def _check_definite(name: str, matrix: np.ndarray, strictly: bool) -> None:
    scale = float(np.max(np.abs(matrix), initial=0.0))
    if np.max(np.abs(matrix - matrix.T), initial=0.0) > SYMMETRIC * scale:
        raise ValueError(f"lqr: {name} must be symmetric")
    least = float(np.min(np.linalg.eigvalsh(matrix), initial=np.inf))
    if least < -SYMMETRIC * scale or (strictly and not least > 0):
        kind = "positive definite" if strictly else "positive semi-definite"
        raise ValueError(f"lqr: {name} must be {kind}, its smallest eigenvalue is {least:.3g}")
