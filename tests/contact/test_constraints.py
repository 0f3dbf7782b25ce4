"""Joint limits, equalities and dry joint friction against closed forms and other ways to build the same mechanism."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse
from tests.contact.scenes import ROD, planar_chain
from tests.derivatives import by_columns, by_rows

G = 9.81


def rod(name, parent="world", position=(0, 0, 0), **joint):
    """A rod that hangs down from its joint."""
    hinge = kn.revolute("y", **joint)
    return kn.Link(name, parent, hinge, position=position, mass=1.0, com=(0, 0, -0.5), inertia=ROD)


def roll(model, q, qd, *, dt, steps, contact=None, control=None, **options) -> Any:
    options = {"contact": contact or Impulse(), "native": True} | options
    return kn.rollout(
        model, kn.State(np.asarray(q, float), np.asarray(qd, float)), control, dt=dt, steps=steps, **options
    )


def test_a_joint_stops_at_its_limit_and_leans_on_it():
    """A pendulum swings from the horizontal onto a stop at 0.3 rad and rests there against gravity's torque."""
    model = kn.build([rod("a", lower=0.3, upper=2.0)])
    run = roll(model, [1.5], [0.0], dt=1e-3, steps=2000)
    assert float(run.q.min()) > 0.3 - 1e-6
    assert float(run.q[-1, 0]) == pytest.approx(0.3, abs=1e-6)
    assert float(run.contact.limit[-1, 0]) == pytest.approx(0.5 * G * np.sin(0.3) * 1e-3, rel=1e-5)
    up = roll(model, [1.9], [3.0], dt=1e-3, steps=60)
    assert float(up.q.max()) == pytest.approx(2.0, abs=1e-4)


def test_a_joint_without_room_is_locked():
    model = kn.build([rod("a", lower=0.4, upper=0.4), rod("b", "a", (0, 0, -1))])
    run = roll(model, [0.4, 0.0], [0.0, 0.0], dt=1e-3, steps=300)
    np.testing.assert_allclose(run.q[:, 0], 0.4, atol=1e-6)
    assert abs(float(run.q[-1, 1])) > 0.1


def test_a_ball_joint_stays_within_its_cone():
    link = kn.Link("a", joints=kn.ball(upper=0.5), mass=1.0, com=(0, 0, 0.5), inertia=ROD)
    run = roll(kn.build([link]), [1, 0, 0, 0.0], [0.4, 0.3, 0], dt=1e-3, steps=1500)
    angle = 2 * np.arccos(np.clip(np.abs(np.asarray(run.q[:, 0])), 0, 1))
    assert angle.max() == pytest.approx(0.5, abs=1e-3)
    assert angle[-1] == pytest.approx(0.5, abs=1e-3)


def test_dry_friction_of_a_joint_stops_it_and_holds_it():
    """A mass of 2 kg on a rail with 3 N of friction stops after m v^2/(2 F), and 2.9 N do not move it."""
    model = kn.build(
        [kn.Link("cart", joints=kn.prismatic("x", friction=3.0, name="rail"), mass=2.0)],
        actuators=[kn.motor("rail")],
    )
    run = roll(model, [0.0], [1.0], dt=1e-3, steps=1000, control=np.zeros(1))
    assert float(run.q[-1, 0]) == pytest.approx(2.0 / (2 * 3.0), abs=1e-3)
    assert abs(float(run.qd[-1, 0])) < 1e-8
    held = roll(model, [0.0], [0.0], dt=1e-3, steps=500, control=np.array([2.9]))
    assert abs(float(held.q[-1, 0])) < 1e-8
    moved = roll(model, [0.0], [0.0], dt=1e-3, steps=1000, control=np.array([3.5]))
    assert float(moved.qd[-1, 0]) == pytest.approx(0.25, rel=1e-3)


def test_a_follower_adds_its_inertia_to_the_leader():
    """q_a = 2 q_b: the leader's acceleration is torque / (I_b + 4 I_a)."""
    links = [
        kn.Link(n, joints=kn.revolute("z", name=n), mass=1.0, inertia=(1, 1, i)) for n, i in (("a", 0.2), ("b", 0.5))
    ]
    model = kn.build(links, actuators=[kn.motor("b")], equalities=[kn.Mimic("a", "b", (0.0, 2.0, 0, 0, 0))])
    run = roll(model, [0, 0], [0, 0], dt=1e-3, steps=500, control=np.array([1.0]))
    assert float(run.qd[-1, 1]) == pytest.approx(0.5 / (0.5 + 4 * 0.2), rel=1e-5)
    np.testing.assert_allclose(run.q[:, 0], 2 * run.q[:, 1], atol=1e-8)


def planar_rod(name):
    return kn.Link(name, joints=kn.planar("y"), mass=1.0, inertia=ROD)


def test_maximal_coordinates_move_as_reduced_ones_do():
    """A double pendulum of hinges, and of two bodies free in the plane that are tied at their ends."""
    reduced = kn.build([rod("a"), rod("b", "a", (0, 0, -1))])
    ties = [
        kn.Connect("a", "world", (0, 0, 0.5), (0, 0, 0)),
        kn.Connect("b", "a", (0, 0, 0.5), (0, 0, -0.5)),
    ]
    maximal = kn.build([planar_rod("a"), planar_rod("b")], equalities=ties)
    angles, dt, steps = np.array([0.6, -0.3]), 5e-4, 1000
    absolute = np.cumsum(angles)
    start = kn.kinematics.poses(reduced, jnp.asarray(angles))
    centers = np.asarray(start.position + start.rotation @ np.array([0, 0, -0.5]))
    neutral = kn.kinematics.poses(maximal, jnp.zeros(6))
    across = np.asarray(kn.kinematics.jacobian(maximal, jnp.zeros(6), "a"))[3:, :2]
    np.testing.assert_allclose(neutral.position, 0, atol=1e-12)
    sign = np.sign(np.asarray(kn.kinematics.jacobian(maximal, jnp.zeros(6), "a"))[1, 2])
    q = np.concatenate([[*(across.T @ centers[k]), sign * absolute[k]] for k in range(2)])
    tied = roll(maximal, q, np.zeros(6), dt=dt, steps=steps)
    hinged = roll(reduced, angles, np.zeros(2), dt=dt, steps=steps, contact=Impulse())
    assert bool(tied.contact.converged.all())
    want = np.cumsum(np.asarray(hinged.q[-1]))
    np.testing.assert_allclose(sign * np.asarray(tied.q[-1])[[2, 5]], want, atol=5e-3)  # both are of first order in dt


def test_a_weld_makes_one_body_of_two():
    two = kn.build(
        [kn.Link(n, joints=kn.free(), mass=m, inertia=(0.1, 0.2, 0.25)) for n, m in (("a", 1.0), ("b", 2.0))],
        equalities=[kn.Weld("a", "b", position_a=(0.5, 0, 0), position_b=(-0.5, 0, 0))],
    )
    q = np.array([0, 0, 0, 1, 0, 0, 0, 1.0, 0, 0, 1, 0, 0, 0])
    spin = np.array([0.0, 0, 1.0])
    v = np.concatenate([np.cross(spin, [-2 / 3, 0, 0]), spin, np.cross(spin, [1 / 3, 0, 0]), spin])
    run = roll(two, q, v, dt=1e-3, steps=1000)
    apart = np.linalg.norm(np.asarray(run.q[:, 7:10] - run.q[:, :3]), axis=1)
    np.testing.assert_allclose(apart, 1.0, atol=1e-4)
    center = (np.asarray(run.q[-1, :3]) + 2 * np.asarray(run.q[-1, 7:10])) / 3
    np.testing.assert_allclose(center, [2 / 3, 0, -0.5 * G * 1.0 * 1.001], atol=1e-6)
    turned = 2 * np.arctan2(np.asarray(run.q[-1, 6]), np.asarray(run.q[-1, 3]))
    assert turned == pytest.approx(1.0, abs=2e-3)


def test_a_closed_loop_keeps_closed():
    """A four-bar linkage: hinges about y, closed by a connect whose out-of-plane row is idle."""
    links = [rod("a"), rod("b", position=(1, 0, 0)), rod("c", "a", (0, 0, -1))]
    model = kn.build(links, equalities=[kn.Connect("c", "b", (0, 0, -1), (0, 0, -1))])
    q = np.array([0.5, -np.pi / 2 - 0.5, 0.5])  # a, c that hangs on it, b
    tip = [kn.kinematics.frame_pose(model, jnp.asarray(q), n) for n in ("c", "b")]
    ends = [np.asarray(t.position + t.rotation @ np.array([0, 0, -1.0])) for t in tip]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-12)
    run = roll(model, q, np.zeros(3), dt=1e-3, steps=2000)
    np.testing.assert_allclose(run.q[:, 0], run.q[:, 2], atol=1e-4)  # a parallelogram
    assert bool(run.contact.converged.all())
    assert float(np.abs(np.asarray(run.q[:, 0])).max()) < 0.51


def test_contradicting_equalities_are_told():
    ties = [kn.Mimic("a_joint", None, (c, 0, 0, 0, 0)) for c in (0.0, 0.2)]
    model = kn.build([rod("a")], equalities=ties)
    run = roll(model, [0.0], [0.0], dt=1e-3, steps=10)
    assert not run.contact.converged.any()
    with pytest.raises(ArithmeticError, match="contradict"):
        run.contact.check()


def test_contacts_push_though_equalities_contradict():
    """A ball falls on the ground beside a joint that two equalities pull apart: rounding of those must not stop it."""
    ball = kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1))
    ties = [kn.Mimic("a_joint", None, (c, 0, 0, 0, 0)) for c in (0.0, 0.2)]
    model = kn.build([rod("a"), ball], equalities=ties, world_shapes=[kn.shapes.plane()])
    q = np.array([0.0, 3.0, 0, 0.1, 1, 0, 0, 0])
    run = roll(model, q, np.zeros(7), dt=1e-3, steps=100)
    assert not run.contact.converged.any()
    assert np.abs(np.asarray(run.q[:, 3]) - 0.1).max() < 1e-5  # a fall of 0.1 s is 49 mm; rigid contact lets 2e-6 m in


def test_gradients_of_constrained_steps_match_differences():
    """State, stiffness of joints, friction, limits and placements through limit, tie, dry friction and a contact."""
    model = planar_chain()
    contact = Impulse(tolerance=1e-12)
    q, qd = np.array([0.0, 0.349, -0.6, 0.0]), np.array([0.3, 1.0, -0.4, 0.0])

    def final(x):
        changed = eqx.tree_at(
            lambda m: (m.friction, m.upper, m.inertia.mass, m.position),
            model,
            (
                model.friction + x[8] * np.sign(model.friction),
                model.upper + x[9],
                model.inertia.mass + x[10:14],
                model.position + x[14],
            ),
        )
        state = kn.State(q + x[:4], qd + x[4:8])
        run = kn.rollout(changed, state, dt=2e-3, steps=60, contact=contact)
        return jnp.concatenate([run.q[-1], run.qd[-1]]), run.contact

    final_natively = kn.native.jit(final)
    outcome = final_natively(np.zeros(15))[1]
    assert bool(outcome.converged.all())
    assert float(np.abs(outcome.limit).max()) > 1e-4 and float(outcome.impulse[:, :, 0].max()) > 1e-3
    exact = by_columns(lambda x: final(x)[0])(np.zeros(15))
    h = 1e-7
    ends = [[np.asarray(final_natively(sign * h * e)[0]) for sign in (1, -1)] for e in np.eye(15)]
    numeric = np.stack([(ahead - behind) / (2 * h) for ahead, behind in ends], axis=1)
    np.testing.assert_allclose(exact, numeric, atol=1e-4 * np.abs(numeric).max(), rtol=0)
    backward = by_rows(lambda x: final(x)[0], 8)(np.zeros(15))
    np.testing.assert_allclose(backward, exact, atol=1e-9 * np.abs(numeric).max(), rtol=0)


def test_check_raises_on_unsolved_steps_and_warns_at_kinks():
    """A hanging pendulum that just touches its stop is at a change of mode; one iteration solves no falling one."""
    model = kn.build([rod("a", lower=0.0, upper=2.0)])
    with pytest.warns(UserWarning, match="one-sided"):
        kn.step(model, kn.State(np.zeros(1), np.zeros(1)), dt=1e-3, contact=Impulse(), check=True)
    with pytest.raises(ArithmeticError, match=r"not solved in . of 5 steps"):
        roll(model, [0.5], [-600.0], dt=1e-3, steps=5, contact=Impulse(most_iterations=0), check=True)
    with pytest.raises(ValueError, match=r"call \.contact\.check\(\)"):
        jax.jit(lambda s: kn.step(model, s, dt=1e-3, contact=Impulse(), check=True))(kn.State(np.ones(1), np.zeros(1)))


def test_a_violated_limit_returns_at_the_speed_that_is_asked_and_says_what_is_left():
    """A slider 3 m beyond its limit: 2 m/s leave 2.8 m after 0.1 s, converged, and `check` says so."""
    model = kn.build([kn.Link("a", joints=kn.prismatic("x", upper=0.0), mass=1.0)], gravity=(0, 0, 0))
    start = {"q": [3.0], "qd": [0.0], "dt": 1e-3, "steps": 100}
    with pytest.warns(
        UserWarning, match=r"violated in 100 of 100 steps, by up to 3 m or rad and by 2\.8 after the last"
    ):
        roll(model, **start, check=True)
    slow = roll(model, **start)
    assert bool(slow.contact.converged.all())
    np.testing.assert_allclose(slow.q[:, 0], 3.0 - 2.0 * slow.time, atol=1e-6)
    np.testing.assert_allclose(slow.contact.violation, slow.q[:, 0], atol=1e-6)
    fast = roll(model, **start, contact=Impulse(correction_speed=1e3))
    assert float(fast.contact.violation[-1]) < 1e-6


def test_an_equality_says_what_is_left_of_its_error():
    links = [rod("a"), rod("b", "a", (0, 0, -1))]
    model = kn.build(links, equalities=[kn.Mimic("a_joint", "b_joint", (0.5, 1.0, 0, 0, 0))], gravity=(0, 0, 0))
    run = roll(model, [0.5, 0.5], [0.0, 0.0], dt=1e-3, steps=100)
    off = np.abs(np.asarray(run.q)[:, 0] - np.asarray(run.q)[:, 1] - 0.5)
    np.testing.assert_allclose(run.contact.violation, off, atol=1e-9)
    assert off[0] > 0.4 and off[-1] < 0.31
