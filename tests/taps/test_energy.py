"""Networks that obey laws of energy, inside simulations with the implicit integrator."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import robots
from knuckle.dynamics import energy
from knuckle.neural import Dissipative, Passive

DRAWS, SECONDS = 1000, 0.5
LONGEST = 4e-3  # step [s]


def test_energy_rises_by_no_more_than_a_bound_that_vanishes_with_the_step():
    """Total energy, the network's potential included, over random weights: what integration adds is of first order."""
    model = robots.load("double_pendulum")
    state = model.state(np.array([1.2, -0.7]), np.array([1.0, -2.0]))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(Passive(model, (6,), key=jax.random.key(0)), ("q", "qd"))})

    @kn.native.vmap
    def largest_and_end(key, dt, q, qd):
        """The largest energy over some steps less that of `state`, and where they end."""
        weights, keys = jax.tree.flatten(blueprint.weights)
        drawn = [jax.random.normal(jax.random.fold_in(key, k), w.shape, w.dtype) for k, w in enumerate(weights)]
        random = blueprint.with_weights(jax.tree.unflatten(keys, drawn))
        options = {"blueprint": random, "integrator": kn.Implicit()}
        run = kn.rollout(model, kn.State(q, qd), dt=dt, steps=int(SECONDS / LONGEST), **options)
        network = random.augments["joint/force"][0].network

        def total(q, qd):
            stored = network.potential(jnp.concatenate([q, qd]))
            return energy(model, q, qd) + stored

        values = jax.vmap(total)(run.q, run.qd)
        first = total(jnp.asarray(state.q), jnp.asarray(state.qd))
        return jnp.max(values) - first, run.q[-1], run.qd[-1]

    keys = jax.random.split(jax.random.PRNGKey(1), DRAWS)
    worst = []
    for parts in (1, 2, 4):
        q, qd = (np.tile(np.asarray(part), (DRAWS, 1)) for part in (state.q, state.qd))
        rise = np.full(DRAWS, -np.inf)
        for _ in range(parts):
            part, q, qd = largest_and_end(keys, np.full(DRAWS, LONGEST / parts), q, qd)
            rise = np.maximum(rise, part)
        assert np.all(np.isfinite(rise))
        worst.append(float(np.max(rise)))
    print(worst)
    assert worst[1] < 0.65 * worst[0] and worst[2] < 0.65 * worst[1]


def test_damping_of_a_network_is_stable_however_strong_with_implicit():
    """Without gravity kinetic energy only falls, with weights far beyond what an explicit step can resolve too."""
    model = robots.load("double_pendulum")
    model = eqx.tree_at(lambda m: m.gravity, model, np.zeros(3))
    state = model.state(np.array([1.2, -0.7]), np.array([1.0, -2.0]))
    network = Dissipative(model, (6,), key=jax.random.key(0))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(network, ("q", "qd"))})

    kinetic = kn.native.vmap(lambda q, qd: energy(model, q, qd))

    def energies(size, integrator):
        key, (weights, keys) = jax.random.key(2), jax.tree.flatten(blueprint.weights)
        drawn = [size * jax.random.normal(jax.random.fold_in(key, k), w.shape, w.dtype) for k, w in enumerate(weights)]
        strong = blueprint.with_weights(jax.tree.unflatten(keys, drawn))
        run = kn.rollout(model, state, dt=0.01, steps=100, blueprint=strong, integrator=integrator, native=True)
        return kinetic(*(np.concatenate([[first], rest]) for first, rest in ((state.q, run.q), (state.qd, run.qd))))

    explicit = energies(30.0, kn.SemiImplicitEuler())
    assert not np.all(np.isfinite(explicit)) or explicit.max() > 10 * explicit[0]  # too strong for a step
    for size in (1.0, 30.0, 1e3, 1e5):
        found = energies(size, kn.Implicit())
        assert np.all(np.isfinite(found)) and found.max() <= 1.01 * found[0] and found[-1] < 0.1 * found[0]
