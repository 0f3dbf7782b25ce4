"""Calls of functions that are compiled once: arguments and results pass through buffers that belong to the function.

Elements of an argument that are known when the program is compiled are not passed: the function is made for them, so
that structural zeros vanish in it as they do in opened code. So is it for which elements are one and the same value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from knuckle.native.ir import Buffer, Call, Contents, Function, Node
from knuckle.native.lower import Lowering, rule
from knuckle.native.trace import flatten
from knuckle.native.values import SCALAR_LIMIT, Memory, Scalars, Value, map_nodes, whole, write

Places = dict[str, dict[Node, int]]  # for each dtype the distinct values and their places in a buffer


@dataclass(eq=False)
class Outlined:
    """A function as it was built."""

    function: Function
    parameters: dict[str, Contents]  # for scalars, by dtype
    arrays: list[Contents | None]  # one for each argument, None where it is not an array that is copied
    results: list[Value]
    returned: dict[str, Contents]
    places: Places  # of the scalars of the results
    held: Any  # the jaxpr, since its identity is part of the key


@rule("outlined_call", reads=("jaxpr",))
def _outlined_call(b: Lowering, equation, *values: Value):
    closed = equation.params["jaxpr"]
    if b.lanes_depth or sum(math.prod(v.shape) for v in values if _is_copied(v)) > SCALAR_LIMIT:
        return b.run(flatten(closed), values)
    places = _places(values)
    key = (id(closed.jaxpr), *map(id, closed.consts), *[_pattern(v, places) for v in values])
    made = b.outlined.get(key)
    if made is None:
        made = b.outlined[key] = _build(b, closed, values, places)
    _put(b, made.parameters, places)
    for value, contents in zip(values, made.arrays, strict=True):
        if contents is not None:
            write(b, b.rewritten(contents), b.index(0), value)
    b.region.statements.append(Call(made.function))
    scalars = _got(b, made.returned, made.places)
    return [_copied(b, v) if isinstance(v, Memory) else _replaced(v, scalars) for v in made.results]


def _is_copied(value: Value) -> bool:
    return isinstance(value, Memory) and not _is_fixed(value)


def _is_fixed(value: Memory) -> bool:
    """Whether a view is of an input or a table at a known place: a function may read it where it is."""
    return value.contents.buffer.kind in ("input", "constant") and value.offset.op == "const"


def _places(values: Sequence[Value]) -> Places:
    """The distinct values of some arrays that are not known yet."""
    places: Places = {}
    for value in values:
        if isinstance(value, Scalars):
            for node in value.data.reshape(-1):
                if node.op != "const":
                    of_dtype = places.setdefault(node.dtype, {})
                    of_dtype.setdefault(node, len(of_dtype))
    return places


def _pattern(value: Value, places: Places) -> tuple:
    """What of an argument a function is made for: its form, its known elements, and which others are equal."""
    if isinstance(value, Scalars):
        elements = [n.number if n.op == "const" else -1 - places[n.dtype][n] for n in value.data.reshape(-1)]
        return (value.shape, value.dtype, *elements)
    place = (id(value.contents.buffer), int(value.offset.attr), value.strides) if _is_fixed(value) else ()
    return ("array", value.shape, value.dtype, value.dense, *place)


def _build(b: Lowering, closed: Any, values: Sequence[Value], places: Places) -> Outlined:
    outside = b.begin_function()
    parameters = _buffers(b, places)
    scalars = _got(b, parameters, places)
    arrays = [_buffer(b, v.dtype, math.prod(v.shape)) if _is_copied(v) else None for v in values]
    inner = [_seen(b, v, contents, scalars) for v, contents in zip(values, arrays, strict=True)]
    results = [v if isinstance(v, Scalars) or _is_fixed(v) else _copied(b, v) for v in b.run(flatten(closed), inner)]
    places = _places(results)
    returned = _buffers(b, places)
    _put(b, returned, places)
    return Outlined(b.end_function(outside), parameters, arrays, results, returned, places, closed)


def _seen(b: Lowering, value: Value, contents: Contents | None, scalars: dict[Node, Node]) -> Value:
    """An argument as the function sees it."""
    if isinstance(value, Scalars):
        return _replaced(value, scalars)
    return value if contents is None else whole(b, contents, value.shape, value.dense)


def _buffer(b: Lowering, dtype: str, size: int) -> Contents:
    """A buffer that nobody may take over: it belongs to a function."""
    buffer = Buffer("workspace", dtype, size)
    b.workspace.append(buffer)
    return Contents(buffer, b.region)


def _buffers(b: Lowering, places: Places) -> dict[str, Contents]:
    return {dtype: _buffer(b, dtype, len(nodes)) for dtype, nodes in places.items()}


def _put(b: Lowering, buffers: dict[str, Contents], places: Places) -> None:
    for dtype, nodes in places.items():
        contents = b.rewritten(buffers[dtype])
        for node, place in nodes.items():
            b.store(contents, b.index(place), node)


def _got(b: Lowering, buffers: dict[str, Contents], places: Places) -> dict[Node, Node]:
    """What stands for each value on this side of the call."""
    found: dict[Node, Node] = {}
    for dtype, nodes in places.items():
        contents = b.rewritten(buffers[dtype])
        found.update({node: b.load(contents, b.index(place)) for node, place in nodes.items()})
    return found


def _replaced(value: Scalars, scalars: dict[Node, Node]) -> Scalars:
    def other(node: Node) -> Node:
        return scalars.get(node, node)

    return Scalars(map_nodes(other, value.data), value.dtype)


def _copied(b: Lowering, value: Memory) -> Memory:
    if _is_fixed(value):
        return value
    contents = b.allocate(value.dtype, math.prod(value.shape))
    write(b, b.rewritten(contents), b.index(0), value)
    return whole(b, b.rewritten(contents), value.shape, dense=True)
