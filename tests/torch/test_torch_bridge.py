"""Physics and functions of arrays inside PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import neural, robots

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'knuckle[torch]'")

from knuckle.torch import Physics, wrap  # noqa: E402

DT = 0.01


def random(*shape, seed=0, scale=1.0):
    values = scale * np.random.default_rng(seed).normal(size=shape)
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


@pytest.fixture(scope="module")
def pendulum():
    rod = {"mass": 1.0, "com": (0, 0, -0.2), "inertia": (0.02, 0.02, 0.002)}
    return kn.build([kn.Link("a", joints=kn.revolute("y"), frames=[kn.Frame("tip", (0, 0, -0.4))], **rod)])


@pytest.fixture(scope="module")
def layer(pendulum):
    return Physics(pendulum, dt=DT, steps=3, parameters=["*.mass", "*.com"], dtype=torch.float64)


def test_gradcheck_of_a_pendulum(layer, pendulum):
    def outputs(q, qd, tau, z):
        return tuple(layer(q, qd, tau, parameters=z).values())

    inputs = random(2, 1), random(2, 1, seed=1), random(2, 1, seed=2), random(4, seed=3, scale=0.1)
    assert torch.autograd.gradcheck(outputs, inputs)
    alone = tuple(x[0].detach().requires_grad_() for x in inputs[:3])
    assert torch.autograd.gradcheck(outputs, (*alone, random(4, seed=3, scale=0.1)))


def test_gradcheck_of_a_cartpole_with_its_rail():
    model = robots.load("cartpole")
    layer = Physics(model, dt=DT, steps=2, outputs=("q", "frames"), dtype=torch.float64)
    state = model.state()
    q = torch.tensor(np.asarray(state.q)[None] + 0.1, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: tuple(layer(*x).values()), (q, random(1, model.nv), random(1, model.nv)))


def test_gradcheck_of_a_quadruped_in_contact():
    model = robots.load("quadruped")
    state = model.state("standing")
    exact = kn.contact.Impulse(tolerance=1e-13)  # differences over 1e-6 of what is solved to 1e-10 would be off by 1e-4
    layer = Physics(model, dt=0.002, steps=2, every_step=False, contact=exact, dtype=torch.float64)
    assert layer.settings.contact.value is not None
    q = torch.tensor(np.asarray(state.q), requires_grad=True)
    qd = torch.zeros(model.nv, dtype=torch.float64)
    qd[2] = -0.2  # presses all feet onto the ground
    control = torch.tensor(np.asarray(state.control), requires_grad=True)
    pressed = kn.rollout(model, kn.State(q.detach().numpy(), qd.numpy()), state.control, dt=0.002, steps=2, native=True)
    assert pressed.contact is not None
    assert (np.asarray(pressed.contact.impulse)[..., 0] > 0).sum(axis=1).min() >= 4
    qd.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, qd, u: tuple(layer(q, qd, control=u).values()), (q, qd, control))


def test_weights_of_networks_and_parameters_train(pendulum):
    network = neural.MLP((1, 3, 1), key=jax.random.key(0))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(network, inputs="qd", zero_start=False)})
    layer = Physics(pendulum, dt=DT, steps=3, blueprint=blueprint, parameters=["*.mass"], dtype=torch.float64)
    q, qd = random(4, 1).detach(), random(4, 1, seed=1).detach()

    def loss():
        return torch.sum(layer(q, qd)["qd"] ** 2)

    loss().backward()
    for weight in (layer.free, *layer.weights):
        with torch.no_grad():
            flat, h = weight.view(-1), 1e-6
            before = float(flat[0])
            ends = []
            for sign in (1, -1):
                flat[0] = before + sign * h
                ends.append(float(loss()))
            flat[0] = before
        assert weight.grad is not None
        # values of order 10: central differences over 1e-6 round at 1e-9
        np.testing.assert_allclose(float(weight.grad.view(-1)[0]), (ends[0] - ends[1]) / (2 * h), rtol=1e-5, atol=1e-7)
    assert isinstance(layer.blueprint, kn.Blueprint) and layer.model.inertia.mass.shape == (1,)
    assert {"free", "weights.0"} <= set(layer.state_dict())


def test_single_precision_is_single_throughout(layer, pendulum):
    single = Physics(pendulum, dt=DT, steps=3, parameters=["*.mass", "*.com"], dtype=torch.float32)
    q, qd = random(2, 1), random(2, 1, seed=1)
    found = single(q.float(), qd.float())["q"]
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.detach(), layer(q, qd)["q"].detach(), rtol=1e-5, atol=1e-6)


def test_a_wrapped_function_differentiates():
    def function(x, scale):
        return {"sine": jnp.sin(x) * jnp.sum(scale["by"]), "sum": jnp.sum(x)}

    alone, over_rows = wrap(function), wrap(function, in_axes=(1, None))
    x, by = random(3, 5), random(2, seed=1)
    np.testing.assert_allclose(
        alone(x[:, 0], {"by": by})["sine"].detach(), torch.sin(x[:, 0]).detach() * by.detach().sum()
    )
    assert torch.autograd.gradcheck(lambda x, by: tuple(alone(x, {"by": by}).values()), (random(4), by))
    found = over_rows(x, {"by": by})
    assert found["sine"].shape == (5, 3) and found["sum"].shape == (5,)
    assert torch.autograd.gradcheck(lambda x, by: tuple(over_rows(x, {"by": by}).values()), (x, by))


def test_transforms_are_supported_or_refused_by_name(layer):
    q = random(2, 1)
    gradient = torch.func.grad(lambda q: layer(q)["q"].sum())(q.detach())
    np.testing.assert_allclose(gradient.detach(), torch.autograd.grad(layer(q)["q"].sum(), q)[0], rtol=1e-13)
    with pytest.raises(NotImplementedError, match=r"torch\.func\.vmap is not supported"):
        torch.func.vmap(lambda q: layer(q)["q"])(q)
    with pytest.raises(NotImplementedError, match=r"forward mode \(torch\.func\.jvp"):
        torch.func.jvp(lambda q: layer(q)["q"], (q,), (q,))
    first = torch.autograd.grad(layer(q)["q"].sum(), q, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(first.sum(), q)


def test_tensors_that_do_not_fit_are_refused_by_name(layer):
    with pytest.raises(TypeError, match="one floating type for all inputs, got q float32, qd float64"):
        layer(random(1).float(), random(1))
    with pytest.raises(ValueError, match=r"q must have shape \(1,\), or \(batch, ...\) before it, got \(2,\)"):
        layer(random(2))
    with pytest.raises(ValueError, match="expected argument 0 on the CPU, where native code runs, got meta"):
        wrap(jnp.sin)(torch.zeros(3, device="meta"))
    with pytest.raises(TypeError, match=r"expected float32 or float64 for argument 0, got torch\.int64"):
        wrap(jnp.sin)(torch.zeros(3, dtype=torch.int64))
