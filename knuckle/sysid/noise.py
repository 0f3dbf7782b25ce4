"""How noisy a log is, and how well a model holds from piece to piece: found from what a fit leaves."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import numpy as np

from knuckle.sysid.noise_kinds import ChannelNoise, NoiseBy, column_kinds, compact, entry_kinds
from knuckle.sysid.objective import Objective
from knuckle.sysid.shots import Shots
from knuckle.sysid.split import is_even

STATE = ("q", "qd")
DEVIATION_OF_MEDIAN = 0.6745  # median of the absolute value of noise of deviation 1


def noise_of(time: np.ndarray, values: np.ndarray, valid: np.ndarray) -> float:
    """Deviation of the noise on a channel, by third differences, which a smooth motion hardly has."""
    if len(values) < 8:
        return 1.0
    third = np.diff(values, 3, axis=0) if is_even(time) else np.sqrt(20) * _third_differences(time, values)
    good = valid[3:] & valid[2:-1] & valid[1:-2] & valid[:-3]
    spread = np.median(np.abs(third[good])) / 0.6745 / np.sqrt(20) if good.any() else 0.0
    size = float(np.std(values[valid])) if valid.any() else 1.0
    return max(float(spread), 1e-4 * size, 1e-9)


def _third_differences(time: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Divided differences of four samples each, of deviation 1 where the values' is."""
    t, y = (np.lib.stride_tricks.sliding_window_view(a, 4, axis=0) for a in (time, values))
    apart = t[:, :, None] - t[:, None, :] + np.eye(4)
    weight = 1 / np.prod(apart / np.median(np.diff(time)), axis=2)
    return np.einsum("tk,tnk->tn", weight / np.linalg.norm(weight, axis=1, keepdims=True), y)


def counted_once(shots: Shots) -> Shots:
    """No sample counts twice: that with which a piece begins ends the one before it."""
    follows = np.concatenate([[0.0], np.asarray(shots.joined)[:-1]]) > 0
    first = np.arange(shots.samples) == 0
    return _without(shots, first & follows[:, None])


def from_measured_starts(shots: Shots) -> Shots:
    """Starts as measured have no error of their own; pieces whose start was not measured in full count nothing."""
    unknown = ~np.all([np.all(np.asarray(shots.weight[key])[:, 0] > 0, axis=1) for key in STATE], axis=0)
    first = np.arange(shots.samples) == 0
    return _without(shots, first | unknown[:, None])


def _without(shots: Shots, dropped: np.ndarray) -> Shots:
    """The pieces without some of their samples (piece, sample)."""
    weight = {key: np.where(dropped[..., None], 0.0, np.asarray(w)) for key, w in shots.weight.items()}
    return eqx.tree_at(lambda s: s.weight, shots, weight)


def noise_left(objective: Objective, x: np.ndarray, by: NoiseBy = "kind") -> dict[str, ChannelNoise]:
    """For each channel, and kind of its entries, the deviation that is left over what was taken as its noise.

    What the fit itself took up does not count: the sum of squares is divided by the number of residuals less their
    leverage (the trace of the hat matrix over these rows). A robust loss takes the median instead.
    """
    parts, found, at = objective.by_channel(x), {}, 0
    plain = objective.robust == "squares"
    leverage = objective.told(x)[1].leverage() if plain else np.zeros((0, 0))
    for key, part in parts.items():
        width = part.shape[1] * part.shape[2]
        taken = leverage[:, at : at + width].reshape(part.shape) if plain else None
        at += width
        found[key] = _left_by_kind(objective, key, part, taken, by)
    return found


def _left_by_kind(objective: Objective, key: str, part: np.ndarray, leverage: np.ndarray | None, by: NoiseBy):
    """Of one channel (piece, sample, entry): a factor for each of its columns, or one for all."""
    model, columns = objective.simulator.model, objective.shots.measured[key].shape[-1]
    kinds = np.array(entry_kinds(model, key, columns, by))
    factor = {}
    for kind in dict.fromkeys(kinds):
        own = part[..., kinds == kind]
        own = own[np.isfinite(own)]
        if leverage is None:
            factor[kind] = max(float(np.median(np.abs(own))) / DEVIATION_OF_MEDIAN if own.size else 0.0, 1e-6)
            continue
        taken = np.nan_to_num(leverage[..., kinds == kind].sum())  # nothing where the normal equations are singular
        left = float(np.sqrt(np.sum(own**2) / max(own.size - taken, 1.0)))
        usable = np.isfinite(left) and (own.size > 0 or len(set(kinds)) == 1)
        factor[kind] = max(left, 1e-6) if usable else 1.0
    names = column_kinds(model, key, columns, by)
    return compact(np.array([factor[name] for name in names]), names)


def reweighed(shots: Shots, factors: Mapping[str, ChannelNoise]) -> Shots:
    """The pieces with the noise of each channel times a factor, or one for each column."""
    weight = {key: np.asarray(w) / factors.get(key, 1.0) for key, w in shots.weight.items()}
    return eqx.tree_at(lambda s: s.weight, shots, weight)


def log_evidence(objective: Objective, x: np.ndarray) -> float:
    """Logarithm of the probability of the data at a solution, up to a constant, by the firmness of the ties.

    Laplace's approximation (MacKay, Bayesian interpolation, 1992): what is left, the ties' own normalisation, and the
    volume of what remains possible.
    """
    r, J = objective.told(x)
    ties = 2 * objective.nv * np.count_nonzero(np.asarray(objective.shots.joined))
    return float(-0.5 * r @ r + ties * np.log(objective.continuity) - 0.5 * J.normal().log_determinant())
