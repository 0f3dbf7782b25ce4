"""Joints that nothing drives: an acrobot and a pendubot at 500 Hz, whose descriptions are wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import sysid
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.filters import noisier_than_positions

RATE, SECONDS = 500, 6.0


def pendulum(masses, centres, moments, damping=0.0, friction=0.0) -> kn.Model:
    joints = [kn.revolute("y", name=name, damping=damping, friction=friction) for name in ("shoulder", "elbow")]
    parts = zip(masses, centres, moments, strict=True)
    bodies = [{"mass": m, "com": (0, 0, -c), "inertia": (j, j, j / 5)} for m, c, j in parts]
    upper = kn.Link("upper", joints=joints[0], **bodies[0])
    lower = kn.Link("lower", "upper", joints[1], (0, 0, -0.3), **bodies[1])
    return kn.build([upper, lower], actuators=[kn.motor(j.name, name=f"{j.name}_motor") for j in joints])


TRUE = pendulum((0.64, 0.56), (0.275, 0.166), (0.01, 0.007), damping=0.002, friction=0.08)
DESCRIBED = pendulum((0.5, 0.45), (0.2, 0.12), (0.02, 0.01))


def swing(driven: int, passive_noise: float, seed: int = 0) -> sysid.Recording:
    """One joint is driven; the effort of the other is a sensor's noise. Errors of the effort change slowly."""
    rng = np.random.default_rng(seed)

    def policy(time, state):
        if driven:
            u = jnp.clip(4 * (1.1 * jnp.tanh(state.qd[0]) - state.q[1]) - 0.15 * state.qd[1], -5, 5)
        else:
            u = jnp.clip(4 * (0.9 * jnp.sin(4.3 * time) - state.q[0]) - 0.3 * state.qd[0], -5, 5)
        return jnp.zeros(2).at[driven].set(u)

    with jax.enable_x64(True):
        options = {
            "dt": 1 / (2 * RATE),
            "steps": int(2 * RATE * SECONDS),
            "integrator": kn.RK4(),
            "contact": None,
            "native": True,
        }
        motion = kn.rollout(TRUE, kn.State(np.array([0.3, 0.1]), np.zeros(2)), policy, **options)
        time, q, qd = (np.asarray(x)[1::2] for x in (motion.time, motion.q, motion.qd))
        tau = np.array(jax.vmap(lambda t, a, b: policy(t, kn.State(a, b)))(time, q, qd))
    slow = 0.02 * np.sin(2 * np.pi * np.outer(time, rng.uniform(0.3, 2, 2)) + rng.uniform(0, 6, 2))
    tau[:, driven] += slow[:, driven] + 0.02 * rng.normal(size=len(time))
    tau[:, 1 - driven] += passive_noise * rng.normal(size=len(time))
    q = 2e-4 * np.round(q / 2e-4)
    qd = qd + 0.05 * rng.normal(size=qd.shape)
    return sysid.Recording.of(DESCRIBED, time, q=q, qd=qd, tau=tau, name="swing")


def true_base(found: sysid.Regression) -> np.ndarray:
    rotors = np.zeros(len(found.base_parameters.rotors))
    return found.base_parameters.matrix @ np.concatenate([np.asarray(inertial(TRUE)), rotors])


@pytest.mark.parametrize("driven", [1, 0], ids=["acrobot", "pendubot"])
@pytest.mark.parametrize("noise", [0.02, 0.0], ids=["noise", "zeros"])
def test_masses_do_not_vanish_where_a_joint_is_not_driven(driven, noise):
    """Links without mass explain an effort of nothing best; the other joint says how heavy they are.

    A tenth is the size of the slow errors of the effort beside the effort of the elbow.
    """
    found = sysid.regress(DESCRIBED, swing(driven, noise))
    wanted = true_base(found)
    for quantity, value in zip(found.base, wanted, strict=True):
        if abs(value) > 0.05:  # first moments and moments of inertia, not 0
            assert abs(quantity.value - value) < 0.1 * abs(value), quantity
    passive = ("shoulder", "elbow")[1 - driven]
    assert "load" not in found.terms[passive]
    assert not any("not explained" in note or "scale" in note for note in found.notes), found.notes
    assert any(f"the effort of {passive} is 0 throughout" in note for note in found.notes) == (noise == 0)
    error = next(e for e in found.errors if e.joint == passive)
    assert error.effort < 0.1 * error.forces and error.held_out < 0.5 * error.size


def test_an_effort_of_zero_that_holds_a_weight_was_not_measured():
    run = swing(0, 0.0)
    q = np.stack([np.full(len(run), 1.2), 0.5 * np.sin(2 * run.time)], axis=1) + 0.3 * np.sin(run.time)[:, None]
    qd = np.gradient(q, run.time, axis=0)
    held = sysid.Recording.of(DESCRIBED, run.time, q=q, qd=qd, tau=np.stack([0 * run.time, np.sin(q[:, 1])], axis=1))
    found = sysid.regress(DESCRIBED, held, terms=(), delay=0.0)
    assert "shoulder" not in found.terms and any("effort of shoulder is constant" in note for note in found.notes)


def test_noisy_velocities_are_replaced_by_the_slope_of_exact_positions():
    time, rng = np.arange(3000) / 500, np.random.default_rng(0)
    q = np.stack([np.sin(3 * time), np.sin(3 * time)], axis=1)
    qd = np.stack([3 * np.cos(3 * time)] * 2, axis=1)
    noisy = q + np.array([1e-5, 2e-2]) * rng.normal(size=q.shape), qd + 0.05 * rng.normal(size=q.shape)
    assert noisier_than_positions(*noisy, 500.0).tolist() == [True, False]


def test_the_default_fit_of_an_acrobot_is_judged_by_roll_outs():
    fit = kn.fit(DESCRIBED, swing(1, 0.02))
    assert fit.regression is not None and fit.held_out is not None
    assert fit.held_out.after["q"] < 0.5 * fit.held_out.before["q"]
