"""Layers, one weight, polynomials, recurrent cells: what they compute, and how many numbers they hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import native, neural
from tests.neural.examples import KEY, PENDULUM, START, trained

X = np.array([0.3, -1.2, 0.7])


def test_the_papers_network_has_175_numbers():
    """5-10-10 with biases on the inputs too: 5 + (5 * 10 + 10) + (10 * 10 + 10)."""
    network = neural.MLP((5, 10, 10), "tanh", last_activation="tanh", input_bias=True, key=KEY)
    assert network.size == 175
    network = trained(network)
    (W0, W1), (b0, b1), shift = network.weights, network.biases, network.shift
    x = np.linspace(-1, 1, 5)
    expected = np.tanh(W1 @ np.tanh(W0 @ (x + shift) + b0) + b1)
    np.testing.assert_allclose(network(x), expected, rtol=0, atol=1e-15)  # sums of ten terms below 1


@pytest.mark.parametrize("activation", neural.ACTIVATIONS)
def test_every_activation_gives_the_same_in_native_code_with_its_gradient(activation: str):
    network = trained(neural.MLP((3, 5, 2), activation, key=KEY), size=1.0)

    def both(network, x):
        return jax.value_and_grad(lambda n: jnp.sum(n(x) ** 2))(network)

    plain, fast = jax.jit(both)(network, X), native.jit(both)(network, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), plain, fast)


def test_a_last_layer_of_zeros_gives_zero_and_has_a_gradient():
    network = neural.MLP((3, 5, 2), "softplus", key=KEY)
    assert network.starts_at_zero and not np.any(network(X))
    slope = jax.grad(lambda n: jnp.sum(n(X)))(network)
    assert np.all(np.abs(slope.weights[-1]) > 0)
    assert not neural.MLP((3, 5, 2), key=KEY, zero_last=False).starts_at_zero
    assert not neural.MLP((3, 5, 2), key=KEY, last_activation="softplus").starts_at_zero


def test_a_network_without_biases_and_of_odd_activation_is_odd():
    network = trained(neural.MLP((3, 5, 2), bias=False, key=KEY))
    np.testing.assert_array_equal(network(-X), -network(X))
    assert network.size == 3 * 5 + 5 * 2


def test_one_weight():
    model = neural.Linear(1, 1)
    assert model.size == 1 and model.starts_at_zero
    np.testing.assert_array_equal(trained(model)(X[:1]), trained(model).weight[0] * X[:1])


@pytest.mark.parametrize(
    ("cross", "constant", "terms"),
    [
        (True, False, [(0,), (1,), (0, 0), (0, 1), (1, 1)]),
        (False, False, [(0,), (1,), (0, 0), (1, 1)]),
        (True, True, [(), (0,), (1,), (0, 0), (0, 1), (1, 1)]),
    ],
)
def test_polynomials(cross: bool, constant: bool, terms):
    model = trained(neural.Polynomial(2, 3, 2, cross=cross, constant=constant))
    assert list(model.terms) == terms
    expected = model.coefficients @ np.array([np.prod(X[list(term)]) for term in terms])
    np.testing.assert_allclose(model(X[:2]), expected, rtol=1e-14)


def test_cells_are_equinoxs_and_the_vanilla_one_is_elmans():
    gru = trained(neural.Recurrent(3, 2, 4, "gru", key=KEY))
    state = np.full(4, 0.2)
    y, after = gru(X, state)
    np.testing.assert_allclose(after, gru.core(X, state), rtol=1e-14)
    np.testing.assert_allclose(y, gru.head(after), rtol=1e-14)
    elman = trained(neural.Recurrent(3, 2, 4, "vanilla", key=KEY))
    y, after = elman(X, state)
    expected = np.tanh(elman.core.weights[0] @ np.concatenate([X, state]) + elman.core.biases[0])
    np.testing.assert_allclose(after, expected, rtol=1e-14)


@pytest.mark.parametrize("cell", ["gru", "lstm", "vanilla"])
def test_states_keep_their_type(cell: str):
    network = neural.Recurrent(3, 2, 4, cell, key=KEY)
    single = jax.tree.map(lambda leaf: leaf.astype(np.float32), network)
    state = single.initial_state()
    y, after = single(X, state)
    assert y.dtype == np.float64
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, state)


def test_each_row_has_weights_of_its_own():
    """Stacked networks in a roll-out act as each would on its joint."""
    networks = trained(neural.each(2, lambda key: neural.MLP((1, 4, 1), key=key), KEY))
    first, second = (jax.tree.map(lambda leaf, k=k: leaf[k], networks) for k in range(2))
    share = kn.Augment(networks, inputs="qd", share="each")
    alone = tuple(kn.Augment(n, inputs="qd", share="rows", rows=(k,)) for k, n in enumerate((first, second)))

    def end(augments):
        return kn.step(PENDULUM, START, dt=0.01, blueprint=kn.Blueprint({"joint/force": augments})).qd

    np.testing.assert_allclose(native.jit(end)(share), native.jit(end)(alone), rtol=1e-13)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: neural.MLP((4,), key=KEY), r"sizes must be 2 or more positive whole numbers, got \(4,\)"),
        (lambda: neural.MLP((4, 0, 1), key=KEY), "positive whole numbers"),
        (lambda: neural.MLP((4, 1), "swish", key=KEY), "activation must be one of elu, .* got 'swish'"),
        (lambda: neural.MLP((4, 1), key=KEY)(X), r"MLP takes a vector of 4 inputs, got shape \(3,\)"),
        (lambda: neural.Polynomial(2, 1, 0), "degree must be 1 or more"),
        (lambda: neural.Recurrent(2, 1, 3, "elman", key=KEY), "cell must be one of gru, lstm, vanilla"),
    ],
)
def test_what_does_not_fit_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()
