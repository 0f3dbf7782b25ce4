"""Blueprints as data: the networks at each tap, what they read, and their scales."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np

from knuckle.hybrid.arrays import Arrays, array_entry, array_of, is_array_entry
from knuckle.hybrid.container import Members
from knuckle.hybrid.fields import decoded, encoded
from knuckle.hybrid.networks import UnknownNetworkError, config_of, filled, with_arrays
from knuckle.taps import Augment, Blueprint, meaning_of, previous, quantity
from knuckle.taps.augment import CONSTANT, PREVIOUS

SCALES = ("gain", "input_offset", "input_scale", "output_scale", "bound")
DIVIDED = ("input_scale", "bound")
SETTINGS = {"inputs": tuple[str, ...], "mode": str, "share": str, "rows": tuple[int, ...] | None}
ENTRIES = {*SETTINGS, *SCALES, "constants", "network", "weights"}


def encoded_blueprint(blueprint: Blueprint, arrays: Arrays, weights_only: bool) -> dict[str, Any]:
    nodes: dict[str, list] = {}
    for name, place, augment in blueprint:
        nodes.setdefault(name, []).append(_encoded(augment, f"blueprint/{name}/{place}", arrays, weights_only))
    return nodes


def _encoded(augment: Augment, place: str, arrays: Arrays, weights_only: bool) -> dict[str, Any]:
    node = {name: encoded(getattr(augment, name), f"{place}/{name}", arrays, static=True) for name in SETTINGS}
    for name in ("constants", *SCALES):
        node[name] = encoded(getattr(augment, name), f"{place}/{name}", arrays)
    node["network"] = None if weights_only else _described(augment, place)
    leaves = jax.tree.leaves(augment.weights)
    node["weights"] = [array_entry(leaf, f"{place}/weights/{i}", arrays) for i, leaf in enumerate(leaves)]
    return node


def _described(augment: Augment, place: str) -> dict[str, Any]:
    try:
        return config_of(augment.network)
    except UnknownNetworkError as error:
        raise ValueError(
            f"{place}: a file holds no code, so it cannot describe {error}. Use networks of kn.neural or equinox.nn, "
            "mark your own class with kn.neural.register, or save with weights_only=True and load with "
            "load_hybrid(path, like=blueprint)"
        ) from error


def decoded_blueprint(node: Any, like: Blueprint | None, members: Members) -> Blueprint:
    if not isinstance(node, dict) or not all(isinstance(part, list) for part in node.values()):
        members.fail("blueprint", f"expected a list of networks for each tap, got {node!r:.200}")
    if like is not None and {name: len(part) for name, part in node.items()} != {
        name: len(part) for name, part in like.augments.items()
    }:
        members.fail("blueprint", f"it has networks at {', '.join(node)}, like=... at {', '.join(like.augments)}")
    parts = {}
    for name, part in node.items():
        meaning = quantity(name)
        if meaning is None or meaning.read_only:
            members.fail(f"blueprint/{name!r:.50}", "there is no such tap that can be changed")
        patterns = (None,) * len(part) if like is None else like.augments[name]
        parts[name] = tuple(
            _decoded(item, pattern, f"blueprint/{name}/{number}", members)
            for number, (item, pattern) in enumerate(zip(part, patterns, strict=True))
        )
    return Blueprint(parts)


def _decoded(node: Any, like: Augment | None, place: str, members: Members) -> Augment:
    if not isinstance(node, dict) or set(node) != ENTRIES:
        members.fail(place, f"expected {', '.join(sorted(ENTRIES))}, got {node!r:.200}")
    settings = {name: decoded(kind, node[name], f"{place}/{name}", members) for name, kind in SETTINGS.items()}
    if like is not None:
        for name, value in settings.items():
            if value != getattr(like, name):
                members.fail(f"{place}/{name}", f"it was {value!r}, like=... has {getattr(like, name)!r}")
    constants = _arrays(node["constants"], f"{place}/constants", members)
    weights = _arrays(node["weights"], f"{place}/weights", members)
    network = _network(node["network"], like, weights, place, members)
    augment = _bare(settings, network, constants, place, members)
    scales = [_scale(node[name], f"{place}/{name}", members, name in DIVIDED) for name in SCALES]
    if scales[0] is not None and np.shape(scales[0]):
        members.fail(f"{place}/gain", f"expected one number, got shape {np.shape(scales[0])}")
    return eqx.tree_at(
        lambda a: (a.constants, *(getattr(a, name) for name in SCALES)),
        augment,
        (tuple(constants), *scales),
        is_leaf=lambda x: x is None,
    )


def _network(config: Any, like: Augment | None, weights: list[Any], place: str, members: Members) -> Any:
    if like is not None:
        return with_arrays(like.network, weights, f"{place}/weights", members)
    if config is None:
        members.fail(f"{place}/network", "the file has its weights only: load_hybrid(path, like=blueprint)")
    return filled(config, weights, f"{place}/network", members)


def _bare(settings: dict[str, Any], network: Any, constants: list[Any], place: str, members: Members) -> Augment:
    """The augmentation before its scales."""
    numbers = iter(constants)
    try:
        for name in settings["inputs"]:
            if name.startswith(PREVIOUS):
                previous(name.removeprefix(PREVIOUS))
        inputs = [next(numbers, 0.0) if name.startswith(CONSTANT) else name for name in settings["inputs"]]
        options = {name: settings[name] for name in ("mode", "share", "rows")}
        augment = Augment(network, inputs, zero_start=False, **options)
    except ValueError as error:
        members.fail(place, str(error))
    if augment.inputs != settings["inputs"] or len(augment.constants) != len(constants):
        members.fail(f"{place}/inputs", f"expected numbered constants, one each, got {settings['inputs']}")
    return augment


def _arrays(nodes: Any, place: str, members: Members) -> list[Any]:
    if not isinstance(nodes, list) or not all(map(is_array_entry, nodes)):
        members.fail(place, f"expected a list of arrays, got {nodes!r:.200}")
    return [array_of(node, f"{place}/{number}", members) for number, node in enumerate(nodes)]


def _scale(node: Any, place: str, members: Members, divided: bool) -> Any:
    if node is None:
        return None
    if not is_array_entry(node):
        members.fail(place, f"expected an array, got {node!r:.200}")
    array = array_of(node, place, members)
    if divided and not np.all(np.asarray(array)):
        members.fail(place, "must not be zero: values are divided by it")
    return array


def check_rows(blueprint: Blueprint, sizes: dict[str, int]) -> None:
    """Rows must be among those of their quantity; of contacts that shows in a step."""
    for name, place, augment in blueprint:
        count = sizes.get(meaning_of(name).axis or "")
        for row in augment.rows or ():
            if row < 0 or (count is not None and row >= count):
                raise ValueError(f"blueprint/{name}/{place}/rows: expected rows of the quantity's {count}, got {row}")
