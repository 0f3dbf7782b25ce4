"""Shapes that are touched and drawn: as values for building, and as differentiable arrays of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from knuckle.model.inertia import is_traced, moment_of, numbers, rotation_matrix, table
from knuckle.model.options import spelled_out

ShapeKind = Literal["sphere", "capsule", "box", "cylinder", "ellipsoid", "plane", "mesh", "polygon", "points"]
SIZES = {"sphere": 1, "capsule": 2, "box": 3, "cylinder": 2, "ellipsoid": 3, "plane": 0}
SCALES = {"mesh": 3, "polygon": 2, "points": 3}  # their sizes multiply vertices, and are 1 where left out
SIZES |= SCALES
FRICTION = (1.0, 0.005, 0.0001)  # sliding, torsional [m], rolling [m]
SOLREF, SOLIMP = (0.02, 1.0), (0.9, 0.95, 0.001, 0.5, 2.0)  # how soft contact is by default in MuJoCo
CONDIMS = (1, 3, 4, 6)


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
    friction: tuple[float, ...] = FRICTION
    contype: int = 1
    conaffinity: int = 1  # two shapes may touch if one's contype shares a bit with the other's conaffinity
    rgba: tuple[float, ...] = (0.5, 0.5, 0.5, 1.0)
    mesh: Mesh | None = None
    margin: float = 0.0  # by which the surface stands out where it is touched [m]; margins of two shapes add up
    priority: int = 0  # of two shapes the one of higher priority decides friction; of equal ones, the larger friction
    gap: float = 0.0  # MuJoCo lists contacts that are apart by this much more [m]; no effect on motion
    solref: tuple[float, ...] = SOLREF  # MuJoCo's softness of contact; kept, contact here is as its model says
    solimp: tuple[float, ...] = SOLIMP
    solmix: float = 1.0
    condim: int = 3  # 1: without friction; 3: sliding; 4: and torsional; 6: and rolling; the larger of two counts

    def __post_init__(self):
        if self.condim not in CONDIMS:
            raise ValueError(f"shape {self.name!r}: condim must be 1, 3, 4 or 6, got {self.condim!r}")
        if self.kind not in SIZES:
            raise ValueError(f"shape {self.name!r}: kind must be one of {sorted(SIZES)}, got {self.kind!r}")
        size = _flat(self.size) or (1.0,) * SCALES.get(self.kind, 0)
        known = [s for s in size if not is_traced(s)]
        if len(size) != SIZES[self.kind] or not all(0 < s < np.inf for s in map(abs, known)):
            wanted = f"{SIZES[self.kind]} positive sizes [m], all finite"
            raise ValueError(f"shape {self.name!r}: a {self.kind} takes {wanted}, got {list(size)}")
        if self.kind != "mesh" and any(s < 0 for s in known):
            raise ValueError(f"shape {self.name!r}: sizes must be positive, got {list(size)}")
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "friction", checked_friction(self.friction, f"shape {self.name!r}"))
        for name, count in (("margin", 0), ("gap", 0), ("solmix", 0), ("solref", 2), ("solimp", 5)):
            _check_finite(getattr(self, name), count, f"shape {self.name!r}: {name}")

    @property
    def has_volume(self) -> bool:
        """Whether it can stand for a uniform solid."""
        return self.kind in _UNIT_MOMENTS

    def moment(self, mass) -> np.ndarray:
        """Central moments of a uniform solid of this shape, in the link's axes [kg m^2]."""
        principal = mass * numbers(list(_UNIT_MOMENTS[self.kind](*self.size)))
        R = rotation_matrix(self.rotation)
        return moment_of(_symmetric((R * principal[None, :]) @ R.T), self.name)


def _flat(values) -> tuple:
    """Numbers one by one, traced ones as they are."""
    if not is_traced(values):
        return tuple(float(s) for s in np.ravel(values))
    return tuple(values) if isinstance(values, (tuple, list)) else tuple(numbers(values).reshape(-1))


def checked_friction(values, where: str) -> tuple[float, ...]:
    """Sliding, torsional and rolling friction, the default where the last ones are left out."""
    friction = _flat(values)
    if not 1 <= len(friction) <= 3 or not all(is_traced(f) or 0 <= f < np.inf for f in friction):
        raise ValueError(f"{where}: friction takes 1 to 3 finite numbers, none negative, got {list(friction)}")
    return friction + FRICTION[len(friction) :]


def _check_finite(value, count: int, where: str) -> None:
    """One number (count 0), or so many."""
    if is_traced(value) and numbers(value).shape == ((count,) if count else ()):
        return
    if np.shape(value) != ((count,) if count else ()) or not np.all(np.isfinite(value)):
        raise ValueError(f"{where} takes {count or 1} finite number{'s' * (count > 1)}, got {value!r}")


@dataclass(frozen=True)
class ContactPair:
    """Two shapes, by name, that may touch whatever their contype, links and excludes say, with settings of their own.

    As MuJoCo's <pair>: they stand in place of what the two shapes have. Units as in `Shape`.
    """

    shape_a: str
    shape_b: str
    friction: tuple[float, ...] = FRICTION
    margin: float = 0.0
    condim: int = 3  # 1: without friction; 3: sliding; 4: and torsional; 6: and rolling
    gap: float = 0.0
    solref: tuple[float, ...] = SOLREF
    solreffriction: tuple[float, ...] = (0.0, 0.0)
    solimp: tuple[float, ...] = SOLIMP
    name: str = ""

    def __post_init__(self):
        where = f"pair {self.shape_a!r}, {self.shape_b!r}"
        object.__setattr__(self, "friction", checked_friction(self.friction, where))
        for name, count in (("margin", 0), ("gap", 0), ("solref", 2), ("solreffriction", 2), ("solimp", 5)):
            _check_finite(getattr(self, name), count, f"{where}: {name}")
        if self.condim not in (1, 3, 4, 6):
            raise ValueError(f"{where}: condim must be 1, 3, 4 or 6, got {self.condim!r}")


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


_shape_options = spelled_out(Shape, without=("kind", "size", "mesh"))
_scaled_options = spelled_out(Shape, without=("kind", "mesh"))


@_shape_options
def sphere(radius: float, **options: Any) -> Shape:
    """A ball of a radius [m]."""
    return Shape("sphere", (radius,), **options)


@_shape_options
def capsule(radius: float, half_length: float, **options: Any) -> Shape:
    """A cylinder along z with half balls at its ends; the half length is without them [m]."""
    return Shape("capsule", (radius, half_length), **options)


@_shape_options
def box(half_x: float, half_y: float, half_z: float, **options: Any) -> Shape:
    """A box by its half lengths [m]."""
    return Shape("box", (half_x, half_y, half_z), **options)


@_shape_options
def cylinder(radius: float, half_length: float, **options: Any) -> Shape:
    """A cylinder along z [m]."""
    return Shape("cylinder", (radius, half_length), **options)


@_shape_options
def ellipsoid(half_x: float, half_y: float, half_z: float, **options: Any) -> Shape:
    """An ellipsoid by its half axes [m]."""
    return Shape("ellipsoid", (half_x, half_y, half_z), **options)


@_shape_options
def plane(**options: Any) -> Shape:
    """The half space below the shape's x-y plane."""
    return Shape("plane", **options)


def _fixed(vertices) -> np.ndarray:
    if is_traced(vertices):
        raise TypeError("vertices cannot be traced: they are fixed; make the shape's scale (size=...) a parameter")
    return np.asarray(vertices, float)


@_scaled_options
def polygon(vertices, **options: Any) -> Shape:
    """A convex polygon in the shape's x-y plane, corners counter-clockwise: the solid of a planar model."""
    name, corners = options.get("name", ""), _fixed(vertices)
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3:
        raise ValueError(f"shape {name!r}: a polygon takes at least 3 corners (x, y) [m], got shape {corners.shape}")
    edge = np.roll(corners, -1, axis=0) - corners
    after = np.roll(edge, -1, axis=0)
    turn = edge[:, 0] * after[:, 1] - edge[:, 1] * after[:, 0]
    total = np.arctan2(turn, np.sum(edge * after, axis=1)).sum()
    if not (np.all(turn > 0) and abs(total - 2 * np.pi) < 1e-6):
        raise ValueError(f"shape {name!r}: corners must go counter-clockwise round a convex polygon, got {vertices}")
    return Shape("polygon", mesh=Mesh(np.pad(corners, ((0, 0), (0, 1))), np.zeros((0, 3))), **options)


@_scaled_options
def points(positions, **options: Any) -> Shape:
    """Contact points chosen in advance, in the shape's frame [m]."""
    places = _fixed(positions)
    if places.ndim != 2 or places.shape[1] != 3 or not len(places):
        name = options.get("name", "")
        raise ValueError(f"shape {name!r}: points take one (x, y, z) [m] each, got shape {places.shape}")
    return Shape("points", mesh=Mesh(places, np.zeros((0, 3))), **options)


class ContactPairs(eqx.Module):
    """Pairs of shapes with settings of their own; see `ContactPair`."""

    friction: Float[Array | np.ndarray, "pair 3"]
    margin: Float[Array | np.ndarray, " pair"]  # [m]
    a: tuple[int, ...] = eqx.field(static=True, default=())
    b: tuple[int, ...] = eqx.field(static=True, default=())
    condim: tuple[int, ...] = eqx.field(static=True, default=())
    gap: tuple[float, ...] = eqx.field(static=True, default=())
    solref: tuple[tuple[float, ...], ...] = eqx.field(static=True, default=())
    solreffriction: tuple[tuple[float, ...], ...] = eqx.field(static=True, default=())
    solimp: tuple[tuple[float, ...], ...] = eqx.field(static=True, default=())
    names: tuple[str, ...] = eqx.field(static=True, default=())

    def __len__(self) -> int:
        return len(self.a)

    @staticmethod
    def of(pairs: Sequence[ContactPair], shapes: Sequence[str]) -> ContactPairs:
        """The arrays of pairs, in the order of the shapes.

        Raises ValueError that names a shape which is not there, or a pair that stands twice.
        """
        numbers = {name: k for k, name in enumerate(shapes)}
        ends = [sorted(_shape_number(shapes, name, pair) for name in (pair.shape_a, pair.shape_b)) for pair in pairs]
        for number, pair in enumerate(pairs):
            if ends[number][0] == ends[number][1] or ends[number] in ends[:number]:
                raise ValueError(f"pair {pair.shape_a!r}, {pair.shape_b!r}: two shapes, and no two a second time")
        pairs = sorted(pairs, key=lambda pair: sorted((numbers[pair.shape_a], numbers[pair.shape_b])))
        ends = sorted(ends)
        return ContactPairs(
            friction=table([p.friction for p in pairs], -1, 3),
            margin=table([p.margin for p in pairs], -1),
            a=tuple(a for a, _ in ends),
            b=tuple(b for _, b in ends),
            condim=tuple(int(p.condim) for p in pairs),
            gap=tuple(float(p.gap) for p in pairs),
            solref=tuple(tuple(map(float, p.solref)) for p in pairs),
            solreffriction=tuple(tuple(map(float, p.solreffriction)) for p in pairs),
            solimp=tuple(tuple(map(float, p.solimp)) for p in pairs),
            names=tuple(p.name for p in pairs),
        )


def _shape_number(names: Sequence[str], name: str, pair: ContactPair) -> int:
    if list(names).count(name) != 1 or not name:
        there = ", ".join(filter(None, names)) or "none with a name"
        raise ValueError(f"pair {pair.shape_a!r}, {pair.shape_b!r}: expected one shape {name!r}; there are {there}")
    return list(names).index(name)


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
    margin: Float[Array | np.ndarray, " shape"] = eqx.field(default_factory=lambda: np.zeros(0))  # [m]; left out: zero
    pairs: ContactPairs = eqx.field(default_factory=lambda: ContactPairs.of((), ()))  # with settings of their own
    priority: tuple[int, ...] = eqx.field(static=True, default=())
    gap: tuple[float, ...] = eqx.field(static=True, default=())
    solref: tuple[tuple[float, ...], ...] = eqx.field(static=True, default=())
    solimp: tuple[tuple[float, ...], ...] = eqx.field(static=True, default=())
    solmix: tuple[float, ...] = eqx.field(static=True, default=())
    condim: tuple[int, ...] = eqx.field(static=True, default=())

    def __post_init__(self):
        count = len(self.kind)
        usual = {"condim": 3, "priority": 0, "gap": 0.0, "solref": SOLREF, "solimp": SOLIMP, "solmix": 1.0}
        for name, value in usual.items():
            if not getattr(self, name):
                setattr(self, name, (value,) * count)
        if not np.size(self.margin):
            self.margin = np.zeros(count)

    def __len__(self) -> int:
        return len(self.kind)

    @staticmethod
    def of(shapes: list[tuple[int, str, Shape]], pairs: Sequence[ContactPair] = ()) -> Geometry:
        """The arrays of shapes given with the index of their link and the name of the link that described them."""
        only = [shape for _, _, shape in shapes]
        return Geometry(
            position=table([s.position for s in only], -1, 3),
            rotation=table([s.rotation for s in only], -1, 4),
            size=table([(*s.size, 0.0, 0.0, 0.0)[:3] for s in only], -1, 3),
            friction=table([s.friction for s in only], -1, 3),
            kind=tuple(s.kind for s in only),
            link=tuple(link for link, _, _ in shapes),
            names=tuple(s.name for s in only),
            body=tuple(body for _, body, _ in shapes),
            contype=tuple(s.contype for s in only),
            conaffinity=tuple(s.conaffinity for s in only),
            rgba=tuple(tuple(float(c) for c in s.rgba) for s in only),
            mesh=tuple(s.mesh for s in only),
            margin=table([s.margin for s in only], -1),
            pairs=ContactPairs.of(pairs, [s.name for s in only]),
            priority=tuple(int(s.priority) for s in only),
            gap=tuple(float(s.gap) for s in only),
            solref=tuple(tuple(map(float, s.solref)) for s in only),
            solimp=tuple(tuple(map(float, s.solimp)) for s in only),
            solmix=tuple(float(s.solmix) for s in only),
            condim=tuple(int(s.condim) for s in only),
        )


__all__ = [
    "ContactPair",
    "ContactPairs",
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
