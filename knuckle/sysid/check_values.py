"""Values that cannot be right by themselves: not finite, spikes, jumps, frozen, wrapped angles."""

from __future__ import annotations

import numpy as np

from knuckle.sysid.absurd import absurd
from knuckle.sysid.draft import Draft
from knuckle.sysid.drives import drives
from knuckle.sysid.entries import dimensions, single_joints
from knuckle.sysid.findings import Report
from knuckle.sysid.recording import gaps

TURN = 2 * np.pi
JUMP = 20.0  # and one that stays is a jump
LEAST_JUMP = 0.3  # [rad or m]
OUTLIER = 100.0  # times the 98th percentile of the values of a force that are not 0
MOVING = ("q", "qd", "pose", "point")


def check_finite(draft: Draft, report: Report) -> None:
    for channel, values in draft.values.items():
        for j in range(values.shape[1]):
            bad = ~np.isfinite(values[:, j])
            place = draft.place(channel, j)
            if bad.all():
                moves = drives(draft.model, channel, j)
                detail = "no column for it, or nothing in it" + (": a fit takes it as 0" if moves else "")
                draft.say(report, "not measured", place, len(bad), "suspect" if moves else "note", detail)
            elif bad.any():
                first = draft.time[np.argmax(bad)]
                draft.say(
                    report,
                    "not finite",
                    place,
                    bad.sum(),
                    "left out",
                    f"NaN, infinite or empty; first at {first:.6g} s",
                )
            values[bad, j] = np.nan


def check_absurd(draft: Draft, report: Report) -> None:
    """Finite values that nothing measures, and outliers of forces and channels of one's own, which spikes leave out."""
    for channel, values in draft.values.items():
        for j in range(values.shape[1]):
            x = values[:, j]
            bad = absurd(channel, x)
            if bad.any():
                _leave_out(draft, report, "absurd values", channel, j, bad)
            if channel.split("/")[0] not in MOVING:
                _check_outliers(draft, report, channel, j)


def _check_outliers(draft: Draft, report: Report, channel: str, j: int) -> None:
    x = draft.values[channel][:, j]
    size = np.abs(x[np.isfinite(x) & (x != 0)])
    if len(size) < 20:
        return
    far = np.abs(x) > OUTLIER * np.percentile(size, 98)
    if 0 < far.sum() <= 0.01 * len(x):
        _leave_out(draft, report, "outliers", channel, j, far)


def _leave_out(draft: Draft, report: Report, what: str, channel: str, j: int, bad: np.ndarray) -> None:
    x, first = draft.values[channel][:, j], int(np.argmax(bad))
    others = float(np.nanmax(np.where(bad, np.nan, np.abs(x)), initial=0.0))
    detail = f"first at {draft.time[first]:.6g} s: {x[first]:.4g}; others are at most {others:.4g}"
    draft.say(report, what, draft.place(channel, j), int(bad.sum()), "left out", detail)
    x[bad] = np.nan


def check_wrapped(draft: Draft, report: Report) -> None:
    """Angles that stay within one turn and jump by about one are laid out; velocities, if any, say which way."""
    if "q" not in draft.values:
        return
    dimension = dimensions(draft.model, "q")
    dof = {q: v for _, q, v in single_joints(draft.model)}
    for j, kind in enumerate(dimension):
        x = draft.entry("q", j)
        if kind != "angle" or x is None:
            continue
        speed = draft.entry("qd", dof[j]) if j in dof else None
        good = np.flatnonzero(np.isfinite(x))
        y, t = x[good], draft.time[good]
        step = np.diff(y)
        if len(y) < 2 or np.ptp(y) > TURN * 1.001 or np.abs(step).max() <= np.pi:
            continue
        ahead = np.zeros(len(step))
        if speed is not None and np.isfinite(speed[good]).all() and _speeds_fit(speed[good], step, t):
            ahead = 0.5 * (speed[good][1:] + speed[good][:-1]) * np.diff(t)
        turns = np.round((ahead - step) / TURN)
        if turns.any():
            draft.values["q"][good[1:], j] += TURN * np.cumsum(turns)
            first = t[np.flatnonzero(turns)[0]]
            count = int(np.count_nonzero(turns))
            draft.say(
                report, "wrapped angle", draft.place("q", j), count, "repaired", f"first after {first:.6g} s; unwrapped"
            )


def _speeds_fit(speed: np.ndarray, step: np.ndarray, t: np.ndarray) -> bool:
    """Whether velocities agree with most steps, so that they can be trusted for the others."""
    ahead = 0.5 * (speed[1:] + speed[:-1]) * np.diff(t)
    off = np.abs((step - ahead + np.pi) % TURN - np.pi)
    return float(np.median(off)) < 0.3 and float(np.mean(off < 1.0)) > 0.9


def jumps(draft: Draft, report: Report) -> list[int]:
    """Samples at which positions stand elsewhere although time went on: a reset that the times do not show."""
    cuts: set[int] = set()
    if "q" not in draft.values:
        return []
    pauses = set((gaps(draft.time) + 1).tolist())
    dimension = dimensions(draft.model, "q")
    for j, kind in enumerate(dimension):
        x = draft.values["q"][:, j]
        good = np.flatnonzero(np.isfinite(x))
        if kind == "quaternion" or len(good) < 20:
            continue
        steps = np.abs(np.diff(x[good]))
        far = (steps > JUMP * np.percentile(steps, 99)) & (steps > LEAST_JUMP) & (np.diff(good) == 1)
        hits = [i for i in good[1:][far].tolist() if i not in pauses]
        if 0 < len(hits) <= 0.005 * len(x) + 1:
            detail = f"first at {draft.time[hits[0]]:.6g} s, from {x[hits[0] - 1]:.4g} to {x[hits[0]]:.4g}; cut"
            draft.say(report, "jumps", draft.place("q", j), len(hits), "repaired", detail)
            cuts |= set(hits)
    return sorted(cuts)
