"""Convex shapes that meet in faces and edges: how many points, where, and their derivatives when nearly flat."""

from functools import lru_cache
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import INACTIVE_GAP, Pair, collide, contact_pairs
from knuckle.contact.patch import SLOPE
from knuckle.model.geometry import Mesh, Shape
from tests.contact.collide_scenes import Solid, flat, most_separation, on_free_bodies, row_by_row, split_by_pair, unit

CUBE = Mesh(0.1 * np.array(list(product((-1.0, 1.0), repeat=3))), np.zeros((0, 3)))
BODIES = [
    kn.shapes.cylinder(0.1, 0.15, name="can"),
    kn.shapes.capsule(0.05, 0.15, name="rod"),
    Shape("mesh", mesh=CUBE, name="cube"),
    kn.shapes.box(0.1, 0.05, 0.02, name="brick"),
]
WORLD = [  # each has its upper face at z = 0
    kn.shapes.box(0.3, 0.3, 0.1, position=(0, 0, -0.1), name="table"),
    kn.shapes.cylinder(0.2, 0.1, position=(0, 0, -0.1), name="disc"),
    Shape("mesh", mesh=CUBE, position=(0, 0, -0.1), name="block"),
]
MODEL = jax.tree.map(jnp.asarray, on_free_bodies(BODIES, WORLD))
PAIRS = tuple(
    Pair(*(MODEL.geometry.names.index(name) for name in names))
    for names in product(("can", "rod", "cube", "brick"), ("table", "disc", "block"))
    if names != ("brick", "table")  # boxes have a test of their own
)
NAMES = jax.eval_shape(lambda: collide(MODEL, MODEL.reference, PAIRS)).names
ROWS = split_by_pair(NAMES)
GAP, POINT, NORMAL = 0, slice(1, 4), slice(4, 7)
UPRIGHT, LYING = (1.0, 0.0, 0.0, 0.0), (0.5**0.5, 0.5**0.5, 0.0, 0.0)
RESTING = {  # of the four bodies, 1 mm deep
    "standing": ((0.0, 0.0, 0.149, *UPRIGHT), (0.0, 0.0, 0.049, *LYING)),
    "lying": ((0.02, 0.0, 0.099, *LYING), (0.05, 0.0, 0.049, *LYING)),
}
CUBE_AT, BRICK_AT = (0.05, 0.02, 0.099, *UPRIGHT), (0.03, -0.06, 0.019, *UPRIGHT)
COUNT = 12


def at(x, q, turn, sizes):
    """Contacts with coordinates and sizes displaced by x along a direction."""
    moved = eqx.tree_at(lambda m: m.geometry.size, MODEL, MODEL.geometry.size * (1 + x * sizes))
    return flat(collide(moved, q + x * turn, PAIRS))


contacts_at = row_by_row(at)
slopes_at = row_by_row(lambda *args: jax.jvp(lambda x: at(x, *args), (0.0,), (1.0,))[1])


def coordinates(pose: str) -> np.ndarray:
    return np.concatenate([*RESTING[pose], CUBE_AT, BRICK_AT])


def nearly_flat() -> np.ndarray:
    """The resting poses, all bodies turned by up to 0.03 rad and moved a little."""
    rng = np.random.default_rng(5)
    rows = []
    for number in range(COUNT):
        bodies = coordinates(("standing", "lying")[number % 2]).reshape(-1, 7).copy()
        tilt = np.concatenate([np.ones((4, 1)), 0.005 * rng.uniform(-1, 1, (4, 3))], axis=1)
        turned = kn.spatial.quaternion_product(jnp.asarray(tilt), jnp.asarray(bodies[:, 3:]))
        bodies[:, 3:] = [unit(q) for q in np.asarray(turned)]
        bodies[:, :3] += 0.003 * rng.normal(size=(4, 3))
        rows.append(bodies.ravel())
    return np.array(rows)


@lru_cache
def directions() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    return rng.normal(size=(COUNT, MODEL.nq)), rng.normal(size=(COUNT, *MODEL.geometry.size.shape))


def values(qs: np.ndarray, x: float = 0.0) -> np.ndarray:
    return contacts_at(np.full(COUNT, x), qs, *directions())


def active(contacts: np.ndarray, pair: str) -> np.ndarray:
    rows = contacts[ROWS[pair]]
    return rows[rows[:, GAP] < INACTIVE_GAP]


@lru_cache
def resting() -> dict[str, np.ndarray]:
    qs = np.stack([coordinates("standing"), coordinates("lying")] * (COUNT // 2))
    return dict(zip(("standing", "lying"), values(qs), strict=False))


@pytest.mark.parametrize("pair", ROWS)
@pytest.mark.parametrize("pose", RESTING)
def test_faces_meet_in_four_points_and_sides_in_two(pose, pair):
    found = active(resting()[pose], pair)
    two = pair.startswith("rod") or (pair.startswith("can") and pose == "lying")
    assert len(found) == (2 if two else 4)
    np.testing.assert_allclose(found[:, GAP], -0.001, atol=1e-12)
    np.testing.assert_allclose(found[:, NORMAL], [[0, 0, 1]] * len(found), atol=1e-12)
    np.testing.assert_allclose(found[:, 3], -0.0005, atol=1e-12)


def corners_of(pair: str, pose: str = "standing") -> set[tuple[float, float]]:
    return {(float(x), float(y)) for x, y in np.round(active(resting()[pose], pair)[:, 1:3], 7) + 0.0}


def test_points_are_the_corners_of_the_overlap():
    assert corners_of("cube|table") == set(product((-0.05, 0.15), (-0.08, 0.12)))
    assert corners_of("cube|block") == set(product((-0.05, 0.1), (-0.08, 0.1)))
    assert corners_of("brick|block") == set(product((-0.07, 0.1), (-0.1, -0.01)))
    assert corners_of("rod|table") == {(0.0, -0.15), (0.0, 0.15)}
    assert corners_of("rod|block") == {(0.0, -0.1), (0.0, 0.1)}
    assert corners_of("can|block", "lying") == {(0.02, -0.1), (0.02, 0.1)}


def test_a_standing_cylinder_is_held_all_round():
    for other in ("table", "disc", "block"):
        points = active(resting()["standing"], f"can|{other}")[:, 1:3]
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 0.1, atol=1e-8)
        angles = np.sort(np.arctan2(points[:, 1], points[:, 0]))
        assert np.max(np.diff(np.append(angles, angles[0] + 2 * np.pi))) < 0.6 * np.pi


@pytest.mark.parametrize("pair", ROWS)
def test_the_deepest_of_several_points_has_the_signed_distance(pair):
    qs = nearly_flat()
    several = 0
    for q, contacts in zip(qs, values(qs), strict=True):
        found = active(contacts, pair)
        several += len(found) > 1
        a, b = (Solid(MODEL, q, name) for name in pair.split("|"))
        deepest = found[found[:, GAP].argmin()]
        np.testing.assert_allclose(deepest[GAP], most_separation(a, b, deepest[NORMAL]), rtol=0, atol=1e-9)
        span = np.linalg.norm(found[:, None, POINT] - found[None, :, POINT], axis=-1)
        assert np.all(np.abs(found[:, None, GAP] - found[None, :, GAP]) <= 2 * SLOPE * span + 1e-9)
    assert several > COUNT // 2


@lru_cache
def derivatives() -> tuple[np.ndarray, ...]:
    qs, h = nearly_flat(), 1e-6
    along = slopes_at(qs, *directions())
    shift = {k: values(qs, k * h) for k in (-4, -2, -1, 1, 2, 4)}
    near, far = ((8 * (shift[k] - shift[-k]) - (shift[2 * k] - shift[-2 * k])) / (12 * k * h) for k in (1, 2))
    return along, near, far


@pytest.mark.parametrize("pair", ROWS)
def test_derivatives_of_all_points_equal_differences(pair):
    """Where no other corners are chosen within four steps, which shows as differences that do not agree."""
    along, near, far = (x[:, ROWS[pair]] for x in derivatives())
    scale = 1 + np.abs(near)
    smooth = np.max(np.abs(near - far) / scale, axis=(1, 2)) < 1e-5
    error = np.max(np.abs(along - near) / scale, axis=(1, 2))
    assert np.all(error[smooth] < 1e-5)  # lengths of 1e-16/1e-6 turn over a patch as narrow as 1e-5
    assert np.mean(smooth) > 0.8


def test_no_nan_where_faces_meet():
    qs = np.stack([coordinates("standing"), coordinates("lying")] * (COUNT // 2))
    assert np.all(np.isfinite(slopes_at(qs, *directions())))


def test_a_capsule_of_no_length_is_a_sphere():
    shapes = [kn.shapes.capsule(0.05, 0.1, name="capsule"), kn.shapes.sphere(0.05, name="ball")]
    model = jax.tree.map(jnp.asarray, on_free_bodies(shapes, [kn.shapes.box(0.1, 0.1, 0.1, name="table")]))
    pairs = tuple(p for p in contact_pairs(model) if "table" in (model.geometry.names[p.a], model.geometry.names[p.b]))

    def gaps(length):
        size = model.geometry.size.at[model.geometry.names.index("capsule"), 1].set(length)
        q = jnp.asarray([0.07, 0.02, 0.149, *UPRIGHT] * 2)
        contacts = collide(eqx.tree_at(lambda m: m.geometry.size, model, size), q, pairs)
        return contacts.gap[jnp.array([contacts.names.index(n) for n in wanted])]

    wanted = [f"{s}|table#0" if f"{s}|table#0" in _names(model, pairs) else f"table|{s}#0" for s in ("capsule", "ball")]
    value, slope = kn.native.jit(lambda x: jax.jvp(gaps, (x,), (1.0,)))(0.0)
    np.testing.assert_allclose(value, -0.001, atol=1e-12)
    assert np.all(np.isfinite(slope))


def _names(model: kn.Model, pairs: tuple[Pair, ...]) -> tuple[str, ...]:
    return jax.eval_shape(lambda: collide(model, model.reference, pairs)).names
