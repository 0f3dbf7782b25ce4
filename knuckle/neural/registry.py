"""Networks as plain data: what a file needs to build one again, without code."""

from __future__ import annotations

import dataclasses
import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class Network(eqx.Module):
    """A network whose static fields are the arguments that build it; all of its arrays are trained."""

    @abstractmethod
    def __call__(self, x, *state) -> Any:
        """From a vector to a vector; a recurrent one from a vector and a state to both."""

    def config(self) -> dict[str, Any]:
        """The arguments that build a network of this structure, as JSON has them."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.metadata.get("static")}

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return sum(int(jnp.size(leaf)) for leaf in jax.tree.leaves(self))


REGISTRY: dict[str, type[Network]] = {}
Class = TypeVar("Class", bound=type[Network])


def register(network: Class) -> Class:
    """Class decorator: networks of this class can be written to a file and read."""
    if REGISTRY.get(network.__name__, network) is not network:
        raise ValueError(f"there is already a network class {network.__name__}")
    REGISTRY[network.__name__] = network
    return network


def to_config(network: Network) -> dict[str, Any]:
    """The class and the arguments of a network as JSON data, and how many are stacked in it (`each`)."""
    name = type(network).__name__
    if REGISTRY.get(name) is not type(network):
        raise ValueError(f"a file can hold networks of {', '.join(sorted(REGISTRY))}; got {name} (see `register`)")
    config = {"class": name, "arguments": network.config()}
    count = _stacked(network, structure(config))
    return config if count is None else {**config, "stacked": count}


def from_config(config: Mapping[str, Any]) -> Any:
    """A network of the structure that `to_config` described, with all weights zero: they are filled in separately."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), structure(config))


def structure(config: Mapping[str, Any]) -> Any:
    """As `from_config`, with shapes in place of arrays: it takes no memory, whatever the sizes."""
    name, arguments, count = _checked(config)
    build: Any = REGISTRY[name]
    try:
        network = eqx.filter_eval_shape(lambda key: build(**arguments, key=key), jax.random.key(0))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"network {name} of arguments {arguments}: {error}") from error
    if count is None:
        return network
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), network)


def _checked(config: Mapping[str, Any]) -> tuple[str, dict[str, Any], int | None]:
    if not isinstance(config, Mapping) or not {"class", "arguments"} <= set(config) <= {
        "class",
        "arguments",
        "stacked",
    }:
        raise ValueError(f"a network's configuration has 'class', 'arguments' and maybe 'stacked', got {config!r}")
    name, arguments, count = config["class"], config["arguments"], config.get("stacked")
    if not isinstance(name, str) or name not in REGISTRY:
        raise ValueError(f"there is no network class {name!r}; there are {', '.join(sorted(REGISTRY))}")
    known = [p for p in inspect.signature(REGISTRY[name]).parameters if p != "key"]
    if not isinstance(arguments, Mapping) or not set(arguments) <= set(known):
        raise ValueError(f"network {name}: arguments must be among {', '.join(known)}, got {arguments!r}")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"network {name}: 'stacked' must be a positive number, got {count!r}")
    return name, dict(arguments), count


def _stacked(network: Network, single: Any) -> int | None:
    """How many networks are stacked along the first axis; None: it is one."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(network)]
    expected = [leaf.shape for leaf in jax.tree.leaves(single)]
    if shapes == expected:
        return None
    counts = {shape[0] for shape in shapes if shape}
    if len(counts) == 1 and shapes == [(*counts, *shape) for shape in expected]:
        return counts.pop()
    raise ValueError(f"{type(network).__name__}: expected arrays of shapes {expected}, stacked or not, got {shapes}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def as_type_of(x: Array | np.ndarray, arrays: Any) -> Any:
    """Weights in the floating type of the input: networks made in single precision work in a double one too."""
    return jax.tree.map(lambda leaf: leaf.astype(x.dtype), arrays)
