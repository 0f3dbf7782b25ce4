"""Networks as plain data."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle import native, neural, robots
from knuckle.neural.registry import REGISTRY
from tests.neural.examples import CASES, KEY, trained

QUADRUPED = robots.load("quadruped")
MORE = {
    "stacked": neural.each(3, lambda key: neural.MLP((2, 4, 1), "elu", key=key, input_bias=True), KEY),
    "stacked passive": neural.each(2, lambda key: neural.Passive(1, (4,), key=key), KEY),
    "quaternions": neural.Passive(QUADRUPED, (4,), structure="diagonal", key=KEY),
    "periodic": neural.Passive(neural.Coordinates.of(QUADRUPED, periodic=True), (4,), key=KEY),
    "formula": neural.Formula([("coulomb", 0, (1,), (0.1,)), ("product", 1, (0, 2))], 3, 2, shapes=True),
    "joint friction": neural.JointFriction((0, 1), (0, 1), 2, 2, (True, False)),
    "pairs apart": neural.PairForces(3, [(0, 2), (1, 2)], "free", shared=False, key=KEY),
}
ALL = {name: case[0] for name, case in CASES.items()} | MORE


@pytest.mark.parametrize("name", ALL)
def test_a_network_is_rebuilt_from_json(name: str):
    network = trained(ALL[name])
    config = json.loads(json.dumps(neural.to_config(network)))
    empty = neural.from_config(config)
    assert type(empty) is type(network)
    assert jax.tree.structure(empty) == jax.tree.structure(network)
    assert jax.tree.map(jnp.shape, empty) == jax.tree.map(jnp.shape, network)
    assert neural.to_config(empty) == config
    filled = jax.tree.unflatten(jax.tree.structure(empty), jax.tree.leaves(network))
    if not name.startswith("stacked") and not hasattr(network, "initial_state"):
        x = np.linspace(-1, 1, _inputs(network))
        run = native.jit(lambda network: network(x))
        np.testing.assert_array_equal(run(filled), run(network))


def _inputs(network) -> int:
    """How many it takes, as its error says."""
    with pytest.raises(ValueError) as error:
        network(np.zeros(1000))
    return int(str(error.value).split("vector of ")[1].split()[0])


def test_every_class_is_tried():
    assert {type(network).__name__ for network in ALL.values()} == set(REGISTRY)


def test_a_structure_takes_no_memory_whatever_a_file_says():
    huge = {"class": "MLP", "arguments": {"sizes": [10**9, 10**9, 1]}, "stacked": 10**6}
    assert neural.structure(huge).weights[0].shape == (10**6, 10**9, 10**9)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"class": "os.system", "arguments": {}}, "there is no network class 'os.system'; there are Conservative"),
        ({"class": ["MLP"], "arguments": {}}, "there is no network class"),
        ({"class": "MLP"}, "a network's configuration has 'class', 'arguments'"),
        ("MLP", "a network's configuration has"),
        ({"class": "MLP", "arguments": {"sizes": [1, 1], "key": 3}}, "arguments must be among sizes, activation"),
        ({"class": "MLP", "arguments": {"sizes": ["a", 1]}}, "positive whole numbers"),
        ({"class": "MLP", "arguments": {"sizes": 3}}, "network MLP of arguments"),
        ({"class": "MLP", "arguments": {}}, "network MLP of arguments"),
        ({"class": "MLP", "arguments": {"sizes": [1, 1], "activation": "eval"}}, "activation must be one of"),
        ({"class": "MLP", "arguments": {"sizes": [1, 1]}, "stacked": -1}, "'stacked' must be a positive number"),
        ({"class": "Passive", "arguments": {"coordinates": {"nq": 3, "nv": 1}}}, "one more for each quaternion"),
        ({"class": "Passive", "arguments": {"coordinates": {"nq": 10**15, "nv": 10**15}}}, "nq <= 100000"),
        ({"class": "Polynomial", "arguments": {"inputs": 99, "outputs": 1, "degree": 99}}, "more than 100000 terms"),
        ({"class": "Polynomial", "arguments": {"inputs": 10**9, "outputs": 1, "degree": 10**9}}, "more than 100000"),
        ({"class": "PairForces", "arguments": {"links": 10**9}}, "all of them are too many"),
        ({"class": "Passive", "arguments": {"coordinates": "everything"}}, "coordinates must be a model"),
    ],
)
def test_damaged_and_hostile_data_are_refused(config, message: str):
    with pytest.raises(ValueError, match=message):
        neural.from_config(config)


def test_a_class_of_ones_own_must_be_registered():
    class Own(neural.Network):
        def __init__(self, *, key=None):
            pass

        def __call__(self, x):
            return x

    with pytest.raises(ValueError, match="a file can hold networks of"):
        neural.to_config(Own())
    neural.register(Own)
    try:
        assert type(neural.from_config(neural.to_config(Own()))) is Own
    finally:
        del REGISTRY["Own"]
