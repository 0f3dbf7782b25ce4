"""Problems of the optimiser's tests; at the top of a module, so that worker processes can build them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knuckle.optim import LeastSquares

Residuals = Callable[[np.ndarray], np.ndarray]


def differentiated(residuals: Residuals) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Residuals with their Jacobian, by complex steps: exact to rounding."""

    def function(x):
        n = len(x)
        columns = [np.imag(residuals(x + 1e-30j * np.eye(n)[i])) / 1e-30 for i in range(n)]
        return np.real(residuals(x.astype(complex))), np.stack(columns, axis=1)

    return function


def rosenbrock(x):
    return np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def powell_singular(x):
    a, b, c, d = x
    return np.array([a + 10 * b, np.sqrt(5) * (c - d), (b - 2 * c) ** 2, np.sqrt(10) * (a - d) ** 2])


def freudenstein_roth(x):
    a, b = x
    return np.array([-13 + a + ((5 - b) * b - 2) * b, -29 + a + ((b + 1) * b - 14) * b])


def beale(x):
    a, b = x
    return np.array([1.5, 2.25, 2.625]) - a * (1 - b ** np.array([1, 2, 3]))


OSBORNE = 1e-3 * np.fromstring(
    "844 908 932 936 925 908 881 850 818 784 751 718 685 658 628 603 580 558 538 522 506 490 478 467 457 448 438 431 "
    "424 420 414 411 406",
    sep=" ",
)


def osborne(x):
    """Osborne 1 (More, Garbow, Hillstrom 1981, number 17): 33 residuals, f = 5.46489e-5 (sum of squares)."""
    t = 10.0 * np.arange(33)
    return OSBORNE - (x[0] + x[1] * np.exp(-t * x[3]) + x[2] * np.exp(-t * x[4]))


def wavy(x):
    """Many local minima; the only one of value 0 is at 1."""
    return np.concatenate([x - 1, 3 * np.sin(1.5 * (x - 1))])


def build_wavy() -> LeastSquares:
    return LeastSquares(differentiated(wavy), 2, lower=-10, upper=10, names=("a", "b"))


def build_broken() -> LeastSquares:
    raise RuntimeError("no such robot")


def build_fatal() -> LeastSquares:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("never reached")


def wrong(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    raise ArithmeticError("wheels came off")


def build_wrong() -> LeastSquares:
    return LeastSquares(wrong, 2, lower=-10, upper=10)


@dataclass(frozen=True)
class Deadly:
    """The wavy problem, but a region of it kills the process: `deaths` times, counted in a folder, or always."""

    folder: str
    deaths: int | None = None
    upper: float = -5.0  # of the first parameter, in the deadly region

    def __call__(self) -> LeastSquares:
        function = differentiated(wavy)

        def deadly(x):
            counted = list(Path(self.folder).iterdir())
            if x[0] < self.upper and (self.deaths is None or len(counted) < self.deaths):
                (Path(self.folder) / f"{time.monotonic_ns()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return function(x)

        return LeastSquares(deadly, 2, lower=-10, upper=10)


@dataclass(frozen=True)
class Doomed:
    """The wavy problem, but tasks on a condemned node of Ray say so in a folder, and never end there.

    Those on other nodes wait for that, so that one must go there.
    """

    folder: str

    def condemn(self, node: str) -> None:
        beside = Path(self.folder) / "part"
        beside.write_text(node)
        beside.rename(Path(self.folder) / "condemned")

    def wait_for_a_task(self) -> None:
        while not (Path(self.folder) / "begun").exists():
            time.sleep(0.02)

    def __call__(self) -> LeastSquares:
        function, condemned = differentiated(wavy), Path(self.folder) / "condemned"

        def doomed(x):
            if condemned.exists():
                import ray

                if ray.get_runtime_context().get_node_id() == condemned.read_text():
                    (Path(self.folder) / "begun").touch()
                    time.sleep(600)
                self.wait_for_a_task()
            return function(x)

        return LeastSquares(doomed, 2, lower=-10, upper=10)


@dataclass(frozen=True)
class Slow:
    """The wavy problem with a pause in each call with the first parameter below a limit."""

    seconds: float
    below: float = np.inf

    def __call__(self) -> LeastSquares:
        function = differentiated(wavy)

        def slow(x):
            time.sleep(self.seconds if x[0] < self.below else 0.0)
            return function(x)

        return LeastSquares(slow, 2, lower=-10, upper=10)


def value_at(problem: LeastSquares, x: np.ndarray, seconds: float | None) -> float:
    """The work of a task in the tests of workers."""
    return problem.value_and_gradient(np.asarray(x, dtype=float))[0]


def with_file_open(problem: LeastSquares, x: np.ndarray, seconds: float | None):
    """A task whose outcome cannot be sent."""
    return lambda: None
