"""The corners of shapes that are given by vertices."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import numpy as np

from knuckle.contact.hulls import LANES
from knuckle.contact.narrow import shape_name
from knuckle.model.geometry import SCALES, Geometry, Mesh

MOST_COMPARED = 4096  # corners; of larger hulls all are searched, since comparing them takes seconds
ROUNDING = 1e-6  # of a sine


def corner_table(geometry: Geometry, shapes: list[int]) -> np.ndarray:
    """Unscaled corners of each shape; where one has fewer than another, its last corner stands repeatedly."""
    corners = [corners_of(geometry, shape) for shape in shapes]
    count = max((len(c) for c in corners), default=0)
    return np.stack([np.pad(c, ((0, count - len(c)), (0, 0)), mode="edge") if len(c) else c for c in corners])


def corners_of(geometry: Geometry, shape: int) -> np.ndarray:
    """A mesh's hull corners, a polygon's corners or the points; none for other kinds."""
    kind, mesh = geometry.kind[shape], geometry.mesh[shape]
    if kind not in SCALES:
        return np.zeros((0, 3))
    if mesh is None or not len(mesh.vertices):
        raise ValueError(f"shape {shape_name(geometry, shape)!r}: a {kind} needs vertices to be touched, it has none")
    return hull_corners(mesh) if kind == "mesh" else mesh.vertices


@lru_cache(maxsize=256)
def hull_corners(mesh: Mesh) -> np.ndarray:
    """The vertices of a mesh's convex hull, neighbours together; all different ones where it is flat or a line."""
    from scipy.spatial import ConvexHull, QhullError  # slow to import

    different = np.unique(mesh.vertices, axis=0)
    with suppress(QhullError, ValueError):
        different = different[np.sort(ConvexHull(different).vertices)]
    return _neighbours_together(different)


def _neighbours_together(corners: np.ndarray) -> np.ndarray:
    """In an order in which blocks hold corners that are near each other: halved across the longest axis repeatedly."""
    if len(corners) <= LANES:
        return corners
    order = np.argsort(corners[:, np.ptp(corners, axis=0).argmax()], kind="stable")
    middle = LANES * (-(-len(corners) // LANES) // 2)
    return np.concatenate([_neighbours_together(corners[part]) for part in (order[:middle], order[middle:])])


@lru_cache(maxsize=256)
def blocks_as_low(mesh: Mesh, slope: float) -> tuple[np.ndarray, ...]:
    """For each block of a hull's corners, the blocks with corners that can be nearly as low as one of it, if that is
    the lowest over a plane: no higher than `slope` times the distance along the plane.

    If f is the lowest corner, the plane's normal is between those of the faces at f, turned round. Seen from f, v is
    then lowest over one of these faces g: v can be as low if g.(v - f) >= -sin(angle) |v - f| for one of them.
    """
    from scipy.spatial import ConvexHull, QhullError

    corners = hull_corners(mesh)
    every = np.arange(-(-len(corners) // LANES))
    if len(corners) > MOST_COMPARED:
        return (every,) * len(every)
    try:
        hull = ConvexHull(corners)
    except (QhullError, ValueError):
        return (every,) * len(every)
    sine = slope / np.hypot(1, slope) + ROUNDING
    corner, face = hull.simplices.T.ravel(), np.tile(np.arange(len(hull.simplices)), 3)
    found = []
    for block in every:
        here = corner // LANES == block
        f, g = corners[corner[here]], hull.equations[face[here], :3]
        along = g @ corners.T - np.sum(f * g, axis=1)[:, None]
        squared = np.sum(f * f, axis=1)[:, None] + np.sum(corners * corners, axis=1) - 2 * f @ corners.T
        near = sine**2 * squared + (ROUNDING * np.abs(corners).max()) ** 2
        low = np.any((along >= 0) | (along * along <= near), axis=0)
        found.append(np.unique(np.flatnonzero(low) // LANES))
    return tuple(found)
