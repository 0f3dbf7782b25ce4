"""Networks as data: those of `knuckle.neural` by its registry, plain ones of Equinox, and weights of any other."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from knuckle import neural
from knuckle.hybrid.container import Members
from knuckle.neural.registry import REGISTRY

FUNCTIONS: dict[str, Callable] = {
    **neural.ACTIVATIONS,
    "leaky_relu": jax.nn.leaky_relu,
    "log_sigmoid": jax.nn.log_sigmoid,
    "mish": jax.nn.mish,
    "nn.tanh": jax.nn.tanh,
    "selu": jax.nn.selu,
    "cos": jnp.cos,
    "equinox identity": inspect.signature(eqx.nn.MLP).parameters["final_activation"].default,
}
BLOCKS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (eqx.nn.MLP, eqx.nn.Linear, eqx.nn.GRUCell, eqx.nn.LSTMCell, eqx.nn.LayerNorm, eqx.nn.Identity)
}
LAYERS = {"Sequential": eqx.nn.Sequential, "Lambda": eqx.nn.Lambda}
NAMED = ("activation", "final_activation")  # arguments that are functions
MOST_NUMBERS = 100_000  # in the arguments of a network
USUAL_SIZE = 1024
MOST_COORDINATES = 2048  # of networks that know them: some have a matrix over them
MOST_NESTING = 20
Config = dict[str, Any]


class UnknownNetworkError(ValueError):
    """A network of a class that a file cannot describe."""


def config_of(network: Any) -> Config:
    """Family, class and arguments of a network."""
    if REGISTRY.get(type(network).__name__) is type(network):
        return {"family": "knuckle.neural", **neural.to_config(network)}
    config = _block_config(network)
    single = jax.tree.leaves(_weights(_block(config)))
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(_weights(network))]
    if shapes != [leaf.shape for leaf in single]:
        config["stacked"] = shapes[0][0] if shapes and shapes[0] else 0
    return {"family": "equinox", **config}


def _block_config(network: Any) -> Config:
    name = type(network).__name__
    if LAYERS.get(name) is type(network):
        if name == "Lambda":
            return {"class": name, "arguments": {"fn": _function_name(network.fn)}}
        return {"class": name, "arguments": {"layers": [_block_config(layer) for layer in network.layers]}}
    if BLOCKS.get(name) is not type(network) or getattr(network, "scan", False):
        raise UnknownNetworkError(f"{type(network).__module__}.{name}")
    values = {argument: getattr(network, argument) for argument in _arguments(name)}
    plain = {
        key: _function_name(v) if key in NAMED else list(v) if type(v) is tuple else v for key, v in values.items()
    }
    return {"class": name, "arguments": plain}


def _arguments(name: str) -> list[str]:
    """Of the constructor of a block of Equinox: what its fields keep."""
    fields = [f.name for f in dataclasses.fields(BLOCKS[name]) if f.metadata.get("static") or f.name in NAMED]
    return [field for field in fields if field != "scan"]


def _function_name(function: Any) -> str:
    for name, known in FUNCTIONS.items():
        if function is known:
            return name
    raise UnknownNetworkError(f"a network with the function {getattr(function, '__name__', function)!r}")


def _weights(network: Any) -> Any:
    return eqx.filter(network, lambda leaf: isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct))


def filled(config: Any, arrays: list[Any], place: str, members: Members) -> Any:
    """A network of the described structure with these arrays."""
    _check_effort(config, arrays, place, members)
    try:
        structure = _structure(json.dumps(config, sort_keys=True))
    except Exception as error:  # constructors of many classes, of arguments that may be anything
        members.fail(place, f"no network has this configuration: {error!s:.500}")
    return with_arrays(structure, arrays, place, members)


def with_arrays(structure: Any, arrays: list[Any], place: str, members: Members) -> Any:
    """The network with the arrays in place of its own, which must be of the same shapes."""
    own = _weights(structure)
    leaves, tree = jax.tree.flatten(own)
    expected, found = [np.shape(leaf) for leaf in leaves], [np.shape(array) for array in arrays]
    if expected != found:
        members.fail(place, f"expected arrays of shapes {expected!s:.300}, got {found!s:.300}")
    for leaf, array in zip(leaves, arrays, strict=True):
        if np.dtype(leaf.dtype).kind != array.dtype.kind:
            members.fail(place, f"expected numbers like {leaf.dtype}, got {array.dtype}")
    rest = eqx.filter(structure, lambda x: isinstance(x, jax.Array | np.ndarray | jax.ShapeDtypeStruct), inverse=True)
    return eqx.combine(tree.unflatten(arrays), rest)


@functools.lru_cache(maxsize=64)
def _structure(text: str) -> Any:
    """The network with shapes in place of arrays."""
    config = json.loads(text)
    family = config.pop("family")
    if family == "knuckle.neural":
        return neural.structure(config)
    if family != "equinox":
        raise ValueError(f"family must be 'knuckle.neural' or 'equinox', got {family!r}")
    count = config.pop("stacked", None)
    network = _block(config)
    if count is None:
        return network
    if type(count) is not int or count < 1:
        raise ValueError(f"'stacked' must be a positive number, got {count!r}")
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), _weights(network))
    return eqx.combine(stacked, eqx.filter(network, lambda x: isinstance(x, jax.ShapeDtypeStruct), inverse=True))


def _block(config: Config, depth: int = 0) -> Any:
    name, arguments = config["class"], config["arguments"]
    if depth > MOST_NESTING or set(config) != {"class", "arguments"}:
        raise ValueError("expected 'class' and 'arguments'")
    if name == "Lambda":
        return eqx.nn.Lambda(FUNCTIONS[arguments["fn"]])
    if name == "Sequential":
        return eqx.nn.Sequential([_block(layer, depth + 1) for layer in arguments["layers"]])
    if name not in BLOCKS or set(arguments) != set(_arguments(name)):
        raise ValueError(f"there are {', '.join((*BLOCKS, *LAYERS))}, each with all its arguments; got {name!r}")
    values = {key: FUNCTIONS[value] if key in NAMED else value for key, value in arguments.items()}
    build = BLOCKS[name]
    if "key" not in inspect.signature(build).parameters:
        return eqx.filter_eval_shape(lambda: build(**values))
    return eqx.filter_eval_shape(lambda key: build(**values, key=key), jax.random.key(0))


def _check_effort(config: Any, arrays: list[Any], place: str, members: Members) -> None:
    """Sizes that the arrays do not have would be computed in vain, however long that took: they are refused first."""
    if not isinstance(config, dict) or not isinstance(config.get("arguments"), dict):
        members.fail(place, f"expected family, class and arguments of a network, got {config!r:.200}")
    arguments, parts, numbers = config["arguments"], list(_parts(config)), list(_numbers(config))
    largest = max([USUAL_SIZE, *(size for array in arrays for size in np.shape(array))])
    excessive = [n for n in numbers if (abs(n) > largest if isinstance(n, int) else not math.isfinite(n))]
    if len(numbers) > MOST_NUMBERS or excessive:
        members.fail(place, f"expected sizes up to {largest}, as the arrays have them, got {arguments!r:.300}")
    layers = len(parts) + sum(_layers(part) for part in parts)
    if layers > 256 + 2 * len(arrays):
        members.fail(place, f"expected about as many layers as the {len(arrays)} arrays make, got {layers}")
    if any(number > MOST_COORDINATES for number in _numbers(arguments.get("coordinates"))):
        members.fail(f"{place}/coordinates", f"expected at most {MOST_COORDINATES}, got {arguments['coordinates']}")
    if config.get("class") == "Polynomial":
        _check_terms(arguments, arrays, place, members)


def _layers(part: Config) -> int:
    lists = [part.get(name) for name in ("sizes", "hidden")]
    depth = part.get("depth")
    return sum(len(x) for x in lists if isinstance(x, list)) + (depth if isinstance(depth, int) else 0)


def _check_terms(arguments: Config, arrays: list[Any], place: str, members: Members) -> None:
    inputs, degree = (arguments.get(name) for name in ("inputs", "degree"))
    if type(inputs) is not int or type(degree) is not int or inputs < 1 or degree < 1:
        members.fail(place, f"expected numbers of inputs and degree, got {arguments!r:.300}")
    terms = math.comb(inputs + degree, degree) if arguments.get("cross", True) else inputs * degree + 1
    if terms > 1 + sum(array.size for array in arrays):
        members.fail(place, f"expected as many coefficients as a polynomial of {inputs} inputs, degree {degree} has")


def _parts(data: Any) -> Iterator[Config]:
    """All objects in JSON data."""
    if isinstance(data, dict):
        yield data
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _parts(item)


def _numbers(data: Any) -> Iterator[float]:
    """All numbers in JSON data."""
    if isinstance(data, int | float) and not isinstance(data, bool):
        yield data
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _numbers(item)
