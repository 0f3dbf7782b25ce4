"""Rigid contact against textbook answers: impacts with friction, sliding, rolling, rocking and rest."""

from typing import Any

import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse
from tests.contact.scenes import ball, boxes, pose

G = 9.81
DT = 1e-3
R = 0.1  # of the ball


def advance(model: kn.Model, q, qd, contact: Impulse, *, dt: float = DT, steps: int = 1) -> Any:
    state = kn.State(np.asarray(q, float), np.asarray(qd, float))
    run = kn.rollout(model, state, dt=dt, steps=steps, contact=contact, native=True)
    assert run.contact is not None and bool(run.contact.converged.all())
    return run


def flat_body(corners, moment: float, gravity: float = G, walls=()) -> kn.Model:
    """1 kg in the x-z plane, coordinates (x, z, angle about y), that touches with its corners."""
    joints = (kn.prismatic("x"), kn.prismatic("z"), kn.revolute("y"))
    shape = kn.shapes.points([(x, 0.0, z) for x, z in corners])
    link = kn.Link("body", joints=joints, mass=1.0, com=(0, 0, 0), inertia=(moment, moment, moment), shapes=shape)
    return kn.build([link], gravity=(0, 0, -gravity), world_shapes=[kn.shapes.plane(name="floor"), *walls])


def rod_on_its_end(angle: float, gravity: float = G) -> tuple[kn.Model, np.ndarray]:
    """A thin rod of 1 m whose left end is on the floor, raised by `angle` to the right."""
    return flat_body([(-0.5, 0.0)], 1 / 12, gravity), np.array([0, 0.5 * np.sin(angle), -angle])


@pytest.mark.parametrize(
    ("speed", "friction", "load"),
    [(-1, 0.5, 1.0), (-1, 1.2, 6.25), (1, 0.5, 0.4545), (1, 1.2, 0.3289), (1, 1.5, 0.2941), (1, 2.0, 0.25)],
)
def test_painleve_rod_is_pressed_down_or_relieved_by_friction(speed, friction, load):
    """r_n / (m g dt) = 1 / (1.6 +- 1.2 mu) at tan(angle) = 2, sliding on."""
    model, q = rod_on_its_end(np.arctan(2))
    run = advance(model, q, [speed, 0, 0], Impulse(friction=friction, mixing=0.0))
    push = float(run.contact.impulse[0, 0, 0])
    assert push / (G * DT) == pytest.approx(1 / (1.6 + np.sign(speed) * 1.2 * friction), rel=1e-6)
    assert push / (G * DT) == pytest.approx(load, rel=2e-4)  # the numbers have four digits
    assert abs(float(run.contact.impulse[0, 0, 1])) == pytest.approx(friction * push, rel=1e-6)


@pytest.mark.parametrize("friction", [1.5, 2.0])
def test_painleve_rod_jams(friction):
    """No sliding solution exists: an impulse of 0.30834 N s stops the end though nothing fell on it."""
    model, q = rod_on_its_end(np.arctan(2))
    run = advance(model, q, [-1, 0, 0], Impulse(friction=friction, mixing=0.0))
    assert float(run.contact.impulse[0, 0, 0]) == pytest.approx(0.30834, abs=1e-5)
    np.testing.assert_allclose(run.contact.velocity[0, 0], 0, atol=1e-8)


def test_newtons_law_raises_the_energy_of_kanes_rod():
    """Restitution of the normal speed with friction: 1.344 J become 2.099 J (Kane's paradox)."""
    model, q = rod_on_its_end(0.775, gravity=0.0)
    run = advance(model, q, [0, -1, -4.5], Impulse(friction=0.5, restitution=1.0, mixing=0.0))

    def energy(v):
        return 0.5 * float(v @ (np.array([1, 1, 1 / 12]) * v))

    assert energy(np.array([0, -1, -4.5])) == pytest.approx(1.344, abs=5e-4)
    assert energy(np.asarray(run.qd[-1])) == pytest.approx(2.099, abs=5e-4)


@pytest.mark.parametrize("friction", [0.3, 0.5])
def test_a_ladder_slips_below_its_critical_angle(friction):
    """tan(angle) = (1 - mu^2) / (2 mu), with the same friction at floor and wall."""
    wall = kn.shapes.plane(name="wall", rotation=(np.sqrt(0.5), 0, np.sqrt(0.5), 0))  # its normal is +x
    model = flat_body([(-0.5, 0.0), (0.5, 0.0)], 1 / 12, walls=[wall])
    critical = np.arctan((1 - friction**2) / (2 * friction))
    for excess, slips in ((0.02, False), (-0.02, True)):
        angle = critical + excess  # the left end leans on the wall, the right end stands on the floor
        q = [0.5 * np.cos(angle), 0.5 * np.sin(angle), angle]
        run = advance(model, q, np.zeros(3), Impulse(friction=friction, mixing=1e-8), steps=200)
        moved = abs(float(run.q[-1, 2]) - angle)
        assert moved > 1e-4 if slips else moved < 1e-6


@pytest.mark.parametrize("spin", [10.0, 25.0, 40.0])
def test_backspin_slows_a_ball_or_brings_it_back(spin):
    """It ends up rolling at (5 v0 - 2 R w0) / 7."""
    contact = Impulse(friction=0.3, mixing=1e-8)  # a contact alone is not redundant
    run = advance(ball(), pose([0, 0, R]), [1.0, 0, 0, 0, -spin, 0], contact, steps=1500)
    assert float(run.qd[-1, 0]) == pytest.approx((5 * 1.0 - 2 * R * spin) / 7, abs=1e-6)
    assert float(run.qd[-1, 4]) * R == pytest.approx(float(run.qd[-1, 0]), abs=1e-6)


@pytest.mark.parametrize(("ratio", "rolls"), [(1.02, True), (0.9, False)])
def test_a_ball_rolls_down_a_slope_if_friction_suffices(ratio, rolls):
    """5/7 g sin(alpha) if mu >= 2/7 tan(alpha); otherwise it slides at g (sin(alpha) - mu cos(alpha))."""
    alpha, steps = 0.5, 1500
    mu = ratio * 2 / 7 * np.tan(alpha)
    gravity = G * np.array([np.sin(alpha), 0, -np.cos(alpha)])
    link = kn.Link("ball", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(R))
    model = kn.build([link], gravity=tuple(gravity), world_shapes=[kn.shapes.plane()])
    run = advance(model, pose([0, 0, R]), np.zeros(6), Impulse(friction=mu, mixing=1e-8), steps=steps)
    down = 5 / 7 * gravity[0] if rolls else gravity[0] + mu * gravity[2]
    assert float(run.qd[-1, 0]) / (steps * DT) == pytest.approx(down, rel=1e-6)


@pytest.mark.parametrize(("restitution", "dt"), [(0.5, 1e-3), (0.7, 1e-3), (0.5, 2.5e-4), (0.7, 2.5e-4)])
def test_infinitely_many_bounces_end_in_time(restitution, dt):
    """sqrt(2h/g) (1+e)/(1-e), and the error falls with dt.

    Each bounce is off by at most g dt in speed, which moves the end by 2 dt / (1 - e), and the last bounces, slower
    than 3 g dt, would last 6 dt / (1 - e).
    """
    h, e = 0.2, restitution
    run = advance(ball(), pose([0, 0, R + h]), np.zeros(6), Impulse(restitution=e), dt=dt, steps=round(1.5 / dt))
    fall = np.sqrt(2 * h / G)
    bounces = np.log(3 * dt / fall) / np.log(e)
    leaving = np.flatnonzero(np.asarray(run.qd[:, 2]) > 3 * G * dt)
    end = float(run.time[leaving[-1]])
    assert end == pytest.approx(fall * (1 + e) / (1 - e), abs=(2 * bounces + 6) * dt / (1 - e))
    np.testing.assert_allclose(run.q[-1, 2], R, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.15, 0.3])
def test_a_rocking_block_loses_speed_at_each_change_of_corner(alpha):
    """Angular speed after over before: 1 - 1.5 sin^2(alpha) (Housner), alpha the slenderness b/h = tan(alpha)."""
    b, h = np.sin(alpha), np.cos(alpha)  # half sizes
    model = flat_body([(-b, -h), (b, -h)], (b * b + h * h) / 3, gravity=0.0)
    before = 0.2
    at_left_corner = [h * before, -b * before, before]  # turns about the left corner, the right one comes down
    run = advance(model, [0, h, 0], at_left_corner, Impulse(friction=5.0, mixing=1e-9))
    assert float(run.qd[-1, 2]) / before == pytest.approx(1 - 1.5 * np.sin(alpha) ** 2, abs=1e-6)


def test_a_box_thrown_flat_lands_and_slides_to_its_stop():
    """Landing takes mu v_z from its speed, then v^2 / (2 mu g). Each of fall, landing and stop is off by a step."""
    mu, v, h = 0.3, 2.5, 0.2
    run = advance(boxes(1), pose([0, 0, 0.5 + h]), [v, 0, 0, 0, 0, 0], Impulse(friction=mu), steps=1200)
    fall = np.sqrt(2 * h / G)
    slow = v - mu * G * fall
    assert float(run.q[-1, 0]) == pytest.approx(v * fall + slow**2 / (2 * mu * G), abs=2 * v * DT)
    np.testing.assert_allclose(run.q[-1, 1:], [0, 0.5, 1, 0, 0, 0], atol=1e-4)
    assert float(run.contact.impulse[-1, :, 0].sum()) == pytest.approx(G * DT, rel=1e-6)


def test_friction_is_equal_in_every_direction():
    stops = []
    for angle in np.linspace(0, 2 * np.pi, 9):
        along = np.array([np.cos(angle), np.sin(angle), 0])
        qd = np.concatenate([along, np.zeros(3)])
        run = advance(boxes(1), pose([0, 0, 0.5]), qd, Impulse(friction=0.3), steps=1200)
        stops.append(float(run.q[-1, :3] @ along))
        np.testing.assert_allclose(run.q[-1, :2], stops[-1] * along[:2], atol=1e-8)
    np.testing.assert_allclose(stops, stops[0], rtol=1e-8)


def test_newtons_cradle_under_a_simultaneous_law():
    """Balls that touch leave as (-1/3, 2/3, 2/3), not (0, 0, 1): Newton's law knows no order of impacts."""
    links = [
        kn.Link(n, joints=kn.prismatic("x"), position=(2 * R * k, 0, 0), mass=1.0, shapes=kn.shapes.sphere(R))
        for k, n in enumerate("abc")
    ]
    model = kn.build(links, gravity=(0, 0, 0))
    contact = Impulse(restitution=1.0, friction=0.0, mixing=0.0)
    run = advance(model, np.zeros(3), [1.0, 0, 0], contact)
    np.testing.assert_allclose(run.qd[-1], [-1 / 3, 2 / 3, 2 / 3], atol=1e-8)


def test_a_stack_of_ten_boxes_stands_for_ten_seconds():
    """Neither drift nor creep: R lets a foot give way by 1e-5 of what it carries, which Baumgarte makes up for."""
    count = 10
    q = np.concatenate([pose([0, 0, 0.5 + k]) for k in range(count)])
    model, state = boxes(count), kn.State(q, np.zeros(6 * count))
    run = kn.native.jit(lambda state: kn.rollout(model, state, dt=0.01, steps=1000, contact=Impulse()))(state)
    assert run.contact is not None and bool(run.contact.converged.all())
    np.testing.assert_allclose(run.q[-1], q, atol=1e-4)
    np.testing.assert_allclose(run.q[-1], run.q[200], atol=1e-8)
