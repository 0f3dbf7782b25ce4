"""How late measured forces are: where a regression on the motion that they explain leaves least.

Each joint has a regression of its own: inertial parameters, rotor inertia, springs, loads that the description lacks
and a constant, of any sign, and friction that is not negative. Dry friction has pre-sliding states of several lengths
(Maxwell slip) and depends on the load: without them friction that lags behind a reversal passes for a late force.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from scipy.optimize import nnls

from knuckle.dynamics.regressor import carried_columns
from knuckle.model.model import Model
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.design import Stretch, make_stretch
from knuckle.sysid.regression.filters import choose_cutoff
from knuckle.sysid.regression.friction import JointFriction, sliding
from knuckle.sysid.regression.signals import Signals, prepare
from knuckle.sysid.regression.speeds import moving_joints, slow_speeds

LATEST = 0.15  # [s]
COARSE = 0.005  # step of the first search [s]
REACHES = (1e-3, 3e-3, 1e-2, 3e-2)  # of pre-sliding, over the travel of the joint
INDEPENDENT = 1e-3  # singular values of columns over the largest
FEW_REACHES = (1e-3, 1e-2)  # for short recordings, which have no load dependence either
PLENTY = 8  # rows per independent column


class Delay(NamedTuple):
    """How late forces are [s], the share of the residual that is left if they are moved, and what is unexplained."""

    seconds: float
    share: float
    unexplained: float  # share of the variance, at that delay


class JointRows(NamedTuple):
    """Columns of one joint: those of any sign as an orthonormal basis, friction apart from them, and which rows."""

    basis: np.ndarray
    friction: np.ndarray
    keep: np.ndarray
    dof: int

    def unexplained(self, efforts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Share of the variance of efforts (delay, time, dof) that is left, and that which friction makes up."""
        y = efforts[:, self.keep, self.dof].T
        total = np.maximum(np.sum((y - y.mean(axis=0)) ** 2, axis=0), 1e-300)
        rest = y - self.basis @ (self.basis.T @ y)
        turned, triangle = np.linalg.qr(self.friction)
        inside = turned.T @ rest
        outside = np.maximum(np.sum(rest**2, axis=0) - np.sum(inside**2, axis=0), 0.0)
        solved = [nnls(triangle, b) for b in inside.T]
        left = np.array([r**2 for _, r in solved]) + outside
        rubbed = np.array([np.sum((triangle @ w) ** 2) for w, _ in solved])
        return np.maximum(left / total, 1e-9), rubbed / total


def find_delay(model: Model, recording: Recording) -> Delay | None:
    """How late the forces of a recording are; None where the motion cannot say. Raises ValueError if none are there."""
    with jax.enable_x64(True):
        signals = prepare(model, [recording], as_measured=True)
        slow = slow_speeds(model, signals)
        moving = moving_joints(signals, slow)
        if not moving.any():
            return None
        longest = max(signals, key=len)
        cutoff = choose_cutoff([longest], moving)
        most = min(LATEST, (longest.time[-1] - longest.time[0]) / 16)
        stretch = make_stretch(model, longest, cutoff, slow)
    joints = [_rows(model, stretch, slow, int(dof), most) for dof in np.flatnonzero(moving & _changing(longest))]
    known = [rows for rows in joints if rows is not None]
    if not known:
        return None
    coarse = np.arange(-round(most / COARSE), round(most / COARSE) + 1) * COARSE
    curve, _ = _total(known, stretch, coarse)
    best = coarse[int(np.argmin(curve))]
    fine = best + np.arange(-12, 13) * min(0.5 / longest.rate, COARSE / 4)
    curve, unexplained = _total(known, stretch, np.append(fine, 0.0))
    k = int(np.argmin(curve[:-1]))
    if abs(fine[k]) > most - COARSE:
        return None  # the best is at the end of what was looked at
    return Delay(float(fine[k]), float(np.exp(curve[k] - curve[-1])), float(unexplained[k]))


def _changing(signals: Signals) -> np.ndarray:
    return np.ptp(signals.effort, axis=0) > 0


def _total(joints: Sequence[JointRows], stretch: Stretch, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean logarithm of what is unexplained, and its mean, of all joints; those that mostly rub count less."""
    efforts = np.stack([stretch.effort_after(float(delay)) for delay in delays])
    parts = [rows.unexplained(efforts) for rows in joints]
    weight = np.array([1 - min(float(np.median(rubbed)), 0.95) for _, rubbed in parts])
    weight /= weight.sum()
    logs = np.array([np.log(left) for left, _ in parts])
    return weight @ logs, weight @ np.exp(logs)


def _rows(model: Model, stretch: Stretch, slow: np.ndarray, dof: int, most: float) -> JointRows | None:
    """Columns of the rows of one joint that are measured whatever the delay."""
    load = stretch.inertial[dof] @ np.asarray(inertial(model), float)[carried_columns(model)[dof]]
    keep = np.zeros(len(stretch.time), bool)
    keep[:: stretch.every] = True
    edge = int(np.ceil(most / (stretch.time[1] - stretch.time[0]))) + 1
    keep[:edge] = keep[-edge:] = False
    keep &= stretch.valid[:, dof]
    for reaches, loaded in ((REACHES, True), (FEW_REACHES, False)):
        table, rubbing = _table(stretch, slow[dof], dof, reaches, load if loaded else None)
        left, singular, _ = np.linalg.svd(_normed(table[keep]), full_matrices=False)
        basis, friction = left[:, singular > INDEPENDENT * singular[0]], _normed(rubbing[keep])
        if len(basis) >= PLENTY * (basis.shape[1] + friction.shape[1]):
            return JointRows(basis, friction - basis @ (basis.T @ friction), keep, dof)
    return None


def _table(
    stretch: Stretch, slow: float, dof: int, reaches: Sequence[float], load: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Columns of a joint over a stretch: those of any sign, and those of friction."""
    q, qd = stretch.q[:, dof], stretch.qd[:, dof]
    travel = max(float(np.ptp(q)), 1e-12)
    states = [sliding(JointFriction(slow, slow, reach), q, qd) for reach in (None, *(r * travel for r in reaches))]
    rubbing = [qd, *states, *([] if load is None else (np.abs(load) * z for z in states))]
    own = stretch.low_pass(np.stack([q, np.sin(q), np.cos(q), stretch.qdd[:, dof]], axis=1))
    free = np.concatenate([stretch.inertial[dof], np.ones((len(q), 1)), own], axis=1)
    return free, stretch.low_pass(np.stack(rubbing, axis=1))


def _normed(columns: np.ndarray) -> np.ndarray:
    return columns / np.maximum(np.sqrt(np.mean(columns**2, axis=0)), 1e-12)
