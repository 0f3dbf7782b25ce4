"""Small quadratic programmes over a box, in JAX: the controls of one knot within their limits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float

MOST_STEPS, MOST_HALVINGS = 50, 30
DECREASE = 0.1  # Armijo's share of the decrease that the gradient promises (Tassa 2014)
SETTLED = 1e-12  # of the gradient's terms: a gradient below it is rounding


class BoxSolution(NamedTuple):
    """A minimiser, which of its entries are free, and the Cholesky factor of the Hessian of those."""

    x: Float[Array, " n"]
    free: Bool[Array, " n"]
    factor: Float[Array, "n n"]  # rows and columns of entries at a bound are those of the identity

    def solve(self, right: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """The free block of H^-1 right; zero in rows at a bound."""
        rows = self.free[:, None]
        return jnp.where(rows, cho_solve((self.factor, True), jnp.where(rows, right, 0.0)), 0.0)


def minimise_in_box(H: Float[Array, "n n"], g: Float[Array, " n"], low: Array, high: Array) -> BoxSolution:
    """Minimise g.x + x.H x/2 over low <= x <= high, low <= 0 <= high, by projected Newton steps (Bertsekas 1982).

    As in Tassa, Mansard and Todorov, Control-limited differential dynamic programming (2014). Not finite if H is not
    positive definite on the free entries.
    """
    if len(g) == 1:
        return _of_one(H, g, low, high)
    scale = jnp.abs(g)

    def turn(carry):
        x, _, _, count, _ = carry
        slope = g + H @ x
        free = ~(((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0)))
        factor = _factor(H, free)
        step = jnp.where(free, -cho_solve((factor, True), jnp.where(free, slope, 0.0)), 0.0)
        moved, inside = _line_search(H, g, low, high, x, step, slope)
        after = g + H @ moved
        held = ((moved <= low) & (after > 0)) | ((moved >= high) & (after < 0))
        done = inside & jnp.all(held == ~free)  # an exact step on the right set
        tiny = jnp.all(jnp.where(free, jnp.abs(slope), 0.0) <= SETTLED * (scale + jnp.abs(H) @ jnp.abs(x)))
        done = done | tiny | ~jnp.all(jnp.isfinite(factor))
        return moved, free, factor, count + 1, done

    first = jnp.zeros_like(g), jnp.ones(len(g), bool), jnp.zeros_like(H), 0, False
    x, free, factor, _, _ = jax.lax.while_loop(lambda c: ~c[4] & (c[3] < MOST_STEPS), turn, first)
    return BoxSolution(x, free, factor)


def _of_one(H, g, low, high) -> BoxSolution:
    """A single entry: the vertex of the parabola, or the nearer bound; NaN if it opens downwards."""
    factor = jnp.sqrt(H)  # NaN if negative
    vertex = -g / (factor[0] * factor[0])
    x = jnp.clip(vertex, low, high)
    return BoxSolution(x, x == vertex, factor)


def _factor(H, free) -> Float[Array, "n n"]:
    both = free[:, None] & free[None, :]
    return jnp.linalg.cholesky(jnp.where(both, H, jnp.diag(jnp.where(free, 0.0, 1.0).astype(H.dtype))))


def _line_search(H, g, low, high, x, step, slope):
    """The first of halved steps, clipped to the box, that lowers the value enough; and if it was whole and inside."""

    def value(x):
        return g @ x + 0.5 * (x @ (H @ x))

    start = value(x)

    def enough(size):
        moved = jnp.clip(x + size * step, low, high)
        promised = slope @ (moved - x)
        return value(moved) - start <= DECREASE * promised + SETTLED * jnp.abs(start)

    def halved(carry):
        size, count = carry
        return size / 2, count + 1

    size, _ = jax.lax.while_loop(
        lambda c: ~enough(c[0]) & (c[1] < MOST_HALVINGS), halved, (jnp.ones((), x.dtype), jnp.zeros((), int))
    )
    whole = x + size * step
    moved = jnp.clip(whole, low, high)
    return moved, (size == 1) & jnp.all(moved == whole)
