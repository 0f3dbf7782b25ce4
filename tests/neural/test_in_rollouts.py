"""Every kind of network inside roll-outs: no effect at first, gradients, jit, vmap, native code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import knuckle as kn
from knuckle import native
from tests.neural.examples import CASES, PENDULUM, START, blueprint, model_of, trained

DT, STEPS = 0.002, 500
ADDED = [name for name, case in CASES.items() if case[3] == "add"]


def reached(name: str, network, steps: int = STEPS, state: kn.State = START):
    """The sum of the last coordinates, and all states."""
    run = kn.rollout(model_of(name), state, dt=DT, steps=steps, blueprint=blueprint(name, network))
    return run.q[-1].sum(), jnp.concatenate([run.q, run.qd], axis=1)


@pytest.mark.parametrize("name", ADDED)
def test_an_untrained_network_leaves_the_motion_to_the_last_bit_and_has_a_gradient(name: str):
    def plain():
        run = kn.rollout(model_of(name), START, dt=DT, steps=5)
        return jnp.concatenate([run.q, run.qd], axis=1)

    own = CASES[name][0]
    slope, states = native.jit(jax.grad(lambda network: reached(name, network, 5), has_aux=True))(own)
    np.testing.assert_array_equal(states, native.jit(plain)())
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(slope)) > 1e-9


@pytest.mark.parametrize("name", CASES)
def test_gradients_over_500_steps_equal_differences_in_native_code(name: str):
    """Central differences over random directions, h = 1e-6: rounding 1e-16/h and h^2 leave about 1e-9 of the scale."""
    size = 0.02 if name == "polynomial" else 0.3  # forces that grow with the square of the speed run away
    weights, unflatten = ravel_pytree(trained(CASES[name][0], size))

    def value(flat):
        return reached(name, unflatten(flat))[0]

    run, slope = native.jit(value), native.jit(jax.grad(value))
    gradient = np.asarray(slope(weights))
    rng, h = np.random.default_rng(1), 1e-6
    for _ in range(2):
        direction = rng.normal(size=weights.size)
        moved = (float(run(weights + h * direction)) - float(run(weights - h * direction))) / (2 * h)
        exact = float(np.dot(gradient, direction))
        assert abs(moved - exact) < 1e-5 * max(1.0, abs(exact))


@pytest.mark.parametrize("name", ["passive", "lstm", "step graph"])
def test_batches_under_jit_equal_single_runs_in_native_code(name: str):
    weights, unflatten = ravel_pytree(trained(CASES[name][0]))

    def slope(flat):
        return jax.grad(lambda flat: reached(name, unflatten(flat), 3)[0])(flat)

    many = jnp.stack([weights, 0.5 * weights])
    together, single = jax.jit(jax.vmap(slope))(many), native.jit(slope)
    for k in range(2):
        np.testing.assert_allclose(together[k], single(many[k]), rtol=1e-9, atol=1e-12)


def test_a_recurrent_network_remembers():
    """The same state again, with and without its past: other forces."""
    parts = blueprint("gru", trained(CASES["gru"][0]))

    def ends():
        run = kn.rollout(PENDULUM, START, dt=DT, steps=50, blueprint=parts)
        states = (run.last, kn.State(run.q[-1], run.qd[-1]))
        return [kn.step(PENDULUM, state, dt=DT, blueprint=parts).qd[0] for state in states]

    later, anew = native.jit(ends)()
    assert abs(float(later - anew)) > 1e-6
