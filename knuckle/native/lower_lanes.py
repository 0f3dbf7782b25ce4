"""The rule for `native_lanes`: one loop of independent turns, whose body is written over vectors of turns.

Elements of one place in all turns lie next to each other, so that vectors are read and written whole.
"""

from __future__ import annotations

import math

import numpy as np

from knuckle.native.ir import Contents, Node, code_of
from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_control import CARRY_LIMIT, row_of, stack_rows
from knuckle.native.trace import flatten, without_dead_code
from knuckle.native.values import Memory, Scalars, Value, for_loop, memory, row_major, write_strided

FEWEST = 4  # turns; fewer are written out


@rule("native_lanes", reads=("count", "jaxpr", "flags"))
def _lanes(b: Lowering, equation, *values: Value):
    p = equation.params
    count, flat = p["count"], flatten(without_dead_code(p["jaxpr"]))
    if count < FEWEST and count:
        turns = [b.run(flat, _arguments(b, values, p["flags"], b.index(k))) for k in range(count)]
        return [stack_rows(b, list(parts)) for parts in zip(*turns, strict=True)]
    laid_out = [_lanes_last(b, v) if flag else v for v, flag in zip(values, p["flags"], strict=True)]
    outputs = [v.aval for v in equation.outputs]
    stacks = [b.allocate(code_of(aval.dtype), max(aval.size, 1)) for aval in outputs]

    def turn(counter: Node, _):
        b.lanes_depth += 1
        results = b.run(flat, _arguments(b, laid_out, p["flags"], counter))
        b.lanes_depth -= 1
        for contents, value in zip(stacks, results, strict=True):
            write_strided(b, _place(b, contents, value.shape, counter, count), value)
        return []

    for_loop(b, count, [], turn, "lanes")
    return [_result(b, contents, aval) for contents, aval in zip(stacks, outputs, strict=True)]


def _arguments(b: Lowering, values, flags, place: Node) -> list[Value]:
    return [row_of(b, v, place) if flag else v for v, flag in zip(values, flags, strict=True)]


def _lanes_last(b: Lowering, value: Value) -> Value:
    """The array in memory; one that was not there is laid out with its first axis innermost."""
    if isinstance(value, Memory):
        return value
    turned = memory(b, Scalars(np.moveaxis(value.data, 0, -1), value.dtype))
    return Memory(turned.contents, turned.offset, value.shape, (turned.strides[-1], *turned.strides[:-1]))


def _place(b: Lowering, contents: Contents, shape: tuple[int, ...], counter: Node, count: int) -> Memory:
    return Memory(b.rewritten(contents), counter, shape, tuple(count * s for s in row_major(shape)))


def _result(b: Lowering, contents: Contents, aval) -> Memory:
    count, *shape = aval.shape
    strides = (1, *(count * s for s in row_major(shape)))
    return Memory(b.rewritten(contents), b.index(0), aval.shape, strides, dense=math.prod(aval.shape) > CARRY_LIMIT)
