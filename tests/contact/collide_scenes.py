"""Scenes for the tests of collision: every kind of shape on a free body of its own, and the same scene in MuJoCo."""

from __future__ import annotations

from itertools import combinations

import jax.numpy as jnp
import mujoco
import numpy as np
from scipy.spatial import ConvexHull

import knuckle as kn
from knuckle.contact import Pair
from knuckle.contact.narrow import kinds_of
from knuckle.model.geometry import Mesh, Shape

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
