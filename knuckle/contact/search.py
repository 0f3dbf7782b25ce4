"""Solve rows under their laws to a residual: Newton's method, made safe by proximal steps.

Undamped Newton from the last step's impulses takes one or two iterations where contacts persist. Where it does not
converge (redundant contacts, stacks, mass ratios), the problem is changed to one that it solves easily, A + rho D with
the centre of the last solution, and rho is lowered from solution to solution until the original problem is solved.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.laws import Scale
from knuckle.contact.system import (
    System,
    Vec,
    block_scales,
    blocks,
    imbalance,
    joined,
    over_rows,
    residual,
    slope,
    velocity,
)

INNER_STEPS = 12  # Newton steps before the problem is made easier
FIRST_RHO, EASIER, HARDER, MOST_RHO = 0.1, 10.0, 0.3, 1e3
LEAST_SHARE = 1e-6  # of a Newton step; smaller ones lead nowhere
ROUNDING, MOST_ROUNDING = 1e-14, 1e-6  # of the velocity that an impulse makes alone; [m/s]


class Solution(NamedTuple):
    """Impulses, with the residual that was reached [m/s]; `converged` is true only below the tolerance."""

    impulse: Vec
    residual: Float[Array, ""]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]

    def joined(self, other: Solution) -> Solution:
        """These impulses, of which the worse residual and both searches count."""
        worse = jnp.maximum(self.residual, other.residual)
        both = self.converged & other.converged, self.iterations + other.iterations
        return Solution(self.impulse, worse, *both)


class _Newton(NamedTuple):
    r: Vec
    u: Vec
    error: Float[Array, ""]
    count: Int[Array, ""]


class _Homotopy(NamedTuple):
    r: Vec
    center: Vec
    rho: Float[Array, ""]
    best: Vec
    error: Float[Array, ""]
    inner: Int[Array, ""]
    total: Int[Array, ""]


def search(system: System, start: Vec, *, tolerance: float, most_iterations: int) -> Solution:
    """Impulses whose residual is below the tolerance, or the best found. Not differentiable: see `implicit`."""
    system, start = jax.lax.stop_gradient((system, start))
    if not start.size:
        zero = jnp.zeros((), system.b.dtype)
        return Solution(start, zero, zero == 0, jnp.zeros((), jnp.int32))
    scales = block_scales(system.A, system.laws)
    weights = over_rows(system.laws, scales)
    quick = _newton(system, scales, start, tolerance, min(INNER_STEPS, most_iterations))
    found = _homotopy(system, scales, quick, tolerance, most_iterations)
    converged = found.error <= reachable(tolerance, weights, found.best)
    best = jax.lax.cond(converged, lambda r: r, lambda r: _without_gain(system, r), found.best)
    return Solution(best, found.error, converged, found.total)


def _without_gain(system: System, r: Vec) -> Vec:
    """Admissible impulses of a search that failed, shortened until r.(A r + b) <= 0, as it is at solutions.

    That bounds the energy only if contacts do not pull: b counts from the velocity that they aim at.
    """
    r = joined([law.admissible(part) for law, part in zip(system.laws, blocks(system.laws, r), strict=True)])
    linear, square = jnp.sum(r * system.b), jnp.sum(r * spatial.apply(system.A, r))
    return jnp.where(square > 0, jnp.clip(-linear / jnp.where(square > 0, square, 1.0), 0.0, 1.0), 0.0) * r


def reachable(tolerance: float, weights: Vec, r: Vec) -> Float[Array, ""]:
    """The tolerance, or what rounding leaves of the velocities that cancel where constraints contradict each other.

    Impulses there are the contradiction over R, 1e8 times those of other constraints.
    """
    return jnp.maximum(tolerance, jnp.minimum(ROUNDING * jnp.max(weights * jnp.abs(r)), MOST_ROUNDING))


def _newton(system: System, scales: list[Scale], start: Vec, tolerance: float, most: int) -> _Newton:
    """Plain Newton steps from a start."""

    weights = over_rows(system.laws, scales)

    def unfinished(at: _Newton):
        return (at.error > reachable(tolerance, weights, at.r)) & (at.count < most)

    def advance(at: _Newton) -> _Newton:
        S = slope(system.A, system.laws, at.r, at.u, scales)
        r = at.r - jnp.linalg.solve(S, imbalance(system.laws, at.r, at.u, scales))
        return _at(system, scales, r, at.count + 1)

    first = _at(system, scales, start, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, advance, first)


def _at(system: System, scales: list[Scale], r: Vec, count) -> _Newton:
    u = velocity(system, r)
    error = residual(system.laws, r, u, scales)
    return _Newton(r, u, jnp.where(error < jnp.inf, error, jnp.inf), count)


def _homotopy(system: System, scales: list[Scale], quick: _Newton, tolerance: float, most_iterations: int) -> _Homotopy:
    """Solutions of easier problems that lead to the one that was asked."""
    laws, weight = system.laws, over_rows(system.laws, scales)

    def unfinished(at: _Homotopy):
        return (at.error > reachable(tolerance, weight, at.best)) & (at.total < most_iterations)

    def advance(at: _Homotopy) -> _Homotopy:
        heavier = at.rho * weight
        near = System(system.A + jnp.diag(heavier), system.b - heavier * at.center, laws)
        near_scales = [(1 + at.rho) * scale for scale in scales]
        u = velocity(near, at.r)
        S = slope(near.A, laws, at.r, u, near_scales)
        r = at.r - jnp.linalg.solve(S, imbalance(laws, at.r, u, near_scales))
        near_error = residual(laws, r, velocity(near, r), near_scales)
        error = residual(laws, r, velocity(system, r), scales)
        better = error < at.error  # false for NaN
        solved = near_error <= 0.5 * tolerance
        failed = ~solved & ((at.inner + 1 >= INNER_STEPS) | ~(near_error < jnp.inf))
        easier = jnp.minimum(jnp.maximum(EASIER * at.rho, FIRST_RHO), MOST_RHO)
        return _Homotopy(
            r=jnp.where(failed, at.center, r),
            center=jnp.where(solved, r, at.center),
            rho=jnp.where(solved, HARDER * at.rho, jnp.where(failed, easier, at.rho)),
            best=jnp.where(better, r, at.best),
            error=jnp.where(better, error, at.error),
            inner=jnp.where(solved | failed, 0, at.inner + 1),
            total=at.total + 1,
        )

    zero = jnp.zeros_like(quick.r)
    resting = residual(laws, zero, system.b, scales)
    usable = quick.error <= resting
    begin = _Homotopy(
        r=zero,
        center=zero,
        rho=jnp.full_like(resting, FIRST_RHO),
        best=jnp.where(usable, quick.r, zero),
        error=jnp.where(usable, quick.error, resting),
        inner=jnp.zeros((), jnp.int32),
        total=quick.count,
    )
    return jax.lax.while_loop(unfinished, advance, begin)


class _Descent(NamedTuple):
    r: Vec
    size: Float[Array, ""]  # length of the imbalance
    share: Float[Array, ""]  # of a Newton step that is tried next
    error: Float[Array, ""]
    count: Int[Array, ""]


def descend(system: System, start: Vec, *, tolerance: float, most_iterations: int) -> tuple[Vec, Int[Array, ""]]:
    """Newton steps, halved until they lower the imbalance, and their number: for laws whose slopes fade far away."""
    system, start = jax.lax.stop_gradient((system, start))
    if not start.size:
        return start, jnp.zeros((), jnp.int32)
    scales, laws = block_scales(system.A, system.laws), system.laws

    def at(r: Vec, share, count) -> _Descent:
        u = velocity(system, r)
        off = imbalance(laws, r, u, scales)
        return _Descent(r, jnp.sqrt(jnp.sum(off * off)), share, residual(laws, r, u, scales), count)

    def unfinished(now: _Descent):
        return (now.error > tolerance) & (now.count < most_iterations) & (now.share > LEAST_SHARE)

    def advance(now: _Descent) -> _Descent:
        u = velocity(system, now.r)
        S = slope(system.A, laws, now.r, u, scales)
        newton = jnp.linalg.solve(S, imbalance(laws, now.r, u, scales))
        tried = at(now.r - now.share * newton, jnp.minimum(4 * now.share, 1.0), now.count + 1)
        kept = now._replace(share=0.5 * now.share, count=now.count + 1)
        lower = tried.size < (1 - 0.1 * now.share) * now.size  # false for NaN
        return jax.tree.map(lambda a, b: jnp.where(lower, a, b), tried, kept)

    first = at(start, jnp.ones((), start.dtype), jnp.zeros((), jnp.int32))
    last = jax.lax.while_loop(unfinished, advance, first)
    return last.r, last.count
