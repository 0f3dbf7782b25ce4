"""One step as native code, programs that are kept, and wrenches that change over time."""

from __future__ import annotations

import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import simulate


@pytest.fixture(scope="module")
def scene():
    ball = kn.Link("ball", joints=kn.prismatic("z"), mass=1.0, shapes=kn.shapes.sphere(0.1))
    return kn.build([ball], world_shapes=[kn.shapes.plane()], actuators=[kn.motor("ball_joint")])


def test_a_native_step_is_the_step(scene):
    start = kn.State(np.array([0.101]), np.array([-1.0]))
    native = kn.step(scene, start, np.array([2.0]), dt=0.01, native=True)
    plain = kn.step(scene, start, np.array([2.0]), dt=0.01)
    inside = jax.jit(lambda s, u: kn.step(scene, s, u, dt=0.01))(start, np.array([2.0]))
    assert isinstance(native.q, np.ndarray)
    for other in (plain, inside):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), native, other)
    again = kn.step(scene, native, np.array([2.0]), dt=0.01, native=True)  # goes on from impulses of the last step
    assert again.qd.shape == (1,) and np.isfinite(again.q).all()


def test_eager_contact_warns_once_and_compiles_once(scene, monkeypatch):
    monkeypatch.setattr(simulate, "_warned_of_eager_contact", False)
    start = kn.State(np.array([0.2]), np.array([0.0]))
    with pytest.warns(UserWarning, match="native=True compiles faster") as seen:
        kn.step(scene, start, dt=0.02)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kn.step(scene, start, dt=0.02)
    first, second = (_seconds(lambda: kn.rollout(scene, start, dt=0.02, steps=7)) for _ in range(2))
    assert second < 0.5 * first  # compiled once: in fact a hundredth


def _seconds(function) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def test_a_policy_is_read_anew(scene):
    """Nothing is kept of Python functions: what they read may change."""
    gain = [1.0]
    start = kn.State(np.array([1.0]), np.array([0.0]))

    def policy(time, state):
        return gain[0] * jnp.ones(1)

    ends = []
    for value in (1.0, 50.0):
        gain[0] = value
        ends.append(float(kn.rollout(scene, start, policy, dt=0.02, steps=3).qd[-1, 0]))
    np.testing.assert_allclose(ends[1] - ends[0], 49.0 * 0.06, rtol=1e-9)


def test_wrenches_over_time_act_step_by_step():
    model = kn.build([kn.Link("body", joints=kn.free(), mass=2.0, inertia=(1, 1, 1))], gravity=(0, 0, 0))
    pulls = np.zeros((5, 1, 6))
    pulls[:, 0, 3] = np.arange(5.0)
    for native in (False, True):
        motion = kn.rollout(model, model.state(), dt=0.1, steps=5, wrench=pulls, native=native)
        # m dv = F dt in each step (semi-implicit Euler)
        np.testing.assert_allclose(motion.qd[:, 0], np.cumsum(np.arange(5.0)) * 0.1 / 2.0, rtol=1e-12)
    constant = kn.rollout(model, model.state(), dt=0.1, steps=5, wrench=pulls[3])
    np.testing.assert_allclose(constant.qd[-1, 0], 5 * 3.0 * 0.1 / 2.0, rtol=1e-12)
    with pytest.raises(ValueError, match=r"wrench must have shape \(1, 6\) or \(4, 1, 6\), got \(5, 1, 6\)"):
        kn.rollout(model, model.state(), dt=0.1, steps=4, wrench=pulls)
    assert kn.rollout(model, model.state(), dt=0.1, steps=0, wrench=pulls[:0]).q.shape == (0, 7)


def test_joint_forces_are_those_of_motors():
    """A force on the joints is what motors without limits of their own make, with contact and without."""
    rod = {"mass": 1.0, "com": (0, 0, -0.2), "inertia": (0.02, 0.02, 0.002)}
    joint = kn.revolute("y", upper=0.3, damping=0.1)
    links = [kn.Link("a", joints=joint, **rod), kn.Link("b", "a", kn.revolute("y"), (0, 0, -0.4), **rod)]
    model = kn.build(links, actuators=[kn.motor("a_joint"), kn.motor("b_joint")])
    forces = np.random.default_rng(0).normal(size=(20, 2))
    start = model.state(np.array([0.25, 0.1]))
    options = {"dt": 0.01, "steps": 20, "native": True}
    for contact in ("default", None):
        driven = kn.rollout(model, start, forces, contact=contact, **options)
        pushed = kn.rollout(model, start, force=forces, contact=contact, **options)
        np.testing.assert_allclose(pushed.q, driven.q, rtol=1e-12, atol=1e-14)
    held = kn.rollout(model, start, force=forces[0], **options)
    np.testing.assert_allclose(held.q, kn.rollout(model, start, forces[0], **options).q, rtol=1e-12, atol=1e-14)
    one = kn.step(model, start, force=forces[0], dt=0.01, native=True)
    np.testing.assert_allclose(one.q, held.q[0], rtol=1e-12)
    with pytest.raises(ValueError, match=r"force must have shape \(2,\) or \(20, 2\), .* got \(3,\)"):
        kn.rollout(model, start, force=np.zeros(3), **options)
