"""Free parameters for any optimiser, and batches of models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import minimize

import knuckle as kn

DT, STEPS = 0.01, 60


@pytest.fixture(scope="module")
def model():
    rod = {"mass": 1.0, "com": (0, 0, -0.2), "inertia": (0.02, 0.02, 0.002)}
    links = [
        kn.Link("upper", joints=kn.revolute("y", damping=0.05), **rod),
        kn.Link("lower", "upper", kn.revolute("y", damping=0.02), (0, 0, -0.4), **rod),
    ]
    return kn.build(links, actuators=[kn.motor("upper_joint")])


def test_start_is_the_model_and_bounds_are_those_given(model):
    params = kn.parameters(model, {"*.mass": (0.5, 4.0), "lower_joint.placement": None, "*.damping": None})
    assert params.names[:2] == ("upper.mass", "lower.mass") and params.size == 7
    same = params.apply(model, params.start)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-15), same, model)
    np.testing.assert_allclose(params.apply(model, params.lower.clip(-9)).inertia.mass, [0.5, 0.5], rtol=1e-14)
    np.testing.assert_allclose(params.apply(model, params.lower.clip(-9)).damping, [0.0, 0.0], atol=1e-17)
    np.testing.assert_allclose(params.values(params.start)["lower_joint.placement"], [0, 0, -0.4])
    with pytest.raises(ValueError, match=r"nothing is called '\*.weight'; there are mass, "):
        kn.parameters(model, ["*.weight"])
    with pytest.raises(ValueError, match="expected 7 free numbers, got shape \\(3,\\)"):
        params.apply(model, np.zeros(3))


def test_moments_stay_those_of_a_body_for_any_numbers(model):
    params = kn.parameters(model, ["*.inertia"])
    z = 2 * np.random.default_rng(0).normal(size=params.size)
    for xx, yy, zz, *_ in np.asarray(params.apply(model, z).inertia.moment):
        assert min(xx + yy - zz, yy + zz - xx, zz + xx - yy) > 0


@pytest.fixture(scope="module")
def problem(model):
    """The masses and the placement with which a swing was made, from another start."""
    params = kn.parameters(model, {"*.mass": (0.1, 10.0), "lower_joint.placement.z": None})
    true = np.array([0.3, -0.4, 0.1])

    def swing(z):
        made = params.apply(model, z)
        return kn.rollout(made, made.state(np.array([1.0, 0.5])), np.array([0.3]), dt=DT, steps=STEPS).q

    target = kn.native.jit(swing)(true)
    return params, true, kn.native.jit(jax.value_and_grad(lambda z: jnp.mean((swing(z) - target) ** 2)))


def test_scipy_finds_the_parameters(problem):
    params, true, loss = problem
    bounds = list(zip(params.lower, params.upper, strict=True))
    options = {"ftol": 1e-18, "gtol": 1e-12}
    found = minimize(lambda z: loss(z), params.start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    # The loss is quadratic about its minimum of zero, so a loss of 1e-16 leaves 1e-6 in the numbers.
    np.testing.assert_allclose(found.x, true, atol=1e-4)


def test_optax_descends(problem):
    params, _, loss = problem
    optimiser, z = optax.adam(0.05), jnp.asarray(params.start)
    state, first = optimiser.init(z), float(loss(z)[0])
    with jax.numpy_dtype_promotion("standard"):  # as optax needs
        for _ in range(60):
            change, state = optimiser.update(jnp.asarray(loss(z)[1]), state)
            z = optax.apply_updates(z, change)
    assert float(loss(z)[0]) < 0.05 * first  # type: ignore[arg-type]


def test_a_batch_runs_each_of_its_models(model):
    masses, damping = np.array([0.5, 1.0, 2.0]), np.array([[0.1, 0.2], [0.0, 0.1], [0.3, 0.0]])
    batch = kn.batch(model, {"*.mass": masses, "*.damping": damping})
    assert len(batch) == 3 and "batched leaves inertia.mass, damping" in repr(batch)

    def end(model, q):
        return kn.rollout(model, model.state(q), dt=DT, steps=5).q[-1]

    q = np.array([1.0, 0.5])
    ends = kn.native.vmap(end, in_axes=(batch.axes, None))(batch.model, q)
    alone = kn.native.jit(end)
    for k in range(3):
        np.testing.assert_allclose(batch[k].inertia.mass, masses[k])
        np.testing.assert_allclose(batch[k].damping, damping[k])
        np.testing.assert_allclose(ends[k], alone(batch[k], q), rtol=1e-12)
    np.testing.assert_allclose(jax.vmap(end, (batch.axes, None))(batch.model, q), ends, rtol=1e-12)


def test_a_batch_equal_to_the_model_is_still_a_batch(model):
    assert kn.batch(model, {"*.mass": np.ones(4)}).model.inertia.mass.shape == (4, 2)


def test_what_a_batch_cannot_have_is_refused(model):
    with pytest.raises(ValueError, match=r"upper.mass must be positive, got -1.0 in model 1"):
        kn.batch(model, {"*.mass": np.array([1.0, -1.0])})
    with pytest.raises(ValueError, match="one batch size as first axis"):
        kn.batch(model, {"*.mass": np.ones(2), "*.damping": np.ones(3)})
    with pytest.raises(ValueError, match=r"takes an array of shape .* got \(2, 3\)"):
        kn.batch(model, {"*.mass": np.ones((2, 3))})
    batch = kn.batch(model, {"*.mass": np.ones(2)})
    with pytest.raises(ValueError, match=r"expected one model, but model.inertia.mass has shape \(2, 2\)"):
        kn.step(batch.model, model.state(), dt=DT)
    with pytest.raises(ValueError, match=r"expected one model, but model.inertia.mass"):
        kn.rollout(batch.model, model.state(), dt=DT, steps=2, native=True)
