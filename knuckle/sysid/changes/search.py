"""Which differences two sets of logs show, by cross-validation over blocks of time: greedy, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import t as student

from knuckle.sysid.changes.differences import Difference, Estimate, Pair

LEVEL = 0.01  # probability of a false alarm over all candidates, if errors of blocks were independent
LEAST_GAIN = 0.02  # of the held-out squares: less is within what an imperfect model leaves
MOST_CHANGES = 4
JUDGED = 4  # candidates of a round that are cross-validated: those that explain most
AS_GOOD = 2.0  # standard errors within which two explanations are not told apart


@dataclass(frozen=True)
class Found:
    """The chosen differences beside those of all joints, and for each the other explanations that are as good."""

    chosen: tuple[Difference, ...]
    alternatives: dict[tuple[str, str], tuple[Difference, ...]]
    gains: dict[tuple[str, str], float]  # share of the held-out squares that each removes when it is added


def search(pair: Pair, drift: Sequence[Difference], candidates: Sequence[Difference]) -> Found:
    """Add the difference that lowers held-out squares most, as long as one does so beyond chance and model error.

    Friction and offsets of all joints may always differ: they drift, and must not be taken for anything else.
    """
    chosen: list[Difference] = []
    alternatives, gains = {}, {}
    base = pair.held_out_squares(drift)
    while len(chosen) < MOST_CHANGES:
        others = [c for c in candidates if c.key not in {d.key for d in chosen}]
        judged = _judged(pair, [*drift, *chosen], others)
        if not judged:
            break
        best, squares = min(judged, key=lambda one: one[1].sum())
        if not _helps(pair, base, squares, len(candidates)):
            break
        alternatives[best.key] = tuple(d for d, s in judged if d is not best and _t(pair, s - squares) < AS_GOOD)
        gains[best.key] = float(1 - squares.sum() / base.sum())
        chosen.append(best)
        base = squares
    return Found(tuple(chosen), alternatives, gains)


def _judged(
    pair: Pair, groups: Sequence[Difference], others: Sequence[Difference]
) -> list[tuple[Difference, np.ndarray]]:
    """Held-out squares by block of the candidates that explain most."""
    fitted = [_fitted(pair, groups, other) for other in others]
    best = sorted(fitted, key=lambda one: one[0])[:JUDGED]
    return [(d, pair.held_out_squares([*groups, d], x)) for _, d, x in best]


def _fitted(pair: Pair, groups: Sequence[Difference], other: Difference) -> tuple[float, Difference, Estimate]:
    """Squares of all blocks with a candidate; a payload may have been added or taken away."""
    signs = (1, -1) if other.kind == "payload" else (1,)
    fits = []
    for sign in signs:
        group = replace(other, sign=sign)
        x = pair.solve([*groups, group])
        fits.append((float(sum(s.sum() for s in pair.squares([*groups, group], x))), group, x))
    return min(fits, key=lambda one: one[0])


def _helps(pair: Pair, before: np.ndarray, after: np.ndarray, candidates: int) -> bool:
    gain = before - after
    least = float(student.ppf(1 - LEVEL / max(candidates, 1), max(len(gain) - 2, 1)))
    return bool(gain.sum() > LEAST_GAIN * before.sum() and _t(pair, gain) > least)


def _t(pair: Pair, gain: np.ndarray) -> float:
    """A sum over the blocks of both sets over its standard error."""
    parts = np.split(gain, [pair.before.block_gram.blocks])
    variance = sum(len(p) * p.var(ddof=1) for p in parts if len(p) > 1)
    return float(gain.sum() / np.sqrt(max(variance, 1e-300)))
