"""Rules for operations element by element: arithmetic, comparison, mathematics, conversion."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from knuckle.native.ir import BOOL, Node, code_of, is_float
from knuckle.native.lower import Lowering, rule
from knuckle.native.trace import UnsupportedValue
from knuckle.native.values import Scalars, Value, elementwise

BINARY = {
    "add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "rem": "rem", "max": "max", "min": "min",
    "and": "and", "or": "or", "xor": "xor", "atan2": "atan2", "pow": "pow", "nextafter": "nextafter",
    "shift_left": "shl", "shift_right_logical": "shr_logical", "shift_right_arithmetic": "shr_arithmetic",
}  # fmt: skip
TOTAL_ORDER = {"lt_to": "lt", "le_to": "le", "eq_to": "eq"}
COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
UNARY = {name: name for name in (
    "neg", "abs", "sqrt", "floor", "ceil", "sin", "cos", "tan", "exp", "exp2", "expm1", "log", "log1p", "tanh", "sinh",
    "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "erf_inv", "logistic",
    "not", "clz",
)}  # fmt: skip
UNARY["population_count"] = "popcount"
SAME = ("copy", "stop_gradient", "name", "device_put", "sharding_constraint", "optimization_barrier")
PLACEMENT = ("devices", "srcs", "copy_semantics", "sharding", "layout", "context_mesh", "unconstrained_dims")


def result(equation):
    """Shape and dtype code of the (first) result."""
    aval = equation.outputs[0].aval
    return aval.shape, code_of(aval.dtype)


@rule(*BINARY, harmless=("out_dtype",))
def _binary(b: Lowering, equation, x: Value, y: Value):
    op = BINARY[equation.primitive]
    shape, dtype = result(equation)
    if op in ("pow", "mul"):  # an integer exponent, or a product in a wider type
        x, y = as_dtype(b, x, dtype), as_dtype(b, y, dtype)
    return elementwise(b, lambda p, q: b.binary(op, p, q), (x, y), shape, dtype)


def as_dtype(b: Lowering, x: Value, dtype: str) -> Value:
    return x if x.dtype == dtype else elementwise(b, lambda p: b.convert(p, dtype), (x,), x.shape, dtype)


@rule(*COMPARE)
def _compare(b: Lowering, equation, x: Value, y: Value):
    op = COMPARE[equation.primitive]
    return elementwise(b, lambda p, q: b.binary(op, p, q), (x, y), *result(equation))


@rule(*TOTAL_ORDER)
def _compare_in_total_order(b: Lowering, equation, x: Value, y: Value):
    """-NaN < -inf < .. < -0 < 0 < .. < inf < NaN: the order of the bits, those of negative numbers turned."""
    op = TOTAL_ORDER[equation.primitive]
    return elementwise(
        b, lambda p, q: b.binary(op, _ordered_bits(b, p), _ordered_bits(b, q)), (x, y), *result(equation)
    )


def _ordered_bits(b: Lowering, x: Node) -> Node:
    if not is_float(x.dtype):
        return x
    bits = b.bitcast(x, "i" + x.dtype[1])
    turned = b.binary("xor", bits, b.constant(np.iinfo(bits.dtype).max, bits.dtype))
    return b.select(b.binary("lt", bits, b.zero(bits.dtype)), turned, bits)


@rule(*UNARY, harmless=("accuracy",))
def _unary(b: Lowering, equation, x: Value):
    op = UNARY[equation.primitive]
    return elementwise(b, lambda p: b.unary(op, p), (x,), *result(equation))


@rule(*SAME, harmless=("name", *PLACEMENT))
def _same(b: Lowering, equation, *values: Value):
    return list(values)


@rule("square")
def _square(b: Lowering, equation, x: Value):
    return elementwise(b, lambda p: b.mul_(p, p), (x,), *result(equation))


@rule("rsqrt", harmless=("accuracy",))
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


@rule("integer_pow", reads=("y",))
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


@rule("round", reads=("rounding_method",))
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
    if which.shape:
        which = _with_rank(which, len(shape))  # random keys have an axis of words

    def choose(index: Node, *options: Node) -> Node:
        if index.dtype == BOOL:
            return b.select(index, options[1], options[0])
        chosen = options[-1]
        for number in reversed(range(len(options) - 1)):
            chosen = b.select(b.binary("le", index, b.constant(number, index.dtype)), options[number], chosen)
        return chosen

    return elementwise(b, choose, (which, *cases), shape, dtype)


def _with_rank(x: Value, rank: int) -> Value:
    """The array with axes of length one behind its own."""
    more = rank - len(x.shape)
    if isinstance(x, Scalars):
        return Scalars(x.data.reshape(x.shape + (1,) * more), x.dtype)
    return replace(x, shape=x.shape + (1,) * more, strides=x.strides + (0,) * more)


@rule("convert_element_type", harmless=("new_dtype", "weak_type", "sharding"))
def _convert(b: Lowering, equation, x: Value):
    return as_dtype(b, x, result(equation)[1])


@rule("bitcast_convert_type", harmless=("new_dtype",))
def _bitcast(b: Lowering, equation, x: Value):
    shape, dtype = result(equation)
    if np.dtype(dtype).itemsize != np.dtype(x.dtype).itemsize:
        raise UnsupportedValue(f"from {np.dtype(x.dtype)} to {np.dtype(dtype)}, dtypes of different size")
    return elementwise(b, lambda p: b.bitcast(p, dtype), (x,), shape, dtype)


@rule("reduce_precision", reads=("exponent_bits", "mantissa_bits"))
def _reduce_precision(b: Lowering, equation, x: Value):
    exact = {"f8": (11, 52), "f4": (8, 23)}[x.dtype]
    wanted = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    if wanted == exact:
        return x
    if x.dtype == "f8" and wanted == (8, 23):
        return elementwise(b, lambda p: b.convert(b.convert(p, "f4"), "f8"), (x,), *result(equation))
    raise UnsupportedValue(f"to {wanted[0]} bits of exponent and {wanted[1]} of mantissa")
