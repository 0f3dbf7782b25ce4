"""Quadratic models of costs in the tangent space."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.control.costs import Cost, SquaredCost, call, parts_of
from knuckle.control.space import Space
from knuckle.model.model import State


def expand(
    cost: Cost, space: Space, time, state: State, control: Array | None, exact: bool
) -> tuple[Float[Array, " z"], Float[Array, "z z"]]:
    """Gradient and Hessian by changes of the state and, of a running cost, of the control, in this order.

    Sums of squares have a Gauss-Newton Hessian unless it is to be exact.
    """
    n = space.size(state)
    still = jnp.zeros(n + (0 if control is None else len(control)), state.q.dtype)
    gradient, hessian = jnp.zeros_like(still), jnp.zeros((still.size, still.size), still.dtype)

    def at(part):
        return lambda z: part(time, space.move(state, z[:n]), None if control is None else control + z[n:])

    for part in parts_of(cost):
        if isinstance(part, SquaredCost) and not exact:
            residual, jacobian = at(part.residual)(still), jax.jacfwd(at(part.residual))(still)
            gradient, hessian = gradient + residual @ jacobian, hessian + jacobian.T @ jacobian
        else:
            value = at(lambda *args, part=part: call(part, *args))
            gradient, hessian = gradient + jax.grad(value)(still), hessian + jax.hessian(value)(still)
    return gradient, hessian
