"""Shapes of a model as shaded triangles, seen by a camera without perspective."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.spatial import ConvexHull

from knuckle.model.inertia import rotation_matrix
from knuckle.model.model import Model

GREY = (0.45, 0.48, 0.52)
LIGHT = np.array([-0.35, -0.55, 0.76])  # unit vector towards the light
AMBIENT = 0.62


class Solid(NamedTuple):
    """A convex body on a link (-1 is the world): triangles and their outward normals in the link's frame."""

    link: int
    triangles: np.ndarray  # (face, 3, 3)
    normals: np.ndarray  # (face, 3)
    color: tuple[float, ...]

    @property
    def points(self) -> np.ndarray:
        return self.triangles.reshape(-1, 3)


class Camera(NamedTuple):
    """Orthographic: picture axes and the direction from the scene to the eye, in the world."""

    right: np.ndarray
    up: np.ndarray
    eye: np.ndarray

    def picture(self, points: np.ndarray) -> np.ndarray:
        return np.stack([points @ self.right, points @ self.up], axis=-1)


def camera(direction: tuple[float, float]) -> Camera:
    """A camera that looks at the scene from an azimuth about z (0: from +x) and an elevation [rad]."""
    azimuth, elevation = direction
    eye = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
    return Camera(right, np.cross(eye, right), eye)


def solids(model: Model) -> list[Solid]:
    """All shapes but planes; a link that has none, nor any of its own mass drawn, becomes a stick."""
    geometry = model.geometry
    drawn = [_shape(model, k) for k, kind in enumerate(geometry.kind) if kind != "plane" and geometry.rgba[k][3] > 0]
    bare = [k for k in range(len(model.link_names)) if k not in {s.link for s in drawn}]
    return drawn + _sticks(model, bare)


def _shape(model: Model, k: int) -> Solid:
    geometry = model.geometry
    points = _surface(geometry.kind[k], np.asarray(geometry.size[k]), geometry.mesh[k])
    R, p = rotation_matrix(np.asarray(geometry.rotation[k])), np.asarray(geometry.position[k])
    return _hull(geometry.link[k], points @ R.T + p, geometry.rgba[k][:3])


def _hull(link: int, points: np.ndarray, color) -> Solid:
    hull = ConvexHull(points, qhull_options="QJ")
    return Solid(link, points[hull.simplices], hull.equations[:, :3], tuple(color))


def _surface(kind: str, size: np.ndarray, mesh) -> np.ndarray:
    """Points whose convex hull is the shape (see `Shape` for what the sizes mean)."""
    if kind == "box":
        return np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * size
    if kind == "mesh":
        return np.asarray(mesh.vertices) * size
    if kind == "cylinder":
        angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
        rim = np.stack([size[0] * np.cos(angle), size[0] * np.sin(angle), np.full_like(angle, size[1])], axis=1)
        return np.concatenate([rim, rim * [1, 1, -1]])
    ball = _unit_sphere()
    if kind == "capsule":
        return np.concatenate([ball * size[0] + [0, 0, size[1]], ball * size[0] - [0, 0, size[1]]])
    return ball * (size[0] if kind == "sphere" else size)


def _unit_sphere(count: int = 160) -> np.ndarray:
    """Nearly even points on a sphere, along a spiral by the golden angle."""
    z = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (3 - np.sqrt(5)) * np.arange(count)
    ring = np.sqrt(1 - z**2)
    return np.stack([ring * np.cos(angle), ring * np.sin(angle), z], axis=1)


def _sticks(model: Model, links: list[int]) -> list[Solid]:
    """Thin rods from a link's origin to its children, or through its centre of mass where it has none."""
    ends = {k: [np.asarray(model.position[c]) for c, p in enumerate(model.topology.parent) if p == k] for k in links}
    com = np.asarray(model.inertia.com)
    ends = {k: points or [2 * com[k]] for k, points in ends.items()}
    lengths = [np.linalg.norm(point) for points in ends.values() for point in points]
    radius = 0.03 * max([*lengths, 0.1])
    ball = radius * _unit_sphere(80)
    return [_hull(k, np.concatenate([ball, ball + point]), GREY) for k, points in ends.items() for point in points]


def shaded(
    bodies: list[Solid], rotation: np.ndarray, position: np.ndarray, view: Camera, fade: float
) -> tuple[np.ndarray, np.ndarray]:
    """Triangles in the picture, far bodies first, and their colours; `fade` 0 is full colour, 1 white.

    The poses of the links are those of `kinematics.poses`.
    """
    placed = [_place(body, rotation, position) for body in bodies]
    placed.sort(key=lambda body: float(body.points.mean(axis=0) @ view.eye))
    faces = [body.normals @ view.eye > 0 for body in placed]
    triangles = np.concatenate([body.triangles[seen] for body, seen in zip(placed, faces, strict=True)])
    normals = np.concatenate([body.normals[seen] for body, seen in zip(placed, faces, strict=True)])
    colors = np.repeat([body.color for body in placed], [int(seen.sum()) for seen in faces], axis=0)
    light = AMBIENT + (1 - AMBIENT) * np.clip(normals @ LIGHT, -0.6, 1.0)
    colors = np.clip(colors * light[:, None], 0, 1)
    return view.picture(triangles), colors + (1 - colors) * fade


def _place(body: Solid, rotation: np.ndarray, position: np.ndarray) -> Solid:
    if body.link < 0:
        return body
    R, p = rotation[body.link], position[body.link]
    return body._replace(triangles=body.triangles @ R.T + p, normals=body.normals @ R.T)
