"""One regression problem: a design with a prior, solved for a choice of friction terms, a delay and robust weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knuckle.sysid.regression.design import Design, Layout
from knuckle.sysid.regression.grams import Grams, Rows, grams
from knuckle.sysid.regression.linear import Penalty, Solution, solve

HUBER = 3.5  # robust standard deviations from which residuals count less than their squares
LOAD_ROUNDS = 3  # of solutions with the load of the one before
WEAK = 1e-6  # of the information of the data: the prior of what belongs to joints


@dataclass(frozen=True)
class Problem:
    """What a solution depends on, beside the friction terms."""

    design: Design
    described: np.ndarray  # inertial parameters of the description, (link, 10)
    metric: np.ndarray  # of the prior, (link, 10, 10)
    prior: float
    delay: float = 0.0
    inefficiency: np.ndarray | None = None  # of each joint: rows per independent row

    def penalty(self, layout: Layout, information: np.ndarray) -> Penalty:
        """The geometric prior, and a weak one of what belongs to joints towards 0."""
        P, centre = np.zeros((layout.size, layout.size)), np.zeros(layout.size)
        for link, (Q, pi) in enumerate(zip(self.metric, self.described, strict=True)):
            at = slice(10 * link, 10 * link + 10)
            P[at, at] = self.prior * Q
            centre[at] = pi
        rest = np.arange(layout.inertial, layout.size)
        P[rest, rest] = WEAK * np.maximum(information[rest], 1e-12)
        return Penalty(P, centre, layout.lower, self.design.passive[list(layout.joints)])

    def rows(self, layout: Layout, theta: np.ndarray | None = None) -> list[Rows]:
        return [self.design.rows(layout, j, self.delay, theta) for j in range(len(layout.joints))]

    def grams(self, layout: Layout, rows: list[Rows], solution: Solved | None = None) -> Grams:
        """Gram matrices, with rows far off a solution counting less (Huber)."""
        weights = None if solution is None else [huber(r.residuals(solution.theta)) for r in rows]
        return grams(rows, self.design.blocks, layout.size, weights)

    def solve(self, layout: Layout, start: Solved | None = None) -> Solved:
        """The solution with robust weights and, where friction depends on it, the load; it begins at `start`."""
        theta = None if start is None else start.layout.moved(start.theta, layout)
        depends = any(f.load for f in layout.friction)
        if theta is None and depends:
            plain = replace(layout, friction=tuple(replace(f, load=False) for f in layout.friction))
            start = self.solve(plain)
            theta = start.layout.moved(start.theta, layout)
        rows, solved = self.rows(layout, theta), None
        for _ in range(LOAD_ROUNDS if depends else 1):
            solved = self.of_rows(layout, rows, solved)
            solved = self.of_rows(layout, rows, solved)
            if depends:
                rows = self.rows(layout, solved.theta)
        assert solved is not None
        return solved

    def of_rows(self, layout: Layout, rows: list[Rows], before: Solved | None = None) -> Solved:
        """The solution of given rows."""
        found = self.grams(layout, rows, before)
        information = np.diag(found.normal(np.ones(len(rows)))[0])
        penalty = self.penalty(layout, information)
        start = None if before is None else before.deviation
        solution = solve(found, penalty, self.inefficiency, start)
        return Solved(layout, solution, found, penalty, rows)

    def with_transitions(self, solved: Solved) -> Solved:
        """A solution with columns of its friction's widths, which intervals count as unknown."""
        layout, rows = solved.layout, []
        for joint, own in enumerate(solved.rows):
            columns = np.append(own.columns, layout.size + joint)
            slopes = self.design.transition_slopes(layout, joint, solved.theta)
            rows.append(replace(own, columns=columns, features=np.column_stack([own.features, slopes])))
        weights = [huber(r.residuals(solved.theta)) for r in solved.rows]
        return replace(solved, nuisance=grams(rows, self.design.blocks, layout.size + len(rows), weights))


@dataclass(frozen=True)
class Solved:
    """A solution with all that it came from."""

    layout: Layout
    solution: Solution
    grams: Grams
    penalty: Penalty
    rows: list[Rows]
    nuisance: Grams | None = None  # of the same rows with a further column of each joint: see `with_transitions`

    @property
    def theta(self) -> np.ndarray:
        return self.solution.theta

    @property
    def deviation(self) -> np.ndarray:
        return self.solution.deviation


def huber(residuals: np.ndarray) -> np.ndarray:
    """Weights of residuals: 1 up to `HUBER` robust standard deviations, then falling with their size."""
    usual = 1.4826 * np.median(np.abs(residuals)) if len(residuals) else 1.0
    size = np.abs(residuals) / max(HUBER * usual, 1e-300)
    return 1 / np.maximum(size, 1.0)


def inefficiencies(solved: Solved) -> np.ndarray:
    """Rows per independent row of each joint: twice the integrated autocorrelation time of its residuals in rows.

    Residuals of a joint that is not driven are errors of the motion. They pull masses towards 0 and must not outweigh
    the joints that set the scale of all forces: such a joint has at least as many as those.
    """
    found, passive = np.array([inefficiency(r.residuals(solved.theta)) for r in solved.rows]), solved.penalty.passive
    if passive is not None and passive.any() and not passive.all():
        found = np.where(passive, np.maximum(found, found[~passive].max()), found)
    return found


def inefficiency(x: np.ndarray) -> float:
    """1 + 2 sum of autocorrelations, up to the first that is not positive (Geyer's initial sequence, truncated)."""
    if len(x) < 8:
        return 1.0
    x = x - x.mean()
    size = 1 << (2 * len(x) - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(x, size)) ** 2
    correlation = np.fft.irfft(spectrum, size)[: len(x) // 2]
    if correlation[0] <= 0:
        return 1.0
    correlation = correlation / correlation[0]
    below = np.flatnonzero(correlation <= 0.05)
    return float(max(1 + 2 * correlation[1 : below[0] if len(below) else None].sum(), 1.0))
