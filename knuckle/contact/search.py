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

from knuckle.contact.coupling import Rows, joined
from knuckle.contact.laws import Scale
from knuckle.contact.system import (
    System,
    Vec,
    block_scales,
    imbalance,
    largest,
    newton_step,
    over_rows,
    plus,
    residual,
    times,
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


class _State(NamedTuple):
    """Impulses with the velocities that they lead to; rho is zero while plain Newton steps are taken."""

    r: Rows
    u: Rows
    center: Rows
    center_u: Rows
    rho: Float[Array, ""]
    best: Rows
    error: Float[Array, ""]  # of the best
    inner: Int[Array, ""]
    total: Int[Array, ""]


def search(system: System, start: Vec, *, tolerance: float, most_iterations: int) -> Solution:
    """Impulses whose residual is below the tolerance, or the best found. Not differentiable: see `implicit`."""
    system, start = jax.lax.stop_gradient((system, start))
    if not start.size:
        zero = jnp.zeros((), start.dtype)
        return Solution(start, zero, zero == 0, jnp.zeros((), jnp.int32))
    scales = block_scales(system)
    weights = over_rows(system.laws, scales)

    def unfinished(at: _State):
        return (at.error > reachable(tolerance, weights, at.best)) & (at.total < most_iterations)

    def advance(at: _State) -> _State:
        return _advance(system, scales, weights, at, tolerance)

    found = jax.lax.while_loop(unfinished, advance, _first(system, scales, system.split(start)))
    converged = found.error <= reachable(tolerance, weights, found.best)
    best = jax.lax.cond(converged, lambda r: r, lambda r: _without_gain(system, r), found.best)
    return Solution(joined(best), found.error, converged, found.total)


def _first(system: System, scales: list[Scale], start: Rows) -> _State:
    """Newton steps begin at the start; if they fail, easier problems begin at rest."""
    zero = jax.tree.map(jnp.zeros_like, start)
    u = velocity(system, start)
    error, resting = (residual(system.laws, r, at, scales) for r, at in ((start, u), (zero, system.b)))
    usable = error <= resting  # false for NaN
    best, count = _where(usable, start, zero), jnp.zeros((), jnp.int32)
    rho = jnp.zeros_like(resting)
    return _State(start, u, zero, system.b, rho, best, jnp.where(usable, error, resting), count, count)


def _advance(system: System, scales: list[Scale], weights: Rows, at: _State, tolerance: float) -> _State:
    """One Newton step on the problem with A + rho D, whose velocities are u + rho D (r - center)."""
    laws, heavier = system.laws, jax.tree.map(lambda weight: at.rho * weight, weights)
    near_scales = [(1 + at.rho) * scale for scale in scales]

    def near(r: Rows, u: Rows) -> Rows:
        return jax.tree.map(lambda u, w, r, center: u + w * (r - center), u, heavier, r, at.center)

    step = newton_step(system._replace(R=plus(system.R, heavier)), at.r, near(at.r, at.u), near_scales)
    r = plus(at.r, step)
    u = velocity(system, r)
    error = residual(laws, r, u, scales)
    plain = at.rho == 0
    near_error = jax.lax.cond(plain, lambda: error, lambda: residual(laws, r, near(r, u), near_scales))
    better = error < at.error  # false for NaN
    solved = ~plain & (near_error <= 0.5 * tolerance)
    failed = ~solved & ((at.inner + 1 >= INNER_STEPS) | ~(near_error < jnp.inf))
    easier = jnp.minimum(jnp.maximum(EASIER * at.rho, FIRST_RHO), MOST_RHO)
    return _State(
        r=_where(failed, at.center, r),
        u=_where(failed, at.center_u, u),
        center=_where(solved, r, at.center),
        center_u=_where(solved, u, at.center_u),
        rho=jnp.where(solved, HARDER * at.rho, jnp.where(failed, easier, at.rho)),
        best=_where(better, r, at.best),
        error=jnp.where(better, error, at.error),
        inner=jnp.where(solved | failed, 0, at.inner + 1),
        total=at.total + 1,
    )


def _where(condition: Bool[Array, ""], a: Rows, b: Rows) -> Rows:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def _without_gain(system: System, r: Rows) -> Rows:
    """Admissible impulses of a search that failed, shortened until r.(A r + b) <= 0, as it is at solutions.

    That bounds the energy only if contacts do not pull: b counts from the velocity that they aim at.
    """
    r = tuple(law.admissible(part) for law, part in zip(system.laws, r, strict=True))
    moved = plus(system.coupling.velocity(r), times(system.R, r))
    linear, square = (jnp.sum(joined(times(r, x))) for x in (system.b, moved))
    share = jnp.where(square > 0, jnp.clip(-linear / jnp.where(square > 0, square, 1.0), 0.0, 1.0), 0.0)
    return jax.tree.map(lambda x: share * x, r)


def reachable(tolerance: float, weights: Rows, r: Rows) -> Float[Array, ""]:
    """The tolerance, or what rounding leaves of the velocities that cancel where constraints contradict each other.

    Impulses there are the contradiction over R, 1e8 times those of other constraints.
    """
    return jnp.maximum(tolerance, jnp.minimum(ROUNDING * largest(times(weights, r)), MOST_ROUNDING))


class _Descent(NamedTuple):
    r: Rows
    size: Float[Array, ""]  # length of the imbalance
    share: Float[Array, ""]  # of a Newton step that is tried next
    error: Float[Array, ""]
    count: Int[Array, ""]


def descend(system: System, start: Vec, *, tolerance: float, most_iterations: int) -> tuple[Vec, Int[Array, ""]]:
    """Newton steps, halved until they lower the imbalance, and their number: for laws whose slopes fade far away."""
    system, start = jax.lax.stop_gradient((system, start))
    if not start.size:
        return start, jnp.zeros((), jnp.int32)
    scales, laws = block_scales(system), system.laws

    def at(r: Rows, share, count) -> _Descent:
        u = velocity(system, r)
        off = joined(imbalance(laws, r, u, scales))
        return _Descent(r, jnp.sqrt(jnp.sum(off * off)), share, residual(laws, r, u, scales), count)

    def unfinished(now: _Descent):
        return (now.error > tolerance) & (now.count < most_iterations) & (now.share > LEAST_SHARE)

    def advance(now: _Descent) -> _Descent:
        u = velocity(system, now.r)
        newton = newton_step(system, now.r, u, scales)
        shorter = jax.tree.map(lambda r, dr: r + now.share * dr, now.r, newton)
        tried = at(shorter, jnp.minimum(4 * now.share, 1.0), now.count + 1)
        kept = now._replace(share=0.5 * now.share, count=now.count + 1)
        lower = tried.size < (1 - 0.1 * now.share) * now.size  # false for NaN
        return jax.tree.map(lambda a, b: jnp.where(lower, a, b), tried, kept)

    first = at(system.split(start), jnp.ones((), start.dtype), jnp.zeros((), jnp.int32))
    last = jax.lax.while_loop(unfinished, advance, first)
    return joined(last.r), last.count
