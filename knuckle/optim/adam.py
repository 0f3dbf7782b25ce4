"""Adam with minibatches, for networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from knuckle.optim.local import Clock, with_residuals
from knuckle.optim.problem import Problem, Stochastic, Vector
from knuckle.optim.result import Result, Status

MEAN, SQUARE = 0.9, 0.999  # what moments keep from step to step


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), kept within the bounds. Steps of parameters are measured by their scale.

    A step from a gradient that is not finite is refused and halves the rate. The result is the best point at the end
    of an epoch, by the value over all samples.
    """

    epochs: int = 100
    rate: float = 1e-3  # length of a step in units of the parameters' scale
    last_rate: float | None = None  # to which it falls, by half a cosine; None: it stays
    batch: int | None = None  # samples per step; None: all of them
    seed: int = 0

    def __post_init__(self):
        if self.epochs < 0 or not self.rate > 0 or (self.batch is not None and self.batch < 1):
            raise ValueError(f"expected epochs >= 0, rate > 0 and batch >= 1 or None, got {self}")
        if self.last_rate is not None and not 0 <= self.last_rate <= self.rate:
            raise ValueError(f"last_rate: expected 0 to the rate {self.rate:g}, got {self.last_rate:g}")

    def __call__(self, problem: Problem, start, *, seconds: float | None = None) -> Result:
        if self.batch is not None and not isinstance(problem, Stochastic):
            raise ValueError(f"batches of {self.batch} need a Stochastic problem, got {type(problem).__name__}")
        training = _Training(self, problem, problem.start(start), Clock(seconds))
        try:
            status = training.until_done()
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return with_residuals(problem, training.result(status))

    def at(self, problem: Problem, x) -> Result:
        return replace(self, epochs=0)(problem, x)


class _Training:
    """One run of Adam: where it is, its moments, and the best point so far."""

    def __init__(self, adam: Adam, problem: Problem, x: Vector, clock: Clock):
        self.adam, self.problem, self.clock = adam, problem, clock
        self.x, self.rate, self.evaluations, self.epochs = x, adam.rate, 0, 0
        self.slower = 1.0  # by gradients that were not finite
        self.rng = np.random.default_rng(adam.seed)
        self.best, self.best_value, self.best_gradient = x, *self._whole(x)
        self.gradient_at = x
        self.history = [self.best_value]
        self.steps, self.mean, self.square = 0, np.zeros_like(x), np.zeros_like(x)  # moments of the gradient

    def _whole(self, x: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        return self.problem.value_and_gradient(x)

    def until_done(self) -> Status:
        if not (np.isfinite(self.best_value) and np.isfinite(self.best_gradient).all()):
            return Status.NON_FINITE_START
        for epoch in range(self.adam.epochs):
            batches = list(self._batches())
            for number, rows in enumerate(batches):
                if self.clock.out:
                    if number:
                        self._end_epoch()
                    return Status.TIME_LIMIT
                self.rate = self._rate((epoch + number / len(batches)) / self.adam.epochs)
                self._step(rows)
            self._end_epoch()
        return Status.MAX_ITERATIONS

    def _rate(self, share: float) -> float:
        """After this share of the epochs."""
        first, last = self.adam.rate, self.adam.rate if self.adam.last_rate is None else self.adam.last_rate
        return self.slower * (last + 0.5 * (first - last) * (1 + math.cos(math.pi * share)))

    def _batches(self) -> Iterator[np.ndarray | None]:
        """Every sample once, in a new order."""
        if self.adam.batch is None or not isinstance(self.problem, Stochastic):
            yield None
            return
        order = self.rng.permutation(self.problem.samples)
        for first in range(0, len(order), self.adam.batch):
            yield order[first : first + self.adam.batch]

    def _step(self, rows: np.ndarray | None) -> None:
        problem = self.problem
        if rows is None:
            value, gradient = self._whole(self.x)
        else:
            assert isinstance(problem, Stochastic)
            self.evaluations += 1
            value, gradient = problem.on_rows(self.x, rows)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.x, self.slower = self.best, self.slower / 2
            return
        step = self.rate * problem.scale * self._direction(gradient * problem.scale)
        self.x = np.clip(self.x - step, problem.lower, problem.upper)

    def _direction(self, gradient: Vector) -> Vector:
        """Algorithm 1 of the paper."""
        self.steps += 1
        self.mean += (1 - MEAN) * (gradient - self.mean)
        self.square += (1 - SQUARE) * (gradient**2 - self.square)
        mean, square = self.mean / (1 - MEAN**self.steps), self.square / (1 - SQUARE**self.steps)
        return mean / (np.sqrt(square) + 1e-8)

    def _end_epoch(self) -> None:
        self.epochs += 1
        self.evaluations += 1
        value = self.problem.value(self.x)
        if np.isfinite(value) and value < self.best_value:
            self.best, self.best_value = self.x, value
        self.history.append(self.best_value)

    def result(self, status: Status) -> Result:
        if status is Status.INTERRUPTED:
            self.best_gradient = np.full_like(self.best, np.nan)
        elif self.best is not self.gradient_at:
            self.best_gradient = self._whole(self.best)[1]
        return Result(
            status,
            self.best,
            self.best_value,
            self.best_gradient,
            iterations=self.epochs,
            evaluations=self.evaluations,
            seconds=self.clock.elapsed,
            history=np.array(self.history),
        )
