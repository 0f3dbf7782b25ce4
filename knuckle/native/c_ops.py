"""C99 text of single operations, and the small helpers they need."""

from __future__ import annotations

import math
from collections.abc import Sequence

from knuckle.native.ir import Node
from knuckle.native.vecmath.coefficients import ERF_INV_HIGH, ERF_INV_LOW, ERF_INV_MIDDLE

TYPES = {"f8": "double", "f4": "float", "b1": "bool"}
TYPES.update({f"i{size}": f"int{8 * size}_t" for size in (1, 2, 4, 8)})
TYPES.update({f"u{size}": f"uint{8 * size}_t" for size in (1, 2, 4, 8)})
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "and": "&",
    "or": "|",
    "xor": "^",
}
LIBM = {
    "abs": "fabs", "round_even": "rint", "round_away": "round", "rem": "fmod", "first": "sin", "second": "cos",
    **{name: name for name in (
        "sqrt", "floor", "ceil", "trunc", "sin", "cos", "tan", "exp", "exp2", "expm1", "log", "log1p", "tanh", "sinh",
        "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "cbrt", "erf", "erfc", "atan2", "pow", "copysign",
        "nextafter",
    )},
}  # fmt: skip


def c_type(code: str) -> str:
    return TYPES[code]


def constant_text(value, code: str) -> str:
    if code[0] == "f":
        number = float(value)
        if math.isnan(number):
            return f"({c_type(code)})NAN"
        if math.isinf(number):
            return f"({c_type(code)})({'-' if number < 0 else ''}INFINITY)"
        text = repr(number) if number == int(number if abs(number) < 1e15 else 0.5) else number.hex()
        text += "f" if code == "f4" else ""
        return f"({text})" if text.startswith("-") else text
    if code == "b1":
        return "true" if value else "false"
    number = int(value)
    if code == "i8" and number == -(2**63):
        return "INT64_MIN"
    if code in ("i8", "u8"):
        return f"{'U' if code[0] == 'u' else ''}INT64_C({number})" if number >= 0 else f"(-INT64_C({-number}))"
    return f"(({c_type(code)}){number})" if number < 0 else f"{number}{'u' if code[0] == 'u' else ''}"


def _polynomial(coefficients: Sequence[float], variable: str) -> str:
    """A polynomial by Horner's rule, lowest coefficient first."""
    text = float(coefficients[-1]).hex()
    for c in reversed(coefficients[:-1]):
        text = f"({text}) * {variable} + {float(c).hex()}"
    return text


ERF_INV = f"""static {{t}} erf_inv_{{c}}({{t}} x)
{{{{
    double size = fabs((double)x), w = -log1p(-size) - log1p(size), root = sqrt(w);
    double u = root - (root < 4.0 ? 3.0 : 5.0);
    double slope = root < 2.0 ? {_polynomial(ERF_INV_LOW, "w")}
        : root + (root < 4.0 ? {_polynomial(ERF_INV_MIDDLE, "u")}
                             : {_polynomial(ERF_INV_HIGH, "u")});
    double value = size < 1.0 ? size * slope : size == 1.0 ? (double)INFINITY : (double)NAN;
    return ({{t}})copysign(value, (double)x);
}}}}"""
HELPERS = {
    "erf_inv": ERF_INV,
    "max": "static {t} max_{c}({t} a, {t} b) {{ return a >= b{nan} ? a : b; }}",
    "min": "static {t} min_{c}({t} a, {t} b) {{ return a <= b{nan} ? a : b; }}",
    "logistic": "static {t} logistic_{c}({t} x) {{ return ({t})1 / (({t})1 + exp{f}(-x)); }}",
    "idiv": "static {t} idiv_{c}({t} a, {t} b)\n{{\n    return b == 0 ? ({t})-1 : {minus} ({t})(a / b);\n}}",
    "irem": "static {t} irem_{c}({t} a, {t} b)\n{{\n    return b == 0 ? a : {none} ({t})(a % b);\n}}",
    "iabs": "static {t} iabs_{c}({t} a) {{ return a < 0 ? ({t})(0 - ({u})a) : a; }}",
    "shl": "static {t} shl_{c}({t} a, {t} n) {{ return ({u})n < {bits}u ? ({t})(({u})a << n) : 0; }}",
    "shr_logical": "static {t} shr_logical_{c}({t} a, {t} n) {{ return ({u})n < {bits}u ? ({t})(({u})a >> n) : 0; }}",
    "shr_arithmetic": (
        "static {t} shr_arithmetic_{c}({t} a, {t} n)\n{{\n"
        "    return ({t})((int{bits}_t)a >> (({u})n < {bits}u ? n : {bits} - 1));\n}}"
    ),
    "popcount": (
        "static {t} popcount_{c}({t} a)\n{{\n    {u} rest = ({u})a;\n    {t} count = 0;\n"
        "    for (; rest; rest = ({u})(rest & (rest - 1)))\n        count++;\n    return count;\n}}"
    ),
    "clz": (
        "static {t} clz_{c}({t} a)\n{{\n    {u} rest = ({u})a;\n    {t} count = {bits};\n"
        "    for (; rest; rest = ({u})(rest >> 1))\n        count--;\n    return count;\n}}"
    ),
}
CONVERT = (
    "static {to} {name}({from_} x)\n{{\n    if (x != x)\n        return 0;\n"
    "    return x <= {low} ? {least} : x >= {high} ? {most} : ({to})x;\n}}"
)
BITCAST = "static {to} {name}({from_} x)\n{{\n    {to} y;\n    memcpy(&y, &x, sizeof y);\n    return y;\n}}"


class COperations:
    """Writes expressions, collecting the helper functions they call."""

    def __init__(self):
        self.helpers: dict[str, str] = {}

    def helper(self, kind: str, code: str) -> str:
        bits = 8 * int(code[1])
        signed = code[0] == "i"
        self.helpers[f"{kind}_{code}"] = HELPERS[kind].format(
            t=c_type(code), c=code, u=f"uint{max(bits, 32)}_t" if code[0] != "f" else "", bits=bits,
            f="f" if code == "f4" else "",
            minus=f"b == -1 ? ({c_type(code)})(0 - (uint{bits}_t)a) :" if signed else "",
            nan=" || a != a" if code[0] == "f" else "",
            none="b == -1 ? 0 :" if signed else "",
        )  # fmt: skip
        if kind.startswith("shr_logical") or kind in ("popcount", "clz"):
            self.helpers[f"{kind}_{code}"] = self.helpers[f"{kind}_{code}"].replace(
                f"({'u'}int{max(bits, 32)}_t)a", f"(uint{bits}_t)a"
            )
        return f"{kind}_{code}"

    def expression(self, node: Node, a: list[str]) -> str:
        op = node.op
        code = node.args[0].dtype
        floating = code[0] == "f"
        if op in INFIX:
            return self._infix(op, node.dtype, code, a)
        if op == "div" and floating:
            return f"{a[0]} / {a[1]}"
        if op == "fma":
            product = f"{'-' if node.attr[0] else ''}{a[0]} * {a[1]}"
            return f"{product} {'-' if node.attr[1] else '+'} {a[2]}"
        if op == "neg":
            return f"-{a[0]}" if floating else f"({c_type(code)})(0 - {a[0]})"
        if op == "not":
            return f"!{a[0]}" if code == "b1" else f"({c_type(code)})~{a[0]}"
        if op == "select":
            return f"{a[0]} ? {a[1]} : {a[2]}"
        if op in ("max", "min"):
            if code == "b1":
                return f"{a[0]} {'|' if op == 'max' else '&'} {a[1]}"
            return f"{self.helper(op, code)}({a[0]}, {a[1]})"
        if op == "convert":
            return self._convert(code, node.dtype, a[0])
        if op == "bitcast":
            name = f"bits_{code}_{node.dtype}"
            self.helpers[name] = BITCAST.format(to=c_type(node.dtype), from_=c_type(code), name=name)
            return f"{name}({a[0]})"
        if op in ("logistic", "erf_inv"):
            return f"{self.helper(op, code)}({a[0]})"
        if floating:
            return f"{LIBM[op]}{'f' if code == 'f4' else ''}({', '.join(a)})"
        name = {"div": "idiv", "rem": "irem", "abs": "iabs"}.get(op, op)
        return f"{self.helper(name, code)}({', '.join(a)})"

    @staticmethod
    def _infix(op: str, result: str, code: str, a: list[str]) -> str:
        text = f"{a[0]} {INFIX[op]} {a[1]}"
        if code[0] == "i" and op in ("add", "sub", "mul"):  # wraps around, which signed arithmetic in C does not
            wide = f"uint{max(8 * int(code[1]), 32)}_t"
            return f"({c_type(code)})(({wide}){a[0]} {INFIX[op]} ({wide}){a[1]})"
        return f"({c_type(result)})({text})" if code[0] in "iu" and result == code else text

    def _convert(self, source: str, target: str, a: str) -> str:
        if source[0] != "f" or target[0] == "f":
            return f"({c_type(target)}){a}"
        bits = 8 * int(target[1])
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if target[0] == "i" else (0, 2**bits)
        name = f"convert_{source}_{target}"
        self.helpers[name] = CONVERT.format(
            to=c_type(target), from_=c_type(source), name=name, low=f"({c_type(source)}){float(low)!r}",
            high=f"({c_type(source)}){float(high)!r}", least="0" if target[0] == "u" else f"INT{bits}_MIN",
            most=f"UINT{bits}_MAX" if target[0] == "u" else f"INT{bits}_MAX",
        )  # fmt: skip
        return f"{name}({a})"
