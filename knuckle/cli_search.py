"""Searches of `knuckle fit`: which solver, and where a global one is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knuckle.cli_options import Searching, Solving
from knuckle.cli_parse import positive

if TYPE_CHECKING:
    from knuckle.optim import LocalSolver, Ray


def plan_of(search: Searching, starts: int | None, workers: int | None, ray: str | None) -> int | Ray | None:
    """Where a global search is done."""
    from knuckle.optim import Ray

    if search is Searching.LOCAL and any(option is not None for option in (starts, workers, ray)):
        raise ValueError(
            "--starts, --workers and --ray are for a global search: give --search basin-hopping or population too"
        )
    if workers is not None and ray is not None:
        raise ValueError("--workers are processes of this machine, --ray a cluster: give one of them")
    if (starts is not None and starts < 1) or (workers is not None and workers < 0):
        raise ValueError(f"--starts must be 1 or more and --workers 0 or more, got {starts} and {workers}")
    return workers if ray is None else Ray(ray)


def solver_of(solver: Solving | None, iterations: int | None, rate: float | None) -> LocalSolver | None:
    """The local solver; None: as suits the fit."""
    from knuckle.optim import LBFGSB, Adam, LevenbergMarquardt

    if iterations is not None and solver is None:
        raise ValueError(f"--iterations are those of a solver: give --solver {' or '.join(Solving)} too")
    if iterations is not None and iterations < 1:
        raise ValueError(f"--iterations must be 1 or more, got {iterations}")
    if rate is not None and solver is not Solving.ADAM:
        raise ValueError("--learning-rate is for --solver adam")
    positive("--learning-rate", rate)
    if solver is Solving.ADAM:
        given = {"epochs": iterations, "rate": rate}
        return Adam(**{name: value for name, value in given.items() if value is not None})
    limit = {} if iterations is None else {"max_iterations": iterations}
    kinds = {Solving.LEVENBERG_MARQUARDT: LevenbergMarquardt, Solving.LBFGSB: LBFGSB}
    return None if solver is None else kinds[solver](**limit)
