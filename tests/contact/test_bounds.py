"""Tests of shapes that are out of reach are left out, and nothing else: bounds hold, and steps are the same."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.contact import INACTIVE_GAP, Impulse, collide, contact_pairs
from knuckle.contact.bounds import bounding_boxes, clearance, fastest, movers_of
from knuckle.kinematics import Poses, articulation, poses
from knuckle.model.geometry import Mesh
from tests.contact.collide_scenes import two_of_each

MODEL = jax.tree.map(jnp.asarray, two_of_each())
LONG = ({"mesh", "plane"}, {"box"})  # kinds of pairs
PAIRS = tuple(p for p in contact_pairs(MODEL) if {MODEL.geometry.kind[p.a], MODEL.geometry.kind[p.b]} in LONG)


def test_no_pair_is_nearer_than_its_bound():
    """Of 50 random poses of shapes with long tests; a gap of shapes that overlap may be less than their depth."""
    rng = np.random.default_rng(0)
    gaps = jax.jit(lambda q: collide(MODEL, q, PAIRS))
    culled = jax.jit(lambda q, reach: collide(MODEL, q, PAIRS, reach))
    seen = 0
    for _ in range(50):
        q = jnp.asarray(rng.normal(size=MODEL.nq))
        reach = float(rng.uniform(0, 1))
        everything, near = gaps(q), culled(q, reach)
        left_out = np.asarray(near.gap) != np.asarray(everything.gap)
        assert np.all(np.asarray(near.gap)[left_out] == INACTIVE_GAP)
        assert np.all(np.asarray(everything.gap)[left_out] > reach)
        assert np.all(np.isfinite(near.normal)) and np.allclose(np.linalg.norm(near.normal, axis=1), 1)
        seen += left_out.sum()
    assert seen > 100


def test_long_boxes_side_by_side_are_known_to_be_apart():
    """Balls about them overlap; along an axis of either box the bound is exact: the turned corner of b, 0.1 off a."""
    beam = kn.shapes.box(1.0, 0.05, 0.05)
    turned = kn.Link("b", joints=kn.free(), mass=1.0, shapes=beam)
    model = kn.build([kn.Link("a", joints=kn.free(), mass=1.0, shapes=beam), turned])
    c, s = np.cos(0.3), np.sin(0.3)
    about_x = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    at_a = Poses(jnp.eye(3)[None], jnp.zeros((1, 3)))
    at_b = Poses(jnp.asarray(about_x)[None], jnp.array([[0, 0.05 + 0.05 * (c + s) + 0.1, 0]]))
    np.testing.assert_allclose(clearance(model.geometry, ([0], at_a), ([1], at_b)), 0.1, atol=1e-12)
    np.testing.assert_allclose(clearance(model.geometry, ([1], at_b), ([0], at_a)), 0.1, atol=1e-12)


def test_one_shape_of_a_pair_moves_if_the_other_is_on_the_world():
    balls = [kn.Link(name, joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1)) for name in ("a", "b")]
    model = kn.build(balls, world_shapes=[kn.shapes.plane()])
    pairs = contact_pairs(model)
    on_ground = tuple(p for p in pairs if "plane" in (model.geometry.kind[p.a], model.geometry.kind[p.b]))
    assert len(pairs) == 3 and len(on_ground) == 2
    assert movers_of(model, pairs, None) == 2 and movers_of(model, on_ground, None) == 1


def test_boxes_hold_shapes_of_all_kinds():
    size = np.array([0.3, 0.5, 0.7])
    wanted = {"sphere": (0.3, 0.3, 0.3), "capsule": (0.3, 0.3, 0.8), "cylinder": (0.3, 0.3, 0.5), "plane": (0, 0, 0)}
    for kind in ("sphere", "capsule", "cylinder", "plane", "box", "ellipsoid"):
        shape = next(k for k, other in enumerate(MODEL.geometry.kind) if other == kind)
        geometry = eqx.tree_at(lambda g: g.size, MODEL.geometry, jnp.tile(size, (len(MODEL.geometry), 1)))
        box = bounding_boxes(geometry, [shape])
        np.testing.assert_allclose(box.half[0], wanted.get(kind, size), atol=1e-15)
        np.testing.assert_array_equal(box.center[0], 0)


def test_no_point_of_a_shape_is_faster_than_the_bound():
    """Corners of all bounding boxes, by differences of their positions."""
    rng = np.random.default_rng(1)
    shapes = [k for k, link in enumerate(MODEL.geometry.link) if link >= 0]
    box = bounding_boxes(MODEL.geometry, shapes)
    signs = np.stack(np.meshgrid(*[(-1, 1)] * 3), axis=-1).reshape(-1, 3)
    corners = np.asarray(box.center)[:, None] + signs * np.asarray(box.half)[:, None]

    @jax.jit
    def places(q):
        R, p = poses(MODEL, q)
        links = np.array(MODEL.geometry.link)[shapes]
        local = kn.spatial.rotation_of_quaternion(jnp.asarray(MODEL.geometry.rotation)[np.array(shapes)])
        on_link = jnp.einsum("sij,scj->sci", local, corners) + MODEL.geometry.position[np.array(shapes)][:, None]
        return jnp.einsum("sij,scj->sci", R[links], on_link) + p[links][:, None]

    for _ in range(20):
        q, v = jnp.asarray(rng.normal(size=MODEL.nq)), jnp.asarray(rng.normal(size=MODEL.nv))
        q = kn.model.retract(MODEL, q, jnp.zeros(MODEL.nv))
        moved = [np.asarray(places(kn.model.retract(MODEL, q, s * 1e-6 * v))) for s in (1, -1)]
        speed = np.linalg.norm(moved[0] - moved[1], axis=-1).max() / 2e-6
        assert speed <= float(fastest(MODEL, articulation(MODEL, q), v)) * (1 + 1e-6)


def test_a_fast_mesh_hits_the_ground_as_if_nothing_were_left_out(monkeypatch):
    """A hull thrown down from 2 m at 30 m/s, with and without culling, and a second one that stays far away."""
    rng = np.random.default_rng(2)
    hull = Mesh(0.1 * rng.normal(size=(40, 3)), np.zeros((0, 3)))
    links = [
        kn.Link(name, joints=kn.free(), mass=1.0, inertia=(0.01,) * 3, shapes=[kn.shapes.Shape("mesh", mesh=hull)])
        for name in ("a", "b")
    ]
    ground = kn.Link("ground", shapes=[kn.shapes.plane()])
    model = kn.build([ground, *links])
    q = np.array([0, 0, 2.0, 1, 0, 0, 0, 5, 0, 50, 1, 0, 0, 0])
    qd = np.array([1.0, 0, -30, 3, 2, 1, 0, 0, 0, 1, 2, 3])
    options: Any = {"dt": 0.002, "steps": 60, "contact": Impulse(restitution=0.3), "native": True}
    culled = kn.rollout(model, kn.State(q, qd), **options)
    asked = []
    monkeypatch.setattr(Impulse, "culls", property(lambda self: bool(asked.append(self))))  # no
    options["native"] = False
    everything = kn.native.jit(lambda q, qd: kn.rollout(model, kn.State(q, qd), **options).q)(q, qd)
    assert asked  # the roll-out was traced anew
    assert culled.contact is not None
    assert bool(culled.contact.converged.all()) and float(culled.contact.impulse.max()) > 1
    np.testing.assert_allclose(culled.q, everything, atol=1e-8)
