"""Adam with minibatches, for networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from knuckle.optim.local import Clock, with_residuals
from knuckle.optim.problem import Problem, Stochastic, Vector
from knuckle.optim.result import Result, Status


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015; optax), kept within the bounds. Steps of parameters are measured by their scale.

    A step from a gradient that is not finite is refused and halves the rate. The result is the best point at the end
    of an epoch, by the value over all samples.
    """

    epochs: int = 100
    rate: float = 1e-3  # length of a step in units of the parameters' scale
    batch: int | None = None  # samples per step; None: all of them
    seed: int = 0

    def __post_init__(self):
        if self.epochs < 0 or not self.rate > 0 or (self.batch is not None and self.batch < 1):
            raise ValueError(f"expected epochs >= 0, rate > 0 and batch >= 1 or None, got {self}")

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
        optax = imported_optax()
        self.adam, self.problem, self.clock = adam, problem, clock
        self.x, self.rate, self.evaluations, self.epochs = x, adam.rate, 0, 0
        self.rng = np.random.default_rng(adam.seed)
        self.best, self.best_value, self.best_gradient = x, *self._whole(x)
        self.history = [self.best_value]
        with _optax_numbers():
            transform = optax.scale_by_adam()
            self.moments = transform.init(np.zeros_like(x))
            self.direction = jax.jit(transform.update)

    def _whole(self, x: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        return self.problem.value_and_gradient(x)

    def until_done(self) -> Status:
        if not (np.isfinite(self.best_value) and np.isfinite(self.best_gradient).all()):
            return Status.NON_FINITE_START
        for _ in range(self.adam.epochs):
            for rows in self._batches():
                if self.clock.out:
                    return Status.TIME_LIMIT
                self._step(rows)
            self._end_epoch()
        return Status.MAX_ITERATIONS

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
            self.x, self.rate = self.best, self.rate / 2
            return
        with _optax_numbers():
            direction, self.moments = self.direction(gradient * problem.scale, self.moments)
        step = self.rate * problem.scale * np.asarray(direction)
        self.x = np.clip(self.x - step, problem.lower, problem.upper)

    def _end_epoch(self) -> None:
        self.epochs += 1
        value, gradient = self._whole(self.x)
        if np.isfinite(value) and np.isfinite(gradient).all() and value < self.best_value:
            self.best, self.best_value, self.best_gradient = self.x, value, gradient
        self.history.append(self.best_value)

    def result(self, status: Status) -> Result:
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


@contextmanager
def _optax_numbers() -> Iterator[None]:
    """float64, and the promotions of types that optax relies on, whatever the user's settings are."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def imported_optax() -> Any:
    try:
        import optax
    except ImportError as error:
        raise ImportError("Adam needs optax: pip install optax") from error
    return optax
