"""Physics as an Equinox layer: values of roll-outs, gradients of differences."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import neural
from knuckle.layers import Physics

DT, STEPS = 0.01, 4


@pytest.fixture(scope="module")
def model():
    rod = {"mass": 1.0, "com": (0, 0, -0.2), "inertia": (0.02, 0.02, 0.002)}
    tip = kn.Frame("tip", (0, 0, -0.4))
    links = [
        kn.Link("a", joints=kn.revolute("y", damping=0.1), **rod),
        kn.Link("b", "a", kn.revolute("y"), (0, 0, -0.4), frames=[tip], **rod),
    ]
    return kn.build(links, actuators=[kn.motor("b_joint")])


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(3, size)) for name, size in (("q", 2), ("qd", 2), ("tau", 2), ("control", 1))}


def alone(model, given, k, force, control):
    start = kn.State(given["q"][k], given["qd"][k])
    return kn.rollout(model, start, control, force=force, dt=DT, steps=STEPS, native=True)


def test_outputs_are_those_of_roll_outs(model, given):
    layer = Physics(model, dt=DT, steps=STEPS, outputs=("q", "qd", "qdd", "poses", "frames"))
    found = layer(**given)
    for k in range(3):
        run = alone(model, given, k, given["tau"][k], given["control"][k])
        np.testing.assert_allclose(found["q"][k], run.q, rtol=1e-13)
        np.testing.assert_allclose(found["qd"][k], run.qd, rtol=1e-12)
        before = np.concatenate([given["qd"][k][None], run.qd[:-1]])
        np.testing.assert_allclose(found["qdd"][k], (run.qd - before) / DT, rtol=1e-9)
        pose = kn.kinematics.poses(model, run.q[-1])
        np.testing.assert_allclose(found["poses"][k, -1, :, :, 3], pose.position, atol=1e-13)
        np.testing.assert_allclose(found["poses"][k, -1, :, :, :3], pose.rotation, atol=1e-13)
        tip = kn.kinematics.frame_pose(model, run.q[-1], "tip")
        np.testing.assert_allclose(found["frames"][k, -1, 0, :, 3], tip.position, atol=1e-13)


@pytest.mark.parametrize("hold", ["first", "each"])
def test_forces_act_in_the_first_step_or_as_given(model, given, hold):
    tau, control = given["tau"][0], given["control"][0]
    scale = np.array([1.0, 0, 0, 0]) if hold == "first" else np.array([1.0, -2, 3, 0.5])
    forces, controls = scale[:, None] * tau, scale[:, None] * control
    last = Physics(model, dt=DT, steps=STEPS, hold=hold, every_step=False)
    sent = (tau, control) if hold == "first" else (forces, controls)
    found = last(given["q"][0], given["qd"][0], *sent)
    run = alone(model, given, 0, forces, controls)
    np.testing.assert_allclose(found["q"], run.q[-1], rtol=1e-13)
    np.testing.assert_allclose(found["qd"], run.qd[-1], rtol=1e-12)


def test_gradients_are_those_of_differences_and_of_plain_jax(model, given):
    friction = neural.MLP((2, 3, 2), key=jax.random.key(0))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(friction, inputs="qd", zero_start=False)})
    options = {"dt": DT, "steps": STEPS, "parameters": {"*.mass": (0.1, 9.0)}, "blueprint": blueprint}
    native, plain = (Physics(model, **options, native=native) for native in (True, False))
    inputs = {name: jnp.asarray(given[name]) for name in ("q", "qd", "tau")}

    def loss(layer, inputs):
        return sum(jnp.sum(jnp.sin(x)) for x in layer(**inputs).values())

    (value, by_layer), by_input = eqx.filter_value_and_grad(loss)(native, inputs), jax.grad(loss, 1)(native, inputs)
    (other, by_plain), by_plain_input = jax.jit(
        lambda i: (eqx.filter_value_and_grad(loss)(plain, i), jax.grad(loss, 1)(plain, i))
    )(inputs)
    np.testing.assert_allclose(value, other, rtol=1e-13)
    pairs = zip(jax.tree.leaves((by_layer, by_input)), jax.tree.leaves((by_plain, by_plain_input)), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    h = 1e-6
    up, down = (loss(eqx.tree_at(lambda p: p.free, native, native.free.at[1].add(s)), inputs) for s in (h, -h))
    np.testing.assert_allclose(by_layer.free[1], (up - down) / (2 * h), rtol=1e-6)


def test_parameters_can_come_from_another_network(model, given):
    layer = Physics(model, dt=DT, steps=STEPS, parameters=["*.mass"], every_step=False)
    z = np.array([[0.0, 0.0], [0.3, -0.2], [0.1, 0.5]])
    found = layer(given["q"], given["qd"], parameters=z)
    masses = eqx.tree_at(lambda m: m.inertia.mass, model, np.exp(z[2]))
    run = kn.rollout(masses, kn.State(given["q"][2], given["qd"][2]), dt=DT, steps=STEPS, native=True)
    np.testing.assert_allclose(found["q"][2], run.q[-1], rtol=1e-12)
    trained = eqx.tree_at(lambda p: p.free, layer, jnp.asarray(z[2]))
    np.testing.assert_allclose(trained.model.inertia.mass, np.exp(z[2]), rtol=1e-14)


def test_what_is_wrong_is_refused_by_name(model):
    with pytest.raises(ValueError, match="some of q, qd, qdd, poses, frames, got speed"):
        Physics(model, dt=DT, outputs=("q", "speed"))
    with pytest.raises(ValueError, match="'held', 'first' or 'each', got 'last'"):
        Physics(model, dt=DT, hold="last")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the model is traced, .* name what is to be free \(parameters="):
        jax.jit(lambda m: Physics(m, dt=DT)()["q"])(model)
    layer = Physics(model, dt=DT)
    with pytest.raises(ValueError, match=r"tau must have shape \(2,\), or \(batch, ...\) before it, got \(3,\)"):
        layer(tau=np.zeros(3))
    with pytest.raises(ValueError, match=r"one batch size, got \{'q': 2, 'qd': 3\}"):
        layer(np.zeros((2, 2)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="parameters are given, but none were named"):
        layer(parameters=np.zeros(2))
