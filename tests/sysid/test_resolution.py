"""The step that a fit takes by itself is short enough for what it simulates."""

import equinox as eqx
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.sysid.resolution import fastest_rate, longest_step

PERIOD, FINE = 0.01, 20


def slide(mass, stiffness=0.0, damping=0.0, friction=0.0, actuators=()):
    rail = kn.prismatic("x", name="rail", stiffness=stiffness, damping=damping, friction=friction)
    return kn.build([kn.Link("block", joints=rail, mass=mass)], actuators=actuators)


def test_the_fastest_rate_is_that_of_an_oscillator():
    """m s^2 + d s + k = 0: |s|^2 = k / m if it swings, else s = (d + sqrt(d^2 - 4 k m)) / 2 m; friction has no rate."""
    assert fastest_rate(slide(2.0, 800.0, 1.0)) == pytest.approx(20.0)
    assert fastest_rate(slide(2.0, 800.0, 100.0)) == pytest.approx((100 + np.sqrt(100**2 - 8 * 800)) / 4)
    assert fastest_rate(slide(2.0, friction=5.0)) == 0
    servo = kn.position_servo("rail", 600.0, 30.0, force_lower=-1e-3, force_upper=1e-3)
    assert fastest_rate(slide(2.0, 200.0, actuators=[servo])) == pytest.approx(20.0)  # though at its force limit


def test_fast_servos_shorten_the_step_of_runge_kutta_only():
    stiff, slow = robots.load("quadruped"), robots.load("double_pendulum")
    assert longest_step(slow, kn.RK4()) == 5e-3 and longest_step(stiff, kn.RK4()) < 2.5e-3
    assert longest_step(stiff, kn.SemiImplicitEuler()) == longest_step(slow, kn.SemiImplicitEuler()) == 2e-3


def test_the_step_does_not_go_into_the_damping_beside_a_stiff_servo():
    """Damping is 5 % of what the servo does by itself, so that an error of the step of 1e-4 would show in it."""
    described = slide(0.03, damping=0.2, actuators=[kn.position_servo("rail", 300.0, 5.0)])
    truth = eqx.tree_at(lambda m: m.damping, described, np.array([0.25]))
    rng = np.random.default_rng(0)
    control = np.repeat(rng.normal(size=(30, 1)), 10, axis=0)
    start = truth.state(np.zeros(1))
    options = {"dt": PERIOD / FINE, "integrator": kn.RK4(), "contact": None, "native": True}
    run = kn.rollout(truth, start, np.repeat(control[:-1], FINE, axis=0), **options)
    q = np.concatenate([np.zeros((1, 1)), np.asarray(run.q)[FINE - 1 :: FINE]]) + 1e-4 * rng.normal(size=(300, 1))
    log = sysid.Recording.of(described, PERIOD * np.arange(300), q=q, control=control)

    def off(**options) -> float:
        found = sysid.fit(described, log, ["*.mass", "*.damping"], segment=3.0, held_out=0, **options)["rail.damping"]
        return abs(found.value - 0.25) / found.deviation

    assert off() < 4  # one in 16,000
    assert off(step=5e-3) > 20
