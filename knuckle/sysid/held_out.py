"""How well a simulator foretells recordings that it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from knuckle.optim.robust import Loss
from knuckle.sysid.objective import Objective
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Shots

OUTLIERS = 0.1  # share of errors that a robust loss leaves out
SEEN = 0.25  # of each piece: from which its start is found; the rest is foretold
PIECES, MOST_SAMPLES = 6, 300  # of a curve that is drawn: pieces (more where they are short), and samples of each
LEAST_SAMPLES = 100  # of all of them


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


class HeldOutCurve(NamedTuple):
    """One entry of a channel over some pieces, (piece, sample): measured, and simulated before and after the fit."""

    name: str
    time: np.ndarray  # since the start of a piece [s]
    measured: np.ndarray  # NaN: not measured
    before: np.ndarray
    after: np.ndarray
    difference: bool  # entries of the tangent space, less what was measured (rotations)


def held_out_curves(held_out: HeldOut, names: Mapping[str, Sequence[str]]) -> list[HeldOutCurve]:
    """Curves of all entries over the first pieces; of long pieces every so many samples. `names`: by channel."""
    samples, period, found = held_out.shots.samples, held_out.shots.period, []
    chosen = slice(0, max(PIECES, LEAST_SAMPLES // samples)), slice(None, None, -(-samples // MOST_SAMPLES))
    time = period * np.arange(samples)[chosen[1]]
    for key, off in held_out.off_after.items():
        measured = np.asarray(held_out.shots.measured[key])
        tangent = measured.shape[-1] != off.shape[-1]
        base = (np.zeros_like(off) if tangent else measured)[chosen]
        before, after = base + held_out.off_before[key][chosen], base + off[chosen]
        base = np.where(np.isnan(off[chosen]), np.nan, base)
        for k in range(off.shape[-1]):
            name = f"{key} {k}" if tangent else f"{key} {names[key][k]}"
            found.append(HeldOutCurve(name, time, base[..., k], before[..., k], after[..., k], tangent))
    return found


def held_out_errors(
    simulator: Simulator, shots: Shots, before: np.ndarray, after: np.ndarray, robust: Loss = "squares"
) -> HeldOut:
    """Errors of both simulators, each with starts found from the first quarter of every piece (if measured there).

    With a robust loss the largest tenth of the errors is left out: outliers are of the log, not of the simulator.
    """
    known = max(int(SEEN * shots.samples), 2)
    shots = _with_known_starts(shots, known)
    early = np.arange(shots.samples) < known
    weight = {key: np.asarray(w) * early[None, :, None] for key, w in shots.weight.items()}
    alone = eqx.tree_at(lambda s: (s.weight, s.joined), shots, (weight, np.zeros_like(shots.joined)))
    plain = robust == "squares"
    seen, whole = Objective(simulator, alone, robust="squares" if plain else "huber"), Objective(simulator, shots)

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
    return HeldOut(*errors, horizon, shots.count, shots, known, off_before, off_after)


def _with_known_starts(shots: Shots, known: int) -> Shots:
    """Pieces of whose first samples at least half were measured: a start that was not seen foretells nothing."""
    seen = np.max([(np.asarray(w)[:, :known] > 0).mean(axis=(1, 2)) for w in shots.weight.values()], axis=0)
    kept = np.flatnonzero(seen >= np.minimum(0.5, seen.max()))
    return jax.tree.map(lambda part: np.asarray(part)[kept], shots)


def _errors(off: Mapping[str, np.ndarray], known: int, share: float) -> dict[str, float]:
    """Root mean squares of this share of the errors, the smallest ones."""
    foretold = {key: np.sort(np.abs(values[:, known:]), axis=None) for key, values in off.items()}
    foretold = {key: values[~np.isnan(values)] for key, values in foretold.items()}
    return {
        key: float(np.sqrt(np.mean(values[: max(int(share * len(values)), 1)] ** 2)))
        for key, values in foretold.items()
        if len(values)
    }
