"""Population search: islands of parameter vectors that evolve, with gradient-based local search inside.

NeuralSim, section III-B: after each evolution the best solutions are combined and mutated, and local solvers start from
what that gives. An island evolves by an algorithm of pygmo (Biscani and Izzo, 2020), then a local solver improves its
best members; then each island's best moves to the next island of a ring, in place of its worst. Islands are tasks of
synchronous rounds instead of pygmo's own asynchronous archipelago, which gives another result each time it runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from knuckle.optim.basin_hopping import bounded, check_patience
from knuckle.optim.checkpoint import State
from knuckle.optim.levenberg_marquardt import LevenbergMarquardt
from knuckle.optim.local import LocalSolver
from knuckle.optim.problem import Build, Problem, Vector, built
from knuckle.optim.result import Result
from knuckle.optim.rounds import Found, Limits, light, search
from knuckle.optim.workers import WorkerPlan, deadline_in, time_left

Algorithm = Literal["de", "sade", "de1220", "cmaes", "pso"]
WORST = 1e300  # stands for a value that is not a number: pygmo wants numbers


@dataclass(frozen=True)
class Islands:
    """Rounds in which every island evolves for some generations and improves its best members locally."""

    start: tuple[float, ...]
    local: LocalSolver
    islands: int
    members: int
    generations: int
    refined: int
    algorithm: Algorithm
    seed: int

    def __post_init__(self):
        if self.algorithm not in get_args(Algorithm):
            raise ValueError(f"algorithm: expected one of {', '.join(get_args(Algorithm))}, got {self.algorithm!r}")
        if self.members < 8:
            raise ValueError(f"members: expected at least 8 on an island, got {self.members}")
        if self.islands < 1 or self.generations < 1 or not 1 <= self.refined <= self.members or self.seed < 0:
            raise ValueError(
                "expected at least 1 island and 1 generation, 1 to all members refined, and a seed of at least 0, "
                f"got {self.islands}, {self.generations}, {self.refined} and {self.seed}"
            )

    def searches_per_task(self) -> int:
        return self.refined

    def searches_per_round(self) -> int:
        return self.islands * self.refined

    def settings(self) -> dict:
        return {name: repr(value) for name, value in asdict(self).items()} | {"method": "population"}

    def first_state(self, problem: Problem) -> State:
        """Members spread over the box, the start among them; their values are found when they first evolve."""
        rng, moved, start = np.random.default_rng([self.seed]), problem.moved, np.array(self.start)
        low, high = problem.box(start)
        members = rng.uniform(low[moved], high[moved], (self.islands, self.members, int(moved.sum())))
        members[0, 0] = start[moved]
        return {"members": members, "fitness": np.full((self.islands, self.members), np.nan)}

    def tasks(self, problem: Problem, state: State) -> list[Any]:
        rounds = len(state["best"])
        seeds = [np.random.SeedSequence([self.seed, rounds, i]).generate_state(1)[0] for i in range(self.islands)]
        return [(state["members"][i], state["fitness"][i], int(seeds[i])) for i in range(self.islands)]

    def work(self, problem: Problem, payload: Any, seconds: float | None) -> Found:
        members, fitness, seed = payload
        deadline = deadline_in(seconds)
        landscape = _Landscape(problem, np.array(self.start), self.local, deadline)
        members, fitness = self._evolved(landscape, members, fitness, seed)
        starts, results = [], []
        for i in np.argsort(fitness, kind="stable")[: self.refined]:
            start = landscape.whole(members[i])
            result = self.local(problem, start, seconds=time_left(deadline))
            starts.append(start)
            results.append(light(result))
            if result.value < fitness[i]:
                members[i], fitness[i] = result.x[problem.moved], result.value
        return Found(starts, results, (members, fitness))

    def _evolved(self, landscape: _Landscape, members: np.ndarray, fitness: np.ndarray, seed: int):
        """Some generations of pygmo's algorithm; what there was before if the time is up in the midst of them."""
        pygmo = imported_pygmo()
        population = pygmo.population(pygmo.problem(landscape), seed=seed)
        for x, value in zip(members, fitness, strict=True):
            value = landscape.value(x) if np.isnan(value) else value
            population.push_back(x, [min(value, WORST)])
        options = {"force_bounds": True} if self.algorithm == "cmaes" else {}
        evolution = getattr(pygmo, self.algorithm)(gen=self.generations, seed=seed, **options)
        with suppress(_TimeUp):
            population = pygmo.algorithm(evolution).evolve(population)
        return population.get_x().copy(), population.get_f()[:, 0].copy()

    def absorbed(self, state: State, found: dict[int, Found]) -> State:
        """Islands as they evolved; then the best of each replaces the worst of the next, if it is better."""
        members, fitness = state["members"].copy(), state["fitness"].copy()
        for island, its in found.items():
            members[island], fitness[island] = its.kept
        if self.islands == 1 or np.isnan(fitness).any():
            return state | {"members": members, "fitness": fitness}
        best = fitness.argmin(axis=1)
        emigrants = [(members[i, best[i]].copy(), fitness[i, best[i]]) for i in range(self.islands)]
        for i, (x, value) in enumerate(emigrants):
            there = (i + 1) % self.islands
            worst = fitness[there].argmax()
            if value < fitness[there, worst]:
                members[there, worst], fitness[there, worst] = x, value
        return state | {"members": members, "fitness": fitness}


class _TimeUp(Exception):
    """Raised inside pygmo's loop when the time is up."""


class _Landscape:
    """The problem as pygmo sees it: a number for each point within the box, of the parameters that are moved."""

    def __init__(self, problem: Problem, start: Vector, local: LocalSolver, deadline: float | None):
        self.problem, self.start, self.local, self.deadline = problem, start, local, deadline

    def __deepcopy__(self, _) -> _Landscape:
        return self

    def fitness(self, x: Vector) -> list[float]:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise _TimeUp
        return [self.value(x)]

    def whole(self, member: Vector) -> Vector:
        """All parameters: those of a member, and the others as the search began."""
        x = self.start.copy()
        x[self.problem.moved] = member
        return x

    def value(self, member: Vector) -> float:
        value = self.local.at(self.problem, self.problem.settled(self.whole(member))).value
        return value if np.isfinite(value) else WORST

    def get_bounds(self) -> tuple[Vector, Vector]:
        low, high = self.problem.box(self.start)
        return low[self.problem.moved], high[self.problem.moved]


def population_search(
    build: Build,
    start: Sequence[float] | Vector | None = None,
    *,
    local: LocalSolver = LevenbergMarquardt(),
    searches: int = 64,
    islands: int = 4,
    members: int = 16,
    generations: int = 5,
    refined: int = 2,
    algorithm: Algorithm = "sade",
    seed: int = 0,
    workers: int | WorkerPlan = 0,
    **limits: Any,
) -> Result:
    """Minimise by islands of `members` that evolve by an algorithm of pygmo and improve their best ones locally.

    Args:
        build: makes the problem; each worker calls it once. All parameters need finite bounds.
        start: one of the first members; the others are spread over the bounds.
        searches: local searches in all, in rounds of `islands * refined`; `refined` that are not whole are left out.
        workers: 0 for this process, a number of processes, or `Ray(address)`.
        limits: `target`, `patience`, `seconds`, `progress`, `save`, `resume` of `Limits`.
    """
    imported_pygmo()
    problem = built(build)
    bounded(problem, "population search")
    first = problem.start((problem.lower + problem.upper) / 2 if start is None else start)
    method = Islands(tuple(first.tolist()), local, islands, members, generations, refined, algorithm, seed)
    if searches < refined:
        raise ValueError(f"searches: expected at least the {refined} of one island, got {searches}")
    return search(method, build, problem, Limits(searches, **limits), workers, first)


@dataclass(frozen=True)
class Population:
    """How `population_search` searches, as a choice that can be handed on; `patience`: rounds without improvement."""

    islands: int = 4
    members: int = 16
    generations: int = 5
    refined: int = 2
    algorithm: Algorithm = "sade"
    patience: int | None = None

    def __post_init__(self):
        sizes = (self.islands, self.members, self.generations, self.refined)
        Islands((), LevenbergMarquardt(), *sizes, self.algorithm, seed=0)
        check_patience(self.patience)

    def __call__(self, build: Build, start: Sequence[float] | Vector | None = None, **options: Any) -> Result:
        return population_search(build, start, **asdict(self), **options)


def imported_pygmo() -> Any:
    try:
        import pygmo
    except ImportError as error:
        raise ImportError('population search needs pygmo: pip install "knuckle[global]"') from error
    return pygmo
