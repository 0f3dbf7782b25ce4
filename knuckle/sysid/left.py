"""What a fit leaves of the data: noise, or a sign that the model lacks something."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

CORRELATED = 0.15  # of neighbouring residuals: less hardly widens an interval
CHANCE = 5.0  # deviations of the correlation of pure noise


def residual_statistics(residuals: np.ndarray) -> dict[str, float]:
    """Deviation in units of the noise, share within 1.96 of it, and correlation of neighbours (0: all is noise)."""
    known = residuals[np.isfinite(residuals)]
    first, second = residuals[:, :-1].reshape(-1), residuals[:, 1:].reshape(-1)
    both = np.isfinite(first) & np.isfinite(second)
    scale = float(np.mean(known**2)) if len(known) else math.nan
    return {
        "deviation": math.sqrt(scale) if len(known) else math.nan,
        "within_95": float(np.mean(np.abs(known) <= 1.96)) if len(known) else math.nan,
        "correlation": float(np.mean(first[both] * second[both]) / scale) if both.any() and scale > 0 else math.nan,
    }


def not_noise(residuals: np.ndarray) -> float | None:
    """The correlation of neighbours, where it says that more is left than noise."""
    correlation, count = residual_statistics(residuals)["correlation"], np.count_nonzero(np.isfinite(residuals))
    told = correlation > CORRELATED and correlation * math.sqrt(max(count, 1)) > CHANCE
    return correlation if told else None


def what_is_missing(residuals: Mapping[str, np.ndarray]) -> list[str]:
    """In words, channels whose residuals are more than noise."""
    found = {key: not_noise(part) for key, part in residuals.items()}
    return [
        f"residuals of {key} are autocorrelated: neighbouring samples correlate by {correlation:.2f}"
        for key, correlation in found.items()
        if correlation is not None
    ]
