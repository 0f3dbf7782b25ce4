"""The derivative of a solved step: that of the solution, not of the search that found it (implicit function theorem).

Where u(r) are the rows' velocities and F the imbalance of their laws, dr = -(F_r + F_u A)^-1 dF at fixed r. The
velocity of the joints at fixed r is differentiated by the rule of `aba`, so that A itself never is.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.contact.rows import Jacobian, response
from knuckle.contact.system import Laws, Vec, block_scales, imbalance, slope
from knuckle.dynamics.aba import Factor
from knuckle.tree import Tree


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def at_solution(
    dofs: Tree,
    laws: Laws,
    u: Vec,
    v: Vec,
    r: Vec,
    A: Float[Array, "row row"],
    factor: Factor,
    J: Jacobian,
) -> tuple[Vec, Vec]:
    """Impulses r and joint velocities v of a solved step, where u and v were computed at fixed r."""
    return r, v


@at_solution.defjvp
def _derivative(dofs, primals, tangents):
    laws, u, v, r, A, factor, J = primals
    if not r.size:
        return (r, v), (r, tangents[2])
    scales = block_scales(A, laws)
    _, change = jax.jvp(lambda laws, u: imbalance(laws, r, u, scales), (laws, u), tuple(tangents[:2]))
    dr = -jnp.linalg.solve(slope(A, laws, r, u, scales), change)
    return (r, v), (dr, tangents[2] + response(dofs, factor, J, dr))
