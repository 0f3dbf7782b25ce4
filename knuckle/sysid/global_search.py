"""Global search inside a fit: over parameters and instruments; starts of pieces and weights follow."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from knuckle.optim import BasinHopping, LocalSolver, Population, Problem, Progress, Result
from knuckle.optim.robust import Loss
from knuckle.optim.workers import WorkerPlan
from knuckle.sysid.many import Pieces
from knuckle.sysid.objective import Objective, Regularise
from knuckle.sysid.saved import Saved
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Shots

Name = Literal["local", "basin hopping", "population"]
Method = BasinHopping | Population
METHODS: dict[Name, Method | None] = {
    "local": None,
    "basin hopping": BasinHopping(),
    "population": Population(refined=1),
}


def method_of(search: Name | Method) -> Method | None:
    """The global search of this name, None for none; or the given one."""
    if isinstance(search, Method):
        return search
    if search not in METHODS:
        raise ValueError(
            f"search: expected one of {', '.join(METHODS)}, kn.optim.BasinHopping(...) or kn.optim.Population(...), "
            f"got {search!r}"
        )
    return METHODS[search]


@dataclass(frozen=True)
class Rebuild:
    """All that a worker needs to build the problem: it compiles by itself, from the cache on disk."""

    simulator: Simulator
    shots: Shots
    fixed_starts: bool
    robust: Loss
    tolerance: float
    regularise: Regularise
    by_residuals: bool
    threads: int | None  # of each worker

    @classmethod
    def of(cls, objective: Objective, by_residuals: bool, threads: int | None) -> Rebuild:
        o = objective
        return cls(o.simulator, o.shots, o.fixed_starts, o.robust, o.tolerance, o.regularise, by_residuals, threads)

    def __call__(self) -> Problem:
        options = {"fixed_starts": self.fixed_starts, "robust": self.robust, "regularise": self.regularise}
        objective = Objective(self.simulator, self.shots, threads=self.threads, **options)
        objective.tolerance = self.tolerance
        return objective.problem() if self.by_residuals else Pieces(objective)


def searched(
    objective: Objective,
    solver: LocalSolver,
    by_residuals: bool,
    saved: Saved,
    *,
    method: Method,
    starts: int,
    workers: int | WorkerPlan | None,
    seed: int,
    seconds: float | None,
    resume: bool,
    progress: Callable[[Progress], None],
) -> Result:
    """The best of many local searches, in rounds whose tasks do not depend on the workers that do them."""
    if starts < 1:
        raise ValueError(f"starts: expected at least 1, got {starts}")
    options: dict[str, Any] = {
        "local": solver,
        "searches": starts,
        "seed": seed,
        "workers": cores() if workers is None else workers,
        "seconds": seconds,
        "save": saved.rounds,
        "resume": resume and saved.rounds is not None and saved.rounds.exists(),
        "progress": progress,
    }
    return method(Rebuild.of(objective, by_residuals, threads=None if workers == 0 else 1), objective.first, **options)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
