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


def what_is_missing(residuals: Mapping[str, np.ndarray], held: bool) -> list[str]:
    """In words, channels of which more is left than noise; `held`: there are controls, held between samples."""
    found = []
    for key, part in residuals.items():
        correlation, count = residual_statistics(part)["correlation"], np.count_nonzero(np.isfinite(part))
        if correlation > CORRELATED and correlation * math.sqrt(max(count, 1)) > CHANCE:
            drive = 'controls that change between samples (drive="linear"), ' if held else ""
            found.append(
                f"what is left of {key} is not noise (neighbouring samples correlate by {correlation:.2f}): the model "
                f"lacks something, and intervals may be too narrow. Delays, {drive}more free parameters or a network "
                "may explain it"
            )
    return found
