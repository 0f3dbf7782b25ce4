"""Fits to logs in which no joint was measured, only the tip."""

import equinox as eqx
import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots

MODEL = robots.load("double_pendulum")
TRUTH = eqx.tree_at(lambda m: m.inertia.mass, MODEL, MODEL.inertia.mass * np.array([1.0, 0.8]))
NOISE = 1e-4


def swings():
    """Two runs that begin far from the reference, at 100 Hz."""
    rng = np.random.default_rng(3)
    for _ in range(2):
        state = TRUTH.state(rng.uniform(-2, 2, 2))
        run = kn.rollout(TRUTH, state, dt=2e-3, steps=1000, integrator=kn.RK4(), contact=None, native=True)
        yield np.concatenate([np.asarray(state.q)[None], np.asarray(run.q)[4::5]])


def seen(angles):
    tip = np.asarray(jax.vmap(lambda q: kn.kinematics.frame_pose(MODEL, q, "tip").position)(angles))
    noise = NOISE * np.random.default_rng(4).normal(size=tip.shape)
    return kn.Recording.of(MODEL, 0.01 * np.arange(len(tip)), points={"tip": tip + noise})


def test_a_mass_is_found_from_the_motion_of_the_tip_alone():
    angles, others = swings()
    fit = kn.fit(MODEL, seen(angles), ["lower.mass"], held_out=[seen(others)])
    found = fit["lower.mass"]
    assert found.value == pytest.approx(0.8 * found.before, rel=1e-3) and found.verdict == "determined"
    assert fit.noise["point/tip"] == pytest.approx(NOISE, rel=0.15)
    assert fit.held_out is not None and fit.held_out.after["point/tip"] < 10 * NOISE

    off = np.asarray(fit.shots.q) - angles[[0, 50, 100, 150]]  # before the fit, by the description with its wrong mass
    assert np.abs((off + np.pi) % (2 * np.pi) - np.pi).max() < 0.2  # a mirrored elbow is 2 rad off in the first
    np.testing.assert_array_equal(np.asarray(fit.shots.next_q)[:3], np.asarray(fit.shots.q)[1:])
