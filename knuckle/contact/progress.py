"""How a search goes on after a Newton step: the best so far, and by how much the problem is made easier."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

FROM_START, FROM_REST, ON_PATH = 0, 1, 2  # plain steps; damped, then plain ones; on easier problems
PATIENCE = 2, 6  # steps in a row that do not halve the least residual, before a search goes over to the next way
DAMPING, LESS_DAMPING, LEAST_DAMPING = 0.03, 0.03, 1e-6  # rho of the first steps from rest
INNER_STEPS, LAST = 12, -1  # Newton steps before the problem is made easier; count of the one that ends a search
ROUGH = 0.01  # of the tolerance: a residual from which on a last step is worth its cost
FIRST_RHO, EASIER, HARDER, MOST_RHO = 0.1, 10.0, 0.3, 1e3
ROUNDING = 1e-14  # of the velocity of a row that its impulse makes alone
MAP_ROUNDING = 1e-15  # of the mean of that velocity over the rows of a contact, which the laws' maps count with
MOST_ROUNDING = 1e-6  # [m/s]


class Progress(NamedTuple):
    """rho is zero while plain Newton steps are taken."""

    way: Int[Array, ""]
    rho: Float[Array, ""]
    error: Float[Array, ""]  # of the best impulses [m/s]
    rounding: Float[Array, ""]  # of what they do alone [m/s]
    inner: Int[Array, ""]
    total: Int[Array, ""]

    def is_unfinished(self, tolerance: float, most_iterations: int) -> Bool[Array, ""]:
        unsolved = self.error > reachable(tolerance, self.rounding)
        return (unsolved | (self.inner == LAST)) & (self.total < most_iterations)


class Choice(NamedTuple):
    """What to keep of a step."""

    better: Bool[Array, ""]  # it is the best so far
    solved: Bool[Array, ""]  # it solves the easier problem: the centre of the next
    failed: Bool[Array, ""]  # go back to the centre


def first_progress(error: Float[Array, ""], rounding: Float[Array, ""]) -> Progress:
    count = jnp.zeros((), jnp.int32)
    return Progress(count + FROM_START, jnp.zeros_like(error), error, rounding, count, count)


def choose(
    at: Progress,
    error: Float[Array, ""],
    near_error: Float[Array, ""],
    rounding: Float[Array, ""],
    tolerance: float,
) -> tuple[Choice, Progress]:
    """After a step with this residual, in the problem itself and in the easier one.

    A search that ends on an easier problem, or just below the tolerance, takes more plain steps, as long as they halve
    the residual: whichever way it went, and in whichever space, it ends at the same impulses.
    """
    plain, on_path = at.rho == 0, at.way == ON_PATH
    reached = ~plain & (error <= reachable(tolerance, rounding))
    rough = (error > ROUGH * tolerance) & (error <= tolerance)
    reached = reached | (plain & rough & ((at.inner != LAST) | (error < 0.5 * at.error)))
    better = error < at.error  # false for NaN
    solved = on_path & ~plain & (near_error <= 0.5 * tolerance)
    tried = jnp.where(~on_path & (error < 0.5 * at.error), 0, at.inner + 1)
    most = jnp.where(on_path, INNER_STEPS, jnp.where(at.way == FROM_START, *PATIENCE))
    failed = ~solved & ~reached & ((tried >= most) | ~(near_error < jnp.inf))
    after = Progress(
        way=jnp.where(failed, jnp.minimum(at.way + 1, ON_PATH), at.way),
        rho=jnp.where(reached, 0.0, _next_rho(at, solved, failed)),
        error=jnp.where(better, error, at.error),
        rounding=jnp.where(better, rounding, at.rounding),
        inner=jnp.where(reached, LAST, jnp.where(solved | failed, 0, tried)),
        total=at.total + 1,
    )
    return Choice(better, solved, failed), after


def _next_rho(at: Progress, solved: Bool[Array, ""], failed: Bool[Array, ""]) -> Float[Array, ""]:
    """From rest steps are damped less and less; easier problems are made harder if solved, and easier if not."""
    damping = jnp.where(LESS_DAMPING * at.rho > LEAST_DAMPING, LESS_DAMPING * at.rho, 0.0)
    easier = jnp.minimum(jnp.maximum(EASIER * at.rho, FIRST_RHO), MOST_RHO)
    on_path = jnp.where(solved, HARDER * at.rho, at.rho)
    after_failure = jnp.where(at.way == FROM_START, DAMPING, jnp.where(at.way == FROM_REST, FIRST_RHO, easier))
    return jnp.where(failed, after_failure, jnp.where(at.way == ON_PATH, on_path, damping))


def rounding_of(alone: Float[Array, "*rows"], mean: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """What rounding leaves of the velocities that impulses make alone: of their own row, in the mean of their block."""
    return jnp.maximum(ROUNDING * jnp.abs(alone), MAP_ROUNDING * jnp.abs(mean))


def reachable(tolerance: float, rounding: Float[Array, ""]) -> Float[Array, ""]:
    """The tolerance, or what rounding leaves of the velocities that cancel where constraints contradict each other.

    Impulses there are the contradiction over R, 1e8 times those of other constraints.
    """
    return jnp.maximum(tolerance, jnp.minimum(rounding, MOST_ROUNDING))
