"""Robust losses: large residuals count less than their squares (Triggs et al., Bundle Adjustment, section 4.3)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

Loss = Literal["squares", "huber", "soft_l1", "cauchy"]


class Weighed(NamedTuple):
    """Half the sum of losses, and the weight that turns each residual and its row into those of plain squares."""

    value: float
    weight: np.ndarray | None  # square root of rho'; None: all are one


def weigh(loss: Loss, scale: float, residuals: np.ndarray) -> Weighed:
    """scale^2 rho((r / scale)^2) / 2, summed; rho as in SciPy's least_squares, with the same names."""
    if loss == "squares":
        return Weighed(0.5 * float(residuals @ residuals), None)
    z = (residuals / scale) ** 2
    if loss == "huber":
        far = z > 1
        root = np.sqrt(np.where(far, z, 1.0))
        rho, slope = np.where(far, 2 * root - 1, z), 1 / root
    elif loss == "soft_l1":
        root = np.sqrt(1 + z)
        rho, slope = 2 * (root - 1), 1 / root
    else:
        rho, slope = np.log1p(z), 1 / (1 + z)
    return Weighed(0.5 * scale**2 * float(rho.sum()), np.sqrt(slope))
