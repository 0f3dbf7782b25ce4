"""The corners of shapes that are given by vertices."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from knuckle.contact.narrow import shape_name
from knuckle.model.geometry import SCALES, Geometry, Mesh


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
    """The vertices of a mesh's convex hull; all different vertices where it is flat or a line."""
    from scipy.spatial import ConvexHull, QhullError  # slow to import

    different = np.unique(mesh.vertices, axis=0)
    try:
        return different[np.sort(ConvexHull(different).vertices)]
    except (QhullError, ValueError):
        return different
