"""Solve the impulse problem to a residual: Newton's method on Alart and Curnier's map, made safe by proximal steps.

Undamped Newton from the last step's impulses takes one or two iterations where contacts persist. Where it does not
converge (redundant contacts, stacks, mass ratios), the problem is changed to one that it solves easily, A + rho D with
the centre of the last solution, and rho is lowered from solution to solution until the original problem is solved.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from knuckle.contact.problem import Problem, imbalance, imbalance_slope, residual, row_scale

Vec = Float[Array, " row"]

INNER_STEPS = 12  # Newton steps before the problem is made easier
FIRST_RHO, EASIER, HARDER, MOST_RHO = 0.1, 10.0, 0.3, 1e3


class Solution(NamedTuple):
    """Impulses, with the residual that was reached [m/s]; `converged` is true only below the tolerance."""

    impulse: Vec
    residual: Float[Array, ""]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]


class _Search(NamedTuple):
    r: Vec
    center: Vec
    rho: Float[Array, ""]
    best: Vec
    error: Float[Array, ""]
    inner: Int[Array, ""]
    total: Int[Array, ""]


def solve(problem: Problem, start: Vec, *, tolerance: float, most_iterations: int) -> Solution:
    """Impulses whose residual is below the tolerance, or the best found.

    The derivative is that of the solution (implicit function theorem), in forward and reverse mode.
    """
    found = jax.lax.stop_gradient(_search(jax.lax.stop_gradient(problem), start, tolerance, most_iterations))
    impulse = _at_solution(problem, found.best)
    return Solution(impulse, found.error, found.error <= tolerance, found.total)


@jax.custom_jvp
def _at_solution(problem: Problem, r: Vec) -> Vec:
    return r


@_at_solution.defjvp
def _derivative(primals, tangents):
    problem, r = primals
    scale = row_scale(problem)
    _, change = jax.jvp(lambda p: imbalance(p, r, scale), (problem,), (tangents[0],))
    return r, -jnp.linalg.solve(imbalance_slope(problem, r, scale), change)


def _search(problem: Problem, start: Vec, tolerance: float, most_iterations: int) -> _Search:
    scale = row_scale(problem)

    def unfinished(at: _Search):
        return (at.error > tolerance) & (at.total < most_iterations)

    def advance(at: _Search) -> _Search:
        near = proximal(problem, scale, at.rho, at.center)
        near_scale = scale * (1 + at.rho)
        step = jnp.linalg.solve(imbalance_slope(near, at.r, near_scale), imbalance(near, at.r, near_scale))
        r = at.r - step
        near_error, error = residual(near, r), residual(problem, r)
        better = error < at.error  # false for NaN
        solved = near_error <= 0.5 * tolerance
        failed = ~solved & ((at.inner + 1 >= INNER_STEPS) | ~(near_error < jnp.inf))
        easier = jnp.minimum(jnp.maximum(EASIER * at.rho, FIRST_RHO), MOST_RHO)
        center = jnp.where(solved, r, at.center)
        return _Search(
            r=jnp.where(failed, at.center, r),
            center=center,
            rho=jnp.where(solved, HARDER * at.rho, jnp.where(failed, easier, at.rho)),
            best=jnp.where(better, r, at.best),
            error=jnp.where(better, error, at.error),
            inner=jnp.where(solved | failed, 0, at.inner + 1),
            total=at.total + 1,
        )

    first = residual(problem, start)
    usable = first < jnp.inf
    start = jnp.where(usable, start, jnp.zeros_like(start))
    first = jnp.where(usable, first, residual(problem, start))
    count = jnp.zeros((), jnp.int32)
    begin = _Search(start, jnp.zeros_like(start), jnp.zeros_like(first), start, first, count, count)
    return jax.lax.while_loop(unfinished, advance, begin)


def proximal(problem: Problem, scale: Vec, rho, center: Vec) -> Problem:
    """The problem with A + rho D, whose solution is the original's if it is the center."""
    heavier = rho * scale
    return problem._replace(A=problem.A + jnp.diag(heavier), b=problem.b - heavier * center)
