"""The direction that separates two convex shapes most, and the features found on the way; nothing here is derived.

The signed distance is the largest, over unit vectors n, of how far a plane across n separates the shapes. Apart, GJK
finds it. Overlapping, shape a is moved out along the best n known and GJK tells how to turn n; the separation grows
each time (the convex-concave procedure), up to a local optimum. The best of several is taken, climbed to from the best
of many directions that look different ways.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.gjk import Simplex, are_apart, gjk
from knuckle.contact.support import Convex
from knuckle.contact.touch import constant, length_and_direction

DIRECTIONS = 256  # per shape, tried where shapes overlap, beside the axes of both
CLIMBS = 16
DIFFERENT = 0.985  # cosine; climbs start at least 10 degrees from each other
MOST_RISE = 0.4  # of the extent: more than a climb can gain within the 0.13 rad between directions
MOST_MOVES = 16

Vec3 = Float[Array, "3"]
Scalar = Float[Array, ""]


def tolerance(like: Array) -> float:
    """Of lengths, relative to the extent of the shapes."""
    return 1e-11 if like.dtype == jnp.float64 else 1e-5


def separation(a: Convex, b: Convex, n: Vec3) -> Scalar:
    """How far a plane across n separates the shapes without their balls, a on the side of n [m]."""
    return spatial.dot(n, a.furthest(-n)[0] - b.furthest(n)[0])


def are_farther(a: Convex, b: Convex, distance: Scalar) -> Bool[Array, ""]:
    """Whether a plane is found that keeps the shapes farther apart than this [m]; few steps if they are far apart.

    The first plane is across an axis of a bounding box; if it does not tell, GJK starts from there.
    """
    towards = _widest_axis(a, b)
    return are_apart(a, b, towards, tolerance(towards), distance + a.radius + b.radius)


def _widest_axis(a: Convex, b: Convex) -> Vec3:
    """The axis of either bounding box along which the boxes are farthest apart, from b towards a."""
    axes = jnp.concatenate([a.rotation.T, b.rotation.T])
    along = spatial.apply(axes, a.middle - b.middle)
    extents = [spatial.apply(jnp.abs(spatial.compose(axes, x.rotation)), x.half) for x in (a, b)]
    best = jnp.argmax(jnp.abs(along) - extents[0] - extents[1])
    return jnp.where(along[best] < 0, -axes[best], axes[best])


class Found(NamedTuple):
    """A direction, how far it separates, and the corners of both shapes that meet across it."""

    n: Vec3
    gap: Scalar
    simplex: Simplex


def separating_direction(a: Convex, b: Convex) -> Found:
    """The direction that separates most, to about the tolerance."""
    _, towards = length_and_direction(a.position - b.position, constant([0.0, 0.0, 1.0], a.position, (3,)))
    simplex = gjk(a, b, jnp.zeros_like(towards), towards, tolerance(towards))
    n = spatial.normalize(simplex.nearest)
    gap = separation(a, b, n)
    apart = ~simplex.overlap & (gap > 0)
    return jax.lax.cond(apart, lambda: Found(n, gap, simplex), lambda: _way_out(a, b))


def _way_out(a: Convex, b: Convex) -> Found:
    """The best of several climbs; starts from which none could rise above the best known are left out."""
    starts, gaps = _starts(a, b)
    rise = MOST_RISE * (a.extent + b.extent)

    def promising(state: tuple[Array, Found]) -> Array:
        number, best = state
        return (number < CLIMBS) & (gaps[jnp.minimum(number, CLIMBS - 1)] > best.gap - rise)

    def climb(state: tuple[Array, Found]) -> tuple[Array, Found]:
        number, best = state
        found = _climb(a, b, starts[number], gaps[number])
        return number + 1, jax.tree.map(lambda x, y: jnp.where(found.gap > best.gap, x, y), found, best)

    nothing = Found(starts[0], jnp.full_like(gaps[0], -jnp.inf), _no_simplex(a, b, starts[0]))
    return jax.lax.while_loop(promising, climb, (jnp.zeros((), jnp.int32), nothing))[1]


def _starts(a: Convex, b: Convex) -> tuple[Float[Array, "climb 3"], Float[Array, " climb"]]:
    """Directions that separate well, each different from the ones before, and how far they do."""
    directions = _directions(a, b)
    gaps = jax.lax.map(lambda n: separation(a, b, n), directions)

    def choose(left: Array, _) -> tuple[Array, tuple[Array, Array]]:
        best = jnp.argmax(left)
        near = spatial.dot(directions, directions[best][None]) > DIFFERENT
        return jnp.where(near, jnp.full_like(left, -jnp.inf), left), (directions[best], gaps[best])

    return jax.lax.scan(choose, gaps, None, length=CLIMBS)[1]


class _Climb(NamedTuple):
    found: Found
    done: Bool[Array, ""]
    count: Array


def _climb(a: Convex, b: Convex, start: Vec3, start_gap: Scalar) -> Found:
    clearance = 0.01 * (a.extent + b.extent)

    def move(old: _Climb) -> _Climb:
        before = old.found
        out = clearance - 1.1 * jnp.minimum(before.gap, jnp.zeros_like(before.gap))
        simplex = gjk(a, b, out * before.n, before.n, tolerance(start))
        n = spatial.normalize(simplex.nearest)
        gap = separation(a, b, n)
        worse = simplex.overlap | ~(gap >= before.gap - tolerance(n) * clearance)
        settled = spatial.dot(n - before.n, n - before.n) < tolerance(n) ** 2
        found = jax.tree.map(lambda x, y: jnp.where(worse, x, y), before, Found(n, gap, simplex))
        return _Climb(found, settled | worse, old.count + 1)

    first = _Climb(Found(start, start_gap, _no_simplex(a, b, start)), start[0] != start[0], jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda s: ~s.done & (s.count < MOST_MOVES), move, first).found


def _no_simplex(a: Convex, b: Convex, n: Vec3) -> Simplex:
    """The corners that lie furthest along n, for want of better."""
    (p_a, label_a), (p_b, label_b) = a.furthest(-n), b.furthest(n)
    weights = constant([1.0, 0.0, 0.0, 0.0], n, (4,))
    return Simplex(jnp.tile(p_a - p_b, (4, 1)), jnp.tile(label_a, 4), jnp.tile(label_b, 4), weights, n, n[0] != n[0])


def _fibonacci_sphere(count: int) -> np.ndarray:
    k = np.arange(count) + 0.5
    z, angle = 1 - 2 * k / count, np.pi * (1 + 5**0.5) * k
    across = np.sqrt(1 - z**2)
    return np.stack([across * np.cos(angle), across * np.sin(angle), z], axis=1)


_SPREAD = _fibonacci_sphere(DIRECTIONS)


def _directions(a: Convex, b: Convex) -> Float[Array, "direction 3"]:
    """Directions all round and along the axes, as many fixed in each shape: they turn with a scene, and swapping the
    shapes turns them round."""
    R_a, R_b = a.rotation, b.rotation
    spread = constant(_SPREAD, R_b, _SPREAD.shape)
    all_round = spatial.compose(spread, R_b.T), -spatial.compose(spread, R_a.T)
    return jnp.concatenate([R_a.T, -R_a.T, R_b.T, -R_b.T, *all_round])
