"""The linear map of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.model.joints import difference, retract
from knuckle.model.model import Model, State
from knuckle.simulate import as_arrays, control_row, step


def linearize(
    model: Model, state: State, control: Float[Array, " nu"] | None = None, *, dt: float, **options
) -> tuple[Float[Array, "2nv 2nv"], Float[Array, "2nv nu"]]:
    """A and B of a step in the tangent space: d(after) = A d(before) + B d(control), d = (dq, dqd) of 2 nv entries."""
    state = as_arrays(state)
    control = control_row(model, control, state)
    nominal = step(model, state, control, dt=dt, **options)
    rest = jnp.zeros_like(state.qd)

    def change(dq, dqd, control):
        """The search for impulses starts where it ends, so that it is done once."""
        moved = State(retract(model, state.q, dq), state.qd + dqd, nominal.impulse)
        after = step(model, moved, control, dt=dt, **options)
        return jnp.concatenate([difference(model, nominal.q, after.q), after.qd - nominal.qd])

    by_q, by_qd, by_control = (jax.jacfwd(change, argnums=k)(rest, rest, control) for k in range(3))
    return jnp.concatenate([by_q, by_qd], axis=1), by_control
