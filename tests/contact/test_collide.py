"""Distances, points and normals of every pair of kinds: MuJoCo, derivatives, symmetries, degenerate poses.

Everything runs through three compiled functions over one scene with all kinds of shape, at 60 poses.
"""

from functools import lru_cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import INACTIVE_GAP, Pair, collide, contact_pairs
from tests.contact.collide_scenes import (
    Solid,
    flat,
    many_coordinates,
    most_separation,
    mujoco_distance,
    mujoco_scene,
    one_pair_per_kinds,
    row_by_row,
    separation,
    split_by_pair,
    spread_directions,
    two_of_each,
)

MODEL = jax.tree.map(jnp.asarray, two_of_each())
PAIRS = one_pair_per_kinds(MODEL)
SWAPPED = tuple(Pair(p.b, p.a) for p in PAIRS)
NAMES = jax.eval_shape(lambda: collide(MODEL, MODEL.reference, PAIRS)).names
ALL_NAMES = jax.eval_shape(lambda: collide(MODEL, MODEL.reference, PAIRS + SWAPPED)).names
ROWS = split_by_pair(NAMES)
ALL_ROWS = split_by_pair(ALL_NAMES)
COUNT = 60  # poses
GAP, POINT, NORMAL = 0, slice(1, 4), slice(4, 7)


def kinds(name: str) -> tuple[str, str]:
    first, second = name.split("#")[0].split("|")
    return first.rstrip("01"), second.rstrip("01")


# A point of the space of parameters is a tangent vector of the coordinates, and all sizes and placements

GEOMETRY = ("size", "position", "rotation")
ENTRIES = MODEL.nv + sum(getattr(MODEL.geometry, name).size for name in GEOMETRY)


def displaced(pairs, model, x, q):
    """Contacts of a model and coordinates that are displaced by x."""
    geometry = model.geometry
    sizes = [model.nv, *(getattr(geometry, name).size for name in GEOMETRY)]
    step, *changes = jnp.split(x, np.cumsum(sizes)[:-1].tolist())
    before = [getattr(geometry, name) for name in GEOMETRY]
    changed = [old + change.reshape(old.shape) for old, change in zip(before, changes, strict=True)]
    moved = eqx.tree_at(lambda m: [getattr(m.geometry, name) for name in GEOMETRY], model, changed)
    return flat(collide(moved, kn.retract(model, q, step), pairs))


def slope_along(model, q, direction):
    """Derivative along a direction in forward mode."""
    zero = jnp.zeros_like(direction)
    return jax.jvp(lambda x: displaced(PAIRS, model, x, q), (zero,), (direction,))[1]


def gradient(model, q, weights):
    """Derivative of weighted contacts by everything in reverse mode."""
    return jax.grad(lambda x: jnp.sum(weights * displaced(PAIRS, model, x, q)))(jnp.zeros(ENTRIES))


forward = row_by_row(partial(displaced, PAIRS + SWAPPED), shared=1)
slopes_along = row_by_row(slope_along, shared=1)
gradients = row_by_row(gradient, shared=1)


def contacts_at(model, qs, x=None) -> np.ndarray:
    x = np.zeros((COUNT, ENTRIES)) if x is None else x
    return forward(model, x, qs)


@lru_cache
def samples() -> tuple[np.ndarray, np.ndarray]:
    qs = many_coordinates(MODEL, COUNT, seed=3)
    return qs, contacts_at(MODEL, qs)


def of_pair(contacts: np.ndarray, pair: str) -> np.ndarray:
    return contacts[:, ALL_ROWS[pair]]


MUJOCO_ERROR = 1e-6  # [m]; where the two differ by more, the reference decides
REFERENCE_ERROR = 1e-9  # [m]; of the reference, which stops its search there
FACE_FOR_EDGE = 1.1e-3  # of the distance: a box's face stands in for edges that look within 1.1 degrees of its way
ONE_PLANE = [pair for pair in ROWS if "plane" not in pair and kinds(pair) != ("box", "box")]


def deepest(contacts: np.ndarray, pair: str) -> np.ndarray:
    """The contact of least gap in each pose."""
    rows = of_pair(contacts, pair)
    return rows[np.arange(len(rows)), rows[..., GAP].argmin(axis=1)]


def solids(q: np.ndarray, pair: str) -> list[Solid]:
    return [Solid(MODEL, q, name) for name in pair.split("|")]


@pytest.mark.parametrize("pair", ROWS)
def test_distances_are_mujocos(pair):
    """All poses to 1e-6, or, where MuJoCo stopped early, no plane separates the shapes by more than ours."""
    scene = mujoco_scene(MODEL)
    qs, contacts = samples()
    ours = deepest(contacts, pair)
    gaps = ours[:, GAP]
    theirs = np.array([mujoco_distance(scene, q, pair)[0] for q in qs])
    if kinds(pair) == ("box", "box"):
        np.testing.assert_allclose(gaps, theirs, rtol=FACE_FOR_EDGE, atol=1e-12)
        return
    for number in np.flatnonzero(np.abs(gaps - theirs) > MUJOCO_ERROR):
        a, b = solids(qs[number], pair)
        assert abs(most_separation(a, b, ours[number, NORMAL]) - gaps[number]) < REFERENCE_ERROR
    if "sphere" in kinds(pair)[0] and kinds(pair)[1] in ("sphere", "capsule", "box", "cylinder", "plane"):
        np.testing.assert_allclose(gaps, theirs, atol=1e-12)


@pytest.mark.parametrize("pair", ONE_PLANE)
def test_no_plane_separates_overlapping_shapes_by_more(pair):
    """Overlapping shapes have many ways out; ours is the shortest, and the normal is its direction."""
    qs, contacts = samples()
    overlapping = 0
    for q, contact in zip(qs, deepest(contacts, pair), strict=True):
        if contact[GAP] >= 0:
            continue
        overlapping += 1
        a, b = solids(q, pair)
        np.testing.assert_allclose(separation(a, b, contact[None, NORMAL])[0], contact[GAP], atol=1e-10)
        assert most_separation(a, b, contact[NORMAL]) < contact[GAP] + REFERENCE_ERROR
    assert overlapping > COUNT // 6


@pytest.mark.parametrize("pair", ONE_PLANE)
def test_contact_points_lie_on_both_surfaces(pair):
    """In all poses; with the normal, this proves that points are nearest, also where there are several such."""
    qs, contacts = samples()
    around = spread_directions(500)
    for q, contact in zip(qs, deepest(contacts, pair), strict=True):
        for solid, outward in zip(solids(q, pair), (-contact[NORMAL], contact[NORMAL]), strict=True):
            on_surface = contact[POINT] - 0.5 * contact[GAP] * outward
            assert abs(solid.reach(outward[None])[0] - outward @ on_surface) < 1e-9
            assert np.all(around @ on_surface < solid.reach(around) + 1e-9)


def test_normals_are_unit_vectors_and_gaps_are_at_most_the_inactive_one():
    _, contacts = samples()
    np.testing.assert_allclose(np.linalg.norm(contacts[..., NORMAL], axis=-1), 1, atol=1e-13)
    assert np.all(contacts[..., GAP] <= INACTIVE_GAP)


def test_friction_is_the_larger_of_the_two_and_differentiable():
    few = PAIRS[:6]

    def friction(table):
        return collide(eqx.tree_at(lambda m: m.geometry.friction, MODEL, table), MODEL.reference, few).friction

    sliding = np.asarray(MODEL.geometry.friction[:, 0])
    expected = [max(sliding[p.a], sliding[p.b]) for p in few]
    names = jax.eval_shape(lambda: collide(MODEL, MODEL.reference, few)).names
    table = np.asarray(MODEL.geometry.friction)
    values, slope = kn.native.jit(lambda table: (friction(table), jax.jacrev(friction)(table)))(table)
    found = dict(zip(names, values, strict=True))
    assert [float(found[f"{MODEL.geometry.names[p.a]}|{MODEL.geometry.names[p.b]}#0"]) for p in few] == expected
    np.testing.assert_allclose(np.sum(slope, axis=(1, 2)), 1)  # a contact's friction is one shape's, or half and half
    assert np.all(slope[..., 1:] == 0)


STEP = 2e-5  # of differences of fourth order; their error is then near 1e-8, by rounding and by curvature


@lru_cache
def slope_samples() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(11)
    qs, _ = samples()
    direction, weights = rng.normal(size=(COUNT, ENTRIES)), rng.normal(size=(COUNT, len(NAMES), 8))
    along, reverse = slopes_along(MODEL, qs, direction), gradients(MODEL, qs, weights)
    at = {k: contacts_at(MODEL, qs, k * STEP * direction) for k in (-4, -2, -1, 1, 2, 4)}
    near, far = ((8 * (at[k] - at[-k]) - (at[2 * k] - at[-2 * k])) / (12 * k * STEP) for k in (1, 2))
    return along, near, far, np.sum(weights * along, axis=(1, 2)), np.sum(reverse * direction, axis=1)


@pytest.mark.parametrize("pair", ROWS)
def test_derivatives_equal_differences(pair):
    """Distance, points and normal by poses, placements and sizes, wherever no other features meet within 4 steps.

    Differences over one and over two steps tell: across a change of features they do not agree.
    """
    along, near, far, _, _ = slope_samples()
    along, near, far = along[:, ROWS[pair]], near[:, ALL_ROWS[pair]], far[:, ALL_ROWS[pair]]
    scale = 1 + np.abs(near)
    smooth = np.max(np.abs(near - far) / scale, axis=(1, 2)) < 1e-6
    error = np.max(np.abs(along - near) / scale, axis=(1, 2))
    assert np.all(error[smooth] < 1e-6)
    assert np.mean(smooth) > 0.9
    assert np.abs(near).max() > 0.1


def test_forward_and_reverse_mode_agree():
    _, _, _, from_forward, from_reverse = slope_samples()
    np.testing.assert_allclose(from_forward, from_reverse, rtol=1e-8)


def test_swapping_the_shapes_turns_the_normal_round():
    _, contacts = samples()
    for pair in ROWS:
        if kinds(pair)[0] == kinds(pair)[1]:
            continue  # there the test itself sees the shapes in another order
        back = of_pair(contacts, "|".join(pair.split("|")[::-1])).copy()
        back[..., NORMAL] *= -1
        np.testing.assert_allclose(of_pair(contacts, pair), back, atol=1e-12)


def test_shapes_of_one_kind_may_be_swapped():
    _, contacts = samples()
    for pair in ROWS:
        if kinds(pair)[0] != kinds(pair)[1]:
            continue
        there, back = of_pair(contacts, pair), of_pair(contacts, "|".join(pair.split("|")[::-1]))
        np.testing.assert_allclose(there[..., GAP].min(axis=1), back[..., GAP].min(axis=1), atol=1e-10)
        np.testing.assert_allclose(there[:, 0, NORMAL], -back[:, 0, NORMAL], atol=1e-6)


def test_turning_and_moving_the_whole_scene_changes_nothing():
    qs, contacts = samples()
    quaternion, shift = jnp.asarray([0.3, -0.5, 0.7, 0.2]), np.array([0.4, -0.3, 0.2])
    R = np.asarray(kn.spatial.rotation_of_quaternion(quaternion))
    turn = lambda q: kn.spatial.quaternion_product(jnp.broadcast_to(quaternion, q.shape), q)  # noqa: E731
    geometry = MODEL.geometry
    fixed = np.array(geometry.link)[:, None] < 0
    position = jnp.where(fixed, np.asarray(geometry.position) @ R.T + shift, geometry.position)
    rotation = jnp.where(fixed, turn(geometry.rotation), geometry.rotation)
    world = eqx.tree_at(lambda m: (m.geometry.position, m.geometry.rotation), MODEL, (position, rotation))
    bodies = qs.reshape(COUNT, -1, 7)
    moved = np.concatenate([bodies[..., :3] @ R.T + shift, turn(jnp.asarray(bodies[..., 3:]))], axis=-1)
    result = contacts_at(world, moved.reshape(qs.shape))
    np.testing.assert_allclose(result[..., GAP], contacts[..., GAP], atol=1e-10)
    np.testing.assert_allclose(result[..., POINT], contacts[..., POINT] @ R.T + shift, atol=1e-8)
    np.testing.assert_allclose(result[..., NORMAL], contacts[..., NORMAL] @ R.T, atol=1e-8)


FEW = tuple(
    p
    for p in PAIRS
    if (MODEL.geometry.kind[p.a], MODEL.geometry.kind[p.b])
    in (("sphere", "plane"), ("box", "box"), ("ellipsoid", "box"))
)


def test_batched_equals_one_by_one():
    qs, contacts = samples()
    together = kn.native.vmap(lambda q: flat(collide(MODEL, q, FEW)))(qs[:8])
    names = jax.eval_shape(lambda: collide(MODEL, MODEL.reference, FEW)).names
    rows = [ALL_NAMES.index(name) for name in names]
    np.testing.assert_allclose(together, contacts[:8, rows], atol=1e-12)


def test_single_precision_stays_single_and_near():
    qs, contacts = samples()
    single = jax.tree.map(lambda x: x.astype(jnp.float32), MODEL)
    result = row_by_row(lambda q: flat(collide(single, q, FEW)))(qs.astype(np.float32))
    names = jax.eval_shape(lambda: collide(MODEL, MODEL.reference, FEW)).names
    expected = contacts[:, [ALL_NAMES.index(name) for name in names]]
    assert result.dtype == jnp.float32 and np.all(np.isfinite(result))
    near = np.abs(result[..., GAP] - expected[..., GAP]) < 1e-4
    assert near.mean() > 0.95  # a slot may hold another point of a tie


def degenerate_coordinates() -> np.ndarray:
    """All bodies aligned with the world at offsets where features coincide: centred, touching, beside, on a grid."""
    steps = (0.0, 1e-12, 1e-6, 0.05, 0.1, 0.11, 0.15, 0.2, 0.24, 0.3)
    turns = [
        (1, 0, 0, 0),
        (0.5**0.5, 0.5**0.5, 0, 0),
        (0, 1, 0, 0),
        (0.5, 0.5, 0.5, 0.5),
        (-1, 0, 0, 0),
        (0.5**0.5, 0, 0, 0.5**0.5),
    ]
    rows = []
    for number in range(COUNT):
        bodies = np.zeros((len(MODEL.link_names), 7))
        bodies[:, 3] = 1
        bodies[1::2, number % 3] = steps[number // 6]
        bodies[1::2, 3:] = turns[number % 6]
        bodies[::3, (number + 1) % 3] = steps[(number // 6 + 3) % 10]
        rows.append(bodies.ravel())
    return np.array(rows)


def test_no_nan_in_value_or_derivative_at_degenerate_poses():
    upright = jnp.zeros_like(MODEL.geometry.rotation).at[:, 0].set(1.0)
    where = lambda m: (m.geometry.position, m.geometry.rotation)  # noqa: E731
    aligned = eqx.tree_at(where, MODEL, (jnp.zeros_like(MODEL.geometry.position), upright))
    qs = degenerate_coordinates()
    contacts = contacts_at(aligned, qs)
    assert np.all(np.isfinite(contacts))
    np.testing.assert_allclose(np.linalg.norm(contacts[..., NORMAL], axis=-1), 1, atol=1e-9)
    assert np.all(np.isfinite(slopes_along(aligned, qs, np.ones((COUNT, ENTRIES)))))
    assert np.all(np.isfinite(gradients(aligned, qs, np.ones((COUNT, len(NAMES), 8)))))


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
