"""Speeds below which a joint counts as stationary, and noise of velocities: scales of friction with units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.signal import welch

from knuckle.model.model import Model
from knuckle.sysid.entries import dimensions
from knuckle.sysid.regression.filters import SHORTEST
from knuckle.sysid.regression.friction import MOVES, WIDTH
from knuckle.sysid.regression.signals import Signals

SLOW = 0.01  # share of the speed of the fastest joint of its kind, below which a joint is stationary
LEAST_SLOW = 1e-4  # [rad/s or m/s]
OVER_NOISE = 4.0  # standard deviations of a speed that is motion; 98 % of noise is within 2.3


def fastest_speeds(signals: Sequence[Signals]) -> np.ndarray:
    """98th percentile of the speed of each degree of freedom, over the recordings that has it largest."""
    return np.max([np.percentile(np.abs(s.qd), 98, axis=0) for s in signals], axis=0)


def slow_speeds(model: Model, signals: Sequence[Signals]) -> np.ndarray:
    """Speeds (dof,) [rad/s or m/s] below which joints count as stationary.

    A hundredth of the fastest joint that turns, or slides: at most 0.01 rad/s or m/s, at least 1e-4.
    """
    fastest, kinds = fastest_speeds(signals), np.array(dimensions(model, "qd"))
    of_kind = np.array([fastest[kinds == kind].max() for kind in kinds])
    return np.clip(SLOW * of_kind, LEAST_SLOW, WIDTH)


def moving_joints(signals: Sequence[Signals], slow: np.ndarray) -> np.ndarray:
    """Joints (dof,) that exceed twice their slow speed, and noise if they do not exceed 0.02 rad/s or m/s."""
    fastest = fastest_speeds(signals)
    noise = np.max([_white_noise(s.qd) for s in signals], axis=0)
    return (fastest > MOVES * slow) & ((fastest > MOVES * WIDTH) | (fastest > OVER_NOISE * noise))


def _white_noise(x: np.ndarray) -> np.ndarray:
    """Standard deviation of white noise on samples (time, dof), by third differences."""
    return np.sqrt(np.mean(np.square(np.diff(x, 3, axis=0)), axis=0) / 20)


def velocity_noise(signals: Sequence[Signals], band: float) -> np.ndarray:
    """Standard deviation (dof,) of the noise of velocities below `band` [Hz], by the floor of the spectra.

    White noise of density S has the variance S band; noise of density S in positions from which velocities are slopes
    has S (2 pi)^2 band^3 / 3.
    """
    found = [_noise_of(s, band) for s in signals if len(s) >= SHORTEST]
    return np.median(found, axis=0) if found else np.zeros(signals[0].qd.shape[1])


def _noise_of(signals: Signals, band: float) -> np.ndarray:
    band = min(band, signals.rate / 2)
    size = min(1024, len(signals))

    def floor(x: np.ndarray) -> np.ndarray:
        power = welch(x, signals.rate, nperseg=size, axis=0)[1]
        return np.median(power[len(power) // 2 :], axis=0)

    measured = floor(signals.qd) * band
    if signals.q.shape != signals.qd.shape:
        return np.sqrt(measured)
    derived = floor(signals.q) * (2 * np.pi) ** 2 * band**3 / 3
    return np.sqrt(np.where(signals.velocity_measured, measured, derived))
