"""Networks whose inputs die out: sparse-group lasso inside the simulator by proximal Gauss-Newton steps.

NeuralSim, eq. 2: half the sum of squares of roll-outs, a lasso on the first layer's weights with one group per input,
and a ridge on all other weights. Groups are weighed by one over their norm (adaptive group lasso, Wang and Leng 2008),
so that inputs that are needed are hardly shrunk. Each step linearises the roll-outs and minimises the penalised
quadratic: other weights are eliminated, and blocks of the first layer are shrunk in turn until inputs that are not
needed are at exactly zero (block coordinate descent with the proximal step of `neural.sparsity`; Simon et al. 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import brentq
from scipy.stats import chi2

from knuckle.dynamics import rnea
from knuckle.model.model import Model
from knuckle.neural.networks import MLP
from knuckle.neural.sparsity import prune
from knuckle.sysid.discovery.library import FORCE, rounded
from knuckle.sysid.discovery.segments import Point, Segments, compiled, normal, prediction_errors, settle, values
from knuckle.sysid.discovery.setting import Setting
from knuckle.sysid.entries import names_of
from knuckle.sysid.parameters import Parameters
from knuckle.sysid.shots import Shots
from knuckle.taps import Augment, Blueprint

HIDDEN = (5, 5)
RIDGE = 0.1  # on all weights but the first layer's, in units of half the sum of squares
FREE_STEPS, STEPS, PATH_STEPS = 8, 7, 4  # without lasso, at the first weight of the path, and at each further one
FIRST, FACTOR, PATH = 20.0, 5.0, 4  # penalty of each input in units of half the residual variance
NEAR = 1e-3  # of the largest norm: where the weight of a group ends to grow
LOST = 2.0  # times the least validation error: a path ends there
LEVEL = 0.01  # of the test that an input is needed
SWEEPS = 400
GENTLE = 0.03  # scale of the first weights
HELD, LIGHT = 1e9, 1e-8  # damping of layers that are held, and of one that moves alone
SMALL = 0.05  # change of half the sum of squares at which a descent ends


class Groups(NamedTuple):
    """Which weights belong to which input of which joint's network."""

    first: list[np.ndarray]  # free numbers of the first layer, by group
    joint: list[int]
    input: list[int]
    rest: np.ndarray  # all other weights
    own: list[np.ndarray]  # all weights of each joint's network


class Path(NamedTuple):
    """A network at one weight of the lasso."""

    strength: float
    free: np.ndarray
    alive: np.ndarray  # (joint, input)
    errors: np.ndarray  # mean square prediction error over the noise of each validation segment


@dataclass(frozen=True)
class SparseNetwork:
    """Networks of (q, qd) at joint/force, one per joint, and the path of weights that led there."""

    blueprint: Blueprint
    segments: Segments
    free: np.ndarray
    alive: np.ndarray  # (joint, input)
    inputs: tuple[str, ...]
    joints: tuple[str, ...]
    path: tuple[Path, ...]
    chosen: int  # in the path
    history: tuple[np.ndarray, ...]  # norms of the first layer's groups (joint, input) after each step

    def names(self) -> dict[str, tuple[str, ...]]:
        """Inputs that each joint's network reads."""
        rows = zip(self.joints, self.alive, strict=True)
        return {joint: tuple(n for n, a in zip(self.inputs, row, strict=True) if a) for joint, row in rows}


def make_networks(model: Model, shots: Shots, hidden: Sequence[int], seed: int) -> Blueprint:
    """One network per joint that reads all coordinates and velocities, scaled to standard deviation 1."""
    q, qd = visited(shots)
    centre, scale = np.concatenate([q.mean(0), qd.mean(0)]), np.concatenate([q.std(0), qd.std(0)])
    scale = np.array([rounded(s) if s > 1e-9 * (1 + abs(c)) else 1.0 for s, c in zip(scale, centre, strict=True)])
    centre = np.array([0.0 if abs(c) < s else np.sign(c) * rounded(abs(c)) for s, c in zip(scale, centre, strict=True)])
    still = jax.vmap(lambda q: rnea(model, q, jnp.zeros(model.nv), jnp.zeros(model.nv)))(jnp.asarray(q))
    size = np.sqrt(np.mean(np.asarray(still) ** 2, axis=0))
    size = [rounded(s) if s > 0 else 1.0 for s in np.where(size > 0, size, size.max(initial=0.0))]
    made = []
    for joint, key in enumerate(jax.random.split(jax.random.key(seed), model.nv)):
        network = _gently(MLP((model.nq + model.nv, *hidden, 1), "partly linear", key=key))
        options = {"input_offset": centre, "input_scale": scale, "output_scale": 0.3 * size[joint]}
        made.append(Augment(network, ("q", "qd"), rows=(joint,), zero_start=False, **options))
    return Blueprint({FORCE: tuple(made)})


def _gently(network: MLP) -> MLP:
    """Small first weights and no biases: the network begins nearly linear, and what is linear is found at once."""
    weights = (GENTLE * network.weights[0], *network.weights[1:])
    biases = tuple(None if b is None else jnp.zeros_like(b) for b in network.biases)
    return eqx.tree_at(lambda n: (n.weights, n.biases), network, (weights, biases), is_leaf=lambda x: x is None)


def visited(shots: Shots) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates and velocities of the recordings; velocities by differences where they were not measured."""
    if "q" not in shots.measured:
        return np.asarray(shots.q), np.asarray(shots.qd)
    q = np.asarray(shots.measured["q"])
    if q.shape[-1] != np.asarray(shots.qd).shape[-1]:
        return np.asarray(shots.q), np.asarray(shots.qd)
    qd = np.asarray(shots.measured["qd"]) if "qd" in shots.measured else np.gradient(q, shots.period, axis=1)
    seen = np.all(np.asarray(shots.weight["q"]) > 0, axis=-1)
    return q[seen], qd[seen]


def groups_of(blueprint: Blueprint) -> Groups:
    """Free numbers of each input's weights."""
    flat, unravel = ravel_pytree(blueprint.weights)
    numbers = blueprint.with_weights(unravel(jnp.arange(len(flat), dtype=float)))
    first, joints, inputs, own = [], [], [], []
    for joint, (_, _, augment) in enumerate(numbers):
        network: MLP = augment.network  # type: ignore[assignment]
        W = np.asarray(network.weights[0]).astype(int)
        own.append(np.concatenate([np.asarray(leaf).astype(int).reshape(-1) for leaf in jax.tree.leaves(network)]))
        for k in range(W.shape[1]):
            first.append(W[:, k])
            joints.append(joint)
            inputs.append(k)
    rest = np.setdiff1d(np.arange(len(flat)), np.concatenate(first))
    return Groups(first, joints, inputs, rest, own)


def penalised_step(
    matrix: np.ndarray,
    slope: np.ndarray,
    now: np.ndarray,
    groups: Groups,
    kappa: np.ndarray,
    ridge: float,
    frozen: np.ndarray,
) -> np.ndarray:
    """The minimum of slope . d + 1/2 d . matrix d + sum kappa_g |W_g| + ridge/2 |rest|^2 over now + d.

    frozen: groups that stay at zero.
    """
    rest = groups.rest
    right = slope - matrix @ now  # of the quadratic around zero
    A_rest = matrix[np.ix_(rest, rest)] + ridge * np.eye(len(rest))
    first = np.concatenate([g for g, dead in zip(groups.first, frozen, strict=True) if not dead] or [np.zeros(0, int)])
    found = np.zeros_like(now)
    if len(first):
        solved = np.linalg.solve(A_rest, np.column_stack([right[rest], matrix[np.ix_(rest, first)]]))
        A = matrix[np.ix_(first, first)] - matrix[np.ix_(first, rest)] @ solved[:, 1:]
        b = right[first] - matrix[np.ix_(first, rest)] @ solved[:, 0]
        place = {int(c): k for k, c in enumerate(first)}
        blocks = [
            np.array([place[int(c)] for c in g]) for g, dead in zip(groups.first, frozen, strict=True) if not dead
        ]
        found[first] = block_descent(A, b, now[first], blocks, kappa[~frozen])
    found[rest] = -np.linalg.solve(A_rest, right[rest] + matrix[np.ix_(rest, first)] @ found[first])
    return found


def block_descent(
    A: np.ndarray, b: np.ndarray, x: np.ndarray, blocks: Sequence[np.ndarray], kappa: np.ndarray
) -> np.ndarray:
    """min b . x + 1/2 x . A x + the norms of blocks times kappa, with blocks at exactly zero where that is best."""
    x = x.copy()
    own = [np.linalg.eigh(A[np.ix_(g, g)]) for g in blocks]
    for _ in range(SWEEPS):
        before = x.copy()
        for g, (size, axes), weight in zip(blocks, own, kappa, strict=True):
            slope = b[g] + A[g] @ x - A[np.ix_(g, g)] @ x[g]
            x[g] = axes @ block_minimum(np.maximum(size, 0.0), axes.T @ slope, weight)
        if np.max(np.abs(x - before)) < 1e-9 * (1e-300 + np.max(np.abs(x))):
            break
    return x


def block_minimum(curvature: np.ndarray, slope: np.ndarray, weight: float) -> np.ndarray:
    """min slope . w + 1/2 sum curvature w^2 + weight |w|: zero, or w = -slope / (curvature + weight / |w|)."""
    if weight == 0:
        return -slope / np.maximum(curvature, 1e-12 * max(curvature.max(), 1e-300))
    if np.linalg.norm(slope) <= weight:
        return np.zeros_like(slope)

    def too_long(log_size: float) -> float:
        return 1 - float(np.sum((slope / (curvature * np.exp(log_size) + weight)) ** 2))

    low, high = -60.0, 1.0
    while too_long(high) < 0 and high < 200:
        high += 20
    size = np.exp(float(brentq(too_long, low, high, xtol=1e-10)))  # type: ignore[arg-type]
    return -slope / (curvature + weight / size)


class Training:
    """Proximal Gauss-Newton on networks inside roll-outs."""

    def __init__(self, segments: Segments, shots: Shots, blueprint: Blueprint, ridge: float = RIDGE):
        self.segments, self.shots, self.ridge = segments, shots, ridge
        self.groups = groups_of(blueprint)
        self.frozen = np.zeros(len(self.groups.first), bool)
        self.damping = 1e-2
        self.silent: list[np.ndarray] = []  # weights of networks that read nothing
        first = np.asarray(ravel_pytree(blueprint.weights)[0], float)
        self.point = settle(segments, shots, first)

    def value(self, point: Point, kappa: np.ndarray | None = None) -> float:
        """Half the sum of squares with its penalties."""
        norms = np.array([np.linalg.norm(point.free[g]) for g in self.groups.first])
        ridge = 0.5 * self.ridge * float(np.sum(point.free[self.groups.rest] ** 2))
        lasso = 0.0 if kappa is None else float(kappa @ norms)
        return float(values(point.linear, point.starts).sum()) + lasso + ridge

    def weights_of_groups(self, strength: float) -> np.ndarray:
        """Of the lasso: a group that is not zero is penalised by `strength` in all, whatever its size."""
        norms = np.array([np.linalg.norm(self.point.free[g]) for g in self.groups.first])
        return strength / np.maximum(norms, NEAR * max(norms.max(initial=0.0), 1e-300))

    def variance(self) -> float:
        """Of the residuals, over that of the noise."""
        left = 2 * float(values(self.point.linear, self.point.starts).sum())
        rows = np.count_nonzero(self.point.linear.residual)
        return left / max(rows - self.point.starts.size - len(self.point.free), 1)

    def step(self, strength: float, first_layer: bool = False) -> bool:
        """One accepted step, of the first layer only on demand; False if there is none that descends.

        With the other layers held, roll-outs are almost linear in the first one, so that inputs die in one step.
        """
        kappa = self.weights_of_groups(strength)
        found, now = normal(self.point.linear, self.point.starts), self.value(self.point, kappa)
        matrix, slope, free = found.matrix.sum(axis=0), found.slope.sum(axis=0), self.point.free
        for _ in range(6):
            damped = matrix + self.damping * np.diag(np.diag(matrix) + 1e-6 * np.diag(matrix).max())
            if first_layer:
                damped[self.groups.rest, self.groups.rest] += HELD * np.diag(matrix).max()
            moved = penalised_step(damped, slope, free, self.groups, kappa, self.ridge, self.frozen)
            for own in self.silent:
                moved[own] = 0.0
            starts = self.point.starts + found.start + found.start_by_free @ (moved - free)
            tried = Point(moved, starts, self.segments(moved, starts, self.shots))
            if self.value(tried, kappa) < now:
                self.point, self.damping = tried, max(self.damping / 5, 1e-8)
                return True
            self.damping = max(10 * self.damping, 1e-6)
        return False

    def descend(self, steps: int) -> None:
        """Steps without the lasso."""
        for _ in range(steps):
            before = self.value(self.point)
            if not self.step(0.0) or before - self.value(self.point) < SMALL:
                break

    def freeze(self, alive: np.ndarray) -> None:
        """Keep inputs that are dead at zero, and networks that read nothing."""
        groups = self.groups
        self.frozen = np.array([not alive[j, k] for j, k in zip(groups.joint, groups.input, strict=True)])
        self.silent = [own for own, row in zip(groups.own, alive, strict=True) if not row.any()]

    def noticed(self, alive: np.ndarray, weights: int) -> bool:
        """Whether the data notice that only these inputs are left; the point moves to what is then best."""
        self.freeze(alive)
        before, variance = self.value(self.point), self.variance()
        free = self.point.free.copy()
        for g, dead in zip(self.groups.first, self.frozen, strict=True):
            free[g] = 0.0 if dead else free[g]
        for own in self.silent:
            free[own] = 0.0
        self.point = Point(free, self.point.starts, self.segments(free, self.point.starts, self.shots))
        self.damping = 1e-4
        self.descend(3 * PATH_STEPS)
        return bool(2 * (self.value(self.point) - before) > variance * chi2.isf(LEVEL, weights))

    def norms(self) -> np.ndarray:
        """Of the weights of each input (joint, input)."""
        joints, inputs = max(self.groups.joint) + 1, max(self.groups.input) + 1
        found = np.zeros((joints, inputs))
        for g, joint, k in zip(self.groups.first, self.groups.joint, self.groups.input, strict=True):
            found[joint, k] = np.linalg.norm(self.point.free[g])
        return found

    def pruned(self, free: np.ndarray) -> np.ndarray:
        """Networks that read nothing any more, at zero."""
        made = self.segments.simulator.networks(jnp.asarray(free))
        return np.asarray(ravel_pytree(prune(made).weights)[0], float)


def train_sparse(
    setting: Setting,
    shots: Shots,
    validation: Shots,
    *,
    hidden: Sequence[int] = HIDDEN,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> SparseNetwork:
    """Networks along a path of lasso weights with warm starts; the largest within one standard error is chosen."""
    model = setting.model
    blueprint = make_networks(model, shots, hidden, seed)
    segments = compiled(setting.simulator(shots, Parameters(), blueprint))
    training, history = Training(segments, shots, blueprint), []

    def steps(strength: float, count: int) -> None:
        for k in range(count):
            first_layer = strength > 0 and k % 2 == 0
            if first_layer:
                training.damping = LIGHT
            if not training.step(strength, first_layer) and not first_layer:
                break
            history.append(training.norms())

    progress("training a network: lasso path")
    steps(0.0, FREE_STEPS)
    path, strength = [], FIRST * max(training.variance(), 1.0)
    for number in range(PATH):
        steps(strength, STEPS if number == 0 else PATH_STEPS)
        free = training.pruned(training.point.free)
        alive = training.norms() > 0
        path.append(Path(strength, free, alive, prediction_errors(segments, validation, free)))
        means = [np.nanmean(p.errors) for p in path]
        if not alive.any() or not means[-1] < LOST * min(means):
            break
        strength *= FACTOR
    chosen = one_standard_error([p.errors for p in path])
    progress("training a network: without the lasso, and without inputs that nothing is lost by")
    final, alive = _unpenalised(training, path[chosen])
    joints, inputs = names_of(model, "tau"), _input_names(model)
    used = segments.simulator.networks(jnp.asarray(final))
    return SparseNetwork(used, segments, final, alive, inputs, joints, tuple(path), chosen, tuple(history))


def _input_names(model: Model) -> tuple[str, ...]:
    return (*(f"q_{name}" for name in names_of(model, "q")), *(f"qd_{name}" for name in names_of(model, "qd")))


def _unpenalised(training: Training, chosen: Path) -> tuple[np.ndarray, np.ndarray]:
    """The chosen inputs without the lasso, which had shrunk their weights, and which of them are needed.

    Inputs are taken away one by one, the weakest first, while a likelihood-ratio test does not notice it.
    """
    groups, alive = training.groups, chosen.alive.copy()
    if not alive.any():
        return chosen.free, alive
    training.freeze(alive)
    training.point = settle(training.segments, training.shots, chosen.free)
    training.descend(2 * PATH_STEPS)
    order = np.argsort([np.linalg.norm(training.point.free[g]) for g in groups.first])
    for k in (k for k in order if alive[groups.joint[k], groups.input[k]]):
        before, fewer = (training.point, training.damping), alive.copy()
        fewer[groups.joint[k], groups.input[k]] = False
        if training.noticed(fewer, len(groups.first[k])):
            training.point, training.damping = before
            training.freeze(alive)
        else:
            alive = fewer
    return training.point.free, alive


def one_standard_error(errors: Sequence[np.ndarray]) -> int:
    """The last of a path whose mean error is within one standard error of the least."""
    means = np.array([np.nanmean(np.where(np.isfinite(e), e, 1e12)) for e in errors])
    best = int(np.argmin(means))
    found = best
    for k in range(best + 1, len(errors)):
        apart = errors[k] - errors[best]
        apart = apart[np.isfinite(apart)]
        if len(apart) > 1 and apart.mean() <= np.std(apart, ddof=1) / np.sqrt(len(apart)):
            found = k
    return found
