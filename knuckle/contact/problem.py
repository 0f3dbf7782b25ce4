"""The problem that every impulse solver solves, and how far an answer is from solving it.

Impulses r and velocities u = A r + b obey a law per block of rows: contacts (normal, two tangents: Signorini, Coulomb,
maximum dissipation on the true cone), one-sided rows (joint limits), equal rows (loops, welds) and bounded rows (dry
joint friction). A holds the regularisation R, b holds restitution and stabilisation.
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


def length(x: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """Euclidean length, with gradient zero at zero."""
    squared = spatial.dot(x, x)
    return jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, jnp.ones_like(squared))), 0.0)


def unit(x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    size = length(x)[..., None]
    return jnp.where(size > 0, x / jnp.where(size > 0, size, jnp.ones_like(size)), jnp.zeros_like(x))


def project_on_cone(x: Float[Array, "contact 3"], friction: Float[Array, " contact"]) -> Float[Array, "contact 3"]:
    """The nearest point of Coulomb's cone |x_t| <= friction x_n."""
    n, t = x[:, 0], length(x[:, 1:])
    normal = jnp.where(t <= friction * n, n, jnp.maximum((n + friction * t) / (1 + friction**2), 0.0))
    tangent = jnp.minimum(t, friction * normal)[:, None] * unit(x[:, 1:])
    return jnp.concatenate([normal[:, None], tangent], axis=1)


def residual(problem: Problem, r: Vec) -> Float[Array, ""]:
    """How far r is from a solution [m/s]: the largest entry of De Saxce's natural map."""
    u, d = split(problem, velocity(problem, r)), row_scale(problem)
    scale, at = split(problem, d), split(problem, r)
    bent = u.contact[:, 0] + problem.friction * length(u.contact[:, 1:])
    shifted = jnp.concatenate([bent[:, None], u.contact[:, 1:]], axis=1)
    safe = Split(*(jnp.maximum(s, 1e-300) for s in scale))
    gap = Split(
        at.contact - project_on_cone(at.contact - shifted / safe.contact, problem.friction),
        at.one_sided - jnp.maximum(at.one_sided - u.one_sided / safe.one_sided, 0.0),
        u.equal / safe.equal,
        at.bounded - jnp.clip(at.bounded - u.bounded / safe.bounded, -problem.bound, problem.bound),
    )
    return jnp.max(jnp.abs(join(gap) * d), initial=0.0)


def imbalance(problem: Problem, r: Vec, scale: Vec) -> Vec:
    """Alart and Curnier's map, zero at the solution: scale r - projection(scale r - u) [m/s]."""
    s, d = split(problem, scale * r - velocity(problem, r)), split(problem, scale)
    wanted = jnp.maximum(s.contact[:, 0], 0.0)
    room = problem.friction * wanted
    tangent = jnp.minimum(length(s.contact[:, 1:]), room)[:, None] * unit(s.contact[:, 1:])
    projected = Split(
        jnp.concatenate([wanted[:, None], tangent], axis=1),
        jnp.maximum(s.one_sided, 0.0),
        s.equal,
        jnp.clip(s.bounded, -d.bounded * problem.bound, d.bounded * problem.bound),
    )
    return scale * r - join(projected)


def imbalance_slope(problem: Problem, r: Vec, scale: Vec) -> Float[Array, "row row"]:
    """Generalised derivative of `imbalance` with respect to r: D - W (D - A), W that of the projection."""
    s, d = split(problem, scale * r - velocity(problem, r)), split(problem, scale)
    inner = jnp.diag(scale) - problem.A
    pushing = s.contact[:, 0] > 0
    size, room = length(s.contact[:, 1:]), problem.friction * jnp.maximum(s.contact[:, 0], 0.0)
    sticking = (size <= room) & (room > 0)
    along = unit(s.contact[:, 1:])
    shrink = jnp.where(sticking, 1.0, room / jnp.where(sticking | (size == 0), 1.0, size))
    eye = jnp.broadcast_to(jnp.eye(2, dtype=r.dtype), (problem.contacts, 2, 2))
    across = jnp.where(sticking[:, None, None], eye, shrink[:, None, None] * (eye - spatial.outer(along, along)))
    by_normal = jnp.where((pushing & ~sticking)[:, None], problem.friction[:, None] * along, 0.0)
    across = jnp.where(pushing[:, None, None], across, 0.0)
    rows = inner[: 3 * problem.contacts].reshape(problem.contacts, 3, -1)
    normal = jnp.where(pushing[:, None], rows[:, 0], 0.0)
    tangent = by_normal[:, :, None] * rows[:, :1] + spatial.compose(across, rows[:, 1:])
    contact = jnp.concatenate([normal[:, None], tangent], axis=1).reshape(3 * problem.contacts, -1)
    free = Split(
        jnp.zeros((problem.contacts, 3), r.dtype),
        jnp.where(s.one_sided > 0, 1.0, 0.0),
        jnp.ones_like(s.equal),
        jnp.where(jnp.abs(s.bounded) < d.bounded * problem.bound, 1.0, 0.0),
    )
    others = inner[3 * problem.contacts :] * join(free)[3 * problem.contacts :, None]
    return jnp.diag(scale) - jnp.concatenate([contact, others])


def margin(problem: Problem, r: Vec) -> Float[Array, ""]:
    """Distance to the nearest change of mode [m/s]: near zero the derivative is one-sided."""
    scale = row_scale(problem)
    s, d = split(problem, scale * r - velocity(problem, r)), split(problem, scale)
    z, slack = s.contact[:, 0], problem.friction * jnp.maximum(s.contact[:, 0], 0.0) - length(s.contact[:, 1:])
    contact = jnp.where(z > 0, jnp.minimum(z, jnp.where(problem.friction > 0, jnp.abs(slack), z)), -z)
    bounded = jnp.abs(jnp.abs(s.bounded) - d.bounded * problem.bound)
    return jnp.min(jnp.concatenate([contact, jnp.abs(s.one_sided), bounded]), initial=jnp.inf)
