"""Shapes that are touched and drawn: as values for building, and as differentiable arrays of a model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from knuckle.model.inertia import moment_of, rotation_matrix

ShapeKind = Literal["sphere", "capsule", "box", "cylinder", "ellipsoid", "plane", "mesh", "polygon", "points"]
SIZES = {"sphere": 1, "capsule": 2, "box": 3, "cylinder": 2, "ellipsoid": 3, "plane": 0}
SCALES = {"mesh": 3, "polygon": 2, "points": 3}  # their sizes multiply vertices, and are 1 where left out
SIZES |= SCALES


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangle mesh, equal to another of the same content."""

    vertices: np.ndarray
    faces: np.ndarray
    path: str = ""

    def __post_init__(self):
        object.__setattr__(self, "vertices", np.asarray(self.vertices, float).reshape(-1, 3))
        object.__setattr__(self, "faces", np.asarray(self.faces, np.int32).reshape(-1, 3))
        content = self.vertices.tobytes() + b"|" + self.faces.tobytes() + self.path.encode()
        object.__setattr__(self, "digest", hashlib.sha256(content).hexdigest())

    def __hash__(self):
        return hash(self.digest)  # type: ignore[attr-defined]

    def __eq__(self, other):
        return isinstance(other, Mesh) and self.digest == other.digest  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Shape:
    """One shape on a link. Sizes in m: sphere (radius), capsule and cylinder (radius, half length along z), box and
    ellipsoid (three half lengths), plane (none; its normal is z), mesh and points (a scale per axis), polygon (a scale
    along x and y). A mesh is touched as its convex hull; a polygon lies in its own x-y plane, for planar models; points
    are touched one by one."""

    kind: ShapeKind
    size: tuple[float, ...] = ()
    position: tuple[float, ...] | np.ndarray = (0.0, 0.0, 0.0)
    rotation: tuple[float, ...] | np.ndarray = (1.0, 0.0, 0.0, 0.0)
    name: str = ""
    friction: tuple[float, ...] = (1.0, 0.005, 0.0001)  # sliding, torsional [m], rolling [m]
    contype: int = 1
    conaffinity: int = 1  # two shapes may touch if one's contype shares a bit with the other's conaffinity
    rgba: tuple[float, ...] = (0.5, 0.5, 0.5, 1.0)
    mesh: Mesh | None = None

    def __post_init__(self):
        if self.kind not in SIZES:
            raise ValueError(f"shape {self.name!r}: kind must be one of {sorted(SIZES)}, got {self.kind!r}")
        size = tuple(float(s) for s in np.ravel(self.size))
        size = size or (1.0,) * SCALES.get(self.kind, 0)
        if len(size) != SIZES[self.kind] or not all(0 < s < np.inf for s in map(abs, size)):
            wanted = f"{SIZES[self.kind]} positive sizes [m], all finite"
            raise ValueError(f"shape {self.name!r}: a {self.kind} takes {wanted}, got {list(size)}")
        if self.kind != "mesh" and any(s < 0 for s in size):
            raise ValueError(f"shape {self.name!r}: sizes must be positive, got {list(size)}")
        object.__setattr__(self, "size", size)
        friction = tuple(float(f) for f in np.ravel(self.friction))
        if not 1 <= len(friction) <= 3 or not all(0 <= f < np.inf for f in friction):
            raise ValueError(
                f"shape {self.name!r}: friction takes 1 to 3 finite numbers, none negative, got {list(friction)}"
            )
        object.__setattr__(self, "friction", friction + (1.0, 0.005, 0.0001)[len(friction) :])

    @property
    def has_volume(self) -> bool:
        """Whether it can stand for a uniform solid."""
        return self.kind in _UNIT_MOMENTS

    def moment(self, mass: float) -> np.ndarray:
        """Central moments of a uniform solid of this shape, in the link's axes [kg m^2]."""
        principal = mass * np.array(_UNIT_MOMENTS[self.kind](*self.size))
        R = rotation_matrix(self.rotation)
        return moment_of(_symmetric(R @ np.diag(principal) @ R.T), self.name)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return 0.5 * (matrix + matrix.T)


def _capsule_moments(r: float, h: float) -> tuple[float, float, float]:
    cylinder, ball = 2 * h, 4 * r / 3  # volumes over pi r^2
    share = ball / (cylinder + ball)
    across = (1 - share) * (r**2 / 4 + h**2 / 3) + share * (0.4 * r**2 + h**2 + 0.75 * h * r)
    along = (1 - share) * r**2 / 2 + share * 0.4 * r**2
    return across, across, along


_UNIT_MOMENTS = {
    "sphere": lambda r: (0.4 * r**2,) * 3,
    "box": lambda x, y, z: ((y**2 + z**2) / 3, (x**2 + z**2) / 3, (x**2 + y**2) / 3),
    "ellipsoid": lambda x, y, z: ((y**2 + z**2) / 5, (x**2 + z**2) / 5, (x**2 + y**2) / 5),
    "cylinder": lambda r, h: (r**2 / 4 + h**2 / 3, r**2 / 4 + h**2 / 3, r**2 / 2),
    "capsule": _capsule_moments,
}


def sphere(radius: float, **options) -> Shape:
    return Shape("sphere", (radius,), **options)


def capsule(radius: float, half_length: float, **options) -> Shape:
    return Shape("capsule", (radius, half_length), **options)


def box(half_x: float, half_y: float, half_z: float, **options) -> Shape:
    return Shape("box", (half_x, half_y, half_z), **options)


def cylinder(radius: float, half_length: float, **options) -> Shape:
    return Shape("cylinder", (radius, half_length), **options)


def ellipsoid(half_x: float, half_y: float, half_z: float, **options) -> Shape:
    return Shape("ellipsoid", (half_x, half_y, half_z), **options)


def plane(**options) -> Shape:
    return Shape("plane", **options)


def polygon(vertices, **options) -> Shape:
    """A convex polygon in the shape's x-y plane, corners counter-clockwise: the solid of a planar model."""
    name, corners = options.get("name", ""), np.asarray(vertices, float)
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3:
        raise ValueError(f"shape {name!r}: a polygon takes at least 3 corners (x, y) [m], got shape {corners.shape}")
    edge = np.roll(corners, -1, axis=0) - corners
    after = np.roll(edge, -1, axis=0)
    turn = edge[:, 0] * after[:, 1] - edge[:, 1] * after[:, 0]
    total = np.arctan2(turn, np.sum(edge * after, axis=1)).sum()
    if not (np.all(turn > 0) and abs(total - 2 * np.pi) < 1e-6):
        raise ValueError(f"shape {name!r}: corners must go counter-clockwise round a convex polygon, got {vertices}")
    return Shape("polygon", mesh=Mesh(np.pad(corners, ((0, 0), (0, 1))), np.zeros((0, 3))), **options)


def points(positions, **options) -> Shape:
    """Contact points chosen in advance, in the shape's frame [m]."""
    places = np.asarray(positions, float)
    if places.ndim != 2 or places.shape[1] != 3 or not len(places):
        name = options.get("name", "")
        raise ValueError(f"shape {name!r}: points take one (x, y, z) [m] each, got shape {places.shape}")
    return Shape("points", mesh=Mesh(places, np.zeros((0, 3))), **options)


class Geometry(eqx.Module):
    """All shapes of a model: arrays are parameters, static fields say what they are."""

    position: Float[Array | np.ndarray, "shape 3"]  # in the link's frame [m]
    rotation: Float[Array | np.ndarray, "shape 4"]
    size: Float[Array | np.ndarray, "shape 3"]  # see Shape; unused entries are zero
    friction: Float[Array | np.ndarray, "shape 3"]
    kind: tuple[ShapeKind, ...] = eqx.field(static=True)
    link: tuple[int, ...] = eqx.field(static=True)  # -1 is the world
    names: tuple[str, ...] = eqx.field(static=True)
    body: tuple[str, ...] = eqx.field(static=True)  # the described link, before welding
    contype: tuple[int, ...] = eqx.field(static=True)
    conaffinity: tuple[int, ...] = eqx.field(static=True)
    rgba: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    mesh: tuple[Mesh | None, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.kind)

    @staticmethod
    def of(shapes: list[tuple[int, str, Shape]]) -> Geometry:
        """The arrays of shapes given with the index of their link and the name of the link that described them."""
        only = [shape for _, _, shape in shapes]
        return Geometry(
            position=np.array([s.position for s in only], float).reshape(-1, 3),
            rotation=np.array([s.rotation for s in only], float).reshape(-1, 4),
            size=np.array([(*s.size, 0.0, 0.0, 0.0)[:3] for s in only], float).reshape(-1, 3),
            friction=np.array([s.friction for s in only], float).reshape(-1, 3),
            kind=tuple(s.kind for s in only),
            link=tuple(link for link, _, _ in shapes),
            names=tuple(s.name for s in only),
            body=tuple(body for _, body, _ in shapes),
            contype=tuple(s.contype for s in only),
            conaffinity=tuple(s.conaffinity for s in only),
            rgba=tuple(tuple(float(c) for c in s.rgba) for s in only),
            mesh=tuple(s.mesh for s in only),
        )


__all__ = [
    "Geometry",
    "Mesh",
    "Shape",
    "box",
    "capsule",
    "cylinder",
    "ellipsoid",
    "plane",
    "points",
    "polygon",
    "sphere",
]
