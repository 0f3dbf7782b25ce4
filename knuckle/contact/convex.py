"""Any two convex shapes: the contact at the direction that separates them most.

A search (separation.py) gives this direction n and the corners and edges that meet. n solves smooth equations for
them, which Newton's method polishes; its last step is the only part with a derivative, which makes that the derivative
of the solution (implicit functions).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.gjk import Simplex
from knuckle.contact.patch import patch
from knuckle.contact.separation import are_farther, separating_direction, separation, tolerance
from knuckle.contact.support import Convex
from knuckle.contact.touch import Touch, constant, no_touch, sign
from knuckle.model.joints import plane_axes

NEWTON_STEPS = 6
LONGEST_STEP = 0.3  # [rad]
PREFERENCE = (1, 1, 2, 1, 0, 2, 2, 3, 4, 4, 6)  # among what separates equally, more edges; the held normal last
SETTLED = 1e-4  # [rad]; Newton's method has found a solution if it turns by less

Vec3 = Float[Array, "3"]
Scalar = Float[Array, ""]


class Meeting(NamedTuple):
    """Which features may meet: corners of each core by label, of which the first is met, and what the normal obeys."""

    label_a: Int[Array, "3"]
    label_b: Int[Array, "3"]
    used: Bool[Array, "2"]  # whether the normal stands across the edge from the first corner to the second, the third
    cap_a: Bool[Array, ""]  # or rather across the flat end of a cylinder
    cap_b: Bool[Array, ""]
    turns: Bool[Array, ""]  # whether it solves an equation; else it is held


class Features(NamedTuple):
    """The features in the world: a corner of each core, and two edges at it of which the normal stands across some."""

    corner_a: Vec3
    corner_b: Vec3
    edges_a: Float[Array, "2 3"]
    edges_b: Float[Array, "2 3"]
    used: Bool[Array, "2"]
    turns: Bool[Array, ""]


def convex_convex(a: Convex, b: Convex, slots: int, reach: Scalar | None = None) -> Touch:
    """Contacts of two convex shapes: the nearest points, or `slots` (1, 2 or 4) that span where flat parts meet.

    None if they are farther apart than `reach` [m].
    """

    def found() -> Touch:
        witness = nearest(a, b)
        return Touch(*(x[None] for x in witness)) if slots == 1 else patch(a, b, witness, slots)

    if reach is None:
        return found()
    far = are_farther(*jax.lax.stop_gradient((a, b, reach)))
    return jax.lax.cond(far, lambda: no_touch(slots, a.position.dtype), found)


def nearest(a: Convex, b: Convex) -> tuple[Scalar, Vec3, Vec3]:
    """Signed distance, the point midway between the surfaces, and the normal."""
    still_a, still_b = jax.lax.stop_gradient((a, b))
    direction, _, simplex = separating_direction(still_a, still_b)
    n, meeting = _polish(still_a, still_b, direction, simplex)
    features = _features(a, b, meeting)
    step = _newton(a, b, features, n)
    n = n + (step - jax.lax.stop_gradient(step))
    return _witness(a, b, features, n)


# Features


def _features(a: Convex, b: Convex, meeting: Meeting) -> Features:
    corners_a = jnp.stack([a.corner(meeting.label_a[k]) for k in range(3)])
    corners_b = jnp.stack([b.corner(meeting.label_b[k]) for k in range(3)])
    edges_a, edges_b = corners_a[1:] - corners_a[:1], corners_b[1:] - corners_b[:1]
    zero = jnp.zeros_like(edges_a)
    edges_a = jnp.where(meeting.cap_a, a.rotation.T[:2], jnp.where(meeting.cap_b, zero, edges_a))
    edges_b = jnp.where(meeting.cap_b, b.rotation.T[:2], jnp.where(meeting.cap_a, zero, edges_b))
    return Features(corners_a[0], corners_b[0], edges_a, edges_b, meeting.used, meeting.turns)


def _meetings(a: Convex, b: Convex, simplex: Simplex, n: Vec3) -> Meeting:
    """All that the search may have found, one per row: of the simplex two edges, either or none; of the corners that
    lie furthest a's cap, b's cap, or they alone with the normal held, which is always possible."""
    order = jnp.stack(_heaviest_three(simplex.weights))
    label_a, label_b = simplex.label_a[order], simplex.label_b[order]
    number = jnp.arange(7)
    return Meeting(
        jnp.concatenate([jnp.tile(label_a, (4, 1)), jnp.tile(a.label(-n), (3, 3))]),
        jnp.concatenate([jnp.tile(label_b, (4, 1)), jnp.tile(b.label(n), (3, 3))]),
        jnp.array([(1, 1), (1, 0), (0, 1), (0, 0), (1, 1), (1, 1), (0, 0)], bool),
        number == 4,
        number == 5,
        number < 6,
    )


def _heaviest_three(weights: Float[Array, "4"]) -> list[Array]:
    order = []
    for _ in range(3):
        order.append(jnp.argmax(weights))
        weights = jnp.where(jnp.arange(4) == order[-1], jnp.full_like(weights, -1), weights)
    return order


def _with_furthest(a: Convex, b: Convex, meeting: Meeting, n: Vec3) -> Meeting:
    """The same with one more edge, to other corners that lie furthest along n, too: if there are any, it was missing.

    Corners of the edge that is used, if any, are no others.
    """
    here = jnp.arange(3) == jnp.where(meeting.used[0], 2, 1)
    second = jnp.where(meeting.used[0], 1, jnp.where(meeting.used[1], 2, 0))
    slack = 1e-5 if n.dtype == jnp.float64 else 1e-3  # generous: an edge too many gives no better solution
    label_a = a.label_beside(-n, meeting.label_a[0], meeting.label_a[second], slack)
    label_b = b.label_beside(n, meeting.label_b[0], meeting.label_b[second], slack)
    return meeting._replace(
        label_a=jnp.where(here, label_a, meeting.label_a),
        label_b=jnp.where(here, label_b, meeting.label_b),
        used=meeting.used | here[1:],
    )


def _polish(a: Convex, b: Convex, n: Vec3, simplex: Simplex) -> tuple[Vec3, Meeting]:
    """Newton's method for all that may meet; the direction that separates most, and what meets there."""
    plain = _meetings(a, b, simplex, n)
    add_edge = jax.vmap(lambda meeting: _with_furthest(a, b, meeting, n))
    more = add_edge(jax.tree.map(lambda x: x[1:4], plain))
    most = add_edge(jax.tree.map(lambda x: x[2:], more))
    meetings = jax.tree.map(lambda *parts: jnp.concatenate(parts), more, most, plain)
    ends, gaps = jax.lax.map(lambda meeting: _solve(a, b, meeting, n), meetings)
    unit = 0.1 * tolerance(n) if n.dtype == jnp.float32 else 10 * tolerance(n)
    preference = unit * (a.extent + b.extent) * constant(PREFERENCE, gaps, gaps.shape)
    choice = jnp.argmax(gaps - preference)
    return ends[choice], jax.tree.map(lambda x: x[choice], meetings)


def _solve(a: Convex, b: Convex, meeting: Meeting, n: Vec3) -> tuple[Vec3, Scalar]:
    """The direction that features demand, and how far it separates; less where it is no solution."""
    features = _features(a, b, meeting)
    end = jax.lax.fori_loop(0, NEWTON_STEPS, lambda _, x: _newton(a, b, features, x), n)
    gap, move = separation(a, b, end), _newton(a, b, features, end) - end
    met = spatial.dot(end, features.corner_a + a.smooth(-end)[0] - features.corner_b - b.smooth(end)[0])
    scale = a.extent + b.extent
    solved = (spatial.dot(move, move) < SETTLED**2) & (met - gap < 1e3 * tolerance(n) * scale)
    usable = _usable(features) & (a.is_disc | ~meeting.cap_a) & (b.is_disc | ~meeting.cap_b)
    return end, jnp.where(usable, jnp.where(solved, gap, gap - 0.1 * scale), jnp.full_like(gap, -jnp.inf))


def _usable(features: Features) -> Bool[Array, ""]:
    """Whether the edges that are used have a length, and two of them different directions."""
    e = features.edges_a - features.edges_b
    squared = spatial.dot(e, e)
    long = squared > 1e-18
    normal = spatial.cross(e[0], e[1])
    flat = spatial.dot(normal, normal) <= 1e-12 * squared[0] * squared[1]
    return jnp.all(long | ~features.used) & ~(flat & jnp.all(features.used))


# Smooth equations for known features, with derivative


def _newton(a: Convex, b: Convex, features: Features, n: Vec3) -> Vec3:
    """One step towards the n across the edges that is parallel to the line between the nearest points.

    With d(n) from the furthest point of b to that of a: t.d = 0 for the tangents t that are free, whose derivative by n
    is -(K + gap), K the sum of the derivatives of the smooth points. n enters without derivative, its equation with.
    """
    n = _across_edges(features, jax.lax.stop_gradient(n))
    tangents, free = _free_tangents(features, n)
    smooth_a, K_a = a.smooth(-n)
    smooth_b, K_b = b.smooth(n)
    d = features.corner_a + smooth_a - features.corner_b - smooth_b
    across = jnp.where(free, spatial.dot(tangents, d[None]), jnp.zeros_like(d[:2]))
    slope = spatial.compose(spatial.compose(tangents, K_a + K_b), tangents.T) + spatial.dot(n, d) * jnp.eye(
        2, dtype=d.dtype
    )
    turn = _solve_free(jax.lax.stop_gradient(slope), across, free)
    length = jnp.sqrt(jnp.maximum(jax.lax.stop_gradient(spatial.dot(turn, turn)), LONGEST_STEP**2))
    return spatial.normalize(n + spatial.apply_transpose(tangents, turn * LONGEST_STEP / length))


def _across_edges(features: Features, n: Vec3) -> Vec3:
    """n, made to stand across the edges that are used."""
    e = features.edges_a - features.edges_b
    both = spatial.cross(e[0], e[1])
    both = spatial.normalize(both) * sign(spatial.dot(both, n))
    u = _used_edge(features)
    one = spatial.normalize(n - spatial.dot(u, n) * u)
    return jnp.where(jnp.all(features.used), both, one)


def _used_edge(features: Features) -> Vec3:
    """Unit vector along the edge that is used, zero where none is."""
    e = features.edges_a - features.edges_b
    return spatial.normalize(jnp.where(features.used[0], e[0], jnp.where(features.used[1], e[1], jnp.zeros_like(e[0]))))


def _free_tangents(features: Features, n: Vec3) -> tuple[Float[Array, "2 3"], Bool[Array, "2"]]:
    """Two unit vectors across n, and which of them n may turn to: none, one or both."""
    first, second = plane_axes(n)
    u = _used_edge(features)
    single = features.used[0] ^ features.used[1]
    tangents = jnp.where(single, jnp.stack([spatial.cross(u, n), u]), jnp.stack([first, second]))
    none_used = ~jnp.any(features.used) & features.turns
    return tangents, jnp.stack([single | none_used, none_used])


def _solve_free(matrix: Float[Array, "2 2"], right: Float[Array, "2"], free: Bool[Array, "2"]) -> Float[Array, "2"]:
    """Solution of a symmetric 2x2 system in the free unknowns; zero where it has none."""
    one = jnp.ones_like(right[0])
    p, q = jnp.where(free[0], matrix[0, 0], one), jnp.where(free[1], matrix[1, 1], one)
    m = jnp.where(jnp.all(free), matrix[0, 1], jnp.zeros_like(one))
    determinant = p * q - m * m
    singular = jnp.abs(determinant) <= 1e-14 * (p * p + q * q)
    inverse = jnp.where(singular, jnp.zeros_like(one), 1 / jnp.where(singular, one, determinant))
    return jnp.stack([q * right[0] - m * right[1], p * right[1] - m * right[0]]) * inverse


def _witness(a: Convex, b: Convex, features: Features, n: Vec3) -> tuple[Scalar, Vec3, Vec3]:
    """Signed distance, the point midway between the surfaces, and the normal."""
    p_a, p_b = features.corner_a + a.smooth(-n)[0], features.corner_b + b.smooth(n)[0]
    e = features.edges_a - features.edges_b
    gram = spatial.compose(e, e.T)
    share = _solve_free(gram, -spatial.dot(e, (p_a - p_b)[None]), features.used)
    share = jnp.where(features.used, share, jnp.zeros_like(share))
    p_a = p_a + spatial.apply_transpose(features.edges_a, share) - a.radius * n
    p_b = p_b + spatial.apply_transpose(features.edges_b, share) + b.radius * n
    return spatial.dot(n, p_a - p_b), 0.5 * (p_a + p_b), n
