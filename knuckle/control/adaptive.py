"""Adaptive model-predictive control: plan with the model, act on the real system, fit the model to what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.control.costs import Cost, call
from knuckle.control.environment import Environment, StateOf
from knuckle.control.forward import Problem
from knuckle.control.mpc import MPC
from knuckle.control.plan import Plan
from knuckle.control.transitions import Buffer, Learner, TransitionFit
from knuckle.interrupt import Interrupts, interrupts
from knuckle.model.model import Leaf, Model, State
from knuckle.sysid import Prior

CANDIDATES = 8  # excited plans that are compared
EXCITATION = 0.2  # of the range of each control
DOUBTFUL = 0.1  # standard deviation of the planned cost over that cost, above which the model is explored
SENSOR = 1e-3  # of typical changes: noise that is expected of transitions to come


@dataclass
class Episode:
    """One run on the real system: states (steps + 1), controls, rewards of the environment, costs of ours."""

    q: list[np.ndarray] = field(default_factory=list)
    qd: list[np.ndarray] = field(default_factory=list)
    controls: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    explored: list[bool] = field(default_factory=list)  # steps whose control was chosen to tell about the model
    fit: TransitionFit | None = None  # with which it ended


@dataclass(frozen=True)
class Adapted:
    """The model that was learned, and how."""

    model: Model
    names: tuple[str, ...]  # of the entries of free parameters
    fits: list[TransitionFit]  # in time; the first is what was known before
    episodes: list[Episode]
    buffer: Buffer
    interrupted: bool

    @property
    def values(self) -> dict[str, float]:
        return dict(zip(self.names, map(float, self.fits[-1].values), strict=True))

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Of 95 %: two standard deviations each way."""
        last = self.fits[-1]
        rows = zip(self.names, last.values, last.deviations, strict=True)
        return {name: (float(v - 1.96 * s), float(v + 1.96 * s)) for name, v, s in rows}


def adaptive_mpc(
    model: Model,
    environment: Any,
    running: Cost | None = None,
    terminal: Cost | None = None,
    *,
    free: Sequence[str] | Mapping[str, Prior | tuple[float, float] | None] | None = None,
    steps: int,
    dt: float,
    episodes: int = 3,
    length: int = 140,
    fit_every: int = 50,
    state_of: StateOf | None = None,
    explore: bool = True,
    seed: int = 0,
    substeps: int = 1,
    controls: Leaf | None = None,
    **options: Any,
) -> Adapted:
    """Algorithm 1 of Interactive Differentiable Simulation (Heiden et al. 2019): control and learn at once.

    In each episode, of `length` steps, controls come from `MPC` with the model as it is known. The model is fitted to
    all transitions every `fit_every` steps of the first episode, and after each episode: the state-action loss (eq. 2)
    by Levenberg-Marquardt, with the priors of `free` (see `kn.fit`). If the fit leaves the cost of a plan uncertain,
    and `explore`, the next steps add the excitation that lowers this uncertainty most, out of several.

    Args:
        environment: the real system, with the interface of Gymnasium or dm_control; one step of it is `dt`.
        state_of: (environment, observation) -> State; by default the environment's own MuJoCo data are read.
        free: parameters of the model to fit, by pattern, with priors.
        steps: of the horizon; `controls`, limits and other options as in `MPC`.
    """
    for name, value in (("episodes", episodes), ("length", length), ("fit_every", fit_every)):
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
            raise ValueError(f"adaptive_mpc: {name} must be a whole number of at least 1, got {value!r}")
    real = Environment(environment, model, state_of)
    real.check_step(dt)
    mpc = MPC(
        model, running, terminal, steps=steps, dt=dt, substeps=substeps, free=("model",), controls=controls, **options
    )
    learner = Learner(model, free, dt=dt, substeps=substeps, options=mpc.planner.options)
    run = _Run(real, mpc, learner, Explorer(mpc, learner, seed) if explore else None, int(fit_every))
    with jax.enable_x64(True), interrupts() as stop:
        for number in range(episodes):
            run.episode(int(length), first=number == 0, stop=stop)
            if stop.asked:
                break
        return Adapted(run.fits[-1].model, learner.names, run.fits, run.episodes, run.buffer, stop.asked)


class Explorer:
    """Chooses controls that tell about those parameters on which the cost of a plan depends."""

    def __init__(self, mpc: MPC, learner: Learner, seed: int):
        from knuckle.native import jacfwd, jit, vmap  # loads LLVM

        planner = mpc.planner
        self.planner, self.learner = planner, learner
        self.rng = np.random.default_rng(seed)

        def motion(z, state, controls, time):
            model = learner.parameters.applied(learner.model, None, z)[0]
            problem = planner.problem_of(model, time)
            return roll(problem, state, controls)

        self._slope = jit(lambda z, s, u, t: jacfwd(lambda z: motion(z, s, u, t)[1])(z))
        self._motions = vmap(lambda z, s, u, t: motion(z, s, u, t)[0], (None, None, 0, None))

    def excited(self, fit: TransitionFit, plan: Plan, state: State) -> np.ndarray | None:
        """Controls to apply in place of the plan's, or None if the plan's cost is certain enough."""
        first, time = State(state.q, state.qd), np.asarray(plan.start_time)
        slope = np.asarray(self._slope(fit.z, first, plan.controls, time))
        doubt = np.sqrt(max(slope @ fit.covariance @ slope, 0.0))
        if not np.isfinite(doubt) or doubt <= DOUBTFUL * abs(plan.cost):
            return None
        candidates = self._candidates(plan)
        q, qd = (np.asarray(x) for x in self._motions(fit.z, first, candidates, time))
        scores = [self._left(fit, slope, State(*rows[:2]), rows[2]) for rows in zip(q, qd, candidates, strict=True)]
        best = int(np.argmin(scores))
        return candidates[best] if np.isfinite(scores[best]) else None

    def _candidates(self, plan: Plan) -> np.ndarray:
        """The plan with smooth noise, within the limits."""
        steps, nu = plan.controls.shape
        width = np.where(np.isfinite(plan.upper - plan.lower), plan.upper - plan.lower, 1.0 + np.abs(plan.controls))
        waves = self.rng.normal(size=(CANDIDATES, 4, nu)) / np.sqrt(2)
        phase = self.rng.uniform(0, 2 * np.pi, size=(CANDIDATES, 4, nu))
        turns = np.arange(1, 5)[:, None] * 2 * np.pi * np.arange(steps) / steps
        noise = np.einsum("ckn,ckns->csn", waves, np.sin(turns[None, :, None, :] + phase[..., None]))
        return np.clip(plan.controls + EXCITATION * width * noise, plan.lower, plan.upper)

    def _left(self, fit: TransitionFit, slope: np.ndarray, states: State, controls: np.ndarray) -> float:
        """Variance of the planned cost after the transitions of a candidate."""
        q, qd = states.q, states.qd
        if not (np.all(np.isfinite(q)) and np.all(np.isfinite(qd))):
            return np.inf
        typical = np.sqrt(np.mean(np.diff(np.concatenate([q, qd], axis=1), axis=0) ** 2, axis=0)) + 1e-12
        if len(typical) != 2 * self.learner.model.nv:  # quaternions: one number more
            typical = np.ones(2 * self.learner.model.nv) * np.mean(typical)
        told = self.learner.information(fit.z, states, controls, SENSOR * typical)
        return float(slope @ np.linalg.solve(np.linalg.inv(fit.covariance) + told, slope))


def roll(problem: Problem, state: State, controls) -> tuple[tuple[Any, Any], Any]:
    """States at all knots and the cost of a roll-out of controls."""

    def knot(carry, x):
        state, total = carry
        time, control = x
        total = total + call(problem.running, time, state, control)
        after = problem.dynamics.advance(state, control, time)
        return (State(after.q, after.qd), total), (state.q, state.qd)

    first = State(jnp.asarray(state.q), jnp.asarray(state.qd))
    zero = jnp.zeros((), first.q.dtype)
    (last, total), (q, qd) = jax.lax.scan(knot, (first, zero), (problem.times(), jnp.asarray(controls)))
    total = total + call(problem.terminal, problem.start_time + problem.dynamics.dt * problem.steps, last)
    return (jnp.concatenate([q, last.q[None]]), jnp.concatenate([qd, last.qd[None]])), total


class _Run:
    """The loop over episodes and what it gathers."""

    def __init__(self, real: Environment, mpc: MPC, learner: Learner, explorer: Explorer | None, fit_every: int):
        self.real, self.mpc, self.learner, self.explorer, self.fit_every = real, mpc, learner, explorer, fit_every
        self.fits, self.episodes, self.buffer = [learner.start()], [], Buffer()

    def episode(self, length: int, first: bool, stop: Interrupts) -> None:
        self.mpc.reset()
        episode, dt = Episode(), self.mpc.planner.dt
        self.episodes.append(episode)
        state, excited = self.real.reset().state, []
        for number in range(length):
            time = number * dt
            control, explored = self._control(state, time, excited, number)
            found = self.real.step(control)
            self.buffer.add(state, control, found.state)
            cost = float(call(self.mpc.planner.running, time, state, control))
            _record(episode, state, control, found.reward, cost, explored)
            state = found.state
            if first and (number + 1) % self.fit_every == 0:
                self._fit()
            if found.ended or stop.asked:
                break
        episode.q.append(np.asarray(state.q))
        episode.qd.append(np.asarray(state.qd))
        if self.fits[-1].transitions != len(self.buffer):
            self._fit()
        episode.fit = self.fits[-1]

    def _control(self, state: State, time: float, excited: list[np.ndarray], number: int) -> tuple[np.ndarray, bool]:
        """From the plan, or from the excitation that was chosen when the model was last fitted."""
        control = self.mpc(state, time, model=self.fits[-1].model)
        plan = self.mpc.plan
        fresh = number % self.fit_every == 0
        if fresh and self.explorer is not None and plan is not None:
            found = self.explorer.excited(self.fits[-1], plan, state)
            excited[:] = [] if found is None else list(found[: max(len(found) // 2, 1)])
        return (excited.pop(0), True) if excited else (control, False)

    def _fit(self) -> None:
        self.fits.append(self.learner.fit(self.buffer, self.fits[-1]))


def _record(episode: Episode, state: State, control, reward: float, cost: float, explored: bool) -> None:
    episode.q.append(np.asarray(state.q))
    episode.qd.append(np.asarray(state.qd))
    episode.controls.append(np.asarray(control))
    episode.rewards.append(reward)
    episode.costs.append(cost)
    episode.explored.append(explored)
