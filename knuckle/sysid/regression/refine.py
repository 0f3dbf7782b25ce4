"""Roll-outs move the friction of a regression within its own covariance; inertia stays that of the torques."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.consistent import LogCholesky
from knuckle.sysid.regression.prior import metric_centre, smallest_eigenvalues
from knuckle.sysid.regression.result import Regression
from knuckle.sysid.regression.rollouts import Rollouts

PER_SEGMENT = 1.0  # independent errors of a joint in a segment: those of one segment go together
STEPS = 3  # of Gauss and Newton
NEAR = 1e-3  # relative gain at which they end
DIFFERENCE = 0.05  # of central differences, in standard deviations of the directions
RESPONSE_STEPS = 40
NOTHING = 1e-3  # of the largest, below which a direction of the covariance is left out
SMALLEST = 0.05  # share of a step that is still tried
Stop = Callable[[], None]


def refine(
    found: Regression, rollouts: Rollouts, segments: np.ndarray | slice = slice(None), stop: Stop = lambda: None
) -> Regression:
    """The regression with friction and offsets where positions of roll-outs are nearest.

    Minimises |r|^2 + |y|^2 with theta + D y, D D^T the covariance of friction and offsets. Noise of the effort enters
    the motion through the inverse mass matrix, so roll-outs favour heavy links: inertia and rotor inertia stay as
    torques say. A damped robot moves less too. r is therefore G0 G^-1 e: the position error e as the constant force
    that makes it on the robot that is tried, and back as motion of the regressed one (see `responses`).

    Args:
        segments: which of the roll-outs count. stop: called now and then; what it raises ends the search.
    """
    problem = _Problem(found, rollouts, segments)
    y = np.zeros(problem.directions.shape[1])
    residuals = problem(y)
    if residuals is None:
        return found
    value = 0.5 * residuals @ residuals
    for _ in range(STEPS):
        jacobian = problem.jacobian(y, stop)
        step = np.linalg.solve(jacobian.T @ jacobian + np.eye(len(y)), -(jacobian.T @ residuals + y))
        share = 1.0
        while share >= SMALLEST:
            tried, new = y + share * step, problem(y + share * step)
            trial = np.inf if new is None else 0.5 * (new @ new + tried @ tried)
            if new is not None and trial < value:
                break
            share /= 2
        else:
            break
        y, residuals, gained, value = tried, new, value - trial, trial
        if gained < NEAR * value:
            break
    return replace(found.moved(problem.theta(y)), refined=True) if np.any(y) else found


class _Problem:
    """Residuals of the directions' coordinates."""

    def __init__(self, found: Regression, rollouts: Rollouts, segments: np.ndarray | slice):
        self.found, self.rollouts, self.directions = found, rollouts, friction_directions(found)
        z = rollouts.of(found.theta)
        off = rollouts.differences(z)["q"]
        wanted = np.arange(len(off))[segments]
        self.kept = np.array([k for k in wanted if not np.isinf(off[k]).any()], int)
        off = np.nan_to_num(off[self.kept])
        self.reference = self._responses(found.theta, z)
        size = np.sqrt(np.mean(np.square(off), axis=(0, 1))) if len(off) else 1.0
        self.size = off.size
        self.scale = np.maximum(size, 1e-12) * np.sqrt(off.shape[1] / PER_SEGMENT)
        described = np.asarray(inertial(found.described), float).reshape(-1, 10)
        self.centre = metric_centre(found.described, described)

    def theta(self, y: np.ndarray) -> np.ndarray:
        """Parameters; a link that is no body becomes the nearest one that is."""
        found = self.found
        theta = np.maximum(found.theta + self.directions @ y, found.layout.lower)
        links = theta[: found.layout.inertial].reshape(-1, 10)  # a view
        bad = smallest_eigenvalues(links, self.centre) <= 0
        if bad.any():
            chart = LogCholesky(self.centre[bad])
            links[bad] = chart.inertial(chart.coordinates(links[bad]))
        return theta

    def __call__(self, y: np.ndarray) -> np.ndarray | None:
        """None where a roll-out diverges, or no segment is left."""
        if not len(self.kept):
            return None
        theta = self.theta(y)
        z = self.rollouts.of(theta)
        off = np.nan_to_num(self.rollouts.differences(z)["q"][self.kept], posinf=np.inf, neginf=-np.inf)
        turned = self.reference @ np.linalg.inv(self._responses(theta, z))
        found = (np.einsum("sij,stj->sti", turned, off) / self.scale).ravel()
        return found if np.isfinite(found).all() else None

    def _responses(self, theta: np.ndarray, z: np.ndarray) -> np.ndarray:
        layout, shots = self.found.layout, self.rollouts.shots
        damping = np.zeros(self.found.described.nv)
        for joint, dof in enumerate(layout.joints):
            damping[dof] = layout.value(theta, joint, "damping")
        return responses(self.rollouts.mass_matrices(z)[self.kept], damping, shots.samples * shots.period)

    def jacobian(self, y: np.ndarray, stop: Stop) -> np.ndarray:
        """By central differences; a direction in which something diverges stays where it is."""
        columns = []
        for unit in np.eye(len(y)):
            stop()
            after, before = (self(y + sign * DIFFERENCE * unit) for sign in (1, -1))
            if after is None or before is None:
                columns.append(np.zeros(self.size))
            else:
                columns.append((after - before) / (2 * DIFFERENCE))
        return np.stack(columns, axis=1)


def friction_directions(found: Regression) -> np.ndarray:
    """Columns D with D D^T the covariance of friction, damping and offsets; nothing else moves."""
    layout, moved = found.layout, found.directions.copy()
    moved[: layout.inertial] = 0.0
    moved[[layout.at(j, "armature") for j in range(len(layout.joints))]] = 0.0
    scale = np.maximum(np.sqrt(np.sum(moved**2, axis=1, keepdims=True)), 1e-300)
    axes, sizes, _ = np.linalg.svd(moved / scale, full_matrices=False)
    kept = sizes > NOTHING * max(sizes.max(initial=0.0), 1e-300)
    return scale * (axes * sizes)[:, kept]


def responses(mass: np.ndarray, damping: np.ndarray, seconds: float) -> np.ndarray:
    """Positions after some seconds per unit of a constant force, of M qdd + B qd = f: (segment, dof, dof) each.

    M^-1 t^2 / 2 without damping. By implicit Euler with fixed M; gravity and springs are left out.
    """
    one, h = np.eye(len(damping)), seconds / RESPONSE_STEPS
    inverse = np.linalg.inv(mass + h * np.diag(damping))
    position, velocity = np.zeros_like(mass), np.zeros_like(mass)
    for _ in range(RESPONSE_STEPS):
        velocity = inverse @ (mass @ velocity + h * one)
        position = position + h * velocity
    return position
