"""The forward pass: roll-outs of a changed plan, in one piece or in segments."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.control.costs import Cost, call
from knuckle.control.dynamics import Dynamics
from knuckle.model.model import State


class Guess(NamedTuple):
    """States at all knots, and the controls between."""

    states: State  # (steps + 1, ...)
    controls: Float[Array, "step nu"]


class Rolled(NamedTuple):
    """A roll-out with its cost and the gaps between its segments."""

    guess: Guess
    cost: Float[Array, ""]
    gap: Float[Array, "step n"]  # from the next state to where each step ends


class Problem(NamedTuple):
    """What is minimised: dynamics, costs, limits, and at which knots segments start."""

    dynamics: Dynamics
    running: Cost
    terminal: Cost
    starts: np.ndarray  # bool over knots; the first is one
    start_time: Float[Array, ""]
    lower: Float[Array, "step nu"]
    upper: Float[Array, "step nu"]

    @property
    def steps(self) -> int:
        return len(self.starts) - 1

    @property
    def segmented(self) -> bool:
        return bool(self.starts[1:].any())

    def times(self) -> Float[Array, " step"]:
        return self.start_time + self.dynamics.dt * jnp.arange(self.steps).astype(self.start_time.dtype)


def row(states: State, number) -> State:
    return jax.tree.map(lambda x: x[number], states)


def roll_out(problem: Problem, guess: Guess, change, feedforward=None, gain=None, share=None) -> Rolled:
    """The motion under changed controls u + share * feedforward + gain (x - x_guess), within limits.

    Segments start at the states of the guess, moved by `share * change` (changes of all knots); the first stays.
    Without feedforward the controls are those of the guess.
    """
    dynamics, space = problem.dynamics, problem.dynamics.space

    def knot(carry, x):
        state, total = carry
        time, old, control, low, high, given, moving, starts = x
        if problem.segmented:
            fresh = old if moving is None else space.move(old, share * moving)
            fresh = State(fresh.q, fresh.qd, state.impulse, fresh.memory)
            gap = jnp.where(starts, space.between(fresh, state), 0.0)
            state = jax.tree.map(lambda a, b: jnp.where(starts, a, b), fresh, state)
        else:
            gap = None
        if given is not None:
            k, K = given
            control = jnp.clip(control + share * k + K @ space.between(old, state), low, high)
        total = total + call(problem.running, time, state, control)
        return (dynamics.advance(state, control, time), total), (state, control, gap)

    before = jax.tree.map(lambda x: x[:-1], guess.states)
    given = None if feedforward is None else (feedforward, gain)
    moving = None if change is None else change[:-1]
    starts = jnp.asarray(problem.starts[:-1])
    limits = (problem.lower, problem.upper)
    xs = (problem.times(), before, guess.controls, *limits, given, moving, starts)
    first = row(guess.states, 0)
    zero = jnp.zeros((), first.q.dtype)
    (last, total), (states, controls, gaps) = jax.lax.scan(knot, (first, zero), xs)
    end = problem.start_time + problem.dynamics.dt * problem.steps
    total = total + call(problem.terminal, end, last)
    states = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), states, last)
    n = space.size(first)
    if gaps is None:
        gap = jnp.zeros((problem.steps, n), first.q.dtype)
    else:
        gap = jnp.concatenate([gaps[1:], jnp.zeros((1, n), first.q.dtype)])
    return Rolled(Guess(states, controls), total, gap)
