"""The point of the difference of two convex shapes that is nearest to the origin (Gilbert, Johnson, Keerthi 1988)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.support import Convex
from knuckle.contact.touch import constant

MOST_ITERATIONS = 40
SHORT_STEPS = 6  # Gilbert's, before GJK
EDGES = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
FACES = np.array([(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)])

Vec3 = Float[Array, "3"]


class Simplex(NamedTuple):
    """Up to four points of the difference, the weights of the nearest point, and that point."""

    points: Float[Array, "4 3"]
    label_a: Int[Array, "4"]
    label_b: Int[Array, "4"]
    weights: Float[Array, "4"]
    nearest: Vec3
    overlap: Bool[Array, ""]


class _Search(NamedTuple):
    simplex: Simplex
    apart: Float[Array, ""]  # how far a plane is known to separate the shapes [m]
    done: Bool[Array, ""]
    count: Int[Array, ""]


def gjk(a: Convex, b: Convex, shift: Vec3, direction: Vec3, tolerance: float) -> Simplex:
    """Nearest point of a + shift - b, both without their balls, starting in a direction (a unit vector).

    `overlap` says that the origin is inside, or nearer than tolerance times the extent of the shapes.
    """
    return _search(a, b, shift, direction, tolerance).simplex


def are_apart(a: Convex, b: Convex, direction: Vec3, tolerance: float, distance: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether a plane is found that keeps the shapes, without their balls, farther apart than this [m].

    Gilbert's steps (1966) cost a third of those of GJK, so the first are of these.
    """
    zero = jnp.zeros_like(direction)

    def advance(line: _Line) -> _Line:
        n = spatial.normalize(line.nearest)
        w = _furthest(a, b, zero, n)[0]
        way = w - line.nearest
        squared = spatial.dot(way, way)
        share = -spatial.dot(line.nearest, way) / jnp.where(squared > 0, squared, jnp.ones_like(squared))
        nearest = line.nearest + jnp.clip(share, 0, 1) * way
        return _Line(nearest, jnp.maximum(line.apart, spatial.dot(n, w)), line.count + 1)

    w = _furthest(a, b, zero, direction)[0]
    first = _Line(w, spatial.dot(direction, w), jnp.zeros((), jnp.int32))
    line = jax.lax.while_loop(lambda s: ~(s.apart > distance) & (s.count < SHORT_STEPS), advance, first)

    def longer() -> Bool[Array, ""]:
        return _search(a, b, zero, spatial.normalize(line.nearest), tolerance, distance).apart > distance

    return jax.lax.cond(line.apart > distance, lambda: jnp.ones((), bool), longer)


class _Line(NamedTuple):
    """Gilbert's search: each step goes to the nearest point between the last one and the furthest of the shapes."""

    nearest: Vec3
    apart: Float[Array, ""]
    count: Int[Array, ""]


def _furthest(a: Convex, b: Convex, shift: Vec3, n: Vec3) -> tuple[Vec3, Array, Array]:
    """The point of a + shift - b that lies furthest against n, and the labels of its corners."""
    p_a, label_a = a.furthest(-n)
    p_b, label_b = b.furthest(n)
    return p_a + shift - p_b, label_a, label_b


def _search(
    a: Convex, b: Convex, shift: Vec3, direction: Vec3, tolerance: float, enough: Float[Array, ""] | None = None
) -> _Search:
    """The search, which ends early where the shapes are known to be farther apart than `enough` [m]."""
    scale = a.extent + b.extent

    def advance(search: _Search) -> _Search:
        old = search.simplex
        w, label_a, label_b = _furthest(a, b, shift, old.nearest)
        squared = spatial.dot(old.nearest, old.nearest)
        along = spatial.dot(old.nearest, w)
        apart = jnp.maximum(search.apart, along / jnp.sqrt(squared))
        converged = squared - along <= tolerance * squared
        converged = converged if enough is None else converged | (apart > enough)
        slot = jnp.arange(4) == jnp.argmin(old.weights)
        points = jnp.where(slot[:, None], w[None], old.points)
        weights, inside = _nearest_weights(points)
        nearest = jnp.sum(weights[:, None] * points, axis=0)
        length = spatial.dot(nearest, nearest)
        overlap = inside | (length <= (tolerance * scale) ** 2)
        new = Simplex(
            points,
            jnp.where(slot, label_a, old.label_a),
            jnp.where(slot, label_b, old.label_b),
            weights,
            nearest,
            overlap,
        )
        stalled = ~overlap & (length >= squared)
        kept = jax.tree.map(lambda x, y: jnp.where(converged | stalled, x, y), old, new)
        return _Search(kept, apart, converged | stalled | overlap, search.count + 1)

    w, label_a, label_b = _furthest(a, b, shift, direction)
    first = Simplex(
        jnp.tile(w, (4, 1)),
        jnp.tile(label_a, 4),
        jnp.tile(label_b, 4),
        constant([1.0, 0.0, 0.0, 0.0], w, (4,)),
        w,
        spatial.dot(w, w) <= (tolerance * scale) ** 2,
    )
    apart = spatial.dot(direction, w)
    done = first.overlap if enough is None else first.overlap | (apart > enough)
    start = _Search(first, apart, done, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda s: ~s.done & (s.count < MOST_ITERATIONS), advance, start)


def _nearest_weights(points: Float[Array, "4 3"]) -> tuple[Float[Array, "4"], Bool[Array, ""]]:
    """Weights of the point nearest to the origin on a tetrahedron's surface, at most three not zero; whether the origin
    is inside. Corners may coincide."""
    along_edges = _edge_weights(points)
    on_faces, within = _face_weights(points)
    weights = jnp.concatenate([along_edges, on_faces])
    nearest = spatial.compose(weights, points)
    squared = spatial.dot(nearest, nearest)
    possible = jnp.concatenate([jnp.ones(len(EDGES), bool), within])
    best = jnp.argmin(jnp.where(possible, squared, jnp.full_like(squared, jnp.inf)))
    return weights[best], _encloses_origin(points)


def _one_hot(corners: np.ndarray, like: Array) -> list[Array]:
    """For each column of corner numbers, its rows as marks of the four corners."""
    return [constant(np.eye(4)[column], like, (len(column), 4)) for column in corners.T]


def _edge_weights(points: Float[Array, "4 3"]) -> Float[Array, "6 4"]:
    start, end = points[EDGES[:, 0]], points[EDGES[:, 1]]
    along = end - start
    squared = spatial.dot(along, along)
    t = -spatial.dot(start, along) / jnp.where(squared == 0, jnp.ones_like(squared), squared)
    t = jnp.clip(t, 0, 1)[:, None]
    first, second = _one_hot(EDGES, points)
    return (1 - t) * first + t * second


def _face_weights(points: Float[Array, "4 3"]) -> tuple[Float[Array, "4 4"], Bool[Array, "4"]]:
    """Weights of the origin's projections on the four faces, and which of them fall within their face."""
    p, q, r = (points[FACES[:, k]] for k in range(3))
    u, v = q - p, r - p
    normal = spatial.cross(u, v)
    area = spatial.dot(normal, normal)
    flat = area <= 1e-20 * spatial.dot(u, u) * spatial.dot(v, v)
    inverse = 1 / jnp.where(flat, jnp.ones_like(area), area)
    second = -spatial.dot(spatial.cross(p, v), normal) * inverse
    third = -spatial.dot(spatial.cross(u, p), normal) * inverse
    share = jnp.stack([1 - second - third, second, third])
    marks = jnp.stack(_one_hot(FACES, points))
    weights = jnp.sum(share[..., None] * marks, axis=0)
    return weights, ~flat & jnp.all(share > 0, axis=0)


def _encloses_origin(points: Float[Array, "4 3"]) -> Bool[Array, ""]:
    """Whether the origin is inside by more than rounding: corners may coincide, and volumes are then noise."""
    a, b, c, d = points
    lengths = jnp.sqrt(spatial.dot(points, points))
    noise = 16 * float(jnp.finfo(points.dtype).eps) * jnp.max(lengths) ** 3
    triple = lambda x, y, z: spatial.dot(spatial.cross(x, y), z)  # noqa: E731
    volumes = jnp.stack([triple(b, d, c), triple(a, c, d), triple(a, d, b), triple(a, b, c)])
    return jnp.all(volumes > noise) | jnp.all(volumes < -noise)
