"""What all local solvers have: a call from a start, a clock, and residuals at the end."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

import numpy as np

from knuckle.optim.problem import LeastSquares, Problem
from knuckle.optim.result import Result


class LocalSolver(Protocol):
    """Goes downhill from a start, for at most so many seconds; Ctrl-C ends it with the best so far."""

    def __call__(self, problem: Problem, start, *, seconds: float | None = None) -> Result: ...

    def at(self, problem: Problem, x) -> Result:
        """Value and derivatives at a point, and no step."""
        ...


class Clock:
    """Seconds since a solver began, and whether its time is up."""

    def __init__(self, seconds: float | None):
        self._began, self._seconds = time.perf_counter(), np.inf if seconds is None else seconds

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._began

    @property
    def left(self) -> float:
        return self._seconds - self.elapsed

    @property
    def out(self) -> bool:
        return self.elapsed >= self._seconds


def with_residuals(problem: Problem, result: Result) -> Result:
    """The result with residuals and Jacobian at its point, where the problem has them."""
    if not isinstance(problem, LeastSquares):
        return result
    residuals, jacobian = problem.residuals_and_jacobian(result.x)
    return replace(result, residuals=residuals, jacobian=jacobian)
