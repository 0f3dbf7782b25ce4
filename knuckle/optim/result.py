"""What a solver returns: why it ended, the best that it found, and how it got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from knuckle.optim.normal import Jacobian


class Status(StrEnum):
    """Why a solver ended. Every one comes with the best point found so far."""

    CONVERGED = "converged"  # a tolerance was met, or a global search saw no improvement for `patience` rounds
    TARGET_REACHED = "target reached"  # the value is at or below the one that was asked for
    SEARCHES_DONE = "searches done"  # a global search made all the local searches it was allowed
    MAX_ITERATIONS = "max iterations"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"  # Ctrl-C
    STALLED = "stalled"  # no step lowers the value, yet no tolerance is met: rounding, a kink or a wrong derivative
    NON_FINITE_START = "non-finite start"  # value or derivative at the start is not a number
    NUMERICAL_FAILURE = "numerical failure"  # linear algebra broke down, as where a simulation diverges
    WORKERS_LOST = "workers lost"  # no worker process or node is left to compute on

    @property
    def successful(self) -> bool:
        """Whether the solver ended where it was meant to."""
        return self in (Status.CONVERGED, Status.TARGET_REACHED, Status.SEARCHES_DONE)


@dataclass(frozen=True)
class Searches:
    """The local searches of a global one, in the order of their numbers, whichever worker made them."""

    start: np.ndarray  # (searches, parameters)
    x: np.ndarray  # where each ended; NaN where it failed
    value: np.ndarray  # infinite where it failed
    status: tuple[str, ...]
    evaluations: np.ndarray

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Result:
    """The best point that a solver found, and why it ended."""

    status: Status
    x: np.ndarray
    value: float  # of a least-squares problem: half the sum of (robust) squares
    gradient: np.ndarray
    residuals: np.ndarray | None = None  # least squares only, at x
    jacobian: Jacobian | None = None  # of the residuals, at x
    iterations: int = 0  # trial steps of a local solver, rounds of a global one
    evaluations: int = 0
    seconds: float = 0.0
    history: np.ndarray = field(default_factory=lambda: np.zeros(0))  # the best value after every iteration
    searches: Searches | None = None  # global search only
    failures: Sequence[str] = ()  # tasks of a global search that gave nothing, and why

    @property
    def successful(self) -> bool:
        return self.status.successful
