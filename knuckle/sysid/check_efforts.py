"""Torques and controls held against those of the description: those of another joint, opposite signs, other units."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import numpy as np
from scipy.optimize import linear_sum_assignment

from knuckle.dynamics import rnea
from knuckle.forces import passive_force
from knuckle.model.model import Model
from knuckle.sysid.check_motion import pairs
from knuckle.sysid.check_torques import WINDOWS, forces_on_joints, model_says, smoothed
from knuckle.sysid.compare import even
from knuckle.sysid.draft import Draft
from knuckle.sysid.entries import names_of
from knuckle.sysid.findings import Report

AGREES = 0.9  # correlation from which on a force may be that of a joint
BETTER = 0.2  # share of what its own joint leaves unexplained that another one may leave
ANOTHER = 20.0  # times as large as the description's, or as small: no masses are so far off
ENOUGH, MOST_ROWS = 100, 500  # samples


class Efforts(NamedTuple):
    """Measured forces beside those that the description needs for the motion, (time, driven joint)."""

    dofs: list[int]
    measured: np.ndarray
    needed: np.ndarray

    @property
    def correlation(self) -> np.ndarray:
        """Of each measured force (row) with each that is needed."""
        a, b = (x - x.mean(axis=0) for x in (self.measured, self.needed))
        sizes = np.outer(np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=0))
        return np.divide(a.T @ b, sizes, out=np.zeros_like(sizes), where=sizes > 0)

    @property
    def scale(self) -> np.ndarray:
        return np.std(self.measured, axis=0) / np.maximum(np.std(self.needed, axis=0), 1e-300)


def check_efforts(draft: Draft, report: Report) -> None:
    """Forces that are those of other joints, of opposite sign or in other units by the description are suspect.

    The description need not be right, only near enough that its forces correlate with the measured ones.
    """
    for channel in ("tau", "control"):
        found = _efforts(draft, channel)
        if found is not None:
            _check_order(draft, channel, found, report)
            _check_size(draft, channel, found, report)


def _check_order(draft: Draft, channel: str, efforts: Efforts, report: Report) -> None:
    names, alike = names_of(draft.model, "tau"), np.abs(efforts.correlation)
    left, pairs_of = 1 - alike**2, zip(*linear_sum_assignment(-alike), strict=True)
    moved = [(a, b) for a, b in pairs_of if a != b and alike[a, b] >= AGREES and left[a, b] <= BETTER * left[a, a]]
    if not moved:
        return
    words = ", ".join(f"that of {names[efforts.dofs[a]]} is what moves {names[efforts.dofs[b]]}" for a, b in moved)
    draft.say(report, "foreign forces", channel, len(moved), "suspect", f"columns may be in another order: {words}")


def _check_size(draft: Draft, channel: str, efforts: Efforts, report: Report) -> None:
    names = names_of(draft.model, "tau")
    for k, dof in enumerate(efforts.dofs):
        agreement, scale = efforts.correlation[k, k], efforts.scale[k]
        if agreement < -AGREES:
            detail = "pushes against the motion that it should explain, by the description; is its sign opposite?"
            draft.say(report, "opposite force", f"{channel} {names[dof]}", len(draft.time), "suspect", detail)
        elif agreement > AGREES and not 1 / ANOTHER < scale < ANOTHER:
            detail = f"is {scale:.3g} times what the description needs for the motion: another unit, or before a gear?"
            draft.say(report, "force scale", f"{channel} {names[dof]}", len(draft.time), "suspect", detail)


def _efforts(draft: Draft, channel: str) -> Efforts | None:
    model = draft.model
    if channel not in draft.values or "q" not in draft.values:
        return None
    if channel == "control" and np.any(np.asarray(model.actuators.bias)[:, 1:]):
        return None  # a servo's control is a position
    joints = [j for j, _ in pairs(draft) if draft.entry("q", j) is not None]
    dofs, forces = forces_on_joints(draft, channel)
    if not model_says(model, joints) or not dofs:
        return None
    spaced = even(draft.time, *draft.values["q"].T, *forces)
    if spaced is None or len(spaced[1][0]) < ENOUGH:
        return None
    dt, signals = spaced
    tried = [_compared(model, dofs, np.array(signals), dt, window) for window in WINDOWS]
    return max(tried, key=lambda found: float(np.abs(found.correlation).max(axis=1).mean()))


def _compared(model: Model, dofs: list[int], signals: np.ndarray, dt: float, window: float) -> Efforts:
    rows = np.unique(np.linspace(0, signals.shape[1] - 1, MOST_ROWS).astype(int))
    q, qd, qdd = (smoothed(signals[: model.nq], dt, window, k)[:, rows].T for k in range(3))
    with jax.enable_x64(True):
        needed = np.asarray(_needed()(model, q, qd, qdd))[:, dofs]
    return Efforts(dofs, smoothed(signals[model.nq :], dt, window)[:, rows].T, needed)


@cache
def _needed():
    """Forces of motors that a model needs for many motions, as native code made once a mechanism."""
    from knuckle import native

    return native.vmap(lambda model, q, qd, qdd: rnea(model, q, qd, qdd) - passive_force(model, q, qd), (None, 0, 0, 0))
