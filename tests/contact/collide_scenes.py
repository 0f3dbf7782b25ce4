"""Scenes for the tests of collision: every kind of shape on a free body of its own, and the same scene in MuJoCo."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from scipy.spatial import ConvexHull

import knuckle as kn
from knuckle.contact import Pair
from knuckle.contact.narrow import kinds_of
from knuckle.model.geometry import Mesh, Shape
from knuckle.model.inertia import rotation_matrix

SOLIDS = ("sphere", "capsule", "box", "cylinder", "ellipsoid", "mesh")
SIZES = {
    "sphere": (0.11,),
    "capsule": (0.07, 0.15),
    "box": (0.1, 0.15, 0.2),
    "cylinder": (0.12, 0.14),
    "ellipsoid": (0.1, 0.14, 0.21),
    "mesh": (1.0, 1.1, 0.9),
}


def rock(seed: int = 0, count: int = 14, radius: float = 0.15) -> Mesh:
    """The hull of random points near a sphere, faces looking outwards."""
    directions = np.random.default_rng(seed).normal(size=(count, 3))
    corners = radius * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    corners = corners[ConvexHull(corners).vertices]
    hull = ConvexHull(corners)
    faces = [
        f if np.dot(np.cross(corners[f[1]] - corners[f[0]], corners[f[2]] - corners[f[0]]), n[:3]) > 0 else f[::-1]
        for f, n in zip(hull.simplices, hull.equations, strict=True)
    ]
    return Mesh(corners, np.array(faces))


def solid(kind: str, seed: int = 0) -> Shape:
    """A shape of a kind, turned and moved on its link so that placements matter."""
    rng = np.random.default_rng(seed)
    pose = {"position": 0.03 * rng.normal(size=3), "rotation": unit(rng.normal(size=4))}
    mesh = rock() if kind == "mesh" else None
    return Shape(kind, SIZES[kind], mesh=mesh, name=f"{kind}{seed}", friction=(0.1 * (seed + 1),), **pose)  # type: ignore[arg-type]


def unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


def on_free_bodies(shapes: list[Shape], world: list[Shape] | None = None) -> kn.Model:
    links = [kn.Link(f"link{i}", joints=kn.free(), mass=1.0, inertia=(1, 1, 1), shapes=s) for i, s in enumerate(shapes)]
    return kn.build(links, world_shapes=world or [])


def two_of_each() -> kn.Model:
    """Two of each solid and a tilted plane in the world."""
    tilted = kn.shapes.plane(name="plane", position=(0.0, 0.0, -0.2), rotation=unit(np.array([1.0, 0.1, -0.2, 0.3])))
    return on_free_bodies([solid(kind, seed) for kind in SOLIDS for seed in (0, 1)], [tilted])


def one_pair_per_kinds(model: kn.Model) -> tuple[Pair, ...]:
    """One pair of shapes for each test that the model has shapes for."""
    found: dict[tuple[str, str], Pair] = {}
    for i, j in combinations(range(len(model.geometry)), 2):
        key, swap = kinds_of(model.geometry, i, j)
        found.setdefault(key, Pair(j, i) if swap else Pair(i, j))
    return tuple(found.values())


def random_coordinates(model: kn.Model, rng: np.random.Generator, reach: float) -> np.ndarray:
    """Free bodies turned at random, in a cube of half width `reach` [m]."""
    rows = [np.concatenate([rng.uniform(-reach, reach, 3), unit(rng.normal(size=4))]) for _ in model.link_names]
    return np.concatenate(rows)


def many_coordinates(model: kn.Model, count: int, seed: int) -> np.ndarray:
    """A third each of overlapping, touching and distant bodies."""
    rng = np.random.default_rng(seed)
    return np.stack([random_coordinates(model, rng, (0.08, 0.25, 0.6)[k % 3]) for k in range(count)])


def split_by_pair(names: tuple[str, ...]) -> dict[str, list[int]]:
    """Rows of each pair of shapes."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        found.setdefault(name.split("#")[0], []).append(row)
    return found


def row_by_row(function: Callable, shared: int = 0) -> Callable:
    """A function over the rows of all its arguments but the first few, as native code, which compiles in seconds."""
    compiled = kn.native.jit(function)

    def run(*args):
        common, rows = jax.tree.map(np.asarray, args[:shared]), map(np.asarray, args[shared:])
        results = [compiled(*common, *row) for row in zip(*rows, strict=True)]
        return jax.tree.map(lambda *x: np.stack(x), *results)

    return run


def mujoco_scene(model: kn.Model) -> mujoco.MjModel:
    """The same shapes on free bodies in MuJoCo; geoms have the shapes' names."""
    spec = mujoco.MjSpec()
    spec.option.ccd_tolerance = 1e-12
    spec.option.ccd_iterations = 200
    geometry = model.geometry
    for i, kind in enumerate(geometry.kind):
        link, mesh = geometry.link[i], geometry.mesh[i]
        body = spec.worldbody if link < 0 else spec.worldbody.add_body(name=model.link_names[link])
        if link >= 0:
            body.add_freejoint()
        geom = body.add_geom(name=geometry.names[i], pos=geometry.position[i], quat=geometry.rotation[i])
        geom.type = getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}")
        if mesh is not None:
            scaled = mesh.vertices * np.asarray(geometry.size[i])
            spec.add_mesh(name=f"mesh{i}", uservert=scaled.ravel(), userface=mesh.faces.ravel())
            geom.meshname = f"mesh{i}"
        else:
            geom.size = geometry.size[i] if kind != "plane" else (1, 1, 1)
    return spec.compile()


def mujoco_distance(scene: mujoco.MjModel, q: np.ndarray, pair: str) -> tuple[float, np.ndarray]:
    """Signed distance of the two geoms of "a|b", and the nearest points on a and b."""
    data = mujoco.MjData(scene)
    data.qpos[:] = q
    mujoco.mj_kinematics(scene, data)
    first, second = (mujoco.mj_name2id(scene, mujoco.mjtObj.mjOBJ_GEOM, name) for name in pair.split("|"))
    ends = np.zeros(6)
    distance = mujoco.mj_geomDistance(scene, data, first, second, 10.0, ends)
    return distance, ends.reshape(2, 3)


def flat(contacts) -> jnp.ndarray:
    """All numbers of contacts in rows: gap, point, normal, friction."""
    return jnp.concatenate([contacts.gap[:, None], contacts.point, contacts.normal, contacts.friction[:, None]], axis=1)


# A reference without features: signed distance is the most that a plane separates two shapes by

DIRECTIONS = 4000


class Solid:
    """A convex shape of a model at coordinates q by its support function, in NumPy."""

    def __init__(self, model: kn.Model, q: np.ndarray, name: str):
        geometry = model.geometry
        shape = geometry.names.index(name)
        self.kind, self.size, link = geometry.kind[shape], np.asarray(geometry.size[shape]), geometry.link[shape]
        self.rotation = rotation_matrix(unit(np.asarray(geometry.rotation[shape])))
        self.position = np.asarray(geometry.position[shape])
        if link >= 0:
            body = q[7 * link : 7 * link + 7]
            carrier = rotation_matrix(unit(body[3:]))
            self.rotation, self.position = carrier @ self.rotation, body[:3] + carrier @ self.position
        mesh = geometry.mesh[shape]
        self.vertices = np.zeros((0, 3)) if mesh is None else mesh.vertices * self.size

    def reach(self, directions: np.ndarray) -> np.ndarray:
        """How far the shape reaches along each unit vector, from the world's origin."""
        n = directions @ self.rotation
        r, h = self.size[0], self.size[1]
        sideways, along = np.hypot(n[:, 0], n[:, 1]), np.abs(n[:, 2])
        own = {
            "sphere": lambda: r + 0 * along,
            "capsule": lambda: r + h * along,
            "cylinder": lambda: r * sideways + h * along,
            "box": lambda: np.abs(n) @ self.size,
            "ellipsoid": lambda: np.linalg.norm(n * self.size, axis=1),
            "mesh": lambda: (n @ self.vertices.T).max(axis=1),
            "plane": lambda: np.where(np.abs(n[:, 2] - 1) < 1e-12, 0.0, np.inf),
        }
        return directions @ self.position + own[self.kind]()


def separation(a: Solid, b: Solid, directions: np.ndarray) -> np.ndarray:
    """How far planes across unit vectors, from b towards a, separate two solids [m]."""
    return -a.reach(-directions) - b.reach(directions)


def spread_directions(count: int) -> np.ndarray:
    k = np.arange(count) + 0.5
    z, angle = 1 - 2 * k / count, np.pi * (1 + 5**0.5) * k
    across = np.sqrt(1 - z**2)
    return np.stack([across * np.cos(angle), across * np.sin(angle), z], axis=1)


def most_separation(a: Solid, b: Solid, hint: np.ndarray) -> float:
    """The signed distance by trying a direction and many more, and turning the best at random by less and less."""
    rng = np.random.default_rng(0)
    everywhere = np.concatenate([spread_directions(DIRECTIONS), hint[None]])
    gaps = separation(a, b, everywhere)
    tops = np.argsort(-gaps)[[0, 1, 2, 4, 8]]
    best, value, width = everywhere[tops], gaps[tops], np.full(len(tops), 0.03)
    for _ in range(50):
        tries = best[:, None] + width[:, None, None] * rng.normal(size=(len(tops), 40, 3))
        tries /= np.linalg.norm(tries, axis=2, keepdims=True)
        found = separation(a, b, tries.reshape(-1, 3)).reshape(len(tops), -1)
        which = found.argmax(axis=1)
        top = found[np.arange(len(tops)), which]
        better = top > value
        best = np.where(better[:, None], tries[np.arange(len(tops)), which], best)
        value, width = np.where(better, top, value), np.where(better, width, 0.6 * width)
    return float(value.max())
