"""Elementary functions as LLVM IR, for scalars and vectors: at most 2 ulp, the same bits for every number of lanes.

`define(module, name, type)` puts the function `name` for `type` into the module and returns it. Doubles are computed
with fused multiply-adds and polynomials, both sides of a condition and a select; floats are computed in double.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from . import exponential, inverse, logarithm, special, trigonometric
from .lanes import DOUBLE, Lanes, lane_count, with_lanes

FLOAT = ir.FloatType()
LANE_COUNTS = (1, 2, 4, 8, 16)

UNARY: dict[str, Callable[[Lanes], Lanes]] = {
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": inverse.asin,
    "acos": inverse.acos,
    "atan": inverse.atan,
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "tanh": exponential.tanh,
    "logistic": exponential.logistic,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log1p": logarithm.log1p,
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
    "erf": special.erf,
    "erfc": special.erfc,
    "erf_inv": special.erf_inv,
    "cbrt": special.cbrt,
}
BINARY: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "atan2": inverse.atan2,
    "pow": logarithm.pow,
}
PAIRS: dict[str, Callable[[Lanes], tuple[Lanes, Lanes]]] = {
    "sincos": trigonometric.sincos,
}
NAMES = tuple(sorted({*UNARY, *BINARY, *PAIRS}))


def define(module: ir.Module, name: str, type: Any) -> ir.Function:
    """The internal function `name` for double, float or a vector of 2, 4, 8 or 16 of them, emitted once per module."""
    element = type.element if isinstance(type, ir.VectorType) else type
    if name not in NAMES:
        raise ValueError(f"expected one of the functions {', '.join(NAMES)}, got {name!r}")
    if not isinstance(element, ir.DoubleType | ir.FloatType) or lane_count(type) not in LANE_COUNTS:
        raise ValueError(f"expected double, float or a vector of 2, 4, 8 or 16 of them for {name}, got {type}")
    symbol = f"vecmath.{name}.{'f32' if element == FLOAT else 'f64'}x{lane_count(type)}"
    if symbol in module.globals:
        return module.globals[symbol]
    return _emit(module, name, symbol, type, in_double=element == DOUBLE)


def _emit(module: ir.Module, name: str, symbol: str, type: Any, in_double: bool) -> ir.Function:
    result = ir.LiteralStructType([type, type]) if name in PAIRS else type
    arity = 2 if name in BINARY else 1
    callee = None if in_double else define(module, name, with_lanes(DOUBLE, type))
    function = ir.Function(module, ir.FunctionType(result, [type] * arity), symbol)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    if callee is None:
        values = _compute(name, [Lanes(builder, argument) for argument in function.args])
    else:
        values = _compute_wider(builder, callee, list(function.args))
    if len(values) == 1:
        builder.ret(values[0])
        return function
    pair = builder.insert_value(ir.Constant(result, ir.Undefined), values[0], 0)
    builder.ret(builder.insert_value(pair, values[1], 1))
    return function


def _compute(name: str, arguments: list[Lanes]) -> list[Any]:
    if name in PAIRS:
        return [part.value for part in PAIRS[name](*arguments)]
    table: Any = UNARY if name in UNARY else BINARY
    return [table[name](*arguments).value]


def _compute_wider(builder: ir.IRBuilder, callee: ir.Function, arguments: list[Any]) -> list[Any]:
    """Floats: widen, call the double version, round."""
    narrow = arguments[0].type
    wide = with_lanes(DOUBLE, narrow)
    result = builder.call(callee, [builder.fpext(argument, wide) for argument in arguments])
    parts = (
        [builder.extract_value(result, k) for k in (0, 1)]
        if isinstance(result.type, ir.LiteralStructType)
        else [result]
    )
    return [builder.fptrunc(part, narrow) for part in parts]
