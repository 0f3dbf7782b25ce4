"""One iteration of iLQR or DDP as one program: derivatives, backward pass, roll-outs, line search, regularisation."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from knuckle.control.expansion import expand
from knuckle.control.forward import Guess, Problem, Rolled, roll_out, row
from knuckle.control.riccati import Feedback, LinearQuadratic, backward_pass, linear_sweep
from knuckle.control.space import Space
from knuckle.model.model import State

ENOUGH = 1e-3  # share of the expected decrease that a step must bring
HALVINGS = 10  # of the step, before the regularisation grows
WEAKEST, STRONGEST, FACTOR = 1e-6, 1e10, 10.0  # regularisation, in the curvature of the costs by the controls
ROUNDING = 1e-14  # of the cost: smaller differences are noise


class Progress(NamedTuple):
    """What one iteration hands to the next, and what it tells."""

    rolled: Rolled
    regularisation: Float[Array, ""]
    penalty: Float[Array, ""]  # of gaps in the merit function
    feedback: Feedback
    share: Float[Array, ""]  # of the step that was taken; zero if none was
    trials: Int[Array, ""]  # roll-outs of the line searches
    finite: Bool[Array, ""]  # whether derivatives were


class Choices(NamedTuple):
    """What is compiled in."""

    bounded: bool
    second_order: bool  # DDP
    over_knots: bool  # derivatives of several knots at once, one per SIMD lane: for steps without a search


def linear_quadratic(problem: Problem, rolled: Rolled, choices: Choices) -> LinearQuadratic:
    """The problem seen from a roll-out."""
    from knuckle.native import lanes  # loads LLVM

    dynamics, guess = problem.dynamics, rolled.guess

    def knot(state: State, following: State, control, gap, time):
        map_ = jnp.concatenate(dynamics.derivatives(state, control, time), axis=1)
        if problem.segmented and dynamics.model.nq != dynamics.model.nv:
            map_ = _seen_from(dynamics.space, following, gap) @ map_
        return map_, *expand(problem.running, dynamics.space, time, state, control, choices.second_order)

    before, after = (jax.tree.map(lambda x, part=part: x[part], guess.states) for part in (slice(-1), slice(1, None)))
    rows = (before, after, guess.controls, rolled.gap, problem.times())
    found = lanes(knot)(*rows) if choices.over_knots else jax.lax.map(lambda r: knot(*r), rows)
    end = problem.start_time + dynamics.dt * problem.steps
    final = expand(problem.terminal, dynamics.space, end, row(guess.states, -1), None, choices.second_order)
    low, high = problem.lower - guess.controls, problem.upper - guess.controls
    map_, gradient, hessian = found
    return LinearQuadratic(map_, gradient, hessian, final, rolled.gap, low, high)


def _seen_from(space: Space, following: State, gap) -> Float[Array, "n n"]:
    """Changes in the tangent space at the next state, from those at where the step ends, which is a gap away."""
    reached = space.move(following, gap)
    return jax.jacfwd(lambda d: space.between(following, space.move(reached, d)))(jnp.zeros_like(gap))


def iterate(problem: Problem, before: Progress, choices: Choices) -> Progress:
    """Search one step that lowers the merit: the cost, plus a penalty on gaps between segments."""
    rolled = before.rolled
    n = rolled.gap.shape[1]
    view = linear_quadratic(problem, rolled, choices)
    scale = _control_scale(view.hessian[:, n:, n:])

    def curved(number, slope):
        """What second derivatives of the dynamics add at a knot."""
        state, control = row(rolled.guess.states, number), rolled.guess.controls[number]
        return problem.dynamics.second_derivatives(state, control, problem.times()[number], slope)

    second = curved if choices.second_order else None

    def attempt(carry: Progress) -> Progress:
        """A backward pass and a line search; without success, more regularisation."""
        feedback = backward_pass(view, carry.regularisation, scale, choices.bounded, second)
        found, share, trials, penalty = _line_search(problem, view, rolled, feedback, carry.penalty)
        regularisation = _next_regularisation(carry.regularisation, share, feedback.decrement / jnp.abs(rolled.cost))
        return Progress(found, regularisation, penalty, feedback, share, carry.trials + trials, carry.finite)

    def unsuccessful(carry: Progress):
        return (carry.share == 0) & (carry.regularisation <= STRONGEST)

    none = jnp.zeros((), rolled.cost.dtype)
    first = before._replace(share=none, trials=jnp.zeros((), int), finite=jnp.ones((), bool))
    after = jax.lax.while_loop(unsuccessful, attempt, first)
    derivatives = (view.map, view.gradient, view.hessian, view.final)
    finite = jax.lax.cond(after.share > 0, lambda _: jnp.ones((), bool), _all_finite, derivatives)
    return after._replace(finite=finite)


def _next_regularisation(weight, share, decrement):
    """Less after a long step, and no more than the decrement over the cost: convergence stays quadratic."""
    less = jnp.minimum(weight / FACTOR, jnp.where(decrement >= 0, decrement, jnp.inf))
    less = jnp.where(less > WEAKEST, less, 0.0)
    more = jnp.maximum(weight * FACTOR, WEAKEST)
    return jnp.where(share >= 0.5, less, jnp.where(share > 0, weight, more))


def _control_scale(uu: Float[Array, "step nu nu"]) -> Float[Array, " nu"]:
    """The mean curvature of the running cost by each control, and of none far below the others'."""
    mean = jnp.mean(jnp.abs(jnp.diagonal(uu, axis1=1, axis2=2)), axis=0)
    return jnp.maximum(mean, jnp.maximum(1e-6 * jnp.max(mean), 1e-12))


def _all_finite(tree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _line_search(problem: Problem, view: LinearQuadratic, rolled: Rolled, feedback: Feedback, penalty):
    """The longest of halved steps with enough of the expected decrease: its roll-out, share, trials and penalty.

    Between segments the merit is cost + penalty |gaps|_1, with a penalty that makes the step one of descent (Nocedal
    and Wright, Numerical Optimization, eq. 18.36).
    """
    noise = ROUNDING * (1 + jnp.abs(rolled.cost))
    if problem.segmented:
        change, slope, curvature = linear_sweep(view, feedback)
        size = jnp.sum(jnp.abs(rolled.gap))
        needed = jnp.where(size > 0, (slope + jnp.maximum(curvature, 0.0)) / jnp.where(size > 0, 0.5 * size, 1.0), 0.0)
        penalty = jnp.maximum(penalty, needed)

        def expected(share):
            return share * (slope - penalty * size)

        def merit(found: Rolled):
            return found.cost + penalty * jnp.sum(jnp.abs(found.gap))
    else:
        change = None

        def expected(share):
            return share * feedback.slope + share * share * feedback.curvature

        def merit(found: Rolled):
            return found.cost

    start = merit(rolled)

    def trial(carry):
        _, share, count, _ = carry
        share = jnp.where(count == 0, 1.0, 0.5 * share)
        found = roll_out(problem, rolled.guess, change, feedback.feedforward, feedback.gain, share)
        value = merit(found)
        good = jnp.isfinite(value) & (value - start <= ENOUGH * jnp.minimum(expected(share), 0.0) + noise)
        return found, share, count + 1, good & _all_finite(found)

    def searching(carry):
        return ~carry[3] & (carry[2] <= HALVINGS) & feedback.defined

    first = (rolled, jnp.zeros((), start.dtype), jnp.zeros((), int), jnp.zeros((), bool))
    found, share, count, good = jax.lax.while_loop(searching, trial, first)
    kept = jax.tree.map(lambda new, old: jnp.where(good, new, old), found, rolled)
    return kept, jnp.where(good, share, 0.0), count, penalty


def first_progress(problem: Problem, guess: Guess, penalty) -> Progress:
    """The roll-out of a guess."""
    rolled = roll_out(problem, guess, None)
    zero = jnp.zeros((), rolled.cost.dtype)
    n, nu = rolled.gap.shape[1], guess.controls.shape[1]
    empty = jnp.zeros((problem.steps, nu), zero.dtype)
    gains = jnp.zeros((problem.steps, nu, n), zero.dtype)
    feedback = Feedback(empty, gains, zero, zero, zero, empty, jnp.zeros((), bool))
    return Progress(rolled, zero, penalty, feedback, zero, jnp.zeros((), int), jnp.ones((), bool))
