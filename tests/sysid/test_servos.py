"""Gains of servos, frames of joints, and fits with no choice made, by known truth."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.sysid.parameters import choose, fittable
from tests.sysid.test_fit import MODEL, TRUTH, recorded, spoiled

PERIOD = 0.01


def leg(kp=20.0, kv=0.8, speed=1.5):
    """A hip that follows angles and a knee that follows speeds; a motor at the foot."""
    links = [
        kn.Link("thigh", joints=kn.revolute("y", name="hip"), mass=1.0, com=(0, 0, -0.1), inertia=(0.01, 0.01, 0.005)),
        kn.Link("shank", "thigh", kn.revolute("y", name="knee"), (0, 0, -0.25), mass=0.5, com=(0, 0, -0.1),
                inertia=(0.004, 0.004, 0.002)),
        kn.Link("foot", "shank", kn.revolute("y", name="ankle"), (0, 0, -0.25), mass=0.2, com=(0, 0, -0.03),
                inertia=(0.001, 0.001, 0.001)),
    ]  # fmt: skip
    servos = [
        kn.position_servo("hip", kp=kp, kv=kv, name="hip"),
        kn.velocity_servo("knee", kv=speed, name="knee"),
        kn.motor("ankle", name="ankle"),
    ]
    return kn.build(links, actuators=servos)


def commanded(truth, noise=3e-4, samples=150):
    """Angles for the hip, speeds for the knee, torques for the ankle."""
    rng, t = np.random.default_rng(0), PERIOD * np.arange(samples)
    control = np.stack([0.8 * np.sin(9 * t), 3 * np.sin(7 * t + 1), 0.05 * np.sin(5 * t)], 1)
    run = kn.rollout(truth, truth.state(np.zeros(3)), np.repeat(control, 5, axis=0), dt=PERIOD / 5,
                     integrator=kn.RK4(), contact=None, native=True)  # fmt: skip
    q = np.concatenate([np.zeros((1, 3)), np.asarray(run.q)[4::5]])[:samples]
    return kn.Recording.of(truth, t, q=q + noise * rng.normal(size=q.shape), control=control)


def test_gains_of_servos_are_found():
    log = commanded(leg(26.0, 0.5, 2.1))
    fit = kn.fit(leg(), log, ["*.kp", "*.kv"], held_out=0)
    truth = {"hip.kp": 26.0, "hip.kv": 0.5, "knee.kv": 2.1}
    assert [e.name for e in fit.estimates] == list(truth)
    for name, value in truth.items():
        estimate = fit[name]
        assert abs(estimate.value - value) < 3.5 * estimate.deviation and estimate.verdict == "determined"
        assert estimate.deviation < 0.02 * value
    kp, kv, speed = (e.value for e in fit.estimates)
    np.testing.assert_allclose(fit.model.actuators.gain, [kp, speed, 1.0])
    np.testing.assert_allclose(fit.model.actuators.bias, [[0, -kp, -kv], [0, 0, -speed], [0, 0, 0]])


def test_servos_have_kp_and_kv_and_motors_have_not():
    names = set(fittable(leg()))
    assert {"hip.kp", "hip.kv", "knee.kv", "ankle.gain"} <= names
    assert not {"knee.kp", "ankle.kp", "ankle.kv"} & names
    with pytest.raises(ValueError, match=r"hip.gain and hip.kp are one number of a servo"):
        choose(leg(), ["hip.gain", "*.kp"])
    with pytest.raises(ValueError, match=r"knee.gain and knee.kv are one number of a servo"):
        choose(leg(), ["*.gain", "knee.kv"])
    assert len(choose(leg(), ["hip.kp", "hip.kv", "hip.bias", "ankle.gain"])) == 4
    undamped = choose(leg(kv=0.0), ["hip.kv"])
    assert undamped.lower == [0.0] and undamped.deviation[0] > 0
    offset = eqx.tree_at(lambda m: m.actuators.bias, leg(), np.array([[0, -19.0, -0.8], [0, 1.0, -1.5], [0.1, 0, 0]]))
    assert not {name for name in fittable(offset) if name.endswith((".kp", ".kv"))}


def test_the_frame_of_a_joint_is_found():
    """A shoulder that is mounted 3 degrees off, a case for calibration: seen by where the tip goes at known angles."""
    turn = np.array([0.05, -0.02, 0.03])
    model = kn.build(
        [
            kn.Link("base", joints=kn.revolute("z", name="yaw"), mass=2.0, com=(0, 0, 0.1), inertia=(0.1, 0.1, 0.1)),
            kn.Link("arm", "base", kn.revolute("y", name="pitch"), (0.1, 0, 0.3), mass=1.0, com=(0.2, 0, 0.05),
                    inertia=(0.02, 0.03, 0.03)),
        ]
    )  # fmt: skip
    (parameter,) = choose(model, ["pitch.rotation"])
    assert parameter.entries == ("pitch.rotation.x", "pitch.rotation.y", "pitch.rotation.z")
    z = jnp.asarray(turn / parameter.scale)
    truth, _ = choose(model, ["pitch.rotation"]).applied(model, None, z)
    rng, state = np.random.default_rng(0), truth.state(np.array([0.3, -0.9]), np.array([3.0, 0.0]))
    run = kn.rollout(truth, state, dt=5e-3, steps=160, integrator=kn.RK4(), contact=None, native=True)
    q = np.asarray(run.q)[1::2]
    tip = np.asarray(jax.vmap(lambda q: _tip(truth, q))(q)) + 5e-4 * rng.normal(size=(80, 3))
    noisy = q + 2e-4 * rng.normal(size=q.shape)
    log = kn.Recording.of(model, PERIOD * np.arange(80), q=noisy, observed={"tip": tip})
    fit = kn.fit(model, log, ["pitch.rotation"], observe={"tip": lambda model, state: _tip(model, state.q)}, held_out=0)
    for estimate, value in zip(fit.estimates, turn, strict=True):
        assert abs(estimate.value - value) < 3.5 * estimate.deviation and estimate.deviation < 2e-3
        assert estimate.unit == "rad" and estimate.before == 0.0
    np.testing.assert_allclose(np.linalg.norm(fit.model.rotation[1]), 1.0, atol=1e-12)
    one = choose(model, ["yaw.rotation.x", "pitch.rotation.z"])
    tilted, _ = one.applied(model, None, jnp.array([1.0, 2.0]))
    angles = [2 * np.arctan2(tilted.rotation[0, 1], tilted.rotation[0, 0]), 2 * np.arcsin(tilted.rotation[1, 3])]
    np.testing.assert_allclose(angles, [0.1, 0.2], atol=1e-12)


def _tip(model, q):
    pose = kn.kinematics.frame_pose(model, q, "arm")
    return pose.position + pose.rotation @ jnp.array([0.4, 0.1, 0.2])


def test_with_no_choice_made_what_the_motion_tells_is_found():
    """Masses, centres, moments, damping and friction are all free: not each is told, and the motion is foretold."""
    fit = kn.fit(MODEL, recorded(TRUTH, runs=2, steps=400), held_out=recorded(TRUTH, runs=1, steps=400, seed=5))
    families = {name.split(".")[1] for name in (p.name for p in fit.parameters)}
    assert families == {"mass", "com", "inertia", "damping", "friction"} and fit.parameters.size == 24
    assert fit.noise["q"] == pytest.approx(1e-3, rel=0.12)  # 320 numbers: 4 % is one deviation
    assert fit.held_out is not None and fit.held_out.after["q"] < 0.1 * fit.held_out.before["q"]
    assert fit["upper.mass"].verdict == "not determined" and fit.certainty.untold()
    for name, value in {"shoulder.damping": 0.05, "elbow.damping": 0.02}.items():
        assert abs(fit[name].value - value) < 3.5 * fit[name].deviation


def test_soft_l1_is_not_led_astray_by_outliers():
    """Its influence is bounded and not cut off, so more is left of gross errors than with huber's constant: 2 %."""
    fit = kn.fit(MODEL, spoiled(recorded(TRUTH)), ["*.mass", "*.damping"], robust="soft_l1", held_out=0)
    for name, value in {"upper.mass": 1.495, "lower.mass": 0.6}.items():
        assert fit[name].value == pytest.approx(value, rel=0.02)
        assert abs(fit[name].value - value) < 3.5 * fit[name].deviation
    assert fit.noise["q"] == pytest.approx(1e-3, rel=0.2)
