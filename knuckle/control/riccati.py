"""The backward pass: quadratic models of the cost to go, and the feedback that minimises them within limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float

from knuckle.control.box_newton import minimise_in_box


class LinearQuadratic(NamedTuple):
    """The problem seen from a trajectory: one row per knot, in changes z of the state (n) and of the control (nu)."""

    map: Float[Array, "step n z"]  # [A B]: the change of the next state
    gradient: Float[Array, "step z"]  # of the running cost
    hessian: Float[Array, "step z z"]
    final: tuple[Float[Array, " n"], Float[Array, "n n"]]  # gradient and Hessian of the terminal cost
    gap: Float[Array, "step n"]  # from the next state to where each step ends: zero in single shooting
    low: Float[Array, "step nu"]  # bounds of changes of the controls
    high: Float[Array, "step nu"]


class Feedback(NamedTuple):
    """Changes of controls: feedforward + gain times the change of the state."""

    feedforward: Float[Array, "step nu"]
    gain: Float[Array, "step nu n"]
    slope: Float[Array, ""]  # of the cost along the whole feedforward
    curvature: Float[Array, ""]  # the cost changes by a slope + a^2 curvature for a share a of it
    decrement: Float[Array, ""]  # estimated distance of the cost from its minimum: the Newton decrement
    gradient: Float[Array, "step nu"]  # of the cost by the controls; zero where a limit holds
    defined: Bool[Array, ""]  # whether all Hessians by the controls were positive definite


def backward_pass(
    view: LinearQuadratic, weight: Float[Array, ""], scale: Float[Array, " nu"], bounded: bool, second: Callable | None
) -> Feedback:
    """The Riccati recursion with `weight * scale` added to Hessians by the controls (Tassa 2012, section II-F).

    The expected decrease times 1 + weight is at least that without regularisation, as `scale` is the curvature of the
    running costs, and Hessians by the controls exceed it. `second(knot, slope)` has what second derivatives of the
    dynamics add (DDP); None leaves them out (iLQR).
    """
    first, hessian = view.final
    n = len(first)

    def knot(carry, row):
        """One step back; `adjoint` is the exact gradient by the state, whatever the regularisation."""
        v, V, adjoint = carry
        number, F, gradient, hessian, gap, low, high = row
        v = v + V @ gap
        q, Q = gradient + v @ F, hessian + F.T @ (V @ F)
        if second is not None:
            Q = Q + second(number, v)
        q_u, Q_ux, Q_uu = q[n:], Q[n:, :n], Q[n:, n:]
        k, K = _feedback(Q_uu + jnp.diag(weight * scale), q_u, Q_ux, low, high, bounded)
        # K^T (Q_uu K + Q_ux) = -K^T weight scale K on free rows, and K is zero on the others: likewise for k
        left = Q_ux - (weight * scale)[:, None] * K
        before = q[:n] + k @ left, Q[:n, :n] + left.T @ K
        slopes = gradient + adjoint @ F
        u = slopes[n:]
        if bounded:
            u = jnp.where(((low >= 0) & (u > 0)) | ((high <= 0) & (u < 0)), 0.0, u)
        out = (k, K, k @ q_u, 0.5 * (k @ (Q_uu @ k)), u)
        return (before[0], 0.5 * (before[1] + before[1].T), slopes[:n]), out

    numbers = jnp.arange(len(view.map))
    rows = (numbers, view.map, view.gradient, view.hessian, view.gap, view.low, view.high)
    _, (k, K, slope, curvature, gradient) = jax.lax.scan(knot, (first, hessian, first), rows, reverse=True)
    defined = jnp.all(jnp.isfinite(k)) & jnp.all(jnp.isfinite(K))
    slope, curvature = jnp.sum(slope), jnp.sum(curvature)
    return Feedback(k, K, slope, curvature, -(1 + weight) * (slope + curvature), gradient, defined)


def _feedback(H, q_u, Q_ux, low, high, bounded: bool):
    """Feedforward and gain; not finite if H is not positive definite."""
    if bounded:
        box = minimise_in_box(H, q_u, low, high)
        return box.x, -box.solve(Q_ux)
    factor = jnp.linalg.cholesky(H)
    both = -cho_solve((factor, True), jnp.concatenate([q_u[:, None], Q_ux], axis=1))
    return both[:, 0], both[:, 1:]


def linear_sweep(view: LinearQuadratic, feedback: Feedback) -> tuple[Float[Array, "knot n"], Array, Array]:
    """Changes of all states along the linear model with gaps closed, and slope and curvature of the cost along them."""

    def knot(change, row):
        F, gap, gradient, hessian, k, K = row
        z = jnp.concatenate([change, k + K @ change])
        return F @ z + gap, (change, gradient @ z, 0.5 * (z @ (hessian @ z)))

    rows = (view.map, view.gap, view.gradient, view.hessian, feedback.feedforward, feedback.gain)
    last, (changes, slope, curvature) = jax.lax.scan(knot, jnp.zeros_like(view.gap[0]), rows)
    gradient, hessian = view.final
    changes = jnp.concatenate([changes, last[None]])
    return changes, jnp.sum(slope) + gradient @ last, jnp.sum(curvature) + 0.5 * (last @ (hessian @ last))
