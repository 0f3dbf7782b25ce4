"""Every number of a fit as JSON data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from knuckle.sysid.findings import Finding
from knuckle.sysid.fit import Fit
from knuckle.sysid.learned import Learned
from knuckle.sysid.left import residual_statistics
from knuckle.sysid.objective import Objective


def residuals_of(fit: Fit) -> dict[str, np.ndarray]:
    """What the fit leaves in training data, over the noise: (piece, sample, entry), NaN where not measured."""
    objective = Objective(fit.simulator, fit.shots, fixed_starts=len(fit.result.x) == fit.simulator.size)
    with jax.enable_x64(True):
        return objective.by_channel(fit.result.x)


def numbers(
    fit: Fit,
    *,
    residuals: Mapping[str, np.ndarray],
    networks: Sequence[Learned] = (),
    findings: Sequence[Finding] = (),
    search: Sequence[tuple[float, float]] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A dictionary of plain JSON data; what is not finite is null. `search`: seconds and value of each evaluation."""
    held_out, sure, result = fit.held_out, fit.certainty, fit.result
    data = {
        **(about or {}),
        "status": str(result.status),
        "iterations": result.iterations,
        "seconds": result.seconds,
        "half_sum_of_squares": result.value,
        "parameters": [e._asdict() for e in fit.estimates],
        "noise": fit.noise,
        "held_out": None
        if held_out is None
        else {
            "before": held_out.before,
            "after": held_out.after,
            "horizon": held_out.horizon,
            "pieces": held_out.pieces,
        },
        "missing": fit.missing(),
        "residuals": {key: residual_statistics(values) for key, values in residuals.items()},
        "identifiability": {
            "free_numbers": sure.labels,
            "singular_values": sure.singular_values,
            "directions": sure.directions,
            "covariance": sure.covariance,
            "entries": sure.entries,
            "entries_by_free_numbers": sure.by_free,
            "effects": sure.effects,
            "untold": sure.untold(),
        },
        "networks": [network._asdict() | {"curves": [c._asdict() for c in network.curves]} for network in networks],
        "findings": [asdict(finding) for finding in findings],
        "search": {"seconds": [s for s, _ in search], "half_sum_of_squares": [v for _, v in search]},
    }
    return plain_data(data)


def plain_data(value: Any) -> Any:
    """Lists, dictionaries, text and finite numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain_data(value.tolist())
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    if isinstance(value, np.generic):
        return plain_data(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
