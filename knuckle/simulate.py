"""Simulation: one step and many steps."""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import trace_state_clean  # whether a transformation is under way
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle.contact.closed_loops import describe_faults
from knuckle.contact.constraints import joint_rows
from knuckle.contact.default import Contact, chosen_contact
from knuckle.contact.outcome import Outcome
from knuckle.contact.resolve import KEPT, ContactModel
from knuckle.forces import Loads
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.model.model import Leaf, Model, State
from knuckle.model.printed import check_single
from knuckle.prescribed import Motion, Prescribed, as_paths, check_span, locked, motion_over, placed
from knuckle.quantities import parameters_as_used, state_after, state_as_used, wrench_as_used
from knuckle.taps import PLAIN, Blueprint, OpenTaps, Taps
from knuckle.trajectory import Trajectory, with_model

Policy = Callable[[Float[Array, ""], State], Float[Array, " nu"]]
Checkpoint = Literal["none", "step", "sqrt"]


def step(
    model: Model,
    state: State,
    control: Float[Leaf, " nu"] | None = None,
    *,
    dt: float | Float[Array, ""],
    integrator: Integrator = SemiImplicitEuler(),
    contact: Contact = "default",
    wrench: Float[Leaf, "link 6"] | None = None,
    force: Float[Leaf, " nv"] | None = None,
    blueprint: Blueprint | None = None,
    prescribed: Prescribed | None = None,
    time: float | Float[Array, ""] = 0.0,
    native: bool = False,
    check: bool = False,
) -> State:
    """The state dt later. `wrench`: [torque; force] on each link from outside, world axes, about its origin.

    `force`: on the joints from outside, beside that of actuators [N m or N].

    `prescribed`: paths by the name of a joint or of a mocap body (`Path`, `PathFunction`, a function of time, or
    constant coordinates), which move as given from `time` to `time + dt`, push, and are not pushed.

    Without `control` that of the state acts (a keyframe's, see `Model.state`), or zero. `contact` is by default
    `Impulse()` if the model was described with anything that contact holds (`kn.contact.default_contact`). With None
    bodies pass through each other, joints pass their limits and equalities do not hold. `blueprint` says which
    networks act inside the step. `native` runs native code, compiled once for all models of one topology, as in
    `rollout`; one `rollout` of many steps costs less than as many calls. `check` raises ArithmeticError if the state is
    not finite or contact was not solved, and warns if a constraint is still violated or a gradient is one-sided.
    """
    check_single(model)
    contact = chosen_contact(model, contact)
    _check_dt(dt, contact)
    paths = as_paths(model, prescribed)
    check_span(paths, time, time + dt)
    model = locked(model, paths)
    if check:
        check_given(model, state)
    inputs = (model, state, control, dt, integrator, contact, wrench, force, blueprint, time, paths)
    run = _native_step() if native else _step_for(contact, reusable=not (blueprint or paths))
    after, outcome = run(*inputs, present=None if contact is None else joint_rows(model))
    if check:
        check_finite(model, after.q[None], after.qd[None])
        if outcome is not None:
            _check_outcome(model, outcome, state.q[None])
    return after


def _one_step(model, state, control, dt, integrator, contact, wrench, force, blueprint, time, paths, *, present):
    """`step` with names made into paths: the state dt later, and what the contacts did."""
    given = as_arrays(state)
    options = {"dt": dt, "integrator": integrator, "contact": contact, "wrench": wrench, "force": force}
    options["motion"] = motion_over(model, paths, time, dt, given.q.dtype, smooth=integrator.has_stages)
    state = begin(model, given, blueprint, **options)
    control = control_row(model, control, given)
    taps = opened(blueprint, state, time)
    after, outcome = advance(model, state, control, taps=taps, present=present, **options)
    return State(after.q, after.qd, after.impulse, after.memory, given.control), outcome


_warned_of_eager_contact = False


def _step_for(contact: ContactModel | None, reusable: bool) -> Callable:
    """Outside of transformations a step with contact is compiled once and used again: eagerly it takes seconds."""
    if contact is None or not trace_state_clean():
        return _one_step
    _warn_of_eager_contact("step")
    return _jitted(_one_step) if reusable else _one_step


def _run_for(contact: ContactModel | None, reusable: bool) -> Callable:
    """As `_step_for`; but policies, paths and networks may read what changes, so with them nothing is kept."""
    if contact is None or not trace_state_clean():
        return _run
    if not reusable:
        _warn_of_eager_contact("rollout")
        return _run
    return _jitted(_run)


def _warn_of_eager_contact(what: str) -> None:
    """Once per process."""
    global _warned_of_eager_contact
    if not _warned_of_eager_contact:
        _warned_of_eager_contact = True
        warnings.warn(
            f"kn.{what} with contact, outside of jax.jit and kn.native.jit, is compiled by XLA: seconds for each new "
            "kind of model. native=True compiles faster and runs faster; kn.rollout does many steps in one call; "
            "contact=None leaves contact out",
            stacklevel=4,
        )


@functools.cache
def _jitted(function: Callable) -> Callable:
    return eqx.filter_jit(function)


@functools.cache
def _native_step() -> Callable[..., tuple[State, Outcome | None]]:
    from knuckle.native import jit

    return jit(_one_step, static_argnames=("present",), sparse=kinematic_zeros)


def advance(
    model: Model,
    state: State,
    control=None,
    *,
    dt,
    integrator,
    contact,
    wrench,
    force=None,
    taps: Taps = PLAIN,
    present=None,
    motion: Motion | None = None,
) -> tuple[State, Outcome | None]:
    """`step`, and what the contacts did. `present`: see `ContactModel.resolve`; `motion`: of what follows paths."""
    state = as_arrays(state)
    _check_state(model, state)
    _check_wrench(model, wrench)
    _check_force(model, force)
    force = None if force is None else jnp.asarray(force)
    bodies, joints = (None, None) if motion is None else (motion.bodies, motion.joints)
    state = state if joints is None else joints.start(state)
    model = placed(model, bodies)
    state = state_as_used(model, state, taps)
    control = taps("control", control_row(model, control, state))
    model = parameters_as_used(model, taps)
    loads = Loads(control, wrench_as_used(model, state, wrench, taps), force, taps=taps)
    if joints is not None:
        loads = Loads(
            control, loads.wrench, force, taps=taps, joints=joints, prescribed=joints.acceleration(model.nv, dt)
        )
    if contact is None:
        after, outcome = integrator.advance(model, loads, state, dt), None
    else:

        def free_motion(model: Model, wrench, momentum):
            return integrator.free_motion(model, loads.with_impulses(wrench, momentum, dt), state, dt)

        after, outcome = contact.resolve(model, free_motion, state, dt, taps, present, bodies)
    return state_after(model, after if joints is None else joints.finish(after), taps), outcome


def opened(blueprint: Blueprint | None, state: State, time) -> Taps:
    return PLAIN if blueprint is None else OpenTaps(blueprint, state.memory or {}, time)


def begin(model: Model, state: State, blueprint: Blueprint | None, **options) -> State:
    """The state with what its first step needs: impulses to search from, and what networks remember."""
    _check_state(model, state)
    contact = options["contact"]
    started = State(state.q, state.qd) if contact is None else contact.begin(model, state)
    if blueprint is None:
        return State(started.q, started.qd, started.impulse)
    memory = state.memory
    if memory is None:
        memory = blueprint.first_memory(lambda: _tap_values(model, started, None, 0.0, **options))
    return State(started.q, started.qd, started.impulse, memory)


def tap_values(
    model: Model,
    state: State,
    control: Float[Leaf, " nu"] | None = None,
    *,
    dt: float | Float[Array, ""],
    integrator: Integrator = SemiImplicitEuler(),
    contact: Contact = "default",
    wrench: Float[Leaf, "link 6"] | None = None,
    prescribed: Prescribed | None = None,
    time: float | Float[Array, ""] = 0.0,
) -> dict[str, Array]:
    """Every named quantity of one step without networks, in the order in which the step reaches it."""
    options = {"dt": dt, "integrator": integrator, "contact": chosen_contact(model, contact), "wrench": wrench}
    paths = as_paths(model, prescribed)
    check_span(paths, time, time + dt)
    model = locked(model, paths)
    motion = motion_over(model, paths, time, dt, jnp.asarray(state.q).dtype, smooth=integrator.has_stages)
    return _tap_values(model, state, control, time, motion=motion, **options)


def _tap_values(model: Model, state: State, control, time, **options) -> dict[str, Array]:
    taps = OpenTaps(Blueprint(), {}, jnp.asarray(time, state.q.dtype), record=True)
    advance(model, state, control, taps=taps, **options)
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
    contact: Contact = "default",
    wrench: Float[Leaf, "link 6"] | Float[Leaf, "step link 6"] | None = None,
    force: Float[Leaf, " nv"] | Float[Leaf, "step nv"] | None = None,
    blueprint: Blueprint | None = None,
    prescribed: Prescribed | None = None,
    time: float | Float[Array, ""] = 0.0,
    checkpoint: Checkpoint = "step",
    native: bool = False,
    check: bool = False,
) -> Trajectory:
    """Many steps: `controls` is an array over time, one control that is held, a policy(time, state), or None.

    None holds the control of the initial state: a keyframe's (see `Model.state`), else zero.

    Args:
        contact: a contact model, None for no contact, or by default that of the model; see `step`.
        wrench: on each link from outside, as in `step`: constant, or one row of links per step.
        force: on the joints from outside, as in `step`: constant, or one row per step.
        prescribed: paths of joints and of mocap bodies, by name; see `step`.
        time: at the start [s]; matters to paths, to policies and to networks that see the time.
        checkpoint: what reverse mode keeps: "none" everything, "step" the states (the rest is computed again), "sqrt"
            states at about sqrt(steps) moments, so that memory grows with the square root of the steps.
        native: run as native code (`knuckle.native`), compiled once for all models of one topology whose placements,
            axes and inertias have the same zeros; on a CPU much faster than `jax.jit`. For one model over and over,
            `native.jit` of a function that closes over it is faster still. Works under jit, grad and vmap too.
        check: as in `step`, over all steps; the error says at which step and joint a state became not finite.
    """
    check_single(model)
    policy, table, steps = _policy(model, controls, steps)
    contact = chosen_contact(model, contact)
    _check_wrench(model, wrench, steps)
    _check_force(model, force, steps)
    paths = as_paths(model, prescribed)
    run = _native_run() if native else _run_for(contact, reusable=policy is None and not (blueprint or paths))
    check_span(paths, time, time + steps * dt)
    model = locked(model, paths)
    inputs = (model, state, table, dt, integrator, contact, wrench, force, blueprint, time, paths)
    present = None if contact is None else joint_rows(model)
    _check_dt(dt, contact)
    if check:
        check_given(model, state)
    trajectory = run(*inputs, policy=policy, steps=steps, checkpoint=checkpoint, present=present)
    if check:
        check_finite(model, trajectory.q, trajectory.qd)
        if trajectory.contact is not None:
            _check_outcome(model, trajectory.contact, np.concatenate([np.asarray(state.q)[None], trajectory.q[:-1]]))
    return with_model(trajectory, model) if trace_state_clean() else trajectory


def _check_outcome(model: Model, outcome: Outcome, q_before: Float[Leaf, "step nq"]) -> None:
    """Raise or warn as `Outcome.check` does, with the names of the constraints."""
    outcome.check(lambda step: describe_faults(model, q_before[step], outcome, step))


def check_given(model: Model, state: State) -> None:
    """Raise ArithmeticError if a state to start from is not finite, with the joint."""
    if isinstance(state.q, Tracer) or isinstance(state.qd, Tracer):
        return  # `check_finite` says what to do
    _check_state(model, state)
    fault = first_not_finite(model, np.asarray(state.q)[None], np.asarray(state.qd)[None])
    if fault is not None:
        raise ArithmeticError(f"the given state is not finite: {fault[1]}")


def check_finite(model: Model, q: Float[Leaf, "step nq"], qd: Float[Leaf, "step nv"]) -> None:
    """Raise ArithmeticError if a state is not finite, with the step and the joint at which that begins."""
    if isinstance(q, Tracer) or isinstance(qd, Tracer):
        wanted = "call .contact.check() on the result, and look for values that are not finite"
        raise ValueError(f"check=True needs numbers: under jit, grad or vmap, {wanted}")
    fault = first_not_finite(model, np.asarray(q), np.asarray(qd))
    if fault is not None:
        raise ArithmeticError(f"the state is not finite from step {fault[0]} on, first of all {fault[1]}")


def first_not_finite(model: Model, q: np.ndarray, qd: np.ndarray) -> tuple[int, str] | None:
    """The first step with a value that is not finite, and the velocity or coordinate that it is; None if all are."""
    topology = model.topology
    broken = ~np.isfinite(np.concatenate([qd, q], axis=1))
    if not broken.any():
        return None
    step = int(np.argmax(broken.any(axis=1)))
    at = int(np.argmax(broken[step]))
    moving = at < model.nv
    starts, entry = (topology.v_start, at) if moving else (topology.q_start, at - model.nv)
    joint = model.joint_names[int(np.searchsorted(starts, entry, side="right")) - 1]
    return step, f"the {'velocity' if moving else 'coordinate'} of joint {joint!r}"


@functools.cache
def _native_run() -> Callable[..., Trajectory]:
    from knuckle.native import jit

    return jit(_run, static_argnames=("policy", "steps", "checkpoint", "present"), sparse=kinematic_zeros)


def kinematic_zeros(model: Model, *others) -> tuple:
    """Parameters of `_run` whose zeros make most of the arithmetic of a step vanish."""
    return model.inertia, model.position, model.rotation, model.axis, model.anchor, model.gravity, model.friction


def _run(
    model,
    state,
    table,
    dt,
    integrator,
    contact,
    wrench,
    force,
    blueprint,
    start,
    paths,
    *,
    policy,
    steps,
    checkpoint,
    present,
) -> Trajectory:
    """`rollout` with controls sorted into a table and a policy."""
    loads = {"wrench": (wrench, 2), "force": (force, 1)}  # each with the number of axes of one step
    over_time = {k: jnp.asarray(x) for k, (x, axes) in loads.items() if x is not None and np.ndim(x) > axes}
    first = {k: x if k not in over_time else x[0] if steps else None for k, (x, _) in loads.items()}
    options = {"dt": dt, "integrator": integrator, "contact": contact, **first}
    given = as_arrays(state)

    def motion_from(time):
        return motion_over(model, paths, time, dt, given.q.dtype, smooth=integrator.has_stages)

    state = begin(model, given, blueprint, motion=motion_from(start), **options)
    still = control_row(model, None, given)
    held = given.control if policy is None and table is None else None

    def following(state, x):
        number, row, motion, acting = x
        time = start + number * dt
        control = control_row(model, policy(time, state), state) if policy else still if row is None else row
        taps = opened(blueprint, state, time)
        after, outcome = advance(
            model, state, control, taps=taps, present=present, motion=motion, **{**options, **acting}
        )
        return after, Trajectory(time + dt, after.q, after.qd, control, outcome, after.memory)

    numbers = jnp.arange(steps).astype(state.q.dtype)
    motions = jax.lax.map(lambda number: motion_from(start + number * dt), numbers) if paths else None
    trajectory = _scan(following, state, (numbers, table, motions, over_time), steps, checkpoint)[1]
    return eqx.tree_at(lambda t: t.held, trajectory, held, is_leaf=lambda x: x is None)


def _check_state(model: Model, state: State) -> None:
    for name, size in (("q", model.nq), ("qd", model.nv)):
        array = getattr(state, name)
        if array.shape != (size,):
            raise ValueError(f"state.{name} must have shape ({size},), got {array.shape}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"state.{name} must be of a floating-point type, got {array.dtype}")


def _check_dt(dt, contact: ContactModel | None) -> None:
    """Contact has no meaning backwards in time; a traced step is not seen."""
    if contact is not None and not isinstance(dt, Tracer) and not 0 < float(dt) < math.inf:
        raise ValueError(f"with contact dt must be positive, got {dt}; contact=None is without contact")


def control_row(model: Model, control, state: State) -> Float[Array, " nu"]:
    """The control of a step: the given one, else that of the state, else zero."""
    control = state.control if control is None else control
    if control is None:
        return jnp.zeros(model.nu, state.qd.dtype)
    control = jnp.asarray(control)
    if control.shape != (model.nu,):
        raise ValueError(f"control must have shape ({model.nu},), one entry per actuator, got {control.shape}")
    return control


def _check_wrench(model: Model, wrench, steps: int | None = None) -> None:
    one = (len(model.link_names), 6)
    shapes = (one,) if steps is None else (one, (steps, *one))
    if wrench is not None and jnp.shape(wrench) not in shapes:
        wanted = str(one) if jnp.ndim(wrench) == 2 else " or ".join(map(str, shapes))
        raise ValueError(f"wrench must have shape {wanted}, got {jnp.shape(wrench)}")


def _check_force(model: Model, force, steps: int | None = None) -> None:
    shapes = ((model.nv,),) if steps is None else ((model.nv,), (steps, model.nv))
    if force is not None and jnp.shape(force) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"force must have shape {wanted}, one entry per degree of freedom, got {jnp.shape(force)}")


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
    if isinstance(steps, bool) or not hasattr(steps, "__index__") or steps < 0:
        raise ValueError(f"steps must be a whole number, zero or more, got {steps!r}")
    steps = operator.index(steps)
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
