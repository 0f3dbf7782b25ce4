"""Where actuators saturate: limits of the control, of the actuator's force, and of the joint's effort.

A saturated actuator does not answer to its control, so its column of B (`linearize`) is zero there. `control_limits`
has the limits as bounds of the control, `saturated` says which actuators are beyond them, and `straight_through` keeps
the motion as it is but gives the derivative of the actuator without limits.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle.forces import force_without_limits
from knuckle.model.model import Leaf, Model, State


def without_limits(model: Model, *, force: bool = True) -> Model:
    """The model whose controls, and with `force` whose forces and efforts too, are never clipped."""

    def limits(model: Model):
        a = model.actuators
        forces = (a.force_lower, a.force_upper, model.effort)
        return [a.control_lower, a.control_upper, *(forces if force else ())]

    ends = (-np.inf, np.inf, -np.inf, np.inf, np.inf)
    fresh = [np.full(np.shape(old), end) for old, end in zip(limits(model), ends, strict=False)]
    return eqx.tree_at(limits, model, fresh)


def force_limits(model: Model) -> tuple[Float[Leaf, " nu"], Float[Leaf, " nu"]]:
    """Bounds of each actuator's force: its own, and the effort of the joint that it alone drives, over the gear."""
    a = model.actuators
    lower, upper = np.array(a.force_lower, float), np.array(a.force_upper, float)
    for number, dof, gear in zip(a.entry_actuator, a.entry_dof, np.asarray(a.gear), strict=True):
        effort = float(np.asarray(model.effort)[dof])
        if np.isinf(effort) or gear == 0:
            continue
        if a.entry_dof.count(dof) > 1 or a.entry_actuator.count(number) > 1:
            joint = model.joint_names[model.topology.dof_link[dof]]
            raise ValueError(
                f"joint {joint!r}: its effort limits several actuators, or an actuator of several freedoms, together: "
                "that is no limit of each control"
            )
        lower[number] = max(lower[number], -effort / abs(gear))
        upper[number] = min(upper[number], effort / abs(gear))
    return lower, upper


def control_limits(model: Model) -> tuple[Float[Leaf, " nu"], Float[Leaf, " nu"]]:
    """Bounds of the control beyond which nothing changes; those of forces count where no state enters (motors)."""
    a = model.actuators
    low, high = np.array(a.control_lower, float), np.array(a.control_upper, float)
    gain, bias = np.asarray(a.gain, float), np.asarray(a.bias, float)
    plain = ~np.any(bias[:, 1:] != 0, axis=1) & (gain != 0)
    weakest, strongest = force_limits(model)
    ends = np.stack([weakest, strongest]) - bias[:, 0]
    by_force = np.sort(ends / np.where(gain != 0, gain, 1.0), axis=0)
    return np.where(plain, np.maximum(low, by_force[0]), low), np.where(plain, np.minimum(high, by_force[1]), high)


def limited_by_state(model: Model) -> list[str]:
    """Names of actuators whose force limits bound the control by the state: servos with a limited force."""
    a, (lower, upper) = model.actuators, force_limits(model)
    servo = np.any(np.asarray(a.bias)[:, 1:] != 0, axis=1)
    return [n for n, s, lo, hi in zip(a.names, servo, lower, upper, strict=True) if s and np.isfinite([lo, hi]).any()]


def saturated(model: Model, state: State, control: Float[Array, " nu"]) -> Bool[Array, " nu"]:
    """Which actuators do not answer to their control, because it or their force is beyond a limit."""
    a, (lower, upper) = model.actuators, force_limits(model)
    beyond = (control < a.control_lower) | (control > a.control_upper)
    force = force_without_limits(model, state.q, state.qd, jnp.clip(control, a.control_lower, a.control_upper))
    return beyond | (force < lower) | (force > upper)


def straight_through(
    model: Model, state: State, control: Float[Array, " nu"], limits: tuple[Leaf, Leaf] | None = None
) -> Float[Array, " nu"]:
    """The control at which `without_limits(model)` does what the model does, with derivative one by the control.

    `limits`: those of forces, if the model is traced.
    """
    a, (lower, upper) = model.actuators, force_limits(model) if limits is None else limits
    force = force_without_limits(model, state.q, state.qd, control)
    within = force_without_limits(model, state.q, state.qd, jnp.clip(control, a.control_lower, a.control_upper))
    gain = jnp.asarray(a.gain)
    able = gain != 0
    off = jnp.where(able, (jnp.clip(within, lower, upper) - force) / jnp.where(able, gain, 1.0), 0.0)
    return control + jax.lax.stop_gradient(off)
