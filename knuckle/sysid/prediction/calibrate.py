"""Noise of efforts with which predictions of a given length are as far off as their intervals say, on known data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from knuckle.model.joints import difference
from knuckle.native import vmap
from knuckle.sysid.drives import controls_of, drive_channel
from knuckle.sysid.prediction.draws import Draws
from knuckle.sysid.recording import Recording
from knuckle.sysid.smoothing import EffortNoise, Smoothed

WINDOWS = 32
TIMES = (0.5, 1.0)  # shares of the length at which predictions are compared
LEAST_WINDOWS = 6
ROUNDS, NEAR, MOST_CHANGE = 4, 0.05, 4.0  # of the standard deviations


def calibrate(
    drawn: Draws,
    recording: Recording,
    smoothed: Smoothed,
    seconds: float,
    *,
    dt: float,
    windows: int = WINDOWS,
    seed: int = 0,
    known_error: bool = False,
) -> EffortNoise:
    """Noise of the effort for predictions of so many seconds, from those of a recording that was smoothed.

    It begins as `Smoothed.noise_over(seconds)`. Errors that depend on the state, such as those of friction that the
    model lacks, add up in other ways than noise does: they may grow faster, or cancel as the motion reverses. Roll-outs
    from filtered states are therefore compared with the recording. The standard deviation of each joint is multiplied
    by the root mean square of error over predicted deviation, until that is 1.

    Args:
        known_error: whether predictions will begin with the filter's estimate of the error (`effort_error`).
    """
    noise, steps = smoothed.noise_over(seconds), round(seconds / dt)
    starts = window_starts(smoothed.time, seconds, windows)
    if len(starts) < LEAST_WINDOWS:
        raise ValueError(f"calibrate: {len(starts)} windows of {seconds} s are too few: {LEAST_WINDOWS} are needed")
    work = _Windows(drawn, recording, smoothed, starts, steps, dt, seed, known_error)
    for _ in range(ROUNDS):
        factor = np.clip(work.ratios(noise), 1 / MOST_CHANGE, MOST_CHANGE)
        noise = noise._replace(deviation=noise.deviation * factor)
        if np.all(np.abs(factor - 1) < NEAR):
            break
    return noise


class _Windows(NamedTuple):
    """Predictions that are compared with a recording."""

    drawn: Draws
    recording: Recording
    smoothed: Smoothed
    starts: np.ndarray
    steps: int
    dt: float
    seed: int
    known_error: bool

    def ratios(self, noise: EffortNoise) -> np.ndarray:
        """Root mean square of error over predicted standard deviation, of each degree of freedom."""
        model, smoothed, past = self.drawn.fitted[0], self.smoothed, self.smoothed.filtered
        at = [max(round(share * self.steps), 1) - 1 for share in TIMES]
        apart, z = vmap(lambda a, b: difference(model, a, b)), []
        for number, k in enumerate(self.starts):
            control = window_controls(model, self.recording, float(smoothed.time[k]), self.steps, self.dt)
            error = (past.error[k], past.error_covariance[k]) if self.known_error else None
            options = {"dt": self.dt, "covariance": past.covariance[k], "effort_noise": noise, "effort_error": error}
            motion = self.drawn.rollout(
                smoothed.state(int(k), filtered=True), control, seed=self.seed + number, **options
            )
            if motion.diverged > len(self.drawn) // 2:
                continue
            stamps = smoothed.time[k] + self.dt * (np.array(at) + 1.0)
            nearest = np.clip(np.searchsorted(smoothed.time, stamps), 1, len(smoothed.time) - 1)
            share = (stamps - smoothed.time[nearest - 1]) / np.diff(smoothed.time)[nearest - 1]
            true = smoothed.q[nearest - 1] + share[:, None] * (smoothed.q[nearest] - smoothed.q[nearest - 1])
            value = motion.q.value[at]
            offs = np.stack([np.asarray(apart(value, sample[at])) for sample in motion.q.samples])
            off = np.asarray(apart(value, true)) - offs.mean(axis=0)
            z.append(off / np.maximum(offs.std(axis=0), 1e-300))
        return np.sqrt(np.mean(np.square(z), axis=(0, 1))) if z else np.ones(model.nv)


def window_starts(time: np.ndarray, seconds: float, count: int) -> np.ndarray:
    """Samples, spread evenly, from which windows of so many seconds lie within a recording and cross no gap."""
    spans = np.diff(time)
    gaps = time[:-1][spans > 5 * np.median(spans)]
    first = np.searchsorted(time, time[0] + seconds)  # a filter needs some time
    able = [k for k in range(first, len(time)) if time[k] + seconds <= time[-1]]
    able = [k for k in able if not np.any((gaps >= time[k]) & (gaps < time[k] + seconds))]
    return np.array(able)[np.unique(np.linspace(0, len(able) - 1, count).astype(int))] if able else np.zeros(0, int)


def window_controls(model, recording: Recording, start: float, steps: int, dt: float) -> np.ndarray:
    """Controls of each step of a window: commands held between samples, measured torques linear."""
    controls, time = controls_of(model, recording), recording.time
    middle = start + dt * (np.arange(steps) + 0.5)
    if drive_channel(recording) == "tau":
        return np.stack([np.interp(middle, time, x) for x in controls.T], axis=1) if model.nu else controls[:steps]
    return controls[np.clip(np.searchsorted(time, middle, side="right") - 1, 0, len(time) - 1)]
