"""The linear map of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.contact.default import Contact
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.model.joints import difference, retract
from knuckle.model.model import Model, State
from knuckle.prescribed import Prescribed
from knuckle.simulate import as_arrays, control_row, step
from knuckle.taps import Blueprint


def linearize(
    model: Model,
    state: State,
    control: Float[Array, " nu"] | None = None,
    *,
    dt: float | Float[Array, ""],
    integrator: Integrator = SemiImplicitEuler(),
    contact: Contact = "default",
    wrench: Float[Array, "link 6"] | None = None,
    force: Float[Array, " nv"] | None = None,
    blueprint: Blueprint | None = None,
    prescribed: Prescribed | None = None,
    time: float | Float[Array, ""] = 0.0,
) -> tuple[Float[Array, "2nv 2nv"], Float[Array, "2nv nu"]]:
    """A and B of a step in the tangent space: d(after) = A d(before) + B d(control), d = (dq, dqd) of 2 nv entries.

    The arguments are those of `step`.
    """
    from knuckle.native import lanes  # loads LLVM

    options = {"integrator": integrator, "contact": contact, "wrench": wrench, "force": force, "blueprint": blueprint}
    state = as_arrays(state)
    control = control_row(model, control, state)

    def after(dq, dqd, control):
        """As a change from the state that is reached where the derivative is taken."""
        moved = State(retract(model, state.q, dq), state.qd + dqd, state.impulse, state.memory)
        reached = step(model, moved, control, dt=dt, prescribed=prescribed, time=time, **options)
        return jnp.concatenate([difference(model, jax.lax.stop_gradient(reached.q), reached.q), reached.qd])

    rest = jnp.zeros_like(state.qd)
    still = (rest, rest, jnp.zeros_like(control))
    push = jax.linearize(after, rest, rest, control)[1]

    def derivative(number: int):
        """By one argument alone, so that zeros of the others vanish in native code."""
        directions = jnp.eye(still[number].size, dtype=rest.dtype)
        return lanes(lambda d: push(*still[:number], d, *still[number + 1 :]))(directions).T

    by_q, by_qd, by_control = map(derivative, range(3))
    return jnp.concatenate([by_q, by_qd], axis=1), by_control
