"""Solve rows under their laws to a residual: Newton's method, made safe by damped and by proximal steps.

Undamped Newton from the last step's impulses takes one or two iterations where contacts persist. If two steps in a row
do not halve the residual, the search begins again at rest, with three steps of decreasing damping (A + rho D in place
of A) before undamped ones. Where that does not converge either (redundant contacts, stacks, mass ratios), the problem
is changed to one that is easily solved, A + rho D with the centre of the last solution, and rho is lowered from
solution to solution until the original problem is solved.

Solutions on that path, and those of steps that end just below the tolerance, are only as exact as the tolerance: more
undamped steps end these searches at rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from knuckle.contact.coupling import Rows, joined
from knuckle.contact.laws import Scale
from knuckle.contact.progress import Progress, choose, first_progress, reachable, rounding_of
from knuckle.contact.search_packed import can_pack, search_packed
from knuckle.contact.solver import Solution
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
    row_scales,
    times,
    velocity,
)

LEAST_SHARE = 1e-6  # of a Newton step; smaller ones lead nowhere


class _State(NamedTuple):
    """Impulses with the velocities that they lead to."""

    r: Rows
    u: Rows
    center: Rows
    center_u: Rows
    best: Rows
    progress: Progress


def search(system: System, start: Vec, *, tolerance: float, most_iterations: int) -> Solution:
    """Impulses whose residual is below the tolerance, or the best found. Not differentiable: see `implicit`."""
    system, start = jax.lax.stop_gradient((system, start))
    if not start.size:
        return Solution.of_no_rows(start)
    if can_pack(system):
        packed = search_packed(system, start, tolerance=tolerance, most_iterations=most_iterations)
        best, error, rounding, total = system.split(packed.impulse), packed.error, packed.rounding, packed.iterations
        change = packed.change
    else:
        best, progress = _search_all(system, system.split(start), tolerance, most_iterations)
        error, rounding, total, change = progress.error, progress.rounding, progress.total, None

    def shortened(r: Rows, change: Array | None) -> tuple[Rows, Array | None]:
        whole = system if change is None else system.renewed()
        r = without_gain(whole, r)
        return r, None if change is None else whole.coupling.joint_velocity(r)

    converged = error <= reachable(tolerance, rounding)
    best, change = jax.lax.cond(converged, lambda *found: found, shortened, best, change)
    return Solution(joined(best), error, converged, total, change)


def _search_all(system: System, start: Rows, tolerance: float, most_iterations: int) -> tuple[Rows, Progress]:
    own, scales = row_scales(system), block_scales(system)
    weights = over_rows(system.laws, scales)
    found = jax.lax.while_loop(
        lambda at: at.progress.is_unfinished(tolerance, most_iterations),
        lambda at: _advance(system, own, scales, weights, at, tolerance),
        _first(system, own, scales, weights, start),
    )
    return found.best, found.progress


def _first(system: System, own: Rows, scales: list[Scale], weights: Rows, start: Rows) -> _State:
    """Newton steps begin at the start; if they fail, easier problems begin at rest."""
    zero = jax.tree.map(jnp.zeros_like, start)
    u = velocity(system, start)
    error, resting = (residual(system.laws, r, at, scales) for r, at in ((start, u), (zero, system.b)))
    usable = error <= resting  # false for NaN
    best = _where(usable, start, zero)
    progress = first_progress(jnp.where(usable, error, resting), impulse_rounding(own, weights, best))
    return _State(start, u, zero, system.b, best, progress)


def _advance(system: System, own: Rows, scales: list[Scale], weights: Rows, at: _State, tolerance: float) -> _State:
    """One Newton step on the problem with A + rho D, whose velocities are u + rho D (r - center)."""
    laws, rho = system.laws, at.progress.rho
    heavier = jax.tree.map(lambda weight: rho * weight, weights)
    near_scales = [(1 + rho) * scale for scale in scales]

    def near(r: Rows, u: Rows) -> Rows:
        return jax.tree.map(lambda u, w, r, center: u + w * (r - center), u, heavier, r, at.center)

    step = newton_step(system._replace(R=plus(system.R, heavier)), at.r, near(at.r, at.u), near_scales)
    r = plus(at.r, step)
    u = velocity(system, r)
    error = residual(laws, r, u, scales)
    near_error = jax.lax.cond(rho == 0, lambda: error, lambda: residual(laws, r, near(r, u), near_scales))
    choice, progress = choose(at.progress, error, near_error, impulse_rounding(own, weights, r), tolerance)
    return _State(
        r=_where(choice.failed, at.center, r),
        u=_where(choice.failed, at.center_u, u),
        center=_where(choice.solved, r, at.center),
        center_u=_where(choice.solved, u, at.center_u),
        best=_where(choice.better, r, at.best),
        progress=progress,
    )


def _where(condition: Bool[Array, ""], a: Rows, b: Rows) -> Rows:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def without_gain(system: System, r: Rows) -> Rows:
    """Admissible impulses of a search that failed, shortened until r.(A r + b) <= 0, as it is at solutions.

    That bounds the energy only if contacts do not pull: b counts from the velocity that they aim at.
    """
    r = tuple(law.admissible(part) for law, part in zip(system.laws, r, strict=True))
    moved = plus(system.coupling.velocity(r), times(system.R, r))
    linear, square = (jnp.sum(joined(times(r, x))) for x in (system.b, moved))
    share = jnp.where(square > 0, jnp.clip(-linear / jnp.where(square > 0, square, 1.0), 0.0, 1.0), 0.0)
    return jax.tree.map(lambda x: share * x, r)


def impulse_rounding(own: Rows, weights: Rows, r: Rows) -> Float[Array, ""]:
    """What rounding leaves of what impulses do; `own`: velocity per impulse of rows, `weights`: means over blocks."""
    return largest(jax.tree.map(rounding_of, times(own, r), times(weights, r)))


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
