"""Parallel basin hopping: many local searches, each round of them restarted from what the rounds before have found.

McCarty, Burke, McGuire, Parallel monotonic basin hopping for low thrust trajectory optimization, 2018; NeuralSim,
section III-B (restarts around the best so far); Augmenting differentiable simulators, section IV (restarts anywhere).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from knuckle.optim.checkpoint import State
from knuckle.optim.levenberg_marquardt import LevenbergMarquardt
from knuckle.optim.local import LocalSolver
from knuckle.optim.problem import Build, Problem, Vector, built
from knuckle.optim.result import Result
from knuckle.optim.rounds import Found, Limits, best, light, search
from knuckle.optim.workers import WorkerPlan

Restart = Literal["best", "anywhere"]


@dataclass(frozen=True)
class Hops:
    """Rounds of local searches that begin around the best point so far, or anywhere within the bounds."""

    start: tuple[float, ...]
    local: LocalSolver
    per_round: int
    restart: Restart
    radius: float
    seed: int

    def __post_init__(self):
        if self.restart not in get_args(Restart):
            raise ValueError(f"restart: expected one of {', '.join(get_args(Restart))}, got {self.restart!r}")
        if self.per_round < 1 or not self.radius > 0 or self.seed < 0:
            raise ValueError(
                "expected per_round of at least 1, a positive radius and a seed of at least 0, "
                f"got {self.per_round}, {self.radius} and {self.seed}"
            )

    def searches_per_task(self) -> int:
        return 1

    def searches_per_round(self) -> int:
        return self.per_round

    def settings(self) -> dict:
        return {name: repr(value) for name, value in asdict(self).items()} | {"method": "basin hopping"}

    def first_state(self, problem: Problem) -> State:
        return {}

    def tasks(self, problem: Problem, state: State) -> list[Any]:
        rounds, number = len(state["best"]), best(state)
        centre = np.array(self.start) if number is None else state["x"][number]
        hops = [
            self._hop(problem, centre, np.random.default_rng([self.seed, rounds, i])) for i in range(self.per_round)
        ]
        return [centre, *hops[1:]] if rounds == 0 else hops

    def _hop(self, problem: Problem, centre: Vector, rng: np.random.Generator) -> Vector:
        """A jump of Cauchy's distribution, mostly short and at times far, reflected at the bounds; or anywhere."""
        if self.restart == "anywhere":
            return rng.uniform(*problem.box(np.array(self.start)))
        return problem.into_bounds(centre + self.radius * problem.reach * rng.standard_cauchy(problem.size))

    def work(self, problem: Problem, payload: Any, seconds: float | None) -> Found:
        return Found([payload], [light(self.local(problem, payload, seconds=seconds))])

    def absorbed(self, state: State, found: dict[int, Found]) -> State:
        return state


def basin_hopping(
    build: Build,
    start: Sequence[float] | Vector | None = None,
    *,
    local: LocalSolver = LevenbergMarquardt(),
    searches: int = 64,
    per_round: int = 8,
    restart: Restart = "best",
    radius: float = 0.1,
    seed: int = 0,
    workers: int | WorkerPlan = 0,
    **limits: Any,
) -> Result:
    """Minimise by rounds of local searches, restarted around the best so far ("best") or anywhere within the bounds.

    Args:
        build: makes the problem; each worker calls it once.
        start: where the first search begins; the middle of the bounds if there is none.
        searches: local searches in all, in rounds of `per_round`.
        radius: typical length of a hop, as a share of the distance between the bounds.
        workers: 0 for this process, a number of processes, or `Ray(address)`.
        limits: `target`, `patience`, `seconds`, `progress`, `save`, `resume` of `Limits`.
    """
    if searches < 1:
        raise ValueError(f"searches: expected at least 1, got {searches}")
    problem = built(build)
    first = problem.start(_middle(problem) if start is None else start)
    if restart == "anywhere":
        bounded(problem, "restarts anywhere")
    hops = Hops(tuple(first.tolist()), local, per_round, restart, radius, seed)
    return search(hops, build, problem, Limits(searches, **limits), workers, first)


@dataclass(frozen=True)
class BasinHopping:
    """How `basin_hopping` searches, as a choice that can be handed on; `patience`: rounds without improvement."""

    restart: Restart = "best"
    per_round: int = 8
    radius: float = 0.1
    patience: int | None = None

    def __post_init__(self):
        Hops((), LevenbergMarquardt(), self.per_round, self.restart, self.radius, seed=0)
        check_patience(self.patience)

    def __call__(self, build: Build, start: Sequence[float] | Vector | None = None, **options: Any) -> Result:
        return basin_hopping(build, start, **asdict(self), **options)


def check_patience(patience: int | None) -> None:
    if patience is not None and patience < 1:
        raise ValueError(f"patience: expected at least 1 round or None, got {patience}")


def _middle(problem: Problem) -> Vector:
    bounded(problem, "a search without a start")
    return (problem.lower + problem.upper) / 2


def bounded(problem: Problem, what: str) -> None:
    """Refuse a problem with a parameter that has no bounds to draw it from."""
    if not problem.ranged.all():
        names = ", ".join(name for name, ranged in zip(problem.names, problem.ranged, strict=True) if not ranged)
        raise ValueError(f"{what} needs finite bounds; these parameters have none: {names}")
