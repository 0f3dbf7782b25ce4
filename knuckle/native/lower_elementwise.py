"""Rules for operations element by element: arithmetic, comparison, mathematics, conversion."""

from __future__ import annotations

import numpy as np

from knuckle.native.ir import BOOL, Node, code_of
from knuckle.native.lower import Lowering, rule
from knuckle.native.values import Value, elementwise

BINARY = {
    "add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "rem": "rem", "max": "max", "min": "min",
    "and": "and", "or": "or", "xor": "xor", "atan2": "atan2", "pow": "pow", "nextafter": "nextafter",
    "shift_left": "shl", "shift_right_logical": "shr_logical", "shift_right_arithmetic": "shr_arithmetic",
}  # fmt: skip
COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
UNARY = {name: name for name in (
    "neg", "abs", "sqrt", "floor", "ceil", "sin", "cos", "tan", "exp", "exp2", "expm1", "log", "log1p", "tanh", "sinh",
    "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "logistic", "not", "clz",
)}  # fmt: skip
UNARY["population_count"] = "popcount"
SAME = (
    "copy", "copy_p", "stop_gradient", "name", "device_put", "sharding_constraint", "optimization_barrier", "pvary",
    "reshard", "mesh_cast",
)  # fmt: skip


def result(equation):
    """Shape and dtype code of the (first) result."""
    aval = equation.outputs[0].aval
    return aval.shape, code_of(aval.dtype)


@rule(*BINARY)
def _binary(b: Lowering, equation, x: Value, y: Value):
    op = BINARY[equation.primitive]
    if op == "pow" and x.dtype != y.dtype:
        y_dtype = x.dtype
        return elementwise(b, lambda p, q: b.binary("pow", p, b.convert(q, y_dtype)), (x, y), *result(equation))
    return elementwise(b, lambda p, q: b.binary(op, p, q), (x, y), *result(equation))


@rule(*COMPARE)
def _compare(b: Lowering, equation, x: Value, y: Value):
    op = COMPARE[equation.primitive]
    return elementwise(b, lambda p, q: b.binary(op, p, q), (x, y), *result(equation))


@rule(*UNARY)
def _unary(b: Lowering, equation, x: Value):
    op = UNARY[equation.primitive]
    return elementwise(b, lambda p: b.unary(op, p), (x,), *result(equation))


@rule(*SAME)
def _same(b: Lowering, equation, *values: Value):
    return list(values)


@rule("square")
def _square(b: Lowering, equation, x: Value):
    return elementwise(b, lambda p: b.mul_(p, p), (x,), *result(equation))


@rule("rsqrt")
def _rsqrt(b: Lowering, equation, x: Value):
    one = b.constant(1, x.dtype)
    return elementwise(b, lambda p: b.div_(one, b.unary("sqrt", p)), (x,), *result(equation))


def integer_power(b: Lowering, x: Node, exponent: int) -> Node:
    """x to an integer, by squaring."""
    if exponent < 0:
        return b.div_(b.constant(1, x.dtype), integer_power(b, x, -exponent))
    power, product = x, b.constant(1, x.dtype)
    while exponent:
        if exponent & 1:
            product = b.mul_(product, power)
        exponent >>= 1
        if exponent:
            power = b.mul_(power, power)
    return product


@rule("integer_pow")
def _integer_pow(b: Lowering, equation, x: Value):
    exponent = equation.params["y"]
    return elementwise(b, lambda p: integer_power(b, p, exponent), (x,), *result(equation))


@rule("sign")
def _sign(b: Lowering, equation, x: Value):
    zero, one = b.constant(0, x.dtype), b.constant(1, x.dtype)

    def sign(p: Node) -> Node:
        below = b.select(b.binary("lt", p, zero), b.neg(one), p) if x.dtype[0] != "u" else p
        return b.select(b.binary("gt", p, zero), one, below)

    return elementwise(b, sign, (x,), *result(equation))


@rule("round")
def _round(b: Lowering, equation, x: Value):
    op = "round_even" if int(equation.params["rounding_method"]) == 1 else "round_away"
    return elementwise(b, lambda p: b.unary(op, p), (x,), *result(equation))


@rule("is_finite")
def _is_finite(b: Lowering, equation, x: Value):
    largest = b.constant(np.finfo(x.dtype).max, x.dtype)
    return elementwise(b, lambda p: b.binary("le", b.unary("abs", p), largest), (x,), *result(equation))


@rule("clamp")
def _clamp(b: Lowering, equation, low: Value, x: Value, high: Value):
    return elementwise(b, lambda p, q, r: b.min_(b.max_(q, p), r), (low, x, high), *result(equation))


@rule("select_n")
def _select_n(b: Lowering, equation, which: Value, *cases: Value):
    shape, dtype = result(equation)
    if len(cases) == 1:
        return cases[0]

    def choose(index: Node, *options: Node) -> Node:
        if index.dtype == BOOL:
            return b.select(index, options[1], options[0])
        chosen = options[-1]
        for number in reversed(range(len(options) - 1)):
            chosen = b.select(b.binary("le", index, b.constant(number, index.dtype)), options[number], chosen)
        return chosen

    return elementwise(b, choose, (which, *cases), shape, dtype)


@rule("convert_element_type")
def _convert(b: Lowering, equation, x: Value):
    shape, dtype = result(equation)
    return elementwise(b, lambda p: b.convert(p, dtype), (x,), shape, dtype) if dtype != x.dtype else x


@rule("bitcast_convert_type")
def _bitcast(b: Lowering, equation, x: Value):
    shape, dtype = result(equation)
    if np.dtype(dtype).itemsize != np.dtype(x.dtype).itemsize:
        raise NotImplementedError(
            f"native code: bitcast_convert_type from {x.dtype} to {dtype} at {equation.where}; jax.jit will do"
        )
    return elementwise(b, lambda p: b.bitcast(p, dtype), (x,), shape, dtype)


@rule("reduce_precision")
def _reduce_precision(b: Lowering, equation, x: Value):
    exact = {"f8": (11, 52), "f4": (8, 23)}[x.dtype]
    wanted = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    if wanted == exact:
        return x
    if x.dtype == "f8" and wanted == (8, 23):
        return elementwise(b, lambda p: b.convert(b.convert(p, "f4"), "f8"), (x,), *result(equation))
    raise NotImplementedError(f"native code: reduce_precision to {wanted} bits at {equation.where}; jax.jit will do")
