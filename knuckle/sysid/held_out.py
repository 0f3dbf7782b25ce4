"""How well a simulator foretells recordings that it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from knuckle.optim import LeastSquares, LevenbergMarquardt
from knuckle.sysid.objective import Objective
from knuckle.sysid.shooting import Simulator, weights_of_entries
from knuckle.sysid.shots import Shots

SEEN = 0.25  # of each piece: from which its start is found; the rest is foretold


@dataclass(frozen=True)
class HeldOut:
    """Root mean square errors of foretold samples by channel, in the channel's unit, before and after the fit."""

    before: dict[str, float]
    after: dict[str, float]
    horizon: float  # [s]
    pieces: int
    shots: Shots
    seen: int  # samples of each piece from which its start was found
    off_before: dict[str, np.ndarray]  # simulated less measured, (piece, sample, entry); NaN: not measured
    off_after: dict[str, np.ndarray]

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

    def differences(z: np.ndarray) -> dict[str, np.ndarray]:
        x = np.concatenate([z, _found_starts(seen, z)])
        values, at, found = whole.values(x), 0, {}
        for key, w in shots.weight.items():
            entries = whole.entries(key)
            part = values[:, at : at + entries * shots.samples].reshape(shots.count, shots.samples, entries)
            at += entries * shots.samples
            weight = jax.vmap(lambda w, key=key: weights_of_entries(simulator.model, key, w))(jnp.asarray(w))
            part = np.where(np.isfinite(part), part, np.inf)  # a simulation that diverged
            found[key] = np.divide(part, weight, out=np.full(part.shape, np.nan), where=np.asarray(weight) > 0)
        return found

    off_before, off_after = differences(before), differences(after)
    horizon = (shots.samples - known) * shots.period
    errors = _errors(off_before, known), _errors(off_after, known)
    return HeldOut(*errors, horizon, shots.count, shots, known, off_before, off_after)


def _errors(off: Mapping[str, np.ndarray], known: int) -> dict[str, float]:
    foretold = {key: values[:, known:] for key, values in off.items()}
    return {
        key: float(np.sqrt(np.nanmean(values**2))) for key, values in foretold.items() if not np.isnan(values).all()
    }


def _found_starts(objective: Objective, z: np.ndarray) -> np.ndarray:
    """Starts of all pieces that fit best, with everything else held."""
    size = objective.size

    def function(starts: np.ndarray):
        r, J = objective(np.concatenate([z, starts]))
        return r, J[:, size:]

    return LevenbergMarquardt(max_iterations=30)(
        LeastSquares(function, objective.start_size), np.zeros(objective.start_size)
    ).x
