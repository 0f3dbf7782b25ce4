"""Searches of `knuckle fit`: which solver, and where a global one is done."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from knuckle.cli_options import Restarting, Searching, Solving
from knuckle.cli_parse import positive

if TYPE_CHECKING:
    from knuckle.optim import LocalSolver, Ray
    from knuckle.sysid.global_search import Method


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


def search_of(search: Searching, restart: Restarting | None, patience: int | None) -> str | Method:
    """How a global search begins its local ones, and when it ends."""
    from knuckle.sysid.global_search import method_of

    if restart is not None and search is not Searching.BASIN_HOPPING:
        raise ValueError("--restart is for --search basin-hopping")
    if patience is not None and (search is Searching.LOCAL or patience < 1):
        raise ValueError("--patience must be 1 or more, and is for a global search")
    name: Any = search.replace("-", " ")
    given = {"restart": restart and restart.value, "patience": patience}
    given = {key: value for key, value in given.items() if value is not None}
    method = method_of(name)
    return name if method is None or not given else replace(method, **given)


def solver_of(
    solver: Solving | None, iterations: int | None, rate: float | None, batch: int | None
) -> LocalSolver | None:
    """The local solver; None: as suits the fit."""
    from knuckle.optim import LBFGSB, Adam, LevenbergMarquardt

    if iterations is not None and solver is None:
        raise ValueError(f"--iterations are those of a solver: give --solver {' or '.join(Solving)} too")
    if iterations is not None and iterations < 1:
        raise ValueError(f"--iterations must be 1 or more, got {iterations}")
    if rate is not None and solver is not Solving.ADAM:
        raise ValueError("--learning-rate is for --solver adam")
    positive("--learning-rate", rate)
    if batch is not None and (solver is not Solving.ADAM or batch < 1):
        raise ValueError("--batch must be 1 or more, and is for --solver adam")
    if solver is Solving.ADAM:
        given = {"epochs": iterations, "rate": rate, "batch": batch}
        return Adam(**{name: value for name, value in given.items() if value is not None})
    limit = {} if iterations is None else {"max_iterations": iterations}
    kinds = {Solving.LEVENBERG_MARQUARDT: LevenbergMarquardt, Solving.LBFGSB: LBFGSB}
    return None if solver is None else kinds[solver](**limit)
