"""Which differences two sets of logs show, by cross-validation over blocks of time: greedy, one after the other.

A payload has ten parameters, and held-out blocks say whether they are more than a fit to noise. A zero is one
parameter: its own jackknife is a test of far more power (held-out squares of one parameter at z standard errors fall by
about z / 2 of their standard error).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from knuckle.sysid.changes.differences import Difference, Estimate, Pair
from knuckle.sysid.changes.intervals import spread

LEVEL = 0.01  # probability of a false alarm over all candidates, if errors of blocks were independent
LEAST_GAIN = 0.02  # of the held-out squares: less is within what an imperfect model leaves
LEAST_ZERO_GAIN = 0.005  # the same of a zero; between logs of one UR10e it was at most 0.003
MOST_CHANGES = 4
JUDGED = 3  # candidates of each kind that are cross-validated in a round: those that explain most
AS_GOOD = 2.0  # standard errors within which two explanations are not told apart


@dataclass(frozen=True)
class Found:
    """The chosen differences beside those of all joints, and for each the other explanations that are as good."""

    chosen: tuple[Difference, ...]
    alternatives: dict[tuple[str, str], tuple[Difference, ...]]
    gains: dict[tuple[str, str], float]  # share of the held-out squares that each removes when it is added


class Candidate(NamedTuple):
    """A difference that was tried, with its estimate and held-out squares by block."""

    difference: Difference
    estimate: Estimate
    squares: np.ndarray

    @property
    def total(self) -> float:
        return float(self.squares.sum())


def search(pair: Pair, slower: Pair, drift: Sequence[Difference], candidates: Sequence[Difference]) -> Found:
    """Add the difference that lowers held-out squares most, as long as one does so beyond chance and model error.

    Friction and offsets of all joints may always differ: they drift, and must not be taken for anything else.

    Args:
        slower: the same sets with half the cut-off.
    """
    chosen: list[Difference] = []
    alternatives, gains = {}, {}
    base = pair.held_out_squares(drift)
    while len(chosen) < MOST_CHANGES:
        groups = [*drift, *chosen]
        others = [c for c in candidates if c.key not in {d.key for d in chosen}]
        judged = sorted(_judged(pair, groups, others), key=lambda one: one.total)
        helpful = (one for one in judged if _helps(pair, slower, groups, base, one, len(candidates)))
        best = next(helpful, None)
        if best is None:
            break
        best = _simplest(pair, slower, groups, base, judged, best, len(candidates))
        key = best.difference.key
        alternatives[key] = tuple(
            one.difference for one in judged if one is not best and _t(pair, one.squares - best.squares) < AS_GOOD
        )
        gains[key] = float(1 - best.total / base.sum())
        chosen.append(best.difference)
        base = best.squares
    return Found(tuple(chosen), alternatives, gains)


def _simplest(
    pair: Pair,
    slower: Pair,
    groups: Sequence[Difference],
    base: np.ndarray,
    judged: Sequence[Candidate],
    best: Candidate,
    candidates: int,
) -> Candidate:
    """Of zeros that explain as much as the best one, that with which the fewest offsets of joints changed too."""
    if best.difference.kind != "zero":
        return best
    level = LEVEL / max(candidates, 1)

    def offsets(one: Candidate) -> int:
        together = [*groups, one.difference]
        found = spread(pair, slower, together)
        keys = [g.key for g in groups if g.kind == "offset"]
        return sum(found.p_value(lambda x, key=key: x.of(together, key)) < level for key in keys)

    alike = [
        one
        for one in judged
        if one.difference.kind == "zero"
        and (one is best or _t(pair, one.squares - best.squares) < AS_GOOD)
        and (one is best or _helps(pair, slower, groups, base, one, candidates))
    ]
    return min(alike, key=offsets)  # the first of equals, which has the smallest squares


def _judged(pair: Pair, groups: Sequence[Difference], others: Sequence[Difference]) -> list[Candidate]:
    """Held-out squares of the candidates that explain most."""
    found = []
    for kind in sorted({other.kind for other in others}):
        fitted = sorted((_fitted(pair, groups, o) for o in others if o.kind == kind), key=lambda one: one[0])
        found += [Candidate(d, x, pair.held_out_squares([*groups, d], x)) for _, d, x in fitted[:JUDGED]]
    return found


def _fitted(pair: Pair, groups: Sequence[Difference], other: Difference) -> tuple[float, Difference, Estimate]:
    """Squares of all blocks with a candidate; a payload may have been added or taken away."""
    signs = (1, -1) if other.kind == "payload" else (1,)
    fits = []
    for sign in signs:
        group = replace(other, sign=sign)
        x = pair.solve([*groups, group])
        fits.append((float(sum(s.sum() for s in pair.squares([*groups, group], x))), group, x))
    return min(fits, key=lambda one: one[0])


def _helps(
    pair: Pair, slower: Pair, groups: Sequence[Difference], before: np.ndarray, tried: Candidate, candidates: int
) -> bool:
    gain, level = before - tried.squares, LEVEL / max(candidates, 1)
    if tried.difference.kind == "zero":
        together, key = [*groups, tried.difference], tried.difference.key
        if gain.sum() <= LEAST_ZERO_GAIN * before.sum():
            return False
        return spread(pair, slower, together).p_value(lambda x: x.of(together, key)) < level
    least = float(student.ppf(1 - level, max(len(gain) - 2, 1)))
    return bool(gain.sum() > LEAST_GAIN * before.sum() and _t(pair, gain) > least)


def _t(pair: Pair, gain: np.ndarray) -> float:
    """A sum over the blocks of both sets over its standard error."""
    parts = np.split(gain, [pair.before.block_gram.blocks])
    variance = sum(len(p) * p.var(ddof=1) for p in parts if len(p) > 1)
    return float(gain.sum() / np.sqrt(max(variance, 1e-300)))
