"""What planning returns: the trajectory, the feedback around it, and how the search went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.control.space import Space
from knuckle.model.model import Model, State
from knuckle.optim.result import Status
from knuckle.simulate import Policy, Trajectory


class History(NamedTuple):
    """One row per iteration; `cost` also has the first guess's, in front."""

    cost: np.ndarray
    gap: np.ndarray  # the largest gap between segments, with that of the first guess in front
    share: np.ndarray  # of the step that the line search took; zero where no step helped
    regularisation: np.ndarray
    decrement: np.ndarray  # estimated distance of the cost from its minimum, before the step
    gradient: np.ndarray  # the largest derivative of the cost by a control that no limit holds, before the step


@dataclass(frozen=True)
class Plan:
    """A trajectory with its feedback: u = control + gain (x - state), x - state as in `kn.linearize`."""

    model: Model
    status: Status
    message: str  # why the search ended, in words
    states: State  # at all knots: (steps + 1, ...)
    controls: np.ndarray  # (steps, nu)
    gains: np.ndarray  # (steps, nu, n)
    feedforward: np.ndarray  # (steps, nu): what the last iteration still changed
    cost: float
    iterations: int
    history: History
    gap: float  # the largest gap between segments; zero in single shooting
    saturated: np.ndarray  # (steps, nu): whether the control is at one of its limits
    notes: tuple[str, ...]  # what else there is to say, in words
    seconds: float
    dt: float
    start_time: float
    lower: np.ndarray  # (steps, nu)
    upper: np.ndarray

    @property
    def successful(self) -> bool:
        return self.status.successful

    @property
    def times(self) -> np.ndarray:
        """Of the knots [s]."""
        return self.start_time + self.dt * np.arange(len(self.controls) + 1)

    @property
    def trajectory(self) -> Trajectory:
        """States after each step, with the control that led there, as of `kn.rollout`."""
        return Trajectory(self.times[1:], self.states.q[1:], self.states.qd[1:], self.controls)

    def policy(self) -> Policy:
        """The feedback around the plan, for `kn.rollout`: a function of time and state.

        It is held from knot to knot; after the last knot that of the last step goes on.
        """
        space, last = Space(self.model), len(self.controls) - 1
        rows = (self.states.q[:-1], self.states.qd[:-1], self.controls, self.gains, self.lower, self.upper)

        def feedback(time, state: State) -> Float[Array, " nu"]:
            knot = jnp.floor((time - self.start_time) / self.dt + 1e-6).astype(int)
            q, qd, control, gain, lower, upper = (jnp.asarray(x)[jnp.clip(knot, 0, last)] for x in rows)
            change = space.between(State(q, qd), State(state.q, state.qd))
            return jnp.clip(control + gain[:, : len(change)] @ change, lower, upper)

        return feedback
