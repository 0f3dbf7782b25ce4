"""The fit as one least-squares problem: free numbers, then where each piece of the recordings starts."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.native import jacfwd, jit
from knuckle.native.cache import is_cached
from knuckle.neural.sparsity import lasso_residuals
from knuckle.optim import LeastSquares, LevenbergMarquardt
from knuckle.optim.chain import Chain
from knuckle.optim.robust import TUNED, Loss, as_squares, rho
from knuckle.sysid.chunks import chunk_size, in_chunks
from knuckle.sysid.entries import POSE_PREFIX, weights_of_entries
from knuckle.sysid.many import DENSE, MANY, over_pieces, seen_by_data
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Shots

INSTRUMENTS = {"offset": 0.5, "gain": 0.2, "delay": 0.02}  # deviations that are expected


class Regularise(NamedTuple):
    """What keeps networks small: half the sum of (weight / spread)^2, and lassos on the first layers.

    All are in units of half the sum of squared residuals over the noise. `group_lasso` holds the weights of each input
    together, so that inputs that are not needed go (`knuckle.neural.sparsity`); `lasso` is on weights one by one.
    """

    spread: float = 1.0
    group_lasso: float = 0.0
    lasso: float = 0.0


class Objective:
    """Residuals of all pieces, of their continuity, and of what is known beforehand.

    x holds free numbers z, then for each piece the change of its start in units of how well the start is known.
    """

    def __init__(
        self,
        simulator: Simulator,
        shots: Shots,
        *,
        continuity: float = 1.0,
        fixed_starts: bool = False,
        robust: Loss = "squares",
        regularise: Regularise = Regularise(),
        threads: int | None = None,
    ):
        self.simulator, self.shots, self.fixed_starts = simulator, shots, fixed_starts
        self.size, self.nv = simulator.size, simulator.model.nv
        self.continuity, self.regularise = continuity, regularise
        self.robust: Loss = robust
        self.tolerance = TUNED[robust]  # residuals beyond this many deviations count less
        self.threads = threads  # over pieces; by default all cores
        self.lasso_size = self._count_lassos()
        self.piece = jax.jit(self._piece)  # traced once for all programs that are made of it
        self._native = jit(self._pieces)
        self.chunk = chunk_size(shots.samples)
        self._jacobians = in_chunks(self._native, self.chunk, threads)
        self._shrunk = jit(lambda w: (self.lassos(w), jacfwd(self.lassos)(w)))
        chunk = 2 * self.chunk if self.size < DENSE else None  # large networks want all segments in one product
        self._values = in_chunks(over_pieces(self.piece, (None, 0, 0), self.size, threads), chunk)
        self._with_slope = in_chunks(over_pieces(self.with_slope, (None, 0, 0), self.size, threads), chunk)
        self.programs: dict[str, Any] = {}  # what else is compiled

    def program(self, name: str, make: Callable[[], Callable]) -> Callable:
        """What was made under this name, or is now."""
        if name not in self.programs:
            self.programs[name] = make()
        return self.programs[name]

    def on(self, shots: Shots) -> Objective:
        """The same for other pieces, with what is compiled already; soft ties as at the start."""
        other = copy(self)
        other.shots, other.continuity = shots, 1.0
        return other

    def is_compiled(self) -> bool:
        """Whether the machine code of the Jacobian is there already, in this process or on disk."""
        return is_cached(self._native, self.first[: self.size], self.starts(self.first), self.shots)

    @property
    def start_size(self) -> int:
        return 0 if self.fixed_starts else self.shots.count * 2 * self.nv

    def problem(self) -> LeastSquares:
        lower, upper = self._bounds()
        names = (*self.labels, *(f"start {k}" for k in range(self.start_size)))
        bounds = {"lower": lower, "upper": upper, "names": names, "reach": self._reach(lower, upper)}
        made = FitProblem(self, self.size + self.start_size, look=self.look, **bounds)
        made.objective = self
        return made

    def _reach(self, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
        """How far a global search moves each number: not at all starts and weights, which follow."""
        known, parameters = self.simulator.physical, self.simulator.parameters
        instruments = slice(parameters.size, known)
        own = np.minimum((upper - lower)[instruments], 4 * self.prior[instruments])
        return np.concatenate([parameters.reach, own, np.zeros(len(lower) - known)])

    def settled(self, x: np.ndarray, iterations: int) -> np.ndarray:
        """The point with the starts of all pieces where they fit best, everything else held."""
        if self.fixed_starts:
            return x

        def function(starts: np.ndarray):
            return self.by_own(np.concatenate([x[: self.size], starts]))

        solver = LevenbergMarquardt(max_iterations=iterations)
        found = solver(LeastSquares(function, self.start_size), x[self.size :])
        return np.concatenate([x[: self.size], found.x])

    @property
    def labels(self) -> tuple[str, ...]:
        weights = self.size - self.simulator.physical
        return (
            *self.simulator.parameters.labels,
            *self.simulator.instruments.labels,
            *(f"weight {k}" for k in range(weights)),
        )

    @cached_property
    def prior(self) -> np.ndarray:
        """Deviations that are expected of the free numbers."""
        instruments = [INSTRUMENTS[kind] for kind in self.simulator.instruments.kinds]
        weights = np.full(self.size - self.simulator.physical, self.regularise.spread)
        return np.concatenate([self.simulator.parameters.deviation, instruments, weights])

    @property
    def first(self) -> np.ndarray:
        """Where a fit begins."""
        return np.concatenate([self.simulator.first, np.zeros(self.start_size)])

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        p, free = self.simulator.parameters, np.full(self.size - self.simulator.physical + self.start_size, np.inf)
        latest = self.shots.history * self.shots.period
        least, most = {"delay": 0.0, "gain": -0.95}, {"delay": latest}
        lower = [least.get(kind, -np.inf) for kind in self.simulator.instruments.kinds]
        upper = [most.get(kind, np.inf) for kind in self.simulator.instruments.kinds]
        return np.concatenate([p.lower, lower, -free]), np.concatenate([p.upper, upper, free])

    def entries(self, key: str) -> int:
        """How many differences a channel has at each sample."""
        if key == "q":
            return self.nv
        return 6 if key.startswith(POSE_PREFIX) else self.shots.measured[key].shape[-1]

    @property
    def data_size(self) -> int:
        """Residuals of the measurements of a segment."""
        return sum(self.entries(key) for key in self.shots.weight) * self.shots.samples

    def starts(self, x: np.ndarray) -> np.ndarray:
        """Changes of the pieces' starts, in physical units."""
        if self.fixed_starts:
            return np.zeros((self.shots.count, 2 * self.nv))
        return x[self.size :].reshape(self.shots.count, 2 * self.nv) * np.asarray(self.shots.known)

    def __call__(self, x: np.ndarray) -> tuple[np.ndarray, Chain]:
        """Residuals and their Jacobian."""
        y, by_z, by_start = (np.asarray(a) for a in self._jacobians(x[: self.size], self.starts(x), self.shots))
        return self._residuals(x, y), self.jacobian(y, by_z, by_start, self._alone(x))

    def told(self, x: np.ndarray) -> tuple[np.ndarray, Chain]:
        """The same to judge by what data tell: of many weights, along the directions that data see most."""
        return self(x) if self.size <= MANY else seen_by_data(self, x)

    def by_own(self, x: np.ndarray) -> tuple[np.ndarray, Chain]:
        """Residuals and their Jacobian by the starts of pieces alone."""
        y, by_start = (np.asarray(a) for a in self._with_slope(x[: self.size], self.starts(x), self.shots))
        none = np.zeros((*y.shape, 0)), np.zeros((self.lasso_size + self.size, 0))
        return self._residuals(x, y), self.jacobian(y, none[0], by_start, none[1])

    def look(self, x: np.ndarray) -> np.ndarray:
        """Residuals alone."""
        return self._residuals(x, np.asarray(self._values(x[: self.size], self.starts(x), self.shots)))

    def _piece(self, z, start, shot: Shots):
        """Residuals of one piece, and its end beside the start of the next."""
        return jnp.concatenate(self.simulator.residuals(z, start, shot))

    def _pieces(self, z, starts, shots: Shots):
        def of_one(args):
            start, shot = args
            value = self.piece(z, start, shot)
            by_z, by_start = jacfwd(lambda z, start: self.piece(z, start, shot), (0, 1))(z, start)
            return value, by_z, by_start

        return jax.lax.map(of_one, (starts, shots))

    def with_slope(self, z, start, shot: Shots):
        """Residuals of one piece, and their change with its start."""
        return self.piece(z, start, shot), jacfwd(lambda start: self.piece(z, start, shot))(start)

    def lassos(self, weights):
        """Residuals that stand for the lassos on networks."""
        _, group, element = self.regularise
        return lasso_residuals(self.simulator.networks(weights), group, element)

    def _count_lassos(self) -> int:
        if not (self.regularise.group_lasso or self.regularise.lasso) or self.simulator.blueprint is None:
            return 0
        return jax.eval_shape(self.lassos, jnp.zeros(self.size - self.simulator.physical)).size

    def values(self, x: np.ndarray) -> np.ndarray:
        """Weighed residuals of each piece, without their derivative."""
        return np.asarray(self._values(x[: self.size], self.starts(x), self.shots))[:, : -2 * self.nv]

    def by_channel(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """The same as (piece, sample, entry) for each channel; NaN where nothing was measured."""
        values, at, found = self.values(x), 0, {}
        for key in self.shots.weight:
            shape = (self.shots.count, self.shots.samples, self.entries(key))
            part = values[:, at : at + shape[1] * shape[2]].reshape(shape)
            at += shape[1] * shape[2]
            found[key] = np.where(self.weights(key) > 0, part, np.nan)
        return found

    def weights(self, key: str) -> np.ndarray:
        """Weights of a channel's differences, 0 where nothing was measured."""
        weigh = jax.vmap(lambda w: weights_of_entries(self.simulator.model, key, w))
        return np.asarray(weigh(jnp.asarray(self.shots.weight[key])))

    def _residuals(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Data of all pieces, their ties, lassos, and what is known beforehand of free numbers and of starts."""
        parts = self.residuals_of_pieces(x, y)
        if self.lasso_size:
            parts.append(np.asarray(self._shrunk(x[self.simulator.physical : self.size])[0]))
        return np.concatenate([*parts, x[: self.size] / self.prior, x[self.size :]])

    def residuals_of_pieces(self, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        """Data, and ties."""
        ends = 2 * self.nv
        data = y[:, :-ends].reshape(-1)
        if self.robust != "squares":
            data, _ = as_squares(self.robust, self.tolerance, data)
        if self.fixed_starts:
            return [data]
        apart = (y[:, -ends:] - np.roll(self.starts(x), -1, axis=0)) * np.asarray(self.shots.joined)[:, None]
        return [data, (apart * self.tie_weight()).reshape(-1)]

    def jacobian(self, y: np.ndarray, by_z: np.ndarray, by_start: np.ndarray, alone: np.ndarray) -> Chain:
        """Of those by free numbers and starts."""
        ends, known = 2 * self.nv, np.asarray(self.shots.known)
        if self.fixed_starts:
            own, joined, known = np.zeros((*y.shape, 0)), known[:, :0], known[:, :0]
        else:
            own, joined = by_start * known[:, None, :], np.asarray(self.shots.joined)[:, None] * self.tie_weight()
        data = slice(0, y.shape[1] - ends)
        by_shared, by_own = by_z[:, data], own[:, data]
        if self.robust != "squares":
            slope = as_squares(self.robust, self.tolerance, y[:, data])[1][..., None]
            by_shared, by_own = slope * by_shared, slope * by_own
        ties = slice(data.stop, data.stop + joined.shape[1])
        following = -joined * np.roll(known, -1, axis=0)
        tied = joined[..., None]
        return Chain(
            *(by_shared, by_own, tied * by_z[:, ties], tied * own[:, ties]),
            *(following, alone, np.ones_like(following)),
        )

    def _alone(self, x: np.ndarray) -> np.ndarray:
        """Rows that depend on free numbers only: lassos, and what is known beforehand."""
        weights, lassos = slice(self.simulator.physical, self.size), np.zeros((self.lasso_size, self.size))
        if self.lasso_size:
            lassos[:, weights] = np.asarray(self._shrunk(x[weights])[1])
        return np.concatenate([lassos, np.diag(1 / self.prior)])

    def tie_weight(self) -> np.ndarray:
        """How strongly a piece must end where the next one starts: as well as starts are known, times `continuity`."""
        return self.continuity * 10 / np.median(np.asarray(self.shots.known), axis=0)

    def sensitivity(self, x: np.ndarray) -> Chain:
        """The Jacobian with data rows as a covariance wants them: of residuals of deviation 1.

        A robust loss takes information from data: rows count mean(psi') / sqrt(mean(psi^2)), psi the slope of the loss
        (Huber and Ronchetti, Robust Statistics, section 7.6).
        """
        _, jacobian = self.told(x)
        if self.robust == "squares":
            return jacobian
        _, slope = as_squares(self.robust, self.tolerance, self.values(x))
        seen = np.concatenate([part[np.isfinite(part)] for part in self.by_channel(x).values()])
        psi = jax.grad(lambda r: 0.5 * self.tolerance**2 * rho(self.robust, (r / self.tolerance) ** 2, jnp)[0])
        kept = jnp.mean(jax.vmap(jax.grad(psi))(seen)) / jnp.sqrt(jnp.mean(jax.vmap(psi)(seen) ** 2))
        back = (float(kept) / np.maximum(slope, 1e-12))[..., None]
        return replace(jacobian, by_shared=back * jacobian.by_shared, by_own=back * jacobian.by_own)


class FitProblem(LeastSquares):
    """The problem of a fit, whose starts follow where a global search moves the rest."""

    objective: Objective

    def settled(self, x: np.ndarray) -> np.ndarray:
        return self.objective.settled(x, iterations=3)
