"""The least-squares solution among physically consistent bodies: Gauss-Newton in log-Cholesky coordinates."""

from __future__ import annotations

import numpy as np

from knuckle.sysid.regression.linear import solve_bounded
from knuckle.sysid.regression.prior import parameters_of, pseudo_inertia

UPPER = tuple(zip(*np.triu_indices(4), strict=True))
LEAST = 1e-6  # of the metric's centre: where the search begins for a link that is not consistent
MOST_STEPS = 200
LOG_RANGE = 12.0  # of the logarithms around their start: a link at the boundary does not run to minus infinity


class LogCholesky:
    """J = C U U^T C^T, C the Cholesky factor of the metric's centre, U upper triangular with exponential diagonal.

    Coordinates near 0 are near the centre (Rucker and Wensing 2022, in the frame of the prior).
    """

    def __init__(self, centre: np.ndarray):
        self.factor = np.linalg.cholesky(centre)
        self.diagonal = np.array([i == j for i, j in UPPER])

    def inertial(self, phi: np.ndarray) -> np.ndarray:
        half = self.factor @ self._upper(phi)
        return parameters_of(half @ np.swapaxes(half, 1, 2))

    def jacobian(self, phi: np.ndarray) -> np.ndarray:
        """(link, 10, 10)."""
        half = self.factor @ self._upper(phi)
        columns = []
        for k, (i, j) in enumerate(UPPER):
            dU = np.zeros_like(half)
            dU[:, i, j] = np.exp(phi[:, k]) if i == j else 1.0
            change = self.factor @ dU @ np.swapaxes(half, 1, 2)
            columns.append(parameters_of(change + np.swapaxes(change, 1, 2)))
        return np.stack(columns, axis=2)

    def coordinates(self, pi: np.ndarray) -> np.ndarray:
        """Of the nearest consistent bodies: eigenvalues in units of the centre are at least `LEAST`."""
        found = []
        for J, factor in zip(pseudo_inertia(pi), self.factor, strict=True):
            half = np.linalg.inv(factor)
            values, axes = np.linalg.eigh(half @ J @ half.T)
            near = (axes * np.maximum(values, LEAST)) @ axes.T
            flip = np.eye(4)[::-1]
            U = flip @ np.linalg.cholesky(flip @ near @ flip) @ flip
            found.append([np.log(U[i, j]) if i == j else U[i, j] for i, j in UPPER])
        return np.array(found)

    def _upper(self, phi: np.ndarray) -> np.ndarray:
        U = np.zeros((len(phi), 4, 4))
        for k, (i, j) in enumerate(UPPER):
            U[:, i, j] = np.exp(phi[:, k]) if i == j else phi[:, k]
        return U


def consistent_solution(
    H: np.ndarray, g: np.ndarray, start: np.ndarray, centre: np.ndarray, lower: np.ndarray
) -> np.ndarray:
    """argmin theta^T H theta / 2 - g^T theta with consistent links (the first 10 entries of each) and lower bounds.

    Levenberg-Marquardt; the quadratic is known, so a step costs one Cholesky factorisation.
    """
    links = len(centre)
    size = 10 * links
    chart = LogCholesky(centre)

    def theta(x: np.ndarray) -> np.ndarray:
        return np.concatenate([chart.inertial(x[:size].reshape(links, 10)).reshape(-1), x[size:]])

    def value(x: np.ndarray) -> float:
        at = theta(x)
        return float(0.5 * at @ H @ at - g @ at)

    phi = chart.coordinates(start[:size].reshape(links, 10))
    least = np.full((links, 10), -np.inf)
    least[:, chart.diagonal] = np.minimum(phi[:, chart.diagonal], 0.0) - LOG_RANGE
    bound = np.concatenate([least.reshape(-1), lower[size:]])
    x = np.maximum(np.concatenate([phi.reshape(-1), start[size:]]), bound)
    best, damping = value(x), 1e-3
    for _ in range(MOST_STEPS):
        slope = np.eye(len(x))
        for link, block in enumerate(chart.jacobian(x[:size].reshape(links, 10))):
            at = slice(10 * link, 10 * link + 10)
            slope[at, at] = block
        gradient, curvature = slope.T @ (H @ theta(x) - g), slope.T @ H @ slope
        scale = np.maximum(np.diag(curvature), 1e-12 * np.diag(curvature).max())
        while damping < 1e8:
            step = solve_bounded(curvature + damping * np.diag(scale), -gradient, bound - x)
            step[:size] = np.clip(step[:size], -1.0, 1.0)
            new = value(x + step)
            if new < best:
                break
            damping *= 4
        else:
            break
        gained, best, x, damping = best - new, new, x + step, damping / 5
        if gained < 1e-9 * (1 + abs(best)):
            break
    return theta(x)
