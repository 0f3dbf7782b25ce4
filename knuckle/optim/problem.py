"""What is to be minimised: a function of the free parameters, their bounds, typical sizes and names."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from knuckle.optim.chain import Chain
from knuckle.optim.normal import Jacobian, transposed

Vector: TypeAlias = np.ndarray
MANY = 24  # parameters from which on a Jacobian costs much more than residuals
Function: TypeAlias = Callable[[Vector], tuple[np.ndarray, np.ndarray]]


class Problem(ABC):
    """Free parameters with bounds, typical sizes (`scale`) and names. Bounds may be infinite, one number or one each.

    The function gets one float64 vector and returns new arrays each time: solvers keep what it returned. `reach` is how
    far a global search moves each parameter: the distance of its bounds (its scale where one is infinite) unless given;
    those of reach 0 it leaves where the point that it moves from has them.
    """

    def __init__(
        self,
        function: Callable,
        size: int,
        *,
        lower: float | Sequence[float] | Vector = -np.inf,
        upper: float | Sequence[float] | Vector = np.inf,
        scale: float | Sequence[float] | Vector = 1.0,
        names: Sequence[str] | None = None,
        reach: float | Sequence[float] | Vector | None = None,
    ):
        if size < 1:
            raise ValueError(f"a problem has at least one parameter, not {size}")
        self.function, self.size = function, size
        self.names = tuple(names) if names is not None else tuple(f"x{i}" for i in range(size))
        if len(self.names) != size:
            raise ValueError(f"expected {size} names of parameters, got {len(self.names)}: {', '.join(self.names)}")
        self.lower, self.upper = self._each("lower", lower), self._each("upper", upper)
        self.scale = self._each("scale", scale)
        self._refuse(~(self.lower < self.upper), "lower bound must be below the upper one")
        self.reach = self._each("reach", self._width() if reach is None else reach)
        both = np.isfinite(self.lower) & np.isfinite(self.upper)
        self.ranged = both if reach is None else np.ones(size, bool)  # whether it is known where to search
        self._refuse(~((self.reach >= 0) & np.isfinite(self.reach)), "reach must be 0 or more and finite")
        self._refuse(~((self.scale > 0) & np.isfinite(self.scale)), "scale must be positive and finite")

    def _each(self, what: str, values) -> Vector:
        array = np.asarray(values, dtype=np.float64)
        if array.shape not in ((), (self.size,)):
            raise ValueError(f"{what}: expected one number or {self.size} of them, got an array of shape {array.shape}")
        return np.array(np.broadcast_to(array, (self.size,)))

    def _refuse(self, bad: np.ndarray, rule: str) -> None:
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(
                f"parameter {self.names[i]!r}: {rule} (lower {self.lower[i]:g}, upper {self.upper[i]:g}, "
                f"scale {self.scale[i]:g})"
            )

    def start(self, x) -> Vector:
        """A starting point, checked and moved into the bounds."""
        point = np.asarray(x, dtype=np.float64)
        if point.shape != (self.size,):
            raise ValueError(f"start: expected {self.size} numbers ({', '.join(self.names)}), got shape {point.shape}")
        if np.isnan(point).any():
            raise ValueError(f"start: parameter {self.names[int(np.argmax(np.isnan(point)))]!r} is not a number")
        return np.clip(point, self.lower, self.upper)

    def _width(self) -> Vector:
        width = self.upper - self.lower
        return np.where(np.isfinite(width), width, self.scale)

    @property
    def moved(self) -> np.ndarray:
        """Which parameters a global search moves."""
        return self.reach > 0

    def box(self, centre: Vector) -> tuple[Vector, Vector]:
        """Where a global search looks: between the bounds, or around the centre where the reach is less than those."""
        whole = self.reach >= self.upper - self.lower
        low, high = centre - self.reach / 2, centre + self.reach / 2
        return (
            np.where(whole, self.lower, np.maximum(low, self.lower)),
            np.where(whole, self.upper, np.minimum(high, self.upper)),
        )

    def settled(self, x: Vector) -> Vector:
        """The point with parameters that a search does not move brought to where they fit; by default as they are."""
        return x

    def into_bounds(self, x: Vector) -> Vector:
        """Reflect a point at the bounds until it lies between them."""
        width = self.upper - self.lower
        both = np.isfinite(width)
        with np.errstate(invalid="ignore"):
            offset = np.mod(x - self.lower, 2 * width)
            folded = self.lower + np.minimum(offset, 2 * width - offset)
        one_sided = np.where(x < self.lower, 2 * self.lower - x, np.where(x > self.upper, 2 * self.upper - x, x))
        return np.clip(np.where(both, folded, one_sided), self.lower, self.upper)

    def value(self, x: Vector) -> float:
        """The number to be minimised alone."""
        return self.value_and_gradient(x)[0]

    @abstractmethod
    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """The number to be minimised and its gradient."""


class LeastSquares(Problem):
    """Half the sum of squares of residuals; `function(x)` returns residuals (m,) and their Jacobian (m, size).

    The Jacobian is an array or a `Chain`. `look(x)` returns residuals alone, where that is much cheaper.
    """

    function: Callable[[Vector], tuple[np.ndarray, Jacobian]]

    def __init__(self, function: Callable, size: int, *, look: Callable[[Vector], np.ndarray] | None = None, **bounds):
        super().__init__(function, size, **bounds)
        self.look = look

    @property
    def looks_are_cheap(self) -> bool:
        return self.look is not None and self.size >= MANY

    def residuals(self, x: Vector) -> np.ndarray:
        return self.residuals_and_jacobian(x)[0] if self.look is None else np.asarray(self.look(x), dtype=np.float64)

    def residuals_and_jacobian(self, x: Vector) -> tuple[np.ndarray, Jacobian]:
        residuals, jacobian = self.function(x)
        residuals = np.asarray(residuals, dtype=np.float64)
        if not isinstance(jacobian, Chain):
            jacobian = np.asarray(jacobian, dtype=np.float64)
        if jacobian.shape != (len(residuals), self.size):
            raise ValueError(
                f"the Jacobian of {len(residuals)} residuals by {self.size} parameters ({', '.join(self.names)}) must "
                f"have that shape, got {jacobian.shape}"
            )
        if isinstance(jacobian, Chain):
            self._refuse_bounds_of_own(jacobian.sizes[-1])
        return residuals, jacobian

    def _refuse_bounds_of_own(self, shared: int) -> None:
        bounded = np.isfinite(self.lower) | np.isfinite(self.upper)
        bounded[:shared] = False
        self._refuse(bounded, "only parameters that all pieces of a Chain share may have bounds")

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        residuals, jacobian = self.residuals_and_jacobian(x)
        return 0.5 * float(residuals @ residuals), transposed(jacobian, residuals)


class Smooth(Problem):
    """Any differentiable function; `function(x)` returns its value and gradient (size,)."""

    function: Function

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        value, gradient = self.function(x)
        return float(value), np.asarray(gradient, dtype=np.float64)


class Stochastic(Problem):
    """A mean over `samples`; `function(x, rows)` returns value and gradient over the given rows only.

    `look(x)` returns the value over all of them alone, where that is much cheaper.
    """

    function: Callable[[Vector, np.ndarray], tuple[np.ndarray | float, np.ndarray]]

    def __init__(
        self,
        function: Callable,
        size: int,
        *,
        samples: int,
        look: Callable[[Vector], float] | None = None,
        **bounds,
    ):
        if samples < 1:
            raise ValueError(f"samples: expected at least 1, got {samples}")
        super().__init__(function, size, **bounds)
        self.samples, self.look = samples, look

    def value(self, x: Vector) -> float:
        return self.value_and_gradient(x)[0] if self.look is None else float(self.look(x))

    def on_rows(self, x: Vector, rows: np.ndarray) -> tuple[float, Vector]:
        value, gradient = self.function(x, rows)
        return float(value), np.asarray(gradient, dtype=np.float64)

    def value_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        return self.on_rows(x, np.arange(self.samples))


Build: TypeAlias = Callable[[], Problem]


def built(build: Build) -> Problem:
    """The problem that a factory makes, or an error that says what it made instead."""
    problem = build()
    if not isinstance(problem, Problem):
        raise ValueError(f"{build!r} must return a LeastSquares, Smooth or Stochastic problem, got {type(problem)}")
    return problem


def pickled(job: object, what: str) -> bytes:
    """The bytes that a worker process rebuilds a job from."""
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{what} goes to worker processes, so it must be picklable: a function at the top of a module, "
            f"functools.partial of one, or an instance of a class there; {error}"
        ) from error
