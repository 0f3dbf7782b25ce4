"""Fits of a model to single transitions (x, u, x'): the state-action loss (IDS eq. 2) with priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.control.dynamics import Dynamics
from knuckle.control.space import Space
from knuckle.model.model import Model, State
from knuckle.optim import LeastSquares, LevenbergMarquardt, Result
from knuckle.sysid.parameters import choose

CAPACITY = 128  # transitions are padded to multiples of it: programs are traced once per size
FLOOR = 1e-6  # of typical changes: smaller residuals are taken as this much noise
ROUNDS = 3  # of fit and noise


class Buffer:
    """Transitions of the real system."""

    def __init__(self):
        self.rows: list[tuple[np.ndarray, ...]] = []

    def add(self, state: State, control: np.ndarray, after: State) -> None:
        row = (state.q, state.qd, control, after.q, after.qd)
        self.rows.append(tuple(np.asarray(x) for x in row))

    def __len__(self) -> int:
        return len(self.rows)

    def padded(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Columns of all rows, repeated up to a whole capacity, and the weight of each row."""
        count = -(-len(self) // CAPACITY) * CAPACITY
        rows = self.rows + [self.rows[-1]] * (count - len(self))
        weights = (np.arange(count) < len(self)).astype(float)
        return [np.array(column) for column in zip(*rows, strict=True)], weights


class TransitionFit(NamedTuple):
    """A model fitted to transitions, and how sure its free parameters are."""

    model: Model
    z: np.ndarray  # free numbers
    covariance: np.ndarray  # of the free numbers
    values: np.ndarray  # of all entries
    deviations: np.ndarray  # standard deviation of each
    error: float  # root mean square of residuals over typical changes
    transitions: int
    result: Result | None


class Learner:
    """Fits the free parameters of a model to transitions by Levenberg-Marquardt, compiled once."""

    def __init__(
        self,
        model: Model,
        free: Sequence[str] | Mapping[str, Any] | None,
        *,
        dt: float,
        substeps: int,
        options: Mapping,
    ):
        self.model, self.dt = model, dt
        self.parameters = choose(model, free)
        if self.parameters.size == 0:
            raise ValueError("adaptive_mpc: expected at least one free parameter of the model, got none")
        self.names = self.parameters.entries
        space = Space(model)

        def residual(z, q, qd, control, after_q, after_qd):
            fitted = self.parameters.applied(model, None, z)[0]
            reached = Dynamics(fitted, dt, substeps, options, None).advance(State(q, qd), control, 0.0)
            return space.between(State(after_q, after_qd), State(reached.q, reached.qd))

        from knuckle.native import vmap  # loads LLVM

        def both(z, *row):
            return residual(z, *row), jax.jacfwd(residual)(z, *row)

        axes = (None, 0, 0, 0, 0, 0)
        self._rows, self._residuals = vmap(both, axes), vmap(residual, axes)
        self._typical = vmap(lambda q, qd, u, q1, qd1: jnp.abs(space.between(State(q, qd), State(q1, qd1))))

    def start(self) -> TransitionFit:
        """The model as it is, with its priors."""
        z = np.zeros(self.parameters.size)
        values, slope = self.parameters.values_and_slopes(z)
        covariance = np.diag(self.parameters.deviation**2)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", slope, covariance, slope))
        return TransitionFit(self.model, z, covariance, np.asarray(values), spread, np.inf, 0, None)

    def fit(self, buffer: Buffer, before: TransitionFit) -> TransitionFit:
        """Squares of residuals over their noise, which is estimated, and of free numbers over their prior deviation."""
        columns, weights = buffer.padded()
        real = weights > 0
        typical = np.sqrt(np.mean(np.asarray(self._typical(*columns))[real] ** 2, axis=0)) + 1e-12
        prior, z, noise, result = self.parameters.deviation, before.z, typical, None
        for _ in range(ROUNDS):
            result = self._solve(columns, weights, noise, z, prior)
            z = result.x
            left = np.asarray(self._residuals(z, *columns))[real]
            noise = np.maximum(np.sqrt(np.mean(left**2, axis=0)), FLOOR * typical)
        left, jacobian = (np.asarray(x)[real] for x in self._rows(z, *columns))
        scaled = (jacobian / noise[:, None]).reshape(-1, len(z))
        covariance = np.linalg.inv(scaled.T @ scaled + np.diag(prior**-2.0))
        values, slope = (np.asarray(x) for x in self.parameters.values_and_slopes(z))
        spread = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slope, covariance, slope), 0.0))
        model = self.parameters.put(self.model, None, z)[0]
        error = float(np.sqrt(np.mean((left / typical) ** 2)))
        numbers = jax.tree.map(np.asarray, model)
        return TransitionFit(numbers, z, covariance, values, spread, error, len(buffer), result)

    def _solve(self, columns, weights, noise, z, prior) -> Result:
        def function(z):
            residuals, jacobian = (np.asarray(x) for x in self._rows(np.asarray(z), *columns))
            share = weights[:, None] / noise
            rows = np.concatenate([(residuals * share).ravel(), z / prior])
            slopes = (jacobian * share[:, :, None]).reshape(-1, len(z))
            return rows, np.concatenate([slopes, np.diag(1 / prior)])

        p = self.parameters
        problem = LeastSquares(function, p.size, lower=p.lower, upper=p.upper, scale=prior, names=p.labels)
        return LevenbergMarquardt(max_iterations=100)(problem, z)

    def information(self, z: np.ndarray, states: State, controls: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """What transitions along a trajectory would tell about the free numbers: J^T J over the noise."""
        rows = (states.q[:-1], states.qd[:-1], controls, states.q[1:], states.qd[1:])
        jacobian = np.asarray(self._rows(z, *rows)[1]) / noise[:, None]
        flat = jacobian.reshape(-1, len(z))
        return flat.T @ flat
