"""The search of a fit: rounds of a local solver, between which the noise is found from what the last one left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from knuckle.deadline import Deadline
from knuckle.interrupt import Interrupts
from knuckle.optim import (
    LBFGSB,
    LeastSquares,
    LevenbergMarquardt,
    LocalSolver,
    Progress,
    Result,
    Status,
)
from knuckle.optim.robust import TUNED
from knuckle.optim.workers import WorkerPlan
from knuckle.sysid.first_weights import End, end, holds, redrawn, untrained
from knuckle.sysid.global_search import Method, searched
from knuckle.sysid.jumps import FIRMEST, SURE, tied
from knuckle.sysid.many import MANY, Pieces, with_starts
from knuckle.sysid.noise import log_evidence, noise_left, reweighed
from knuckle.sysid.noise_kinds import ChannelNoise, NoiseBy, of_entries, overall
from knuckle.sysid.objective import Objective
from knuckle.sysid.saved import Saved
from knuckle.sysid.shots import Shots

SETTLED = 0.05  # relative change of the noise at which it counts as known
MOST_ROUNDS = 4  # in which the noise is found
FIRMER = 10.0  # steps of the ties' weight
MOST_FIRMER = 50  # steps of a search with firmer ties; one without networks that takes more came to a worse place
ROUGH = 20.0  # tolerance of a search that another follows
NOTHING = 0.05  # of the logarithm of a probability
STOPPED = (Status.INTERRUPTED, Status.TIME_LIMIT, Status.NON_FINITE_START, Status.NUMERICAL_FAILURE)
FAILURES = (np.linalg.LinAlgError, ArithmeticError)  # of linear algebra, where a simulation diverges


class Look(NamedTuple):
    """What a search sees."""

    value: float  # half the sum of squares here; of a global search: the best of a round
    best: float  # so far
    seconds_left: float | None = None  # as far as the pace so far tells; None: not known
    searches: int = 0  # of a global search, made so far
    rms: Mapping[str, float] = MappingProxyType({})  # of the residuals of each channel, in its unit
    relative: float | None = None  # the same of all channels, over the noise that the data showed before the fit


@dataclass(frozen=True)
class Search:
    """How a fit searches, and whom it tells."""

    solver: LocalSolver | None
    method: Method | None  # None: from the description only
    starts: int
    workers: int | WorkerPlan | None
    seed: int
    deadline: Deadline
    draws: int
    save: Path | str | None
    resume: bool
    stop: Interrupts
    progress: Callable[[str], None]
    watch: Callable[[Look], None]
    noise_by: NoiseBy = "kind"  # what shares a noise figure


def unmoved(objective: Objective, status: Status) -> Result:
    """The description itself, where nothing could be found."""
    x = objective.first
    return Result(status, x, np.nan, np.full_like(x, np.nan))


def solve(objective: Objective, noise: dict[str, ChannelNoise], given: set[str], search: Search, about: dict):
    """The best point and the noise of each channel, by which the objective then weighs; `given` ones stay."""
    return _Solve(objective, noise, given, search, Saved(search.save, objective, noise, about)).run()


class _Solve:
    """A search under way."""

    def __init__(
        self, objective: Objective, noise: dict[str, ChannelNoise], given: set[str], search: Search, saved: Saved
    ):
        self.objective, self.given, self.search, self.saved = objective, given, search, saved
        self.noise: dict[str, Any] = dict(noise)
        self.x, self.last, self.began = objective.first, None, time.monotonic()
        self.noise_before = overall(
            objective.simulator.model, noise
        )  # the unit of what is shown, in all rounds the same
        self.draw = 0  # of the networks' first weights
        self.searched = search.method is None
        self.found: Result | None = None  # by the global search
        self.iterations = 0
        solver = search.solver
        if solver is None:
            solver = _chosen(objective)
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
        return self.search.deadline.seconds_left

    def run(self) -> tuple[Result, dict[str, ChannelNoise]]:
        try:
            self._widen(_widened(self.objective, self.x))
            if not self.searched:
                self._globally()
            if self.last is None or self.last.status not in STOPPED:
                begun = self.x, self.noise, self.objective.shots
                self._settle()
                self._draw_again(*begun)
        except KeyboardInterrupt:
            found = unmoved(self.objective, Status.INTERRUPTED) if self.last is None else self.last
            self.last = replace(found, status=Status.INTERRUPTED)
        except FAILURES as error:
            self.search.progress(f"numerical failure: {error}")
            found = unmoved(self.objective, Status.NUMERICAL_FAILURE) if self.last is None else self.last
            self.last = replace(found, status=Status.NUMERICAL_FAILURE)
        if self.search.stop.count > 1:
            raise KeyboardInterrupt
        assert self.last is not None
        self.saved.write(self.last.x, self.noise, self.searched, now=True)
        self.last = replace(self.last, iterations=self.iterations, seconds=time.monotonic() - self.began)
        if self.found is not None:
            self.last = replace(self.last, searches=self.found.searches, failures=self.found.failures)
        return self.last, self.noise

    def _settle(self) -> None:
        """From a start to its end."""
        self._until_noise_is_known(rough=tied(self.objective) and self._physical)
        if tied(self.objective):
            self._firm_ties()

    def _draw_again(self, first: np.ndarray, noise: dict[str, ChannelNoise], shots: Shots) -> None:
        """Other first weights of the networks while these come to no good end; the most probable end stays.

        Two that come to the same end say that others would too.
        """
        same = False
        while untrained(self.objective) and self.draw + 1 < self.search.draws and not same:
            assert self.last is not None
            if self.last.status in STOPPED or holds(self.objective, self.x):
                return
            self.draw += 1
            self.search.progress(f"a network came to a bad place: first weights {self.draw + 1} of {self.search.draws}")
            best, self.last = end(self.objective, self.last, self.noise), None
            self.x, self.noise = redrawn(self.objective, first, (self.search.seed, self.draw)), noise
            self.objective.shots, self.objective.continuity = shots, 1.0
            try:
                self._widen(_widened(self.objective, self.x))
                self._settle()
            except FAILURES:
                self._go_back(best)
            except BaseException:
                self._keep(best)
                raise
            else:
                same = self._keep(best)

    def _keep(self, best: End) -> bool:
        """The more probable of an earlier end and where the search is now; whether they are alike."""
        status = Status.INTERRUPTED if self.last is None else self.last.status
        gain = -np.inf if self.last is None else end(self.objective, self.last, self.noise).probability
        gain -= best.probability
        if self.last is None or not gain > 0:
            self._go_back(best)
            self.last = replace(best.last, status=status) if status in STOPPED else best.last
        self.saved.write(self.x, self.noise, self.searched, now=True)
        return abs(gain) < SURE

    def _go_back(self, best: End) -> None:
        self.last, self.x, self.noise = best.last, best.last.x, best.noise
        self.objective.shots, self.objective.continuity = best.shots, best.continuity

    def _until_noise_is_known(self, rough: bool = False) -> None:
        """Rounds until what is left is what was taken as noise; rough ones do not go to the end."""
        rounds = 0
        while rounds < MOST_ROUNDS:
            self.last = self._locally(rough=rough)
            self.x = self.last.x
            if self.last.status in STOPPED:
                self._reweigh()
                return
            if self.widened > 1:
                self._widen(max(1.0, min(self.widened / 3, _widened(self.objective, self.x))))
                continue
            rounds += 1
            if all(np.all(np.abs(factor - 1) < SETTLED) for factor in self._reweigh().values()):
                return

    @property
    def _physical(self) -> bool:
        """Whether there are no networks."""
        return self.objective.size == self.objective.simulator.physical

    def _reweigh(self) -> dict[str, ChannelNoise]:
        """Take what is left as the noise; factors on what it was."""
        found = noise_left(self.objective, self.x, self.search.noise_by)
        factors = {key: factor for key, factor in found.items() if key not in self.given}
        self.noise = self.noise | {key: self.noise[key] * factor for key, factor in factors.items()}
        self.objective.shots = reweighed(self.objective.shots, factors)
        return factors

    def _firm_ties(self) -> None:
        """Ties between pieces, soft at first to lead out of bad places, as firm as makes the data most probable.

        A model that holds from piece to piece is sure of more than one that must begin anew in each.
        """
        objective = self.objective
        assert self.last is not None
        best = log_evidence(objective, self.x)
        most = MOST_FIRMER if self._physical else None
        while objective.continuity * FIRMER <= FIRMEST and self.last.status not in STOPPED:
            objective.continuity *= FIRMER
            tried = self._locally(most)
            evidence = log_evidence(objective, tried.x)
            if not evidence > best:
                objective.continuity /= FIRMER
                break
            self.last, self.x, best = tried, tried.x, evidence
        if self.last.status not in STOPPED:
            self._until_noise_is_known()

    def _widen(self, factor: float) -> None:
        """Let a robust loss take residuals up to a multiple of the noise for good."""
        self.widened = factor
        self.objective.tolerance = factor * TUNED[self.objective.robust]

    def _globally(self) -> None:
        search = self.search
        assert search.method is not None

        def told(progress: Progress) -> None:
            search.watch(Look(progress.loss, progress.best, progress.seconds_left, progress.searches))
            search.progress(f"{progress.searches} of {progress.most_searches} searches, round {progress.rounds}")

        with search.stop.anywhere():
            found = searched(
                *(self.objective, self.solver, self.by_residuals, self.saved),
                method=search.method,
                starts=search.starts,
                workers=search.workers,
                seed=search.seed,
                seconds=self.left,
                resume=search.resume,
                progress=told,
            )
        self.last = self.found = with_starts(self.objective, found)
        self.x, self.searched = self.found.x, self.found.status not in STOPPED
        self.saved.write(self.x, self.noise, self.searched, now=True)
        self.search.progress(f"{self.found.status}, half the sum of squares {self.found.value:.6g}")

    def _locally(self, most: int | None = None, rough: bool = False) -> Result:
        solver = self.solver
        if most is not None and isinstance(solver, LevenbergMarquardt):
            solver = replace(solver, max_iterations=min(most, solver.max_iterations))
        if rough and self.search.solver is None and isinstance(solver, LevenbergMarquardt):
            solver = replace(solver, value_tolerance=ROUGH * solver.value_tolerance)
        problem = self.objective.problem() if self.by_residuals else Pieces(self.objective)
        self._watch(problem)
        result = solver(problem, self.x, seconds=self.left)
        if isinstance(problem, Pieces):
            result = with_starts(self.objective, result, problem.starts)
        self.iterations += result.iterations
        self.search.progress(f"{result.status} after {result.iterations} iterations")
        return result

    def _rms(self, residuals: np.ndarray) -> dict[str, float]:
        """Root mean squares of the residuals of each channel, in its unit: other weights do not change them."""
        shots, found, at = self.objective.shots, {}, 0
        rows = residuals[: shots.count * self.objective.data_size].reshape(shots.count, -1)
        for key, weight in shots.weight.items():
            width = self.objective.entries(key) * shots.samples
            measured = max(np.count_nonzero(np.asarray(weight)), 1)
            noise = of_entries(self.objective.simulator.model, key, self.noise[key])
            own = rows[:, at : at + width].reshape(-1, self.objective.entries(key)) * noise
            found[key] = float(np.sqrt(np.sum(own**2) / measured))
            at += width
        return found

    def _relative(self, rms: Mapping[str, float]) -> float | None:
        """Root mean square over channels, each over the noise that its data showed before the fit."""
        return float(np.sqrt(np.mean([(rms[key] / self.noise_before[key]) ** 2 for key in rms]))) if rms else None

    def _watch(self, problem: LeastSquares | Pieces) -> None:
        """Let it tell what it gives, keep the best on disk, and end where Ctrl-C has asked."""
        best, looks, stop = np.inf, 0, self.search.stop

        def seen(x: np.ndarray, value: float, residuals: np.ndarray | None = None) -> float:
            nonlocal best, looks
            if value < best:
                best = value
                if self.draw == 0:  # a later draw may be worse than what was found
                    self.saved.write(x, self.noise, self.searched)
            looks += 1
            rms = {} if residuals is None else self._rms(residuals)
            self.search.watch(Look(value, best, rms=rms, relative=self._relative(rms)))
            if looks > 1:  # a solver keeps what it has seen, from its second look on
                stop.end_if_asked()
            return value

        if isinstance(problem, Pieces):
            of_pieces, whole = problem.function, problem.whole

            def gradient(z, rows):
                given = of_pieces(z, rows)
                if len(rows) == problem.samples:
                    seen(problem.point(z), float(given[0]))
                else:
                    stop.end_if_asked()
                return given

            problem.function, problem.look = gradient, lambda z: seen(problem.point(z), whole(z))
            return
        function, look = problem.function, self.objective.look

        def jacobian(x):
            given = function(x)
            seen(x, 0.5 * float(given[0] @ given[0]), given[0])
            return given

        def residuals(x):
            stop.end_if_asked()
            return look(x)

        problem.function, problem.look = jacobian, residuals


def _chosen(objective: Objective) -> LevenbergMarquardt | LBFGSB:
    """Steps until the next would make the data more probable by less than exp(NOTHING).

    Networks never come to an end without damping: there steps end where the gradient is small, and those are smaller.
    """
    measured = sum(np.count_nonzero(np.asarray(weight)) for weight in objective.shots.weight.values())
    tolerance = float(np.clip(2 * NOTHING / max(measured, 1), 1e-8, 1e-4))
    if objective.size > MANY:
        return LBFGSB(value_tolerance=0.01 * tolerance)
    if objective.size > objective.simulator.physical:
        return LevenbergMarquardt(value_tolerance=0.1 * tolerance, gradient_tolerance=1e-6)
    return LevenbergMarquardt(value_tolerance=tolerance, accelerate=True)


def _widened(objective: Objective, x: np.ndarray) -> float:
    """How much wider than the noise a robust loss begins: far from the truth all data look like outliers."""
    if objective.robust == "squares":
        return 1.0
    left = max(float(np.max(factor)) for factor in noise_left(objective, x).values())
    return max(1.0, 2 * left) if left > 1.5 and np.isfinite(left) else 1.0
