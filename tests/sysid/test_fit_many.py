"""Fits by gradients: L-BFGS-B and Adam on batches of pieces, and what the data tell of many weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.neural import MLP, each
from knuckle.optim import LBFGSB, Adam
from knuckle.sysid import objective as objectives
from knuckle.sysid import solve
from knuckle.sysid.many import Pieces
from knuckle.sysid.noise import log_evidence
from knuckle.sysid.objective import Regularise
from knuckle.sysid.uncertainty import certainty
from tests.sysid.test_fit import FREE, MODEL, TRUTH, objective, recorded, small_networks

SMOOTH = eqx.tree_at(lambda m: m.damping, MODEL, np.zeros(2))


def random_point(made):
    rng = np.random.default_rng(0)
    return 0.01 * np.abs(rng.normal(size=made.size + made.start_size))


@pytest.fixture(scope="module")
def network():
    return objective(["lower.mass"], small_networks(), regularise=Regularise(2.0, group_lasso=3.0))


def test_batches_are_the_whole_on_average(network):
    pieces = Pieces(network)
    z = pieces.start(random_point(network))
    value, gradient = pieces.value_and_gradient(z)
    parts = [pieces.on_rows(z, np.array([k])) for k in range(pieces.samples)]
    assert pieces.samples == 3
    assert np.mean([part[0] for part in parts]) == pytest.approx(value, rel=1e-12)
    mean = np.mean([part[1] for part in parts], axis=0)
    np.testing.assert_allclose(mean, gradient, rtol=1e-9, atol=1e-9 * np.abs(gradient).max())
    assert pieces.value(z) == pytest.approx(value, rel=1e-12)


def test_starts_are_where_pieces_fit_best(network):
    """So the slope of the whole by starts is 0, and that by free numbers is the one of finite differences."""
    pieces, x = Pieces(network), random_point(network)
    z = pieces.start(x)
    value, gradient = pieces.value_and_gradient(z)
    best = network.settled(x, iterations=50)
    assert value == pytest.approx(0.5 * np.sum(network.look(best) ** 2), rel=1e-7)
    assert value < 0.99 * 0.5 * np.sum(network.look(x) ** 2)
    step = 1e-4 * np.random.default_rng(1).normal(size=len(z))
    ends = [
        0.5 * np.sum(network.look(network.settled(network_point(way, best), 50)) ** 2) for way in (z + step, z - step)
    ]
    assert (ends[0] - ends[1]) / 2 == pytest.approx(gradient @ step, rel=1e-3)


def network_point(z, x):
    return np.concatenate([z, x[len(z) :]])


def test_directions_that_data_see_tell_as_much_as_all_weights(network, monkeypatch):
    """There are more directions than weights here, so nothing may be lost."""
    x = random_point(network)
    known, prior, labels = 1, network.prior[:1], network.labels[:1]

    def judged():
        r, J = network.told(x)
        sure = certainty(network.sensitivity(x), known, prior, labels)
        return 0.5 * r @ r, J.leverage(), log_evidence(network, x), sure.covariance, sure.singular_values

    exact = judged()
    monkeypatch.setattr(objectives, "MANY", 5)
    for a, b in zip(exact, judged(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def runs():
    return recorded(TRUTH, runs=2)


@pytest.fixture(scope="module")
def by_least_squares(runs):
    return kn.fit(MODEL, runs, FREE, held_out=0)


@pytest.mark.parametrize(
    ("solver", "off"), [(LBFGSB(value_tolerance=1e-9), 0.1), (Adam(epochs=1000, rate=0.1, last_rate=1e-6), 0.2)]
)
def test_other_solvers_come_to_the_same_end(solver, off, runs, by_least_squares):
    """Far from where they begin; `off` in deviations: so little that intervals are still those of the fit.

    Adam with all pieces in each step; with batches of two of these four pieces it ends about one deviation away.
    """
    fit = kn.fit(MODEL, runs, FREE, held_out=0, solver=solver)
    for a, b in zip(by_least_squares.estimates, fit.estimates, strict=True):
        assert abs(a.value - a.before) > 20 * a.deviation
        assert abs(a.value - b.value) < off * a.deviation and b.deviation == pytest.approx(a.deviation, rel=0.1)


def test_many_weights_learn_what_the_model_leaves_out(monkeypatch):
    """A small network taken as a large one: the solver is then L-BFGS-B by itself."""
    for module in (solve, objectives):
        monkeypatch.setattr(module, "MANY", 5)
    rubbing = eqx.tree_at(lambda m: m.damping, MODEL, np.array([0.08, 0.05]))
    networks = each(2, lambda key: MLP((1, 4, 1), key=key), jax.random.key(0))
    blueprint = kn.Blueprint({"joint/force": kn.Augment(networks, "qd", share="each")})
    fit = kn.fit(SMOOTH, recorded(rubbing, runs=2), ["lower.mass"], blueprint=blueprint, draws=1, held_out=0)
    assert fit.noise["q"] == pytest.approx(1e-3, rel=0.15)
    assert abs(fit["lower.mass"].value - 0.75) < 4 * fit["lower.mass"].deviation
    assert fit.blueprint is not None
    learnt = fit.blueprint.augments["joint/force"][0].network
    force = jax.vmap(lambda network: network(jnp.array([1.0]))[0] - network(jnp.array([-1.0]))[0])(learnt)
    np.testing.assert_allclose(force / 2, [-0.08, -0.05], rtol=0.2)
