"""Marker positions of IBM's double pendulum as angles and lengths, and roll-out errors, the same for all models.

Conventions, found from the data: energy is kept only if gravity points along +x of the image (`energy_weights`), so
the columns called x run down, and y is across. The arms are 91 mm and 70 mm (Asseman et al. 2018); their ratio is that
of the markers. With arms of that length and 400 frames a second gravity comes out as 6.2 m/s^2: the clock or the
lengths are not as stated, but only lengths over times squared matter, so gravity is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.signal import savgol_filter

from knuckle.sysid import Recording, datasets

RATE, ARM = 400.0, 91.0  # [Hz], [mm]
UNIT = 0.05  # [s]; models work in units of the first arm, of this time, and of the lower arm's mass
TRAIN, VALIDATION, TEST = range(8), range(8, 10), range(10, 14)  # runs
SEEN = 20  # frames from which a start is found: 50 ms
HORIZONS = (0.25, 0.5, 1.0, 2.0)  # [s]
FRAMES = SEEN + int(HORIZONS[-1] * RATE)


class Run(NamedTuple):
    """Elbow and tip from the pivot [arms], down and across; angles [rad], the same smooth, and speeds [rad/UNIT]."""

    markers: np.ndarray
    q: np.ndarray
    smooth_q: np.ndarray
    qd: np.ndarray


def load() -> list[Run]:
    return [run_of(recording) for recording in datasets.ibm_double_pendulum()]


def run_of(recording: Recording) -> Run:
    """In units of the mean distance of pivot and elbow, the first arm."""
    pixels = recording["pixels"].values
    from_pivot = pixels[:, 2:] - np.tile(pixels[:, :2].mean(0), 2)
    markers = from_pivot / np.hypot(from_pivot[:, 0], from_pivot[:, 1]).mean()
    upper = np.unwrap(np.arctan2(markers[:, 1], markers[:, 0]))
    lower = np.unwrap(np.arctan2(markers[:, 3] - markers[:, 1], markers[:, 2] - markers[:, 0]))
    q = np.stack([upper, lower - upper], axis=1)
    smooth, qd = (savgol_filter(q, 15, 4, deriv=d, delta=1 / RATE / UNIT, axis=0) for d in (0, 1))
    return Run(markers, q, np.asarray(smooth), np.asarray(qd))


def second_arm(runs: Sequence[Run]) -> float:
    """Mean distance of elbow and tip [arms]."""
    return float(np.mean([np.hypot(*(run.markers[:, 2:] - run.markers[:, :2]).T).mean() for run in runs]))


def pieces(runs: Sequence[Run], frames: int, count: int, seed: int = 0) -> list[Run]:
    """Pieces at random places of random runs."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        run = runs[int(rng.integers(len(runs)))]
        at = int(rng.integers(8, len(run.q) - frames - 8))
        found.append(Run(*(part[at : at + frames] for part in run)))
    return found


def windows(runs: Sequence[Run]) -> np.ndarray:
    """Marker positions of all windows of FRAMES that fit in the runs side by side."""
    return np.stack([run.markers[a : a + FRAMES] for run in runs for a in range(0, len(run.q) - FRAMES, FRAMES)])


Predict = Callable[[np.ndarray], np.ndarray]  # from SEEN frames of markers to FRAMES of them


def errors(predict: Predict, shown: np.ndarray) -> np.ndarray:
    """Root mean square distance [mm] of both markers from the truth over each horizon: (window, horizon)."""
    off = np.stack([predict(window[:SEEN]) - window for window in shown])[:, SEEN:]
    squared = np.sum(np.nan_to_num(off, nan=2.0) ** 2, axis=2) / 2
    return ARM * np.sqrt(np.stack([squared[:, : int(h * RATE)].mean(1) for h in HORIZONS], axis=1))


def energy_weights(runs: Sequence[Run]) -> np.ndarray:
    """Factors of sin and cos of both arms' angles in the energy that is kept best, of the first arm's speed squared 1.

    Least squares on differences over 0.1 s of A'^2 + a B'^2 + b A'B' cos(A - B) + c . (sin A, sin B, cos A, cos B).
    """
    rows = []
    for run in runs:
        (A, B), (dA, dB) = (np.cumsum(x, axis=1).T for x in (run.smooth_q, run.qd))
        terms = [dA**2, dB**2, dA * dB * np.cos(A - B), np.sin(A), np.sin(B), np.cos(A), np.cos(B)]
        rows.append(np.diff(np.stack(terms, 1)[::40], axis=0))
    change = np.concatenate(rows)
    return np.linalg.lstsq(change[:, 1:], -change[:, 0], rcond=None)[0][2:]
