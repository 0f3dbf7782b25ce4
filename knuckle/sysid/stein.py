"""Samples of a density by Stein variational gradient descent, within bounds and measured by a Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial.distance import pdist, squareform
from scipy.special import expit, logit

LogSlope = Callable[[int, np.ndarray], np.ndarray]  # of particle k at x: gradient of the log density
LONGEST = 1.0  # of a step of one particle, in units of the metric's deviations
EDGE = 1e-9  # share of a range that first particles keep from its ends


class Samples(NamedTuple):
    """Particles, and how they came to rest."""

    particles: np.ndarray
    iterations: int
    motion: float  # root mean square of the last update's direction, in deviations; near 0 they are at rest


def stein(
    slope: LogSlope,
    particles: np.ndarray,
    metric: np.ndarray,
    *,
    lower: np.ndarray | float = -np.inf,
    upper: np.ndarray | float = np.inf,
    iterations: int = 200,
    step: float = 0.5,
    rest: float = 3e-3,
) -> Samples:
    """Move particles until they are spread like the density (Liu and Wang 2016).

    Coordinates are whitened by a metric, the Hessian at the mode (the constant matrix kernel of Wang, Tang, Bajaj, Liu
    2019). First the kernel is a Gaussian of median width, which makes particles too narrow in many dimensions; then a
    linear one, 1 + x.y, is added, with which mean and covariance come out right where the density is normal (Liu and
    Wang 2018). Bounded coordinates move along their logarithm or logit, with the density of that, so that none leaves.
    """
    box = _Box(np.broadcast_to(lower, metric.shape[:1]), np.broadcast_to(upper, metric.shape[:1]))
    y = box.free(np.array(particles, float))
    L = np.linalg.cholesky(box.metric(metric, y))
    motion, count, linear = np.inf, 0, 0.0
    for count in range(1, iterations + 1):
        x, rate, bend = box.inside(y)
        slopes = np.stack([slope(k, at) for k, at in enumerate(x)]) * rate + bend
        direction = _direction((y - y.mean(axis=0)) @ L, solve_triangular(L, slopes.T, lower=True).T, linear)
        motion = float(np.sqrt(np.mean(direction**2)))
        moves = step * direction
        moves /= np.maximum(np.linalg.norm(moves, axis=1, keepdims=True) / LONGEST, 1.0)
        y = y + solve_triangular(L, moves.T, lower=True, trans=1).T
        if motion < rest and linear:
            break
        linear = 1.0 if motion < 10 * rest or count >= iterations // 2 else linear
    return Samples(box.inside(y)[0], count, motion)


def _direction(y: np.ndarray, slopes: np.ndarray, linear: float) -> np.ndarray:
    """The direction in which the particles approach the density fastest: pulled by its slope, pushed by each other."""
    n = len(y)
    squares = squareform(pdist(y, "sqeuclidean"))
    width = max(np.median(squares[np.triu_indices(n, 1)]) / np.log(n + 1), 1e-12) if n > 1 else 1.0
    near = np.exp(-squares / width)
    wide = max(1.0, float(np.mean(y**2)))  # of more than one mode: the linear kernel stays of the Gaussian's size
    pull = (near + linear * (1 + y @ y.T / wide)) @ slopes
    push = 2 / width * (near.sum(axis=1)[:, None] * y - near @ y) + linear * n / wide * y
    return (pull + push) / ((1 + linear) * n)


class _Box:
    """Coordinates between bounds, as free ones."""

    def __init__(self, lower: np.ndarray, upper: np.ndarray):
        self.low, self.high = np.isfinite(lower), np.isfinite(upper)
        self.both = self.low & self.high
        self.lower, self.upper = np.where(self.low, lower, 0.0), np.where(self.high, upper, 0.0)
        self.width = np.where(self.both, self.upper - self.lower, 1.0)

    def free(self, x: np.ndarray) -> np.ndarray:
        share = np.clip((x - self.lower) / self.width, EDGE, 1 - EDGE)
        above, below = np.maximum(x - self.lower, EDGE), np.maximum(self.upper - x, EDGE)
        one = np.where(self.low, np.log(above), -np.log(below))
        return np.where(self.both, logit(share), np.where(self.low | self.high, one, x))

    def inside(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Coordinates, their slope by the free ones, and the slope of the logarithm of that slope."""
        share, alone = expit(y), self.low ^ self.high
        size = np.exp(np.where(alone, np.where(self.low, y, -y), 0.0))
        one = np.where(self.low, self.lower + size, self.upper - size)
        x = np.where(self.both, self.lower + self.width * share, np.where(alone, one, y))
        rate = np.where(self.both, self.width * share * (1 - share), np.where(alone, size, 1.0))
        bend = np.where(self.both, 1 - 2 * share, np.where(alone, np.where(self.low, 1.0, -1.0), 0.0))
        return x, rate, bend

    def metric(self, metric: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The Hessian by free coordinates, at the middle of the particles."""
        _, rate, _ = self.inside(np.median(y, axis=0))
        share = expit(np.median(y, axis=0))
        return metric * np.outer(rate, rate) + np.diag(np.where(self.both, 2 * share * (1 - share), 0.0))
