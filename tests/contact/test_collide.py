"""Distances, points and normals of every pair of kinds: MuJoCo, derivatives, symmetries, degenerate poses."""

from functools import lru_cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collide_scenes import (
    flat,
    many_coordinates,
    mujoco_distance,
    mujoco_scene,
    one_pair_per_kinds,
    split_by_pair,
    two_of_each,
)

import knuckle as kn
from knuckle.contact import INACTIVE_GAP, Pair, collide, contact_pairs
from knuckle.model.model import Model

MODEL = jax.tree.map(jnp.asarray, two_of_each())
PAIRS = one_pair_per_kinds(MODEL)
NAMES = collide(MODEL, jnp.asarray(MODEL.reference), PAIRS).names
ROWS = split_by_pair(NAMES)
GAP, POINT, NORMAL = 0, slice(1, 4), slice(4, 7)


@jax.jit
def values(model: Model, q):
    return flat(collide(model, q, PAIRS))


batched = jax.jit(jax.vmap(values, in_axes=(None, 0)))


@lru_cache
def samples() -> tuple[np.ndarray, np.ndarray]:
    qs = many_coordinates(MODEL, 45, seed=3)
    return qs, np.asarray(batched(MODEL, jnp.asarray(qs)))


@pytest.mark.parametrize("pair", ROWS)
def test_the_nearest_point_is_mujocos(pair):
    scene = mujoco_scene(MODEL)
    for q, contacts in zip(*samples(), strict=True):
        rows = contacts[ROWS[pair]]
        nearest = rows[np.argmin(rows[:, GAP])]
        distance, ends = mujoco_distance(scene, q, pair)
        np.testing.assert_allclose(nearest[GAP], distance, atol=2e-7)  # MuJoCo keeps mesh vertices in float32
        np.testing.assert_allclose(nearest[POINT], ends.mean(axis=0), atol=2e-6)


def test_normals_are_unit_vectors_and_gaps_are_at_most_the_inactive_one():
    _, contacts = samples()
    np.testing.assert_allclose(np.linalg.norm(contacts[..., NORMAL], axis=-1), 1, atol=1e-14)
    assert np.all(contacts[..., GAP] <= INACTIVE_GAP)


def test_friction_is_the_larger_of_the_two_and_differentiable():
    sliding = MODEL.geometry.friction[:, 0]
    sides = [[MODEL.geometry.names.index(n.split("#")[0].split("|")[k]) for n in NAMES] for k in (0, 1)]
    first, second = sliding[np.array(sides[0])], sliding[np.array(sides[1])]
    contacts = collide(MODEL, MODEL.reference, PAIRS)
    np.testing.assert_array_equal(contacts.friction, np.maximum(first, second))

    def friction(table):
        geometry = eqx.tree_at(lambda g: g.friction, MODEL.geometry, table)
        return collide(eqx.tree_at(lambda m: m.geometry, MODEL, geometry), MODEL.reference, PAIRS).friction

    slope = jax.jacrev(friction)(MODEL.geometry.friction)
    np.testing.assert_allclose(jnp.sum(slope, axis=(1, 2)), 1)  # a contact's friction is one shape's, or half and half
    assert np.all(np.asarray(slope)[..., 1:] == 0)


# Derivatives: a point of the space of parameters is a tangent vector of the coordinates, and all sizes and placements


def moved(x, q):
    """The model and coordinates displaced by x."""
    geometry = MODEL.geometry
    parts = jnp.split(x, np.cumsum([MODEL.nv, geometry.size.size, geometry.position.size]).tolist())
    changed = (
        geometry.size * (1 + parts[1].reshape(geometry.size.shape)),
        geometry.position + parts[2].reshape(geometry.position.shape),
        geometry.rotation + parts[3].reshape(geometry.rotation.shape),
    )
    where = lambda m: (m.geometry.size, m.geometry.position, m.geometry.rotation)  # noqa: E731
    return eqx.tree_at(where, MODEL, changed), kn.retract(MODEL, q, parts[0])


ENTRIES = MODEL.nv + sum(a.size for a in (MODEL.geometry.size, MODEL.geometry.position, MODEL.geometry.rotation))


def displaced(x, q):
    return flat(collide(*moved(x, q), PAIRS))


@jax.jit
@jax.vmap
def slopes(q, direction, weights):
    """Derivative along a direction in forward mode, its projection on weights in reverse mode, central differences."""
    zero = jnp.zeros_like(direction)
    _, forward = jax.jvp(lambda x: displaced(x, q), (zero,), (direction,))
    reverse = jax.grad(lambda x: jnp.sum(weights * displaced(x, q)))(zero)
    h = 1e-6
    before, after = jax.vmap(lambda s: displaced(s * direction, q))(jnp.asarray([-h, h]))
    return forward, jnp.sum(reverse * direction), (after - before) / (2 * h)


@lru_cache
def slope_samples():
    rng = np.random.default_rng(11)
    qs = many_coordinates(MODEL, 60, seed=8)
    directions, weights = rng.normal(size=(60, ENTRIES)), rng.normal(size=(60, len(NAMES), 8))
    return weights, *(np.asarray(x) for x in slopes(*map(jnp.asarray, (qs, directions, weights))))


@pytest.mark.parametrize("pair", ROWS)
def test_derivatives_equal_central_differences(pair):
    _, forward, _, difference = slope_samples()
    forward, difference = forward[:, ROWS[pair]], difference[:, ROWS[pair]]
    np.testing.assert_allclose(forward, difference, rtol=1e-5, atol=1e-5)
    assert np.abs(difference).max() > 0.1


def test_forward_and_reverse_mode_agree():
    weights, forward, projected, _ = slope_samples()
    np.testing.assert_allclose(np.sum(weights * forward, axis=(1, 2)), projected, rtol=1e-9)


# Symmetries


def test_swapping_the_shapes_turns_the_normal_round():
    swapped = tuple(Pair(p.b, p.a) for p in PAIRS)
    qs, contacts = samples()
    other = jax.jit(jax.vmap(lambda q: flat(collide(MODEL, q, swapped))))(jnp.asarray(qs))
    assert collide(MODEL, MODEL.reference, swapped).names == tuple(
        "|".join(n.split("#")[0].split("|")[::-1]) + "#" + n.split("#")[1] for n in NAMES
    )
    contacts = contacts.copy()
    contacts[..., NORMAL] *= -1
    same_kind = [a == b for a, b in (kinds(n) for n in NAMES)]  # another algorithm runs only where kinds are the same
    nearest = np.array([n.endswith("#0") for n in NAMES])
    rows = ~np.array(same_kind) | nearest
    np.testing.assert_allclose(np.asarray(other)[:, rows], contacts[:, rows], atol=1e-9)


def kinds(name: str) -> tuple[str, str]:
    first, second = name.split("#")[0].split("|")
    return first.rstrip("01"), second.rstrip("01")


def test_turning_and_moving_the_whole_scene_changes_nothing():
    qs, contacts = samples()
    quaternion = np.array([0.3, -0.5, 0.7, 0.2])
    R = np.asarray(kn.spatial.rotation_of_quaternion(jnp.asarray(quaternion)))
    shift = np.array([0.4, -0.3, 0.2])
    geometry = MODEL.geometry
    fixed = np.array(geometry.link) < 0
    turned = kn.spatial.quaternion_product(
        jnp.broadcast_to(jnp.asarray(quaternion), geometry.rotation.shape), geometry.rotation
    )
    world = eqx.tree_at(
        lambda m: (m.geometry.position, m.geometry.rotation),
        MODEL,
        (
            jnp.where(fixed[:, None], np.asarray(geometry.position) @ R.T + shift, geometry.position),
            jnp.where(fixed[:, None], turned, geometry.rotation),
        ),
    )
    bodies = qs.reshape(len(qs), -1, 7)
    rotations = kn.spatial.quaternion_product(
        jnp.broadcast_to(jnp.asarray(quaternion), bodies[..., 3:].shape), jnp.asarray(bodies[..., 3:])
    )
    moved_qs = jnp.concatenate([bodies[..., :3] @ R.T + shift, rotations], axis=-1).reshape(qs.shape)
    result = np.asarray(batched(world, moved_qs))
    np.testing.assert_allclose(result[..., GAP], contacts[..., GAP], atol=1e-10)
    np.testing.assert_allclose(result[..., POINT], contacts[..., POINT] @ R.T + shift, atol=1e-10)
    np.testing.assert_allclose(result[..., NORMAL], contacts[..., NORMAL] @ R.T, atol=1e-10)


def test_batched_equals_one_by_one():
    qs, contacts = samples()
    for q, expected in zip(qs[:6], contacts[:6], strict=True):
        np.testing.assert_allclose(values(MODEL, jnp.asarray(q)), expected, atol=1e-12)


def test_single_precision_stays_single_and_near():
    qs, contacts = samples()
    single = jax.tree.map(lambda x: x.astype(jnp.float32), MODEL)
    result = batched(single, jnp.asarray(qs, jnp.float32))
    assert result.dtype == jnp.float32
    near = np.abs(np.asarray(result)[..., GAP] - contacts[..., GAP]) < 1e-4  # a slot may hold another point of a tie
    assert np.all(np.isfinite(result)) and near.mean() > 0.99


# Degenerate poses


def degenerate_coordinates() -> np.ndarray:
    """All bodies aligned with the world at offsets where features coincide: centred, touching, beside, on a grid."""
    steps = (0.0, 1e-12, 1e-6, 0.05, 0.1, 0.11, 0.15, 0.2, 0.3, 0.5)
    turns = [(1, 0, 0, 0), (0.5**0.5, 0.5**0.5, 0, 0), (0, 1, 0, 0), (0.5, 0.5, 0.5, 0.5), (-1, 0, 0, 0)]
    rows = []
    for number, step in enumerate(steps):
        for axis in range(3):
            bodies = np.zeros((len(MODEL.link_names), 7))
            bodies[1::2, axis] = step
            bodies[:, 3:] = turns[0]
            bodies[1::2, 3:] = turns[(number + axis) % len(turns)]
            rows.append(bodies.ravel())
    return np.array(rows)


def test_no_nan_in_value_or_derivative_at_degenerate_poses():
    aligned = eqx.tree_at(
        lambda m: (m.geometry.position, m.geometry.rotation),
        MODEL,
        (jnp.zeros_like(MODEL.geometry.position), jnp.zeros_like(MODEL.geometry.rotation).at[:, 0].set(1.0)),
    )

    def total(model, q):
        return jnp.sum(flat(collide(model, q, PAIRS)))

    slope = jax.jit(jax.vmap(jax.value_and_grad(total, argnums=(0, 1)), in_axes=(None, 0)))
    value, (by_model, by_q) = slope(aligned, jnp.asarray(degenerate_coordinates()))
    assert np.all(np.isfinite(value)) and np.all(np.isfinite(by_q))
    for leaf in jax.tree.leaves(by_model.geometry):
        assert np.all(np.isfinite(leaf))


# Closed forms


def test_concentric_spheres_overlap_by_both_radii():
    ball = kn.shapes.sphere(0.1)
    model = kn.build([kn.Link(n, joints=kn.free(), mass=1.0, shapes=ball) for n in "ab"])
    contacts = collide(model, jnp.asarray(model.reference), contact_pairs(model))
    np.testing.assert_allclose(contacts.gap, -0.2, atol=1e-15)
    np.testing.assert_array_equal(contacts.normal, [[0, 0, 1]])


def test_parallel_capsules_touch_in_the_two_ends_of_their_overlap():
    rods = [kn.shapes.capsule(0.05, h, name=n) for n, h in (("long", 0.3), ("short", 0.1))]
    model = kn.build([kn.Link(s.name, joints=kn.free(), mass=1.0, shapes=s) for s in rods])
    q = jnp.asarray([0, 0, 0, 1, 0, 0, 0, 0.12, 0, 0.25, 1, 0, 0, 0], float)
    contacts = collide(model, q, contact_pairs(model))
    assert contacts.names == ("long|short#0", "long|short#1")
    np.testing.assert_allclose(contacts.gap, 0.02, atol=1e-15)
    np.testing.assert_allclose(contacts.point, [[0.06, 0, 0.15], [0.06, 0, 0.3]], atol=1e-15)
    crossed = q.at[10:].set(jnp.asarray([0.5**0.5, 0.5**0.5, 0, 0]))
    assert collide(model, crossed, contact_pairs(model)).gap[1] == INACTIVE_GAP


def test_a_box_stands_on_the_four_corners_of_its_lowest_face():
    model = kn.build(
        [kn.Link("b", joints=kn.free(), mass=1.0, shapes=kn.shapes.box(0.1, 0.2, 0.3))],
        world_shapes=[kn.shapes.plane()],
    )
    q = jnp.asarray([1.0, 2.0, 0.19, 0.5**0.5, 0.5**0.5, 0, 0])  # on its side: y is up
    contacts = collide(model, q, contact_pairs(model))
    np.testing.assert_allclose(contacts.gap, -0.01, atol=1e-15)
    corners = {(x, y, -0.005) for x in (0.9, 1.1) for y in (1.7, 2.3)}
    assert {tuple(float(c) for c in p) for p in np.round(contacts.point, 12)} == corners
    assert contacts.link_a == (0,) * 4 and contacts.link_b == (-1,) * 4


def test_each_of_the_chosen_points_touches():
    grid = [(x, y, 0.0) for x in (-0.1, 0.1) for y in (-0.1, 0.0, 0.1)]
    model = kn.build(
        [kn.Link("slab", joints=kn.free(), mass=1.0, shapes=kn.shapes.points(grid, name="grid"))],
        world_shapes=[kn.shapes.plane(name="table")],
    )
    q = jnp.asarray([0, 0, -0.001, 1, 0, 0, 0], float)
    contacts = collide(model, q, contact_pairs(model))
    np.testing.assert_allclose(contacts.gap, -0.001, atol=1e-15)
    np.testing.assert_allclose(contacts.point[:, :2], np.array(grid)[:, :2], atol=1e-15)
    assert contacts.names == tuple(f"grid|table#{k}" for k in range(6))
