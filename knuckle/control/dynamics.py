"""The motion from knot to knot of a plan, and its derivatives in the tangent space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.control.space import Space
from knuckle.model.model import Model, State
from knuckle.simulate import step


class Dynamics(NamedTuple):
    """Steps of a model with one control held over `substeps` of them."""

    model: Model
    dt: float  # from knot to knot [s]
    substeps: int
    options: Mapping[str, Any]  # of `step`
    saturation: Any  # control -> control, given the state; see `knuckle.saturation`

    @property
    def space(self) -> Space:
        return Space(self.model)

    def advance(self, state: State, control: Float[Array, " nu"], time) -> State:
        """The state at the next knot."""
        if self.substeps == 1:
            return self._step(state, control, time)
        numbers = jnp.arange(self.substeps).astype(state.q.dtype)
        h = self.dt / self.substeps
        return jax.lax.scan(lambda s, i: (self._step(s, control, time + i * h), None), state, numbers)[0]

    def _step(self, state: State, control, time) -> State:
        if self.saturation is not None:
            control = self.saturation(state, control)
        after = step(self.model, state, control, dt=self.dt / self.substeps, time=time, **self.options)
        return State(after.q, after.qd, after.impulse, after.memory)

    def derivatives(self, state: State, control, time) -> tuple[Float[Array, "n n"], Float[Array, "n nu"]]:
        """A and B: the change at the next knot is A times that of the state plus B times that of the control."""
        if self.substeps == 1:
            return self._step_derivatives(state, control, time)[1:]
        n, h = self.space.size(state), self.dt / self.substeps

        def following(carry, i):
            state, A, B = carry
            after, a, b = self._step_derivatives(state, control, time + i * h)
            return (after, a @ A, a @ B + b), None

        numbers = jnp.arange(self.substeps).astype(state.q.dtype)
        eye, none = jnp.eye(n, dtype=state.q.dtype), jnp.zeros((n, len(control)), state.q.dtype)
        return jax.lax.scan(following, (state, eye, none), numbers)[0][1:]

    def _step_derivatives(self, state: State, control, time):
        from knuckle.native import lanes  # loads LLVM

        nv, n = self.model.nv, self.space.size(state)

        def change(dq, dqd, kept, control):
            moved = self.space.move(state, jnp.concatenate([dq, dqd, kept]))
            reached = self._step(moved, control, time)
            return self.space.between(jax.lax.stop_gradient(reached), reached), reached

        still = [jnp.zeros(size, state.q.dtype) for size in (nv, nv, n - 2 * nv)]
        _, push, reached = jax.linearize(change, *still, control, has_aux=True)
        zero = (*still, jnp.zeros_like(control))

        def column(number: int):
            """By one argument alone, so that zeros of the others vanish in native code."""
            size = zero[number].size
            if size == 0:
                return jnp.zeros((n, 0), state.q.dtype)
            directions = jnp.eye(size, dtype=state.q.dtype)
            return lanes(lambda d: push(*zero[:number], d, *zero[number + 1 :]))(directions).T

        return reached, jnp.concatenate([column(0), column(1), column(2)], axis=1), column(3)

    def second_derivatives(self, state: State, control, time, slope: Float[Array, " n"]) -> Float[Array, "m m"]:
        """The Hessian of slope . (change at the next knot) by the changes of state and control together."""
        from knuckle.native import lanes

        n = self.space.size(state)
        reached = self.advance(state, control, time)

        def along(z):
            after = self.advance(self.space.move(state, z[:n]), control + z[n:], time)
            return slope @ self.space.between(reached, after)

        still = jnp.zeros(n + len(control), state.q.dtype)
        return lanes(lambda d: jax.jvp(jax.grad(along), (still,), (d,))[1])(jnp.eye(still.size, dtype=still.dtype))
