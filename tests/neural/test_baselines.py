"""Learned steps: what they start from, quaternions, controls, and who hears whom in a graph."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import native, neural, robots
from tests.neural.examples import KEY, trained

QUADRUPED, CARTPOLE = robots.load("quadruped"), robots.load("cartpole")
KINDS = {
    "mlp": lambda model, **options: neural.StepMLP(model, model.nu, hidden=(6,), key=KEY, **options),
    "lstm": lambda model, **options: neural.StepRecurrent(model, model.nu, width=4, key=KEY, **options),
    "graph": lambda model, **options: neural.StepGraph.of(model, width=4, rounds=1, key=KEY, **options),
}
INPUTS = ("q", "qd", "control")


def start(model: kn.Model) -> kn.State:
    rng = np.random.default_rng(0)
    q = kn.retract(model, jnp.asarray(model.reference), jnp.asarray(0.3 * rng.normal(size=model.nv)))
    return kn.State(q, 0.1 * rng.normal(size=model.nv))


@pytest.mark.parametrize("kind", KINDS)
def test_a_learned_step_moves_a_quadruped_on_its_manifold(kind: str):
    """Untrained it stays where it is; with weights quaternions stay of unit length."""
    network = KINDS[kind](QUADRUPED, per_step=0.01)
    state = start(QUADRUPED)

    def run(network):
        parts = kn.Blueprint({"next/state": kn.Augment(network, inputs=INPUTS, mode="replace")})
        motion = kn.rollout(QUADRUPED, state, dt=0.01, steps=4, contact=None, blueprint=parts)
        return motion.q, motion.qd

    fast = native.jit(run)
    q, qd = fast(network)
    np.testing.assert_allclose(q[-1], state.q, atol=1e-15)
    np.testing.assert_array_equal(qd[-1], state.qd)
    q, qd = fast(trained(network))
    assert np.abs(q[-1] - state.q).max() > 1e-4 and np.abs(qd[-1] - state.qd).max() > 1e-4
    np.testing.assert_allclose(np.linalg.norm(q[:, 3:7], axis=1), 1, atol=1e-15)


def test_replacing_by_a_change_equals_adding_it():
    """The same weights: "replace" gives the state moved by what "add" gives, along the model's own tangents."""
    whole, change = (trained(KINDS["mlp"](QUADRUPED, mode=mode, per_step=0.1)) for mode in ("replace", "add"))
    state = start(QUADRUPED)
    x = jnp.concatenate([jnp.asarray(state.q), jnp.asarray(state.qd), jnp.zeros(QUADRUPED.nu)])

    def both(x):
        step = change(x)
        q = kn.retract(QUADRUPED, x[: QUADRUPED.nq], step[: QUADRUPED.nv])
        return whole(x), jnp.concatenate([q, jnp.asarray(state.qd) + step[QUADRUPED.nv :]])

    np.testing.assert_allclose(*native.jit(both)(x), atol=1e-14)


def test_controls_are_felt():
    for kind in ("mlp", "graph"):
        network = trained(KINDS[kind](CARTPOLE))
        x = np.zeros(CARTPOLE.nq + CARTPOLE.nv + CARTPOLE.nu)
        pushed = x.copy()
        pushed[-1] = 1.0
        run = native.jit(lambda x, network=network: network(x))
        assert np.abs(np.asarray(run(x)) - np.asarray(run(pushed))).max() > 1e-4


@pytest.mark.parametrize("rounds", [1, 2])
def test_news_travel_one_edge_a_round(rounds: int):
    """On a chain of five links, what happens at the first is felt after so many rounds so many links away."""
    edges = [(i, i + 1) for i in range(4)]
    network = trained(neural.StepGraph(5, edges, [1] * 5, width=3, rounds=rounds, key=KEY), size=1.0)
    slope = native.jit(jax.jacfwd(lambda x: network(x)))(np.linspace(-1, 1, 10))
    felt = np.abs(np.asarray(slope)[5:, 0]) > 0  # velocities after, by the first link's coordinate
    np.testing.assert_array_equal(felt, np.arange(5) <= rounds)


def test_a_graph_does_not_depend_on_how_links_are_numbered():
    edges, order = [(0, 1), (1, 2), (1, 3)], np.array([3, 1, 0, 2])
    network = trained(neural.StepGraph(4, edges, [1] * 4, width=3, key=KEY))
    place = np.argsort(order)  # where each link went
    moved = neural.StepGraph(4, [(place[i], place[j]) for i, j in edges], [1] * 4, width=3, key=KEY)
    leaves = jax.tree.leaves(network)
    moved = jax.tree.unflatten(jax.tree.structure(moved), [leaves[0][order], *leaves[1:]])
    x = np.random.default_rng(3).normal(size=(2, 4))
    y = np.asarray(native.jit(lambda x: network(x))(x.ravel())).reshape(2, 4)
    z = np.asarray(native.jit(lambda x: moved(x))(x[:, order].ravel())).reshape(2, 4)
    np.testing.assert_allclose(y[:, order], z, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: neural.StepMLP(2, mode="scale", key=KEY), "mode 'replace' or 'add', got 'scale'"),
        (lambda: neural.StepMLP(2, controls=-1, key=KEY), "controls >= 0"),
        (lambda: neural.StepGraph(2, [(0, 1)], [1, 2], key=KEY), "freedoms must be positive and 2 in all"),
        (lambda: neural.StepGraph(2, [(0, 2)], [1, 1], key=KEY), "edges must connect links 0 to 1"),
        (lambda: neural.StepMLP(2, key=KEY)(np.zeros(5)), "StepMLP takes a vector of 4 inputs"),
    ],
)
def test_what_does_not_fit_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()
