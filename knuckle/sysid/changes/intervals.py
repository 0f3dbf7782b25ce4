"""Uncertainty of differences: block jackknife over both sets, the change with the filter, and what the prior says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import f as fisher

from knuckle.sysid.changes.differences import Difference, Estimate, Normal, Pair, columns_of
from knuckle.sysid.regression.jackknife import half_widths

LEAST_SHARE = 0.5  # of the information: below, a difference rests on the prior and has no interval

Function = Callable[[Estimate], np.ndarray]


@dataclass(frozen=True)
class Spread:
    """The estimate, those without each block of either set, and the one with half the cut-off of the filter."""

    groups: tuple[Difference, ...]
    estimate: Estimate
    without: tuple[Estimate, ...]
    slower: Estimate

    def interval(self, of: Function) -> tuple[np.ndarray, np.ndarray]:
        """Values of a function of the estimate and half widths of their 95 % intervals."""
        value = of(self.estimate)
        return value, half_widths(np.array([of(x) for x in self.without]), of(self.slower) - value)

    def p_value(self, of: Function) -> float:
        """Of the hypothesis that a function of the estimate is 0: Hotelling's T^2 with the jackknife's covariance."""
        value, n = of(self.estimate), len(self.without)
        k = len(value)
        if n <= k + 1:
            return 1.0
        each = np.array([of(x) for x in self.without])
        away = each - each.mean(axis=0)
        change = of(self.slower) - value
        covariance = (n - 1) / n * away.T @ away + np.outer(change, change)
        scale = 1 / np.sqrt(np.maximum(np.diag(covariance), 1e-300))
        unit = covariance * np.outer(scale, scale) + 1e-9 * np.eye(k)
        square = float((value * scale) @ np.linalg.solve(unit, value * scale))
        return float(fisher.sf(square * (n - k) / (k * (n - 1)), k, n - k))


def leave_one_out(pair: Pair) -> Iterator[Normal]:
    """Normal equations without each block that has rows."""
    for side, after in ((pair.before, False), (pair.after, True)):
        for block in np.flatnonzero(side.block_gram.count.sum(axis=0) > 0):
            yield pair.without_block(after, int(block))


def spread(pair: Pair, slower: Pair, groups: Sequence[Difference], consistent: bool = True) -> Spread:
    """Estimates without each block, and with the filter of `slower`."""
    x = pair.solve(groups, consistent=consistent)
    without = tuple(pair.solve(groups, normal, x, consistent) for normal in leave_one_out(pair))
    return Spread(tuple(groups), x, without, slower.solve(groups, start=x, consistent=consistent))


def data_shares(pair: Pair, groups: Sequence[Difference]) -> np.ndarray:
    """Share of the information on each difference that is the data's, not the prior's: 0 to 1."""
    H, K, scale = _scaled(pair, groups)
    p, P = len(pair.shared_penalty.centre), pair.penalty(groups).matrix
    x = np.linalg.solve(K, np.eye(len(H))[:, p:]) * scale[:, None] * scale[p:]
    prior = np.einsum("pc,pq,qc->c", x, P, x)
    return 1 - np.clip(prior / np.maximum(np.diag(x[p:]), 1e-300), 0.0, 1.0)


def explained(pair: Pair, groups: Sequence[Difference], x: Estimate) -> dict[tuple[str, str], float]:
    """Rise of the squares in units of the spread, if one group did not differ: quadratic, all else fitted again."""
    _, K, scale = _scaled(pair, groups)
    p = len(pair.shared_penalty.centre)
    covariance = np.linalg.inv(K) * np.outer(scale, scale)
    found, start = {}, p
    for group in groups:
        own = slice(start, start + len(group.columns))
        delta = x.delta[own.start - p : own.stop - p]
        found[group.key] = float(delta @ np.linalg.solve(covariance[own, own], delta))
        start = own.stop
    return found


def _scaled(pair: Pair, groups: Sequence[Difference]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """H with the prior, the same with unit diagonal, and its scale."""
    H = pair.normal.joint(columns_of(groups))[0] + pair.penalty(groups).matrix
    scale = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    return H, H * np.outer(scale, scale) + 1e-12 * np.eye(len(H)), scale
