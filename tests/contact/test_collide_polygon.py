"""Planar models: convex polygons, circles and capsules against each other and a floor, and the plane they move in."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.contact import INACTIVE_GAP, Pair, collide, contact_pairs
from knuckle.contact.planar import motion_normal
from tests.contact.collide_scenes import flat, row_by_row, split_by_pair
from tests.random_models import quick_jit

UPRIGHT = (0.5**0.5, 0.5**0.5, 0.0, 0.0)  # a shape's z along the model's -y: seen from the front, x right and z up
TRIANGLE = np.array([(-0.1, -0.05), (0.12, -0.06), (0.02, 0.11)])
PENTAGON = 0.13 * np.stack([np.cos(2 * np.pi * np.arange(5) / 5), np.sin(2 * np.pi * np.arange(5) / 5)], axis=1)
GAP, POINT, NORMAL = 0, slice(1, 4), slice(4, 7)


def planar_model(shapes, **options) -> kn.Model:
    links = [
        kn.Link(s.name, joints=kn.planar("y"), mass=1.0, inertia=(1, 1, 1), shapes=s, position=(0, 0, 0))
        for s in shapes
    ]
    return jax.tree.map(jnp.asarray, kn.build(links, **options))


def scene() -> kn.Model:
    lying = (0.0, 1.0, 0.0, 0.0)  # a capsule's axis lies in the plane already
    return planar_model(
        [
            kn.shapes.polygon(TRIANGLE, name="triangle", rotation=UPRIGHT, size=(1.1, 0.9)),
            kn.shapes.polygon(PENTAGON, name="pentagon", rotation=UPRIGHT),
            kn.shapes.sphere(0.08, name="circle"),
            kn.shapes.capsule(0.05, 0.12, name="capsule", rotation=lying),
        ],
        world_shapes=[kn.shapes.plane(name="floor", position=(0, 0, -0.3))],
    )


MODEL = scene()
PAIRS = contact_pairs(MODEL)
NAMES = collide(MODEL, MODEL.reference, PAIRS).names
ROWS = split_by_pair(NAMES)
values = quick_jit(jax.vmap(lambda q: flat(collide(MODEL, q, PAIRS))))


def coordinates(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    reach = np.array([0.05, 0.15, 0.4])[np.arange(count) % 3]
    rows = rng.uniform(-1, 1, (count, 4, 3)) * np.stack([reach, reach, np.full(count, np.pi)], axis=1)[:, None]
    return rows.reshape(count, 12)


link_poses = quick_jit(lambda q: kn.kinematics.poses(MODEL, q))


def outlines(q: np.ndarray) -> dict[str, tuple[np.ndarray, float]]:
    """Corners in the world's x-z plane and radius of each shape, worked out by hand."""
    found = {}
    geometry, poses = MODEL.geometry, link_poses(jnp.asarray(q))
    local = {
        "triangle": (TRIANGLE * [1.1, 0.9], 0.0),
        "pentagon": (PENTAGON, 0.0),
        "circle": (np.zeros((1, 2)), 0.08),
        "capsule": (np.array([(0, -0.12), (0, 0.12)]), 0.05),
    }
    for name, (corners, radius) in local.items():
        link = geometry.link[geometry.names.index(name)]
        R, p = np.asarray(poses.rotation[link]), np.asarray(poses.position[link])
        in_link = np.stack([corners[:, 0], np.zeros(len(corners)), corners[:, 1]], axis=1)
        found[name] = ((in_link @ R.T + p)[:, [0, 2]], radius)
    return found


def signed_distance(a: np.ndarray, b: np.ndarray) -> float:
    """The most that a line separates two outlines: it stands along an edge of one, or across two corners."""
    edges = np.concatenate([np.roll(x, -1, axis=0) - x for x in (a, b)])
    normals = np.stack([edges[:, 1], -edges[:, 0]], axis=1)
    candidates = np.concatenate([normals, -normals, (a[:, None] - b[None]).reshape(-1, 2)])
    candidates = candidates[np.linalg.norm(candidates, axis=1) > 0]
    candidates = candidates / np.linalg.norm(candidates, axis=1, keepdims=True)
    return float(np.max(np.min(candidates @ a.T, axis=1) - np.max(candidates @ b.T, axis=1)))


def test_distances_of_outlines():
    qs = coordinates(90)
    for q, contacts in zip(qs, np.asarray(values(jnp.asarray(qs))), strict=True):
        shapes = outlines(q)
        for pair, rows in ROWS.items():
            first, second = pair.split("|")
            if second == "floor":
                corners, radius = shapes[first]
                expected = corners[:, 1].min() + 0.3 - radius
            else:
                (a, radius_a), (b, radius_b) = shapes[first], shapes[second]
                expected = signed_distance(a, b) - radius_a - radius_b
            np.testing.assert_allclose(
                contacts[rows, GAP].min(), expected, rtol=1.1e-3, atol=1e-12, err_msg=f"{pair} {q}"
            )


def test_points_and_normals_lie_in_the_plane():
    contacts = np.asarray(values(jnp.asarray(coordinates(60, seed=4))))
    np.testing.assert_allclose(contacts[..., 2], 0, atol=1e-15)
    np.testing.assert_allclose(contacts[..., 5], 0, atol=1e-15)
    np.testing.assert_allclose(np.linalg.norm(contacts[..., NORMAL], axis=-1), 1, atol=1e-14)


def test_derivatives_equal_central_differences():
    def slopes(q, direction, weights):
        f = lambda q: flat(collide(MODEL, q, PAIRS))  # noqa: E731
        return jax.jvp(f, (q,), (direction,))[1], jax.vjp(f, q)[1](weights)[0]

    qs, h, rng = coordinates(60, seed=7), 1e-6, np.random.default_rng(1)
    directions, weights = rng.normal(size=qs.shape), rng.normal(size=(len(qs), len(NAMES), 8))
    forward, reverse = row_by_row(slopes)(qs, directions, weights)
    before, after = (np.asarray(values(jnp.asarray(qs + x * directions))) for x in (-h, h))
    difference = (after - before) / (2 * h)
    np.testing.assert_allclose(forward, difference, rtol=1e-5, atol=1e-5)
    weighted = np.sum(weights * forward, axis=(1, 2))
    np.testing.assert_allclose(weighted, np.sum(reverse * directions, axis=1), rtol=1e-9, atol=1e-9)
    assert np.abs(difference).max() > 0.1


def test_a_square_rests_on_another_in_two_points_cut_to_the_overlap():
    square = [(-0.1, -0.1), (0.1, -0.1), (0.1, 0.1), (-0.1, 0.1)]
    model = planar_model([kn.shapes.polygon(square, name=n, rotation=UPRIGHT) for n in ("upper", "lower")])
    (pair,) = contact_pairs(model)
    q = jnp.asarray([0.05, 0.199, 0, 0, 0, 0]) * jnp.asarray(plane_signs(model))
    contacts = collide(model, q, (pair,))
    np.testing.assert_allclose(contacts.gap, -0.001, atol=1e-15)
    assert sorted(np.round(np.asarray(contacts.point)[:, 0], 12)) == [-0.05, 0.1]
    np.testing.assert_allclose(contacts.normal, [[0, 0, 1]] * 2, atol=1e-15)
    swapped = collide(model, q, (Pair(pair.b, pair.a),))
    np.testing.assert_allclose(swapped.normal, [[0, 0, -1]] * 2, atol=1e-15)
    beside = collide(model, q.at[0].set(0.3), (pair,))
    np.testing.assert_allclose(beside.gap[0], np.hypot(0.1, 0.0), atol=2e-3)


def plane_signs(model: kn.Model) -> np.ndarray:
    """Signs of the coordinates for which the first goes to world x and the second to world z."""
    moved = [np.asarray(kn.kinematics.poses(model, jnp.zeros(6).at[k].set(1.0)).position[0]) for k in (0, 1)]
    assert abs(moved[0][0]) == 1 and abs(moved[1][2]) == 1
    return np.array([moved[0][0], moved[1][2], 1.0] * 2)


def test_no_nan_where_features_coincide():
    steps = [0.0, 1e-13, 0.05, 0.1, 0.2]
    rows = [
        np.concatenate([[s * (k == 0), s * (k == 1), t * np.pi / 4] * 2 + [0.0] * 6])
        for s in steps
        for k in (0, 1)
        for t in (0, 1, 2)
    ]
    total = lambda geometry, q: jnp.sum(flat(collide(replace_geometry(geometry), q, PAIRS)))  # noqa: E731
    replace_geometry = lambda geometry: eqx.tree_at(lambda m: m.geometry, MODEL, geometry)  # noqa: E731
    value, slope = row_by_row(jax.value_and_grad(total, argnums=(0, 1)), shared=1)(MODEL.geometry, np.array(rows))
    assert all(np.all(np.isfinite(x)) for x in (value, *jax.tree.leaves(slope)))


def test_a_slot_without_a_point_is_inactive():
    q = np.array([-5.0, 0, 0, 5, 5, 0, 0, -5, 0, 0, 5, 0])
    contacts = kn.native.jit(lambda q: collide(MODEL, q, PAIRS))(q)
    rows = ROWS["triangle|pentagon"]
    assert contacts.gap[rows[0]] < 100 and contacts.gap[rows[1]] == INACTIVE_GAP


def test_points_touch_a_polygon_one_by_one():
    square = [(-0.1, -0.1), (0.1, -0.1), (0.1, 0.1), (-0.1, 0.1)]
    tips = kn.shapes.points([(0.0, 0.0, 0.1), (0.0, 0.0, 0.2), (0.15, 0.0, 0.15)], name="tips")
    model = planar_model([kn.shapes.polygon(square, name="square", rotation=UPRIGHT), tips])
    contacts = kn.native.jit(lambda q: collide(model, q, contact_pairs(model)))(np.zeros(6))
    np.testing.assert_allclose(contacts.gap, [0, 0.1, 0.005**0.5], atol=1e-15)
    sign = -1.0 if contacts.names[0].startswith("square") else 1.0
    np.testing.assert_allclose(contacts.normal[1:] * sign, [[0, 0, 1], [0.5**0.5, 0, 0.5**0.5]], atol=1e-15)


def test_the_plane_of_motion():
    np.testing.assert_allclose(np.abs(motion_normal(MODEL)), [0, 1, 0], atol=1e-15)  # type: ignore[arg-type]
    cart = [
        kn.Link("cart", joints=kn.prismatic("x"), mass=1.0),
        kn.Link("pole", parent="cart", joints=kn.revolute("y"), mass=1.0),
    ]
    np.testing.assert_allclose(np.abs(motion_normal(kn.build(cart))), [0, 1, 0], atol=1e-15)  # type: ignore[arg-type]
    across = [cart[0], kn.Link("pole", parent="cart", joints=kn.revolute("x"), mass=1.0)]
    assert motion_normal(kn.build(across)) is None
    assert motion_normal(kn.build([kn.Link("body", joints=kn.free(), mass=1.0)])) is None
