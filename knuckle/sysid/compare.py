"""How well a velocity belongs to a position: scale, lag and agreement, from increments against integrals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knuckle.sysid.recording import gaps

MOST_SAMPLES = 4000
LONGEST_LAG = 0.3  # [s]
MOST_LAGS = 150
WINDOW = 0.05  # increments are taken over this time [s]


class Fit(NamedTuple):
    """position increment = scale * integral of velocity; positive lag: the velocity comes late [s]."""

    scale: float
    lag: float
    samples: float  # the lag in samples
    agreement: float  # correlation at the lag
    together: float  # correlation at no lag


def even(time: np.ndarray, *signals: np.ndarray) -> tuple[float, list[np.ndarray]] | None:
    """Signals at even times over the longest stretch without a gap in which all are finite, and the step [s]."""
    good = np.all([np.isfinite(s) for s in signals], axis=0)
    broken = np.zeros(len(time), bool)
    broken[gaps(time) + 1] = True
    labels = np.cumsum(broken | ~good)
    labels[~good] = -1
    found, counts = np.unique(labels[labels >= 0], return_counts=True)
    if not len(found):
        return None
    rows = np.flatnonzero(labels == found[np.argmax(counts)])[:MOST_SAMPLES]
    if len(rows) < 40:
        return None
    t = time[rows]
    dt = float(np.median(np.diff(t)))
    if not 1e-9 < dt < 1e9:
        return None
    count = int(min((t[-1] - t[0]) / dt, 2 * MOST_SAMPLES)) + 1
    if count < 40:
        return None
    grid = t[0] + dt * np.arange(count)
    return dt, [np.interp(grid, t, s[rows]) for s in signals]


def laid_out(x: np.ndarray, turn: float) -> np.ndarray:
    """Angles that stay within a turn and jump by about one, unwrapped; others as they are."""
    good = np.isfinite(x)
    if good.sum() < 2 or np.ptp(x[good]) > turn * 1.001 or np.abs(np.diff(x[good])).max() <= turn / 2:
        return x
    y = x.copy()
    y[good] = np.unwrap(x[good], period=turn)
    return y


def compare(time: np.ndarray, position: np.ndarray, velocity: np.ndarray) -> Fit | None:
    """None where too little moves to tell."""
    spaced = even(time, position, velocity)
    if spaced is None:
        return None
    dt, (x, v) = spaced
    m = int(np.clip(round(WINDOW / dt), 1, len(x) // 20))
    area = np.concatenate([[0.0], np.cumsum(0.5 * (v[1:] + v[:-1]) * dt)])
    moved, due = x[m:] - x[:-m], area[m:] - area[:-m]
    if not (_clear(x, moved, 1.0) and _clear(v, due, m * dt)):
        return None
    most = int(min(round(LONGEST_LAG / dt), MOST_LAGS, len(moved) // 4))
    lags = np.arange(-most, most + 1)
    r = np.array([_correlation(moved, due, int(lag)) for lag in lags])
    best = int(np.argmax(np.abs(r)))
    lag = lags[best] + _vertex(np.abs(r), best)
    a, b = _overlap(moved, due, int(lags[best]))
    scale = np.sign(r[best]) * np.std(a) / np.std(b)
    return Fit(float(scale), float(lag * dt), float(lag), float(abs(r[best])), float(abs(r[most])))


def _clear(signal: np.ndarray, change: np.ndarray, per: float) -> bool:
    """Whether a change stands out of the noise, which second differences show."""
    noise = np.std(np.diff(signal, 2)) / np.sqrt(6) * per
    return bool(
        np.isfinite(noise) and np.std(change) > 3 * noise and np.std(change) > 1e-12 + 1e-9 * np.abs(signal).max()
    )


def _overlap(a: np.ndarray, b: np.ndarray, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """a[i] beside b[i + lag]."""
    return (a[: len(a) - lag], b[lag:]) if lag >= 0 else (a[-lag:], b[:lag])


def _correlation(a: np.ndarray, b: np.ndarray, lag: int) -> float:
    a, b = _overlap(a, b, lag)
    a, b = a - a.mean(), b - b.mean()
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 0 else 0.0


def _vertex(values: np.ndarray, i: int) -> float:
    """Where a parabola through a maximum and its neighbours peaks, from -0.5 to 0.5."""
    if not 0 < i < len(values) - 1:
        return 0.0
    bend = values[i - 1] - 2 * values[i] + values[i + 1]
    return float(np.clip(0.5 * (values[i - 1] - values[i + 1]) / bend, -0.5, 0.5)) if bend < 0 else 0.0
