"""Zero-phase low-pass filters, and the cut-off that a recording allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.signal import butter, sosfiltfilt, sosfreqz, welch

if TYPE_CHECKING:
    from knuckle.sysid.regression.signals import Signals

ORDER = 4
ABOVE_FLOOR = 7.0  # power of the motion over that of the noise at the cut-off
WIDE = 5.0  # band of the features over the cut-off
NYQUIST = 0.45  # of the rate: no filter above
LEAST_BAND = 5.0  # cut-off over the frequency below which 95 % of the velocity's power lies
SHORTEST = 128  # samples of a spectrum
CLEARLY = 0.25  # of the noise of a measured velocity: with less, the slope of the position is used


@dataclass(frozen=True)
class Filter:
    """Butterworth of order 4, forwards and backwards: no phase. Passes everything if the rate has no room for it."""

    cutoff: float  # [Hz]
    rate: float  # [Hz]

    @property
    def acts(self) -> bool:
        return self.cutoff < NYQUIST * self.rate

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Filtered along the first axis."""
        if not self.acts:
            return x
        return np.asarray(sosfiltfilt(_sections(self.cutoff, self.rate), x, axis=0, padlen=min(self.edge, len(x) - 2)))

    def gain(self, frequency: np.ndarray) -> np.ndarray:
        """What it leaves of a sine of each frequency [Hz]."""
        return np.square(np.abs(sosfreqz(_sections(self.cutoff, self.rate), frequency, fs=self.rate)[1]))

    @property
    def edge(self) -> int:
        """Samples at an end, or beside one that was not measured, on which the filter's transient acts."""
        return round(self.rate / self.cutoff) if self.acts else 0


@lru_cache(maxsize=64)
def _sections(cutoff: float, rate: float) -> np.ndarray:
    return np.asarray(butter(ORDER, cutoff, fs=rate, output="sos"))


def choose_cutoff(signals: Sequence[Signals], moving: np.ndarray) -> float:
    """The frequency above which velocities sink into noise [Hz], the median over moving joints.

    The noise floor of a joint is the median of its spectrum over the upper half of the band. The spectrum is that of
    the velocity if measured, else that of the position. The cut-off is at least five times the frequency below which
    95 % of the velocity's power above the noise lies, and at most 0.45 of the rate.
    """
    longest = max(signals, key=lambda s: s.time[-1] - s.time[0])
    rate, size = longest.rate, min(1024, len(longest))
    frequency, of_velocity = welch(longest.qd, rate, nperseg=size, axis=0)
    if size < SHORTEST:
        return float(NYQUIST * rate)
    plain = longest.q.shape[1] == longest.qd.shape[1]
    of_position = welch(longest.q, rate, nperseg=size, axis=0)[1] if plain else of_velocity
    found, least = [], []
    for j in np.flatnonzero(moving):
        power = of_velocity[:, j] if longest.velocity_measured[j] or not plain else of_position[:, j]
        found.append(_above_floor(frequency, power))
        motion = np.where(frequency <= found[-1], of_velocity[:, j], 0.0)
        least.append(LEAST_BAND * frequency[np.searchsorted(np.cumsum(motion), 0.95 * motion.sum())])
    return float(np.clip(max(np.median(found), np.median(least)), 4 * rate / len(longest), NYQUIST * rate))


def noisier_than_positions(q: np.ndarray, qd: np.ndarray, rate: float) -> np.ndarray:
    """Joints whose measured velocity is noisier than the slope of the position, over the band of the motion.

    White noise of density S_q in the position is (2 pi f)^2 S_q in its slope, on average over a band up to f a third of
    that. The band is five times that of the velocity's power. The slope must have at most a quarter of the power.
    """
    if q.shape != qd.shape or min(len(q), 1024) < SHORTEST:
        return np.zeros(qd.shape[1], bool)
    (frequency, of_q), (_, of_qd) = (welch(x, rate, nperseg=min(1024, len(q)), axis=0) for x in (q, qd))
    found = np.zeros(qd.shape[1], bool)
    for j in range(qd.shape[1]):
        floor_q, floor_qd = (np.median(p[len(p) // 2 :, j]) for p in (of_q, of_qd))
        motion = np.where(frequency <= _above_floor(frequency, of_qd[:, j]), of_qd[:, j], 0.0)
        band = LEAST_BAND * frequency[np.searchsorted(np.cumsum(motion), 0.95 * motion.sum())]
        found[j] = (2 * np.pi * band) ** 2 / 3 * floor_q < CLEARLY * floor_qd
    return found


def _above_floor(frequency: np.ndarray, power: np.ndarray) -> float:
    """Where the spectrum, smoothed over neighbouring frequencies, first falls to seven times its floor."""
    floor = np.median(power[len(power) // 2 :])
    width = max(len(power) // 64, 1)
    smooth = np.exp(np.convolve(np.log(power + 1e-300), np.ones(width) / width, mode="same"))
    peak = int(np.argmax(smooth))
    below = np.flatnonzero(smooth[peak:] <= ABOVE_FLOOR * floor)
    return float(frequency[peak + below[0]]) if len(below) else float(frequency[-1])
