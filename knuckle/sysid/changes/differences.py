"""Two sets of logs with shared parameters and a few differences: normal equations, solutions, cross-validation.

Parameters of the set before are theta, those after theta + S delta: S selects the columns that differ. The Gram
matrices of the two sets serve every choice of S.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from knuckle.sysid.changes.payloads import consistent_payloads, is_consistent
from knuckle.sysid.changes.sides import Side
from knuckle.sysid.regression.design import Layout
from knuckle.sysid.regression.linear import Penalty
from knuckle.sysid.regression.prior import metric

FOLDS = 10
WEAK = 1e-6  # of the information of the data: the prior of differences of joints


@dataclass(frozen=True)
class Difference:
    """A group of parameters that may differ: a payload on a link, friction or offset of a joint, or a joint's zero."""

    kind: str  # "payload", "friction", "offset" or "zero"
    place: str  # link or joint
    columns: tuple[int, ...]  # of the parameters after
    sign: int = 1  # of a payload: -1 if it was taken away

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.place


@dataclass(frozen=True)
class Estimate:
    """Parameters before and the differences, in the order of the groups' columns."""

    theta: np.ndarray
    delta: np.ndarray

    def after(self, groups: Sequence[Difference], size: int) -> np.ndarray:
        theta = np.concatenate([self.theta, np.zeros(size - len(self.theta))])
        theta[columns_of(groups)] += self.delta
        return theta

    def of(self, groups: Sequence[Difference], key: tuple[str, str]) -> np.ndarray:
        """The differences of one group."""
        start = 0
        for group in groups:
            if group.key == key:
                return self.delta[start : start + len(group.columns)]
            start += len(group.columns)
        raise KeyError(key)


def columns_of(groups: Sequence[Difference]) -> np.ndarray:
    return np.array([c for g in groups for c in g.columns], int)


@dataclass(frozen=True)
class Normal:
    """Normal equations of the two sets."""

    H_before: np.ndarray
    g_before: np.ndarray
    H_after: np.ndarray
    g_after: np.ndarray

    def __sub__(self, other: Normal) -> Normal:
        return Normal(*(a - b for a, b in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.H_before, self.g_before, self.H_after, self.g_after

    def joint(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """H and g of (theta, delta)."""
        p = len(self.g_before)
        Ha, ga = self.H_after, self.g_after
        corner = Ha[:p, columns]
        H = np.block([[self.H_before + Ha[:p, :p], corner], [corner.T, Ha[np.ix_(columns, columns)]]])
        return H, np.concatenate([self.g_before + ga[:p], ga[columns]])


@dataclass(frozen=True)
class Pair:
    """Both sets, with what the prior says of shared parameters and of payloads."""

    before: Side
    after: Side
    body: np.ndarray  # pseudo-inertia that gives the metric of payloads, (4, 4)
    prior: float

    @property
    def layout(self) -> Layout:
        return self.before.solved.layout

    @property
    def size(self) -> int:
        """Parameters after, with the zeros of joints."""
        return self.after.block_gram.size

    @cached_property
    def normal(self) -> Normal:
        return self._normal(slice(None), slice(None))

    def _normal(self, before: np.ndarray | slice, after: np.ndarray | slice) -> Normal:
        Hb, gb = self.before.block_gram.normal(self.before.spread, before)
        Ha, ga = self.after.block_gram.normal(self.after.spread, after)
        return Normal(Hb, gb, Ha, ga)

    def without_block(self, after: bool, block: int) -> Normal:
        """Normal equations without one block of one set."""
        none = np.zeros(0, int)
        one = np.array([block])
        return self.normal - (self._normal(none, one) if after else self._normal(one, none))

    @cached_property
    def shared_penalty(self) -> Penalty:
        return self.before.solved.penalty

    @cached_property
    def payload_metric(self) -> np.ndarray:
        return metric(self.body[None])[0]

    def penalty(self, groups: Sequence[Difference]) -> Penalty:
        """The prior of (theta, delta): that of the regression, and differences near 0."""
        shared = self.shared_penalty
        p, columns = len(shared.centre), columns_of(groups)
        P = np.zeros((p + len(columns),) * 2)
        P[:p, :p] = shared.matrix
        start = p
        for group in groups:
            at = slice(start, start + len(group.columns))
            information = np.diag(self.normal.H_after)[list(group.columns)]
            P[at, at] = np.diag(WEAK * np.maximum(information, 1e-12))
            if group.kind == "payload":
                P[at, at] = self.prior * self.payload_metric
            start = at.stop
        lower = np.concatenate([shared.lower, np.full(len(columns), -np.inf)])
        return Penalty(P, np.concatenate([shared.centre, np.zeros(len(columns))]), lower)

    def solve(
        self,
        groups: Sequence[Difference],
        normal: Normal | None = None,
        start: Estimate | None = None,
        consistent: bool = True,
    ) -> Estimate:
        """The estimate with payloads that are bodies; `start`: the solution of almost the same problem."""
        penalty = self.penalty(groups)
        H, g = (self.normal if normal is None else normal).joint(columns_of(groups))
        p = len(self.shared_penalty.centre)
        found = penalty.solve(H, g)
        x = Estimate(found[:p], found[p:])
        if not consistent or all(
            is_consistent(d.sign * x.of(groups, d.key), self.body) for d in groups if d.kind == "payload"
        ):
            return x
        return self._consistent(groups, H + penalty.matrix, g + penalty.matrix @ penalty.centre, x, start)

    def _consistent(
        self, groups: Sequence[Difference], H: np.ndarray, g: np.ndarray, linear: Estimate, start: Estimate | None
    ) -> Estimate:
        """The solution among consistent payloads: all else is eliminated, then a search in log-Cholesky coordinates."""
        p = len(linear.theta)
        own = np.zeros(len(g), bool)
        signs, first = [], p
        for group in groups:
            if group.kind == "payload":
                own[first : first + 10] = True
                signs += [group.sign] * 10
            first += len(group.columns)
        lower = self.shared_penalty.lower
        held = np.zeros(len(g), bool)
        held[:p] = linear.theta <= lower
        value = np.concatenate([linear.theta, linear.delta])
        rest = ~own & ~held
        right = g - H[:, held] @ value[held]
        factor = cho_factor(H[np.ix_(rest, rest)] + 1e-13 * np.diag(np.diag(H)[rest]))
        coupling = H[np.ix_(own, rest)]
        S = np.diag(np.array(signs, float))
        reduced = S @ (H[np.ix_(own, own)] - coupling @ cho_solve(factor, coupling.T)) @ S
        slope = S @ (right[own] - coupling @ cho_solve(factor, right[rest]))
        first_guess = value[own] if start is None else np.concatenate([start.theta, start.delta])[own]
        payloads = S @ consistent_payloads(
            (reduced + reduced.T) / 2, slope, S @ first_guess, self.body, start is not None
        )
        value[own] = payloads
        value[rest] = cho_solve(factor, right[rest] - coupling.T @ payloads)
        return Estimate(value[:p], value[p:])

    def squares(self, groups: Sequence[Difference], x: Estimate) -> tuple[np.ndarray, np.ndarray]:
        """Squared residuals in units of the spread, by block of each set: (block before,), (block after,)."""
        before = self.before.block_gram.squares(x.theta) / np.square(self.before.spread)[:, None]
        after = self.after.block_gram.squares(x.after(groups, self.size)) / np.square(self.after.spread)[:, None]
        return before.sum(axis=0), after.sum(axis=0)

    def held_out_squares(self, groups: Sequence[Difference], start: Estimate | None = None) -> np.ndarray:
        """The same by the solution of the other folds, all blocks of both sets; folds interleave blocks."""
        counts = self.before.block_gram.blocks, self.after.block_gram.blocks
        folds = [np.arange(n) % min(FOLDS, n) for n in counts]
        found = [np.zeros(n) for n in counts]
        for k in range(FOLDS):
            own = [fold == k for fold in folds]
            x = self.solve(groups, self.normal - self._normal(*own), start)
            for total, part, here in zip(found, self.squares(groups, x), own, strict=True):
                total[here] = part[here]
        return np.concatenate(found)
