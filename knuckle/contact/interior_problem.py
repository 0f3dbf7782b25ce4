"""The mixed complementarity problem of the interior-point method.

Impulses r and velocities u = A r + b obey a law per block of rows: contacts (normal, two tangents), one-sided rows,
equal rows and bounded rows (dry joint friction). A holds the regularisation R, b what velocities aim at.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial

Vec = Float[Array, " row"]


class Problem(NamedTuple):
    """u = A r + b; rows: 3 per contact, then one-sided, then equal, then bounded ones."""

    A: Float[Array, "row row"]
    b: Vec
    friction: Float[Array, " contact"]
    bound: Float[Array, " bounded"]  # largest impulse of each bounded row
    one_sided: Float[Array, " one_sided"]  # zeros; its length says how many such rows there are

    @property
    def contacts(self) -> int:
        return self.friction.shape[0]


class Split(NamedTuple):
    """A vector over the rows, by the law that they obey."""

    contact: Float[Array, "contact 3"]
    one_sided: Float[Array, " one_sided"]
    equal: Float[Array, " equal"]
    bounded: Float[Array, " bounded"]


def split(problem: Problem, x: Vec) -> Split:
    c, o, n = 3 * problem.contacts, problem.one_sided.shape[0], problem.bound.shape[0]
    return Split(x[:c].reshape(-1, 3), x[c : c + o], x[c + o : x.shape[0] - n], x[x.shape[0] - n :])


def join(parts: Split) -> Vec:
    return jnp.concatenate([parts.contact.reshape(-1), parts.one_sided, parts.equal, parts.bounded])


def velocity(problem: Problem, r: Vec) -> Vec:
    return spatial.apply(problem.A, r) + problem.b


def row_scale(problem: Problem) -> Vec:
    """Velocity per impulse of each row [1/kg]: the mean of a contact's three diagonal entries of A."""
    diagonal = split(problem, jnp.diagonal(problem.A))
    mean = jnp.mean(diagonal.contact, axis=1, keepdims=True)
    return join(diagonal._replace(contact=jnp.broadcast_to(mean, diagonal.contact.shape)))


def proximal(problem: Problem, scale: Vec, rho, center: Vec) -> Problem:
    """The problem with A + rho D, whose solution is the original's if it is the center."""
    heavier = rho * scale
    return problem._replace(A=problem.A + jnp.diag(heavier), b=problem.b - heavier * center)
