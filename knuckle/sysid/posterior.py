"""Samples of the parameters that a fit leaves possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.model.model import Model
from knuckle.optim.chain_normal import Reduced
from knuckle.sysid.colour import colours_of, widening
from knuckle.sysid.fit import Fit
from knuckle.sysid.objective import Objective
from knuckle.sysid.stein import stein


@dataclass(frozen=True)
class Posterior:
    """Samples of a fit's parameters, all equally probable."""

    samples: np.ndarray  # free numbers, one row for each sample
    names: tuple[str, ...]  # of the values
    values: np.ndarray  # of the parameters, one row for each sample
    iterations: int
    motion: float  # how much the particles still moved at the end, in deviations
    fit: Fit

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the intervals that hold this share of the samples, by value."""
        lower, upper = np.quantile(self.values, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        return lower, upper

    def models(self) -> list[Model]:
        """The model of each sample."""
        with jax.enable_x64(True):
            return [self.fit.simulator.used(jnp.asarray(z))[0] for z in self.samples]

    def of(self, function: Callable[[Model], object]) -> np.ndarray:
        """Any function of the model, of each sample."""
        return np.stack([np.asarray(function(model)) for model in self.models()])

    def __repr__(self) -> str:
        lower, upper = self.interval()
        rows = [f"{n}: {a:.4g} .. {b:.4g}" for n, a, b in zip(self.names, lower, upper, strict=True)]
        return "\n".join([f"{len(self.samples)} samples, 95 % of them in", *rows])


def posterior(
    fit: Fit,
    particles: int = 64,
    *,
    spread: float = 1.0,
    iterations: int = 200,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Posterior:
    """Samples of what the data and the prior leave possible, by Stein variational gradient descent (see `stein`).

    The starts of pieces are profiled out: for each particle they are those that fit best, which where the motion is
    nearly linear in them is the same as to integrate over them. Particles begin as a normal density has them, times
    `spread`: a larger one finds modes further away. Weights of networks are sampled too; noise is as the fit left it.
    Where that is not white, samples are spread about the fit as much wider as its intervals are (Shaby 2014, the
    open-faced sandwich).
    """
    if fit.regression is not None:
        raise ValueError(f'posterior: this fit is a {fit.method}; samples need one with loss="multiple shooting"')
    if particles < 2:
        raise ValueError(f"particles must be 2 or more, got {particles}")
    with jax.enable_x64(True):
        target = Profiled(fit.objective, fit.result.x, particles)
        rng = np.random.default_rng(seed)
        z, H = fit.result.x[: fit.objective.size], target.hessian
        problem = fit.objective.problem()
        lower, upper = problem.lower[: len(z)], problem.upper[: len(z)]
        first = z + spread * np.linalg.solve(np.linalg.cholesky(H).T, rng.normal(size=(len(z), particles))).T
        if progress is not None:
            progress(f"{particles} particles of {len(z)} free numbers")
        found = stein(target, first, H, lower=lower, upper=upper, iterations=iterations)
        drawn = np.clip(z + (found.particles - z) @ _wider(fit, H).T, lower, upper)
        size = fit.parameters.size
        values = np.zeros((particles, 0))
        if size:
            values = np.stack([np.asarray(fit.parameters.values_and_slopes(z[:size])[0]) for z in drawn])
    names = tuple(e.name for e in fit.estimates[: values.shape[1]])
    return Posterior(drawn, names, values, found.iterations, found.motion, fit)


def _wider(fit: Fit, H: np.ndarray) -> np.ndarray:
    """The map of free numbers that makes H^-1 the covariance under noise as it is: the identity where it is white."""
    jacobian = fit.objective.sensitivity(fit.result.x)
    wide = widening(fit.objective, jacobian, colours_of(fit.objective, fit.result.x, jacobian))
    if wide is None:
        return np.eye(len(H))
    root, known = np.linalg.cholesky(H).T, fit.simulator.physical  # H^-1 = root^-1 root^-T
    if len(wide) < len(H):  # many weights, of which only what data see of them was judged
        wide = np.concatenate([wide[:known], np.zeros((len(H) - known, wide.shape[1]))])
    grown = root @ wide
    sizes, along = np.linalg.eigh(np.eye(len(H)) + grown @ grown.T)
    return np.linalg.solve(root, (along * np.sqrt(sizes)) @ along.T @ root)


class Profiled:
    """The slope of the log posterior by the free numbers, with the starts of pieces at their best for each particle."""

    def __init__(self, objective: Objective, x: np.ndarray, particles: int):
        self.objective, self.size, self.x = objective, objective.size, x
        self.first = self._solved(x)
        self.hessian = self.first[1].matrix
        self.last = [self.first] * particles  # for each: where it was, and the best starts by free numbers from there

    def _solved(self, x: np.ndarray) -> tuple[np.ndarray, Reduced]:
        """The point, and the objective around it with the starts at their best."""
        r, J = self.objective(x)
        reduced = J.normal().reduced(J.transposed(r))
        assert reduced is not None  # each start has a prior
        return x, reduced

    def restart(self) -> None:
        """Begin at the fit again."""
        self.last = [self.first] * len(self.last)

    def curvature(self, k: int) -> np.ndarray:
        """Second derivatives where a particle was last."""
        return self.last[k][1].matrix

    def gradient(self, k: int, z: np.ndarray) -> np.ndarray | None:
        """Of the negative logarithm of the posterior; None where the motion diverges."""
        x, best = self.last[k]
        starts = x[self.size :] + best.own + best.own_by_shared @ (z - x[: self.size])
        at = np.concatenate([z, starts])
        if not np.isfinite(self.objective.look(at)).all():
            return None
        self.last[k] = self._solved(at)
        return self.last[k][1].slope

    def __call__(self, k: int, z: np.ndarray) -> np.ndarray:
        gradient = self.gradient(k, z)
        if gradient is None:  # back as a normal density goes
            return -self.hessian @ (z - self.x[: self.size])
        return -gradient
