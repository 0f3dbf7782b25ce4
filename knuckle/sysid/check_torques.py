"""Torques and controls held against the motion that they explain: clock offsets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.signal import savgol_filter

from knuckle.model.model import Model
from knuckle.sysid.check_motion import BETTER, LATE, late, pairs, to_shift
from knuckle.sysid.compare import even
from knuckle.sysid.draft import Draft
from knuckle.sysid.effort_delay import find_delay
from knuckle.sysid.findings import Report
from knuckle.sysid.recording import Recording

UNEXPLAINED = 0.1  # share of the torques' variance that the motion may leave unexplained
WORTH, SHORTEST = 0.8, 0.004  # [s]; share of the residual that an offset by rigid bodies must fall below
AGREED = 0.3  # share of an offset by which what smoothings of different width say of it may differ
PLENTY = 15  # samples per column of the regression
MOST_OFFSET = 0.1  # [s]
WINDOWS = (0.06, 0.12, 0.24)  # over which motion and forces are smoothed [s]: noisy logs need long ones
MOST_JOINTS, MOST_ROWS = 12, 500
MOST_SAMPLES = 100_000  # of a log that are looked at
MOST_RIGID = 16  # joints: regressors of more take too much memory
MOSTLY = 0.9  # share of the samples that must be measured


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
    and on friction (`effort_delay`). Where the model cannot say (bodies that float, loops, joints that were not
    measured), the columns are accelerations, velocities, sines and cosines of all joints, which hold the torques of one
    joint, and much of those of several.
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
    joints = [j for j, _ in pairs(draft) if draft.entry("q", j) is not None]
    if model_says(draft.model, joints) and len(joints) <= MOST_RIGID:
        return _by_rigid_bodies(draft, channel)
    return _by_any_columns(draft, channel, joints[:MOST_JOINTS])


def _by_rigid_bodies(draft: Draft, channel: str) -> Offset | None:
    """By the regression of forces on the motion of rigid bodies, to the nearest sample."""
    recording = _liveliest(draft.finished())
    if channel == "control" and "tau" in recording.channels:
        recording = recording.replace(tau=None)
    try:
        found = find_delay(draft.model, recording)
    except ValueError:
        return None  # too short, or forces that are none of the joints
    if found is None:
        return None
    samples = round(found.seconds / recording.period)
    small = abs(samples) <= LATE or abs(found.seconds) < SHORTEST
    if small or found.share > WORTH or found.unexplained > UNEXPLAINED:
        return None
    return Offset(samples * recording.period, float(samples), found.share)


def _liveliest(recording: Recording) -> Recording:
    """The MOST_SAMPLES in a row in which joints move the most: a delay is that of a whole log."""
    if len(recording) <= MOST_SAMPLES:
        return recording
    moved = np.abs(np.diff(recording["q"].values, axis=0, prepend=recording["q"].values[:1]))
    path = np.cumsum((moved / np.maximum(moved.mean(axis=0), 1e-300)).sum(axis=1))
    start = int(np.argmax(path[MOST_SAMPLES - 1 :] - path[: len(path) - MOST_SAMPLES + 1]))
    return recording.at(start, start + MOST_SAMPLES)


def _by_any_columns(draft: Draft, channel: str, joints: list[int]) -> Offset | None:
    _, forces = forces_on_joints(draft, channel)
    if not joints or not forces:
        return None
    spaced = even(draft.time, *(draft.values["q"][:, j] for j in joints), *forces)
    if spaced is None:
        return None
    dt, signals = spaced
    lags = np.arange(-_most(dt, len(signals[0])), _most(dt, len(signals[0])) + 1)
    curves = [_unexplained(len(joints), np.array(signals), dt, window, lags) for window in WINDOWS]
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


def _unexplained(joints: int, signals: np.ndarray, dt: float, window: float, lags) -> np.ndarray | None:
    """Share of the forces' variance that the motion leaves, for each lag; None where there are too few samples."""
    q, forces, most = signals[:joints], signals[joints:], int(lags[-1])
    motion = Motion(*(smoothed(q, dt, window, k) for k in range(3)))
    rows = np.unique(np.linspace(most, q.shape[1] - most - 1, MOST_ROWS).astype(int))
    columns = _any_columns(motion)[rows][:, None]
    if most < 3 or len(rows) < PLENTY * columns.shape[-1]:
        return None
    regressions = [Regression(rows, columns, force[:, None]) for force in smoothed(forces, dt, window)]
    return np.mean([r.unexplained(lags) for r in regressions], axis=0)


def forces_on_joints(draft: Draft, channel: str) -> tuple[list[int], list[np.ndarray]]:
    """Joints that are pushed, and by how much over time."""
    values, actuators = draft.values[channel], draft.model.actuators
    if channel == "control":
        gained = values * np.asarray(actuators.gain)
        values = np.zeros((len(values), draft.model.nv))
        for actuator, dof, gear in zip(actuators.entry_actuator, actuators.entry_dof, actuators.gear, strict=True):
            values[:, dof] += gear * gained[:, actuator]
    values = np.stack([filled(x) for x in values.T], axis=1) if values.shape[1] else values
    pushed = [k for k in range(values.shape[1]) if np.isfinite(values[:, k]).all() and np.ptp(values[:, k]) > 0]
    return pushed, [values[:, k] for k in pushed]


def filled(x: np.ndarray) -> np.ndarray:
    """With holes interpolated, if they are few."""
    good = np.isfinite(x)
    if good.all() or good.mean() < MOSTLY:
        return x
    at = np.arange(len(x))
    return np.interp(at, at[good], x[good])


def smoothed(x: np.ndarray, dt: float, window: float, derivative: int = 0) -> np.ndarray:
    """Derivative of cubics through the samples of a window [s]."""
    count = min(max(round(window / dt), 5) | 1, (x.shape[1] - 1) | 1)
    return np.asarray(savgol_filter(x, count, 3, deriv=derivative, delta=dt))


def _deviation(forces: np.ndarray) -> np.ndarray:
    return np.std(forces, axis=0) + 1e-300


def model_says(model: Model, joints: list[int]) -> bool:
    return model.nq == model.nv == len(joints) and not len(model.equalities.torque_scale)


def _any_columns(motion: Motion) -> np.ndarray:
    """Columns that rigid-body torques are made of, whatever the mechanism."""
    q, qd, qdd = motion
    scale = 0.1 * np.std(qd, axis=1, keepdims=True) + 1e-12
    return np.concatenate([qdd, qd, np.tanh(qd / scale), np.sin(q), np.cos(q), np.ones((1, q.shape[1]))]).T
