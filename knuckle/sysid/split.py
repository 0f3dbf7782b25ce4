"""Parts of recordings: training and held-out runs, segments for multiple shooting, and other times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from knuckle.sysid.recording import GAP, Channel, Recording

UNEVEN = 1e-3  # share of a period that steps of even times may be off
PIECE = 4000  # samples of a piece where only some are used: many times the reach of a filter
BLOCKS = 8  # a single run is cut into this many blocks of time, some of which are held out


def split(
    recordings: Sequence[Recording], *, held_out: float = 0.25, seed: int = 0
) -> tuple[list[Recording], list[Recording]]:
    """Training and held-out recordings: whole runs where there are several, else blocks of time of the only one.

    The same seed gives the same parts. At least one run or block stands on each side.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be between 0 and 1, got {held_out}")
    if not recordings:
        raise ValueError("there is no recording to split")
    pieces = list(recordings) if len(recordings) > 1 else blocks(recordings[0], BLOCKS)
    if len(pieces) < 2:
        raise ValueError(f"recording {recordings[0].name!r} is too short to split: {len(recordings[0])} samples")
    count = min(max(round(held_out * len(pieces)), 1), len(pieces) - 1)
    chosen = set(np.random.default_rng(seed).permutation(len(pieces))[:count].tolist())
    if len(recordings) > 1:
        train = [piece for i, piece in enumerate(pieces) if i not in chosen]
        return train, [pieces[i] for i in sorted(chosen)]
    return _joined(pieces, [i for i in range(len(pieces)) if i not in chosen]), _joined(pieces, sorted(chosen))


def blocks(recording: Recording, count: int) -> list[Recording]:
    """Contiguous blocks of about equal duration, of at least two samples each."""
    edges = np.linspace(recording.time[0], recording.time[-1], count + 1)[1:-1]
    cuts = np.concatenate([[0], np.searchsorted(recording.time, edges), [len(recording)]])
    spans = [(int(a), int(b)) for a, b in itertools.pairwise(cuts) if b - a >= 2]
    return [recording.at(a, b, f"{recording.name}[{a}:{b}]") for a, b in spans]


def thinned(recordings: Sequence[Recording], share: float) -> list[Recording]:
    """About this share of the samples: pieces of PIECE samples or more, spread evenly over every recording."""
    return [piece for recording in recordings for piece in _spread(recording, share)]


def _spread(recording: Recording, share: float) -> list[Recording]:
    if len(recording) < 2 * PIECE:
        return [recording]
    pieces = blocks(recording, len(recording) // PIECE)
    count = max(1, round(share * len(pieces)))
    return _joined(pieces, [int((k + 0.5) * len(pieces) / count) for k in range(count)])


def _joined(pieces: Sequence[Recording], chosen: Sequence[int]) -> list[Recording]:
    """Blocks that follow one another become one recording again."""
    runs: list[list[int]] = []
    for i in chosen:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [_concatenated([pieces[i] for i in run]) for run in runs]


def _concatenated(parts: Sequence[Recording]) -> Recording:
    if len(parts) == 1:
        return parts[0]
    channels = {
        key: Channel(
            np.concatenate([p.channels[key].values for p in parts]),
            np.concatenate([p.channels[key].valid for p in parts]),
            channel.names,
        )
        for key, channel in parts[0].channels.items()
    }
    name = parts[0].name.rpartition(":")[0] + ":" + parts[-1].name.rpartition(":")[2]
    return Recording(np.concatenate([p.time for p in parts]), channels, name, parts[0].source)


def segments(recording: Recording, length: float, *, overlap: float = 0.0, gap: float = GAP) -> list[Recording]:
    """Consecutive pieces of at most `length` seconds, none of which crosses a gap, for multiple shooting.

    Each piece begins with the sample that ends the one before it, so that continuity can be asked for; `overlap` [s]
    makes them share more. Pieces of fewer than two samples are left out.
    """
    if not (length > 0 and 0 <= overlap < length):
        raise ValueError(f"length must be positive and overlap shorter than it, got {length} s and {overlap} s")
    time, usual = recording.time, recording.period
    ends = np.append(np.flatnonzero(np.diff(time) > gap * usual), len(recording) - 1)
    pieces, start = [], 0
    for last in ends.tolist():
        while start < last:
            stop = int(np.searchsorted(time, time[start] + length * (1 + 1e-9), side="right")) - 1
            stop = min(max(stop, start + 1), last)
            pieces.append(recording.at(start, stop + 1, f"{recording.name}[{start}:{stop + 1}]"))
            if stop == last:
                break
            start = max(int(np.searchsorted(time, time[stop] - overlap)), start + 1)
        start = last + 1
    return pieces


def resample(recording: Recording, *, rate: float | None = None, time: np.ndarray | None = None) -> Recording:
    """The recording at other times: `rate` [Hz] evenly, or at `time` [s]; linear between samples, controls held.

    Quaternions of poses are normalised after it. A value is valid where both samples beside it are, and the pause
    between them is no gap.
    """
    if (rate is None) == (time is None):
        raise ValueError("give either rate or time")
    if rate is not None:
        if not rate > 0 or recording.duration * rate > 1e8:
            raise ValueError(f"rate must be positive and give at most 1e8 samples, got {rate} Hz")
        time = recording.time[0] + np.arange(int(np.floor(recording.duration * rate * (1 + 1e-12))) + 1) / rate
    new = np.array(time, float)
    channels = {key: interpolated(recording.time, channel, new, key) for key, channel in recording.channels.items()}
    return Recording(new, channels, recording.name, recording.source)


def is_even(time: np.ndarray, period: float | None = None) -> bool:
    steps = np.diff(time)
    period = float(np.median(steps)) if period is None else period
    return bool(np.all(np.abs(steps - period) <= UNEVEN * period))


def filled(recording: Recording, period: float) -> Recording:
    """The recording with rows in which nothing was measured where samples are far apart; gaps stay."""
    time, steps = recording.time, np.diff(recording.time)
    parts = np.where(steps <= GAP * recording.period, np.maximum(np.round(steps / period), 1), 1).astype(int)
    if np.all(parts == 1):
        return recording
    within = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    between = np.repeat(time[:-1], parts) + within * np.repeat(steps / parts, parts)
    more = resample(recording, time=np.append(between, time[-1]))
    own = np.isin(more.time, time)[:, None]
    held = {key: np.where(own, c.valid, key == "control") for key, c in more.channels.items()}  # not interpolated again
    channels = {key: Channel(c.values, held[key], c.names) for key, c in more.channels.items()}
    return Recording(more.time, channels, recording.name, recording.source)


def stretches(recording: Recording) -> list[Recording]:
    """Parts between gaps, of at least two samples; all of it where there is none."""
    edges = [0, *(recording.gaps + 1).tolist(), len(recording)]
    return [recording.at(a, b) for a, b in itertools.pairwise(edges) if b - a >= 2] if len(edges) > 2 else [recording]


def interpolated(old: np.ndarray, channel: Channel, new: np.ndarray, key: str) -> Channel:
    """A channel at new times; nothing outside the old ones or within a gap of them is valid."""
    right = np.clip(np.searchsorted(old, new), 1, len(old) - 1)
    left = right - 1
    span = old[right] - old[left]
    share = np.clip((new - old[left]) / span, 0.0, 1.0)
    weight = (share >= 1.0).astype(float) if key == "control" else share
    values = (1 - weight)[:, None] * channel.values[left] + weight[:, None] * channel.values[right]
    exact_left, exact_right = (share == 0)[:, None], (share == 1)[:, None]
    usual = np.median(np.diff(old))
    between = channel.valid[left] & channel.valid[right] & (span <= GAP * usual)[:, None]
    valid = np.where(exact_left, channel.valid[left], np.where(exact_right, channel.valid[right], between))
    slack = 1e-9 * usual
    inside = (new >= old[0] - slack) & (new <= old[-1] + slack)
    _normalise_quaternions(values, channel.names)
    return Channel(values, valid & inside[:, None], channel.names)


def _normalise_quaternions(values: np.ndarray, names: Sequence[str]) -> None:
    """Quaternions in place: four entries that end in qw qx qy qz, or w x y z of a ball joint."""
    for i in quaternions(names):
        norm = np.linalg.norm(values[:, i : i + 4], axis=1, keepdims=True)
        values[:, i : i + 4] /= np.where(norm > 0, norm, 1.0)


def quaternions(names: Sequence[str]) -> list[int]:
    """Where quaternions begin among the entries of a channel."""
    ends = [name.rpartition(".")[2] for name in names]
    return [i for i in range(len(ends) - 3) if ends[i : i + 4] in (["qw", "qx", "qy", "qz"], ["w", "x", "y", "z"])]


def shift(recording: Recording, channel: str, by: float) -> Recording:
    """The recording with the stamps of one channel moved by `by` seconds: negative for a channel that comes late."""
    moved = interpolated(recording.time + by, recording[channel], recording.time, channel)
    return recording.replace(**{channel: moved})
