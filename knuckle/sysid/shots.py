"""Recordings as pieces to simulate: where each starts, what drives it, and what was measured, in equal shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.signal import savgol_filter

from knuckle.model.joints import difference, retract
from knuckle.model.model import Model
from knuckle.sysid.drives import DRIVES, controls_of, drive_channel
from knuckle.sysid.recording import Recording
from knuckle.sysid.split import resample, segments

Leaf = Array | np.ndarray
UNEVEN = 1e-3  # share of a period that stamps may be off before a recording is brought to even times
STEADY = 11  # samples that a start is estimated from where there may be outliers
Drive = Literal["held", "linear"]


class Shots(eqx.Module):
    """Pieces of recordings, stacked: each has as many samples as the longest; what is beyond its end weighs nothing."""

    q: Float[Leaf, "shot nq"]  # where a piece is taken to start; the fit moves it
    qd: Float[Leaf, "shot nv"]
    known: Float[Leaf, "shot 2nv"]  # deviation of these starts from the truth, as far as the data tell
    control: Float[Leaf, "shot drive nu"]  # at the samples, with `history` samples from before the start
    measured: dict[str, Float[Leaf, "shot sample entry"]]
    weight: dict[str, Float[Leaf, "shot sample entry"]]  # 1 over the noise, 0 where nothing was measured
    next_q: Float[Leaf, "shot nq"]  # where the piece that follows starts
    next_qd: Float[Leaf, "shot nv"]
    joined: Float[Leaf, " shot"]  # 1 where a piece follows at once
    period: float = eqx.field(static=True)  # between samples [s]
    history: int = eqx.field(static=True)  # samples that something may come late
    samples: int = eqx.field(static=True)
    linear: bool = eqx.field(static=True)  # controls change linearly from sample to sample; else each is held

    @property
    def count(self) -> int:
        return len(self.joined)


def make_shots(
    model: Model,
    recordings: Sequence[Recording],
    *,
    length: float | None,
    noise: Mapping[str, float],
    latest: float = 0.0,
    compared: Sequence[str] | None = None,
    steady: bool = False,
    drive: Drive | None = None,
) -> Shots:
    """Pieces of at most `length` seconds (None: whole recordings), with drives from `latest` seconds before on.

    steady: starts are estimated such that outliers among the first samples do not matter.
    drive: what controls do between samples; by default commands are held, and measured torques change linearly.
    """
    period = float(np.median([r.period for r in recordings]))
    even = [_evenly(r, period) for r in recordings]
    channels = [key for key in even[0].channels if key not in DRIVES] if compared is None else list(compared)
    _check_channels(even, channels)
    runs = [segments(r, length or r.duration + period) for r in even]
    samples = max(len(piece) for run in runs for piece in run)
    history = int(np.ceil(latest / period)) if latest else 0
    rows = [
        _row(model, r, piece, k, run, samples, history, noise, channels, steady)
        for r, run in zip(even, runs, strict=True)
        for k, piece in enumerate(run)
    ]
    stacked = jax.tree.map(lambda *parts: np.stack(parts), *rows)
    linear = drive == "linear" or (drive is None and all(drive_channel(r) == "tau" for r in even))
    return Shots(**stacked, period=period, history=history, samples=samples, linear=linear)


def _evenly(recording: Recording, period: float) -> Recording:
    steps = np.diff(recording.time)
    if np.all(np.abs(steps - period) <= UNEVEN * period):
        return recording
    return resample(recording, rate=1 / period)


def _check_channels(recordings: Sequence[Recording], channels: Sequence[str]) -> None:
    if not channels:
        raise ValueError(f"there is nothing to compare in recording {recordings[0].name!r}: it has only drives")
    for r in recordings:
        missing = [key for key in channels if key not in r.channels]
        if missing:
            raise ValueError(
                f"recording {r.name!r} lacks {', '.join(missing)}, which others have; it has {', '.join(r.channels)}"
            )


def _row(model, whole: Recording, piece: Recording, k: int, run, samples: int, history: int, noise, channels,
         steady: bool) -> dict:  # fmt: skip
    """One piece as arrays of full length."""
    estimated_start = steady_start if steady else measured_start
    start, following = estimated_start(model, piece, noise), run[k + 1] if k + 1 < len(run) else None
    joined = following is not None and abs(following.time[0] - piece.time[-1]) < 1e-9 + 1e-3 * whole.period
    after = estimated_start(model, following, noise) if joined and following is not None else start
    first = int(np.searchsorted(whole.time, piece.time[0]))

    def filled(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.repeat(array[-1:], samples - len(array), axis=0)])

    inside = np.arange(samples) < len(piece)
    return {
        "q": start[0],
        "qd": start[1],
        "known": start[2],
        "control": _drive(model, whole, first, samples, history),
        "measured": {key: filled(piece[key].values) for key in channels},
        "weight": {key: filled(piece[key].valid) * inside[:, None] / noise[key] for key in channels},
        "next_q": after[0],
        "next_qd": after[1],
        "joined": np.array(float(joined)),
    }


def _drive(model: Model, whole: Recording, first: int, samples: int, history: int) -> np.ndarray:
    """Controls from `history` samples before the first on; held at the ends of the recording."""
    values = controls_of(model, whole)
    at = np.clip(np.arange(first - history, first + samples), 0, len(values) - 1)
    return values[at]


def measured_start(model: Model, piece: Recording, noise: Mapping[str, float]):
    """Coordinates and velocities at the start of a piece, and how far off they may be (one deviation)."""
    if "q" not in piece.channels:
        unknown = np.concatenate([np.full(model.nv, np.pi), np.full(model.nv, 10.0)])
        return np.asarray(model.reference, float), np.zeros(model.nv), unknown
    q = piece["q"].values
    window = min(len(q) - (len(q) + 1) % 2, 9)
    moved = np.stack([np.asarray(difference(model, q[0], row)) for row in q[: max(window, 2)]])
    period = piece.period
    if "qd" in piece.channels and piece["qd"].valid[0].all():
        qd, qd_off = piece["qd"].values[0], np.full(model.nv, 3 * noise["qd"])
    elif window >= 5:
        qd = np.asarray(savgol_filter(moved, window, 2, deriv=1, delta=period, axis=0))[0]
        qd_off = np.full(model.nv, 3 * noise["q"] / (period * window)) + 0.1 * np.abs(np.asarray(qd)) + 0.05
    else:
        qd = (moved[-1] - moved[0]) / (period * (len(moved) - 1))
        qd_off = np.full(model.nv, 3 * noise["q"] / period) + 0.1 * np.abs(qd) + 0.05
    return q[0], qd, np.concatenate([np.full(model.nv, 10 * noise["q"]), 10 * qd_off])


def steady_start(model: Model, piece: Recording, noise: Mapping[str, float]):
    """The same from polynomials through most of the first samples: up to almost half of them may be outliers."""
    q, qd, known = measured_start(model, piece, noise)
    if "q" not in piece.channels or len(piece) < 5:
        return q, qd, known
    rows = piece["q"].values[: min(len(piece), STEADY)]
    apart = np.asarray(jax.vmap(lambda a: jax.vmap(lambda b: difference(model, a, b))(rows))(rows))
    centre = np.argmin(np.median(np.abs(apart).sum(axis=-1), axis=1))
    place, speed = np.transpose([least_median(column) for column in apart[centre].T])
    qd_off = 3 * noise["q"] / (piece.period * len(rows)) + 0.1 * np.abs(speed / piece.period) + 0.05
    known = np.concatenate([np.full(model.nv, 10 * noise["q"]), 10 * qd_off])
    return np.asarray(retract(model, rows[centre], place)), speed / piece.period, known


def least_median(values: np.ndarray) -> tuple[float, float]:
    """Value and slope at the first sample: the polynomial with the least median of absolute errors (Rousseeuw 1984),
    then least squares over what is near it."""
    degree = 2 if len(values) >= 7 else 1
    powers = np.vander(np.arange(len(values)), degree + 1, increasing=True).astype(float)
    through = [list(c) for c in combinations(range(len(values)), degree + 1)]
    found = np.linalg.solve(powers[through], values[through][..., None])[..., 0]
    off = np.abs(values - found @ powers.T)
    best = np.argmin(np.median(off, axis=1))
    near = off[best] <= 4 * np.median(off[best]) + 1e-12
    value, slope = np.linalg.lstsq(powers[near], values[near], rcond=None)[0][:2]
    return float(value), float(slope)
