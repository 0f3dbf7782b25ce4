"""Which effects explain the data: best subsets by cross-validation, the least invasive within one standard error.

Roll-outs are linearised once; every subset of effects is then a small linear system. Each recording is a fold. A
smaller set gives way to a better one if a likelihood-ratio test, with Bonferroni's correction for the number of sets,
rejects it, and if it is worse by more than one standard error of the cross-validated error (Breiman et al.,
Classification and Regression Trees, 1984, section 3.4.3) or the test rejects it at a far lower level too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from knuckle.sysid.discovery.library import Candidate
from knuckle.sysid.discovery.segments import Normal

RIDGE = 1e-9  # of each free number's own information: keeps columns that the data do not see at zero
LEAST_FOLDS, FOLDS = 4, 8
LEVEL = 0.01  # of the test that something is missing, over all candidates together
BEAM, MOST_EFFECTS = 12, 6
ALIKE = 4.0  # change of chi-square below which two effects explain the data equally well
BEYOND_DOUBT = 1e-4  # of the level: then cross-validation need not be sure, as it is not if recordings are few


@dataclass(frozen=True)
class Evidence:
    """Half chi-square of each fold as a quadratic of the free numbers: slope . z + 1/2 z . matrix z."""

    matrix: np.ndarray  # (fold, free, free)
    slope: np.ndarray  # (fold, free), at zero
    precision: np.ndarray  # of each free number before the data
    always: np.ndarray  # columns that are free in any case
    names: tuple[str, ...]  # of the folds
    noise: float  # residual standard deviation of the richest model, in units of the noise that was assumed

    @property
    def folds(self) -> int:
        return len(self.slope)

    @cached_property
    def total(self) -> tuple[np.ndarray, np.ndarray]:
        matrix = self.matrix.sum(axis=0)
        return matrix + np.diag(self.precision + RIDGE * np.diag(matrix)), self.slope.sum(axis=0)

    @cached_property
    def others(self) -> tuple[np.ndarray, np.ndarray]:
        """All folds but each one."""
        matrix, slope = self.total
        return matrix - self.matrix, slope - self.slope

    def reweighed(self, weight: np.ndarray) -> Evidence:
        """With each fold counted so many times."""
        return Evidence(
            self.matrix * weight[:, None, None], self.slope * weight[:, None], self.precision, self.always,
            self.names, self.noise,
        )  # fmt: skip


def fold_numbers(runs: np.ndarray) -> np.ndarray:
    """The fold of each segment: its recording, or a block of consecutive segments where recordings are few."""
    recordings = np.unique(runs)
    if len(recordings) >= LEAST_FOLDS:
        return np.searchsorted(recordings, runs)
    count = min(FOLDS, len(runs))
    return np.minimum(np.arange(len(runs)) * count // len(runs), count - 1)


def gather(
    found: Normal, free: np.ndarray, folds: np.ndarray, rows: int, precision: np.ndarray, always: np.ndarray
) -> Evidence:
    """Evidence of all segments; rows: residuals that were measured."""
    count = int(folds.max()) + 1
    slope = found.slope - found.matrix @ free
    matrices = np.stack([found.matrix[folds == k].sum(axis=0) for k in range(count)])
    slopes = np.stack([slope[folds == k].sum(axis=0) for k in range(count)])
    whole = Evidence(matrices, slopes, precision, always, (), 1.0)
    matrix, total = whole.total
    best = -np.linalg.solve(matrix, total)
    change = best - free
    raw = matrices.sum(axis=0)
    left = found.value.sum() + found.slope.sum(axis=0) @ change + 0.5 * change @ raw @ change
    starts = found.start.shape[0] * found.start.shape[1]
    taken = starts + float(np.trace(np.linalg.solve(matrix, raw)))
    variance = max(2 * float(left) / max(rows - taken, 1.0), 1e-12)
    names = tuple(f"fold {k}" for k in range(count))
    return Evidence(matrices / variance, slopes / variance, precision, always, names, float(np.sqrt(variance)))


class Scored(NamedTuple):
    """A set of effects."""

    effects: tuple[int, ...]
    columns: np.ndarray
    cost: int
    errors: np.ndarray  # change of chi-square of each fold, predicted from the others; negative: better than none
    fitted: float  # change of chi-square of all data
    freedom: float  # free numbers that the data see

    @property
    def error(self) -> float:
        return float(self.errors.sum())


class Choice(NamedTuple):
    """The set that was chosen and those that it was chosen from."""

    chosen: Scored
    best: Scored  # of the least cross-validated error
    nothing: Scored
    visited: tuple[Scored, ...]


class Selector:
    """Scores sets of candidates."""

    def __init__(self, evidence: Evidence, candidates: Sequence[Candidate]):
        self.evidence, self.candidates = evidence, list(candidates)
        self._known: dict[tuple[int, ...], Scored] = {}
        self.scale = 1 / np.sqrt(np.diag(evidence.total[0]))

    def score(self, effects: Sequence[int]) -> Scored:
        key = tuple(sorted(set(effects)))
        if key not in self._known:
            self._known[key] = self._score(key)
        return self._known[key]

    def _score(self, effects: tuple[int, ...]) -> Scored:
        e = self.evidence
        own = {c for k in effects for c in self.candidates[k].columns}
        columns = np.array(sorted({*e.always.tolist(), *own}), int)
        cost = sum(self.candidates[k].cost for k in effects)
        if not len(columns):
            return Scored(effects, columns, 0, np.zeros(e.folds), 0.0, 0.0)
        at, s = np.ix_(columns, columns), self.scale[columns]
        matrix, slope = e.total[0][at] * s[:, None] * s, e.total[1][columns] * s
        others = e.others[0][:, columns][:, :, columns] * s[:, None] * s
        stable = 1e-9 * np.eye(len(columns))
        apart = -np.linalg.solve(others + stable, (e.others[1][:, columns] * s)[..., None])[..., 0]
        own_matrix = e.matrix[:, columns][:, :, columns] * s[:, None] * s
        errors = 2 * np.sum(e.slope[:, columns] * s * apart, axis=1)
        errors = errors + np.einsum("fi,fij,fj->f", apart, own_matrix, apart)
        fitted = -float(slope @ np.linalg.solve(matrix + stable, slope))
        freedom = float(np.trace(np.linalg.solve(matrix + stable, own_matrix.sum(axis=0))))
        return Scored(effects, columns, cost, errors, fitted, freedom)

    def values(self, scored: Scored) -> np.ndarray:
        """Free numbers of a set at their best."""
        found = np.zeros(len(self.evidence.precision))
        columns = scored.columns
        if len(columns):
            matrix, slope = self.evidence.total
            found[columns] = -np.linalg.solve(matrix[np.ix_(columns, columns)], slope[columns])
        return found

    def rejects(self, small: Scored, large: Scored) -> bool:
        """Whether a set is worse than one with more effects, by cross-validation or by the likelihood-ratio test."""
        apart = small.errors - large.errors
        error = np.std(apart, ddof=1) * np.sqrt(len(apart)) if len(apart) > 1 else 0.0
        both = self.score((*small.effects, *large.effects))
        added = len(both.effects) - len(small.effects)
        if added == 0:
            return False
        level = LEVEL / comb(len(self.candidates), added)
        freedom = max(both.freedom - small.freedom, 1.0)
        gain, lost = small.fitted - both.fitted, float(apart.sum())
        if lost <= 0 or gain <= chi2.isf(level, freedom):
            return False
        return bool(lost > error or gain > chi2.isf(BEYOND_DOUBT * level, freedom))

    def search(self, most: int = MOST_EFFECTS, beam: int = BEAM) -> Choice:
        """Best subsets by a beam search, then the least invasive that is not rejected."""
        nothing = self.score(())
        level, best = [nothing], nothing
        for _ in range(most):
            tried = {
                s.effects: s
                for kept in level
                for k in range(len(self.candidates))
                if k not in kept.effects and self._adds(kept, k)
                for s in [self.score((*kept.effects, k))]
            }
            if not tried:
                break
            level = sorted(tried.values(), key=lambda s: s.error + s.cost)[:beam]
            if level[0].error < best.error:
                best = min(level, key=lambda s: s.error)
            if not self.rejects(best if best.effects != level[0].effects else nothing, level[0]) and not any(
                self.rejects(s, level[0]) for s in self._subsets(level[0])
            ):
                break
        visited = sorted(self._known.values(), key=lambda s: (s.cost, s.error))
        chosen = next(s for s in visited if not self.rejects(s, best))
        return Choice(self._trimmed(chosen), best, nothing, tuple(visited))

    def _adds(self, scored: Scored, k: int) -> bool:
        """Whether a candidate brings columns that a set does not have."""
        return not set(self.candidates[k].columns) <= set(scored.columns.tolist())

    def _subsets(self, scored: Scored) -> list[Scored]:
        return [self.score([e for e in scored.effects if e != k]) for k in scored.effects]

    def _trimmed(self, scored: Scored) -> Scored:
        """Without effects whose removal, or whose replacement by a cheaper one, the data do not notice."""
        while scored.effects:
            fewer = [s for s in self._subsets(scored) if not self.rejects(s, scored)]
            fewer += [s for s in self._cheaper(scored) if self._explains(s, scored)]
            if not fewer:
                return scored
            scored = min(fewer, key=lambda s: (s.cost, s.fitted))
        return scored

    def _cheaper(self, scored: Scored) -> list[Scored]:
        """Sets with one effect replaced by one that brings fewer unknown numbers."""
        found = []
        for k in scored.effects:
            rest = [e for e in scored.effects if e != k]
            others = [j for j, c in enumerate(self.candidates) if c.cost < self.candidates[k].cost and j not in rest]
            found += [self.score((*rest, j)) for j in others]
        return found

    def _explains(self, cheap: Scored, dear: Scored) -> bool:
        """Whether a cheaper set is no worse than its fewer numbers allow."""
        return bool(cheap.fitted - dear.fitted < chi2.isf(LEVEL / len(self.candidates), max(dear.cost - cheap.cost, 1)))

    def ties(self, chosen: Scored) -> dict[int, list[int]]:
        """For each chosen effect, others of no higher cost in its place that explain the data equally well."""
        found: dict[int, list[int]] = {}
        for k in chosen.effects:
            rest = [e for e in chosen.effects if e != k]
            found[k] = []
            for other in range(len(self.candidates)):
                if other in chosen.effects or self.candidates[other].cost > self.candidates[k].cost + 1:
                    continue
                swapped = self.score((*rest, other))
                if swapped.fitted - chosen.fitted < ALIKE:
                    found[k].append(other)
        return found


def forward(selector: Selector, most: int = MOST_EFFECTS) -> tuple[int, ...]:
    """Effects added one by one while the likelihood-ratio test asks for them: quick, for resampled recordings."""
    now = selector.score(())
    for _ in range(most):
        others = [k for k in range(len(selector.candidates)) if k not in now.effects and selector._adds(now, k)]
        if not others:
            break
        best = min((selector.score((*now.effects, k)) for k in others), key=lambda s: s.fitted + 2 * s.cost)
        if not selector.rejects(now, best):
            break
        now = best
    return selector._trimmed(now).effects


def stability(evidence: Evidence, candidates: Sequence[Candidate], resamples: int, seed: int) -> np.ndarray:
    """How often each candidate is chosen from recordings drawn with replacement."""
    rng, counts = np.random.default_rng(seed), np.zeros(len(candidates))
    for _ in range(resamples):
        drawn = np.bincount(rng.integers(0, evidence.folds, evidence.folds), minlength=evidence.folds)
        kept = np.flatnonzero(drawn)
        part = evidence.reweighed(drawn.astype(float))
        part = Evidence(
            part.matrix[kept], part.slope[kept], part.precision, part.always, tuple(evidence.names[k] for k in kept),
            part.noise,
        )  # fmt: skip
        if len(kept) > 1:
            counts[list(forward(Selector(part, candidates)))] += 1
    return counts / max(resamples, 1)
