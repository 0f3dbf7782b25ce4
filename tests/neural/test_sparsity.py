"""Penalties, proximal steps to exact zeros, and which inputs are alive."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import native, neural
from knuckle.neural import sparsity
from tests.neural.examples import KEY, trained

NETWORK = trained(neural.MLP((4, 3, 2), key=KEY))
W = np.asarray(NETWORK.weights[0])


def in_blueprint(network, **options) -> kn.Blueprint:
    return kn.Blueprint({"joint/force": kn.Augment(network, inputs=("q", "qd"), **options)})


def test_penalties():
    rest = sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(NETWORK)) - np.sum(W**2)
    for networks in (NETWORK, in_blueprint(NETWORK)):
        np.testing.assert_allclose(sparsity.ridge(networks), rest)
        np.testing.assert_allclose(sparsity.ridge(networks, first_layer=True), rest + np.sum(W**2))
        np.testing.assert_allclose(sparsity.lasso(networks), np.abs(W).sum())
        np.testing.assert_allclose(sparsity.group_lasso(networks), np.linalg.norm(W, axis=0).sum())
        together = np.linalg.norm(W[:, :2]) + np.linalg.norm(W[:, 2:])
        np.testing.assert_allclose(sparsity.group_lasso(networks, [[0, 1], [2, 3]]), together)


def test_the_penalty_of_dead_inputs_has_a_slope_without_nan():
    dead = eqx.tree_at(lambda n: n.weights[0], NETWORK, jnp.asarray(W).at[:, 1].set(0.0))
    slope = jax.grad(sparsity.group_lasso)(dead).weights[0]
    assert np.all(np.isfinite(slope)) and not np.any(slope[:, 1])


def test_a_proximal_step_minimises_penalty_and_distance():
    """Of kappa sum |V_g| + element |V|_1 + 1/2 |V - W|^2 it is the minimum: a random step away never lowers it."""
    group, element, groups = 0.3, 0.1, [[0], [1, 2], [3]]
    stepped = sparsity.proximal(NETWORK, group, element, groups)

    def cost(V):
        norms = sum(np.linalg.norm(V[:, g]) for g in groups)
        return group * norms + element * np.abs(V).sum() + 0.5 * np.sum((V - W) ** 2)

    V = np.asarray(stepped.weights[0])
    assert np.any(np.all(V == 0, axis=0)) and np.any(V != 0)
    rng = np.random.default_rng(0)
    for size in (1e-6, 1e-3, 1e-1):
        assert all(cost(V + size * rng.normal(size=V.shape)) >= cost(V) for _ in range(200))
    for before, after in zip(NETWORK.weights[1:], stepped.weights[1:], strict=True):
        np.testing.assert_array_equal(before, after)


def test_without_elements_it_is_the_papers_formula():
    norms = np.linalg.norm(W, axis=0)
    kappa = float(np.median(norms))
    V = np.asarray(sparsity.proximal(NETWORK, kappa).weights[0])
    np.testing.assert_allclose(V, W * np.maximum(0, 1 - kappa / norms), atol=1e-15)
    np.testing.assert_array_equal(sparsity.alive(sparsity.proximal(NETWORK, kappa)), norms > kappa)
    zero = jax.tree.map(jnp.zeros_like, NETWORK)
    assert not np.any(sparsity.proximal(zero, 0.0).weights[0])


def test_stacked_networks_live_and_die_apart():
    stacked = trained(neural.each(2, lambda key: neural.MLP((4, 3, 1), key=key), KEY))
    first = np.asarray(stacked.weights[0]).copy()
    first[0, :, 2] = 0.0
    first[1] = 0.0
    stacked = eqx.tree_at(lambda n: n.weights[0], stacked, jnp.asarray(first))
    parts = in_blueprint(stacked, share="each")
    expected = [[True, True, False, True], [False] * 4]
    np.testing.assert_array_equal(sparsity.alive(parts)["joint/force"], expected)
    pruned = next(iter(sparsity.prune(parts)))[2].network
    for before, after in zip(jax.tree.leaves(stacked), jax.tree.leaves(pruned), strict=True):
        np.testing.assert_array_equal(after[0], before[0])
        assert not np.any(after[1])
    assert jax.tree.structure(sparsity.proximal(parts, 0.1)) == jax.tree.structure(parts)


def test_the_inputs_that_matter_are_found():
    """y = -0.2 tanh(x2): of four inputs that vary alike one survives; the others end at exactly zero."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(100, 4)))
    y = -0.2 * jnp.tanh(x[:, 2:3])
    network, eta, kappa = neural.MLP((4, 5, 1), bias=False, zero_last=False, key=KEY), 0.1, 1e-2

    def loss(network):
        return jnp.mean((jax.vmap(network)(x) - y) ** 2) + 1e-3 * sparsity.ridge(network)

    def stepped(network, _):
        slope = jax.grad(loss)(network)
        moved = jax.tree.map(lambda w, g: w - eta * g, network, slope)
        return sparsity.proximal(moved, eta * kappa), None

    network = jax.jit(lambda network: jax.lax.scan(stepped, network, None, length=4000)[0])(network)
    np.testing.assert_array_equal(sparsity.alive(network), [False, False, True, False])
    assert float(jnp.sqrt(jnp.mean((jax.vmap(network)(x) - y) ** 2))) < 0.05  # of 0.13: shrunk, not gone


def test_contribution_is_the_mean_square_of_what_is_added():
    rng = np.random.default_rng(2)
    values = {name: rng.normal(size=(7, 2)) for name in ("q", "qd", "joint/force")}
    x = np.concatenate([values["q"], values["qd"]], axis=1)
    squares = [np.mean(np.square(NETWORK(row))) for row in x]
    run = native.jit(lambda parts: sparsity.contribution(parts, values))
    np.testing.assert_allclose(run(in_blueprint(NETWORK)), np.mean(squares), rtol=1e-12)
    assert float(run(in_blueprint(NETWORK, zero_start=True))) == 0.0
    by_rows = trained(neural.each(2, lambda key: neural.MLP((2, 3, 1), key=key), KEY))
    rows = [jax.tree.map(lambda leaf, k=k: leaf[k], by_rows) for k in range(2)]
    squares = [rows[k](np.array([values["q"][i, k], values["qd"][i, k]]))[0] ** 2 for i in range(7) for k in range(2)]
    np.testing.assert_allclose(run(in_blueprint(by_rows, share="each")), np.mean(squares), rtol=1e-12)
    with pytest.raises(ValueError, match="no values of qd; there are q, joint/force"):
        sparsity.contribution(in_blueprint(NETWORK), {"q": values["q"], "joint/force": values["joint/force"]})


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"networks with a first layer .* got Passive"):
        sparsity.lasso(neural.Passive(2, (3,), key=KEY))
    with pytest.raises(ValueError, match=r"each of the inputs 0 to 3 once, got \[\[0, 1\], \[1, 2\]\]"):
        sparsity.proximal(NETWORK, 0.1, groups=[[0, 1], [1, 2]])
