"""What a user gives to planning: brought into one form, or refused with what was expected and what came."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.contact.default import Contact, chosen_contact
from knuckle.contact.resolve import ContactModel
from knuckle.control.costs import call
from knuckle.control.forward import Guess, Problem
from knuckle.hybrid import Hybrid
from knuckle.integrate import Integrator
from knuckle.model.model import Leaf, Model, State
from knuckle.saturation import control_limits
from knuckle.simulate import first_not_finite


class Parts(NamedTuple):
    """How a model is stepped."""

    model: Model
    dt: float
    contact: ContactModel | None
    step_options: dict[str, Any]


def no_cost(time, state, control=None):
    return jnp.zeros((), state.q.dtype)


def as_parts(model: Model | Hybrid, dt, integrator: Integrator | None, contact: Contact, blueprint) -> Parts:
    """Of a model with these options, or of a hybrid with its own where none are given."""
    if isinstance(model, Hybrid):
        hybrid, model = model, model.model
        dt = hybrid.dt if dt is None else dt
        integrator = hybrid.integrator if integrator is None else integrator
        blueprint = hybrid.blueprint if blueprint is None else blueprint
        contact = hybrid.contact if contact == "default" else contact
    elif not isinstance(model, Model):
        raise ValueError(f"ilqr: expected a kn.Model or a kn.Hybrid, got {type(model).__name__}")
    dt = model.timestep if dt is None else dt
    if dt is None or not 0 < float(dt) < math.inf:
        raise ValueError(f"ilqr: dt must be a positive time from knot to knot [s], got {dt}")
    options = {"integrator": integrator, "blueprint": blueprint}
    chosen = {name: value for name, value in options.items() if value is not None}
    return Parts(model, float(dt), chosen_contact(model, contact), chosen)


def whole(name: str, value: Any, most: int | None = None) -> int:
    good = not isinstance(value, bool) and hasattr(value, "__index__") and operator.index(value) >= 1
    if not good or (most is not None and operator.index(value) > most):
        wanted = "of at least 1" if most is None else f"from 1 to {most}, the number of steps"
        raise ValueError(f"ilqr: {name} must be a whole number {wanted}, got {value!r}")
    return operator.index(value)


def check_limits(model: Model, limits: Any, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the controls at each step; "model": where the model's own actuators saturate.

    Given bounds narrow those: beyond them actuators would not do what is planned. None is a model without limits.
    """
    if isinstance(limits, str) and limits != "model":
        raise ValueError(f"ilqr: limits must be 'model', None or (lower, upper), got {limits!r}")
    own = (-np.inf, np.inf) if limits is None else control_limits(model)
    if limits is None or isinstance(limits, str):
        limits = own
    try:
        pair = [np.asarray(end, float) for end in limits]
    except (TypeError, ValueError) as error:
        raise ValueError(f"ilqr: limits must be (lower, upper), got {limits!r}") from error
    shapes = ((), (model.nu,), (steps, model.nu))
    if len(pair) != 2 or any(end.shape not in shapes for end in pair):
        wanted = f"two arrays, each one number, ({model.nu},) or ({steps}, {model.nu})"
        raise ValueError(f"ilqr: limits must be {wanted}, got shapes {[end.shape for end in pair]}")
    narrow = (np.maximum(pair[0], own[0]), np.minimum(pair[1], own[1]))
    lower, upper = (np.broadcast_to(end, (steps, model.nu)).copy() for end in narrow)
    if not np.all(lower <= upper):
        step, number = np.argwhere(~(lower <= upper))[0]
        name, low, high = model.actuators.names[number], lower[step, number], upper[step, number]
        raise ValueError(f"ilqr: limits of {name!r} cross: lower {low:g}, upper {high:g}")
    return lower, upper


def controls_to_start(model: Model, controls: Leaf | None, steps: int, state: State) -> np.ndarray:
    """One row per step; without any, what holds servos where they stand."""
    if controls is None:
        given = model.holding_control(np.asarray(state.q, float)) if state.control is None else state.control
        return np.tile(np.asarray(given, float), (steps, 1))
    table = np.asarray(controls, float)
    table = np.tile(table, (steps, 1)) if table.shape == (model.nu,) else table
    if table.shape != (steps, model.nu):
        raise ValueError(f"plan: controls must have shape ({steps}, {model.nu}) or ({model.nu},), got {table.shape}")
    if not np.all(np.isfinite(table)):
        step, number = np.argwhere(~np.isfinite(table))[0]
        raise ValueError(
            f"plan: controls must be finite, that of {model.actuators.names[number]!r} at step {step} is not"
        )
    return table


def check_finite_state(model: Model, state: State) -> None:
    for name, size in (("q", model.nq), ("qd", model.nv)):
        shape = np.shape(getattr(state, name))
        if shape != (size,):
            raise ValueError(f"plan: state.{name} must have shape ({size},), got {shape}")
    fault = first_not_finite(model, np.asarray(state.q)[None], np.asarray(state.qd)[None])
    if fault is not None:
        raise ValueError(f"plan: the state is not finite: {fault[1]}")


def states_to_start(model: Model, first: State, states: State | None, steps: int) -> State | None:
    """The given states at all knots, with the first one where the plan starts."""
    if states is None:
        return None
    for name, size in (("q", model.nq), ("qd", model.nv)):
        given = np.asarray(getattr(states, name), float)
        if given.shape != (steps + 1, size):
            raise ValueError(f"plan: states.{name} must have shape ({steps + 1}, {size}), got {given.shape}")
        if not np.all(np.isfinite(given)):
            raise ValueError(f"plan: states.{name} must be finite")
    q, qd = (np.concatenate([[a], np.asarray(b, float)[1:]]) for a, b in ((first.q, states.q), (first.qd, states.qd)))
    return State(q, qd)


def check_cost(problem: Problem, guess: Guess) -> None:
    """Raise ValueError: what is not finite in the roll-out of the first guess."""
    states = jax.tree.map(np.asarray, guess.states)
    fault = first_not_finite(problem.dynamics.model, states.q, states.qd)
    known = len(states.q) if fault is None else fault[0]
    dt, start = problem.dynamics.dt, float(problem.start_time)
    for number in range(min(known, problem.steps)):
        state = jax.tree.map(lambda x, number=number: x[number], states)
        value = float(call(problem.running, start + number * dt, state, jnp.asarray(guess.controls[number])))
        if not math.isfinite(value):
            raise ValueError(
                f"plan: the running cost is {value} at step {number} of the first guess, where the state is finite"
            )
    if fault is None:
        last = jax.tree.map(lambda x: x[-1], states)
        value = float(call(problem.terminal, start + problem.steps * dt, last))
        if math.isfinite(value):
            raise ValueError("plan: the cost of the first guess is not finite: the sum of running costs overflows")
        raise ValueError(f"plan: the terminal cost is {value} at the end of the first guess, where the state is finite")
    raise ValueError(
        f"plan: the roll-out of the first guess is not finite from step {fault[0]} on, first of all {fault[1]}: give "
        "other controls, a shorter dt, or segments=... with states=..."
    )
