"""Mocap bodies that follow paths: closed forms, the limit of a heavy body, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Compliant, Impulse
from knuckle.contact.bounds import fastest_prescribed
from knuckle.kinematics import articulation
from knuckle.prescribed import as_paths, motion_over, placed

G, DT = 9.81, 1e-3
FEET = kn.shapes.points([(x, y, 0.0) for x, y in ((0.1, 0), (0, 0.1), (-0.1, 0), (0, -0.1))])


def on_ground(shape=FEET, joints=None, height: float = 0.0, **options) -> kn.Model:
    """A body of 2 kg over the plane of a mocap body 'ground'."""
    joints = kn.free() if joints is None else joints
    body = kn.Link("body", joints=joints, mass=2.0, com=(0, 0, 0), inertia=(0.02, 0.02, 0.03), shapes=shape)
    ground = kn.Link("ground", mocap=True, position=(0, 0, height), shapes=kn.shapes.plane(friction=(0.4,)))
    return kn.build([body, ground], **options)


def rollout(model: kn.Model, state: kn.State, **options) -> Any:
    return kn.rollout(model, state, native=True, **options)


def at_rest(height: float = 0.0) -> kn.State:
    return kn.State(np.array([0, 0, height, 1.0, 0, 0, 0]), np.zeros(6))


def turned(angle, axis) -> jnp.ndarray:
    return jnp.concatenate([jnp.cos(angle / 2)[None], jnp.sin(angle / 2) * jnp.asarray(axis, float)])


def test_a_conveyor_drags_by_friction_until_the_body_moves_along():
    speed, mu = 1.0, 0.4
    path = kn.Path([0.0, 1.0], [[0.0, 0, 0], [speed, 0, 0]])
    run = rollout(on_ground(), at_rest(), dt=DT, steps=400, contact=Impulse(friction=mu), prescribed={"ground": path})
    assert run.contact is not None and bool(run.contact.converged.all())
    expected = np.minimum(mu * G * np.asarray(run.time), speed)
    np.testing.assert_allclose(run.qd[:, 0], expected, atol=1e-6)  # R of 1e-5: contacts share by 1e-7 of the load
    np.testing.assert_allclose(run.contact.velocity[-1, :, 1:], 0, atol=1e-6)  # at the end nothing slips on the belt


def test_a_lift_adds_its_acceleration_to_gravity():
    rise = 3.0

    def path(t):
        return jnp.stack([0 * t, 0 * t, 0.2 + rise * t * t / 2])

    run = rollout(
        on_ground(height=0.2),
        at_rest(0.2),
        dt=DT,
        steps=100,
        contact=Impulse(),
        prescribed={"ground": path},
    )
    load = np.asarray(run.contact.impulse)[:, :, 0].sum(axis=1)
    np.testing.assert_allclose(load[1:], 2.0 * (G + rise) * DT, rtol=1e-5)  # R is 1e-5 of an inverse mass
    assert load[0] == pytest.approx(2.0 * (G + rise / 2) * DT, rel=1e-5)  # it starts from rest: half the velocity
    np.testing.assert_allclose(run.q[:, 2], 0.2 + rise * np.asarray(run.time) ** 2 / 2, atol=1e-7)


@pytest.mark.parametrize("e", [0.5, 1.0])
def test_a_lift_that_starts_upwards_throws_nothing_that_rests_on_it(e):
    """What stands on an accelerated ground does not bounce: its velocity before the step is that of the ground."""

    def path(t):
        return jnp.stack([0 * t, 0 * t, 30.0 * t * t / 2])

    run = rollout(
        on_ground(),
        at_rest(),
        dt=DT,
        steps=50,
        contact=Impulse(restitution=e),
        prescribed={"ground": path},
    )
    np.testing.assert_allclose(run.q[:, 2], 15.0 * np.asarray(run.time) ** 2, atol=1e-6)


def test_a_turntable_drags_by_friction():
    """Four feet at radius r: spin mu m g r t / I until it turns with the table, about the table's own axis."""
    spin, mu, r = 5.0, 0.4, 0.1

    def path(t):
        return jnp.concatenate([jnp.zeros(3), turned(spin * t, [0, 0, 1.0])])

    run = rollout(on_ground(), at_rest(), dt=DT, steps=300, contact=Impulse(friction=mu), prescribed={"ground": path})
    rate = np.minimum(mu * 2.0 * G * r / 0.03 * np.asarray(run.time), spin)
    np.testing.assert_allclose(run.qd[:, 5], rate, atol=1e-5 * spin)


@pytest.mark.parametrize("wall", [-2.0, 0.0, 1.5])
@pytest.mark.parametrize("law", ["newton", "passive"])
def test_a_bounce_off_a_moving_wall(wall, law):
    """v' = 2 V - v, and position by the time of impact."""
    gap, v = 0.05, 4.0
    ball = kn.Link("ball", joints=kn.prismatic("x"), mass=2.0, shapes=kn.shapes.sphere(0.1))
    face = kn.Link(
        "wall",
        mocap=True,
        rotation=(np.sqrt(0.5), 0, -np.sqrt(0.5), 0),
        position=(0.1 + gap, 0, 0),
        shapes=kn.shapes.plane(),
    )
    path = kn.Path([0.0, 1.0], [[0.1 + gap, 0, 0], [0.1 + gap + wall, 0, 0]])
    contact = Impulse(restitution=1.0, mixing=0.0, restitution_law=law)
    start = kn.State(np.zeros(1), np.array([v]))
    run = rollout(kn.build([ball, face]), start, dt=DT, steps=100, contact=contact, prescribed={"wall": path})
    assert run.qd[-1, 0] == pytest.approx(2 * wall - v, rel=1e-9)
    hit = gap / (v - wall)
    assert run.q[-1, 0] == pytest.approx(v * hit + (2 * wall - v) * (0.1 - hit), abs=1e-9)


def test_what_is_pushed_ends_at_the_tip():
    puck = kn.Link("puck", joints=kn.prismatic("x", damping=3.0), mass=2.0, shapes=kn.shapes.sphere(0.1))
    tip = kn.Link("tip", mocap=True, position=(-0.5, 0, 0), shapes=kn.shapes.sphere(0.05))
    path = kn.Path([0.0, 2.0], [[-0.2, 0, 0], [0.6, 0, 0]])
    options = {"dt": 2e-3, "steps": 1000, "contact": Impulse(mixing=0.0), "prescribed": {"tip": path}}
    run = rollout(kn.build([puck, tip]), kn.State(np.zeros(1), np.zeros(1)), **options)
    assert run.q[-1, 0] == pytest.approx(0.6 + 0.15, abs=1e-9)
    assert run.qd[-1, 0] == pytest.approx(0.4, abs=1e-9)
    load = float(run.contact.impulse[-1, 0, 0]) / 2e-3
    assert abs(load) == pytest.approx(3.0 * 0.4, rel=2e-6)  # of damping; 1e-9 m/s in a step are 1e-6 N


def test_a_constant_pose_is_the_model_without_path_bitwise():
    model = on_ground(kn.shapes.sphere(0.1), height=0.3)
    start = kn.State(np.array([0, 0, 0.5, 1.0, 0, 0, 0]), np.array([1.0, 0.5, 0, 3.0, 0, 0]))
    runs = [
        rollout(model, start, dt=DT, steps=300, contact=Impulse(restitution=0.5), prescribed=given)
        for given in (None, {"ground": (0.0, 0.0, 0.3)}, {"ground": (0.0, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0)})
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.q, runs[0].q)
        np.testing.assert_array_equal(run.contact.impulse, runs[0].contact.impulse)


HEAVY = 1e10  # times the mass of what it hits: differences are of 1e-10


@pytest.mark.parametrize("contact", [Impulse(restitution=0.6), Compliant(), Compliant(substeps=8)], ids=str)
def test_a_prescribed_body_is_the_limit_of_a_heavy_one(contact):
    """A ball that moves and spins hits another with friction: as a free body of 1e10 kg, and on the path of that."""
    shape = kn.shapes.sphere(0.2, friction=(0.5,), position=(0.03, 0.05, 0.0))
    ball = kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1, friction=(0.5,)))
    big = {"mass": HEAVY, "com": (0, 0, 0), "inertia": (HEAVY,) * 3, "shapes": shape}
    steps, q, qd = 60, [-0.31, 0.02, 0.01, 1.0, 0, 0, 0], [2.0, 0.1, 0, 3.0, -2.0, 5.0]
    start = np.array([0, 0, 0, 1.0, 0, 0, 0])
    options = {"dt": DT, "contact": contact}
    free = kn.build([ball, kn.Link("hammer", joints=kn.free(), **big)], gravity=(0, 0, 0))
    both = rollout(
        free, kn.State(np.concatenate([start, q]), np.concatenate([np.zeros(6), qd])), steps=steps, **options
    )
    given = kn.build([ball, kn.Link("hammer", mocap=True, **{**big, "mass": 0.0, "inertia": None})], gravity=(0, 0, 0))
    recorded = np.concatenate([[q], np.asarray(both.q[:, 7:])])
    path = kn.Path(DT * np.arange(steps + 1), recorded, interpolation="linear")
    run = rollout(given, kn.State(start, np.zeros(6)), steps=steps, prescribed={"hammer": path}, **options)
    assert np.abs(run.qd[-1]).max() > 1.0
    np.testing.assert_allclose(run.q, both.q[:, :7], atol=1e-7)
    np.testing.assert_allclose(run.qd, both.qd[:, :6], atol=1e-6)


def test_a_weld_to_a_prescribed_body_drags_along():
    hand = kn.Link("hand", joints=kn.free(), mass=1.0, com=(0, 0, 0), inertia=(0.01,) * 3)
    target = kn.Link("target", mocap=True, frames=[kn.Frame("mark", (0.1, 0, 0))])
    model = kn.build([hand, target], equalities=[kn.Weld("hand", "target", position_b=(0.2, 0, 0))])

    def path(t):
        return jnp.concatenate([jnp.stack([jnp.sin(t), 0 * t, t]), turned(t, [0, 0, 1.0])])

    start = kn.State(np.array([0.2, 0, 0, 1.0, 0, 0, 0]), np.array([1.0, 0.2, 1.0, 0, 0, 1.0]))
    run = rollout(model, start, dt=DT, steps=500, contact=Impulse(), prescribed={"target": path}, check=True)
    t = 0.5
    end = np.array([np.sin(t) + 0.2 * np.cos(t), 0.2 * np.sin(t), t, np.cos(t / 2), 0, 0, np.sin(t / 2)])
    np.testing.assert_allclose(run.q[-1], end, atol=3e-5)  # the centripetal way that a step leaves, over `correction`
    assert run.contact.violation.max() < 1e-4


def test_placing_moves_frames_and_shapes_of_all_that_hangs_on_a_body():
    table = kn.Link("table", mocap=True, position=(0.1, 0, 0), shapes=kn.shapes.sphere(0.1, position=(0, 0.2, 0)))
    cup = kn.Link(
        "cup", "table", position=(0.5, 0, 0), shapes=kn.shapes.sphere(0.05), frames=[kn.Frame("rim", (0, 0, 0.1))]
    )
    ball = kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1))
    model = kn.build([ball, table, cup])
    pose = np.array([0.0, 1.0, 0.0, np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
    motion: Any = motion_over(model, as_paths(model, {"table": pose}), 0.0, DT, float)
    moved = placed(model, motion.bodies)
    np.testing.assert_allclose(moved.geometry.position[1:], [[-0.2, 1.0, 0], [0, 1.5, 0]], atol=1e-15)
    at = {name: moved.frames.position[k] for k, name in enumerate(moved.frames.names)}
    np.testing.assert_allclose(at["rim"], [0, 1.5, 0.1], atol=1e-15)


@pytest.mark.parametrize("seed", range(3))
def test_no_point_of_a_prescribed_shape_is_faster_than_its_bound(seed):
    rng = np.random.default_rng(seed)
    tool = kn.Link("tool", mocap=True, shapes=[
        kn.shapes.box(0.3, 0.1, 0.2, position=rng.normal(size=3)), kn.shapes.plane(position=rng.normal(size=3)),
    ])  # fmt: skip
    model = kn.build([kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1)), tool])
    ends = rng.normal(size=(2, 7))
    ends[:, 3:] /= np.linalg.norm(ends[:, 3:], axis=1, keepdims=True)
    paths = as_paths(model, {"tool": kn.Path([0.0, 1.0], ends)})
    motion: Any = motion_over(model, paths, 0.5, DT, float)
    q = jnp.asarray(np.concatenate([rng.normal(size=3), [1.0, 0, 0, 0]]))
    at = placed(model, motion.bodies)
    bound = float(fastest_prescribed(at, articulation(at, q), motion.bodies))
    R = np.asarray(kn.spatial.rotation_of_quaternion(jnp.asarray(at.geometry.rotation)))
    corners = np.asarray(at.geometry.position[1]) + rng.uniform(-1, 1, (50, 3)) * (0.3, 0.1, 0.2) @ R[1].T
    near_ball = np.asarray(q[:3]) + 0.05 * rng.normal(size=(50, 3))
    points = jnp.asarray(np.concatenate([corners, near_ball]))
    speed = np.linalg.norm(motion.bodies.point_velocity(np.zeros(100, int), points), axis=1)
    assert speed.max() <= bound * (1 + 1e-9)
    assert bound < 5 * speed.max()


def test_steps_one_by_one_are_a_rollout():
    model, contact = on_ground(kn.shapes.sphere(0.1)), Impulse()
    path = kn.Path(np.linspace(0, 1, 5), np.array([[0, 0, 0], [0.1, 0, 0.02], [0.2, 0, 0], [0.4, 0, 0], [0.4, 0, 0.1]]))
    run = rollout(model, at_rest(0.1), dt=0.01, steps=20, contact=contact, prescribed={"ground": path})
    one = kn.native.jit(lambda s, t: kn.step(model, s, dt=0.01, contact=contact, prescribed={"ground": path}, time=t))
    state = contact.begin(model, jax.tree.map(jnp.asarray, at_rest(0.1)))
    for k in range(20):
        state = one(state, 0.01 * k)
    np.testing.assert_allclose(state.q, run.q[-1], atol=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grund": np.zeros(3)}, "'grund': no joint or mocap body has this name; there are joints body_joint; "
         "mocap bodies ground"),
        ({"body": np.zeros(3)}, "'body': this link moves by joint 'body_joint'"),
        ({"ground": np.zeros(4)}, "'ground': a constant: quaternions wxyz must be of unit length"),
        ({"ground": np.zeros(2)}, "'ground': a constant has 1, 3, 4, 7 coordinates"),
        ({"ground": [1.0, 0, 0, 0]}, r"'ground': the path must have 3 or 7 coordinates .* got shape \(4,\)"),
        ({"ground": np.array([0.0, 0, np.nan])}, "'ground': a constant must be finite"),
        ({"ground": "here"}, "'ground': could not convert"),
        ({"body_joint": np.zeros(3)}, r"'body_joint': the path must have 7 coordinates \(as in q\)"),
        ({"shelf": np.zeros(3)}, "'shelf': this body on the world is not marked as a mocap body"),
        ({"ground": kn.Path([0.0, 0.05], np.zeros((2, 3)))}, "samples from 0 to 0.05 s, but steps go from 0 to 0.1 s"),
        (["ground"], "prescribed must be a dict"),
    ],
)  # fmt: skip
def test_wrong_paths_are_refused(given, message):
    body = kn.Link("body", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1))
    ground = kn.Link("ground", mocap=True, shapes=kn.shapes.plane())
    model = kn.build([body, ground, kn.Link("shelf", "ground")])
    with pytest.raises(ValueError, match=message):
        rollout(model, model.state(), dt=0.01, steps=10, contact=Impulse(), prescribed=given)


def test_a_body_that_carries_joints_is_refused():
    base = kn.Link("base", mocap=True)
    arm = kn.Link("arm", "base", kn.revolute("y"), mass=1.0, com=(0, 0, -0.1), inertia=(0.01,) * 3)
    model = kn.build([base, arm])
    with pytest.raises(ValueError, match="'base': a joint hangs on body 'base'"):
        kn.step(model, model.state(), dt=DT, prescribed={"base": np.zeros(3)})


def test_a_held_path_may_end_before_the_rollout():
    path, model = kn.Path([0.0, 0.05], [[0.0, 0, 0], [0.05, 0, 0]], beyond="hold"), on_ground(kn.shapes.sphere(0.1))
    options = {"dt": 0.01, "steps": 10, "contact": Impulse(), "prescribed": {"ground": path}}
    run = rollout(model, at_rest(0.1), **options)
    assert np.isfinite(run.q).all()


def test_a_body_squeezed_between_a_path_and_the_ground_is_not_solved():
    ball = kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1))
    press = kn.Link("press", mocap=True, rotation=(0, 1.0, 0, 0), position=(0, 0, 0.3), shapes=kn.shapes.plane())
    model = kn.build([ball, press], world_shapes=[kn.shapes.plane()])
    path = kn.Path([0.0, 1.0], [[0, 0, 0.25], [0, 0, -0.25]])
    run = rollout(model, at_rest(0.1), dt=DT, steps=150, contact=Impulse(), prescribed={"press": path})
    assert np.isfinite(run.q).all()
    assert bool(run.contact.converged[:99].all()) and not bool(run.contact.converged[105:].any())
    with pytest.raises(ArithmeticError, match="squeezed by prescribed motion"):
        run.contact.check()
