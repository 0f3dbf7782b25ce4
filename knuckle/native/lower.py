"""Lowering: walk the equations of a flat program and build the intermediate form, one rule per primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.core import ShapedArray

from knuckle.native.algebra import Algebra
from knuckle.native.ir import Buffer, Contents, Program, code_of
from knuckle.native.trace import Constant, Equation, Flat, UnsupportedPrimitive, Var, flatten, without_dead_code
from knuckle.native.values import SCALAR_LIMIT, Memory, Value, from_numpy, scalars, whole, write

INPUT_LIMIT = 256  # elements; larger inputs are read from memory where they are used
COVERED = "float32, float64, integers and booleans"
RULES: dict[str, Callable] = {}


def rule(*names: str):
    """Register the lowering rule of one or more primitives: rule(lowering, equation, *values) -> value(s)."""

    def register(function):
        for name in names:
            RULES[name] = function
        return function

    return register


def with_words(equation: Equation) -> Equation:
    """The equation with random keys as arrays of words: one more axis, which only random operations touch."""
    if not any(is_key(v.aval) for v in [*equation.inputs_vars(), *equation.outputs]) or "random" in equation.primitive:
        return equation
    params = dict(equation.params)
    aval = next(v.aval for v in [*equation.inputs_vars(), *equation.outputs] if is_key(v.aval))
    words, rank = aval.dtype._impl.key_shape, aval.ndim
    if equation.primitive == "slice":
        params["start_indices"] += (0,) * len(words)
        params["limit_indices"] += words
        params["strides"] = params["strides"] and params["strides"] + (1,) * len(words)
    elif equation.primitive in ("reshape", "broadcast_in_dim"):
        name = "new_sizes" if equation.primitive == "reshape" else "shape"
        params[name] = tuple(params[name]) + words
        if name == "shape":
            last = len(equation.params["shape"])
            params["broadcast_dimensions"] += tuple(range(last, last + len(words)))
    elif equation.primitive == "dynamic_slice":
        raise UnsupportedPrimitive(f"native code does not cover indexing keys at run time, at {equation.where}")
    elif equation.primitive == "transpose":
        params["permutation"] += tuple(range(rank, rank + len(words)))
    outputs = [Var(word_aval(v.aval)) for v in equation.outputs]
    return replace(equation, params=params, outputs=outputs)


def is_covered(dtype) -> bool:
    return isinstance(dtype, np.dtype) and (dtype.kind in "iub" or (dtype.kind == "f" and dtype.itemsize in (4, 8)))


def is_key(aval) -> bool:
    return hasattr(aval.dtype, "_impl")


def word_aval(aval):
    if not is_key(aval):
        return aval
    return ShapedArray((*aval.shape, *aval.dtype._impl.key_shape), np.uint32)


class Lowering(Algebra):
    """The builder together with what rules need to know about the equation they lower."""

    def __init__(self):
        super().__init__()
        self.destinations: dict[Var, Contents] = {}  # outputs that may be written in place of a temporary
        self.equations = 0
        self.lanes_depth = 0  # loops over lanes around what is being lowered
        self.outlined: dict[tuple, Any] = {}  # functions made so far, by what they were made for
        self._owned: list[set[Buffer]] = [set()]
        self._live: list[dict[Var, Value]] = []
        self._dying: set[int] = set()

    def allocate(self, dtype: str, size: int) -> Contents:
        contents = super().allocate(dtype, size)
        self._owned[-1].add(contents.buffer)
        return contents

    def run(self, flat: Flat, arguments: Sequence[Value], owned: Sequence[Buffer] = ()) -> list[Value]:
        """Lower a flat program; buffers in `owned` may be overwritten by it once they are read no more."""
        env: dict[Var, Value] = dict(zip(flat.inputs, arguments, strict=True))
        last = flat.last_uses()
        self._owned.append(set(owned))
        self._live.append(env)

        def read(atom) -> Value:
            return env[atom] if isinstance(atom, Var) else from_numpy(self, atom.value)

        for number, equation in enumerate(flat.equations):
            values = [read(atom) for atom in equation.inputs]
            ends = [v for v in set(equation.inputs_vars()) if last.get(v) == number]
            dying = [env.pop(v) for v in ends]
            self._dying = {id(v) for v in dying}
            env.update(zip(equation.outputs, self.apply(equation, values), strict=True))
            self.equations += 1
        results = [read(atom) for atom in flat.outputs]
        self._live.pop()
        self._owned.pop()
        return results

    def apply(self, equation: Equation, values: Sequence[Value]) -> list[Value]:
        found = RULES.get(equation.primitive)
        if found is None:
            raise UnsupportedPrimitive(
                f"native code does not cover the primitive '{equation.primitive}', used at {equation.where}; "
                "jax.jit will do: compile that function with jax.jit instead of native.jit"
            )
        for variable in equation.outputs:
            if not is_covered(variable.aval.dtype) and not is_key(variable.aval):
                raise UnsupportedPrimitive(
                    f"native code has {COVERED}, but '{equation.primitive}' at {equation.where} gives "
                    f"{variable.aval.dtype}; jax.jit will do"
                )
        results = found(self, with_words(equation), *values)
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def may_overwrite(self, value: Value) -> bool:
        """Whether nobody reads this array after the equation being lowered."""
        if not isinstance(value, Memory) or id(value) not in self._dying:
            return False
        buffer = value.contents.buffer
        if buffer not in self._owned[-1]:
            return False
        others = self._live[-1].values()
        return not any(isinstance(v, Memory) and v.contents.buffer is buffer for v in others)


def _add_rules() -> None:
    from knuckle.native import (  # noqa: F401
        lower_call,
        lower_control,
        lower_derived,
        lower_index,
        lower_lanes,
        lower_linalg,
        lower_random,
        lower_reduce,
        lower_shape,
    )


def lower(closed) -> tuple[Program, Lowering]:
    """The program of a closed jaxpr: inputs and outputs are one buffer per variable, row-major."""
    _add_rules()
    flat = flatten(without_dead_code(closed))
    b = Lowering()
    arguments: list[Value] = []
    for number, var in enumerate(flat.inputs):
        buffer = Buffer("input", code_of(var.aval.dtype), var.aval.size, number)
        b.inputs.append(buffer)
        value = whole(b, Contents(buffer, b.root), var.aval.shape)
        arguments.append(scalars(b, value) if var.aval.size <= min(INPUT_LIMIT, SCALAR_LIMIT) else value)
    outputs = [_output_buffer(b, number, atom) for number, atom in enumerate(flat.outputs)]
    for atom, contents in zip(flat.outputs, outputs, strict=True):
        if isinstance(atom, Var) and atom not in flat.inputs:
            b.destinations.setdefault(atom, contents)
    results = b.run(flat, arguments)
    for value, contents in zip(results, outputs, strict=True):
        if not (isinstance(value, Memory) and value.contents.buffer is contents.buffer):
            write(b, contents, b.index(0), value)
    return b.finish(), b


def _output_buffer(b: Lowering, number: int, atom) -> Contents:
    aval = atom.aval if isinstance(atom, Var) else _constant_aval(atom)
    buffer = Buffer("output", code_of(aval.dtype), aval.size, number)
    b.outputs.append(buffer)
    return Contents(buffer, b.root)


def _constant_aval(constant: Constant):
    return np.asarray(constant.value)
