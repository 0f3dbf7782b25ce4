"""How sure a fit is: covariance, intervals, and what the data cannot tell apart, in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import qr, solve_triangular
from scipy.stats import norm

from knuckle.optim.chain import Chain
from knuckle.sysid.families import Kind
from knuckle.sysid.parameters import MOMENTS, Parameter, Parameters

DETERMINED, PARTLY = 0.1, 0.5  # deviation after the fit over the one before
SILENT = 1e-3  # effect of a parameter on the data, over the noise, below which it has none
NOT_CONVERGED = "not converged"
NOTABLE = 0.1  # share of a direction from which on a parameter is named in it


class Estimate(NamedTuple):
    """A parameter after the fit, with its interval."""

    name: str
    unit: str
    before: float
    value: float
    deviation: float
    lower: float
    upper: float
    verdict: str  # determined, partly determined, not determined; not converged: there is no interval

    @property
    def texts(self) -> tuple[str, str, str]:
        """Before, value and interval, with digits that tell the ends of the interval apart."""
        shown = digits(self.lower, self.upper)
        interval = f"{self.lower:.{shown}g} .. {self.upper:.{shown}g}" if self.has_interval else "unknown"
        return f"{self.before:.4g}", f"{self.value:.{shown}g}", interval

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.deviation)

    def without_interval(self) -> Estimate:
        """The same of a fit that did not converge: its covariance says nothing."""
        return self._replace(deviation=math.nan, lower=math.nan, upper=math.nan, verdict=NOT_CONVERGED)


def digits(lower: float, upper: float) -> int:
    """How many tell the ends of an interval apart: two of its width, at least 4 and at most 9."""
    size, width = max(abs(lower), abs(upper)), upper - lower
    if not (math.isfinite(size) and 0 < width < size):
        return 4
    return min(max(4, 2 + math.ceil(math.log10(size / width))), 9)


class Certainty(NamedTuple):
    """What a fit knows of its free numbers."""

    covariance: np.ndarray  # of the free numbers
    singular_values: np.ndarray  # of the data alone, in units of what was known before; below 1 they tell nothing
    directions: np.ndarray  # rows: combinations of free numbers, one for each singular value
    labels: tuple[str, ...]  # of the free numbers
    entries: tuple[str, ...]  # names of the numbers that parameters have, as many as free numbers
    by_free: np.ndarray  # their change by the free numbers, both in units of what was known before
    effects: np.ndarray  # what each entry by itself does to the data, in the same units

    def untold(self, most: int | None = None) -> list[str]:
        """Combinations that the data do not tell, in words; at most so many of them."""
        silent = self.effects < SILENT
        found = [f"the data do not depend on {', '.join(_grouped(self.entries, silent))}"] if silent.any() else []
        unseen = self.directions[self.singular_values <= 1.0] @ self.by_free.T
        rows = _sparse(np.linalg.qr(unseen.T)[0].T * ~silent)
        found += [_in_words(row, self.entries) for row in rows[:most]]
        if most is not None and len(rows) > most:
            found.append(f"{len(rows) - most} more combinations are not seen in the data")
        return found

    @classmethod
    def unknown(cls, size: int, labels: tuple[str, ...], entries: tuple[str, ...]) -> Certainty:
        """Where nothing could be worked out."""
        nothing = np.full(size, np.nan)
        return cls(np.full((size, size), np.nan), nothing, np.eye(size), labels, entries, np.eye(size), nothing)

    @property
    def is_known(self) -> bool:
        return bool(np.isfinite(self.covariance).all())

    def summary(self) -> str:
        """How much the data tell, in words."""
        if not self.is_known:
            return "what the data determine is unknown"
        told, size = int(np.sum(self.singular_values > 1 / DETERMINED)), len(self.labels)
        partly = int(np.sum(self.singular_values > 1.0)) - told
        return f"the data determine {told} of {size} free numbers or combinations of them, and {partly} more in part"


class Interval(NamedTuple):
    """Values with their deviation and interval."""

    value: np.ndarray
    deviation: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def interval(function: Callable, z: np.ndarray, covariance: np.ndarray, level: float = 0.95) -> Interval:
    """A vector function of the free numbers, with intervals by its slope there (the delta method)."""
    value, slope = np.asarray(function(jnp.asarray(z))), np.asarray(jax.jacfwd(function)(jnp.asarray(z)))
    deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slope, covariance, slope), 0.0))
    width = float(norm.ppf(0.5 + level / 2)) * deviation
    return Interval(value, deviation, value - width, value + width)


def _whole(entry: str) -> str:
    """The parameter that an entry belongs to: upper.com of upper.com.x."""
    name, _, part = entry.rpartition(".")
    return name if part in (*"xyz", *MOMENTS) else entry.partition("[")[0]


def _grouped(entries: tuple[str, ...], chosen: np.ndarray) -> list[str]:
    """Names of the chosen entries; a parameter with three or more of them, all chosen, by its own name."""
    there = Counter(map(_whole, entries))
    named = [entry for entry, chosen_too in zip(entries, chosen, strict=True) if chosen_too]
    counts = Counter(map(_whole, named))
    short = {name for name, count in counts.items() if count == there[name] >= 3}
    return list(dict.fromkeys(_whole(name) if _whole(name) in short else name for name in named))


def _sparse(directions: np.ndarray) -> np.ndarray:
    """The space of these directions spanned by combinations of few numbers each (reduced rows, pivots by QR)."""
    if not len(directions):
        return directions
    _, sizes, rows = np.linalg.svd(directions, full_matrices=False)
    rows = rows[sizes > 0.5]
    _, _, pivots = qr(rows, pivoting=True, mode="economic")  # type: ignore[misc]
    pivots = pivots[: len(rows)]
    return np.linalg.solve(rows[:, pivots], rows) if len(rows) else rows


def _in_words(row: np.ndarray, entries: tuple[str, ...]) -> str:
    parts = sorted(((abs(w), w, label) for w, label in zip(row, entries, strict=True)), reverse=True)
    named = [(w, label) for share, w, label in parts if share >= NOTABLE * parts[0][0]][:6]
    if len(named) == 1:
        return f"{named[0][1]} is not determined by the data"
    together = ", ".join(f"{'+' if w > 0 else '-'}{label}" for w, label in named)
    return f"a change of {together} together is not seen in the data"


def certainty(
    jacobian: Chain,
    size: int,
    prior: np.ndarray,
    labels: tuple[str, ...],
    parameters: Parameters = Parameters(),
    z: np.ndarray | None = None,
    widening: np.ndarray | None = None,
) -> Certainty:
    """From the Jacobian of all residuals (each of deviation 1), whose first `size` columns are the free numbers.

    Its last rows of shared numbers are what was known before of each. Starts and weights of networks are eliminated.
    The first free numbers are those of the parameters, at z; words speak of their entries, and of the rest by label.
    widening: W, such that W W^T is added to the covariance because residuals are not noise.
    """
    shared = jacobian.sizes[-1]
    others = jacobian.alone.copy()
    others[len(others) - shared :][:size] = 0.0
    rows = np.concatenate([jacobian.root(), others])
    weights = shared - size
    data = np.asarray(np.linalg.qr(np.roll(rows, weights, axis=1), mode="r"))[weights:, weights:] * prior
    _, values, directions = np.linalg.svd(data)
    if widening is not None:
        values, directions = _told(values, directions, widening[:size] / prior[:, None])
    covariance = (directions.T / (values**2 + 1)) @ directions * np.outer(prior, prior)
    by_free, own = np.eye(size), parameters.size
    if z is not None:
        by_free[:own, :own] = parameters.entries_by_free(z[:own])
    by_entry = np.linalg.solve(by_free.T, (jacobian.by_shared.reshape(-1, shared)[:, :size] * prior).T)
    entries = (*parameters.entries, *labels[own:])
    return Certainty(covariance, values, directions, labels, entries, by_free, np.linalg.norm(by_entry, axis=1))


def _told(values: np.ndarray, directions: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Singular values and directions of data that leave a covariance wider by wide wide^T.

    (s^2 + 1)^-1 + Z Z^T in the old directions, turned over without being formed: its inverse is the square of K^-1 s1,
    s1 = sqrt(s^2 + 1), K K^T = 1 + (s1 Z)(s1 Z)^T.
    """
    known = np.sqrt(values**2 + 1)
    grown = known[:, None] * (directions @ wide)
    root = np.linalg.cholesky(np.eye(len(known)) + grown @ grown.T)
    _, found, turned = np.linalg.svd(solve_triangular(root, np.diag(known), lower=True))
    return np.sqrt(np.maximum(found**2 - 1, 0.0)), turned @ directions


def estimates(parameters: Parameters, z: np.ndarray, sure: Certainty, level: float = 0.95) -> list[Estimate]:
    """Values of all parameters with intervals of this level, entry by entry."""
    if not parameters:
        return []
    width, own = float(norm.ppf(0.5 + level / 2)), z[: parameters.size]
    value, slope = map(np.asarray, parameters.values_and_slopes(own))
    before, _ = map(np.asarray, parameters.values_and_slopes(np.zeros_like(own)))
    found, at = [], 0
    for p in parameters:
        rows = slice(at, at + p.start.size)
        found += _of_parameter(
            p, value[rows], before[rows], slope[rows, p.free], sure.covariance[p.free, p.free], width
        )
        at = rows.stop
    return found


def described(parameters: Parameters) -> list[Estimate]:
    """Values of the description, where nothing was fitted: no code is compiled for them."""
    return [
        Estimate(name, unit, float(value), float(value), math.nan, math.nan, math.nan, NOT_CONVERGED)
        for p in parameters
        for name, unit, value in zip(p.entries, p.units, np.ravel(p.start), strict=True)
    ]


def _of_parameter(
    p: Parameter, value: np.ndarray, before: np.ndarray, slope: np.ndarray, covariance: np.ndarray, width: float
) -> list[Estimate]:
    deviation = np.sqrt(np.maximum(np.diag(slope @ covariance @ slope.T), 0.0))
    prior = np.sqrt(np.diag(slope @ np.diag(p.deviation**2) @ slope.T))
    lower, upper = _bounds(p.family.kind, value, width * deviation)
    named = (p.entries, p.units, prior, before + 0.0, value + 0.0)  # -0 becomes 0
    columns = zip(*named, deviation, lower, upper, strict=True)
    return [
        Estimate(name, unit, float(a), float(b), float(off), float(low), float(high), verdict(off, last))
        for name, unit, last, a, b, off, low, high in columns
    ]


def _bounds(kind: Kind, value: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of intervals; of what is positive by its logarithm, so that they are positive too."""
    lower, upper = value - width, value + width
    if kind == "zero or more":
        return np.maximum(lower, 0.0), upper
    positive = {"positive": np.ones(len(value), bool), "moments": np.arange(len(value)) < 3}.get(kind)
    if positive is None:
        return lower, upper
    factor = np.exp(np.minimum(width / np.where(positive, value, 1.0), 700.0))
    return np.where(positive, value / factor, lower), np.where(positive, value * factor, upper)


def verdict(after: float, before: float) -> str:
    share = after / max(before, 1e-300)
    return "determined" if share < DETERMINED else "partly determined" if share < PARTLY else "not determined"
