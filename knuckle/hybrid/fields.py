"""Objects of known classes as JSON and arrays, led by the types of their fields: nothing is looked up by name."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, Literal, Union

import numpy as np

from knuckle.hybrid.arrays import Arrays, array_entry, array_of, is_array, is_array_entry
from knuckle.hybrid.container import Members
from knuckle.model.geometry import ContactPairs, Geometry, Mesh
from knuckle.model.model import Actuators, Equalities, Frames, Inertia, Model
from knuckle.model.topology import Topology

PARTS = (Model, Inertia, Frames, Actuators, Equalities, Geometry, ContactPairs, Topology, Mesh)
LARGEST = 2**32  # of whole numbers
UNLIMITED = (
    {f"model/{name}" for name in ("lower", "upper", "effort", "speed")}
    | {f"model/actuators/{kind}_{end}" for kind in ("control", "force") for end in ("lower", "upper")}
)  # fmt: skip


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """The type of each field."""
    found = typing.get_type_hints(kind)
    return {field.name: found[field.name] for field in dataclasses.fields(kind)}


def encoded(value: Any, place: str, arrays: Arrays, static: bool = False) -> Any:
    """JSON data of a value; arrays go to `arrays` by their place, unless they are numbers of a static field."""
    if static and isinstance(value, np.generic):
        value = value.item()
    if is_array(value):
        return array_entry(value, place, arrays)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place}: expected a finite number, got {value}")
        return value
    if isinstance(value, tuple | list):
        return [encoded(item, f"{place}/{number}", arrays, static) for number, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return encoded_fields(value, place, arrays)
    raise ValueError(f"{place}: a file cannot hold a {type(value).__name__}")


def encoded_fields(value: Any, place: str, arrays: Arrays) -> dict[str, Any]:
    def entry(field):
        return encoded(getattr(value, field.name), f"{place}/{field.name}", arrays, field.metadata.get("static", False))

    return {field.name: entry(field) for field in dataclasses.fields(value)}


def decoded(kind: Any, node: Any, place: str, members: Members) -> Any:
    """The value of a type that JSON data stand for."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return node if node in options else members.fail(place, f"expected one of {options}, got {node!r:.200}")
    if origin is tuple:
        return _tuple(options, node, place, members)
    if origin in (Union, types.UnionType):
        return _one_of(options, node, place, members)
    if kind in PARTS:
        return decoded_fields(kind, node, place, members)
    if kind is np.ndarray or hasattr(kind, "dim_str"):
        return _array(node, place, members)
    return _plain(kind, node, place, members)


def decoded_fields(kind: type, node: Any, place: str, members: Members, floats_or_arrays: bool = False) -> Any:
    """An object of a class, of as many entries as it has fields; those with a default may be left out."""
    values = field_values(kind, node, place, members, floats_or_arrays)
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        members.fail(place, str(error))


def field_values(kind: type, node: Any, place: str, members: Members, floats_or_arrays: bool) -> dict[str, Any]:
    """The fields of a class by name."""
    if not isinstance(node, dict):
        members.fail(place, f"expected the fields of {kind.__name__}, got {node!r:.200}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = [name for name in node if name not in fields]
    needed = [name for name, f in fields.items() if name not in node and not _has_default(f)]
    if unknown or needed:
        members.fail(place, f"{kind.__name__}: unknown fields {unknown!r:.200}, missing fields {needed}")

    def value(name):
        where, static = f"{place}/{name}", fields[name].metadata.get("static", False)
        if floats_or_arrays and not static and is_array_entry(node[name]):
            return _array(node[name], where, members)
        return decoded(hints(kind)[name], node[name], where, members)

    return {name: value(name) for name in fields if name in node}


def _has_default(field: dataclasses.Field) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _tuple(options: tuple, node: Any, place: str, members: Members) -> tuple:
    if not isinstance(node, list):
        members.fail(place, f"expected a list, got {node!r:.200}")
    kinds = options[:1] * len(node) if options[-1] is Ellipsis else options
    if len(kinds) != len(node):
        members.fail(place, f"expected {len(kinds)} entries, got {len(node)}")
    return tuple(decoded(k, item, f"{place}/{i}", members) for i, (k, item) in enumerate(zip(kinds, node, strict=True)))


def _one_of(options: tuple, node: Any, place: str, members: Members) -> Any:
    if node is None and type(None) in options:
        return None
    arrays = [kind for kind in options if hasattr(kind, "dim_str")]
    others = [kind for kind in options if kind is not type(None) and kind not in arrays]
    if not others or (arrays and is_array_entry(node)):
        return _array(node, place, members)
    return decoded(others[0], node, place, members)


def _array(node: Any, place: str, members: Members) -> Any:
    if not is_array_entry(node):
        members.fail(place, f"expected an array, got {node!r:.200}")
    return array_of(node, place, members, infinite=place in UNLIMITED)


def _plain(kind: Any, node: Any, place: str, members: Members) -> Any:
    if kind is bool and isinstance(node, bool):
        return node
    if kind is int and type(node) is int and abs(node) < LARGEST:
        return node
    if kind is float and ((type(node) is float and math.isfinite(node)) or (type(node) is int and abs(node) < LARGEST)):
        return node
    if kind is str and isinstance(node, str) and is_text(node):
        return node
    members.fail(place, f"expected {getattr(kind, '__name__', kind)}, got {node!r:.200}")


def is_text(value: str) -> bool:
    """Whether it is made of characters, not of halves of them."""
    return not any("\ud800" <= character <= "\udfff" for character in value)
