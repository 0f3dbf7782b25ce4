"""Weighted least squares with a prior and lower bounds, with standard deviations of the joints iterated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from knuckle.sysid.regression.grams import Grams

ROUNDS = 20  # of the standard deviations of the joints
AGREED = 1e-3  # relative change of the standard deviations at which they have converged
RIDGE = 1e-13  # of the diagonal, against rounding
PRECISION = 1e-3  # of the effort's root mean square: no torque is known better


@dataclass(frozen=True)
class Penalty:
    """(theta - centre)^T P (theta - centre) / 2 beside the data, and lower bounds of the parameters."""

    matrix: np.ndarray
    centre: np.ndarray
    lower: np.ndarray
    passive: np.ndarray | None = None  # (joint,): joints that were hardly driven

    def extended(self, size: int, weight: float) -> Penalty:
        """With further parameters up to `size`, which have this prior around 0 and no bounds."""
        more = size - len(self.centre)
        matrix = np.pad(self.matrix, (0, more)) + np.diag(np.append(np.zeros(len(self.centre)), np.full(more, weight)))
        lower = np.append(self.lower, np.full(more, -np.inf))
        return Penalty(matrix, np.append(self.centre, np.zeros(more)), lower, self.passive)

    def solve(self, H: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Parameters, by the normal equations of the data: solved for the difference from the centre."""
        change = solve_bounded(H + self.matrix, g - H @ self.centre, self.lower - self.centre)
        return self.centre + change


@dataclass(frozen=True)
class Solution:
    """Parameters, the standard deviation of each joint's residual, and the normal equations with the prior."""

    theta: np.ndarray
    deviation: np.ndarray
    H: np.ndarray
    g: np.ndarray


def solve_bounded(H: np.ndarray, g: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """argmin theta^T H theta / 2 - g^T theta with theta >= lower, by an active set."""
    scale = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    K, k, low = H * np.outer(scale, scale), g * scale, lower / scale
    K = K + RIDGE * np.eye(len(K))
    held = np.zeros(len(K), bool)
    x = np.zeros(len(K))
    for _ in range(3 * len(K)):
        free = ~held
        x[held] = low[held]
        right = k[free] - K[np.ix_(free, held)] @ x[held]
        x[free] = cho_solve(cho_factor(K[np.ix_(free, free)], check_finite=True), right)
        below = free & (x < low - 1e-12)
        if below.any():
            held |= below
            continue
        pushed = held & (K @ x - k < -1e-9)  # would rather be above its bound
        if not pushed.any():
            break
        held[np.flatnonzero(pushed)[np.argmin((K @ x - k)[pushed])]] = False
    return x * scale


def force_sizes(grams: Grams, theta: np.ndarray) -> np.ndarray:
    """Root mean square of the contributions of all parameters to the force of each joint, as if none cancelled."""
    counts = np.maximum(grams.count.sum(axis=1), 1e-300)
    squares = [
        np.square(theta[columns]) @ np.diagonal(gram.sum(axis=0))[:-1]
        for columns, gram in zip(grams.columns, grams.gram, strict=True)
    ]
    return np.sqrt(np.maximum(squares, 0.0) / counts)


def shrinkage(grams: Grams, penalty: Penalty, theta: np.ndarray) -> np.ndarray:
    """By what residuals of joints are divided to be comparable: of passive ones the size of forces over the described.

    A joint that is not driven has an effort near 0, which links without mass explain best. Its residuals count as those
    of links that are as heavy as the description's.
    """
    if penalty.passive is None or not penalty.passive.any():
        return np.ones(len(grams.columns))
    size = force_sizes(grams, theta) / np.maximum(force_sizes(grams, penalty.centre), 1e-300)
    return np.where(penalty.passive, np.clip(size, PRECISION, 1.0), 1.0)


def solve(
    grams: Grams, penalty: Penalty, inefficiency: np.ndarray | None = None, deviation: np.ndarray | None = None
) -> Solution:
    """Parameters with joints weighted by 1 / sigma_j, which is iterated.

    The weight of a joint that is not driven would grow without bound as all masses shrink: see `shrinkage`.

    Args:
        inefficiency: rows per independent row of each joint, by which the information of the data is divided.
        deviation: where the iteration of sigma_j begins.
    """
    counts = np.maximum(grams.count.sum(axis=1), 1e-300)
    start = np.sqrt(np.maximum([g[:, -1, -1].sum() for g in grams.gram], 1e-300) / counts)
    if penalty.passive is not None:
        start = np.where(penalty.passive, force_sizes(grams, penalty.centre), start)
    floor = PRECISION * np.maximum(start, 1e-12)
    deviation = np.maximum(start if deviation is None else deviation, floor)
    spread = np.ones(len(counts)) if inefficiency is None else np.sqrt(inefficiency)
    for _ in range(ROUNDS):
        H, g = grams.normal(deviation * spread)
        theta = penalty.solve(H, g)
        new = np.maximum(np.sqrt(grams.mean_squares(theta)) / shrinkage(grams, penalty, theta), floor)
        done = np.all(np.abs(new - deviation) <= AGREED * deviation)
        deviation = new
        if done:
            break
    return Solution(theta, deviation, H + penalty.matrix, g + penalty.matrix @ penalty.centre)
