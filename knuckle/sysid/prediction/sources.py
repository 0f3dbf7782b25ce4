"""Draws from what fits and regressions leave possible, the directions included that data do not show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from scipy.stats import t as student

from knuckle import native
from knuckle.integrate import RK4
from knuckle.sysid.posterior import Profiled
from knuckle.sysid.prediction.draws import Draws, Simulated, root_of
from knuckle.sysid.regression.consistent import consistent_solution
from knuckle.sysid.regression.fitted import fitted_robot
from knuckle.sysid.regression.jackknife import FILTER_ERRORS
from knuckle.sysid.regression.prior import metric_centre, parameters_of, smallest_eigenvalues
from knuckle.sysid.smoothing import EffortNoise

if TYPE_CHECKING:
    from knuckle.sysid.fit import Fit
    from knuckle.sysid.regression import Regression

SPREAD = 0.3  # of a description's inertia, in the metric of the prior: masses are off by about 30 %
WIDE = 0.05  # standard deviation of a free number in directions that data do not show, from which curvature matters
NEWTON, ENOUGH, NEAR = 10, 0.02, 0.2  # steps that take a draw back to where the data allow it; standard deviations
HALVINGS = 8


def draws_of_fit(fit: Fit, samples: int = 200, seed: int = 0) -> Draws:
    """Draws from the posterior of a fit: normal with the covariance of its certainty, which knows the prior.

    Directions that data do not show are drawn as wide as the prior is. Far along these, parameters that data do show
    bend away from a straight line: each draw is taken back by Newton's method on the profiled posterior.
    """
    if not fit.evaluated or not fit.converged:
        raise ValueError(f"predict: the fit did not converge ({fit.result.status}): its covariance says nothing")
    if not fit.certainty.is_known:
        raise ValueError("predict: the covariance of the fit is not known: its intervals were left out")
    rng, sure, known = np.random.default_rng(seed), fit.certainty, fit.simulator.physical
    with jax.enable_x64(True):
        z = np.array(fit.result.x[: fit.objective.size])
        problem = fit.objective.problem()
        lower, upper = problem.lower[:known], problem.upper[:known]
        off = rng.normal(size=(samples, known)) @ root_of(sure.covariance, known, "covariance of the fit").T
        notes = ()
        if known < fit.objective.size:
            notes = ("networks are as they were found: intervals do not count what else they may be",)
        else:
            off, notes = _taken_back(fit, z, off)
        drawn = np.concatenate([np.clip(z[:known] + off, lower, upper), np.tile(z[known:], (samples, 1))], axis=1)
        both = native.vmap(fit.simulator.used)(np.concatenate([z[None], drawn]))
        parts: list[Simulated] = [jax.tree.map(lambda part, k=k: np.asarray(part)[k], both) for k in range(samples + 1)]
    return Draws(parts[0], parts[1:], fit.simulator.integrator, notes)


def _taken_back(fit: Fit, z: np.ndarray, off: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Draws with the part that data show taken anew about the best fit that the rest of the draw leaves."""
    sure, prior = fit.certainty, fit.objective.prior[: len(z)]
    shown = sure.singular_values > 1.0
    wide = prior * np.abs(sure.directions[~shown]).max(axis=0, initial=0.0)
    if not shown.any() or wide.max(initial=0.0) < WIDE:
        return off, ()
    target, basis = Profiled(fit.objective, fit.result.x, 1), prior[:, None] * sure.directions[shown].T
    own = off / prior @ sure.directions[shown].T  # in the directions that data show
    hidden, here = off - own @ basis.T, _root(basis.T @ target.hessian @ basis)
    found, smaller = [], 0
    for c, rest in zip(own, hidden, strict=True):
        best, factor = None, 2.0
        while best is None and factor > 0.5**HALVINGS:
            factor = factor / 2
            best = _best(target, z, factor * rest, basis)
        smaller += factor < 1
        if best is None:
            found.append(basis @ c)
            continue
        there = _root(basis.T @ target.curvature(0) @ basis)
        found.append(best + basis @ np.linalg.solve(there, here @ c))
    text = f"{smaller} of {len(off)} draws were moved towards the estimate: further off, data cannot be explained"
    return np.array(found), (text,) if smaller else ()


def _root(matrix: np.ndarray) -> np.ndarray:
    """The symmetric square root."""
    values, axes = np.linalg.eigh((matrix + matrix.T) / 2)
    return (axes * np.sqrt(np.maximum(values, 1e-12 * values.max()))) @ axes.T


def _best(target: Profiled, z: np.ndarray, off: np.ndarray, basis: np.ndarray) -> np.ndarray | None:
    """The most probable point from z + off along `basis`, by Newton's method; None where it does not come to that."""
    target.restart()
    before = np.inf
    for _ in range(NEWTON):
        gradient = target.gradient(0, z + off)
        if gradient is None:
            return None
        right = basis.T @ gradient
        try:
            step = np.linalg.solve(basis.T @ target.curvature(0) @ basis, right)
        except np.linalg.LinAlgError:  # far off, where motions nearly diverge, one direction outweighs all others
            return None
        size = float(np.sqrt(max(right @ step, 0.0)))  # in standard deviations
        if not np.isfinite(size):
            return None
        off, before = off - basis @ step, size
        if size < ENOUGH:
            break
    return off if before < NEAR else None


def draws_of_regression(found: Regression, samples: int = 200, seed: int = 0, spread: float = SPREAD) -> Draws:
    """Draws of the parameters of a regression.

    What data determine scatters as the block jackknife says (Student's t), and by the change with the cut-off of the
    filter. The rest is the description, which is off by `spread` in the metric of the prior. Draws are linear in the
    inertial parameters, so that combinations that are known stay so; then each becomes the nearest set of physically
    consistent bodies, in the metric of what data and prior know.
    """
    if not (np.isfinite(spread) and spread >= 0):
        raise ValueError(f"predict: spread must be 0 or more, got {spread}")
    rng, blocks, layout = np.random.default_rng(seed), len(found.without), found.layout
    scatter = np.sqrt((blocks - 1) / blocks) * (found.without - found.without.mean(axis=0))
    freedom = max(blocks - 1, 1)
    heavy = np.sqrt(freedom / rng.chisquare(freedom, size=(samples, 1)))
    by_filter = FILTER_ERRORS / student.ppf(0.975, 1e9) * found.change
    known = heavy * (rng.normal(size=(samples, blocks)) @ scatter) + rng.normal(size=(samples, 1)) * by_filter
    hidden = _hidden(found, rng, samples, spread)
    centre = metric_centre(found.described, found.problem.described)
    H, parts, moved = found.solved.solution.H, [], 0
    for own, rest in zip(known, hidden, strict=True):
        theta = np.maximum(found.theta + own + rest, layout.lower)
        if np.any(smallest_eigenvalues(theta[: layout.inertial].reshape(-1, 10), centre) <= 0):
            theta, moved = consistent_solution(H, H @ theta, theta, centre, layout.lower), moved + 1
        parts.append(_robot(found, theta))
    notes = (f"{moved} of {samples} draws were moved to the nearest physically consistent bodies",) if moved else ()
    if layout.networks is not None:
        notes = (*notes, "networks are as they were found: intervals do not count what else they may be")
    return Draws(_robot(found, found.theta), parts, RK4(), notes)


def _robot(found: Regression, theta: np.ndarray) -> Simulated:
    model, blueprint = fitted_robot(found.described, found.layout, theta)
    return model, None, blueprint


def _hidden(found: Regression, rng: np.random.Generator, samples: int, spread: float) -> np.ndarray:
    """Errors of the description as they come through the solution, H^-1 P u.

    True pseudo-inertias are L exp(S) L^T where the description has L L^T, with S symmetric and normal: positive
    definite, and as far off as `spread` in the metric of the prior.
    """
    layout, H, size = found.layout, found.solved.solution.H, found.layout.inertial
    centre = metric_centre(found.described, found.problem.described)
    S = spread * rng.normal(size=(samples, len(centre), 4, 4)) / np.sqrt(2)
    S = (S + np.swapaxes(S, 2, 3)) / np.sqrt(2)  # standard deviation `spread` on the diagonal
    values, axes = np.linalg.eigh(S)
    L = np.linalg.cholesky(centre)
    grown = np.einsum("skij,skj,sklj->skil", axes, np.expm1(values), axes)
    off = L @ grown @ np.swapaxes(L, 1, 2)
    error = np.zeros((samples, layout.size))
    error[:, :size] = parameters_of(off.reshape(-1, 4, 4)).reshape(samples, size)
    scale = 1 / np.sqrt(np.diag(H))
    K = H * np.outer(scale, scale) + 1e-12 * np.eye(len(H))
    return (np.linalg.solve(K, scale[:, None] * (found.solved.penalty.matrix @ error.T)) * scale[:, None]).T


def residual_noise(found: Regression) -> EffortNoise:
    """Errors of the effort as the residuals of a regression have them: deviation by joint, and correlation time [s].

    Residuals of training data are too small, held-out ones too large by what was fitted: their geometric mean counts.
    They are known below the cut-off of the filter only; an autoregression with their correlation time has
    (2 / pi) atan(2 pi f T) of its variance below a frequency f.
    """
    stretch = found.problem.design.stretches[0]
    row = float(stretch.every * np.median(np.diff(stretch.time)))
    between = found.problem.inefficiency
    rows = 1.0 if between is None else float(np.median(between))
    keep = (rows - 1) / (rows + 1)  # of an autoregression of first order with as many rows to an independent one
    correlation = float(-row / np.log(keep)) if keep > 0 else 0.0
    share = 2 / np.pi * np.arctan(2 * np.pi * found.cutoff * correlation) if correlation else 1.0
    deviation = np.zeros(found.model.nv)
    own = [np.sqrt(e.training * e.held_out) if np.isfinite(e.held_out) else e.training for e in found.errors]
    deviation[list(found.layout.joints)] = np.array(own) / np.sqrt(share)
    return EffortNoise(deviation, correlation, float(np.median(np.diff(stretch.time))))
