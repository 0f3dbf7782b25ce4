"""Sums of squares of a chain as a quadratic of its numbers, and the probability of the data that it stands for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knuckle.optim.chain import Chain
from knuckle.optim.chain_normal import ChainNormal


class Quadratic(NamedTuple):
    """value + 2 gradient x + x normal x: twice what is left of the logarithm of a density."""

    value: float
    gradient: np.ndarray
    normal: ChainNormal

    @classmethod
    def of(cls, residuals: np.ndarray, jacobian: Chain) -> Quadratic:
        """|residuals + jacobian x|^2."""
        return cls(float(residuals @ residuals), jacobian.transposed(residuals), jacobian.normal())

    def log_probability(self) -> float:
        """Of data, whatever x is, up to a constant (Laplace's approximation; exact here)."""
        reduced = self.normal.reduced(self.gradient)
        if reduced is None:
            return -np.inf
        try:
            shared = -np.linalg.solve(reduced.matrix, reduced.slope)
        except np.linalg.LinAlgError:
            return -np.inf
        best = np.concatenate([shared, reduced.own + reduced.own_by_shared @ shared])
        return -0.5 * (self.value + float(self.gradient @ best) + self.normal.log_determinant())
