"""Networks that obey laws of energy, inside simulations with the implicit integrator."""

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import robots
from knuckle.dynamics import energy
from knuckle.neural import Passive

DRAWS, SECONDS = 1000, 0.5


def test_energy_rises_by_no_more_than_a_bound_that_vanishes_with_the_step():
    """Total energy, the network's potential included, over random weights: what integration adds is of first order."""
    model = robots.load("double_pendulum")
    state = model.state(np.array([1.2, -0.7]), np.array([1.0, -2.0]))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(Passive(model, (6,), key=jax.random.key(0)), ("q", "qd"))})

    def largest_rise(key, dt, steps):
        weights, keys = jax.tree.flatten(blueprint.weights)
        drawn = [jax.random.normal(jax.random.fold_in(key, k), w.shape, w.dtype) for k, w in enumerate(weights)]
        random = blueprint.with_weights(jax.tree.unflatten(keys, drawn))
        run = kn.rollout(model, state, dt=dt, steps=steps, blueprint=random, integrator=kn.Implicit())
        network = random.augments["joint/force"][0].network

        def total(q, qd):
            stored = network.potential(jnp.concatenate([q, qd]))
            return energy(model, q, qd) + stored

        values = jax.vmap(total)(run.q, run.qd)
        first = total(jnp.asarray(state.q), jnp.asarray(state.qd))
        return jnp.max(values) - first

    keys = jax.random.split(jax.random.PRNGKey(1), DRAWS)
    worst = []
    for dt in (4e-3, 2e-3, 1e-3):
        steps = int(SECONDS / dt)
        rise = kn.native.vmap(lambda key, dt=dt, steps=steps: largest_rise(key, dt, steps))(keys)
        assert np.all(np.isfinite(rise))
        worst.append(float(np.max(rise)))
    print(worst)
    assert worst[1] < 0.65 * worst[0] and worst[2] < 0.65 * worst[1]
