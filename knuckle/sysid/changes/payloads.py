"""Payloads as rigid bodies that can exist: least squares over positive definite pseudo-inertias, by a barrier."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from knuckle.model.model import Model
from knuckle.sysid.regression.prior import BASIS, pseudo_inertia, robot_size

SHARE = 0.1  # of the robot's mass: the body that gives the metric of payloads
CONSISTENT = -1e-9  # smallest eigenvalue of a payload in units of that body
LAST_BARRIER = 1e-3  # weight of the barrier, in units of half a squared residual
NEWTON_STEPS = 60
RIDGE = 1e-12  # against rounding, of a matrix with unit diagonal
LEAST = 1e-3  # eigenvalue at which the search begins, in units of the body


def payload_body(model: Model, described: np.ndarray) -> np.ndarray:
    """Pseudo-inertia of a body of a tenth of the robot's mass with the robot's size as radius of gyration, (4, 4)."""
    mass = SHARE * max(float(described[:, 0].sum()), 1e-6)
    return mass * np.diag([*(robot_size(model) ** 2,) * 3, 1.0])


def is_consistent(pi: np.ndarray, body: np.ndarray) -> bool:
    """Whether the pseudo-inertia of ten inertial parameters has no negative eigenvalue."""
    half = np.diag(1 / np.sqrt(np.diag(body)))
    return bool(np.linalg.eigvalsh(half @ pseudo_inertia(pi[None])[0] @ half)[0] >= CONSISTENT)


def consistent_payloads(
    H: np.ndarray, g: np.ndarray, start: np.ndarray, body: np.ndarray, near: bool = False
) -> np.ndarray:
    """argmin pi^T H pi / 2 - g^T pi over bodies with positive definite pseudo-inertia, ten entries each.

    Newton's method with the barrier -log det J, whose weight falls to 1e-3: the result is within 0.004 per body of the
    minimum, in units of half a squared residual (Boyd and Vandenberghe, Convex Optimization, 11.3).

    Args:
        near: `start` is the solution of almost the same problem, so that large weights are left out.
    """
    half = np.diag(1 / np.sqrt(np.diag(body)))
    basis = half @ BASIS @ half  # pseudo-inertias in units of the body
    H = _positive(H)
    pi = np.concatenate([_inside(part, basis) for part in start.reshape(-1, 10)])
    for weight in _weights(H, g)[-4 if near else None :]:
        for _ in range(NEWTON_STEPS):
            slope, curvature = H @ pi - g, H.copy()
            for at in range(0, len(pi), 10):
                own = slice(at, at + 10)
                scaled = np.linalg.solve(_body(pi[own], basis), basis)
                slope[own] -= weight * np.trace(scaled, axis1=1, axis2=2)
                curvature[own, own] += weight * np.einsum("kij,lji->kl", scaled, scaled)
            units = 1 / np.sqrt(np.diag(curvature))
            factor = cho_factor(curvature * np.outer(units, units) + RIDGE * np.eye(len(units)))
            step = -units * cho_solve(factor, units * slope)
            decrease = float(-slope @ step)
            if decrease < 1e-6 * max(weight, 1e-2):
                break
            pi = _along(pi, step, H, g, weight, basis)
    return pi


def _weights(H: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Weights of the barrier from a tenth of what the bodies could explain at most, each a tenth of the one before."""
    units = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    most = 0.5 * float(g @ (units * np.linalg.lstsq(H * np.outer(units, units), units * g, rcond=1e-10)[0]))
    decades = max(np.ceil(np.log10(max(most, 1.0) / LAST_BARRIER)), 1)
    return LAST_BARRIER * 10.0 ** np.arange(decades - 1, -1, -1)


def _positive(H: np.ndarray) -> np.ndarray:
    """Without the negative eigenvalues that rounding leaves."""
    units = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    values, axes = np.linalg.eigh(H * np.outer(units, units))
    return (axes * np.maximum(values, 0.0)) @ axes.T / np.outer(units, units)


def _body(pi: np.ndarray, basis: np.ndarray) -> np.ndarray:
    return np.einsum("k,kij->ij", pi, basis)


def _inside(pi: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """The nearest body all of whose eigenvalues are at least `LEAST`."""
    values, axes = np.linalg.eigh(_body(pi, basis))
    J = (axes * np.maximum(values, LEAST)) @ axes.T
    return np.linalg.lstsq(basis.reshape(10, 16).T, J.reshape(16), rcond=None)[0]


def _along(pi: np.ndarray, step: np.ndarray, H: np.ndarray, g: np.ndarray, weight: float, basis: np.ndarray):
    """A step that stays inside and lowers the value, halved until it does."""

    def value(x: np.ndarray) -> float:
        total = float(0.5 * x @ H @ x - g @ x)
        for part in x.reshape(-1, 10):
            values = np.linalg.eigvalsh(_body(part, basis))
            if values[0] <= 0:
                return np.inf
            total -= weight * float(np.log(values).sum())
        return total

    now, length = value(pi), 1.0
    while length > 1e-12:
        if value(pi + length * step) < now:
            return pi + length * step
        length /= 2
    return pi
