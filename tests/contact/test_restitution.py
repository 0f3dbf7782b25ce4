"""Bounces: at any step, with and without the time of impact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse
from tests.contact.scenes import ball

G, R = 9.81, 0.1


@pytest.mark.parametrize("time_of_impact", [True, False])
def test_a_ball_just_short_of_the_ground_is_not_slowed_before_it_bounces(time_of_impact):
    """Gaps below 2e-6 m close gently where something rests; at 3 m/s and 10 us every tenth bounce has such a gap."""
    model, contact = ball(), Impulse(restitution=0.8, time_of_impact=time_of_impact)
    dt, speed = 1e-5, 3.0

    def after(gap, steps):
        state = kn.State(jnp.array([0, 0, R, 1.0, 0, 0, 0]).at[2].add(gap), jnp.zeros(6).at[2].set(-speed))
        return kn.rollout(model, state, dt=dt, steps=steps, contact=contact).qd[-1, 2]

    once, twice = (kn.native.jit(jax.value_and_grad(lambda gap, n=n: after(gap, n))) for n in (1, 2))
    for short in np.array([1e-7, 1e-6, 1.9e-6]):  # still open after the first step
        gap = (speed + G * dt) * dt + short
        value, slope = once(gap)
        assert float(value) == pytest.approx(-speed - G * dt, abs=1e-9) and abs(float(slope)) < 1e-6
        value, slope = twice(gap)
        assert float(value) == pytest.approx(0.8 * speed, abs=3 * G * dt) and abs(float(slope)) < 10 * G / speed


def test_without_the_time_of_impact_a_ball_bounces_on_the_ground_and_not_in_the_air():
    """Height at the top of the first bounce: e^2 h, off by a step's way at the speed of impact."""
    h, e, dt = 0.5, 0.8, 1e-3
    state = kn.State(np.array([0, 0, R + h, 1.0, 0, 0, 0]), np.zeros(6))
    contact = Impulse(restitution=e, time_of_impact=False)
    run = kn.rollout(ball(), state, dt=dt, steps=700, contact=contact, native=True, check=True)
    fall = np.sqrt(2 * h / G)
    assert float(run.q[:, 2].min()) == pytest.approx(R, abs=G * fall * dt)
    assert float(run.q[round(fall / dt) + 5 :, 2].max()) == pytest.approx(R + e * e * h, abs=2 * G * fall * dt)
