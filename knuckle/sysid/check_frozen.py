"""Channels that repeat one value: frozen if their joint moves meanwhile, else the joint stands still."""

from __future__ import annotations

import numpy as np

from knuckle.sysid.check_values import MOVING
from knuckle.sysid.draft import Draft
from knuckle.sysid.entries import dimensions, single_joints
from knuckle.sysid.findings import Report

STUCK = 10  # samples
LONG = 20  # samples of a force
LEAP = 4.0  # times the steps around it
ALWAYS = 0.9  # share of the samples in which a force that is measured changes
STILL = 0.01  # [rad or m]: less is no motion of a joint
SLOW = 0.02  # [rad/s or m/s]: less is none
CREEP = 0.005  # [rad or m] by which a position may differ from what its velocity says
PAUSE = 0.5  # [s]: shorter ones are not told


def check_stationary(draft: Draft, report: Report) -> None:
    """Say when no joint moves: such samples stay, and tell of gravity only."""
    still = _stationary(draft)
    if still is None or not still.any():
        return
    spans = _runs(still)
    times = [(float(draft.time[a]), float(draft.time[b])) for a, b in spans if draft.time[b] - draft.time[a] > PAUSE]
    total, whole = sum(b - a for a, b in times), float(draft.time[-1] - draft.time[0])
    if not times:
        return
    if still.all():
        detail = f"no joint moves by {STILL:g} rad or m in {whole:.4g} s: kept, but it tells of gravity only"
    else:
        first, last = times[0]
        detail = f"no joint moves for {total:.4g} s of {whole:.4g} s, first from {first:.4g} s to {last:.4g} s; kept"
    draft.say(report, "stationary", "q", int(still.sum()), "note", detail)


def _stationary(draft: Draft) -> np.ndarray | None:
    """Samples at which all joints that were measured stand still; None if no position was."""
    if "q" not in draft.values:
        return None
    kinds, found = dimensions(draft.model, "q"), []
    dof = {q: v for _, q, v in single_joints(draft.model)}
    for j, kind in enumerate(kinds):
        x = draft.entry("q", j)
        if x is None or kind == "quaternion":
            continue
        speed = draft.entry("qd", dof[j]) if j in dof else None
        if speed is not None and np.isfinite(speed).mean() > ALWAYS and np.nanmax(np.abs(speed)) > 0:
            found.append(~(np.abs(speed) > SLOW))
        else:
            found.append(_unmoved(draft.time, x))
    return np.all(found, axis=0) if found else None


def _unmoved(time: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Samples around which a position stays within `STILL` for half a second."""
    good = np.isfinite(x)
    filled = np.interp(time, time[good], x[good])
    ahead = np.minimum(np.searchsorted(time, time + PAUSE), len(time) - 1)
    return np.abs(filled[ahead] - filled) < SLOW * np.maximum(time[ahead] - time, 1e-9)


def check_frozen(draft: Draft, report: Report) -> None:
    """Channels that never change while others do, and stretches that repeat one value while the joint moves."""
    still = _stationary(draft)
    whole = still is not None and bool(still.all())
    for channel, values in draft.values.items():
        for j in range(values.shape[1]):
            good = np.flatnonzero(np.isfinite(values[:, j]))
            if len(good) < 2 * STUCK:
                continue
            if np.ptp(values[good, j]) == 0:
                _check_constant(draft, report, channel, j, whole)
            elif channel in ("q", "qd") and _partner(draft, channel, j) is not None:
                _check_against_partner(draft, report, channel, j, good)
            elif channel == "tau":
                _check_force(draft, report, j, good)
            elif channel.split("/")[0] in MOVING:
                _check_leaps(draft, report, channel, j, good)


def _check_constant(draft: Draft, report: Report, channel: str, j: int, stationary: bool) -> None:
    x = draft.values[channel][:, j]
    value = float(x[np.isfinite(x)][0]) + 0.0
    detail, partner = f"{value:.6g} in every sample", _partner(draft, channel, j)
    slow = CREEP + SLOW * float(draft.time[-1] - draft.time[0])
    frozen = partner is not None and _excursion(draft, channel, j, 0, len(x) - 1) > slow
    if frozen:
        other = "velocity" if channel == "q" else "position"
        draft.say(report, "frozen", draft.place(channel, j), len(x), "left out", f"{detail}, while its {other} changes")
        x[:] = np.nan
        return
    resting = stationary and channel in ("q", "qd")
    usual = value == 0 or channel in ("qd", "control") or resting or (partner is not None and channel == "q")
    why = ": it stands still" if channel == "q" and (resting or partner is not None) else ""
    action = "note" if usual else "suspect"
    draft.say(report, "constant", draft.place(channel, j), len(x), action, detail + why)


def _partner(draft: Draft, channel: str, j: int) -> np.ndarray | None:
    """The velocity of a position, or the position of a velocity, if nearly all of it was measured."""
    pairs = {q: v for _, q, v in single_joints(draft.model)}
    other = {"q": "qd", "qd": "q"}.get(channel)
    index = pairs.get(j) if channel == "q" else next((q for q, v in pairs.items() if v == j), None)
    found = None if other is None or index is None else draft.entry(other, index)
    if found is None or np.isfinite(found).mean() <= ALWAYS:
        return None
    return found if np.nanmax(found) > np.nanmin(found) else None


def _excursion(draft: Draft, channel: str, j: int, start: int, stop: int) -> float:
    """How far position and velocity disagree while one of them stays the same [rad or m]."""
    rows = slice(start, stop + 1)
    time, own, other = draft.time[rows], draft.values[channel][rows, j], _partner(draft, channel, j)
    assert other is not None
    other = other[rows]
    good = np.isfinite(own) & np.isfinite(other)
    if good.sum() < 2:
        return 0.0
    time, own, other = time[good], own[good], other[good]
    if channel == "q":
        moved = np.concatenate([[0.0], np.cumsum(0.5 * (other[1:] + other[:-1]) * np.diff(time))])
    else:
        moved = other - other[0] - own[0] * (time - time[0])
    return float(np.abs(moved).max())


def _check_against_partner(draft: Draft, report: Report, channel: str, j: int, good: np.ndarray) -> None:
    """A position that stays while its velocity goes on, or the other way round, is frozen."""
    y, other = draft.values[channel][good, j], {"q": "velocity", "qd": "position"}[channel]
    coarse = float(np.percentile(np.abs(np.diff(y))[np.diff(y) != 0], 50)) if channel == "q" else 0.0
    for start, stop in _runs(np.concatenate([np.diff(y) == 0, [False]])):
        stop += 1
        if stop - start < STUCK:
            continue
        off = _excursion(draft, channel, j, good[start], good[stop])
        drift = SLOW * float(draft.time[good[stop]] - draft.time[good[start]])  # velocities have small offsets
        if off > max(CREEP, 3 * coarse) + drift:
            span = f"{draft.time[good[start]]:.6g} s to {draft.time[good[stop]]:.6g} s"
            detail = f"{y[start]:.6g} from {span}, while its {other} says that it moves by {off:.3g} rad or m"
            draft.say(report, "frozen", draft.place(channel, j), stop - start, "left out", detail)
            draft.values[channel][good[start + 1 : stop + 1], j] = np.nan


def _check_force(draft: Draft, report: Report, j: int, good: np.ndarray) -> None:
    """A measured force that changes in nearly every sample, but for a long stretch inside its range."""
    y = draft.values["tau"][good, j]
    same, ends = np.diff(y) == 0, (y.min(), y.max())
    for start, stop in _runs(np.concatenate([same, [False]])):
        stop += 1
        others = np.delete(same, slice(start, stop))
        changes = len(others) > LONG and float(np.mean(~others)) > ALWAYS
        if stop - start >= LONG and changes and y[start] not in ends:
            span = f"{draft.time[good[start]]:.6g} s to {draft.time[good[stop]]:.6g} s"
            detail = f"{y[start]:.6g} from {span}, where it else changes in nearly every sample"
            draft.say(report, "frozen", draft.place("tau", j), stop - start, "left out", detail)
            draft.values["tau"][good[start + 1 : stop + 1], j] = np.nan


def _check_leaps(draft: Draft, report: Report, channel: str, j: int, good: np.ndarray) -> None:
    """Stretches that repeat one value and then leap, where nothing else tells whether the joint moves.

    A joint that sets off does so by small steps; one that was frozen leaps to where it is, then goes on as before.
    """
    y = draft.values[channel][good, j]
    step = np.diff(y)
    if np.mean(step != 0) < 0.5:
        return  # a coarse sensor, or a mechanism at rest
    for start, stop in _runs(np.concatenate([step == 0, [False]])):
        stop += 1
        before, after = np.abs(step[max(start - STUCK, 0) : start]), np.abs(step[stop + 1 : stop + 1 + STUCK])
        if stop - start < STUCK or len(before) < 3 or stop >= len(step):
            continue
        usual = max(before.max(), after.max(initial=0.0))
        if abs(step[stop]) > LEAP * usual:
            place, t = draft.place(channel, j), draft.time[good[start]]
            detail = f"{y[start]:.6g} from {t:.6g} s to {draft.time[good[stop]]:.6g} s, then a leap of {step[stop]:.4g}"
            draft.say(report, "frozen", place, stop - start, "left out", detail)
            draft.values[channel][good[start + 1 : stop + 1], j] = np.nan


def _runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """First and last index of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]
