"""Drive gains from a load of known mass: efforts that are off by a factor show the load with another mass.

Recorded efforts are a_j times rigid-body forces plus friction in the same units. Parameters are a_j, inertial ones of
the links, first and second moments of the load, and friction and offsets of each joint before and after. The load's
mass is known, which sets the absolute scale (Gautier and Briot 2014). Gauss-Newton on the Gram matrices of both sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from knuckle.sysid.changes.differences import Difference, Estimate, Pair
from knuckle.sysid.changes.result import Gain
from knuckle.sysid.regression.grams import Grams
from knuckle.sysid.regression.jackknife import half_widths
from knuckle.sysid.regression.result import joint_name

STEPS, CONVERGED = 30, 1e-6
LARGEST = 0.25  # half width over the value: a gain that is known no better is called undetermined
LEAST_SHARE = 0.5  # of the information that must be the data's

Totals = list[tuple[np.ndarray, np.ndarray]]  # Gram matrix and right side of each joint


@dataclass(frozen=True)
class LoadProblem:
    """Places of the parameters: gains, inertial parameters, the load's but its mass, joints before, differences."""

    pair: Pair
    groups: tuple[Difference, ...]  # differences of friction and offsets
    link: int
    mass: float

    @property
    def joints(self) -> int:
        return len(self.pair.layout.joints)

    @property
    def inertial(self) -> int:
        return self.pair.layout.inertial

    @property
    def size(self) -> int:
        differing = sum(len(g.columns) for g in self.groups)
        return self.joints + self.inertial + 9 + self.pair.layout.size - self.inertial + differing

    def efforts(self, x: np.ndarray, joint: int, after: bool) -> tuple[np.ndarray, np.ndarray]:
        """Effective parameters of the columns of one joint, and their Jacobian by x."""
        n, p = self.joints, self.inertial
        grams = self._grams(after)
        columns = grams.columns[joint]
        rigid = np.flatnonzero(columns < p)
        load = n + p
        own = n + p + 9
        value, slope = np.zeros(len(columns)), np.zeros((len(columns), self.size))
        pi = x[n : n + p].copy()
        if after:
            pi[10 * self.link] += self.mass
            pi[10 * self.link + 1 : 10 * self.link + 10] += x[load:own]
        value[rigid] = x[joint] * pi[columns[rigid]]
        slope[rigid, joint] = pi[columns[rigid]]
        slope[rigid, n + columns[rigid]] = x[joint]
        if after:
            moments = np.flatnonzero((columns > 10 * self.link) & (columns < 10 * self.link + 10))
            slope[moments, load + columns[moments] - 10 * self.link - 1] = x[joint]
        rest = np.flatnonzero((columns >= p) & (columns < self.pair.layout.size))
        slope[rest, own + columns[rest] - p] = 1.0
        if after:
            start = own + self.pair.layout.size - p
            for column in (c for g in self.groups for c in g.columns):
                slope[columns == column, start] = 1.0
                start += 1
        value[rest] = slope[rest] @ x
        return value, slope

    def _grams(self, after: bool) -> Grams:
        return (self.pair.after if after else self.pair.before).block_gram

    def totals(self) -> dict[bool, Totals]:
        """Sums over all blocks in units of the spread, by set."""
        return {after: self._of(after, slice(None)) for after in (False, True)}

    def _of(self, after: bool, blocks: slice) -> Totals:
        side = self.pair.after if after else self.pair.before
        found = []
        for gram, sd in zip(side.block_gram.gram, side.spread, strict=True):
            total = gram[blocks].sum(axis=0) / sd**2
            found.append((total[:-1, :-1], total[:-1, -1]))
        return found

    def without(self, totals: dict[bool, Totals], after: bool, block: int) -> dict[bool, Totals]:
        part = self._of(after, slice(block, block + 1))
        less = [(G - H, g - h) for (G, g), (H, h) in zip(totals[after], part, strict=True)]
        return {**totals, after: less}

    def prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Matrix and centre: links near the description, the load's moments near 0, joints nearly free."""
        n, p, pair = self.joints, self.inertial, self.pair
        P, centre = np.zeros((self.size, self.size)), np.zeros(self.size)
        shared = pair.shared_penalty
        P[n : n + p, n : n + p] = shared.matrix[:p, :p]
        centre[n : n + p] = shared.centre[:p]
        P[n + p : n + p + 9, n + p : n + p + 9] = pair.prior * pair.payload_metric[1:, 1:]
        own = slice(n + p + 9, n + p + 9 + pair.layout.size - p)
        P[own, own] = shared.matrix[p:, p:]
        rest = np.arange(own.stop, self.size)
        P[rest, rest] = 1e-9
        return P, centre

    def solve(self, totals: dict[bool, Totals], x: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Gauss-Newton with halved steps: parameters, curvature, and whether it converged."""
        P, centre = self.prior()
        value = self._value(totals, x, P, centre)
        H = P
        for _ in range(STEPS):
            H, slope = P.copy(), P @ (centre - x)
            for after, parts in totals.items():
                for joint, (G, g) in enumerate(parts):
                    phi, J = self.efforts(x, joint, after)
                    H += J.T @ G @ J
                    slope += J.T @ (g - G @ phi)
            scale = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
            factor = cho_factor(H * np.outer(scale, scale) + 1e-11 * np.eye(len(H)))
            step, length = scale * cho_solve(factor, scale * slope), 1.0
            if np.abs(step[: self.joints] / x[: self.joints]).max() < CONVERGED:
                return x + step, H, True
            while length > 1e-6 and not self._value(totals, x + length * step, P, centre) <= value:
                length /= 2
            x = x + length * step
            value = self._value(totals, x, P, centre)
        return x, H, False

    def _value(self, totals: dict[bool, Totals], x: np.ndarray, P: np.ndarray, centre: np.ndarray) -> float:
        total = 0.5 * (x - centre) @ P @ (x - centre)
        for after, parts in totals.items():
            for joint, (G, g) in enumerate(parts):
                phi = self.efforts(x, joint, after)[0]
                total += 0.5 * phi @ G @ phi - g @ phi
        return float(total)


def drive_gains(
    pair: Pair, slower: Pair, groups: Sequence[Difference], x: Estimate, payload: Difference, mass: float
) -> tuple[Gain, ...]:
    """True effort over recorded effort of each joint. `x`: the estimate with `groups` and, as the last, `payload`."""
    link = payload.columns[0] // 10
    problem = LoadProblem(pair, tuple(groups), link, mass)
    load = x.of([*groups, payload], payload.key)
    factor = max(abs(load[0] / mass), 1e-3)
    p = problem.inertial
    drift = x.delta[: len(x.delta) - 10]
    start = np.concatenate(
        [np.full(problem.joints, factor), x.theta[:p] / factor, load[1:] / factor, x.theta[p:], drift]
    )
    totals = problem.totals()
    best, H, converged = problem.solve(totals, start)
    without = []
    for side, after in ((pair.before, False), (pair.after, True)):
        for block in np.flatnonzero(side.block_gram.count.sum(axis=0) > 0):
            found = problem.solve(problem.without(totals, after, int(block)), best)
            without.append(1 / found[0][: problem.joints])
    other = LoadProblem(slower, tuple(groups), link, mass)
    change = 1 / other.solve(other.totals(), best)[0][: problem.joints] - 1 / best[: problem.joints]
    scale = 1 / best[: problem.joints]
    half = half_widths(np.array(without), change)
    sure = converged & (half < LARGEST * np.abs(scale)) & (_shares(problem, H) >= LEAST_SHARE)
    half = np.where(sure & np.isfinite(half), half, np.nan)
    names = [joint_name(pair.layout.model, dof) for dof in pair.layout.joints]
    return tuple(
        Gain(name, float(s), float(s - h), float(s + h)) for name, s, h in zip(names, scale, half, strict=True)
    )


def _shares(problem: LoadProblem, H: np.ndarray) -> np.ndarray:
    """Share of the information on each gain that is the data's."""
    P = problem.prior()[0]
    scale = 1 / np.sqrt(np.maximum(np.diag(H), 1e-300))
    K = H * np.outer(scale, scale) + 1e-11 * np.eye(len(H))
    x = np.linalg.solve(K, np.eye(len(H))[:, : problem.joints]) * scale[:, None] * scale[: problem.joints]
    prior = np.einsum("pc,pq,qc->c", x, P, x)
    return 1 - np.clip(prior / np.maximum(np.diag(x[: problem.joints]), 1e-300), 0.0, 1.0)
