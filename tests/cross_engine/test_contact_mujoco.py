"""Contact as in MuJoCo: where bodies come to rest, how far they slide, what the ground carries.

MuJoCo's contact is made as hard as it can be: elliptic cone, impratio 100, a time constant of two steps (the least that
it allows), impedance 0.9999, steps of 0.1 ms. At rest it then gives way by (1 - d) g tc^2, below 1e-10 m. What is left
in sliding: its convex cone lifts what slides at up to mu times the speed of slip, so that bodies hop. A hop of speed w
changes a mean force over time T by m w / T, and the end of a slide by mu w times a fall. Where that decides, MuJoCo
runs at several steps, and its own spread is the tolerance. Our steps are off by v dt / 2 in a slide (semi-implicit
Euler), which is checked too, and agree with our own finer steps.
"""

from functools import cache
from typing import NamedTuple

import equinox as eqx
import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import knuckle as kn
from knuckle import robots
from knuckle.contact import Compliant, Impulse, InteriorPoint
from knuckle.contact.resolve import ContactModel

G, MU = 9.81, 0.3
DOWN = np.array([0.0, 0.0, -G])
CHUNK = 50  # steps that are compiled as one
STEP, FINE = 1e-3, 1e-4
HARD, CORNERED = Impulse(), InteriorPoint(directions=8)
STIFFNESS = 1e6
SPRINGY = Compliant(stiffness=STIFFNESS, dissipation=20.0, transition=1e-3)  # hardly bounces
BODIES = {
    "box": ['type="box" size="0.1 0.2 0.05" mass="1"'],
    "capsule": ['type="capsule" size="0.05 0.2" mass="1"'],
    "ball": ['type="sphere" size="0.1" mass="1"'],
    "stack": ['type="box" size="0.2 0.2 0.1" mass="1"', 'type="sphere" size="0.1" mass="3"'],
}
LYING = Rotation.from_euler("y", np.pi / 2)


def mjcf(name: str) -> str:
    if name == "quadruped":
        return robots.path(name).read_text()
    geoms = BODIES[name]
    bodies = "".join(f'<body name="b{i}"><freejoint/><geom name="b{i}" {g}/></body>' for i, g in enumerate(geoms))
    ground = '<geom name="floor" type="plane" size="9 9 1"/>'
    head = f'<default><geom friction="{MU}"/></default>'
    return f"<mujoco>{head}<worldbody>{ground}{bodies}</worldbody></mujoco>"


class End(NamedTuple):
    """State after a run, forces on the contacts (normal and two tangents) and where they act."""

    q: np.ndarray
    qd: np.ndarray
    force: np.ndarray
    point: np.ndarray


@cache
def model_of(name: str) -> kn.Model:
    return kn.load(mjcf(name))


@cache
def chunk(name: str):
    """CHUNK steps of a scene, compiled once for each kind of contact."""
    model = model_of(name)

    def advance(q, qd, control, dt, contact, gravity):
        world = eqx.tree_at(lambda m: m.gravity, model, gravity)
        run = kn.rollout(world, kn.State(q, qd), control, dt=dt, steps=CHUNK, contact=contact)
        assert run.contact is not None
        done = run.contact
        return run.q[-1], run.qd[-1], done.impulse[-1] / dt, done.contacts.point[-1], done.converged.all()

    return kn.native.jit(advance)


def ours(name: str, contact: ContactModel, q, qd, time: float, dt: float = STEP, gravity=DOWN, control=()) -> End:
    q, qd, control, force, point = *(np.asarray(x, float) for x in (q, qd, control)), None, None
    chunks = time / dt / CHUNK
    assert chunks == pytest.approx(round(chunks))
    for _ in range(round(chunks)):
        q, qd, force, point, solved = chunk(name)(q, qd, control, dt, contact, gravity)
        assert bool(solved)
    return End(*(np.asarray(x) for x in (q, qd, force, point)))


@cache
def hard_mujoco(name: str, dt: float) -> mujoco.MjModel:
    model = mujoco.MjModel.from_xml_string(mjcf(name))
    model.opt.timestep, model.opt.tolerance = dt, 1e-12
    model.opt.cone, model.opt.impratio = mujoco.mjtCone.mjCONE_ELLIPTIC, 100
    model.geom_solref[:], model.geom_solimp[:] = (2 * dt, 1), (0.9999, 0.9999, 1e-3, 0.5, 2)
    return model


def theirs(name: str, q, qd, time: float, dt: float = FINE, gravity=DOWN, control=(), averaged: float = 0.0) -> End:
    """MuJoCo's end; forces are the means over the last `averaged` seconds, of contacts in order of x."""
    model = hard_mujoco(name, dt)
    model.opt.gravity[:] = gravity
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = q, qd
    if len(control):
        data.ctrl[:] = control
    if not averaged:
        mujoco.mj_step(model, data, round(time / dt))
        mujoco.mj_forward(model, data)
        force = np.array([contact_force(model, data, i) for i in range(data.ncon)])
        return End(data.qpos.copy(), data.qvel.copy(), force, np.array(data.contact.pos))
    mujoco.mj_step(model, data, round((time - averaged) / dt))
    count, halves = round(averaged / dt), np.zeros((2, 3))
    for _ in range(count):
        mujoco.mj_step(model, data)
        for i in range(data.ncon):
            halves[int(data.contact.pos[i, 0] > data.qpos[0])] += contact_force(model, data, i) / count
    return End(data.qpos.copy(), data.qvel.copy(), halves, np.zeros((0, 3)))


def contact_force(model: mujoco.MjModel, data: mujoco.MjData, i: int) -> np.ndarray:
    wrench = np.zeros(6)
    mujoco.mj_contactForce(model, data, i, wrench)
    return wrench[:3]


def pose(x: float, y: float, z: float, rotation: Rotation = Rotation.identity()) -> np.ndarray:
    return np.concatenate([[x, y, z], rotation.as_quat()[[3, 0, 1, 2]]])


def overlap(contact: ContactModel, points: int) -> float:
    """How deep a body of 1 kg rests on springs, k depth^1.5 each; rigid contact does not overlap."""
    return (G / points / STIFFNESS) ** (2 / 3) if isinstance(contact, Compliant) else 0.0


def at(contact: ContactModel, q: np.ndarray, points: int) -> np.ndarray:
    return q - overlap(contact, points) * np.eye(len(q))[2]


@pytest.mark.parametrize(
    ("name", "start", "contact", "points"),
    [
        ("box", pose(0, 0, 0.2, Rotation.from_euler("x", 0.4)), HARD, 4),
        ("box", pose(0, 0, 0.2, Rotation.from_euler("x", 0.4)), SPRINGY, 4),
        ("capsule", pose(0, 0, 0.05 + 0.2 * np.cos(1.2), Rotation.from_euler("y", 1.2)), HARD, 2),
        ("capsule", pose(0, 0, 0.05 + 0.2 * np.cos(1.2), Rotation.from_euler("y", 1.2)), SPRINGY, 2),
        ("capsule", pose(0, 0, 0.05 + 0.2 * np.cos(1.2), Rotation.from_euler("y", 1.2)), CORNERED, 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ContactModel) else None,
)
def test_what_is_let_go_at_a_tilt_comes_to_rest_where_it_does_in_mujoco(name, start, contact, points):
    """It drops on an edge, tips over, slides and lands. MuJoCo's own spread over its steps is the tolerance."""
    peers = [theirs(name, start, np.zeros(6), 1.0, dt) for dt in (2e-4, 1e-4, 5e-5, 2.5e-5)]
    places = np.array([peer.q[:2] for peer in peers])
    spread = np.ptp(places, axis=0).max()
    moved = np.abs(places).max()
    assert spread < 0.2 * moved  # else nothing would be tested
    coarse, fine = (ours(name, contact, start, np.zeros(6), 1.0, dt) for dt in (STEP, FINE))
    np.testing.assert_allclose(coarse.q[:2], places.mean(axis=0), atol=spread)
    np.testing.assert_allclose(coarse.q[:2], fine.q[:2], atol=0.01 * moved)
    lies = peers[1].q - overlap(contact, points) * np.eye(7)[2]
    np.testing.assert_allclose(coarse.q[2:], lies[2:], atol=1e-6)  # R times the weight, over a few steps of Baumgarte
    for end in (coarse, peers[1]):
        assert np.abs(end.qd).max() < 1e-5
        assert end.force[:, 0].sum() == pytest.approx(G, rel=1e-5)


def test_a_stack_rests_and_presses_as_in_mujoco():
    """A heavy ball on a light box, off its centre: four corners share by R in both engines, and R is equal for all."""
    start = np.concatenate([pose(0, 0, 0.1), pose(0.06, 0.03, 0.3)])
    peer, end = theirs("stack", start, np.zeros(12), 0.5), ours("stack", HARD, start, np.zeros(12), 0.5)
    np.testing.assert_allclose(end.q, peer.q, atol=1e-6)
    for run in (peer, end):
        lower, upper = on_face(run, 0.0), on_face(run, 0.2)
        np.testing.assert_allclose(run.force[lower, 0].sum(), 4 * G, rtol=1e-4)
        np.testing.assert_allclose(run.force[upper, 0].sum(), 3 * G, rtol=1e-4)
        centre = run.force[lower, 0] @ run.point[lower] / (4 * G)
        np.testing.assert_allclose(centre[:2], [0.75 * 0.06, 0.75 * 0.03], atol=1e-4)
    np.testing.assert_allclose(sorted_forces(end, 0.0), sorted_forces(peer, 0.0), rtol=1e-3)


def on_face(run: End, height: float) -> np.ndarray:
    return (np.abs(run.point[:, 2] - height) < 1e-3) & (run.force[:, 0] > 0)


def sorted_forces(run: End, height: float) -> np.ndarray:
    return np.sort(run.force[on_face(run, height), 0])


def test_the_quadruped_stands_and_loads_its_feet_as_in_mujoco():
    """Servos turn two legs out, so that feet are loaded unequally; legs have three joints, so pose decides force.

    From the keyframe, 1 mm over the floor, feet slide as they land, and stick where MuJoCo's hop leaves them: 3 mm or
    mrad, of 20 mm and 170 mrad that it settles by. From MuJoCo's own pose, 5 ms on, forces differ by kp times what
    joints move in that time over the legs' reach (80 N m/rad, 0.2 m).
    """
    start = np.asarray(model_of("quadruped").keyframes["standing"])
    turned = start[7:] + 0.1 * np.eye(12)[1] - 0.1 * np.eye(12)[8]
    peer = theirs("quadruped", start, np.zeros(18), 4.0, control=turned)
    landed = ours("quadruped", HARD, start, np.zeros(18), 4.0, control=turned)
    np.testing.assert_allclose(landed.q, peer.q, atol=3e-3)
    end = ours("quadruped", HARD, peer.q, peer.qd, 5e-3, FINE, control=turned)
    np.testing.assert_allclose(end.q, peer.q, atol=1e-4)
    weight = G * float(model_of("quadruped").mass)
    feet = [np.argsort(run.point @ [2.0, 1.0, 0.0]) for run in (peer, end)]
    loads = [run.force[order, 0] for run, order in zip((peer, end), feet, strict=True)]
    drags = [np.hypot(*run.force[order, 1:].T) for run, order in zip((peer, end), feet, strict=True)]
    assert np.ptp(loads[0]) > 0.1 * weight
    np.testing.assert_allclose([load.sum() for load in loads], weight, rtol=1e-3)
    np.testing.assert_allclose(loads[1], loads[0], atol=80 / 0.2 * 1e-4)
    np.testing.assert_allclose(drags[1], drags[0], atol=80 / 0.2 * 1e-4)


@pytest.mark.parametrize("contact", [HARD, SPRINGY], ids=["Impulse", "Compliant"])
@pytest.mark.parametrize("angle", [0.0, 0.7, 2.0, 4.0])
def test_a_block_slides_as_far_as_in_mujoco(contact, angle):
    """v^2 / (2 mu g) in any direction. A hop of MuJoCo at mu v lasts 2 mu v / g, in which nothing slows it."""
    speed = 1.0
    along = speed * np.array([np.cos(angle), np.sin(angle)])
    start, qd = pose(0, 0, 0.05), np.concatenate([along, np.zeros(4)])
    peer = theirs("box", start, qd, 0.6)
    stop = speed**2 / (2 * MU * G)
    assert peer.q[:2] @ along == pytest.approx(stop, rel=2e-3)
    for dt in (STEP, FINE):
        end = ours("box", contact, at(contact, start, 4), qd, 0.6, dt)
        creep = 2e-4 * stop if contact is SPRINGY else 0.0  # friction is whole at the speed of transition only
        assert end.q[:2] @ along == pytest.approx(stop - speed * dt / 2, abs=2e-6 + 0.02 * speed * dt + creep)
        assert end.q[:2] @ along == pytest.approx(peer.q[:2] @ along, abs=speed * STEP)
        assert abs(along[0] * end.q[1] - along[1] * end.q[0]) < 1e-5 * stop + creep


@pytest.mark.parametrize("contact", [HARD, SPRINGY, CORNERED], ids=["Impulse", "Compliant", "InteriorPoint"])
@pytest.mark.parametrize("angle", [0.0, np.pi / 4, np.pi / 2])
def test_a_runner_slides_as_far_as_in_mujoco(contact, angle):
    """A lying capsule along its axis, in directions that are corners of the pyramid, so that it is no weaker."""
    along = np.array([np.cos(angle), np.sin(angle)])
    start = pose(0, 0, 0.05, Rotation.from_euler("z", angle) * LYING)
    qd = np.concatenate([along, np.zeros(4)])
    peer = theirs("capsule", start, qd, 0.6)
    end = ours("capsule", contact, at(contact, start, 2), qd, 0.6)
    stop = 1 / (2 * MU * G)
    assert peer.q[:2] @ along == pytest.approx(stop, rel=2e-3)
    assert end.q[:2] @ along == pytest.approx(stop - STEP / 2, abs=1e-4)
    assert end.q[:2] @ along == pytest.approx(peer.q[:2] @ along, abs=STEP)


@pytest.mark.parametrize("contact", [HARD, SPRINGY, CORNERED], ids=["Impulse", "Compliant", "InteriorPoint"])
def test_a_ball_begins_to_roll_as_in_mujoco(contact):
    """It slides for 2 v / (7 mu g), then rolls at 5/7 v: in all, 5/7 v T + v^2 2 / (49 mu g)."""
    speed, time = 1.0, 0.5
    along = np.array([1.0, 0.0]) if contact is CORNERED else np.array([0.8, 0.6])
    start, qd = pose(0, 0, 0.1), np.concatenate([speed * along, np.zeros(4)])
    peer = theirs("ball", start, qd, time)
    rolled = 5 / 7 * speed * time + 2 * speed**2 / (49 * MU * G)
    sliding = ours("ball", contact, at(contact, start, 1), qd, 0.05)
    assert np.hypot(*sliding.force[:, 1:].sum(axis=0)) == pytest.approx(MU * G, rel=1e-4)
    for dt in (STEP, FINE):
        end = ours("ball", contact, at(contact, start, 1), qd, time, dt)
        assert end.q[:2] @ along == pytest.approx(
            rolled, abs=speed * dt / 2 + (1e-3 * rolled if contact is SPRINGY else 1e-6)
        )
        assert end.q[:2] @ along == pytest.approx(peer.q[:2] @ along, abs=speed * STEP)
        np.testing.assert_allclose(end.qd, peer.qd, atol=2e-3 * 5 / 7 * speed / 0.1)
        assert end.force[0, 0] == pytest.approx(G, rel=1e-4)


@pytest.mark.parametrize("contact", [HARD, SPRINGY], ids=["Impulse", "Compliant"])
def test_a_block_that_slides_steadily_loads_its_front_as_in_mujoco(contact):
    """On a slope of tan(phi) = mu speed stays; moments say that the front carries N (1 + mu h / a) / 2.

    MuJoCo's means over T = 0.4 s carry hops of at most mu v: m mu v / T, below 1e-2 N here.
    """
    phi, speed, time = np.arctan(MU), 0.01, 0.8
    gravity = G * np.array([np.sin(phi), 0, -np.cos(phi)])
    start, qd = pose(0, 0, 0.05), np.array([speed, 0, 0, 0, 0, 0])
    peer = theirs("box", start, qd, time, gravity=gravity, averaged=time / 2)
    end = ours("box", contact, at(contact, start, 4), qd, time, gravity=gravity)
    load = G * np.cos(phi)
    front = end.point[:, 0] > end.q[0]
    halves = np.array([end.force[~front].sum(axis=0), end.force[front].sum(axis=0)])
    lever = 0.05 / 0.1
    for forces, tolerance in ((halves, 2e-3 * load), (peer.force, MU * speed / (time / 2))):
        np.testing.assert_allclose(forces[:, 0], load * np.array([1 - MU * lever, 1 + MU * lever]) / 2, atol=tolerance)
        assert np.hypot(*forces[:, 1:].sum(axis=0)) == pytest.approx(MU * forces[:, 0].sum(), rel=5e-3)
