"""Simulation: one step and many steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.contact.outcome import Outcome
from knuckle.contact.resolve import KEPT, ContactModel
from knuckle.forces import Loads
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.model.model import Leaf, Model, State
from knuckle.quantities import parameters_as_used, state_after, state_as_used, wrench_as_used
from knuckle.taps import PLAIN, Blueprint, OpenTaps, Taps

Policy = Callable[[Float[Array, ""], State], Float[Array, " nu"]]
Checkpoint = Literal["none", "step", "sqrt"]


class Trajectory(eqx.Module):
    """States after each step of a roll-out, with the time [s] of each and the control that led there."""

    time: Float[Leaf, " step"]
    q: Float[Leaf, "step nq"]
    qd: Float[Leaf, "step nv"]
    control: Float[Leaf, "step nu"]
    contact: Outcome | None = None  # what the contacts of each step did
    memory: dict[str, Any] | None = None  # what networks kept after each step

    @property
    def last(self) -> State:
        return State(self.q[-1], self.qd[-1], memory=jax.tree.map(lambda kept: kept[-1], self.memory))


def step(
    model: Model,
    state: State,
    control: Float[Leaf, " nu"] | None = None,
    *,
    dt: float | Float[Array, ""],
    integrator: Integrator = SemiImplicitEuler(),
    contact: ContactModel | None = None,
    wrench: Float[Array, "link 6"] | None = None,
    blueprint: Blueprint | None = None,
    time: float | Float[Array, ""] = 0.0,
    check: bool = False,
) -> State:
    """The state dt later. `wrench`: [torque; force] on each link from outside, world axes, about its origin.

    Without `contact` bodies pass through each other, joints pass their limits and equalities do not hold. `blueprint`
    says which networks act inside the step. `check` raises ArithmeticError if contact was not solved, and warns where
    its gradient is one-sided.
    """
    options = {"dt": dt, "integrator": integrator, "contact": contact, "wrench": wrench}
    state = begin(model, as_arrays(state), blueprint, **options)
    after, outcome = advance(model, state, control, taps=opened(blueprint, state, time), **options)
    if check and outcome is not None:
        outcome.check()
    return after


def advance(
    model: Model, state: State, control=None, *, dt, integrator, contact, wrench, taps: Taps = PLAIN
) -> tuple[State, Outcome | None]:
    """`step`, and what the contacts did."""
    state = as_arrays(state)
    _check_state(model, state)
    state = state_as_used(model, state, taps)
    control = taps("control", control_row(model, control, state))
    model = parameters_as_used(model, taps)
    loads = Loads(control, wrench_as_used(model, state, _wrench(model, wrench), taps), taps=taps)
    if contact is None:
        return state_after(model, integrator.advance(model, loads, state, dt), taps), None

    def motion(model: Model, wrench, momentum):
        return integrator.free_motion(model, loads.with_impulses(wrench, momentum, dt), state, dt)

    after, outcome = contact.resolve(model, motion, state, dt, taps)
    return state_after(model, after, taps), outcome


def opened(blueprint: Blueprint | None, state: State, time) -> Taps:
    return PLAIN if blueprint is None else OpenTaps(blueprint, state.memory or {}, time)


def begin(model: Model, state: State, blueprint: Blueprint | None, **options) -> State:
    """The state with what its first step needs: impulses to search from, and what networks remember."""
    contact = options["contact"]
    started = State(state.q, state.qd) if contact is None else contact.begin(model, state)
    if blueprint is None:
        return started
    memory = state.memory
    if memory is None:
        memory = blueprint.first_memory(lambda: tap_values(model, started, **options))
    return State(started.q, started.qd, started.impulse, memory)


def tap_values(
    model: Model,
    state: State,
    control: Float[Leaf, " nu"] | None = None,
    *,
    dt: float | Float[Array, ""],
    integrator: Integrator = SemiImplicitEuler(),
    contact: ContactModel | None = None,
    wrench: Float[Array, "link 6"] | None = None,
    time: float | Float[Array, ""] = 0.0,
) -> dict[str, Array]:
    """Every named quantity of one step without networks, in the order in which the step reaches it."""
    taps = OpenTaps(Blueprint(), {}, jnp.asarray(time, state.q.dtype), record=True)
    advance(model, state, control, dt=dt, integrator=integrator, contact=contact, wrench=wrench, taps=taps)
    return {name: value.array for name, value in taps.seen.items()}


def as_arrays(state: State) -> State:
    return jax.tree.map(jnp.asarray, state)


def rollout(
    model: Model,
    state: State,
    controls: Float[Leaf, "step nu"] | Float[Leaf, " nu"] | Policy | None = None,
    *,
    dt: float | Float[Array, ""],
    steps: int | None = None,
    integrator: Integrator = SemiImplicitEuler(),
    contact: ContactModel | None = None,
    wrench: Float[Array, "link 6"] | None = None,
    blueprint: Blueprint | None = None,
    time: float | Float[Array, ""] = 0.0,
    checkpoint: Checkpoint = "step",
    native: bool = False,
    check: bool = False,
) -> Trajectory:
    """Many steps: `controls` is an array over time, one control that is held, a policy(time, state), or None.

    Args:
        time: at the start [s]; matters to policies and to networks that see the time.
        checkpoint: what reverse mode keeps: "none" everything, "step" the states (the rest is computed again), "sqrt"
            states at about sqrt(steps) moments, so that memory grows with the square root of the steps.
        native: run as native code (`knuckle.native`), compiled once for all models of one topology; on a CPU much
            faster than `jax.jit`. For one model over and over, `native.jit` of a function that closes over it is
            faster still. Works under jit, grad and vmap too.
        check: as in `step`, over all steps.
    """
    policy, table, steps = _policy(model, controls, steps)
    run = _native_run() if native else _run
    inputs = (model, state, table, dt, integrator, contact, wrench, blueprint, time)
    trajectory = run(*inputs, policy=policy, steps=steps, checkpoint=checkpoint)
    if check and trajectory.contact is not None:
        trajectory.contact.check()
    return trajectory


@functools.cache
def _native_run() -> Callable[..., Trajectory]:
    from knuckle.native import jit

    return jit(_run, static_argnames=("policy", "steps", "checkpoint"))


def _run(
    model, state, table, dt, integrator, contact, wrench, blueprint, start, *, policy, steps, checkpoint
) -> Trajectory:
    """`rollout` with controls sorted into a table and a policy."""
    options = {"dt": dt, "integrator": integrator, "contact": contact, "wrench": wrench}
    state = begin(model, as_arrays(state), blueprint, **options)

    def following(state, x):
        number, row = x
        time = start + number * dt
        control = control_row(model, policy(time, state) if policy else row, state)
        after, outcome = advance(model, state, control, taps=opened(blueprint, state, time), **options)
        return after, Trajectory(time + dt, after.q, after.qd, control, outcome, after.memory)

    numbers = jnp.arange(steps).astype(state.q.dtype)
    return _scan(following, state, (numbers, table), steps, checkpoint)[1]


def _check_state(model: Model, state: State) -> None:
    for name, size in (("q", model.nq), ("qd", model.nv)):
        if getattr(state, name).shape != (size,):
            raise ValueError(f"state.{name} must have shape ({size},), got {getattr(state, name).shape}")


def control_row(model: Model, control, state: State) -> Float[Array, " nu"]:
    if control is None:
        return jnp.zeros(model.nu, state.qd.dtype)
    control = jnp.asarray(control)
    if control.shape != (model.nu,):
        raise ValueError(f"control must have shape ({model.nu},), one entry per actuator, got {control.shape}")
    return control


def _wrench(model: Model, wrench):
    if wrench is not None and jnp.shape(wrench) != (len(model.link_names), 6):
        raise ValueError(f"wrench must have shape ({len(model.link_names)}, 6), got {jnp.shape(wrench)}")
    return wrench


def _policy(model: Model, controls, steps: int | None) -> tuple[Policy | None, Leaf | None, int]:
    """The policy if there is one, else a row of controls per step (or None), and the number of steps."""
    if controls is None or callable(controls):
        table = None
    else:
        arrays = jnp if isinstance(controls, jax.Array) else np
        table = arrays.asarray(controls)
        if table.ndim == 1 and steps is not None:
            table = arrays.broadcast_to(table, (steps, *table.shape))
        if table.ndim != 2 or table.shape[1] != model.nu or steps not in (None, len(table)):
            wanted = f"({'steps' if steps is None else steps}, {model.nu}), or ({model.nu},) with steps=..."
            raise ValueError(f"controls must have shape {wanted}, got {jnp.shape(controls)}")
        steps = len(table)
    if steps is None:
        raise ValueError("steps=... is needed where controls are not an array over time")
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps}")
    policy: Any = controls if callable(controls) else None
    return policy, table, steps


def _scan(following, start, xs, steps: int, checkpoint: Checkpoint):
    """lax.scan that keeps for reverse mode what `checkpoint` says."""
    if checkpoint not in ("none", "step", "sqrt"):
        raise ValueError(f"checkpoint must be 'none', 'step' or 'sqrt', got {checkpoint!r}")
    if checkpoint == "none":
        return jax.lax.scan(following, start, xs, length=steps)
    kept = jax.checkpoint(following, policy=jax.checkpoint_policies.save_only_these_names(KEPT))
    if checkpoint == "step" or steps < 4:
        return jax.lax.scan(kept, start, xs, length=steps)
    inner = math.isqrt(steps)
    whole = steps - steps % inner
    pieces = jax.tree.map(lambda a: a[:whole].reshape(-1, inner, *a.shape[1:]), xs)
    piece = jax.checkpoint(lambda carry, x: jax.lax.scan(kept, carry, x, length=inner))
    middle, ys = jax.lax.scan(piece, start, pieces, length=whole // inner)
    ys = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), ys)
    if whole == steps:
        return middle, ys
    end, rest = jax.lax.scan(kept, middle, jax.tree.map(lambda a: a[whole:], xs), length=steps - whole)
    return end, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ys, rest)
