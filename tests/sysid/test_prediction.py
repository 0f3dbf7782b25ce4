"""Prediction intervals of fits and regressions: right widths, redundant parameters, noise, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.optim import Status
from knuckle.sysid.prediction.intervals import prediction
from knuckle.sysid.prediction.sources import residual_noise

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

START = kn.State(np.array([0.0, 2.0]), np.zeros(2))
PUSH = np.ones((60, 1))


@pytest.fixture(scope="module")
def fitted():
    """A cart and pole with all inertia free: 6 of 22 numbers are determined."""
    model = robots.load("cartpole")
    true = eqx.tree_at(lambda m: m.inertia.mass, model, model.inertia.mass * np.array([1.2, 0.9]))
    control = 3 * np.sin(0.05 * np.arange(150))[:, None]
    first = model.state(np.array([0.0, 3.0]))
    run = kn.rollout(
        true, first, np.repeat(control, 2, axis=0), dt=0.005, integrator=kn.RK4(), contact=None, native=True
    )
    q = np.concatenate([np.asarray(first.q)[None], np.asarray(run.q)[1::2]])
    q = q + 5e-4 * np.random.default_rng(0).normal(size=q.shape)
    log = sysid.Recording.of(model, 0.01 * np.arange(151), q=q, control=np.concatenate([control, control[-1:]]))
    return sysid.fit(model, log, ["*.mass", "*.com", "*.inertia", "*.damping"], held_out=0), true


@pytest.fixture(scope="module")
def regression():
    import torque_noise

    model = robots.load("arm")
    return sysid.regress(model, torque_noise.log(torque_noise.true_arm(model), 0)), torque_noise.true_arm(model)


def test_what_data_determine_is_as_wide_as_the_delta_method_has_it(fitted):
    """Base parameters are functions that data do determine, far along directions that they do not.

    200 samples give a standard deviation to 5 %; curvature that is left over may add a little: 30 %.
    """
    fit, true = fitted
    base = sysid.base_parameters(fit.simulator.model)
    found = sysid.draws(fit, 200).of(jax.jit(lambda m: base(m)))
    exact = fit.interval(lambda m: base(m))
    shown = exact.deviation < 0.1 * np.maximum(np.abs(exact.value), 0.01)
    assert shown.sum() >= 4
    np.testing.assert_allclose(found.deviation[shown], exact.deviation[shown], rtol=0.3)
    assert found.contains(np.asarray(base(true)))[shown].all()


def test_redundant_parameters_count_but_do_not_spoil_roll_outs(fitted):
    """The pole's mass is not determined: its interval is wide. Roll-outs depend on what is, and hold the truth."""
    fit, true = fitted
    drawn = sysid.draws(fit, 200)
    mass = drawn.of(lambda m: m.inertia.mass[1:])
    assert mass.deviation[0] > 0.05 * mass.value[0] and mass.contains(true.inertia.mass[1:]).all()
    motion = drawn.rollout(START, PUSH, dt=0.01)
    exact = kn.rollout(true, START, PUSH, dt=0.01, integrator=kn.RK4(), contact=None, native=True)
    assert motion.q.samples.shape == (200, 60, 2) and motion.time[-1] == pytest.approx(0.6)
    assert motion.q.deviation.max() < 0.01  # a tenth of a mass that is off by 10 % would be far more
    assert motion.q.contains(exact.q).mean() > 0.9


def test_noise_of_efforts_states_and_measurements_widens(fitted):
    """A white force of 1 N on the cart (about 1.4 kg), held for 10 ms each, moves it by sqrt(n) dt/m after n steps."""
    fit, _ = fitted
    drawn = sysid.draws(fit, 300)
    steps, noise = 30, sysid.EffortNoise(np.array([1.0, 0.0]), 0.0, 0.01)
    still = kn.State(np.array([0.0, np.pi]), np.zeros(2))
    plain = drawn.rollout(still, steps=steps, dt=0.01)
    kicked = drawn.rollout(still, steps=steps, dt=0.01, effort_noise=noise)
    m = float(np.asarray(fit.model.inertia.mass).sum())
    speed = np.sqrt(3) * 0.01 / m  # after three steps the pole has hardly moved
    assert 0.8 * speed < kicked.qd.deviation[2, 0] < 1.6 * speed
    known = drawn.rollout(still, steps=steps, dt=0.01, covariance=np.diag([1e-4, 0, 0, 0]))
    assert known.q.deviation[-1, 0] == pytest.approx(0.01, rel=0.15) and plain.q.deviation[-1, 0] < 0.005
    seen = drawn.rollout(still, steps=steps, dt=0.01, measurement_noise={"q": 0.1})
    assert seen.q.deviation[0, 0] == pytest.approx(0.1, rel=0.15)
    slow = sysid.EffortNoise(np.array([1.0, 0.0]), 10.0, 0.01)
    told = drawn.rollout(
        still, steps=5, dt=0.01, effort_noise=slow, effort_error=(np.array([2.0, 0.0]), np.zeros((2, 2)))
    )
    assert told.qd.mean[4, 0] > 0.05 * 2.0 / m * 0.9  # a steady push of 2 N


def test_a_regression_predicts_known_quantities_as_its_intervals_have_them(regression):
    """Damping: 200 draws and Student's t against the half width of the jackknife, to 30 %. Masses rest on the prior."""
    found, _ = regression
    drawn = sysid.draws(found, 200)
    damping = drawn.of(lambda m: m.damping)
    for j, name in enumerate(n for n in found.layout.names if n.endswith(".damping")):
        if found[name].lower > 0:  # else its interval is cut at its bound
            assert (damping.upper - damping.lower)[j] / 2 == pytest.approx(found[name].deviation, rel=0.3), name
    masses = drawn.of(lambda m: m.inertia.mass)
    assert np.all(masses.samples > 0) and np.all(masses.deviation[1:-1] > 0.05 * masses.value[1:-1])
    noise = residual_noise(found)
    assert 0.1 < noise.correlation < 0.4  # truly 0.2 s
    other = sysid.draws(found, 50, spread=0.0).of(lambda m: m.inertia.mass)
    assert other.deviation[0] < 0.3 * masses.deviation[0]


def test_diverging_samples_are_counted_as_outside():
    """Of 100 samples 3 diverge: 95 % of all are 97.9 % of the others. With 10, no interval of 95 % is left."""
    rng = np.random.default_rng(0)
    samples, fine = rng.normal(size=(100, 1)), np.arange(100) >= 3
    found = prediction(np.zeros(1), samples, fine, 0.95)
    alone = prediction(np.zeros(1), samples[3:], np.ones(97, bool), 0.95)
    assert found.diverged == 3 and "3 of 100" in found.notes[0]
    assert found.lower < alone.lower and found.upper > alone.upper
    lost = prediction(np.zeros(1), samples, np.arange(100) >= 10, 0.95)
    assert np.isinf(lost.lower).all() and np.isinf(lost.upper).all() and "no interval holds" in lost.notes[0]


def test_quantiles_hold_a_further_draw_as_often_as_they_say():
    """Exactly 90 % of draws for 39 samples; 4000 trials have a standard error of 0.5 %."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 40))
    found = prediction(np.zeros(4000), rows[:, 1:].T, np.ones(39, bool), 0.9)
    assert abs(found.contains(rows[:, 0]).mean() - 0.9) < 0.02


def test_bad_requests_are_refused_with_words(fitted):
    fit, _ = fitted
    stopped = replace(fit, result=replace(fit.result, status=Status.TIME_LIMIT), next_step=5.0)
    drawn = sysid.draws(fit, 50)
    bad = [
        (ValueError, "did not converge", lambda: stopped.predict(lambda m: m.inertia.mass)),
        (ValueError, "dt=", lambda: fit.predict(START)),
        (TypeError, "expected a State or a function", lambda: fit.predict(3.0)),
        (ValueError, "39 are needed", lambda: sysid.draws(fit, 10).of(lambda m: m.inertia.mass)),
        (ValueError, "level must be between", lambda: drawn.of(lambda m: m.inertia.mass, level=95)),
        (ValueError, "controls must have shape", lambda: drawn.rollout(START, np.ones((3, 2)), dt=0.01)),
        (ValueError, "steps=", lambda: drawn.rollout(START, dt=0.01)),
        (ValueError, "expected q", lambda: drawn.rollout(kn.State(np.zeros(3), np.zeros(2)), PUSH, dt=0.01)),
        (ValueError, "dt must be positive", lambda: drawn.rollout(START, PUSH, dt=-0.01)),
        (ValueError, "positive semi-definite", lambda: drawn.rollout(START, PUSH, dt=0.01, covariance=-np.eye(4))),
        (ValueError, "True is for regressions", lambda: fit.predict(START, PUSH, dt=0.01, effort_noise=True)),
        (ValueError, "spread is for regressions", lambda: fit.predict(lambda m: m.inertia.mass, spread=0.1)),
        (ValueError, "has no control", lambda: fit.predict(lambda m: m.inertia.mass, PUSH)),
        (ValueError, "itself diverges", lambda: drawn.rollout(START, 1e9 * PUSH, dt=1.0)),
    ]
    for kind, words, call in bad:
        with pytest.raises(kind, match=words):
            call()


def test_a_policy_and_quaternions_are_predicted():
    """A free body whose mass is not known: policies act, and samples have quaternions of the estimate's sign."""
    body = kn.build([kn.Link("body", joints=kn.free(), mass=1.0, inertia=(0.01, 0.02, 0.025))])
    heavier = eqx.tree_at(lambda m: m.inertia.moment, body, body.inertia.moment * 1.2)
    drawn = sysid.Draws((body, None, None), [(body, None, None), (heavier, None, None)] * 20, kn.RK4())
    state = kn.State(np.array([0, 0, 1, 0.0, 0, 0, 1]), np.array([0, 0, 0, 1.0, 2, 3]))
    motion = drawn.rollout(state, lambda time, state: jnp.zeros(0), dt=0.01, steps=20)
    assert motion.q.samples.shape == (40, 20, 7)
    assert np.abs(motion.q.samples - motion.q.value).max() < 1e-9  # scaled moments turn alike
