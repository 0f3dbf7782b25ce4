"""Recordings as pieces to simulate: where each starts, what drives it, and what was measured, in equal shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from knuckle.deadline import Deadline
from knuckle.model.joints import difference, retract
from knuckle.model.model import Model
from knuckle.sysid.drives import DRIVES, controls_of, drive_channel
from knuckle.sysid.entries import weights_of_entries
from knuckle.sysid.findings import listed
from knuckle.sysid.noise_kinds import ChannelNoise, of_entries
from knuckle.sysid.recording import Channel, Recording
from knuckle.sysid.selection import FEWEST, blocks_in_spread_order
from knuckle.sysid.split import filled, is_even, segments, stretches

Leaf = Array | np.ndarray
FARTHEST = 1.5  # periods between rows; where samples are farther apart, rows without measurements come in between
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
    run: Float[Leaf, " shot"]  # number of the recording that a piece is of
    begin: Float[Leaf, " shot"]  # when it starts there [s]
    stamps: Float[Leaf, "shot drive"] | None  # of the rows of `control`, since the start [s]; None: one each period
    last: Int[Leaf, " shot"] | None  # sample that ends a piece; None: all that are joined have as many
    period: float = eqx.field(static=True)  # between samples [s]
    history: int = eqx.field(static=True)  # samples that something may come late
    samples: int = eqx.field(static=True)
    linear: bool = eqx.field(static=True)  # controls change linearly from sample to sample; else each is held

    @property
    def count(self) -> int:
        return len(self.joined)

    @property
    def longest(self) -> float:
        """Time between samples [s], at most."""
        return self.period if self.stamps is None else FARTHEST * self.period

    @property
    def sample_stamps(self) -> Float[Leaf, "*shot sample"] | None:
        """Times of the samples since the start [s]; None: one each period."""
        return None if self.stamps is None else self.stamps[..., self.history :]


def make_shots(model: Model, recordings: Sequence[Recording], **options) -> Shots:
    """All segments of recordings; options as of `choose_shots`."""
    return choose_shots(model, recordings, **options)[0]


def choose_shots(
    model: Model,
    recordings: Sequence[Recording],
    *,
    length: float | None,
    noise: Mapping[str, ChannelNoise],
    latest: float = 0.0,
    steady: bool = False,
    drive: Drive | None = None,
    most: int | None = None,
    deadline: Deadline | None = None,
) -> tuple[Shots, int, np.ndarray]:
    """Segments, how many there are in the recordings, and for each that was taken which one it was in turn.

    Pieces of at most `length` seconds (None: whole recordings), with drives from `latest` seconds before on.

    most: of more segments only so many are used, spread over all recordings; fewer where the deadline comes before.

    steady: starts are estimated such that outliers among the first samples do not matter.
    drive: what controls do between samples; by default commands are held, and measured torques change linearly.
    """
    period = float(np.median([r.period for r in recordings]))
    numbered = [(k, part) for k, r in enumerate(recordings) for part in stretches(filled(r, period))]
    parts = [part for _, part in numbered]
    even = all(is_even(part.time, period) for part in parts)
    longest = None if length is None else length + (0.0 if even else period / 2)
    runs = [segments(part, longest or part.duration + period) for part in parts]
    samples = max(len(piece) for run in runs for piece in run)
    even = even and all(len(piece) == samples for run in runs for piece in run[:-1])
    history = int(np.ceil(latest / (period if even else min(r.period for r in recordings)))) if latest else 0
    started, channels = steady_start if steady else measured_start, _channels(recordings, noise)
    row = _Rows(model, period, samples, history, noise, channels, started, even)
    rows: dict[tuple[int, int], dict] = {}
    controls = [controls_of(model, whole) for whole in parts]
    for n, k in (place for block in blocks_in_spread_order([len(run) for run in runs]) for place in block):
        late = deadline is not None and deadline.out and len(rows) >= FEWEST
        if late or (most is not None and len(rows) >= most):
            break
        rows[n, k] = {"run": np.array(float(numbered[n][0])), **row(parts[n], controls[n], runs[n][k])}
    turn = {place: number for number, place in enumerate(rows)}
    for (n, k), this in rows.items():
        following = rows.get((n, k + 1))
        joined = following is not None and _adjacent(parts[n], runs[n][k], runs[n][k + 1])
        after = following if following is not None and joined else this
        this |= {"next_q": after["q"], "next_qd": after["qd"], "joined": np.array(float(joined))}
    stacked = jax.tree.map(lambda *parts: np.stack(parts), *(rows[at] for at in sorted(rows)))
    fixed = {"period": period, "history": history, "samples": samples, "linear": _is_linear(recordings, drive)}
    order = np.array([turn[place] for place in sorted(rows)])
    return Shots(**stacked, **fixed), sum(len(run) for run in runs), order


def _adjacent(whole: Recording, piece: Recording, following: Recording) -> bool:
    return abs(following.time[0] - piece.time[-1]) < 1e-9 + 1e-3 * whole.period


def _channels(recordings: Sequence[Recording], noise: Mapping[str, ChannelNoise]) -> dict[str, tuple[str, ...]]:
    """What is compared, with names of the entries: all channels of known noise that some recording has."""
    found: dict[str, tuple[str, ...]] = {}
    for r in recordings:
        for key in (key for key in r.channels if key in noise and key not in DRIVES):
            names = found.setdefault(key, r[key].names)
            if len(names) != len(r[key].names):
                raise ValueError(
                    f"recording {r.name!r}: {key} has {len(r[key].names)} entries, in another recording {len(names)}"
                )
    if not found:
        has = listed(recordings[0].channels)
        raise ValueError(f"there is nothing to compare in recording {recordings[0].name!r}: it has only {has}")
    return found


def _is_linear(recordings: Sequence[Recording], drive: Drive | None) -> bool:
    """Whether drives change linearly between samples: torques do, commands do not, both together must be said."""
    if drive is not None:
        return drive == "linear"
    kinds = {drive_channel(r): r.name for r in reversed(recordings)}
    if "control" in kinds and "tau" in kinds:
        raise ValueError(
            f"recording {kinds['control']!r} has controls, which are held between samples, and {kinds['tau']!r} only "
            'torques, which change linearly: say what both do, drive="held" or "linear" (--drive), or leave one out'
        )
    return "tau" in kinds


class _Rows(NamedTuple):
    """Makes pieces into arrays of full length."""

    model: Model
    period: float
    samples: int
    history: int
    noise: Mapping[str, ChannelNoise]
    channels: Mapping[str, tuple[str, ...]]
    started: Callable
    even: bool

    def __call__(self, whole: Recording, controls: np.ndarray, piece: Recording) -> dict:
        """Of one piece of a stretch, which has these controls."""
        start = self.started(self.model, piece, self.noise)
        first, inside = int(np.searchsorted(whole.time, piece.time[0])), np.arange(self.samples) < len(piece)
        rows = np.arange(first - self.history, first + self.samples)
        at = np.clip(rows, 0, len(whole) - 1)  # controls are held at the ends of the recording
        seen = {key: _seen(piece, key, names) for key, names in self.channels.items()}
        weight = {key: c.valid / self.noise[key] for key, c in seen.items()}
        return {
            "q": start[0],
            "qd": start[1],
            "known": start[2],
            "control": controls[at],
            "measured": {key: self._filled(c.values) for key, c in seen.items()},
            "weight": {key: self._filled(w) * inside[:, None] for key, w in weight.items()},
            "begin": np.array(piece.time[0]),
            "stamps": None if self.even else whole.time[at] + (rows - at) * self.period - piece.time[0],
            "last": None if self.even else np.array(len(piece) - 1),
        }

    def _filled(self, array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.repeat(array[-1:], self.samples - len(array), axis=0)])


def _seen(piece: Recording, key: str, names: tuple[str, ...]) -> Channel:
    """A channel; what a recording lacks was not measured."""
    if key in piece.channels:
        return piece[key]
    nothing = Channel(np.zeros((len(piece), len(names))), np.zeros((len(piece), len(names)), bool), names)
    return Recording(piece.time, {key: nothing})[key]


def measured_start(model: Model, piece: Recording, noise: Mapping[str, ChannelNoise]):
    """Coordinates and velocities at the start of a piece, and how far off they may be (one deviation)."""
    if "q" not in piece.channels:
        return np.asarray(model.reference, float), np.zeros(model.nv), _unknown(model)
    q, q_off = piece["q"].values, of_entries(model, "q", noise["q"])
    window = min(len(q) - (len(q) + 1) % 2, 9)
    first = q[: max(window, 2)]
    plain = not set(model.topology.kind) & {"ball", "free"}
    moved = first - q[0] if plain else np.stack([np.asarray(difference(model, q[0], row)) for row in first])
    period = piece.period
    if "qd" in piece.channels and piece["qd"].valid[0].all():
        qd, qd_off = piece["qd"].values[0], np.full(model.nv, 3 * of_entries(model, "qd", noise["qd"]))
    elif window >= 5:
        qd = _first_slope(piece.time[:window], moved, period)
        qd_off = np.full(model.nv, 3 * q_off / (period * window)) + 0.1 * np.abs(np.asarray(qd)) + 0.05
    else:
        apart = period * (len(moved) - 1) if is_even(piece.time) else piece.time[len(moved) - 1] - piece.time[0]
        qd = (moved[-1] - moved[0]) / apart
        qd_off = np.full(model.nv, 3 * q_off / period) + 0.1 * np.abs(qd) + 0.05
    return q[0], qd, _known(model, piece, noise, qd_off)


def _unknown(model: Model) -> np.ndarray:
    return np.concatenate([np.full(model.nv, np.pi), np.full(model.nv, 10.0)])


def _known(model: Model, piece: Recording, noise: Mapping[str, ChannelNoise], qd_off: np.ndarray) -> np.ndarray:
    """How far off a start may be; of joints that the piece does not show, anything."""
    known = np.concatenate([np.full(model.nv, 10 * of_entries(model, "q", noise["q"])), 10 * qd_off])
    shown = np.max(piece["q"].valid, axis=0, keepdims=True).astype(float)
    seen = (shown if model.nq == model.nv else np.asarray(weights_of_entries(model, "q", jnp.asarray(shown))))[0]
    return np.where(np.tile(seen > 0, 2), known, np.maximum(known, _unknown(model)))


@cache
def _slope_weights(count: int) -> np.ndarray:
    """Of values one apart: the slope at the first of the parabola through them, by least squares."""
    return np.linalg.pinv(np.vander(np.arange(float(count)), 3, increasing=True))[1]


def _first_slope(time: np.ndarray, values: np.ndarray, period: float) -> np.ndarray:
    """That of parabolas through the samples, at the first."""
    if is_even(time):
        return _slope_weights(len(time)) @ values / period
    return np.polynomial.polynomial.polyfit(time - time[0], values, 2)[1]


def steady_start(model: Model, piece: Recording, noise: Mapping[str, ChannelNoise]):
    """The same from polynomials through most of the first samples: up to almost half of them may be outliers."""
    q, qd, known = measured_start(model, piece, noise)
    if "q" not in piece.channels or len(piece) < 5:
        return q, qd, known
    rows = piece["q"].values[: min(len(piece), STEADY)]
    apart = np.asarray(jax.vmap(lambda a: jax.vmap(lambda b: difference(model, a, b))(rows))(rows))
    centre = np.argmin(np.median(np.abs(apart).sum(axis=-1), axis=1))
    at = np.arange(len(rows)) if is_even(piece.time) else (piece.time[: len(rows)] - piece.time[0]) / piece.period
    place, speed = np.transpose([least_median(at, column) for column in apart[centre].T])
    qd_off = (
        3 * of_entries(model, "q", noise["q"]) / (piece.period * len(rows)) + 0.1 * np.abs(speed / piece.period) + 0.05
    )
    known = _known(model, piece, noise, qd_off)
    return np.asarray(retract(model, rows[centre], place)), speed / piece.period, known


def least_median(at: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Value and slope at 0: the polynomial with the least median of absolute errors (Rousseeuw 1984),
    then least squares over what is near it."""
    degree = 2 if len(values) >= 7 else 1
    powers = np.vander(at, degree + 1, increasing=True).astype(float)
    through = [list(c) for c in combinations(range(len(values)), degree + 1)]
    found = np.linalg.solve(powers[through], values[through][..., None])[..., 0]
    off = np.abs(values - found @ powers.T)
    best = np.argmin(np.median(off, axis=1))
    near = off[best] <= 4 * np.median(off[best]) + 1e-12
    value, slope = np.linalg.lstsq(powers[near], values[near], rcond=None)[0][:2]
    return float(value), float(slope)
