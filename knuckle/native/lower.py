"""Lowering: walk the equations of a flat program and build the intermediate form, one rule per primitive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.core import ShapedArray

from knuckle.native.algebra import Algebra
from knuckle.native.ir import Buffer, Contents, Program, code_of
from knuckle.native.parameters import Parameters, Rule, harmless_set, unhandled
from knuckle.native.trace import Equation, Flat, UnsupportedPrimitive, UnsupportedValue, Var, flatten, without_dead_code
from knuckle.native.values import SCALAR_LIMIT, Memory, Value, from_numpy, scalars, whole, write

INPUT_LIMIT = 256  # elements; larger inputs are read from memory where they are used
COVERED = "float32, float64, integers and booleans"
RULES: dict[str, Rule] = {}
OF_LEADING_AXES = {  # primitives that may take random keys as arrays with one more axis
    "concatenate", "cond", "copy", "optimization_barrier", "outlined_call", "rev", "scan", "select_n", "split",
    "squeeze", "stack", "unstack", "while",
}  # fmt: skip


def rule(*names: str, reads: Collection[str] = (), harmless: Collection[str] = ()):
    """Register the lowering rule of one or more primitives: rule(lowering, equation, *values) -> value(s).

    `reads` names the parameters of the primitives that the rule reads, `harmless` those that cannot change the result
    (reasons in `parameters.HARMLESS`). A primitive with any other parameter is refused.
    """

    def register(function):
        for name in names:
            RULES[name] = Rule(function, frozenset(reads), harmless_set(harmless))
        return function

    return register


def with_words(equation: Equation) -> Equation:
    """The equation with random keys as arrays of words: one more axis, which only random operations touch."""
    avals = [v.aval for v in [*equation.inputs, *equation.outputs] if is_key(v.aval)]
    if not avals or "random" in equation.primitive:
        return equation
    words, rank, params = avals[0].dtype._impl.key_shape, avals[0].ndim, dict(equation.params)
    one_for_each = tuple(range(len(words)))
    if equation.primitive == "slice":
        params["start_indices"] += (0,) * len(words)
        params["limit_indices"] += words
        params["strides"] = params["strides"] and params["strides"] + (1,) * len(words)
    elif equation.primitive == "reshape":
        params["new_sizes"] = (*params["new_sizes"], *words)
        params["dimensions"] = params["dimensions"] and (*params["dimensions"], *[rank + i for i in one_for_each])
    elif equation.primitive == "broadcast_in_dim":
        last = len(params["shape"])
        params["shape"] = (*params["shape"], *words)
        params["broadcast_dimensions"] += tuple(last + i for i in one_for_each)
    elif equation.primitive == "transpose":
        params["permutation"] += tuple(rank + i for i in one_for_each)
    elif equation.primitive == "dynamic_slice":
        params["slice_sizes"] = (*params["slice_sizes"], *words)
    elif equation.primitive == "gather":
        numbers, last = params["dimension_numbers"], equation.outputs[0].aval.ndim
        offsets = numbers.offset_dims + tuple(last + i for i in one_for_each)
        params["dimension_numbers"] = numbers._replace(offset_dims=offsets)
        params["slice_sizes"] = (*params["slice_sizes"], *words)
    elif equation.primitive not in OF_LEADING_AXES:
        raise UnsupportedValue("on random keys")
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
        self.around: list[Equation] = []  # being lowered, each inside the one before
        self.origin: Equation | None = None  # of the user's, which is being lowered as a derivation
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
            return env[atom] if isinstance(atom, Var) else from_numpy(self, atom.array())

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
        self.around.append(equation)
        try:
            found = RULES.get(equation.primitive)
            if found is None:
                raise UnsupportedValue("which no rule covers")
            for variable in [*equation.inputs_vars(), *equation.outputs]:
                if not is_covered(variable.aval.dtype) and not is_key(variable.aval):
                    raise UnsupportedValue(f"on {variable.aval.dtype}: native code has {COVERED}")
            for name in unhandled(equation.params, found):
                raise UnsupportedValue(f"with the parameter {name}={equation.params[name]!r:.80}, which no rule reads")
            equation = with_words(equation)
            results = found.function(self, replace(equation, params=Parameters(equation.params, found)), *values)
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            check_results(equation, results)
        except UnsupportedValue as error:
            users = self.origin or equation
            where = next(filter(None, [users.where, *[e.where for e in reversed(self.around)]]), "an unknown line")
            raise UnsupportedPrimitive(
                f"native code does not cover the primitive '{users.primitive}' {error}, used at {where}; "
                "jax.jit will do: compile that function with jax.jit instead of native.jit"
            ) from None
        self.around.pop()
        return results

    def may_overwrite(self, value: Value) -> bool:
        """Whether nobody reads this array after the equation being lowered."""
        if not isinstance(value, Memory) or id(value) not in self._dying:
            return False
        buffer = value.contents.buffer
        if buffer not in self._owned[-1]:
            return False
        others = self._live[-1].values()
        return not any(isinstance(v, Memory) and v.contents.buffer is buffer for v in others)


def check_results(equation: Equation, results: Sequence[Value]) -> None:
    """Shapes and dtypes must be those that JAX has for the equation: a rule that ignored one must not pass."""
    avals = [word_aval(v.aval) for v in equation.outputs]
    expected = [(tuple(a.shape), code_of(a.dtype)) for a in avals]
    found = [(tuple(v.shape), v.dtype) for v in results]
    if found != expected:
        raise UnsupportedValue(f"with a result {expected}, for which its rule made {found}")


def add_rules() -> None:
    from knuckle.native import (  # noqa: F401
        lower_call,
        lower_control,
        lower_index,
        lower_lanes,
        lower_linalg,
        lower_random,
        lower_reduce,
        lower_shape,
        lower_sort,
        lower_special,
        lower_svd,
        lower_window,
    )


def lower(closed) -> tuple[Program, Lowering]:
    """The program of a closed jaxpr: inputs and outputs are one buffer per variable, row-major."""
    add_rules()
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
    aval = atom.aval
    buffer = Buffer("output", code_of(aval.dtype), aval.size, number)
    b.outputs.append(buffer)
    return Contents(buffer, b.root)
