"""How well a simulator foretells recordings that it was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import numpy as np

from knuckle.optim import LeastSquares, LevenbergMarquardt
from knuckle.sysid.objective import Objective
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Shots

SEEN = 0.25  # of each piece: from which its start is found; the rest is foretold


@dataclass(frozen=True)
class HeldOut:
    """Root mean square errors of foretold samples by channel, in the channel's unit, before and after the fit."""

    before: dict[str, float]
    after: dict[str, float]
    horizon: float  # [s]
    pieces: int

    def __repr__(self) -> str:
        parts = [f"{key}: {self.before[key]:.4g} -> {self.after[key]:.4g}" for key in self.before]
        return (
            f"held out, {self.pieces} pieces foretold over {self.horizon:.3g} s, error before and after: "
            + ", ".join(parts)
        )


def held_out_errors(simulator: Simulator, shots: Shots, before: np.ndarray, after: np.ndarray) -> HeldOut:
    """Errors of both simulators, each with starts found from the first quarter of every piece."""
    known = max(int(SEEN * shots.samples), 2)
    early = np.arange(shots.samples) < known
    weight = {key: np.asarray(w) * early[None, :, None] for key, w in shots.weight.items()}
    alone = eqx.tree_at(lambda s: (s.weight, s.joined), shots, (weight, np.zeros_like(shots.joined)))
    seen, whole = Objective(simulator, alone), Objective(simulator, shots)

    def errors(z: np.ndarray) -> dict[str, float]:
        x = np.concatenate([z, _found_starts(seen, z)])
        values, at, found = whole.values(x), 0, {}
        for key, w in shots.weight.items():
            entries = whole.entries(key)
            part = values[:, at : at + entries * shots.samples].reshape(shots.count, shots.samples, entries)[:, known:]
            at += entries * shots.samples
            weights = np.asarray(w)[:, known:]
            scale = weights[weights > 0]
            if not len(scale):
                continue
            found[key] = float(np.sqrt(np.sum(part**2) / len(scale)) / np.median(scale))
        return found

    return HeldOut(errors(before), errors(after), (shots.samples - known) * shots.period, shots.count)


def _found_starts(objective: Objective, z: np.ndarray) -> np.ndarray:
    """Starts of all pieces that fit best, with everything else held."""
    size = objective.size

    def function(starts: np.ndarray):
        r, J = objective(np.concatenate([z, starts]))
        return r, J[:, size:]

    return LevenbergMarquardt(max_iterations=30)(
        LeastSquares(function, objective.start_size), np.zeros(objective.start_size)
    ).x
