"""What a smoother found: states and efforts at the stamps of a recording, with covariances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from knuckle.model.model import State


class EffortNoise(NamedTuple):
    """Errors of efforts at the joints: a standard deviation for each [N m or N], and their correlation time [s]."""

    deviation: np.ndarray  # (nv,)
    correlation: float = 0.0  # 0: white, one number for each `period`
    period: float = 0.01  # [s], for which an error is held


class Track(NamedTuple):
    """States over time with covariances."""

    q: np.ndarray  # (time, nq)
    qd: np.ndarray  # (time, nv)
    covariance: np.ndarray  # (time, 2 nv, 2 nv), of the tangent of q, then of qd
    error: np.ndarray  # (time, nv), of the effort [N m or N]
    error_covariance: np.ndarray  # (time, nv, nv)


def averaged(seconds: float, correlation: float) -> float:
    """Variance of an average over so many seconds of noise that correlates as exp(-t / correlation), of variance 1."""
    x = seconds / correlation
    return float(2 * (x - 1 + np.exp(-x)) / x**2) if x > 1e-4 else 1.0


@dataclass(frozen=True)
class Smoothed:
    """States (q, qd) at the stamps of a recording, given all of it, with covariances.

    Covariances are those of tangent vectors: nv entries of the coordinates, then nv velocities. `effort` is what acts
    at the joints: the measured effort, or what actuators make of the control, with its estimated error. `innovations`
    are predictions from the past less measurements over their standard deviation: near white with deviation 1 if model
    and noise are right. `filtered` has the states given only what was measured up to each stamp (linearised about
    the smoothed trajectory).
    """

    time: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    covariance: np.ndarray  # (time, 2 nv, 2 nv)
    effort: np.ndarray  # (time, nv) [N m or N]
    effort_covariance: np.ndarray  # (time, nv, nv)
    effort_error: np.ndarray  # (time, nv), part of `effort`: what measured efforts and the model lack
    filtered: Track
    noise: dict[str, np.ndarray]  # standard deviation of each channel, by entry of the tangent space
    effort_noise: EffortNoise
    log_likelihood: float
    innovations: dict[str, np.ndarray]  # by channel (time, entry), NaN where nothing was measured
    iterations: int
    converged: bool
    notes: tuple[str, ...]
    memory: np.ndarray  # (time, number), of networks
    memory_of: Callable[[np.ndarray], Any]

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviations (time, 2 nv): of coordinates in the tangent space, then of velocities."""
        return np.sqrt(np.einsum("kii->ki", self.covariance))

    @property
    def effort_deviation(self) -> np.ndarray:
        """Standard deviations of the efforts (time, nv) [N m or N]."""
        return np.sqrt(np.einsum("kii->ki", self.effort_covariance))

    def noise_over(self, seconds: float) -> EffortNoise:
        """Errors of the effort as they are over so many seconds, for predictions of that length.

        `effort_noise` is most probable for the next sample. What a model lacks (friction that changes sign with the
        velocity) has a slow part too, which matters to longer roll-outs. Here deviation and correlation time are those
        with which averages of the error over `seconds`, and over a fifth of it, are as large as in this recording.
        """
        period = self.effort_noise.period
        if not (np.isfinite(seconds) and seconds >= 5 * period):
            raise ValueError(f"noise_over: expected at least five samples, {5 * period:.3g} s, got {seconds}")
        if seconds > (self.time[-1] - self.time[0]) / 4:
            raise ValueError(
                f"noise_over: a recording of {self.time[-1] - self.time[0]:.3g} s is too short for {seconds} s"
            )
        longer, shorter = (self._averages(h) for h in (seconds, seconds / 5))
        wanted = float(np.median(longer / np.maximum(shorter, 1e-300)))
        low, high = np.log(period / 20), np.log(20 * seconds)
        for _ in range(60):
            middle = (low + high) / 2
            T = np.exp(middle)
            low, high = (middle, high) if averaged(seconds, T) / averaged(seconds / 5, T) < wanted else (low, middle)
        T = float(np.exp(low))
        return EffortNoise(np.sqrt(longer / averaged(seconds, T)), T, period)

    def _averages(self, seconds: float) -> np.ndarray:
        """Mean square of the error's averages over so many seconds (nv)."""
        count = max(round(seconds / self.effort_noise.period), 1)
        sums = np.concatenate([np.zeros((1, self.effort_error.shape[1])), np.cumsum(self.effort_error, axis=0)])
        return np.mean(((sums[count:] - sums[:-count]) / count) ** 2, axis=0)

    def state(self, k: int, filtered: bool = False) -> State:
        """The state at a stamp, with what networks remember there."""
        track = self.filtered if filtered else self
        memory = self.memory_of(self.memory[k]) if self.memory.shape[1] else None
        return State(track.q[k], track.qd[k], memory=memory)

    def __repr__(self) -> str:
        size = f"{len(self.time)} states over {self.time[-1] - self.time[0]:.4g} s"
        efforts = ", ".join(f"{x:.3g}" for x in self.effort_noise.deviation)
        lines = [f"{size}, {self.iterations} iterations, {'converged' if self.converged else 'NOT converged'}"]
        lines += [f"noise of {key}: {', '.join(f'{x:.3g}' for x in noise)}" for key, noise in self.noise.items()]
        lines += [f"noise of the effort: {efforts} N m or N, correlated over {self.effort_noise.correlation:.3g} s"]
        return "\n".join([*lines, f"log likelihood {self.log_likelihood:.6g}", *self.notes])
