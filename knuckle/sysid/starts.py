"""Starts of pieces whose joint positions were not measured, by inverse kinematics and by following the motion."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from knuckle.model.joints import retract
from knuckle.model.model import State
from knuckle.native import jacfwd, jit
from knuckle.optim import LeastSquares, LevenbergMarquardt, Result
from knuckle.sysid.entries import ACCELERATION, weights_of_entries
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Shots

WINDOW = 5  # samples over which joints are taken to keep their speed
GUESSES = 16  # poses from which the first is sought
MOST_BRANCHES, ALIKE = 4, 0.3  # that are followed, and how near two are the same [rad or m]
EXPLAINS = 4.0  # sum of squares of a branch over that of the best
FAR = 1e150  # a difference that is not finite
SOLVER = LevenbergMarquardt(max_iterations=50, value_tolerance=1e-6)


class Followed(NamedTuple):
    """Starts of pieces that follow each other, and how far off the motion from there is."""

    q: np.ndarray
    qd: np.ndarray
    off: float


def located(simulator: Simulator, shots: Shots, seed: int = 0) -> Shots:
    """The pieces with starts that explain what was measured, as far as the description does.

    A recording may begin on several branches of poses (elbow up or down). From each, the motion is followed from piece
    to piece, and the branch that explains most is taken. Recordings with joint positions keep their starts.
    """
    seen = np.sum(np.asarray(shots.weight["q"]), axis=(1, 2)) if "q" in shots.weight else np.zeros(shots.count)
    poses, motion, rng = _Poses(simulator, shots), _Motion(simulator, shots), np.random.default_rng(seed)
    ends = np.flatnonzero(np.asarray(shots.joined) == 0) + 1
    runs = np.split(np.arange(shots.count), ends[ends < shots.count])

    def chain(run: np.ndarray) -> Followed:
        if np.any(seen[run] > 0):
            return Followed(np.asarray(shots.q)[run], np.asarray(shots.qd)[run], 0.0)
        return min((motion(run, x) for x in poses(run[0], rng)), key=lambda f: f.off)

    chains = [chain(run) for run in runs]
    q, qd = (np.concatenate([getattr(chain, name) for chain in chains]) for name in ("q", "qd"))
    joined = np.asarray(shots.joined)[:, None] > 0
    following = [np.where(joined, np.roll(part, -1, axis=0), part) for part in (q, qd)]
    return eqx.tree_at(lambda s: (s.q, s.qd, s.next_q, s.next_qd), shots, (q, qd, *following))


class _Poses:
    """Inverse kinematics of the first samples of a piece: a tangent at the model's reference, and speeds."""

    def __init__(self, simulator: Simulator, shots: Shots):
        self.simulator, self.shots = simulator, shots
        self.spread, topology = np.asarray(shots.known).max(axis=0), simulator.model.topology
        self.turning = topology.v_start[np.array(topology.kind) == "revolute"]
        self._solved = jit(lambda x, *window: (self._off(x, *window), jacfwd(lambda x: self._off(x, *window))(x)))

    def __call__(self, piece: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Solutions that explain most, the best first, without those that are alike."""
        parts = (self.shots.measured, self.shots.weight)
        window = [{k: np.asarray(a)[piece, :WINDOW] for k, a in part.items() if k != ACCELERATION} for part in parts]
        even = self.shots.period * np.arange(self.shots.samples)
        times = even if self.shots.stamps is None else np.asarray(self.shots.sample_stamps)[piece]
        size, nv, kept = len(self.spread), self.simulator.model.nv, []
        guesses = [np.zeros(size), *rng.normal(size=(GUESSES, size)) * self.spread]
        given = (*window, times[:WINDOW])
        found = sorted((_searched(self._solved, guess, *given) for guess in guesses), key=lambda f: f.value)
        for result in found:
            x = self._within_a_turn(result.x)
            apart = all(np.abs((x - other)[:nv]).max() > ALIKE for other in kept)
            if apart and result.value < EXPLAINS * found[0].value + size and len(kept) < MOST_BRANCHES:
                kept.append(x)
        return kept

    def _within_a_turn(self, x: np.ndarray) -> np.ndarray:
        """The same pose with no hinge more than half a turn off the reference."""
        x = x.copy()
        x[self.turning] = (x[self.turning] + np.pi) % (2 * np.pi) - np.pi
        return x

    def _off(self, x, measured, weight, times):
        """Weighed differences at all samples, and how far off the reference it is, in units of what is expected."""
        model, nv, parts = self.simulator.model, self.simulator.model.nv, [x / jnp.asarray(self.spread)]
        for key, values in measured.items():

            def difference(time, y, key=key):
                q = jnp.asarray(retract(model, model.reference, x[:nv] + time * x[nv:]))
                return self.simulator.difference(model, key, State(q, x[nv:]), y)

            off = jax.vmap(difference)(jnp.asarray(times), jnp.asarray(values))
            parts.append((off * weights_of_entries(model, key, jnp.asarray(weight[key]))).reshape(-1))
        return jnp.concatenate(parts)


class _Motion:
    """The motion by the description from piece to piece, the start of each set to fit what was measured in it."""

    def __init__(self, simulator: Simulator, shots: Shots):
        self.simulator, self.shots = simulator, shots
        off = jax.jit(self._off)  # traced once
        self._solved = jit(lambda x, shot: (off(x, shot), jacfwd(lambda x: off(x, shot))(x)))
        self._last = jit(self._end)

    @property
    def _z(self):
        return jnp.asarray(self.simulator.first)

    def __call__(self, run: np.ndarray, first: np.ndarray) -> Followed:
        model, nv = self.simulator.model, self.simulator.model.nv
        q, qd = np.asarray(retract(model, model.reference, first[:nv])), first[nv:]
        starts, off = [], 0.0
        for piece in run:
            shot = jax.tree.map(lambda a, piece=piece: np.asarray(a)[piece], self.shots)
            shot = eqx.tree_at(lambda s: (s.q, s.qd), shot, (q, qd))
            found = _searched(self._solved, np.zeros(2 * nv), shot)
            starts.append((np.asarray(retract(model, q, found.x[:nv])), qd + found.x[nv:]))
            off += float(np.log1p(np.nan_to_num(found.residuals, nan=FAR, posinf=FAR, neginf=-FAR) ** 2).sum())
            end = jax.tree.map(np.asarray, self._last(found.x, shot))
            diverged = not (np.isfinite(end.q).all() and np.isfinite(end.qd).all())
            q, qd = starts[-1] if diverged else (end.q, end.qd)
        return Followed(np.array([start[0] for start in starts]), np.array([start[1] for start in starts]), off)

    def _end(self, x, shot: Shots) -> State:
        states, last = self.simulator.states(self._z, x, shot), -1 if shot.last is None else shot.last
        return State(states.q[last], states.qd[last])

    def _off(self, x, shot: Shots):
        differences, _ = self.simulator.residuals(self._z, x, shot)
        return jnp.concatenate([differences, x / jnp.asarray(shot.known)])


def _searched(solved, guess: np.ndarray, *given) -> Result:
    def function(x: np.ndarray):
        residuals, slope = solved(x, *given)
        return np.asarray(residuals), np.asarray(slope)

    return SOLVER(LeastSquares(function, len(guess)), guess)
