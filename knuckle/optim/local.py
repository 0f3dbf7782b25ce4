"""Local solvers: bounded Levenberg-Marquardt on the residual vector, and L-BFGS-B."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, get_args

import numpy as np
from scipy.linalg.blas import dgemm  # type: ignore[attr-defined]
from scipy.optimize import minimize

from knuckle.optim.box_step import box_step
from knuckle.optim.problem import LeastSquares, Problem, Vector
from knuckle.optim.result import Result, Status
from knuckle.optim.robust import Loss, weigh


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


class Point(NamedTuple):
    """A point with its residuals and the normal equations of its (reweighted) linearisation."""

    x: Vector
    residuals: np.ndarray
    jacobian: np.ndarray
    value: float
    gradient: Vector
    normal: np.ndarray  # J^T W J
    norm: float  # of the weighed residuals

    @property
    def finite(self) -> bool:
        """A sum of squares is finite only if all of its terms are."""
        return math.isfinite(self.value) and math.isfinite(self.normal.trace())


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Levenberg-Marquardt in a box: damping by Nielsen's rule, each parameter measured by its column of the Jacobian.

    The step solves the damped quadratic model within the bounds (Madsen, Nielsen, Tingleff, Methods for Non-Linear
    Least Squares Problems, 2004, section 3.2; scaling as in MINPACK). Robust losses are reweighted squares. Tolerances
    are relative: of the value, of the parameters, and the cosine between residuals and a column of the Jacobian.
    """

    max_iterations: int = 200  # trial steps, refused ones too
    value_tolerance: float = 1e-10
    step_tolerance: float = 1e-10
    gradient_tolerance: float = 1e-10
    loss: Loss = "squares"
    loss_scale: float = 1.0  # residuals beyond this count less
    first_damping: float = 1e-3
    accelerate: bool = False  # bend steps along narrow curved valleys; one more evaluation each

    def __post_init__(self):
        if self.loss not in get_args(Loss):
            raise ValueError(f"loss: expected one of {', '.join(get_args(Loss))}, got {self.loss!r}")
        if not self.loss_scale > 0:
            raise ValueError(f"loss_scale: expected a positive number, got {self.loss_scale}")
        if self.max_iterations < 0:
            raise ValueError(f"max_iterations: expected 0 or more, got {self.max_iterations}")

    def __call__(self, problem: Problem, start, *, seconds: float | None = None) -> Result:
        if not isinstance(problem, LeastSquares):
            raise ValueError(f"LevenbergMarquardt needs a LeastSquares problem, got {type(problem).__name__}")
        with np.errstate(invalid="ignore", over="ignore"):
            run = _Run(self, problem, self._point(problem, problem.start(start)), Clock(seconds))
            try:
                status = run.until_done()
            except KeyboardInterrupt:
                status = Status.INTERRUPTED
        return run.result(status)

    def at(self, problem: Problem, x) -> Result:
        return replace(self, max_iterations=0)(problem, x)

    def _point(self, problem: LeastSquares, x: Vector) -> Point:
        residuals, jacobian = problem.residuals_and_jacobian(x)
        value, weight = weigh(self.loss, self.loss_scale, residuals)
        r, J = (residuals, jacobian) if weight is None else (weight * residuals, weight[:, None] * jacobian)
        normal = dgemm(1.0, J.T, J.T, trans_b=True)  # J.T @ J would wake threads for each small product
        return Point(x, residuals, jacobian, value, r @ J, normal, math.sqrt(r @ r))


class _Run:
    """One descent of Levenberg-Marquardt: the best point so far, the damping, and the count of steps."""

    def __init__(self, solver: LevenbergMarquardt, problem: LeastSquares, first: Point, clock: Clock):
        self.solver, self.problem, self.clock = solver, problem, clock
        self.point, self.history = first, [first.value]
        self.damping, self.growth = solver.first_damping, 2.0
        self.measure = np.zeros(problem.size)  # squared lengths of the Jacobian's columns, the largest seen so far

    def until_done(self) -> Status:
        if not self.point.finite:
            return Status.NON_FINITE_START
        while True:
            if self._gradient_vanishes(self.solver.gradient_tolerance) or self.point.value <= 1e-30 * self.history[0]:
                return Status.CONVERGED
            if len(self.history) > self.solver.max_iterations:
                return Status.MAX_ITERATIONS
            if self.clock.out:
                return Status.TIME_LIMIT
            status = self._iterate()
            self.history.append(self.point.value)
            if status is not None:
                return status

    def _iterate(self) -> Status | None:
        here, solver = self.point, self.solver
        step = self._step(self.damping)
        if step is None:
            return self._refuse(np.inf)
        predicted = -float(here.gradient @ step + 0.5 * step @ here.normal @ step)
        bent = step + self._bend(step) if solver.accelerate and solver.loss == "squares" else step
        x = np.minimum(np.maximum(here.x + bent, self.problem.lower), self.problem.upper)
        trial = solver._point(self.problem, x)
        actual = here.value - trial.value if trial.finite else -np.inf
        length = self._relative_length(step)
        flat = max(predicted, abs(actual)) <= solver.value_tolerance * here.value
        if predicted > 0 and actual > 1e-4 * predicted:
            self.point = trial
            self.damping *= max(1 / 3, 1 - (2 * min(actual / predicted, 1.0) - 1) ** 3)
            self.growth = 2.0
            return Status.CONVERGED if (flat or length <= solver.step_tolerance) and self._at_minimum() else None
        return Status.CONVERGED if flat and self._at_minimum() else self._refuse(length)

    def _bend(self, step: Vector) -> Vector:
        """Half the acceleration along a step, where it is small beside it (Transtrum and Sethna 2012).

        Its second derivative of the residuals is a difference over a tenth of the step.
        """
        here, h = self.point, 0.1
        inside = np.minimum(np.maximum(here.x + h * step, self.problem.lower), self.problem.upper)
        residuals, _ = self.problem.residuals_and_jacobian(inside)
        second = 2 / h * ((residuals - here.residuals) / h - here.jacobian @ step)
        if not np.all(np.isfinite(second)):
            return 0 * step
        bend = self._solved(here.jacobian.T @ second, self.damping)
        measure = np.sqrt(np.where(self.measure > 0, self.measure, 1.0))
        if bend is None or 2 * np.linalg.norm(measure * bend) > 0.75 * np.linalg.norm(measure * step):
            return 0 * step
        return 0.5 * bend

    def _refuse(self, length: float) -> Status | None:
        """Damp more, until even a tiny step fails."""
        self.damping *= self.growth
        self.growth *= 2
        if length > self.solver.step_tolerance and self.damping < 1e30:
            return None
        return Status.CONVERGED if self._at_minimum() else Status.STALLED

    def _at_minimum(self) -> bool:
        """Whether a tiny step is due to a minimum, not to the damping: the gradient is small beside its parts, or the
        undamped model promises nothing more."""
        solver = self.solver
        if self._gradient_vanishes(math.sqrt(solver.gradient_tolerance)):
            return True
        step = self._step(1e-12)
        return step is not None and self._relative_length(step) <= 1e4 * solver.step_tolerance

    def _step(self, damping: float) -> Vector | None:
        """The minimiser of the damped model within the bounds; a parameter of no effect is measured by its scale."""
        return self._solved(self.point.gradient, damping)

    def _solved(self, gradient: Vector, damping: float) -> Vector | None:
        here, problem = self.point, self.problem
        columns = here.normal.diagonal()
        self.measure = np.maximum(self.measure, columns)
        metric = np.where(self.measure > 0, self.measure, 1 / problem.scale**2)
        damped = here.normal.copy()
        damped.flat[:: problem.size + 1] += damping * metric
        return box_step(damped, gradient, problem.lower - here.x, problem.upper - here.x)

    def _relative_length(self, step: Vector) -> float:
        """The largest change of a parameter, relative to its value or, near zero, to a thousandth of its scale."""
        return float((np.abs(step) / (np.abs(self.point.x) + 1e-3 * self.problem.scale)).max())

    def _gradient_vanishes(self, cosine: float) -> bool:
        """Whether residuals are at right angles to all columns of the Jacobian whose parameter can still move."""
        here, problem = self.point, self.problem
        g, least = here.gradient, cosine * here.norm
        steep = np.abs(g) > least * np.sqrt(here.normal.diagonal())
        blocked = ((here.x <= problem.lower) & (g > 0)) | ((here.x >= problem.upper) & (g < 0))
        return not (steep & ~blocked).any()

    def result(self, status: Status) -> Result:
        here = self.point
        return Result(
            status,
            here.x,
            here.value,
            here.gradient,
            here.residuals,
            here.jacobian,
            iterations=len(self.history) - 1,
            evaluations=len(self.history),
            seconds=self.clock.elapsed,
            history=np.array(self.history),
        )


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


def with_residuals(problem: Problem, result: Result) -> Result:
    """The result with residuals and Jacobian at its point, where the problem has them."""
    if not isinstance(problem, LeastSquares):
        return result
    residuals, jacobian = problem.residuals_and_jacobian(result.x)
    return replace(result, residuals=residuals, jacobian=jacobian)
