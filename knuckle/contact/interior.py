"""The mixed linear complementarity problem of contact, by a primal-dual interior-point method.

Source: de Avila Belbute-Peres and others, End-to-End Differentiable Physics (2018), section 3, with friction pyramids.
Each iteration makes a step along the central path and a Newton step on the law itself, which ends the search exactly
once the path has told which rows push, stick and slip. Should the path not lead to a solution (the problem is not
monotone), the problem is made easier by a proximal term that is then taken away.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.interior_path import (
    Defect,
    Point,
    Scaled,
    advance,
    begin,
    defect,
    factor,
    flat,
    impulse,
    newton_step,
    products,
    scaled,
    slack,
)
from knuckle.contact.interior_problem import Problem, join, proximal, row_scale, split
from knuckle.contact.interior_pyramid import corners, imbalance, imbalance_slope, residual
from knuckle.contact.solver import Solution

Vec = Float[Array, " row"]

INNER_STEPS = 30  # on the path before the problem is made easier
SHORT_STEP, MOST_SHORT_STEPS = 0.1, 4
NEWTON_STEPS = 6  # before Newton's method starts from the path again
LEAST_PRODUCT = 1e-3  # z w where the path ends, over the rounding error of the problem's size squared
FIRST_RHO, EASIER, HARDER, MOST_RHO = 0.1, 10.0, 0.1, 1e3


def solve(
    problem: Problem,
    start: Vec,
    *,
    tolerance: float,
    most_iterations: int,
    directions: int = 4,
    smoothing: float | Float[Array, ""] = 0.0,
    smooth_value: bool = True,
    work: Vec | None = None,
) -> Solution:
    """Impulses whose residual is below the tolerance [m/s], or the best found, and their derivative.

    Args:
        directions: Corners of the friction pyramid: 2 (planar models: the first tangent only), 4, 6, 8...
        smoothing: Width s [m/s] of relaxed complementarity: (row's scale * impulse) * velocity = (s / 2)^2 in each
            pair, so that each contact goes over from apart to touching within about s. 0 is the hard law.
        smooth_value: Whether smoothing changes the impulses too, or only their derivative.
        work: Instead of smoothing, impulse * velocity of the pairs of each row [J]; contacts have that of their normal.
    """
    corners(directions)
    known = isinstance(smoothing, int | float) and work is None
    if isinstance(smoothing, int | float) and smoothing < 0:
        raise ValueError(f"interior: smoothing must not be negative, got {smoothing} m/s")
    if problem.b.shape[0] == 0:
        return Solution.of_no_rows(problem.b)
    fixed, start = jax.lax.stop_gradient((problem, start))
    if known and smoothing == 0:
        found = jax.lax.stop_gradient(_search(fixed, start, tolerance, most_iterations, directions))
        return _solution(_at_solution(directions, problem, found.best), found, tolerance)
    if work is None:
        work = (jnp.asarray(smoothing, problem.b.dtype) / 2) ** 2 / row_scale(problem)
    relaxed = jax.lax.stop_gradient(_relax(fixed, jax.lax.stop_gradient(work), tolerance, most_iterations, directions))
    if smooth_value:
        value = impulse(relaxed.point) / relaxed.scale
        return _solution(_at_relaxed(directions, problem, work, value, relaxed), relaxed, tolerance)
    found = jax.lax.stop_gradient(_search(fixed, start, tolerance, most_iterations, directions))
    solution = _solution(_at_relaxed(directions, problem, work, found.best, relaxed), found, tolerance)
    return solution._replace(
        converged=solution.converged & (relaxed.error <= tolerance), iterations=found.total + relaxed.total
    )


def _solution(r: Vec, found: _Search | _Relaxed, tolerance: float) -> Solution:
    return Solution(r, found.error, found.error <= tolerance, found.total)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _at_solution(directions: int, problem: Problem, r: Vec) -> Vec:
    return r


@_at_solution.defjvp
def _derivative(directions: int, primals, tangents):
    problem, r = primals
    scale = row_scale(problem)
    _, change = jax.jvp(lambda p: imbalance(p, r, scale, directions), (problem,), (tangents[0],))
    return r, -jnp.linalg.solve(imbalance_slope(problem, r, scale, directions), change)


class _Relaxed(NamedTuple):
    point: Point
    scale: Vec
    error: Float[Array, ""]
    total: Int[Array, ""]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _at_relaxed(directions: int, problem: Problem, work: Vec, value: Vec, relaxed: _Relaxed) -> Vec:
    return value


@_at_relaxed.defjvp
def _relaxed_derivative(directions: int, primals, tangents):
    """How the point of the path moves with the problem: the path's Newton step for the change of its equations."""
    problem, work, value, relaxed = primals
    at, r = relaxed.point, impulse(relaxed.point)

    def equations(problem: Problem, work: Vec):
        law = scaled(problem, relaxed.scale, directions)
        u = split(problem, spatial.apply(law.A, r) + law.b)
        return products(law, work * relaxed.scale), slack(law, at.z, u, law.bound), u.equal

    _, (product, slacks, equal) = jax.jvp(equations, (problem, work), tangents[:2])
    law = scaled(problem, relaxed.scale, directions)
    wrong = Defect(product, jax.tree.map(jnp.negative, slacks), equal, 0 * at.drag, 0 * at.dry[:, None])
    return value, impulse(newton_step(law, at, factor(law, at), wrong)) / relaxed.scale


class _Relaxing(NamedTuple):
    point: Point
    center: Vec
    rho: Float[Array, ""]
    best: Point
    error: Float[Array, ""]
    inner: Int[Array, ""]
    short: Int[Array, ""]  # steps on the path that were short, one after the other
    total: Int[Array, ""]
    settled: Bool[Array, ""]  # within the tolerance before the last step, which leaves rounding only


def _relax(problem: Problem, work: Vec, tolerance: float, most_iterations: int, directions: int) -> _Relaxed:
    """The point of the central path with impulse * velocity = work; proximal steps lead there if the path does not."""
    d = row_scale(problem)
    size = jnp.maximum(jnp.max(jnp.abs(problem.b)), jnp.sqrt(jnp.max(work * d)))
    scale = _scale_of_loads(problem, d, size)
    law = scaled(problem, scale, directions)
    goal = products(law, work * scale)

    def error_of(law: Scaled, at: Point):
        return jnp.max(jnp.abs(flat(defect(law, at, jax.tree.map(_off_the_path, goal, at.z, at.w)))))

    def unfinished(now: _Relaxing):
        new = (now.error <= tolerance) & ~now.settled
        return ((now.error > tolerance) | new) & (now.total < most_iterations)

    def onwards(now: _Relaxing) -> _Relaxing:
        near = scaled(proximal(problem, d, now.rho, now.center), scale, directions)
        progress = advance(near, now.point, goal)
        near_error, error = (error_of(x, progress.point) for x in (near, law))
        better = error < now.error  # false for NaN
        short = jnp.where(progress.length < SHORT_STEP, now.short + 1, 0)
        solved = near_error <= 0.5 * tolerance
        lost = (short >= MOST_SHORT_STEPS) | ~(near_error < jnp.inf) | (now.inner + 1 >= INNER_STEPS)
        failed = ~solved & lost
        easier = jnp.clip(EASIER * now.rho, FIRST_RHO, MOST_RHO)
        return _Relaxing(
            point=_either(failed, first, progress.point),
            center=jnp.where(solved, impulse(progress.point) / scale, now.center),
            rho=jnp.where(solved, HARDER * now.rho, jnp.where(failed, easier, now.rho)),
            best=_either(better, progress.point, now.best),
            error=jnp.where(better, error, now.error),
            inner=jnp.where(solved | failed, 0, now.inner + 1),
            short=jnp.where(solved | failed, 0, short),
            total=now.total + 1,
            settled=now.error <= tolerance,
        )

    first, zero, count = begin(law, size), jnp.zeros_like(problem.b), jnp.zeros((), jnp.int32)
    now = _Relaxing(first, zero, jnp.zeros_like(size), first, error_of(law, first), count, count, count, count > 0)
    last = jax.lax.while_loop(unfinished, onwards, now)
    return _Relaxed(last.best, scale, last.error, last.total)


def _either(this, one, other):
    return jax.tree.map(lambda x, y: jnp.where(this, x, y), one, other)


def _off_the_path(goal, z, w):
    return (goal - z * w) / (z + w)


class _Search(NamedTuple):
    point: Point  # on the path
    r: Vec  # of Newton's method on the law
    center: Vec
    rho: Float[Array, ""]
    best: Vec
    error: Float[Array, ""]
    inner: Int[Array, ""]
    short: Int[Array, ""]  # steps on the path that were short, one after the other
    total: Int[Array, ""]


def _search(problem: Problem, start: Vec, tolerance: float, most_iterations: int, directions: int) -> _Search:
    d = row_scale(problem)
    size = jnp.maximum(jnp.max(jnp.abs(problem.b)), tolerance)
    scale = _scale_of_loads(problem, d, size)

    def law_of(near: Problem) -> Scaled:
        return scaled(near, scale, directions)

    first = begin(law_of(problem), size)
    least = products(law_of(problem), jnp.full_like(d, LEAST_PRODUCT * jnp.finfo(problem.b.dtype).eps * size**2))

    def unfinished(at: _Search):
        return (at.error > tolerance) & (at.total < most_iterations)

    def onwards(at: _Search) -> _Search:
        near = proximal(problem, d, at.rho, at.center)
        progress = advance(law_of(near), at.point, least)
        on_path = impulse(progress.point) / scale
        near_d = d * (1 + at.rho)
        slope = imbalance_slope(near, at.r, near_d, directions)
        by_newton = at.r - jnp.linalg.solve(slope, imbalance(near, at.r, near_d, directions))
        path_error, newton_error = residual(near, on_path, directions), residual(near, by_newton, directions)
        r = jnp.where(newton_error < path_error, by_newton, on_path)
        near_error = jnp.where(newton_error < path_error, newton_error, path_error)
        error = residual(problem, r, directions)
        better = error < at.error  # false for NaN
        short = jnp.where(progress.length < SHORT_STEP, at.short + 1, 0)
        solved = near_error <= 0.5 * tolerance
        lost = (short >= MOST_SHORT_STEPS) | ~(path_error < jnp.inf) | (at.inner + 1 >= INNER_STEPS)
        failed, anew = ~solved & lost, solved | lost
        easier = jnp.clip(EASIER * at.rho, FIRST_RHO, MOST_RHO)
        keep_newton = (newton_error < jnp.inf) & ((at.inner + 1) % NEWTON_STEPS != 0)
        follow = jnp.where(keep_newton, by_newton, on_path)
        center = jnp.where(solved, r, at.center)
        return _Search(
            point=_either(anew, first, progress.point),
            r=jnp.where(anew, center, follow),
            center=center,
            rho=jnp.where(solved, HARDER * at.rho, jnp.where(failed, easier, at.rho)),
            best=jnp.where(better, r, at.best),
            error=jnp.where(better, error, at.error),
            inner=jnp.where(anew, 0, at.inner + 1),
            short=jnp.where(anew, 0, short),
            total=at.total + 1,
        )

    error = residual(problem, start, directions)
    usable = error < jnp.inf
    start = jnp.where(usable, start, jnp.zeros_like(start))
    error = jnp.where(usable, error, residual(problem, start, directions))
    count = jnp.zeros((), jnp.int32)
    now = _Search(first, start, jnp.zeros_like(start), jnp.zeros_like(error), start, error, count, count, count)
    return jax.lax.while_loop(unfinished, onwards, now)


def _scale_of_loads(problem: Problem, d: Vec, size: Float[Array, ""]) -> Vec:
    """The rows' scale, less where impulses that stop everything are large: light bodies under heavy ones."""
    rows = problem.A / d[None, :] + 1e-3 * jnp.eye(d.shape[0], dtype=d.dtype)
    stop = split(problem, jnp.abs(jnp.linalg.solve(rows, problem.b)))
    largest = jnp.max(stop.contact, axis=1, keepdims=True)
    load = join(stop._replace(contact=jnp.broadcast_to(largest, stop.contact.shape)))
    return d * size / jnp.maximum(load, size)
