"""Robust losses: large residuals count less than their squares (Triggs et al., Bundle Adjustment, section 4.3)."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

Loss = Literal["squares", "huber", "soft_l1", "cauchy"]
TUNED = {"squares": 1.0, "huber": 1.345, "soft_l1": 1.287, "cauchy": 2.385}  # 95 % as sharp as squares on pure noise


class Weighed(NamedTuple):
    """Half the sum of losses, and the weight that turns each residual and its row into those of plain squares."""

    value: float
    weight: np.ndarray | None  # square root of rho'; None: all are one


def rho(loss: Loss, z: Any, xp: ModuleType = np) -> tuple[Any, Any]:
    """rho(z) and its slope, as in SciPy's least_squares; `xp` is NumPy or jax.numpy."""
    if loss == "squares":
        return z, xp.ones_like(z)
    if loss == "huber":
        far = z > 1
        root = xp.sqrt(xp.where(far, z, xp.ones_like(z)))
        return xp.where(far, 2 * root - 1, z), 1 / root
    if loss == "soft_l1":
        root = xp.sqrt(1 + z)
        return 2 * z / (root + 1), 1 / root
    return xp.log1p(z), 1 / (1 + z)


def weigh(loss: Loss, scale: float, residuals: np.ndarray) -> Weighed:
    """scale^2 rho((r / scale)^2) / 2, summed."""
    if loss == "squares":
        return Weighed(0.5 * float(residuals @ residuals), None)
    value, slope = rho(loss, (residuals / scale) ** 2)
    return Weighed(0.5 * scale**2 * float(value.sum()), np.sqrt(slope))


def as_squares(loss: Loss, scale: float, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Residuals whose squares are the losses, and their slopes, which turn the rows of the Jacobian into theirs."""
    z = (residuals / scale) ** 2
    value, slope = rho(loss, z)
    share = np.sqrt(np.divide(value, z, out=np.ones_like(z), where=z > 0))  # of the loss in the square, at most 1
    return residuals * share, slope / share
