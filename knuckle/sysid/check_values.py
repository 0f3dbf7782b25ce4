"""Values that cannot be right by themselves: not finite, spikes, jumps, frozen, wrapped angles."""

from __future__ import annotations

import numpy as np

from knuckle.sysid.draft import Draft
from knuckle.sysid.drives import drives
from knuckle.sysid.entries import dimensions, single_joints
from knuckle.sysid.findings import Report
from knuckle.sysid.recording import gaps

TURN = 2 * np.pi
SPIKE = 30.0  # steps this many times the 99th percentile, there and back, are a spike
JUMP = 20.0  # and one that stays is a jump
LEAST_JUMP = 0.3  # [rad or m]
STUCK = 10  # samples
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


def check_spikes(draft: Draft, report: Report) -> None:
    """Single samples far away from both neighbours, which agree with each other."""
    for channel in (key for key in draft.values if key.split("/")[0] in MOVING):
        for j in range(draft.values[channel].shape[1]):
            x = draft.values[channel][:, j]
            good = np.flatnonzero(np.isfinite(x))
            if len(good) < 20:
                continue
            steps = np.diff(x[good])
            usual = np.percentile(np.abs(steps), 99)
            usual = usual if usual > 0 else np.percentile(np.abs(steps[steps != 0]), 50) if steps.any() else 0.0
            out, back = steps[:-1], steps[1:]
            spike = (np.minimum(np.abs(out), np.abs(back)) > SPIKE * usual) & (np.abs(out + back) < 3 * usual)
            hits = good[1:-1][spike & (usual > 0) & (out * back < 0)]
            if 0 < len(hits) <= 0.01 * len(good):
                detail = f"first at {draft.time[hits[0]]:.6g} s: {x[hits[0]]:.4g} beside {x[hits[0] - 1]:.4g}"
                draft.say(report, "spikes", draft.place(channel, j), len(hits), "left out", detail)
                x[hits] = np.nan


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


def check_frozen(draft: Draft, report: Report) -> None:
    """Channels that never change while others do, and stretches that repeat one value and then leap."""
    for channel, values in draft.values.items():
        for j in range(values.shape[1]):
            x = values[:, j]
            good = np.flatnonzero(np.isfinite(x))
            if len(good) < 2 * STUCK:
                continue
            y = x[good]
            if np.ptp(y) == 0:
                detail = f"{y[0]:.6g} in every sample"
                usual = y[0] == 0 or channel in ("qd", "control")
                draft.say(report, "constant", draft.place(channel, j), len(y), "note" if usual else "suspect", detail)
            elif channel.split("/")[0] in (*MOVING, "tau"):
                _check_stuck(draft, report, channel, j, good)


def _check_stuck(draft: Draft, report: Report, channel: str, j: int, good: np.ndarray) -> None:
    y = draft.values[channel][good, j]
    step = np.diff(y)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], step == 0, [False]]).astype(int)))
    starts, stops = edges[::2], edges[1::2]  # y[start] to y[stop] are equal
    moving = step != 0
    if np.mean(moving) < 0.5:
        return  # a coarse sensor, or a mechanism at rest
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        before = np.abs(step[max(start - STUCK, 0) : start])
        if stop - start < STUCK or len(before) < 3 or stop >= len(step):
            continue
        leap = abs(step[stop])
        if leap > 4 * before.max() or (np.median(before) > 0 and leap > 0.5 * (stop - start) * np.median(before)):
            place, t = draft.place(channel, j), draft.time[good[start]]
            detail = f"{y[start]:.6g} from {t:.6g} s to {draft.time[good[stop]]:.6g} s, then a leap of {step[stop]:.4g}"
            if channel == "tau":
                draft.say(report, "frozen", place, stop - start, "suspect", detail)
            else:
                draft.say(report, "frozen", place, stop - start, "left out", detail)
                draft.values[channel][good[start + 1 : stop + 1], j] = np.nan
