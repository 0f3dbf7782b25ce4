"""Times of a log: their unit, resets, order, stamps that stand twice."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from knuckle.sysid.findings import Report
from knuckle.sysid.recording import GAP, gaps
from knuckle.sysid.units import time_factor

LONG_AGO = 1e6  # times that begin later than this [s] are of a calendar, and are counted from the first
SHUFFLED = 5  # a sample at most this many places late was written out of order; more is a reset
COARSE = 0.2  # with more stamps than this share standing twice the clock is coarse
GUESSED = 10  # samples that share a stamp, from which on times are a guess
EVEN, ALWAYS = 0.1, 0.9  # off a whole number of steps, and share of the steps that are none more
SHORTEST, LONGEST = 1e-5, 1.0  # [s] between samples of a motion
EPOCHS = ((1e17, 1e-9, "ns"), (1e14, 1e-6, "us"), (1e11, 1e-3, "ms"))
STEPS = (
    (5e5, 1e-9, "ns"),
    (500.0, 1e-6, "us"),
    (0.5, 1e-3, "ms"),
)  # a usual step from this on, if it is a whole number


@dataclass(frozen=True)
class Clock:
    """Raw stamps and their factor to seconds."""

    raw: np.ndarray
    factor: float

    @property
    def start(self) -> float:
        finite = self.raw[np.isfinite(self.raw)]
        return float(finite[0]) * self.factor if len(finite) else 0.0

    def seconds(self, origin: Clock | None) -> np.ndarray:
        """Times [s], after the first of `origin` if given; whole numbers are subtracted before they are rounded."""
        if origin is None:
            return self.raw * self.factor
        whole = self.raw.dtype.kind == origin.raw.dtype.kind == "i" and self.factor == origin.factor
        if whole:
            return (self.raw - origin.raw[0]) * self.factor
        finite = np.isfinite(self.raw)
        base = self.raw[np.argmax(finite)] if finite.any() else 0
        return (self.raw - base) * self.factor + (self.start - origin.start)


def clock(raw: np.ndarray, unit: str | None, place: str, report: Report, run: str) -> Clock | None:
    """Times by the unit of their header, else by what is plausible, which is reported; None: the unit is not known."""
    if unit is not None:
        factor = time_factor(unit)
        return None if factor is None else Clock(raw, factor)
    factor, name = plausible_unit(raw)
    report.add("time unit", place, len(raw), "note", f"no unit in the header: taken as {name}", run)
    return Clock(raw, factor)


def plausible_unit(raw: np.ndarray) -> tuple[float, str]:
    """Calendar times by their size; others by the usual step: motions are sampled more than twice a second."""
    finite = np.asarray(raw[np.isfinite(raw)], float)
    if len(finite) < 2:
        return 1.0, "s"
    first = abs(finite[0])
    for least, factor, name in EPOCHS:
        if first > least:
            return factor, name
    steps = np.abs(np.diff(finite))
    steps = steps[steps > 0]
    usual = float(np.median(steps)) if len(steps) and first < 1e9 else 0.0
    return next(((factor, name) for least, factor, name in STEPS if usual >= least), (1.0, "s"))


def in_order(time: np.ndarray, place: str, report: Report, run: str) -> np.ndarray:
    """Rows with a time, with those that were written a few places late put where they belong."""
    rows = np.flatnonzero(np.isfinite(time))
    if len(rows) < len(time):
        count = len(time) - len(rows)
        report.add("no time", place, count, "left out", "rows whose time is missing or infinite", run)
    kept = time[rows]
    back = np.flatnonzero(np.diff(kept) < 0)
    late = []
    for i in back.tolist():
        window = slice(max(i + 1 - SHUFFLED, 0), i + 1)
        ahead = kept[i + 1 : i + 2 + SHUFFLED]
        if kept[window].min() <= kept[i + 1] or (ahead.max() > kept[i] and kept[i + 1] > kept[0]):
            late.append(i)
    for i in late:
        window = slice(max(i + 1 - SHUFFLED, 0), i + 2 + SHUFFLED)
        rows[window] = rows[window][np.argsort(time[rows[window]], kind="stable")]
    if late:
        report.add("out of order", place, len(late), "repaired", f"first at {kept[late[0]]:.6g} s; sorted", run)
    return rows


def pieces(time: np.ndarray, episode: np.ndarray | None, place: str, report: Report, run: str) -> list[tuple[int, int]]:
    """Stretches of rows in which time runs on: cut where it goes back, and where another episode begins."""
    back = np.flatnonzero(np.diff(time) < 0) + 1
    other = np.flatnonzero(np.diff(episode) != 0) + 1 if episode is not None else np.zeros(0, int)
    if len(back):
        i = int(back[0])
        detail = f"time goes back from {time[i - 1]:.6g} s to {time[i]:.6g} s; cut into recordings"
        report.add("resets", place, len(back), "repaired", detail, run)
    if len(other):
        report.add("episodes", place, len(other) + 1, "note", "cut into recordings", run)
    cuts = np.unique(np.concatenate([[0], back, other, [len(time)]])).astype(int)
    spans = [(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
    short = sum(b - a < 2 for a, b in spans)
    if short:
        report.add("short segments", place, short, "left out", "segments of fewer than two samples", run)
    return [(a, b) for a, b in spans if b - a >= 2]


def without_duplicates(time: np.ndarray, place: str, report: Report, run: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their times, which increase: of equal stamps the first counts; those of a coarse clock are spread."""
    first = np.concatenate([[True], np.diff(time) > 0])
    count = int((~first).sum())
    rows = np.arange(len(time))
    if not count:
        return rows, time
    at = f"first at {time[np.flatnonzero(~first)[0]]:.6g} s"
    if count < COARSE * len(time) or first.sum() < 3:
        report.add("duplicate stamps", place, count, "left out", f"{at}; the first of each is kept", run)
        return rows[first], time[first]
    starts = np.flatnonzero(first)
    spread = np.interp(rows, starts, time[starts])
    tail = rows > starts[-1]
    step = (time[starts[-1]] - time[starts[0]]) / (starts[-1] - starts[0])
    spread[tail] = time[starts[-1]] + step * (rows[tail] - starts[-1])
    report.add("coarse clock", place, count, "repaired", f"{at}; equal stamps were spread evenly", run)
    if len(time) > GUESSED * first.sum():
        detail = (
            f"one stamp stands for {len(time) / first.sum():.0f} samples: times between are a guess, wrong if samples "
            "are uneven or lost; write stamps with more digits"
        )
        report.add("clock resolution", place, len(time), "suspect", detail, run)
    keep = np.concatenate([[True], np.diff(spread) > 0])
    return rows[keep], spread[keep]


def report_gaps(time: np.ndarray, report: Report, run: str) -> None:
    """Pauses of more than five usual steps, which stay and which segments do not cross; and single lost samples."""
    found, steps = gaps(time), np.diff(time)
    usual = float(np.median(steps))
    if len(found):
        worst = int(found[np.argmax(steps[found])])
        detail = f"longest {steps.max():.4g} s after {time[worst]:.6g} s (usual step {usual:.4g} s)"
        report.add("gaps", "time", len(found), "note", detail, run)
    times = np.round(steps / usual)
    whole = np.abs(steps / usual - times) < EVEN
    lost = whole & (times >= 2) & (times <= GAP)
    if lost.any() and np.mean(whole) > ALWAYS:
        count = int(np.sum(times[lost] - 1))
        detail = f"steps of 2 to {GAP:.0f} times the usual {usual:.4g} s, first after {time[np.argmax(lost)]:.6g} s; "
        report.add("lost samples", "time", count, "note", f"{detail}a fit takes the stamps as they are", run)
    if not SHORTEST < usual < LONGEST:
        unit = "ms" if usual >= LONGEST else "s, not of a smaller unit"
        detail = f"the usual step is {usual:.4g} s: are the times those of {unit}? --column 'NAME=time [ms]' says so"
        report.add("time unit", "time", len(time), "suspect", detail, run)
