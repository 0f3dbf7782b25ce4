"""The prior of inertial parameters: a metric on pseudo-inertias that does not depend on the choice of frames.

The pseudo-inertia of a link is J = [[S, h], [h^T, m]] with S = tr(I)/2 - I, h the first moment and m the mass. A body
is physically consistent if J is positive definite (Wensing, Kim, Slotine 2018). The prior is tr(J0^-1 dJ J0^-1 dJ),
the geodesic metric at the description J0 (Lee, Wensing, Park 2020).
"""

from __future__ import annotations

import numpy as np

from knuckle.model.model import Model

DIAGONAL, ABOVE = ((0, 0), (1, 1), (2, 2)), ((0, 1), (0, 2), (1, 2))
LEAST_MASS = 1e-2  # of the mean mass of links: a lighter link has the metric of this mass
LEAST_RADIUS = 0.05  # of gyration, over the robot's size: a more slender link has the metric of this radius


def _basis() -> np.ndarray:
    """J as a linear map of (m, h, Ixx, Iyy, Izz, Ixy, Ixz, Iyz), (10, 4, 4)."""
    E = np.zeros((10, 4, 4))
    E[0, 3, 3] = 1.0
    for k in range(3):
        E[1 + k, k, 3] = E[1 + k, 3, k] = 1.0
    for k, (i, _) in enumerate(DIAGONAL):
        E[4 + k, :3, :3] = 0.5 * np.eye(3)
        E[4 + k, i, i] -= 1.0
    for k, (i, j) in enumerate(ABOVE):
        E[7 + k, i, j] = E[7 + k, j, i] = -1.0
    return E


BASIS = _basis()
_FLAT = BASIS.reshape(10, 16).T


def pseudo_inertia(pi: np.ndarray) -> np.ndarray:
    """(link, 10) to (link, 4, 4)."""
    return np.einsum("lk,kij->lij", pi, BASIS)


def parameters_of(J: np.ndarray) -> np.ndarray:
    """(link, 4, 4) to (link, 10)."""
    return np.linalg.lstsq(_FLAT, J.reshape(len(J), 16).T, rcond=None)[0].T


def robot_size(model: Model) -> float:
    """A length of the robot [m]: the median distance of joints from their parents, or of centres of mass."""
    away = np.concatenate(
        [np.linalg.norm(np.asarray(model.position), axis=1), np.linalg.norm(np.asarray(model.inertia.com), axis=1)]
    )
    away = away[away > 1e-6]
    return float(np.median(away)) if len(away) else 0.1


def metric_centre(model: Model, pi: np.ndarray) -> np.ndarray:
    """Positive definite pseudo-inertias near the description's, (link, 4, 4).

    A link has at least `LEAST_MASS` of the mean mass, and in each direction a radius of gyration of at least
    `LEAST_RADIUS` of the robot's size.
    """
    mass = pi[:, 0]
    usual = float(mass[mass > 0].mean()) if np.any(mass > 0) else 1.0
    radius = LEAST_RADIUS * robot_size(model)
    J = pseudo_inertia(pi)
    found = []
    for own, m in zip(J, mass, strict=True):
        com = own[:3, 3] / m if m > 0 else np.zeros(3)
        spread = own[:3, :3] - max(m, 0.0) * np.outer(com, com)
        heavier = max(m, LEAST_MASS * usual)
        values, axes = np.linalg.eigh((spread + spread.T) / 2)
        spread = (axes * np.maximum(values, heavier * radius**2)) @ axes.T
        found.append(
            np.block([[spread + heavier * np.outer(com, com), heavier * com[:, None]], [heavier * com, heavier]])
        )
    return np.array(found)


def metric(centre: np.ndarray) -> np.ndarray:
    """Q with tr(J0^-1 dJ J0^-1 dJ) = d_pi^T Q d_pi for each link, (link, 10, 10)."""
    found = []
    for J in centre:
        scaled = np.array([np.linalg.solve(J, E) for E in BASIS])
        found.append(np.einsum("kij,lji->kl", scaled, scaled))
    return np.array(found)


def smallest_eigenvalues(pi: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Of J in units of the metric's centre, one per link: positive for a physically consistent body."""
    found = []
    for J, J0 in zip(pseudo_inertia(pi), centre, strict=True):
        half = np.linalg.inv(np.linalg.cholesky(J0))
        found.append(np.linalg.eigvalsh(half @ J @ half.T)[0])
    return np.array(found)
