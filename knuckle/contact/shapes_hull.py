"""Convex hulls of many corners against planes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.hulls import Corners, Table, corner, highest, tabulate
from knuckle.contact.manifold import NARROW, SLOPE
from knuckle.contact.touch import INACTIVE_GAP, Touch
from knuckle.contact.vertices import blocks_as_low, corners_of
from knuckle.kinematics import Poses
from knuckle.model.geometry import Geometry
from knuckle.tree import rows

SLOTS = 4
EQUAL_SCALES = 1e-6  # relative; what can be low is known for a hull that keeps its shape

Vec3 = Float[Array, "3"]
Mat3 = Float[Array, "3 3"]
Chosen = tuple[Int[Array, "4"], Bool[Array, "4"]]  # numbers of corners, and which slots are empty


class Hulls(NamedTuple):
    """The corners of hulls, and a list of blocks: for each block those that can touch a plane with it."""

    table: Table
    low: Int[Array, " place"]
    low_start: Int[Array, " block"]
    low_stop: Int[Array, " block"]


class Hull(NamedTuple):
    """A hull in the world, one row per hull; `scale` multiplies its corners."""

    rotation: Float[Array, "*hull 3 3"]
    position: Float[Array, "*hull 3"]
    scale: Float[Array, "*hull 3"]
    corners: Corners
    every: Int[Array, "*hull 2"]  # where in the list all its blocks stand


def place_hulls(geometry: Geometry, shapes: list[int], at: Poses) -> tuple[Hulls, Hull]:
    """The hulls of meshes by number of the shape."""
    scale = rows(jnp.asarray(geometry.size), np.array(shapes))
    blocks, corners = tabulate([corners_of(geometry, shape) for shape in shapes])
    lists: list[np.ndarray] = [np.zeros(0, int)] * len(blocks)
    whole: dict[int, np.ndarray] = {}
    for shape, start, stop in zip(shapes, corners.start, corners.stop, strict=True):
        mesh = geometry.mesh[shape]
        assert mesh is not None
        lists[start:stop] = [start + low for low in blocks_as_low(mesh, SLOPE)]
        whole[start] = np.arange(start, stop)
    ends = np.cumsum([0, *map(len, lists), *map(len, whole.values())])
    number = {start: len(lists) + k for k, start in enumerate(whole)}
    every = np.array([ends[number[start] : number[start] + 2] for start in corners.start])
    listed = np.concatenate([*lists, *whole.values()])
    low, low_start, low_stop, every = (
        jnp.asarray(x.astype(np.int32)) for x in (listed, ends[: len(lists)], ends[1 : len(lists) + 1], every)
    )
    corners = Corners(*(jnp.asarray(x, scale.dtype if x.dtype.kind == "f" else x.dtype) for x in corners))
    hulls = Hulls(jnp.asarray(blocks, scale.dtype), low, low_start, low_stop)
    return hulls, Hull(at.rotation, at.position, scale, corners, every)


def hull_plane(hulls: Hulls, hull: Hull, plane: tuple[Mat3, Vec3], reach: Float[Array, ""] | None = None) -> Touch:
    """Up to four corners of one hull: the lowest, and others nearly as low, spread wide (see `manifold.spread`).

    They stand in the order of their numbers, so that a corner keeps its slot while the same ones are chosen. A hull
    that is farther from the plane than `reach` [m] has one contact. The choice has no derivative.
    """
    R, p = plane
    axes = jax.lax.stop_gradient(spatial.compose(hull.rotation.T, R) * hull.scale[:, None])
    (first,), (depth,) = highest(hulls.table, hull.corners.blocks, lambda u: [-spatial.dot(axes[:, 2], u)])
    height = jax.lax.stop_gradient(spatial.dot(R[:, 2], hull.position - p)) - depth

    def alone() -> Chosen:
        return jnp.full(SLOTS, first), jnp.arange(SLOTS) > 0

    def several() -> Chosen:
        return _spread(hulls, hull, axes, first)

    chosen, empty = several() if reach is None else jax.lax.cond(height > reach, alone, several)
    points = hull.position[None] + spatial.apply(hull.rotation[None], hull.scale[None] * corner(hulls.table, chosen))
    normal = jnp.broadcast_to(R[:, 2], points.shape)
    gap = spatial.dot(normal, points - p[None])
    return Touch(jnp.where(empty, INACTIVE_GAP, gap), points - 0.5 * gap[:, None] * normal, normal)


def _spread(hulls: Hulls, hull: Hull, axes: Mat3, first: Int[Array, ""]) -> Chosen:
    """Which corners to keep over a plane of which the first is lowest; columns of `axes`: the plane's, scaled."""
    blocks = _blocks_to_search(hulls, hull, first)
    axes = jnp.concatenate([axes[:, :2], axes[:, 2:] * (1 / SLOPE)], axis=1)
    start = spatial.apply_transpose(axes, corner(hulls.table, first))

    def place(u: Vec3) -> tuple[Array, Array, Array]:
        """Along the plane from the first corner, and the distance that makes up for its height."""
        x, y, up = (spatial.dot(axes[:, k], u) - start[k] for k in range(3))
        return x, y, up

    def far(u: Vec3) -> list[Array]:
        x, y, up = place(u)
        return [jnp.sqrt(x * x + y * y) - up]

    (second,), (length,) = highest(hulls.table, blocks, far, hulls.low)
    x, y, _ = place(corner(hulls.table, second))
    along = spatial.normalize(jnp.stack([x, y]))

    def beside(u: Vec3) -> list[Array]:
        x, y, up = place(u)
        across = along[0] * y - along[1] * x
        return [across - up, -across - up]

    sides, widths = highest(hulls.table, blocks, beside, hulls.low)
    extent = spatial.apply_transpose(jnp.abs(axes[:, :2]), hull.corners.span)
    least = NARROW * jnp.sqrt(spatial.dot(extent, extent))
    empty = jnp.concatenate([jnp.zeros(1, bool), jnp.concatenate([length[None], widths]) <= least])
    last = jnp.iinfo(jnp.int32).max
    order = jnp.sort(jnp.where(empty, last, jnp.concatenate([first[None], second[None], sides])))
    return jnp.where(order == last, first, order), order == last


def _blocks_to_search(hulls: Hulls, hull: Hull, first: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Those that can be low where the first corner is lowest; all if scales differ."""
    block, size = first // hulls.table.shape[2], jnp.abs(jax.lax.stop_gradient(hull.scale))
    equal = jnp.max(size) <= (1 + EQUAL_SCALES) * jnp.min(size)
    start, stop = hulls.low_start[block], hulls.low_stop[block]
    return jnp.where(equal, start, hull.every[0]), jnp.where(equal, stop, hull.every[1])
