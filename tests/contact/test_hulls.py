"""Searches over the corners of hulls: the same corners as NumPy finds among all of them, also of degenerate meshes."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import ConvexHull

import knuckle as kn
from knuckle.contact import INACTIVE_GAP, collide, contact_pairs
from knuckle.contact.hulls import LANES, Corners, corner, highest, tabulate
from knuckle.contact.manifold import SLOPE, spread
from knuckle.contact.touch import Touch
from knuckle.contact.vertices import blocks_as_low, hull_corners
from knuckle.kinematics import poses
from knuckle.model.geometry import Mesh, Shape
from tests.contact.collide_scenes import Solid, most_separation, mujoco_distance, mujoco_scene, on_free_bodies, unit

NO_FACES = np.zeros((0, 3))


def random_turn(rng: np.random.Generator) -> np.ndarray:
    R = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return R * np.linalg.det(R)


def ball(count: int, seed: int = 0) -> np.ndarray:
    v = np.random.default_rng(seed).normal(size=(count, 3))
    return 0.2 * v / np.linalg.norm(v, axis=1, keepdims=True)


def drum(count: int) -> np.ndarray:
    """Two flat faces of many corners."""
    angle = 2 * np.pi * np.arange(count) / count
    rim = np.stack([0.3 * np.cos(angle), 0.2 * np.sin(angle)], axis=1)
    return np.concatenate([np.pad(rim, ((0, 0), (0, 1)), constant_values=z) for z in (-0.1, 0.1)])


MESHES = {
    "point": np.array([[0.1, 0.2, 0.3]]),
    "line": np.linspace(0, 1, 7)[:, None] * np.array([[0.3, 0.1, 0.2]]),
    "flat": drum(9)[:9],
    "tetrahedron": ball(4, 3),
    "cube": np.stack(np.meshgrid(*[(-0.1, 0.1)] * 3), axis=-1).reshape(-1, 3),
    "drum": drum(40),
    "ball": ball(300),
    "far from its origin": ball(60) + np.array([3.0, -2.0, 1.0]),
    "10,000 points": ball(10_000),
}


def test_highest_scores_are_those_of_all_corners():
    """Of shapes of 1 to 300 corners in one table, two scores at once, in native code and under jax.jit."""
    shapes = [MESHES["point"], MESHES["ball"], MESHES["drum"], MESHES["point"], ball(9)]
    blocks, corners = tabulate(shapes)
    assert len(blocks) == sum(-(-len(s) // LANES) for s in (shapes[0], *shapes[1:3], shapes[4]))  # one point is shared
    table = jnp.asarray(blocks)

    def search(which, way):
        own = Corners(*(jnp.asarray(x)[which] for x in corners))
        index, value = highest(table, own.blocks, lambda u: [jnp.sum(u * way), jnp.sum((u - way) ** 2)])
        return corner(table, index), value

    rng = np.random.default_rng(0)
    for run in (kn.native.jit(search), jax.jit(search)):
        for which, shape in enumerate(shapes):
            way = rng.normal(size=3)
            points, values = run(which, way)
            scores = shape @ way, np.sum((shape - way) ** 2, axis=1)
            for point, value, score in zip(points, values, scores, strict=True):
                np.testing.assert_allclose(value, score.max(), rtol=1e-14)
                np.testing.assert_allclose(point, shape[score.argmax()], atol=1e-15)


@pytest.mark.parametrize("name", ["tetrahedron", "cube", "drum", "ball"])
def test_corners_that_can_be_low_are_listed(name):
    """Over 300 random planes, and planes along faces, every corner as low as SLOPE allows stands in a listed block."""
    mesh = Mesh(MESHES[name], NO_FACES)
    corners, listed = hull_corners(mesh), blocks_as_low(mesh, SLOPE)
    rng = np.random.default_rng(1)
    for _ in range(300):
        up = unit(rng.normal(size=3)) if rng.random() < 0.8 else unit(np.eye(3)[rng.integers(3)] + 1e-9)
        height = corners @ up
        first = height.argmin()
        arm = corners - corners[first]
        along = np.linalg.norm(arm - np.outer(arm @ up, up), axis=1)
        low = np.flatnonzero(height - height[first] <= SLOPE * along)
        assert set(low // LANES) <= set(listed[first // LANES])


def scene(name: str, scale: tuple[float, float, float]) -> kn.Model:
    shape = Shape("mesh", scale, mesh=Mesh(MESHES[name], NO_FACES), position=(0.1, 0.0, 0.05))
    tilted = kn.shapes.plane(rotation=unit(np.array([1.0, 0.1, -0.2, 0.3])), position=(0.2, 0.1, -0.3))
    return on_free_bodies([shape], [tilted])


def wanted(model: kn.Model, q: np.ndarray) -> Touch:
    """`spread` over all corners in the world; the hull is as wide as its bounding box seen along the plane's axes."""
    geometry = model.geometry
    R, p = (np.asarray(x[0]) for x in poses(model, jnp.asarray(q)))
    corners = hull_corners(geometry.mesh[0 if geometry.kind[0] == "mesh" else 1])
    number, ground = geometry.kind.index("mesh"), geometry.kind.index("plane")
    local = corners * geometry.size[number] + geometry.position[number]
    world = jnp.asarray(local @ R.T + p)[None]
    plane = kn.spatial.rotation_of_quaternion(jnp.asarray(geometry.rotation[ground]))
    normal = jnp.broadcast_to(plane[:, 2], world.shape)
    gap = jnp.sum(normal * (world - jnp.asarray(geometry.position[ground])[None, None]), axis=-1)
    box = np.abs(np.asarray(plane)[:, :2].T @ R * geometry.size[number]) @ np.ptp(corners, axis=0)
    return spread(Touch(gap, world - 0.5 * gap[..., None] * normal, normal), jnp.linalg.norm(box))


@pytest.mark.parametrize("scale", [(1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 0.3, 2.0)])
@pytest.mark.parametrize("name", [*MESHES])
def test_corners_on_a_plane_are_those_that_spread_keeps(name, scale):
    """The same contacts in any order, at 20 random poses."""
    model = scene(name, scale)
    pairs = contact_pairs(model)
    found = kn.native.jit(lambda q: collide(model, q, pairs))
    rng = np.random.default_rng(5)
    for _ in range(20):
        q = np.concatenate([rng.normal(size=3), unit(rng.normal(size=4))])
        ours, theirs = found(q), wanted(model, q)
        points, others = (np.asarray(x.point).reshape(-1, 3)[np.ravel(x.gap) < INACTIVE_GAP] for x in (ours, theirs))
        assert len(points) == len(others)
        np.testing.assert_allclose(points[np.lexsort(points.T)], others[np.lexsort(others.T)], atol=1e-12)
        assert np.isclose(ours.gap.min(), theirs.gap.min(), atol=1e-12)
        assert np.all(np.isfinite(ours.point)) and np.all(np.isfinite(ours.normal))


def test_a_hull_keeps_its_slots_while_it_rocks():
    """The lowest corner changes, the slots of the corners do not."""
    model = on_free_bodies([Shape("mesh", mesh=Mesh(MESHES["cube"], NO_FACES))], [kn.shapes.plane()])
    pairs = contact_pairs(model)
    found = kn.native.jit(lambda q: collide(model, q, pairs))
    lowest, places = set(), []
    for tilt in ((0.01, 0.02), (-0.01, 0.02), (0.01, -0.02), (-0.01, -0.02)):
        contacts = found(np.array([0, 0, 0.1, *unit(np.array([1.0, *tilt, 0.0]))]))
        lowest.add(int(np.argmin(contacts.gap)))
        places.append(np.sign(contacts.point[:, :2]))
    assert len(lowest) == 4
    assert all(np.array_equal(place, places[0]) for place in places)


@lru_cache
def rocks() -> tuple[kn.Model, np.ndarray]:
    """Two hulls of 200 corners near each other, at 12 poses."""
    shapes = [Shape("mesh", (1.0, 0.7, 1.2), mesh=Mesh(ball(200, k), NO_FACES), name=f"rock{k}") for k in range(2)]
    rng = np.random.default_rng(4)
    away = [(0.25, 0.32, 0.38, 0.6)[k % 4] * unit(rng.normal(size=3)) for k in range(12)]
    rows = [np.r_[p, unit(rng.normal(size=4)), 0, 0, 0, unit(rng.normal(size=4))] for p in away]
    return on_free_bodies(shapes), np.stack(rows)


def test_distances_of_hulls_are_mujocos():
    model, qs = rocks()
    shapes = [
        Shape("mesh", (1.0, 0.7, 1.2), mesh=Mesh(ball(200, k), ConvexHull(ball(200, k)).simplices), name=f"rock{k}")
        for k in range(2)
    ]
    theirs = mujoco_scene(on_free_bodies(shapes))
    gaps = kn.native.jit(lambda q: collide(model, q, contact_pairs(model)).gap)
    for q in qs:
        ours = float(gaps(q).min())
        if abs(ours - mujoco_distance(theirs, q, "rock0|rock1")[0]) > 1e-6:
            a, b = (Solid(model, q, f"rock{k}") for k in range(2))
            reference = most_separation(a, b, unit(q[:3]))
            assert abs(ours - reference) < 1e-6


def test_pairs_out_of_reach_have_no_contact_and_others_the_same():
    """Hulls against hulls: what is left out is farther than the reach."""
    model, qs = rocks()
    pairs = contact_pairs(model)
    everything = kn.native.jit(lambda q: collide(model, q, pairs))
    culled = kn.native.jit(lambda q, reach: collide(model, q, pairs, reach))
    left_out = 0
    for q in qs:
        full = everything(q)
        for reach in (0.0, 0.05, 10.0):
            near = culled(q, reach)
            if full.gap.min() > reach + 1e-9:
                assert np.all(near.gap == INACTIVE_GAP)
                left_out += 1
            else:
                np.testing.assert_array_equal(near.gap, full.gap)
                np.testing.assert_array_equal(near.point, full.point)
    assert 6 < left_out < 30
