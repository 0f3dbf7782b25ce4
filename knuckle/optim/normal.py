"""Normal equations of a linearised least-squares problem: what Levenberg-Marquardt asks of a Jacobian."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
from scipy.linalg.blas import dgemm  # type: ignore[attr-defined]

from knuckle.optim.box_step import box_step
from knuckle.optim.chain import Chain

Jacobian: TypeAlias = np.ndarray | Chain


class Normal(Protocol):
    """J^T J."""

    def diagonal(self) -> np.ndarray: ...

    def __matmul__(self, vector: np.ndarray) -> np.ndarray: ...

    def step(self, gradient: np.ndarray, more: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
        """The minimiser of g.p + p.(J^T J + diag(more)).p / 2 over low <= p <= high; None if there is none."""
        ...


class Dense:
    """J^T J as one matrix."""

    def __init__(self, jacobian: np.ndarray):
        self.matrix = dgemm(1.0, jacobian.T, jacobian.T, trans_b=True)  # J.T @ J would wake threads for small ones

    def diagonal(self) -> np.ndarray:
        return self.matrix.diagonal()

    def __matmul__(self, vector: np.ndarray) -> np.ndarray:
        return self.matrix @ vector

    def step(self, gradient: np.ndarray, more: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray | None:
        damped = self.matrix.copy()
        damped.flat[:: len(gradient) + 1] += more
        return box_step(damped, gradient, low, high)


def normal_equations(jacobian: Jacobian) -> Normal:
    return jacobian.normal() if isinstance(jacobian, Chain) else Dense(jacobian)


def weighed(jacobian: Jacobian, weight: np.ndarray) -> Jacobian:
    """Rows of the Jacobian times their weights."""
    return jacobian.weighed(weight) if isinstance(jacobian, Chain) else weight[:, None] * jacobian


def transposed(jacobian: Jacobian, rows: np.ndarray) -> np.ndarray:
    """J^T times a vector."""
    return jacobian.transposed(rows) if isinstance(jacobian, Chain) else rows @ jacobian
