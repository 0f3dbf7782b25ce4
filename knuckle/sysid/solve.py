"""The search of a fit: rounds of a local solver, between which the noise is found from what the last one left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import numpy as np

from knuckle.optim import LBFGSB, LevenbergMarquardt, LocalSolver, Progress, Result, Status
from knuckle.optim.robust import TUNED
from knuckle.optim.workers import WorkerPlan
from knuckle.sysid.global_search import Method, searched
from knuckle.sysid.interrupt import Interrupts
from knuckle.sysid.objective import Objective
from knuckle.sysid.saved import Saved
from knuckle.sysid.shots import Shots

MANY = 300  # free numbers from which on reverse mode is used
SETTLED = 0.05  # relative change of the noise at which it counts as known
MOST_ROUNDS = 4  # in which the noise is found
DEVIATION_OF_MEDIAN = 0.6745  # median of the absolute value of noise of deviation 1
STOPPED = (Status.INTERRUPTED, Status.TIME_LIMIT)


class Look(NamedTuple):
    """What a search sees."""

    value: float  # half the sum of squares here; of a global search: the best of a round
    best: float  # so far
    seconds_left: float | None = None  # as far as the pace so far tells; None: not known
    searches: int = 0  # of a global search, made so far


@dataclass(frozen=True)
class Search:
    """How a fit searches, and whom it tells."""

    solver: LocalSolver | None
    method: Method
    starts: int
    workers: int | WorkerPlan | None
    seed: int
    seconds: float | None
    save: Path | str | None
    resume: bool
    stop: Interrupts
    progress: Callable[[str], None]
    watch: Callable[[Look], None]


def solve(objective: Objective, noise: dict[str, float], given: set[str], search: Search, about: dict):
    """The best point and the noise of each channel, by which the objective then weighs; `given` ones stay."""
    return _Solve(objective, noise, given, search, Saved(search.save, objective, about)).run()


class _Solve:
    """A search under way."""

    def __init__(self, objective: Objective, noise: dict[str, float], given: set[str], search: Search, saved: Saved):
        self.objective, self.noise, self.given, self.search, self.saved = objective, noise, given, search, saved
        self.x, self.last, self.began = objective.first, None, time.monotonic()
        self.searched = search.method == "local"
        self.found: Result | None = None  # by the global search
        solver = search.solver
        if solver is None:
            solver = LevenbergMarquardt(value_tolerance=1e-8) if objective.size <= MANY else LBFGSB()
        self.solver, self.by_residuals = solver, isinstance(solver, LevenbergMarquardt)
        if search.resume:
            self._go_on()

    def _go_on(self) -> None:
        state = self.saved.read(self.noise)
        if state is None:
            return
        x, noise, self.searched = state
        if x.shape != self.x.shape:
            raise ValueError(f"{self.saved.path} has {len(x)} numbers, the fit {len(self.x)}")
        self.objective.shots = reweighed(self.objective.shots, {key: noise[key] / self.noise[key] for key in noise})
        self.x, self.noise = x, noise
        self.search.progress(f"going on from {self.saved.path}")

    @property
    def left(self) -> float | None:
        limit = self.search.seconds
        return None if limit is None else max(limit - (time.monotonic() - self.began), 0.0)

    def run(self) -> tuple[Result, dict[str, float]]:
        try:
            self._widen(_widened(self.objective, self.x))
            if not self.searched:
                self._globally()
            if self.last is None or self.last.status not in STOPPED:
                self._until_noise_is_known()
        except KeyboardInterrupt:
            if self.last is None:
                raise
            self.last = replace(self.last, status=Status.INTERRUPTED)
        if self.search.stop.count > 1:
            raise KeyboardInterrupt
        assert self.last is not None
        self.saved.write(self.last.x, self.noise, self.searched, now=True)
        if self.found is not None:
            self.last = replace(self.last, searches=self.found.searches, failures=self.found.failures)
        return self.last, self.noise

    def _until_noise_is_known(self) -> None:
        rounds = 0
        while rounds < MOST_ROUNDS:
            self.last = self._locally()
            self.x = self.last.x
            if self.last.status in STOPPED:
                return
            if self.widened > 1:
                self._widen(max(1.0, min(self.widened / 3, _widened(self.objective, self.x))))
                continue
            rounds += 1
            factors = {k: f for k, f in deviations_left(self.objective, self.x).items() if k not in self.given}
            if all(abs(f - 1) < SETTLED for f in factors.values()) or rounds == MOST_ROUNDS:
                return
            self.noise = self.noise | {key: self.noise[key] * factor for key, factor in factors.items()}
            self.objective.shots = reweighed(self.objective.shots, factors)

    def _widen(self, factor: float) -> None:
        """Let a robust loss take residuals up to a multiple of the noise for good."""
        self.widened = factor
        self.objective.tolerance = factor * TUNED[self.objective.robust]

    def _globally(self) -> None:
        search = self.search

        def told(progress: Progress) -> None:
            search.watch(Look(progress.loss, progress.best, progress.seconds_left, progress.searches))
            search.progress(f"{progress.searches} of {progress.most_searches} searches, round {progress.rounds}")

        with search.stop.anywhere():
            self.last = self.found = searched(
                *(self.objective, self.solver, self.by_residuals, self.saved),
                method=search.method,
                starts=search.starts,
                workers=search.workers,
                seed=search.seed,
                seconds=self.left,
                resume=search.resume,
                progress=told,
            )
        self.x, self.searched = self.found.x, self.found.status not in STOPPED
        self.saved.write(self.x, self.noise, self.searched, now=True)
        self.search.progress(f"{self.found.status}, half the sum of squares {self.found.value:.6g}")

    def _locally(self) -> Result:
        problem = self.objective.problem() if self.by_residuals else self.objective.smooth()
        problem.function = self._watched(problem.function)
        result = self.solver(problem, self.x, seconds=self.left)
        text = f"{result.status} after {result.iterations} iterations, half the sum of squares {result.value:.6g}"
        self.search.progress(text)
        return result

    def _watched(self, function: Callable) -> Callable:
        """The same function, which tells what it gives, keeps the best on disk, and ends where Ctrl-C has asked."""
        best, looks = np.inf, 0

        def watched(x):
            nonlocal best, looks
            given = function(x)
            value = float(given[0]) if np.ndim(given[0]) == 0 else 0.5 * float(given[0] @ given[0])
            if value < best:
                best = value
                self.saved.write(x, self.noise, self.searched)
            looks += 1
            self.search.watch(Look(value, best))
            if looks > 1:  # a solver keeps what it has seen, from its second look on
                self.search.stop.end_if_asked()
            return given

        return watched


def _widened(objective: Objective, x: np.ndarray) -> float:
    """How much wider than the noise a robust loss begins: far from the truth all data look like outliers."""
    if objective.robust == "squares":
        return 1.0
    left = max(deviations_left(objective, x).values())
    return max(1.0, 2 * left) if left > 1.5 and np.isfinite(left) else 1.0


def deviations_left(objective: Objective, x: np.ndarray) -> dict[str, float]:
    """For each channel the deviation that is left, over what was taken as its noise; robust: by the median."""
    found = {}
    for key, part in objective.by_channel(x).items():
        values = np.abs(part[np.isfinite(part)])
        if objective.robust == "squares":
            left = np.sqrt(np.sum(values**2) / max(len(values), 1))
        else:
            left = np.median(values) / DEVIATION_OF_MEDIAN if len(values) else 0.0
        found[key] = max(float(left), 1e-6)
    return found


def reweighed(shots: Shots, factors: Mapping[str, float]) -> Shots:
    weight = {key: np.asarray(w) / factors.get(key, 1.0) for key, w in shots.weight.items()}
    return eqx.tree_at(lambda s: s.weight, shots, weight)
