"""How well a simulator predicts recordings that it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import equinox as eqx
import jax
import numpy as np

from knuckle.model.model import Model
from knuckle.optim.robust import TUNED, Loss
from knuckle.sysid.entries import channel_unit
from knuckle.sysid.objective import Objective
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Shots

OUTLIERS = 0.1  # share of errors that a robust loss leaves out
SEEN = 0.25  # of each segment: from which its initial state is estimated; the rest is predicted
HELPED, NOISY = 0.8, 3.0  # times the error before the fit, and times the noise
WORSE = 1.2  # times the error before the fit (or the noise, if that is more), from which on a fit did harm
LEAST_SAMPLES = 100  # of all of them
DIVERGED = 10.0  # error over the standard deviation of the data


@dataclass(frozen=True)
class HeldOut:
    """Root mean square errors of predicted samples by channel, in the channel's unit, before and after the fit."""

    before: dict[str, float]
    after: dict[str, float]
    horizon: float  # [s]
    pieces: int
    shots: Shots
    seen: int  # samples of each segment from which its initial state was estimated
    off_before: dict[str, np.ndarray]  # simulated less measured, (segment, sample, entry); NaN: not measured
    off_after: dict[str, np.ndarray]
    initial_states: str = "the first quarter of each segment"  # from what they were found
    units: dict[str, str] = field(default_factory=dict)  # of channels whose entries share one

    def text(self, key: str, error: float) -> str:
        """An error of a channel with its unit, or "diverges": not finite, or beyond ten times the data's spread."""
        unit = self.units.get(key, "")
        return "diverges" if self.diverges(key, error) else f"{error:.4g}{f' {unit}' if unit else ''}"

    def diverges(self, key: str, error: float) -> bool:
        seen = np.asarray(self.shots.weight[key]) > 0
        return diverges(error, float(np.std(np.asarray(self.shots.measured[key])[seen])))

    def worse(self, noise: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        """Errors before and after of channels that are predicted worse than by the description, beyond their noise."""
        pairs = {key: (self.before[key], after) for key, after in self.after.items()}
        return {key: (a, b) for key, (a, b) in pairs.items() if not b <= WORSE * max(a, noise.get(key, 0.0))}

    def ratio(self, other: HeldOut) -> float:
        """Errors of another fit over these, the geometric mean over channels."""
        shares = [other.after[key] / max(self.after[key], 1e-300) for key in self.after if key in other.after]
        return float(np.exp(np.mean(np.log(np.maximum(shares, 1e-300))))) if shares else 1.0

    def helped(self, noise: Mapping[str, float]) -> bool:
        """Whether the fit predicts all channels better than the description, or about as well as their noise allows."""
        return all(b <= max(HELPED * self.before[key], NOISY * noise.get(key, 0.0)) for key, b in self.after.items())

    def __repr__(self) -> str:
        parts = [
            f"{key}: {self.text(key, self.before[key])} -> {self.text(key, self.after[key])}" for key in self.before
        ]
        return (
            f"held out: {self.pieces} segments predicted over {self.horizon:.3g} s, error before and after: "
            + ", ".join(parts)
        )


def diverges(error: float, spread: float) -> bool:
    """Whether an error is beyond ten times the standard deviation of what was measured, or not finite."""
    return not error <= DIVERGED * max(spread, 1e-12)


def held_out_errors(
    simulator: Simulator,
    shots: Shots,
    before: np.ndarray,
    after: np.ndarray,
    robust: Loss = "squares",
    compiled: Objective | None = None,
) -> HeldOut:
    """Errors of both simulators, each with initial states estimated from the first quarter of every segment.

    compiled: an objective of the same simulator, whose programs are used.
    With a robust loss the largest tenth of the errors is left out: outliers are of the log, not of the simulator.
    """
    known = max(int(SEEN * shots.samples), 2)
    shots = _with_known_starts(shots, known)
    early = np.arange(shots.samples) < known
    weight = {key: np.asarray(w) * early[None, :, None] for key, w in shots.weight.items()}
    alone = eqx.tree_at(lambda s: (s.weight, s.joined), shots, (weight, np.zeros_like(shots.joined)))
    plain = robust == "squares"
    base = Objective(simulator, shots) if compiled is None else compiled
    seen, whole = base.on(alone), base.on(shots)
    losses: tuple[Loss, Loss] = ("squares" if plain else "huber", "squares")
    for part, loss in zip((seen, whole), losses, strict=True):
        part.fixed_starts, part.robust, part.tolerance = False, loss, TUNED[loss]

    def differences(z: np.ndarray) -> dict[str, np.ndarray]:
        x = seen.settled(np.concatenate([z, np.zeros(seen.start_size)]), iterations=30)
        found = {}
        for key, part in whole.by_channel(x).items():
            weight = whole.weights(key)
            part = np.where(np.isfinite(part) | (weight == 0), part, np.inf)  # a simulation that diverged
            found[key] = np.divide(part, weight, out=np.full(part.shape, np.nan), where=weight > 0)
        return found

    off_before, off_after = differences(before), differences(after)
    horizon = (shots.samples - known) * shots.period
    share = 1.0 if plain else 1 - OUTLIERS
    errors = _errors(off_before, known, share), _errors(off_after, known, share)
    units = _units(simulator.model, off_after)
    return HeldOut(*errors, horizon, shots.count, shots, known, off_before, off_after, units=units)


def _units(model: Model, off: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {key: channel_unit(model, key, values.shape[-1]) for key, values in off.items()}


def from_differences(
    model: Model,
    shots: Shots,
    off_before: dict[str, np.ndarray],
    off_after: dict[str, np.ndarray],
    initial_states: str,
) -> HeldOut:
    """Errors of simulations that began at states which were not found by simulation; the first sample is not counted.

    Differences are simulated less measured, (segment, sample, entry); infinite: diverged, NaN: not measured.
    """
    errors = _errors(off_before, 1, 1.0), _errors(off_after, 1, 1.0)
    horizon = (shots.samples - 1) * shots.period
    parts = (shots, 1, off_before, off_after, initial_states, _units(model, off_after))
    return HeldOut(*errors, horizon, shots.count, *parts)


def _with_known_starts(shots: Shots, known: int) -> Shots:
    """Segments of whose first samples at least half were measured: an unknown initial state predicts nothing."""
    seen = np.max([(np.asarray(w)[:, :known] > 0).mean(axis=(1, 2)) for w in shots.weight.values()], axis=0)
    kept = np.flatnonzero(seen >= np.minimum(0.5, seen.max()))
    return jax.tree.map(lambda part: np.asarray(part)[kept], shots)


def _errors(off: Mapping[str, np.ndarray], known: int, share: float) -> dict[str, float]:
    """Root mean squares of this share of the errors, the smallest ones."""
    predicted = {key: np.sort(np.abs(values[:, known:]), axis=None) for key, values in off.items()}
    predicted = {key: values[~np.isnan(values)] for key, values in predicted.items()}
    return {
        key: float(np.sqrt(np.mean(values[: max(int(share * len(values)), 1)] ** 2)))
        for key, values in predicted.items()
        if len(values)
    }
