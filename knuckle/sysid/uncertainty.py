"""How sure a fit is: covariance, intervals, and what the data cannot tell apart, in words."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from knuckle.sysid.parameters import Parameter, Parameters

DETERMINED, PARTLY = 0.1, 0.5  # deviation after the fit over the one before
SILENT = 1e-3  # effect of a parameter on the data, over the noise, below which it has none
NOTABLE = 0.3  # share of a direction from which on a parameter is named in it


class Estimate(NamedTuple):
    """A parameter after the fit, with its interval."""

    name: str
    unit: str
    before: float
    value: float
    deviation: float
    lower: float
    upper: float
    verdict: str  # determined, partly determined, not determined


class Certainty(NamedTuple):
    """What a fit knows of its free numbers."""

    covariance: np.ndarray  # of the free numbers
    singular_values: (
        np.ndarray
    )  # of the data alone, in units of what was known before; below about 1 nothing was learnt
    directions: np.ndarray  # rows: combinations of free numbers, one for each singular value
    effects: np.ndarray  # what each free number by itself does to the data, in the same units
    labels: tuple[str, ...]

    def untold(self) -> list[str]:
        """Combinations that the data do not tell, in words."""
        silent = [label for label, seen in zip(self.labels, self.effects, strict=True) if seen < SILENT]
        found = [f"the data do not depend on {', '.join(silent)}"] if silent else []
        for size, row in zip(self.singular_values, self.directions, strict=True):
            told = np.array([label not in silent for label in self.labels])
            if size > 1.0 or np.sum(row[told] ** 2) < 0.5:
                continue
            row = row * told
            parts = sorted(((abs(w), w, label) for w, label in zip(row, self.labels, strict=True)), reverse=True)
            named = [(w, label) for share, w, label in parts if share >= NOTABLE * parts[0][0]][:6]
            if len(named) == 1:
                found.append(f"{named[0][1]} is not determined by the data")
            else:
                together = ", ".join(f"{'+' if w > 0 else '-'}{label}" for w, label in named)
                found.append(f"a change of {together} together is not seen in the data")
        return found


def certainty(jacobian: np.ndarray, size: int, prior: np.ndarray, labels: tuple[str, ...]) -> Certainty:
    """From the Jacobian of all residuals (each of deviation 1), whose first `size` columns are the free numbers."""
    data, starts = jacobian[:, :size].copy(), jacobian[:, size:]
    at = np.arange(len(jacobian) - jacobian.shape[1], len(jacobian) - jacobian.shape[1] + size)
    data[at] = 0.0  # what was known before
    if starts.shape[1]:
        basis, _ = np.linalg.qr(starts)
        data = data - basis @ (basis.T @ data)
    _, values, directions = np.linalg.svd(data * prior, full_matrices=False)
    information = (data * prior).T @ (data * prior) + np.eye(size)
    covariance = np.linalg.inv(information) * np.outer(prior, prior)
    effects = np.linalg.norm(jacobian[: len(jacobian) - jacobian.shape[1], :size] * prior, axis=0)
    return Certainty(covariance, values, directions, effects, labels)


def estimates(parameters: Parameters, z: np.ndarray, sure: Certainty, level: float = 0.95) -> list[Estimate]:
    """Values of all parameters with intervals of this level, entry by entry."""
    return [e for p in parameters for e in _of_parameter(p, z, sure, float(norm.ppf(0.5 + level / 2)))]


def _of_parameter(p: Parameter, z: np.ndarray, sure: Certainty, width: float) -> list[Estimate]:
    covariance = sure.covariance[p.free, p.free]
    own = z[p.free]
    shifted = lambda own: p.value(jnp.zeros(len(z)).at[p.free].set(own)).reshape(-1)  # noqa: E731
    value, slope = np.asarray(shifted(own)), np.asarray(jax.jacfwd(shifted)(jnp.asarray(own)))
    deviation = np.sqrt(np.maximum(np.diag(slope @ covariance @ slope.T), 0.0))
    before = np.asarray(shifted(np.zeros_like(own)))
    prior = np.sqrt(np.diag(slope @ np.diag(p.deviation**2) @ slope.T))
    if p.family.kind == "positive":
        factor = np.exp(width * np.sqrt(np.diag(covariance)))
        lower, upper = value / factor, value * factor
    else:
        lower, upper = value - width * deviation, value + width * deviation
        lower = np.maximum(lower, 0.0) if p.family.kind == "zero or more" else lower
    names = [p.name] if len(value) == 1 else [f"{p.name}[{k}]" for k in range(len(value))]
    return [
        Estimate(name, p.family.unit, float(a), float(b), float(off), float(low), float(high), verdict(off, last))
        for name, last, a, b, off, low, high in zip(names, prior, before, value, deviation, lower, upper, strict=True)
    ]


def verdict(after: float, before: float) -> str:
    share = after / max(before, 1e-300)
    return "determined" if share < DETERMINED else "partly determined" if share < PARTLY else "not determined"
