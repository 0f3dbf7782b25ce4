"""Standard deviations of measurements and efforts, and the correlation time of efforts, by maximum likelihood.

The likelihood is that of the innovations of the filter. Its gradient follows from the smoother (Fisher's identity): the
expectation, over all that states may have been, of the gradient that known states would give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from knuckle.sysid.smoothing.linear import Estimates, Linear, smooth_linear

SHARPEST = 1 / 20  # of the period: a shorter correlation time is white noise
WIDEST = 6.0  # of the logarithm of a standard deviation about its first value, to both sides
EVALUATIONS = 30
SETTLED = 1e-3  # of the logarithm of the likelihood, per measurement and change


@dataclass(frozen=True)
class Noise:
    """Of measurements (one number for each entry), and of efforts [N m or N] with their correlation time [s]."""

    measured: np.ndarray  # (entry,)
    effort: np.ndarray  # (nv,)
    correlation: float  # 0: white

    def kept(self, span: np.ndarray) -> np.ndarray:
        """Share of the error of an effort that is still there after some time [s]."""
        return np.exp(-span / self.correlation) if self.correlation > 0 else np.zeros_like(span)


class Free(NamedTuple):
    """Which numbers of the noise are estimated."""

    measured: np.ndarray  # (entry,) bool
    effort: np.ndarray  # (nv,) bool
    correlation: bool

    @property
    def any(self) -> bool:
        return bool(self.measured.any() or self.effort.any() or self.correlation)


@dataclass(frozen=True)
class Block:
    """A stretch of time, linearised, whose noise is left open."""

    spans: np.ndarray  # (step,) [s]
    A: np.ndarray  # (step, n, n), without the memory of the effort's error
    c: np.ndarray  # (step, n - nv)
    jitter: np.ndarray  # (n - nv,), standard deviation that each step adds
    H: np.ndarray
    r: np.ndarray
    valid: np.ndarray  # (time, entry)
    error: np.ndarray  # (time, nv): nominal errors of the effort
    mean: np.ndarray  # (n - nv,), of the state at the first time
    deviation: np.ndarray  # (n - nv,)

    def linear(self, noise: Noise) -> Linear:
        steps, n, nv = len(self.spans), self.H.shape[2], self.error.shape[1]
        keep = noise.kept(self.spans)
        A, c, own = self.A.copy(), np.zeros((steps, n)), slice(n - nv, n)
        A[:, own, own] = keep[:, None, None] * np.eye(nv)
        c[:, : n - nv] = self.c
        c[:, own] = keep[:, None] * self.error[:-1] - self.error[1:]
        B = np.tile(np.diag(np.concatenate([self.jitter, noise.effort])), (steps, 1, 1))
        B[:, own, own] *= np.sqrt(1 - keep**2)[:, None, None]
        B = B[:, :, np.flatnonzero(np.concatenate([self.jitter > 0, np.ones(nv, bool)]))]
        deviation = np.where(self.valid, noise.measured, np.inf)
        mean = np.concatenate([self.mean, -self.error[0]])
        factor = np.diag(np.concatenate([self.deviation, noise.effort]))
        return Linear(A, c, B, self.H, self.r, deviation, mean, factor)


def estimate_noise(blocks: list[Block], noise: Noise, free: Free, period: float, longest: float) -> Noise:
    """The noise under which the innovations of all blocks are most probable."""
    if not free.any:
        return noise
    start = _packed(noise, free)
    count = max(sum(int(b.valid.sum()) for b in blocks), 1)
    bounds = [(x - WIDEST, x + WIDEST) for x in start]
    if free.correlation:
        bounds[-1] = (np.log(SHARPEST * period), np.log(max(longest, period)))

    def less(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = _unpacked(x, noise, free)
        value, slope = 0.0, np.zeros(len(x))
        for block in blocks:
            found = smooth_linear(block.linear(at))
            value += found.log_likelihood
            slope += _slope(block, at, found, free)
        if not np.isfinite(value):
            return 1e30, np.zeros(len(x))
        return -value / count, -slope / count

    options = {"maxfun": EVALUATIONS, "ftol": SETTLED / count, "gtol": SETTLED / 10}
    found = minimize(less, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return _unpacked(found.x, noise, free)


def _packed(noise: Noise, free: Free) -> np.ndarray:
    parts = [np.log(noise.measured[free.measured]), np.log(noise.effort[free.effort])]
    return np.concatenate([*parts, [np.log(noise.correlation)] if free.correlation else []])


def _unpacked(x: np.ndarray, noise: Noise, free: Free) -> Noise:
    measured, effort, first = noise.measured.copy(), noise.effort.copy(), int(free.measured.sum())
    measured[free.measured] = np.exp(x[:first])
    effort[free.effort] = np.exp(x[first : first + int(free.effort.sum())])
    correlation = float(np.exp(x[-1])) if free.correlation else noise.correlation
    return replace(noise, measured=measured, effort=effort, correlation=correlation)


def _slope(block: Block, noise: Noise, found: Estimates, free: Free) -> np.ndarray:
    """Of the logarithm of the likelihood, by the logarithms of what is free."""
    off = block.r + np.einsum("kmn,kn->km", block.H, found.mean)
    square = off**2 + np.einsum("kmi,kij,kmj->km", block.H, found.covariance, block.H)
    measured = np.sum(np.where(block.valid, square / noise.measured**2 - 1, 0.0), axis=0)
    effort, correlation = _effort_slopes(block, noise, found)
    parts = [measured[free.measured], effort[free.effort]]
    return np.concatenate([*parts, [correlation] if free.correlation else []])


def _effort_slopes(block: Block, noise: Noise, found: Estimates) -> tuple[np.ndarray, float]:
    """By the standard deviations of the efforts (nv) and by their correlation time."""
    nv = block.error.shape[1]
    own = slice(found.mean.shape[1] - nv, None)
    mean = block.error + found.mean[:, own]
    second = mean**2 + np.einsum("kii->ki", found.covariance[:, own, own])
    cross = mean[:-1] * mean[1:] + np.einsum("kin,kni->ki", found.gain[:, own], found.covariance[1:, :, own])
    keep = noise.kept(block.spans)[:, None]
    left = (1 - keep**2) * noise.effort**2
    change = second[1:] - 2 * keep * cross + keep**2 * second[:-1]
    by_effort = second[0] / noise.effort**2 - 1 + np.sum(change / left - 1, axis=0)
    if noise.correlation <= 0:
        return by_effort, 0.0
    lagged = cross - keep * second[:-1]
    by_keep = keep / (1 - keep**2) + lagged / left - keep * change / (left * (1 - keep**2))
    return by_effort, float(np.sum(by_keep * keep * block.spans[:, None] / noise.correlation))
