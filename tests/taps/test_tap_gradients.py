"""Gradients by the weights of networks at every quantity of a step, through roll-outs of 500 steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots
from knuckle.contact import Compliant, Impulse
from tests.contact.scenes import ball
from tests.taps.scenes import everywhere, sliding

SCENES = {
    "pendulum": (lambda: robots.load("double_pendulum"), None, 2e-3),
    "rigid": (ball, Impulse(mixing=1e-3, recovery_speed=2.0), 1e-3),
    "springy": (ball, Compliant(), 1e-3),
}
STEP = 1e-5  # of difference quotients of fourth order: rounding is about 1e-13/STEP of the largest gradient


@pytest.mark.parametrize("scene", SCENES)
def test_gradients_by_weights_at_every_tap_are_those_of_differences(scene):
    make, contact, dt = SCENES[scene]
    model = make()
    state = sliding(model) if contact else model.state(np.array([0.4, 0.3]), np.array([0.1, -0.2]))
    blueprint = everywhere(model, contact, "add", zero_start=False)

    def end(weights):
        run = kn.rollout(model, state, dt=dt, steps=500, contact=contact, blueprint=blueprint.with_weights(weights))
        return jnp.sum(run.q[::100] ** 2) + jnp.sum(run.qd[-1])

    weights = blueprint.weights
    value, reverse = kn.native.jit(jax.value_and_grad(end))(weights)
    assert np.isfinite(value)
    directions = _one_per_tap(weights)
    many = kn.native.vmap(lambda size, d: end(_moved(weights, d, size)), in_axes=(None, 0))
    above, below, far_above, far_below = (many(k * STEP, directions) for k in (1.0, -1.0, 2.0, -2.0))
    differences = (8 * (above - below) - (far_above - far_below)) / (12 * STEP)
    names = sorted(weights)
    ours = np.array([sum(np.vdot(g, d[k]) for g, d in _pairs(reverse, directions)) for k in range(len(names))])
    scale = np.maximum(np.abs(differences), 1e-3 * np.abs(differences).max())
    wrong = {n: (a, b) for n, a, b, s in zip(names, ours, differences, scale, strict=True) if abs(a - b) > 1e-5 * s}
    assert not wrong
    forward = kn.native.vmap(lambda d: jax.jvp(end, (weights,), (d,))[1])(directions)
    np.testing.assert_allclose(forward, ours, atol=1e-9 * np.abs(ours).max())


def _one_per_tap(weights):
    """For each tap a direction in which only its weights change, stacked."""
    names, rng = sorted(weights), np.random.default_rng(0)
    return {
        name: jax.tree.map(
            lambda w, k=k: jnp.asarray(np.eye(len(names))[k].reshape(-1, *[1] * w.ndim) * rng.normal(size=w.shape)),
            weights[name],
        )
        for k, name in enumerate(names)
    }


def _moved(weights, direction, step):
    return jax.tree.map(lambda w, d: w + step * d, weights, direction)


def _pairs(gradient, directions):
    return zip(jax.tree.leaves(gradient), jax.tree.leaves(directions), strict=True)


def test_gradients_under_jit_native_and_vmap_are_equal():
    model = robots.load("double_pendulum")
    state = model.state(np.array([0.4, 0.3]), np.array([0.1, -0.2]))
    blueprint = everywhere(model, None, "add", zero_start=False)

    def end(blueprint, q):
        return jnp.sum(kn.rollout(model, kn.State(q, state.qd), dt=2e-3, steps=500, blueprint=blueprint).q[-1])

    gradient = jax.grad(end)
    wanted = jax.jit(gradient)(blueprint, state.q)
    native = kn.native.jit(gradient)(blueprint, state.q)
    batch = kn.native.vmap(lambda q: gradient(blueprint, q))(jnp.stack([state.q] * 3))
    for a, b, c in zip(*map(jax.tree.leaves, (wanted, native, batch)), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(c[1], b, rtol=1e-9, atol=1e-12)
