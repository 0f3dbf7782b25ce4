"""LLVM text of single operations, for scalars and vectors alike."""

from __future__ import annotations

import struct

import numpy as np
from llvmlite import ir

from knuckle.native import vecmath

TYPES = {"f8": "double", "f4": "float", "f2": "half", "b1": "i1"}
TYPES.update({f"{kind}{size}": f"i{8 * size}" for kind in "iu" for size in (1, 2, 4, 8)})
INTRINSIC = {
    "abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round_even": "roundeven",
    "round_away": "round",
}  # fmt: skip
MATH = {
    "sin", "cos", "sincos", "tan", "exp", "exp2", "expm1", "log", "log1p", "tanh", "sinh", "cosh", "asin", "acos",
    "atan", "asinh", "acosh", "atanh", "atan2", "pow", "cbrt", "erf", "erfc", "erf_inv", "logistic", "nextafter", "rem",
}  # fmt: skip
LIBM = {"rem": "fmod"}
COMPARE_FLOAT = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole"}
COMPARE_INT = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle"}
ARITHMETIC_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
ARITHMETIC_INT = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
SHIFTS = {"shl": "shl", "shr_logical": "lshr", "shr_arithmetic": "ashr"}


def type_text(code: str, lanes: int = 1) -> str:
    return TYPES[code] if lanes == 1 else f"<{lanes} x {TYPES[code]}>"


def memory_type(code: str, lanes: int = 1) -> str:
    """Booleans take a byte in memory."""
    return type_text("u1" if code == "b1" else code, lanes)


def constant_text(value, code: str) -> str:
    if code in ("f8", "f4"):
        return "0x" + struct.pack(">d", float(value)).hex().upper()
    if code == "f2":
        return "0xH" + struct.pack(">e", float(value)).hex().upper()
    return str(int(value)) if code != "b1" else ("true" if value else "false")


def mangled(code: str, lanes: int) -> str:
    name = {"f8": "f64", "f4": "f32", "f2": "f16"}.get(code, "i" + str(8 * int(code[1])) if code != "b1" else "i1")
    return name if lanes == 1 else f"v{lanes}{name}"


class Lines:
    """Text of one function being written: entry block lines, then the rest."""

    def __init__(self):
        self.entry: list[str] = []
        self.body: list[str] = []
        self.block = "start"
        self._count = 0

    def fresh(self, prefix: str = "%t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def let(self, text: str) -> str:
        name = self.fresh()
        self.body.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.body.append("  " + text)

    def start_block(self, label: str) -> None:
        self.body.append(f"{label}:")
        self.block = label


class Operations:
    """Writes operations, collecting the declarations and math functions they call."""

    def __init__(self):
        self.declarations: dict[str, str] = {}
        self.math_module = ir.Module("math")

    def declare(self, result: str, name: str, parameters: list[str]) -> str:
        self.declarations[name] = f"declare {result} @{name}({', '.join(parameters)})"
        return name

    def intrinsic(self, out: Lines, name: str, code: str, lanes: int, arguments: list[str]) -> str:
        kind = type_text(code, lanes)
        full = self.declare(kind, f"llvm.{name}.{mangled(code, lanes)}", [kind] * len(arguments))
        return out.let(f"call {kind} @{full}({', '.join(f'{kind} {a}' for a in arguments)})")

    def math(self, out: Lines, name: str, code: str, lanes: int, arguments: list[str]) -> str:
        """A call of an elementary function: our own where there is one, otherwise the C library, lane by lane."""
        if name in vecmath.NAMES:
            scalar = {"f8": ir.DoubleType(), "f4": ir.FloatType()}[code]
            kind = scalar if lanes == 1 else ir.VectorType(scalar, lanes)
            function = vecmath.define(self.math_module, name, kind)
            text = ", ".join(f"{kind} {a}" for a in arguments)
            return out.let(f'call {function.return_value.type} @"{function.name}"({text})')
        if name == "logistic":
            return self._logistic(out, code, lanes, arguments[0])
        if lanes == 1:
            return self._libm(out, name, code, arguments)
        result = "poison"
        for lane in range(lanes):
            parts = [out.let(f"extractelement {type_text(code, lanes)} {a}, i32 {lane}") for a in arguments]
            value = self._libm(out, name, code, parts)
            result = out.let(f"insertelement {type_text(code, lanes)} {result}, {TYPES[code]} {value}, i32 {lane}")
        return result

    def _logistic(self, out: Lines, code: str, lanes: int, argument: str) -> str:
        kind, one = type_text(code, lanes), splat_text("1.0", code, lanes)
        power = self.math(out, "exp", code, lanes, [out.let(f"fneg {kind} {argument}")])
        return out.let(f"fdiv {kind} {one}, {out.let(f'fadd {kind} {one}, {power}')}")

    def _libm(self, out: Lines, name: str, code: str, arguments: list[str]) -> str:
        kind = TYPES[code]
        function = LIBM.get(name, name) + ("f" if code == "f4" else "")
        self.declare(kind, function, [kind] * len(arguments))
        return out.let(f"call {kind} @{function}({', '.join(f'{kind} {a}' for a in arguments)})")

    def write(self, out: Lines, node, a: list[str], lanes: int) -> str:
        """One operation on operands that are already of the right width."""
        op = node.op
        operand = node.args[0].dtype if node.args else node.dtype
        kind = type_text(operand, lanes)
        floating = operand[0] == "f"
        if floating and op in ARITHMETIC_FLOAT:
            return out.let(f"{ARITHMETIC_FLOAT[op]} {kind} {a[0]}, {a[1]}")
        if op == "fma":
            return self._fma(out, node, a, kind, lanes)
        if op == "neg":
            return out.let(f"fneg {kind} {a[0]}" if floating else f"sub {kind} {_zero(operand, lanes)}, {a[0]}")
        if op in COMPARE_INT:
            return self._compare(out, op, operand, kind, a)
        if op == "select":
            of = type_text(node.dtype, lanes)
            return out.let(f"select {type_text('b1', lanes)} {a[0]}, {of} {a[1]}, {of} {a[2]}")
        if op in ("max", "min"):
            return self._extreme(out, node, a, kind, lanes)
        if op in INTRINSIC and floating:
            return self.intrinsic(out, INTRINSIC[op], operand, lanes, a)
        if op == "copysign":
            return self.intrinsic(out, "copysign", operand, lanes, a)
        if op in MATH and floating:
            return self.math(out, op, operand, lanes, a)
        if op == "convert":
            return self._convert(out, operand, node.dtype, a[0], lanes)
        if op == "bitcast":
            return out.let(f"bitcast {kind} {a[0]} to {type_text(node.dtype, lanes)}")
        if op in ("first", "second"):
            pair = f"{{ {kind}, {kind} }}" if lanes == 1 else f"{{{kind}, {kind}}}"
            return out.let(f"extractvalue {pair} {a[0]}, {0 if op == 'first' else 1}")
        return self._integer(out, node, a, operand, kind, lanes)

    def _fma(self, out: Lines, node, a: list[str], kind: str, lanes: int) -> str:
        negate_product, negate_addend = node.attr
        first = out.let(f"fneg {kind} {a[0]}") if negate_product else a[0]
        last = out.let(f"fneg {kind} {a[2]}") if negate_addend else a[2]
        return self.intrinsic(out, "fma", node.dtype, lanes, [first, a[1], last])

    def _compare(self, out: Lines, op: str, operand: str, kind: str, a: list[str]) -> str:
        if operand[0] == "f":
            return out.let(f"fcmp {COMPARE_FLOAT[op]} {kind} {a[0]}, {a[1]}")
        word = COMPARE_INT[op]
        if operand[0] in "ub":
            word = word.replace("s", "u", 1) if word.startswith("s") else word
        return out.let(f"icmp {word} {kind} {a[0]}, {a[1]}")

    def _extreme(self, out: Lines, node, a: list[str], kind: str, lanes: int) -> str:
        """Maximum or minimum; a NaN on either side comes out, as in JAX."""
        code, flag = node.dtype, type_text("b1", lanes)
        if code == "b1":
            return out.let(f"{'or' if node.op == 'max' else 'and'} {kind} {a[0]}, {a[1]}")
        if code[0] != "f":
            word = ("sgt" if node.op == "max" else "slt") if code[0] == "i" else ("ugt" if node.op == "max" else "ult")
            test = out.let(f"icmp {word} {kind} {a[0]}, {a[1]}")
            return out.let(f"select {flag} {test}, {kind} {a[0]}, {kind} {a[1]}")
        word = "ge" if node.op == "max" else "le"
        first, second = node.args
        if first.op == "const" and not np.isnan(first.attr):
            first, second, a = second, first, [a[1], a[0]]
        if second.op == "const" and not np.isnan(second.attr):
            test = out.let(f"fcmp u{word} {kind} {a[0]}, {a[1]}")
        else:
            ordered = out.let(f"fcmp o{word} {kind} {a[0]}, {a[1]}")
            nan = out.let(f"fcmp uno {kind} {a[0]}, {a[0]}")
            test = out.let(f"or {flag} {ordered}, {nan}")
        return out.let(f"select {flag} {test}, {kind} {a[0]}, {kind} {a[1]}")

    def _convert(self, out: Lines, source: str, target: str, a: str, lanes: int) -> str:
        from_, to = type_text(source, lanes), type_text(target, lanes)
        sizes = (1 / 8 if source == "b1" else int(source[1]), int(target[1]))
        if source[0] == "f" and target[0] == "f":
            return out.let(f"{'fptrunc' if sizes[1] < sizes[0] else 'fpext'} {from_} {a} to {to}")
        if source[0] == "f":
            name = "fptosi.sat" if target[0] == "i" else "fptoui.sat"
            full = self.declare(to, f"llvm.{name}.{mangled(target, lanes)}.{mangled(source, lanes)}", [from_])
            return out.let(f"call {to} @{full}({from_} {a})")
        if target[0] == "f":
            return out.let(f"{'sitofp' if source[0] == 'i' else 'uitofp'} {from_} {a} to {to}")
        if sizes[1] == sizes[0]:
            return a
        word = "trunc" if sizes[1] < sizes[0] else ("sext" if source[0] == "i" else "zext")
        return out.let(f"{word} {from_} {a} to {to}")

    def _integer(self, out: Lines, node, a: list[str], code: str, kind: str, lanes: int) -> str:
        op, flag = node.op, type_text("b1", lanes)
        if op in ARITHMETIC_INT:
            return out.let(f"{ARITHMETIC_INT[op]} {kind} {a[0]}, {a[1]}")
        if op == "not":
            ones = _splat("true" if code == "b1" else "-1", code, lanes)
            return out.let(f"xor {kind} {a[0]}, {ones}")
        if op == "abs":
            negative = out.let(f"icmp slt {kind} {a[0]}, {_zero(code, lanes)}")
            opposite = out.let(f"sub {kind} {_zero(code, lanes)}, {a[0]}")
            return out.let(f"select {flag} {negative}, {kind} {opposite}, {kind} {a[0]}")
        if op in SHIFTS:
            return self._shift(out, op, a, code, kind, lanes)
        if op in ("div", "rem"):
            return self._divide(out, op, a, code, kind, lanes)
        if op == "popcount":
            return self.intrinsic(out, "ctpop", code, lanes, a)
        if op == "clz":
            full = self.declare(kind, f"llvm.ctlz.{mangled(code, lanes)}", [kind, "i1"])
            return out.let(f"call {kind} @{full}({kind} {a[0]}, i1 false)")
        raise AssertionError(f"no LLVM text for {node}")

    def _shift(self, out: Lines, op: str, a: list[str], code: str, kind: str, lanes: int) -> str:
        """Shifts by the width or more give 0, or the sign for arithmetic ones, as in JAX."""
        bits, flag = 8 * int(code[1]), type_text("b1", lanes)
        fits = out.let(f"icmp ult {kind} {a[1]}, {_splat(str(bits), code, lanes)}")
        most = _splat(str(bits - 1), code, lanes)
        safe = out.let(f"select {flag} {fits}, {kind} {a[1]}, {kind} {most}")
        value = out.let(f"{SHIFTS[op]} {kind} {a[0]}, {safe}")
        if op == "shr_arithmetic":
            return value
        return out.let(f"select {flag} {fits}, {kind} {value}, {kind} {_zero(code, lanes)}")

    def _divide(self, out: Lines, op: str, a: list[str], code: str, kind: str, lanes: int) -> str:
        """Integer division never traps: by 0 it is -1 (remainder: the dividend), by -1 the negative (0)."""
        signed, flag, zero = code[0] == "i", type_text("b1", lanes), _zero(code, lanes)
        one, minus_one = _splat("1", code, lanes), _splat("-1", code, lanes)
        by_zero = out.let(f"icmp eq {kind} {a[1]}, {zero}")
        safe = out.let(f"select {flag} {by_zero}, {kind} {one}, {kind} {a[1]}")
        by_minus_one = ""
        if signed:
            by_minus_one = out.let(f"icmp eq {kind} {a[1]}, {minus_one}")
            safe = out.let(f"select {flag} {by_minus_one}, {kind} {one}, {kind} {safe}")
        value = out.let(f"{'s' if signed else 'u'}{op} {kind} {a[0]}, {safe}")
        if signed:
            negative = zero if op == "rem" else out.let(f"sub {kind} {zero}, {a[0]}")
            value = out.let(f"select {flag} {by_minus_one}, {kind} {negative}, {kind} {value}")
        return out.let(f"select {flag} {by_zero}, {kind} {minus_one if op == 'div' else a[0]}, {kind} {value}")


def _splat(text: str, code: str, lanes: int) -> str:
    return text if lanes == 1 else f"splat ({TYPES[code]} {text})"


def _zero(code: str, lanes: int) -> str:
    return _splat("0" if code[0] != "f" else "0.0", code, lanes)


splat_text = _splat
