"""Coulomb's law with a pyramid in place of the cone: how far impulses are from obeying it, and its slope there.

Friction is a sum of pushes along a few directions (Stewart and Trinkle 1996; de Avila Belbute-Peres and others 2018):
tangential impulses lie in a regular polygon of `directions` corners and dissipate the most that the polygon allows. Two
directions are the line of the first tangent: planar models.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.interior_problem import Problem, Split, join, row_scale, split, velocity

Vec = Float[Array, " row"]


def corners(directions: int) -> Float[np.ndarray, "direction 2"]:
    """Unit vectors along which friction pushes, the first along the first tangent."""
    if directions < 2 or directions % 2:
        raise ValueError(f"interior: directions must be even and at least 2 (+- pairs), got {directions}")
    half = [(np.cos(a), np.sin(a)) for a in np.arange(directions // 2) * 2 * np.pi / directions]
    exact = np.where(np.abs(half) < 1e-15, 0.0, half)
    return np.concatenate([exact, -exact])


def project_on_polygon(
    x: Float[Array, "contact 2"], radius: Float[Array, " contact"], directions: int
) -> Float[Array, "contact 2"]:
    """The nearest point of the regular polygon with a corner at (radius, 0)."""
    if directions == 2:
        along = jnp.clip(x[:, 0], -radius, radius)
        return jnp.stack([along, jnp.zeros_like(along)], axis=1)
    half = np.pi / directions
    angle = half + 2 * half * np.arange(directions)
    normals, edges = np.stack([np.cos(angle), np.sin(angle)], 1), np.stack([-np.sin(angle), np.cos(angle)], 1)
    outwards = x @ normals.T.astype(x.dtype)
    side = jnp.argmax(outwards, axis=1)
    normal, edge = jnp.asarray(normals, x.dtype)[side], jnp.asarray(edges, x.dtype)[side]
    reach = np.sin(half) * radius
    on_edge = (np.cos(half) * radius)[:, None] * normal
    on_edge = on_edge + jnp.clip(jnp.sum(edge * x, axis=1), -reach, reach)[:, None] * edge
    inside = jnp.max(outwards, axis=1) <= np.cos(half) * radius
    return jnp.where(inside[:, None], x, on_edge)


def allowed(s: Float[Array, "contact 3"], friction: Float[Array, " contact"], directions: int):
    """The law of contact as a projection: impulses are allowed(impulses - velocities), both in m/s."""
    push = jnp.maximum(s[:, 0], 0.0)
    return jnp.concatenate([push[:, None], project_on_polygon(s[:, 1:], friction * push, directions)], axis=1)


def imbalance(problem: Problem, r: Vec, scale: Vec, directions: int) -> Vec:
    """Zero at the solution: scale r - allowed(scale r - u) [m/s] (Alart and Curnier 1991, with the polygon)."""
    s, d = split(problem, scale * r - velocity(problem, r)), split(problem, scale)
    lawful = Split(
        allowed(s.contact, problem.friction, directions),
        jnp.maximum(s.one_sided, 0.0),
        s.equal,
        jnp.clip(s.bounded, -d.bounded * problem.bound, d.bounded * problem.bound),
    )
    return scale * r - join(lawful)


def residual(problem: Problem, r: Vec, directions: int) -> Float[Array, ""]:
    """How far r is from a solution of the mixed complementarity problem [m/s]: the largest entry of `imbalance`."""
    return jnp.max(jnp.abs(imbalance(problem, r, row_scale(problem), directions)), initial=0.0)


def imbalance_slope(problem: Problem, r: Vec, scale: Vec, directions: int) -> Float[Array, "row row"]:
    """Generalised derivative of `imbalance` with respect to r: D - W (D - A), W that of the projection."""
    s, d = split(problem, scale * r - velocity(problem, r)), split(problem, scale)
    inner = jnp.diag(scale) - problem.A
    blocks = _slope_of_allowed(s.contact, problem.friction, directions)
    rows = inner[: 3 * problem.contacts].reshape(problem.contacts, 3, r.shape[0])
    contact = spatial.compose(blocks, rows).reshape(3 * problem.contacts, r.shape[0])
    free = [
        jnp.where(s.one_sided > 0, 1.0, 0.0),
        jnp.ones_like(s.equal),
        jnp.where(jnp.abs(s.bounded) < d.bounded * problem.bound, 1.0, 0.0),
    ]
    others = inner[3 * problem.contacts :] * jnp.concatenate(free)[:, None]
    return jnp.diag(scale) - jnp.concatenate([contact, others])


def _slope_of_allowed(s: Float[Array, "contact 3"], friction, directions: int) -> Float[Array, "contact 3 3"]:
    def along(axis):
        return jax.jvp(lambda s: allowed(s, friction, directions), (s,), (jnp.broadcast_to(axis, s.shape),))[1]

    return jnp.stack([along(axis[None]) for axis in jnp.eye(3, dtype=s.dtype)], axis=2)


def margin(problem: Problem, r: Vec, directions: int) -> Float[Array, ""]:
    """Distance to the nearest change of mode [m/s]: near zero the derivative is one-sided."""
    scale = row_scale(problem)
    s, d = split(problem, scale * r - velocity(problem, r)), split(problem, scale)
    push = s.contact[:, 0]
    radius = problem.friction * jnp.maximum(push, 0.0)
    tangent = jnp.where(problem.friction > 0, to_mode_change(s.contact[:, 1:], radius, directions), jnp.inf)
    contact = jnp.where(push > 0, jnp.minimum(push, tangent), -push)
    bounded = jnp.abs(jnp.abs(s.bounded) - d.bounded * problem.bound)
    return jnp.min(jnp.concatenate([contact, jnp.abs(s.one_sided), bounded]), initial=jnp.inf)


def to_mode_change(x: Float[Array, "contact 2"], radius: Float[Array, " contact"], directions: int):
    """Distance of x from the lines between the inside, the edges' and the corners' regions of the polygon."""
    if directions == 2:
        return jnp.abs(jnp.abs(x[:, 0]) - radius)
    half = np.pi / directions
    angle = half + 2 * half * np.arange(directions)
    outwards = x @ np.stack([np.cos(angle), np.sin(angle)], 0).astype(x.dtype)
    sideways = x @ np.stack([-np.sin(angle), np.cos(angle)], 0).astype(x.dtype)
    side = jnp.argmax(outwards, axis=1)[:, None]
    out = jnp.take_along_axis(outwards, side, axis=1)[:, 0] - np.cos(half) * radius
    off = jnp.take_along_axis(sideways, side, axis=1)[:, 0]
    past_corner = jnp.abs(off) - np.sin(half) * radius
    outside = jnp.minimum(jnp.maximum(out, past_corner), jnp.abs(past_corner))
    return jnp.where(out > 0, outside, -out)
