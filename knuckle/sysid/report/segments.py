"""The segments that a report draws: the worst held-out ones, the median one, and the worst of the training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from knuckle.sysid.entries import entry_units
from knuckle.sysid.fit import Fit
from knuckle.sysid.noise_kinds import ChannelNoise
from knuckle.sysid.recording import Recording
from knuckle.sysid.report.quality import differences, entry_names
from knuckle.sysid.shots import Shots
from knuckle.sysid.task import parts_of as parts

MOST_SAMPLES = 300  # of a segment that is drawn
MOST_ENTRIES = 24  # that are drawn
LEAST_SAMPLES = 24  # of all segments of one sort together: of short ones more are drawn
HELD_OUT, TRAINING = "held out", "training"


class Segment(NamedTuple):
    """One segment that is drawn."""

    label: str  # worst, 2nd worst, median
    source: str  # held out, or training
    recording: str
    begin: float  # as in the log [s]
    error: float  # root mean square over the noise, of the channel where that is largest
    index: int  # among the segments of its source

    @property
    def is_held_out(self) -> bool:
        return self.source == HELD_OUT


class SegmentCurve(NamedTuple):
    """One entry of a channel over the drawn segments, (segment, sample): measured, and simulated before and after."""

    name: str
    unit: str
    time: np.ndarray  # since the start of a segment [s]
    measured: np.ndarray  # NaN: not measured
    before: np.ndarray  # NaN on training data
    after: np.ndarray
    difference: bool  # entries of the tangent space, less what was measured (rotations)
    ratio: float  # held-out error over the noise


def drawn_segments(fit: Fit, noise: Mapping[str, ChannelNoise], recordings: Sequence[Recording] = ()) -> list[Segment]:
    """Two worst and the median of the held-out segments, and the worst of the training data."""
    train, test = parts(list(recordings), fit.task.held_out, fit.task.seed) if recordings else ([], [])
    found = []
    if fit.held_out is not None:
        off = {key: part[:, fit.held_out.seen :] for key, part in fit.held_out.off_after.items()}
        found += _chosen(fit.held_out.shots, segment_errors(off, noise), HELD_OUT, test, 2)
    if fit.evaluated:
        off, few = differences(fit), 1 if found else 2
        found += _chosen(fit.shots, segment_errors(off, noise), TRAINING, train, few)
    return found


def segment_errors(off: Mapping[str, np.ndarray], noise: Mapping[str, ChannelNoise]) -> np.ndarray:
    """Root mean square over the noise of each segment, of the channel where that is largest; NaN: nothing measured."""
    found = []
    for key, part in off.items():
        known = ~np.isnan(part)
        with np.errstate(all="ignore"):
            over = np.where(known, part, 0.0) / np.maximum(noise.get(key, 1.0), 1e-300)
            found.append(np.sqrt(np.sum(over**2, axis=(1, 2)) / known.sum(axis=(1, 2))))
    return np.fmax.reduce(found) if found else np.zeros(0)


def _chosen(shots: Shots, errors: np.ndarray, source: str, runs: Sequence[Recording], worst: int) -> list[Segment]:
    known = np.flatnonzero(~np.isnan(errors))
    if not len(known):
        return []
    order = known[np.argsort(-errors[known], kind="stable")]
    worst = max(worst, LEAST_SAMPLES // shots.samples)
    picked = {int(k): "worst" if n == 0 else f"{_ordinal(n + 1)} worst" for n, k in enumerate(order[:worst])}
    if source == HELD_OUT:
        picked.setdefault(int(order[len(order) // 2]), "median")
    return [
        Segment(label, source, _recording(shots, runs, k), float(np.asarray(shots.begin)[k]), float(errors[k]), k)
        for k, label in picked.items()
    ]


def _ordinal(n: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(n, f"{n}th")


def _recording(shots: Shots, runs: Sequence[Recording], k: int) -> str:
    number = int(np.asarray(shots.run)[k])
    return runs[number].name if number < len(runs) else f"recording {number + 1}"


def segment_curves(fit: Fit, noise: Mapping[str, ChannelNoise], chosen: Sequence[Segment]) -> list[SegmentCurve]:
    """Curves of all entries over the chosen segments, the worst entry first; of long segments some samples."""
    training, found = differences(fit) if fit.evaluated else {}, []
    shots = {HELD_OUT: None if fit.held_out is None else fit.held_out.shots, TRAINING: fit.shots}
    longest = max((part.samples for part in shots.values() if part is not None), default=0)
    every = slice(None, None, max(-(-longest // MOST_SAMPLES), 1))
    for key in fit.shots.measured:
        rows = [_rows(fit, training, s, key, longest) for s in chosen]
        rows = [row for row in rows if row is not None]
        if len(rows) < len(chosen) or not rows:
            continue
        measured, before, after = (np.stack(part)[:, every] for part in zip(*rows, strict=True))
        names, units = (of(fit.model, key, after.shape[-1]) for of in (entry_names, entry_units))
        tangent = np.asarray(fit.shots.measured[key]).shape[-1] != after.shape[-1]
        time, ratios = fit.shots.period * np.arange(longest)[every], _ratios(fit, noise, training, key)
        for k, (name, unit) in enumerate(zip(names, units, strict=True)):
            part = (measured[..., k], before[..., k], after[..., k])
            found.append(SegmentCurve(f"{key} {name}", unit, time, *part, tangent, float(ratios[k])))
    return sorted(found, key=lambda c: -c.ratio if np.isfinite(c.ratio) else -np.inf)


def _ratios(fit: Fit, noise: Mapping[str, ChannelNoise], training: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    """Errors of the entries of a channel over its noise, held-out ones if there are some."""
    held = fit.held_out is not None and key in fit.held_out.off_after
    off = fit.held_out.off_after[key][:, fit.held_out.seen :] if held and fit.held_out else training[key]
    with np.errstate(all="ignore"):
        return np.sqrt(np.nanmean(off**2, axis=(0, 1))) / np.maximum(noise.get(key, 1.0), 1e-300)


def _rows(fit: Fit, training: Mapping[str, np.ndarray], segment: Segment, key: str, samples: int):
    """Measured, before and after of one segment (sample, entry), NaN beyond its end; None: not compared there."""
    held = fit.held_out if segment.is_held_out else None
    source = training if held is None else held.off_after
    shots = fit.shots if held is None else held.shots
    if key not in source:
        return None
    off = source[key][segment.index]
    measured = np.asarray(shots.measured[key])[segment.index]
    base = np.where(np.isnan(off), np.nan, measured if measured.shape == off.shape else np.zeros_like(off))
    before = np.full_like(off, np.nan) if held is None else base + held.off_before[key][segment.index]
    return [_padded(part, samples) for part in (base, before, base + off)]


def _padded(values: np.ndarray, samples: int) -> np.ndarray:
    return np.concatenate([values, np.full((samples - len(values), values.shape[1]), np.nan)])
