"""Bounces: at any step, with and without the time of impact, and under the law that adds no energy."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import knuckle as kn
from knuckle.contact import Impulse, InteriorPoint
from tests.contact.scenes import ball, boxes, pose
from tests.contact.test_closed_forms import rod_on_its_end
from tests.derivatives import by_columns, by_rows

G, R = 9.81, 0.1
KANE = np.array([0, -1, -4.5])  # velocity before the blow


@pytest.mark.parametrize("time_of_impact", [True, False])
def test_a_ball_just_short_of_the_ground_is_not_slowed_before_it_bounces(time_of_impact):
    """Gaps below 2e-6 m close gently where something rests; at 3 m/s and 10 us every tenth bounce has such a gap."""
    model, contact = ball(), Impulse(restitution=0.8, time_of_impact=time_of_impact)
    dt, speed = 1e-5, 3.0

    def speeds(gap):
        state = kn.State(jnp.array([0, 0, R, 1.0, 0, 0, 0]).at[2].add(gap), jnp.zeros(6).at[2].set(-speed))
        return kn.rollout(model, state, dt=dt, steps=2, contact=contact).qd[:, 2]

    speeds_and_slopes = kn.native.jit(lambda gap: jax.jvp(speeds, (gap,), (jnp.ones_like(gap),)))
    for short in np.array([1e-7, 1e-6, 1.9e-6]):  # still open after the first step
        (once, twice), (slope_once, slope_twice) = speeds_and_slopes((speed + G * dt) * dt + short)
        assert float(once) == pytest.approx(-speed - G * dt, abs=1e-9) and abs(float(slope_once)) < 1e-6
        assert float(twice) == pytest.approx(0.8 * speed, abs=3 * G * dt) and abs(float(slope_twice)) < 10 * G / speed


def test_without_the_time_of_impact_a_ball_bounces_on_the_ground_and_not_in_the_air():
    """Height at the top of the first bounce: e^2 h, off by a step's way at the speed of impact."""
    h, e, dt = 0.5, 0.8, 1e-3
    state = kn.State(np.array([0, 0, R + h, 1.0, 0, 0, 0]), np.zeros(6))
    contact = Impulse(restitution=e, time_of_impact=False)
    run = kn.rollout(ball(), state, dt=dt, steps=700, contact=contact, native=True, check=True)
    fall = np.sqrt(2 * h / G)
    assert float(run.q[:, 2].min()) == pytest.approx(R, abs=G * fall * dt)
    assert float(run.q[round(fall / dt) + 5 :, 2].max()) == pytest.approx(R + e * e * h, abs=2 * G * fall * dt)


def energy(qd, moments) -> float:
    """Of a body of 1 kg, its velocities first linear, then angular about its own principal axes."""
    inertia = np.concatenate([np.ones(len(qd) - len(moments)), moments])
    return 0.5 * float(np.sum(inertia * np.asarray(qd) ** 2))


def test_kanes_rod_keeps_its_energy_under_the_passive_law():
    """Newton's law would raise it from 1.344 J to 2.099 J, a plastic blow lower it: between them, none is gained."""
    model, q = rod_on_its_end(0.775, gravity=0.0)
    ends = {}
    cases: list[tuple[Any, float]] = [("newton", 1.0), ("passive", 1.0), ("passive", 0.0)]
    for law, e in cases:
        contact = Impulse(friction=0.5, restitution=e, restitution_law=law, mixing=0.0)
        run = kn.rollout(model, kn.State(q, KANE), dt=1e-3, steps=1, contact=contact, native=True)
        assert run.contact is not None and bool(run.contact.converged.all())
        ends[law, e] = energy(run.qd[-1], [1 / 12]), np.asarray(run.contact.impulse[-1, 0]), run.contact.velocity[-1, 0]
    before = energy(KANE, [1 / 12])
    assert ends["newton", 1.0][0] > before + 0.7 and ends["passive", 0.0][0] < before - 0.1
    kept, impulse, velocity = ends["passive", 1.0]
    assert kept == pytest.approx(before, rel=1e-6)
    assert abs(impulse[1]) <= 0.5 * impulse[0] * (1 + 1e-9) and float(velocity[0]) > 0.1


def test_the_derivative_of_a_cut_rebound_is_that_of_differences():
    """By state, restitution and friction, for a rod that bounces and slides, where the cut depends on all of them."""
    model, q = rod_on_its_end(0.775, gravity=2.0)

    def after(x):
        contact = Impulse(friction=x[7], restitution=x[6], restitution_law="passive")
        run = kn.rollout(model, kn.State(x[:3], x[3:6]), dt=1e-3, steps=1, contact=contact)
        assert run.contact is not None
        return jnp.concatenate([run.q[-1], run.qd[-1], run.contact.impulse[-1, 0]]), run.contact.margin[-1]

    x = np.concatenate([q + 1e-3 * np.eye(3)[1], KANE, [0.9, 0.5]])
    value = kn.native.jit(after)
    assert float(value(x)[1]) > 1e-3
    h = 1e-6
    differences = [(np.asarray(value(x + h * e)[0]) - np.asarray(value(x - h * e)[0])) / (2 * h) for e in np.eye(8)]
    for exact in (by_columns(lambda x: after(x)[0])(x), by_rows(lambda x: after(x)[0], len(differences[0]))(x)):
        np.testing.assert_allclose(exact, np.transpose(differences), atol=1e-6 * np.abs(exact).max())
    newton = Impulse(friction=0.5, restitution=0.9)
    other = kn.rollout(model, kn.State(x[:3], x[3:6]), dt=1e-3, steps=1, contact=newton, native=True)
    assert np.abs(np.asarray(other.qd[-1]) - np.asarray(value(x)[0])[3:6]).max() > 0.1  # or there was nothing to cut


@pytest.mark.parametrize("contact", [Impulse, InteriorPoint])
def test_where_newtons_law_is_safe_the_passive_one_is_the_same(contact):
    """Spheres bounce with e, obliquely too, and e = 1 without friction keeps all energy: no kink is there."""
    model = ball(gravity=0.0)
    start = kn.State(pose([0, 0, R + 1e-3]), np.array([3.0, 0, -1, 0, 0, 0]))
    for e, mu in ((0.8, 0.1), (0.8, 0.5), (1.0, 0.0)):
        ends = [
            kn.rollout(model, start, dt=2e-3, steps=1, contact=contact(e, friction=mu, **law), native=True, check=True)
            for law in ({}, {"restitution_law": "passive"})
        ]
        np.testing.assert_allclose(ends[1].qd, ends[0].qd, atol=1e-12)
        np.testing.assert_allclose(ends[1].q, ends[0].q, atol=1e-12)
        assert float(ends[1].qd[-1, 2]) == pytest.approx(e, abs=2e-5)  # R gives way by 1e-5 of the blow


@functools.cache
def blow(law: Any):
    """Of a plate of 1 kg on four corners: velocity after it, impulses, whether solved, and velocity without it."""
    shape = kn.shapes.points([(x, y, -0.3) for x, y in ((-0.5, -0.3), (-0.4, 0.5), (0.5, -0.2), (0.3, 0.4))])
    link = kn.Link("plate", joints=kn.free(), mass=1.0, com=(0.1, 0, 0), inertia=(0.1, 0.1, 0.1), shapes=shape)
    model = kn.build([link], gravity=(0, 0, 0), world_shapes=[kn.shapes.plane()])

    def after(com, moment, q, qd, e, mu):
        body = eqx.tree_at(lambda m: (m.inertia.com, m.inertia.moment), model, (com[None], moment[None]))
        contact = Impulse(e, friction=mu, restitution_law=law)
        run = kn.rollout(body, kn.State(q, qd), dt=1e-3, steps=1, contact=contact)
        assert run.contact is not None
        free = kn.step(body, kn.State(q, qd), dt=1e-3, contact=None).qd
        return run.qd[-1], run.contact.impulse[-1], run.contact.converged[-1], free

    return kn.native.jit(after)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_blows_on_many_corners_gain_no_energy(seed):
    """Any centre of mass and inertia, corners on the ground or just over it, any velocity, friction and restitution."""
    rng = np.random.default_rng(seed)
    com, moments = rng.uniform(-0.4, 0.4, 3), rng.uniform(0.02, 0.2) + rng.uniform(0, 0.02, 3)
    q = pose([0, 0, 0.3 + rng.choice([0.0, 1e-4])])
    qd = np.concatenate([[*rng.normal(size=2), -abs(rng.normal())], 3 * rng.normal(size=3)])
    e, mu = rng.uniform(0, 1, 4), rng.uniform(0, 1.5, 4)
    ends = {law: blow(law)(com, np.concatenate([moments, np.zeros(3)]), q, qd, e, mu) for law in ("newton", "passive")}
    assume(bool(ends["passive"][2]))
    speeds = [np.asarray(v) for v in (ends["newton"][3], ends["newton"][0], ends["passive"][0])]
    centred = [np.concatenate([v[:3] + np.cross(v[3:], com), v[3:]]) for v in speeds]
    before, newton, after = (energy(v, moments) for v in centred)
    assert after <= before * (1 + 1e-6)
    if newton < before * (1 - 1e-6):  # nothing to cut
        np.testing.assert_allclose(speeds[2], speeds[1], atol=1e-7)
    push, drag = np.asarray(ends["passive"][1])[:, 0], np.asarray(ends["passive"][1])[:, 1:]
    assert np.all(push >= -1e-8) and np.all(np.linalg.norm(drag, axis=1) <= mu * push + 1e-8)  # the tolerance


def test_a_box_at_rest_stays_so_under_the_passive_law():
    start = kn.State(pose([0, 0, 0.5]), np.zeros(6))
    contact = Impulse(0.8, restitution_law="passive")
    run = kn.rollout(boxes(1), start, dt=1e-3, steps=200, contact=contact, native=True)
    assert run.contact is not None and bool(run.contact.converged.all())
    np.testing.assert_allclose(run.q[-1], start.q, atol=1e-6)


def test_an_unknown_law_is_refused():
    with pytest.raises(ValueError, match="restitution_law must be 'newton' or 'passive', got 'poisson'"):
        Impulse(restitution_law="poisson")  # pyright: ignore[reportArgumentType]
