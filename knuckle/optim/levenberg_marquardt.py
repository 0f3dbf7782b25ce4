"""Bounded Levenberg-Marquardt on the residual vector."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import numpy as np

from knuckle.optim.local import Clock
from knuckle.optim.normal import Jacobian, Normal, normal_equations, transposed, weighed
from knuckle.optim.problem import LeastSquares, Problem, Vector
from knuckle.optim.result import Result, Status
from knuckle.optim.robust import Loss, weigh

NEAR = 0.1  # of the value: a gain that is promised near the end
REMEMBERED = 0.9  # of the squared length of a column, from step to step: in networks early ones are far too long later
FORETOLD = 0.8  # share of a predicted gain from which on the prediction is trusted


class Point(NamedTuple):
    """A point with its residuals and the normal equations of its (reweighted) linearisation."""

    x: Vector
    residuals: np.ndarray
    jacobian: Jacobian
    value: float
    gradient: Vector
    normal: Normal  # J^T W J
    norm: float  # of the weighed residuals

    @property
    def finite(self) -> bool:
        """A sum of squares is finite only if all of its terms are."""
        return math.isfinite(self.value) and math.isfinite(self.normal.diagonal().sum())


class Trial(NamedTuple):
    """Where a step would lead."""

    step: Vector  # before it was bent
    x: Vector
    predicted: float  # gain, by the linearisation
    value: float
    point: Point | None = None  # None: only looked at

    def gains(self, before: float, share: float = 1e-4) -> bool:
        """Whether at least this share of what was predicted."""
        return self.predicted > 0 and before - self.value > share * self.predicted


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Levenberg-Marquardt in a box: damping by Nielsen's rule, each parameter measured by its column of the Jacobian.

    The step solves the damped quadratic model within the bounds (Madsen, Nielsen, Tingleff, Methods for Non-Linear
    Least Squares Problems, 2004, section 3.2; scaling as in MINPACK, with a memory of some ten steps). Robust losses
    are reweighted squares. Tolerances are relative: of the value, of the parameters, and the cosine between residuals
    and a column of the Jacobian.
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
        r, J = (residuals, jacobian) if weight is None else (weight * residuals, weighed(jacobian, weight))
        return Point(x, residuals, jacobian, value, transposed(J, r), normal_equations(J), math.sqrt(r @ r))


class _Run:
    """One descent of Levenberg-Marquardt: the best point so far, the damping, and the count of steps."""

    def __init__(self, solver: LevenbergMarquardt, problem: LeastSquares, first: Point, clock: Clock):
        self.solver, self.problem, self.clock = solver, problem, clock
        self.point, self.history = first, [first.value]
        self.damping, self.growth = solver.first_damping, 2.0
        self.measure = np.zeros(problem.size)  # squared lengths of the Jacobian's columns, the largest seen lately

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
        trial = self._try(self.damping)
        if trial is None:
            return self._refuse(np.inf)
        if self.problem.looks_are_cheap:
            trial = self._less_damped(trial)
        actual = here.value - trial.value if math.isfinite(trial.value) else -np.inf
        length = self._relative_length(trial.step)
        flat = max(trial.predicted, abs(actual)) <= solver.value_tolerance * here.value
        reached = self._reached(trial) if trial.gains(here.value) else None
        if reached is not None and reached.finite:
            self.point = reached
            self.damping *= max(1 / 3, 1 - (2 * min(actual / trial.predicted, 1.0) - 1) ** 3)
            self.growth = 2.0
            self.measure *= REMEMBERED
            ended = (flat and self._promises_nothing()) or (length <= solver.step_tolerance and self._at_minimum())
            return Status.CONVERGED if ended else None
        return Status.CONVERGED if flat and self._promises_nothing() else self._refuse(length)

    def _try(self, damping: float) -> Trial | None:
        here, solver, problem = self.point, self.solver, self.problem
        step = self._step(damping)
        if step is None:
            return None
        predicted = self._predicted(step)
        bent = step + self._bend(step, damping) if solver.accelerate and solver.loss == "squares" else step
        x = np.minimum(np.maximum(here.x + bent, problem.lower), problem.upper)
        if not problem.looks_are_cheap:
            point = solver._point(problem, x)
            return Trial(step, x, predicted, point.value, point)
        value, _ = weigh(solver.loss, solver.loss_scale, problem.residuals(x))
        return Trial(step, x, predicted, value)

    def _less_damped(self, trial: Trial) -> Trial:
        """The trial; near the end, where it gains what was predicted, one of less damping as long as that gains more.

        Looks cost next to nothing beside a Jacobian. Far from the end the boldest gain may lead into a bad valley.
        """
        value = self.point.value
        while trial.gains(value, FORETOLD) and trial.predicted < NEAR * value and self.damping > 1e-14:
            bolder = self._try(self.damping / 10)
            if bolder is None or not bolder.value < trial.value:
                break
            trial, self.damping = bolder, self.damping / 10
        return trial

    def _reached(self, trial: Trial) -> Point:
        return self.solver._point(self.problem, trial.x) if trial.point is None else trial.point

    def _bend(self, step: Vector, damping: float) -> Vector:
        """Half the acceleration along a step, where it is small beside it (Transtrum and Sethna 2012).

        Its second derivative of the residuals is a difference over a tenth of the step.
        """
        here, h = self.point, 0.1
        inside = np.minimum(np.maximum(here.x + h * step, self.problem.lower), self.problem.upper)
        residuals = self.problem.residuals(inside)
        second = 2 / h * ((residuals - here.residuals) / h - here.jacobian @ step)
        if not np.all(np.isfinite(second)):
            return 0 * step
        bend = self._solved(transposed(here.jacobian, second), damping)
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

    def _predicted(self, step: Vector) -> float:
        """The gain of a step by the linearisation."""
        return -float(self.point.gradient @ step + 0.5 * step @ (self.point.normal @ step))

    def _promises_nothing(self) -> bool:
        """Whether a small gain is due to a minimum, not to the damping: the gradient is small beside its parts, or
        without damping there would be no gain either."""
        if self._gradient_vanishes(math.sqrt(self.solver.gradient_tolerance)):
            return True
        step = self._step(1e-12)
        return step is not None and self._predicted(step) <= self.solver.value_tolerance * self.point.value

    def _at_minimum(self) -> bool:
        """Whether a tiny step is due to a minimum, not to the damping: the gradient is small beside its parts, or the
        undamped step is tiny too."""
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
        return here.normal.step(gradient, damping * metric, problem.lower - here.x, problem.upper - here.x)

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
