"""Intervals from samples: of any quantity, with samples that diverged counted as unbounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prediction:
    """A quantity with its interval, over what data and prior leave possible."""

    value: np.ndarray  # of the fitted model
    mean: np.ndarray
    deviation: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    samples: np.ndarray  # one row for each model drawn; those that diverged are left out
    level: float
    diverged: int
    notes: tuple[str, ...] = ()

    def contains(self, truth) -> np.ndarray:
        """Whether intervals hold values, entry by entry."""
        truth = np.asarray(truth)
        return (self.lower <= truth) & (truth <= self.upper)

    def __repr__(self) -> str:
        ends = f"{self.level:.0%} of {len(self.samples) + self.diverged} samples"
        if self.value.size > 12:
            shown = f"{self.value.size} values, median half width {np.median(self.upper - self.lower) / 2:.3g}"
        else:
            rows = zip(*(np.ravel(x) for x in (self.value, self.lower, self.upper)), strict=True)
            shown = ", ".join(f"{a:.5g} ({b:.5g} .. {c:.5g})" for a, b, c in rows)
        return "\n".join([f"{ends}: {shown}", *self.notes])


@dataclass(frozen=True)
class MotionPrediction:
    """A roll-out with intervals after each step: coordinates, entry by entry, and velocities."""

    time: np.ndarray  # since the start [s]
    q: Prediction  # (step, nq)
    qd: Prediction  # (step, nv)
    diverged: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{len(self.time)} steps over {self.time[-1]:.4g} s\nq: {self.q}\nqd: {self.qd}"


def prediction(
    value: np.ndarray, samples: np.ndarray, fine: np.ndarray, level: float, notes: tuple[str, ...] = ()
) -> Prediction:
    """Mean, deviation and interval of samples (sample, ...), of which only `fine` ones (sample,) did not diverge.

    Ends are quantiles at k / (n + 1): a further draw lies within with just that probability (Weibull). A sample that
    diverged lies outside of every interval, so those of the others are wider.
    """
    kept, lost = samples[fine], int(np.count_nonzero(~fine))
    share = level * len(samples) / max(len(kept), 1)
    enough = len(kept) >= 2 and share < (len(kept) - 1) / (len(kept) + 1) + 1e-12
    if enough:
        lower, upper = np.quantile(kept, [0.5 - share / 2, 0.5 + share / 2], axis=0, method="weibull")
    else:
        lower, upper = (np.full(np.shape(value), sign * np.inf) for sign in (-1, 1))
    if lost:
        text = f"{lost} of {len(samples)} samples diverged; they count as outside of every interval"
        notes = (*notes, text if enough else f"{text}, and no interval holds {level:.0%}")
    mean, deviation = (kept.mean(axis=0), kept.std(axis=0)) if len(kept) else (value, np.full(np.shape(value), np.inf))
    return Prediction(value, mean, deviation, lower, upper, kept, level, lost, notes)


def check_level(level: float, samples: int) -> None:
    """Refuse intervals that so few samples cannot give."""
    if not 0 < level < 1:
        raise ValueError(f"predict: level must be between 0 and 1, got {level}")
    least = int(np.ceil((1 + level) / (1 - level)))
    if samples < least:
        raise ValueError(f"predict: {samples} samples are too few for an interval of {level:.4g}: {least} are needed")
