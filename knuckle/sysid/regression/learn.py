"""Training of networks on the residual torques of a regression: least squares in force units, friction free beside."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from knuckle.deadline import Deadline
from knuckle.neural.sparsity import lasso_residuals
from knuckle.optim import LBFGSB, LeastSquares, LevenbergMarquardt, Result, Smooth
from knuckle.sysid.first_weights import blank
from knuckle.sysid.many import MANY
from knuckle.sysid.objective import Regularise
from knuckle.sysid.regression.design import Design
from knuckle.sysid.regression.networks import force_of, low_passed
from knuckle.sysid.regression.problem import huber
from knuckle.sysid.regression.result import Regression
from knuckle.taps import Blueprint

LARGEST = 1e6  # numbers of a Jacobian: above, gradients are used
STRENGTHS = (1.0, 10.0, 100.0, 1e3)  # of the prior on the weights; each search begins where the one before ended
WEIGHTS = (0.3, 10.0)  # of joints by what is left of their residuals
FOLDS = 5  # every fifth block chooses the strength
ITERATIONS, DESCENTS = 25, 200  # of Levenberg-Marquardt, and of L-BFGS-B
ENOUGH = 1e-4  # relative gain at which a search ends: far below what one block of data decides
FIRST = 0.3  # standard deviation of first weights that were 0
LEEWAY = 1e-9  # by which a search may pass a bound, so that what is at it can move
SHARED = "friction, damping and offsets are shared with the network: alone they mean little, and have no intervals"
FIXED = ("armature",)  # columns of a joint that stay as they are


@dataclass(frozen=True)
class JointRows:
    """Rows of one joint in all stretches, weighted: residual torques, and the directions of its friction."""

    dof: int
    at: np.ndarray  # samples of all stretches one after the other
    weight: np.ndarray  # in units of one independent sample
    residual: np.ndarray
    block: np.ndarray
    friction: np.ndarray  # (row, column): features of the parameters `columns`
    columns: np.ndarray


class Residuals:
    """Residual torques with networks, over their noise, as a function of the weights and of changes of friction.

    Networks act on signals of the regression's features and pass its filter. Friction, damping and offsets are free
    beside them within their bounds, so that a network that only takes energy can take over a part of theirs.
    """

    def __init__(self, found: Regression, networks: Blueprint, regularise: Regularise):
        self.found, self.networks, self.regularise = found, networks, regularise
        first, self.unravel = ravel_pytree(networks.weights)
        self.weights = len(first)
        stretches = found.problem.design.stretches
        self.q, self.qd = (np.concatenate([getattr(s, key) for s in stretches]) for key in ("coordinates", "qd"))
        edges = np.cumsum([0, *(len(s.time) for s in stretches)])
        self.parts = [(slice(a, b), s.low_pass) for a, b, s in zip(edges, edges[1:], stretches, strict=False)]
        self.rows = [self._rows(joint, edges) for joint in range(len(found.layout.joints))]
        self.columns = np.concatenate([r.columns for r in self.rows])
        self.edges = np.cumsum([0, *(len(r.columns) for r in self.rows)])
        self.block = np.concatenate([r.block for r in self.rows])
        self._look = jax.jit(self._values)
        self._with_jacobian = jax.jit(lambda x, *how: (self._values(x, *how), jax.jacfwd(self._values)(x, *how)))
        half = lambda x, *how: 0.5 * jnp.sum(jnp.square(self._values(x, *how)))  # noqa: E731
        self._with_slope = jax.jit(jax.value_and_grad(half))

    def _rows(self, joint: int, edges: np.ndarray) -> JointRows:
        found, design, layout = self.found, self.found.problem.design, self.found.layout
        rows, kept = design.rows(layout, joint, found.delay, found.theta), design.kept(layout, joint)
        at = np.concatenate([first + np.flatnonzero(keep) for first, keep in zip(edges, kept, strict=False)])
        residual = rows.residuals(found.theta)
        more = found.problem.inefficiency
        spread = found.solved.deviation[joint] * np.sqrt(1.0 if more is None else more[joint])
        own = np.arange(layout.starts[joint], layout.starts[joint + 1])
        free = np.array([k for k in own if layout.names[k].rpartition(".")[2] not in FIXED])
        features = rows.features[:, [int(np.flatnonzero(rows.columns == k)[0]) for k in free]]
        return JointRows(
            layout.joints[joint], at, np.sqrt(huber(residual)) / spread, residual, rows.block, features, free
        )

    @property
    def size(self) -> int:
        return self.weights + len(self.columns)

    def blueprint(self, x) -> Blueprint:
        return self.networks.with_weights(self.unravel(x[: self.weights]))

    def forces(self, x):
        """Filtered forces of the networks at all samples, (time, dof)."""
        force = jax.vmap(force_of, (None, 0, 0))(self.blueprint(x), jnp.asarray(self.q), jnp.asarray(self.qd))
        return jnp.concatenate([low_passed(low_pass, force[part]) for part, low_pass in self.parts])

    def mean_squares(self, x, rows: np.ndarray) -> np.ndarray:
        """Mean squared residuals of each joint in units of its noise, over some rows."""
        squares = np.square(np.asarray(self._look(x, np.ones(len(rows)), 0.0))[: len(rows)])
        edges = np.cumsum([0, *(len(r.block) for r in self.rows)])
        parts = [squares[a:b][rows[a:b]] for a, b in itertools.pairwise(edges)]
        return np.array([part.mean() if len(part) else 1.0 for part in parts])

    def row_weights(self, of_joints: np.ndarray) -> np.ndarray:
        """Weights of joints at their rows."""
        return np.repeat(of_joints, [len(r.block) for r in self.rows])

    def _values(self, x, counts, strength):
        force, change, found = self.forces(x), x[self.weights :], []
        for rows, a, b in zip(self.rows, self.edges, self.edges[1:], strict=False):
            off = rows.residual + force[rows.at, rows.dof] - rows.friction @ change[a:b]
            found.append(rows.weight * off)
        spread, group, element = self.regularise
        lassos = lasso_residuals(self.blueprint(x), group, element) if group or element else jnp.zeros(0)
        return jnp.concatenate(
            [counts * jnp.concatenate(found), jnp.sqrt(strength) * x[: self.weights] / spread, lassos]
        )

    def problem(self, counts: np.ndarray, strength: float) -> LeastSquares | Smooth:
        """Least squares with a Jacobian if it is small, else a function with its gradient.

        Args:
            counts: further weights of the rows. strength: of the prior on the weights, over that of `regularise`.
        """
        how = counts.astype(float), float(strength)
        lower = np.append(np.full(self.weights, -np.inf), self._lower - LEEWAY)
        size = np.concatenate([np.sqrt(np.sum(np.square(r.weight[:, None] * r.friction), axis=0)) for r in self.rows])
        scale = np.append(np.ones(self.weights), 1 / np.maximum(size, 1e-12))
        if self.size <= MANY and self.size * len(self.block) <= LARGEST:
            work = lambda x: tuple(map(np.asarray, self._with_jacobian(x, *how)))  # noqa: E731
            return LeastSquares(work, self.size, look=lambda x: self._look(x, *how), lower=lower, scale=scale)
        return Smooth(lambda x: self._with_slope(x, *how), self.size, lower=lower, scale=scale)

    @property
    def _lower(self) -> np.ndarray:
        """Bounds of the changes of friction."""
        return np.minimum(self.found.layout.lower[self.columns] - self.found.theta[self.columns], 0.0)

    def theta(self, x: np.ndarray) -> np.ndarray:
        """Parameters of the regression with friction, damping and offsets as they are beside the networks."""
        theta = self.found.theta.copy()
        theta[self.columns] += np.maximum(x[self.weights :], self._lower)
        return theta


def learn(
    found: Regression,
    networks: Blueprint,
    *,
    regularise: Regularise = Regularise(),
    draws: int = 1,
    seed: int = 0,
    deadline: Deadline | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Regression:
    """The regression with networks trained on its residual torques, beside friction that fits them.

    Minimises sum_j |r_j + F n_j - A_j d_j|^2 / sigma_j^2 + |w / spread|^2 over the weights w and changes d of friction:
    r are residuals of the joints, F the filter of the regression, n the forces of the networks. Inertia and rotor
    inertia stay as they are. Friction is shared with the networks and has no intervals; others keep theirs. The
    strength of the prior, and the best of several first weights, are those that predict every fifth block best, which
    these searches do not see; then all blocks count.

    Args:
        draws: first weights that are tried at most, of networks that were not trained; the best end stays.
        deadline: at which the search ends with what it has.
    """
    limit = Deadline() if deadline is None else deadline
    with jax.enable_x64(True):
        problem = Residuals(found, networks, regularise)
        fresh = any(blank(weights) for weights in networks.weights.values())
        best = _End(np.inf, np.zeros(problem.size), STRENGTHS[-1], np.ones(len(problem.rows)))
        for draw in range(draws if fresh else 1):
            if draw and limit.limited and limit.left < 2 * limit.elapsed / draw:
                break
            tell(f"training networks on residual torques, start {draw + 1}")
            first = np.append(first_weights(networks, (seed, draw)), np.zeros(len(problem.columns)))
            best = _path(problem, first, np.ones(len(problem.rows)), best, limit)
        best = _path(problem, best.x, best.weight, best, limit)  # with joints weighted by what is left of them
        x = search(problem.problem(problem.row_weights(best.weight), best.strength), best.x, limit).x
        layout = replace(found.layout, networks=problem.blueprint(jnp.asarray(x)))
        moved = replace(found, layout=layout).moved(problem.theta(x))
        shared = [q._replace(lower=np.nan, upper=np.nan) for q in moved.parameters]
        parameters = [shared[k] if k in problem.columns else q for k, q in enumerate(moved.parameters)]
        return replace(moved, parameters=tuple(parameters), notes=(*found.notes, SHARED))


class _End(NamedTuple):
    """Where a search ended, and how well it predicts blocks that it did not see."""

    error: float  # mean logarithm of the mean squares of the joints
    x: np.ndarray
    strength: float
    weight: np.ndarray  # of each joint, by these mean squares


def _path(problem: Residuals, x: np.ndarray, weight: np.ndarray, best: _End, limit: Deadline) -> _End:
    """The best end of searches with ever stronger priors, each from where the one before ended."""
    unseen = problem.block % FOLDS == FOLDS - 1
    counts = np.where(unseen, 0.0, problem.row_weights(weight))
    for strength in STRENGTHS:
        if limit.out and np.isfinite(best.error):
            break
        x = search(problem.problem(counts, strength), x, limit.share(0.5)).x
        squares = np.maximum(problem.mean_squares(x, unseen), 1e-12)
        end = _End(float(np.mean(np.log(squares))), x, strength, np.clip(1 / np.sqrt(squares), *WEIGHTS))
        best = end if end.error < best.error else best
    return best


def search(posed: LeastSquares | Smooth, start: np.ndarray, limit: Deadline) -> Result:
    if isinstance(posed, LeastSquares):
        solver = LevenbergMarquardt(max_iterations=ITERATIONS, value_tolerance=ENOUGH)
    else:
        solver = LBFGSB(max_iterations=DESCENTS, value_tolerance=1e-5 * ENOUGH)
    return solver(posed, start, seconds=limit.seconds_left)


def first_weights(networks: Blueprint, seed: tuple[int, int]) -> np.ndarray:
    """First weights: each array spread as it was, and zeros spread too; trained networks stay as they are.

    Zeros may be a saddle point: the gain of a damping network is a viscous friction, which residuals do not have.
    """
    rng, (_, draw) = np.random.default_rng(seed), seed

    def anew(w):
        if not np.any(w):
            return FIRST * rng.standard_normal(np.shape(w))
        return w if draw == 0 else np.mean(w) + np.std(w) * rng.standard_normal(np.shape(w))

    drawn = {key: jax.tree.map(anew, part) if blank(part) else part for key, part in networks.weights.items()}
    return np.asarray(ravel_pytree(drawn)[0])


def block_squares(found: Regression, design: Design) -> np.ndarray:
    """Squared residuals of each joint and block of other recordings, (joint, block)."""
    squares = []
    for joint in range(len(found.layout.joints)):
        rows = design.rows(found.layout, joint, found.delay, found.theta)
        squares.append(np.bincount(rows.block, np.square(rows.residuals(found.theta)), minlength=design.blocks))
    return np.array(squares)
