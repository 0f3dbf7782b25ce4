"""L-BFGS-B, for a value and its gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from knuckle.optim.local import Clock, with_residuals
from knuckle.optim.problem import Problem, Vector
from knuckle.optim.result import Result, Status


@dataclass(frozen=True)
class LBFGSB:
    """SciPy's L-BFGS-B (Byrd, Lu, Nocedal, Zhu, 1995), in parameters divided by their scale."""

    max_iterations: int = 1000
    value_tolerance: float = 1e-12  # relative
    gradient_tolerance: float = 1e-9  # largest entry of the projected gradient, by scaled parameters
    memory: int = 10

    def __call__(self, problem: Problem, start, *, seconds: float | None = None) -> Result:
        descent = _Descent(problem, problem.start(start), Clock(seconds))
        try:
            status = self._minimise(descent)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        except _TimeUp:
            status = Status.TIME_LIMIT
        return with_residuals(problem, descent.result(status))

    def at(self, problem: Problem, x) -> Result:
        return with_residuals(problem, _Descent(problem, problem.start(x), Clock(None)).result(Status.MAX_ITERATIONS))

    def _minimise(self, descent: _Descent) -> Status:
        scale, problem = descent.problem.scale, descent.problem
        if not descent.finite:
            return Status.NON_FINITE_START
        options = {
            "maxiter": self.max_iterations,
            "maxfun": 20 * self.max_iterations + 20,
            "ftol": self.value_tolerance,
            "gtol": self.gradient_tolerance,
            "maxcor": self.memory,
        }
        bounds = np.stack([problem.lower, problem.upper], axis=1) / scale[:, None]
        start, note = descent.x / scale, descent.note
        found = minimize(descent, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=note, options=options)
        return {0: Status.CONVERGED, 1: Status.MAX_ITERATIONS}.get(found.status, Status.STALLED)


class _TimeUp(Exception):
    """Raised inside SciPy's loop when the time is up."""


class _Descent:
    """The function as SciPy sees it, and the best point so far; a value that is not finite is a wall, not an end."""

    def __init__(self, problem: Problem, x: Vector, clock: Clock):
        self.problem, self.clock = problem, clock
        self.x, self.evaluations = x, 1
        self.value, self.gradient = problem.value_and_gradient(x)
        self.history = [self.value]

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.value) and np.isfinite(self.gradient).all())

    def __call__(self, scaled: Vector) -> tuple[float, Vector]:
        if self.clock.out:
            raise _TimeUp
        problem = self.problem
        x = np.clip(scaled * problem.scale, problem.lower, problem.upper)
        value, gradient = problem.value_and_gradient(x)
        self.evaluations += 1
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return self._wall(x)
        if value <= self.value:
            self.x, self.value, self.gradient = x, value, gradient
        return value, gradient * problem.scale

    def note(self, _: Vector) -> None:
        self.history.append(self.value)

    def _wall(self, x: Vector) -> tuple[float, Vector]:
        """A parabola that rises away from the best point, so that the line search turns back."""
        step = (x - self.x) / self.problem.scale
        height = 10 * max(abs(self.value), 1.0)
        return self.value + height, 2 * height * step / max(float(step @ step), 1e-300)

    def result(self, status: Status) -> Result:
        return Result(
            status,
            self.x,
            self.value,
            self.gradient,
            iterations=len(self.history) - 1,
            evaluations=self.evaluations,
            seconds=self.clock.elapsed,
            history=np.array(self.history),
        )
