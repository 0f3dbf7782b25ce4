"""Torques and controls held against the motion that they explain: clock offsets."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from scipy.signal import savgol_filter

from knuckle.dynamics import rnea
from knuckle.model.model import Model
from knuckle.sysid.check_motion import BETTER, LATE, late, pairs, to_shift
from knuckle.sysid.compare import even
from knuckle.sysid.draft import Draft
from knuckle.sysid.findings import Report

UNEXPLAINED = 0.1  # share of the torques' variance that the motion may leave unexplained
AGREED = 0.3  # share of an offset by which what smoothings of different width say of it may differ
PLENTY = 15  # samples per column of the regression
MOST_OFFSET = 0.1  # [s]
WINDOWS = (0.06, 0.12, 0.24)  # over which motion and forces are smoothed [s]: noisy logs need long ones
MOST_JOINTS, MOST_ROWS = 12, 500


class Offset(NamedTuple):
    """How late forces are, in seconds and samples, and the share of the residual that is left if they are shifted."""

    seconds: float
    samples: float
    share: float


class Motion(NamedTuple):
    """Positions over even times with their derivatives, a row per joint."""

    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray


class Regression(NamedTuple):
    """Forces (time, joint) that are sums of columns (row, joint, column), which are given at some of the times."""

    rows: np.ndarray
    columns: np.ndarray
    forces: np.ndarray

    def unexplained(self, lags: np.ndarray) -> np.ndarray:
        """Share of the forces' variance that the columns leave, if forces are late by so many samples."""
        forces = (self.forces - self.forces.mean(0)) / _deviation(self.forces)
        columns = self.columns / _deviation(self.forces)[:, None]
        flat = columns.reshape(-1, columns.shape[-1])
        left, singular, _ = np.linalg.svd(flat / (np.abs(flat).max(axis=0) + 1e-300), full_matrices=False)
        base = left[:, singular > 1e-9 * singular[0]]
        y = np.stack([forces[self.rows + lag].reshape(-1) for lag in lags], axis=1)
        return (np.sum(y**2, axis=0) - np.sum((base.T @ y) ** 2, axis=0)) / len(y)


def check_torques(draft: Draft, report: Report) -> None:
    """Torques and controls that explain the motion better at another time are reported with that time.

    Rigid-body torques are linear in masses, first and second moments, whatever these are: forces are regressed on that
    and on friction. Where the model cannot say (bodies that float, loops, joints that were not measured), the columns
    are accelerations, velocities, sines and cosines of all joints, which hold the torques of one joint, and much of
    those of several.
    """
    for channel in ("tau", "control"):
        found = _offset(draft, channel) if channel in draft.values and "q" in draft.values else None
        if found is not None:
            detail = (
                f"{channel} comes {late(found.seconds, found.samples)} the motion that it explains "
                f"({100 * found.share:.0f} % of the residual is left); "
                f"{to_shift(channel, found.seconds)}"
            )
            draft.say(report, "clock offset", channel, 1, "suspect", detail)


def _offset(draft: Draft, channel: str) -> Offset | None:
    if channel == "control" and np.any(np.asarray(draft.model.actuators.bias)[:, 1:]):
        return None  # a servo's control is a position
    joints = [j for j, _ in pairs(draft) if draft.entry("q", j) is not None][:MOST_JOINTS]
    dofs, forces = forces_on_joints(draft, channel)
    if not joints or not forces:
        return None
    spaced = even(draft.time, *(draft.values["q"][:, j] for j in joints), *forces)
    if spaced is None:
        return None
    dt, signals = spaced
    lags = np.arange(-_most(dt, len(signals[0])), _most(dt, len(signals[0])) + 1)
    curves = [_unexplained(draft.model, joints, dofs, np.array(signals), dt, window, lags) for window in WINDOWS]
    explaining = [curve for curve in curves if curve is not None and curve.min() < UNEXPLAINED]
    if not explaining:
        return None
    rest = min(explaining, key=np.min)
    found = lags[[int(np.argmin(curve)) for curve in explaining]]
    best, middle = int(np.argmin(rest)), len(lags) // 2
    share = rest[best] / max(rest[middle], 1e-300)
    inside, agreed = 0 < best < len(lags) - 1, np.ptp(found) <= max(2.0, AGREED * abs(lags[best]))
    if not (inside and agreed and abs(lags[best]) > LATE and share < BETTER):
        return None
    return Offset(float(lags[best] * dt), float(lags[best]), float(share))


def _most(dt: float, length: int) -> int:
    return int(min(round(MOST_OFFSET / dt), 80, length // 8))


def _unexplained(model: Model, joints, dofs, signals: np.ndarray, dt: float, window: float, lags) -> np.ndarray | None:
    """Share of the forces' variance that the motion leaves, for each lag; None where there are too few samples."""
    q, forces, most = signals[: len(joints)], signals[len(joints) :], int(lags[-1])
    motion = Motion(*(smoothed(q, dt, window, k) for k in range(3)))
    forces = smoothed(forces, dt, window)
    rows = np.unique(np.linspace(most, q.shape[1] - most - 1, MOST_ROWS).astype(int))
    if model_says(model, joints):
        regressions = [_rigid(model, motion, rows, dofs, forces)]
    else:
        columns = _any_columns(motion)[rows][:, None]
        regressions = [Regression(rows, columns, force[:, None]) for force in forces]
    if most < 3 or any(len(rows) * r.forces.shape[1] < PLENTY * r.columns.shape[-1] for r in regressions):
        return None
    return np.mean([r.unexplained(lags) for r in regressions], axis=0)


def forces_on_joints(draft: Draft, channel: str) -> tuple[list[int], list[np.ndarray]]:
    """Joints that are pushed, and by how much over time."""
    values, actuators = draft.values[channel], draft.model.actuators
    if channel == "control":
        gained = values * np.asarray(actuators.gain)
        values = np.zeros((len(values), draft.model.nv))
        for actuator, dof, gear in zip(actuators.entry_actuator, actuators.entry_dof, actuators.gear, strict=True):
            values[:, dof] += gear * gained[:, actuator]
    pushed = [k for k in range(values.shape[1]) if np.isfinite(values[:, k]).all() and np.ptp(values[:, k]) > 0]
    return pushed, [values[:, k] for k in pushed]


def smoothed(x: np.ndarray, dt: float, window: float, derivative: int = 0) -> np.ndarray:
    """Derivative of cubics through the samples of a window [s]."""
    count = min(max(round(window / dt), 5) | 1, (x.shape[1] - 1) | 1)
    return np.asarray(savgol_filter(x, count, 3, deriv=derivative, delta=dt))


def _deviation(forces: np.ndarray) -> np.ndarray:
    return np.std(forces, axis=0) + 1e-300


def model_says(model: Model, joints: list[int]) -> bool:
    return model.nq == model.nv == len(joints) and not len(model.equalities.torque_scale)


def _rigid(model: Model, motion: Motion, rows: np.ndarray, dofs: list[int], forces: np.ndarray) -> Regression:
    """Columns of inverse dynamics by masses, first and second moments of all links, and of friction of each joint."""
    q, qd, qdd = (x[:, rows].T for x in motion)
    directions = np.eye(10 * len(model.link_names))
    with jax.enable_x64(True):
        at = [np.repeat(x, len(directions), axis=0) for x in (q, qd, qdd)]
        changes = np.asarray(_changes()(model, np.tile(directions, (len(q), 1)), *at))
    bodies = changes.reshape(len(q), len(directions), model.nv).swapaxes(1, 2)[:, dofs]
    own = np.stack([qdd, qd, np.tanh(qd / (0.1 * _deviation(qd))), np.ones_like(q), q], axis=-1)[:, dofs]
    friction = np.einsum("tjc,jk->tjkc", own, np.eye(len(dofs))).reshape(len(q), len(dofs), -1)
    return Regression(rows, np.concatenate([bodies, friction], axis=-1), forces.T)


@cache
def _changes():
    """Change of a model's joint forces by one of its numbers at many motions, as native code made once a mechanism."""
    from knuckle import native

    def change(model: Model, direction, q, qd, qdd):
        body = model.inertia
        parts = (body.mass, body.com, body.moment)
        tangents = [t.reshape(p.shape) for p, t in zip(parts, _split(direction, len(model.link_names)), strict=True)]

        def forces(mass, com, moment):
            changed = eqx.tree_at(
                lambda m: (m.inertia.mass, m.inertia.com, m.inertia.moment), model, (mass, com, moment)
            )
            return rnea(changed, q, qd, qdd)

        return jax.jvp(forces, parts, tuple(tangents))[1]

    return native.vmap(change, in_axes=(None, 0, 0, 0, 0))


def _split(direction, links: int):
    return direction[:links], direction[links : 4 * links], direction[4 * links :]


def _any_columns(motion: Motion) -> np.ndarray:
    """Columns that rigid-body torques are made of, whatever the mechanism."""
    q, qd, qdd = motion
    scale = 0.1 * np.std(qd, axis=1, keepdims=True) + 1e-12
    return np.concatenate([qdd, qd, np.tanh(qd / scale), np.sin(q), np.cos(q), np.ones((1, q.shape[1]))]).T
