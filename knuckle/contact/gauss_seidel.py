"""Projected Gauss-Seidel on the friction cone (NeuralSim III): contacts one after another, until all laws hold.

Each contact takes the impulse that its law allows at the velocity that all others cause, r <- P(d r - u) / d with Alart
and Curnier's projection P. The solution is that of Newton's method. Sweeps converge linearly, slowly where contacts are
redundant; Anderson's acceleration (Walker and Ni 2011) extrapolates from the last sweeps if that lowers the residual.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from knuckle import spatial
from knuckle.contact.coupling import Square, joined
from knuckle.contact.laws import Law, Scale
from knuckle.contact.progress import reachable
from knuckle.contact.search import impulse_rounding, without_gain
from knuckle.contact.solver import Solution, Solver
from knuckle.contact.system import System, Vec, block_scales, over_rows, residual, row_scales, velocity

LOCAL_STEPS = 8  # projections of a contact before the next one's turn
REMEMBERED = 6  # sweeps that are extrapolated over
LEAST_CURVATURE = 1e-14  # of the squared moves that are remembered, added to their Gram matrix


class GaussSeidel(Solver):
    """Sweeps over contacts and other rows in turn; `iterations` counts sweeps."""

    needs_matrix = True
    smooth_laws = False

    def solve(self, system, start, *, tolerance, most_iterations):
        system, start = jax.lax.stop_gradient((system, start))
        if not start.size:
            return Solution.of_no_rows(start)
        own, scales = row_scales(system), block_scales(system)
        weights = over_rows(system.laws, scales)
        judge = partial(_judge, system, scales)

        def unfinished(at: _State):
            return ~(at.now.error <= reachable(tolerance, impulse_rounding(own, weights, system.split(at.now.r)))) & (
                at.count < most_iterations
            )

        def advance(at: _State) -> _State:
            swept = _sweep(system, at.now.r, at.now.u)
            history = at.history.extended(at.now.r, swept)
            plain, further = judge(swept), judge(history.extrapolated(swept, joined(weights)))
            return _State(_better(further, plain), history, at.count + 1)

        first = _better(judge(start), judge(jnp.zeros_like(start)))
        last = jax.lax.while_loop(unfinished, advance, _State(first, History.of(start), jnp.zeros((), jnp.int32)))
        best = system.split(last.now.r)
        converged = last.now.error <= reachable(tolerance, impulse_rounding(own, weights, best))
        best = jax.lax.cond(converged, lambda r: r, lambda r: without_gain(system, r), best)
        return Solution(joined(best), last.now.error, converged, last.count)


class _Iterate(NamedTuple):
    r: Vec
    u: Vec
    error: Float[Array, ""]


class History(NamedTuple):
    """Differences of the last sweeps: of what they made of r, and of how far they moved it."""

    result: Vec
    move: Vec
    results: Float[Array, "sweep row"]
    moves: Float[Array, "sweep row"]

    @staticmethod
    def of(r: Vec) -> History:
        nothing = jnp.zeros((REMEMBERED, len(r)), r.dtype)
        return History(r, jnp.zeros_like(r), nothing, nothing)

    def extended(self, before: Vec, result: Vec) -> History:
        """With one more sweep, without the oldest."""
        move = result - before
        results, moves = (
            jnp.concatenate([kept[1:], change[None]])
            for kept, change in ((self.results, result - self.result), (self.moves, move - self.move))
        )
        return History(result, move, results, moves)

    def extrapolated(self, result: Vec, weights: Vec) -> Vec:
        """The combination of results whose move would be least, as velocities."""
        scaled = self.moves * weights[None]
        gram = jnp.matmul(scaled, scaled.T, precision=jax.lax.Precision.HIGHEST)
        damped = gram + (LEAST_CURVATURE * jnp.trace(gram) + jnp.finfo(gram.dtype).tiny) * jnp.eye(len(gram))
        shares = jnp.linalg.solve(damped, spatial.apply(scaled, weights * self.move))
        return result - spatial.apply_transpose(self.results, shares)


class _State(NamedTuple):
    now: _Iterate
    history: History
    count: Int[Array, ""]


def _judge(system: System, scales: list[Scale], r: Vec) -> _Iterate:
    parts = system.split(r)
    u = velocity(system, parts)
    return _Iterate(r, joined(u), residual(system.laws, parts, u, scales))


def _better(one: _Iterate, other: _Iterate) -> _Iterate:
    """The one with the smaller error; the other if that of the first is NaN."""
    return jax.tree.map(lambda a, b: jnp.where(one.error <= other.error, a, b), one, other)


def _sweep(system: System, r: Vec, u: Vec) -> Vec:
    """All rows once, law by law; u is the velocity that r leads to."""
    swept, start = [], 0
    for law, own in zip(system.laws, system.split(r), strict=True):
        own, u = _sweep_law(law, system.A, start, own, u)
        swept.append(own)
        start += own.size
    return joined(tuple(swept))


def _sweep_law(law: Law, A: Square, start: int, r: Float[Array, "block row"], u: Vec) -> tuple[Array, Vec]:
    """The blocks of one law, whose rows begin at `start`, one after another."""
    size = law.block

    def turn(number, carry):
        r, u = carry
        at = start + number * size
        strip = jax.lax.dynamic_slice(A, (at, 0), (size, len(A)))
        own = jax.lax.dynamic_slice(strip, (0, at), (size, size))
        alone = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, number, 1), law)
        before = jax.lax.dynamic_slice_in_dim(r, number, 1)
        after = _project(alone, own, before, jax.lax.dynamic_slice_in_dim(u, at, size)[None])
        u = u + spatial.apply_transpose(strip, (after - before)[0])
        return jax.lax.dynamic_update_slice_in_dim(r, after, number, 0), u

    return jax.lax.fori_loop(0, len(r), turn, (r, u)) if len(r) else (r, u)


def _project(law: Law, W: Square, r: Float[Array, "1 row"], u: Float[Array, "1 row"]) -> Float[Array, "1 row"]:
    """The impulse of one block under its law, others fixed; d bounds the eigenvalues of W, so that steps contract."""
    d = jnp.max(jnp.sum(jnp.abs(W), axis=1), keepdims=True)
    moves = d > 0  # a row that moves nothing keeps its impulse

    def step(_, carry):
        r, u = carry
        change = -law.imbalance(r, u, d) / jnp.where(moves, d, 1.0)[:, None]
        change = jnp.where(moves[:, None], change, jnp.zeros_like(change))
        return r + change, u + spatial.apply(W, change[0])[None]

    return jax.lax.fori_loop(0, LOCAL_STEPS, step, (r, u))[0]
