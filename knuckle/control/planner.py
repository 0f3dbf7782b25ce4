"""Trajectory optimisation by iLQR and DDP: a planner that is compiled once and solves many problems."""

from __future__ import annotations

import time as clock
from collections.abc import Collection
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from knuckle.contact.default import Contact
from knuckle.control.costs import Cost
from knuckle.control.dynamics import Dynamics
from knuckle.control.forward import Guess, Problem
from knuckle.control.given import (
    as_parts,
    check_cost,
    check_finite_state,
    check_limits,
    controls_to_start,
    no_cost,
    states_to_start,
    whole,
)
from knuckle.control.iteration import Choices, Progress, first_progress, iterate
from knuckle.control.plan import History, Plan
from knuckle.hybrid import Hybrid
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.interrupt import Interrupts, interrupts
from knuckle.model.model import Leaf, Model, State
from knuckle.optim.result import Status
from knuckle.prescribed import Prescribed
from knuckle.saturation import force_limits, limited_by_state, saturated, straight_through, without_limits
from knuckle.simulate import begin
from knuckle.taps import Blueprint

Method = Literal["ilqr", "ddp"]
Derivative = Literal["clipped", "unclipped"]
Limits = Literal["model"] | None | tuple[Any, Any]
CONVERGED = 1e-9  # of the cost: estimated distance to the minimum
CLOSED = 1e-9  # gaps between segments [rad, m, rad/s, m/s]
NUDGE = 0.01  # of the range of a control
BROKEN = "a derivative of the dynamics or of a cost is not finite"


class Ends(NamedTuple):
    """When a search ends."""

    max_iterations: int
    tolerance: float
    deadline: float  # on the clock of `time.perf_counter`
    stop: Interrupts

    def reached(self, row: tuple[float, ...]) -> tuple[Status, str] | None:
        cost, gap, share, _, decrement, _ = row
        if decrement <= self.tolerance * (abs(cost) + self.tolerance) and gap <= CLOSED:
            return Status.CONVERGED, "the estimated distance of the cost from its minimum is below the tolerance"
        if share == 0:
            return Status.STALLED, "no step lowers the cost, with any regularisation: a kink, or a wrong derivative"
        if self.stop.asked:
            return Status.INTERRUPTED, "interrupted"
        return (Status.TIME_LIMIT, "the time is up") if clock.perf_counter() > self.deadline else None


class Search(NamedTuple):
    """Where a search ended, how it got there, and why it ended."""

    progress: Progress
    history: list[tuple[float, ...]]
    status: Status
    message: str


class Planner:
    """Minimise the sum of running costs and a terminal cost over the controls of a model: `plan(state)`.

    See `ilqr` for the arguments. `free` names what may be another one in each call without compiling anew: "model"
    (its parameters, given as `plan(..., model=...)`) and "costs" (arrays inside them). What is not free folds into the
    program as constants, which is faster.
    """

    def __init__(
        self,
        model: Model | Hybrid,
        running: Cost | None = None,
        terminal: Cost | None = None,
        *,
        steps: int,
        dt: float | None = None,
        substeps: int = 1,
        limits: Limits = "model",
        method: Method = "ilqr",
        segments: int = 1,
        derivative: Derivative = "clipped",
        integrator: Integrator | None = None,
        contact: Contact = "default",
        blueprint: Blueprint | None = None,
        prescribed: Prescribed | None = None,
        free: Collection[str] = (),
        native: bool = True,
    ):
        parts = as_parts(model, dt, integrator, contact, blueprint)
        self.model, self.dt = parts.model, parts.dt
        self.steps, self.substeps = whole("steps", steps), whole("substeps", substeps)
        self.segments = whole("segments", segments, self.steps)
        for name, value, known in (
            ("method", method, get_args(Method)),
            ("derivative", derivative, get_args(Derivative)),
        ):
            if value not in known:
                raise ValueError(f"ilqr: {name} must be one of {', '.join(known)}, got {value!r}")
        unknown = sorted(set(free) - {"model", "costs"})
        if unknown:
            raise ValueError(f"ilqr: free may name 'model' and 'costs', got {', '.join(map(repr, unknown))}")
        if self.model.nu == 0:
            raise ValueError(f"ilqr: the model {self.model.name!r} has no actuators, so there is nothing to plan")
        if running is None and terminal is None:
            raise ValueError("ilqr: expected a running cost, a terminal cost or both, got none")
        self.running, self.terminal = running or no_cost, terminal or no_cost
        self.lower, self.upper = check_limits(self.model, limits, self.steps)
        self.options = {"contact": parts.contact, **parts.step_options}
        if prescribed is not None:
            self.options["prescribed"] = prescribed
        self._unclipped = derivative == "unclipped"
        self._free, self._native = frozenset(free), native
        self._second_order = method == "ddp"
        self._force_limits = force_limits(self.model) if self._unclipped else None
        starts = np.zeros(self.steps + 1, bool)
        starts[np.round(np.arange(self.segments) * self.steps / self.segments).astype(int)] = True
        self._starts = starts
        self._bounded = bool(np.isfinite([self.lower, self.upper]).any())
        compile_ = _native_jit() if native else jax.jit
        self._first, self._iterate = compile_(self._first_of), compile_(self._iteration_of)
        self._limited = [] if self._unclipped else limited_by_state(self.model)
        self._saturated = compile_(jax.vmap(lambda state, control: saturated(self.model, state, control)))

    def plan(
        self,
        state: State,
        controls: Leaf | None = None,
        *,
        states: State | None = None,
        time: float = 0.0,
        max_iterations: int = 200,
        tolerance: float = CONVERGED,
        seconds: float = np.inf,
        model: Model | None = None,
        running: Cost | None = None,
        terminal: Cost | None = None,
        regularisation: float = 0.0,
    ) -> Plan:
        """The best controls from a state, searched from `controls` (zero, or what holds servos, if none are given).

        `states`, one per knot, are where segments of multiple shooting start. Never a value that is not finite.
        """
        began = clock.perf_counter()
        with jax.enable_x64(True), interrupts() as stop:
            check_finite_state(self.model, state)
            free = self._free_arrays(model, running, terminal)
            table = (np.asarray(time, float), self.lower, self.upper)
            start = self._start(state, controls, states)
            ends = Ends(max_iterations, tolerance, began + seconds, stop)
            search = self._search(free, start, table, regularisation, ends)
            if controls is None and search.status is Status.CONVERGED and len(search.history) == 2:
                nudged = (*start[:2], self._nudged(start[2]))  # the first guess may be stationary, yet no minimum
                search = self._search(free, nudged, table, regularisation, ends)
            return self._result(search, clock.perf_counter() - began, float(time))

    def _search(self, free, start, table, regularisation: float, ends: Ends) -> Search:
        """Iterations from a first guess until one of the ends."""
        progress = self._first(free, start, table)
        self._check_first(progress, free, table)
        progress = progress._replace(regularisation=np.asarray(regularisation, float))
        history = [_row(progress)]
        for _ in range(ends.max_iterations):
            after = self._iterate(free, progress, table)
            if not bool(after.finite):
                return Search(progress, history, Status.NUMERICAL_FAILURE, BROKEN)
            progress = after
            history.append(_row(progress))
            ended = ends.reached(history[-1])
            if ended is not None:
                return Search(progress, history, *ended)
        return Search(progress, history, Status.MAX_ITERATIONS, f"{ends.max_iterations} iterations")

    def _nudged(self, controls: np.ndarray) -> np.ndarray:
        """Controls a little off, the same in each call: by about a hundredth of their range, or of one unit."""
        width = self.upper - self.lower
        size = NUDGE * np.where(np.isfinite(width), width, 1.0)
        noise = np.random.default_rng(0).normal(size=controls.shape)
        return np.clip(controls + size * noise, self.lower, self.upper)

    def _problem(self, free, table) -> Problem:
        """The problem as traced: free arrays in their places, limits of controls left to the planner."""
        start_time, lower, upper = (jnp.asarray(x) for x in table)
        return self._problem_with(*self._with_free(free), start_time, lower, upper)

    def problem_of(self, model: Model, time) -> Problem:
        """The problem of this planner with another model of the same topology, from a time on; to be traced."""
        costs = jax.tree.map(
            lambda x: model if x is self.model else x, (self.running, self.terminal), is_leaf=_is_model
        )
        table = (jnp.asarray(x) for x in (time, self.lower, self.upper))
        return self._problem_with(model, costs[0], costs[1], *table)

    def _problem_with(self, model: Model, running: Cost, terminal: Cost, start_time, lower, upper) -> Problem:
        bare = without_limits(model, force=self._unclipped)

        def saturation(state, control):
            return straight_through(model, state, control, self._force_limits)

        own = saturation if self._unclipped else None
        dynamics = Dynamics(bare, self.dt, self.substeps, self.options, own)
        return Problem(dynamics, running, terminal, self._starts, start_time, lower, upper)

    def _first_of(self, free, start, table) -> Progress:
        first, states, controls = jax.tree.map(jnp.asarray, start)
        problem = self._problem(free, table)
        options = {"integrator": SemiImplicitEuler(), "wrench": None, "blueprint": None, **self.options}
        options.pop("prescribed", None)
        first = begin(problem.dynamics.model, first, options.pop("blueprint"), dt=self.dt / self.substeps, **options)
        tiled = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.steps + 1, *x.shape)), first)
        if states is not None:
            tiled = State(states.q, states.qd, tiled.impulse, tiled.memory)
        return first_progress(problem, Guess(tiled, controls), jnp.zeros((), controls.dtype))

    def _iteration_of(self, free, progress: Progress, table) -> Progress:
        progress = jax.tree.map(jnp.asarray, progress)
        choices = Choices(self._bounded, self._second_order, self.options["contact"] is None)
        return iterate(self._problem(free, table), progress, choices)

    def _free_arrays(self, model, running, terminal) -> Any:
        """What is handed over in this call: the parameters of the model, arrays of the costs."""
        others = (("model", model, "model"), ("running", running, "costs"), ("terminal", terminal, "costs"))
        for name, value, kind in others:
            if value is not None and kind not in self._free:
                raise ValueError(f"plan: another {name} needs a Planner with free=({kind!r},)")
        own = self.model if model is None else model
        if own.topology != self.model.topology:
            raise ValueError("plan: the other model must have the topology of the planner's own")
        arrays: dict[str, Any] = {}
        if "model" in self._free:
            arrays["model"] = eqx.filter(_without_actuator_limits(own), eqx.is_array)
        if "costs" in self._free:
            costs = (running or self.running, terminal or self.terminal)
            arrays["costs"] = _cost_arrays(costs)
        return arrays

    def _with_free(self, free) -> tuple[Model, Cost, Cost]:
        """Model and costs with arrays of this call; costs that hold the planner's model see the free one."""
        model, costs = self.model, (self.running, self.terminal)
        if "costs" in free:
            costs = eqx.combine(free["costs"], _cost_rest(costs), is_leaf=_is_model)
        if "model" in free:
            bare = _without_actuator_limits(self.model)
            traced = eqx.combine(free["model"], eqx.filter(bare, eqx.is_array, inverse=True))
            model = eqx.tree_at(_actuator_limits, traced, _actuator_limits(self.model), is_leaf=_is_none)
            costs = jax.tree.map(lambda x: model if x is self.model else x, costs, is_leaf=_is_model)
        return model, costs[0], costs[1]

    def _start(self, state: State, controls, states: State | None) -> tuple[State, State | None, np.ndarray]:
        """Where the search starts: the first state, states at all knots if given, controls within their limits."""
        u = np.clip(controls_to_start(self.model, controls, self.steps, state), self.lower, self.upper)
        memory = jax.tree.map(np.asarray, state.memory)
        first = State(np.asarray(state.q, float), np.asarray(state.qd, float), memory=memory)
        return first, states_to_start(self.model, first, states, self.steps), u

    def _check_first(self, progress: Progress, free, table) -> None:
        """An error that says what is not finite, if the cost of the first guess is not."""
        if np.isfinite(float(progress.rolled.cost)):
            return
        check_cost(self._problem(free, table), progress.rolled.guess)

    def _result(self, search: Search, seconds: float, time: float) -> Plan:
        progress, rows = search.progress, np.array(search.history)
        rolled = progress.rolled
        at_limit = (rolled.guess.controls <= self.lower) | (rolled.guess.controls >= self.upper)
        names = ("cost", "gap", "share", "regularisation", "decrement", "gradient")
        columns = {name: rows[:, k] if k < 2 else rows[1:, k] for k, name in enumerate(names)}
        return Plan(
            model=self.model,
            status=search.status,
            message=search.message,
            states=jax.tree.map(np.asarray, rolled.guess.states),
            controls=np.asarray(rolled.guess.controls),
            gains=np.asarray(progress.feedback.gain),
            feedforward=np.asarray(progress.feedback.feedforward),
            cost=float(rolled.cost),
            iterations=len(rows) - 1,
            history=History(**columns),
            gap=float(rows[-1, 1]),
            saturated=np.asarray(at_limit),
            notes=self._notes(rolled.guess),
            seconds=seconds,
            dt=self.dt,
            start_time=time,
            lower=self.lower,
            upper=self.upper,
        )

    def _notes(self, guess: Guess) -> tuple[str, ...]:
        """In words: servos at their force limit, where the derivative by the control is zero."""
        if not self._limited:
            return ()
        states = State(guess.states.q[:-1], guess.states.qd[:-1])
        held = np.asarray(self._saturated(states, guess.controls))
        counts = dict(zip(self.model.actuators.names, held.sum(axis=0), strict=True))
        return tuple(
            f"actuator {name!r} is at its force limit at {counts[name]} of {self.steps} knots, where B is zero: "
            "derivative='unclipped' has the derivative without that limit"
            for name in self._limited
            if counts[name]
        )


def _row(progress: Progress) -> tuple[float, ...]:
    rolled, feedback = progress.rolled, progress.feedback
    gap = float(np.max(np.abs(rolled.gap), initial=0.0))
    slope = float(np.max(np.abs(feedback.gradient), initial=0.0))
    numbers = (progress.share, progress.regularisation, feedback.decrement)
    return float(rolled.cost), gap, *map(float, numbers), slope


def _native_jit():
    from knuckle.native import jit  # loads LLVM

    return jit


def _is_model(x) -> bool:
    return isinstance(x, Model)


def _is_none(x) -> bool:
    return x is None


def _cost_arrays(costs):
    return eqx.filter(costs, lambda x: eqx.is_array(x) and not _is_model(x), is_leaf=_is_model)


def _cost_rest(costs):
    return eqx.filter(costs, lambda x: eqx.is_array(x) and not _is_model(x), inverse=True, is_leaf=_is_model)


def _actuator_limits(model: Model):
    a = model.actuators
    return [a.control_lower, a.control_upper, a.force_lower, a.force_upper, model.effort]


def _without_actuator_limits(model: Model) -> Model:
    """Limits stay as they are: they decide on the form of the program."""
    return eqx.tree_at(_actuator_limits, model, [None] * 5)
