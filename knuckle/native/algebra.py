"""Scalar operations with folding and exact identities, built on the hash-consing `Builder`.

The identities keep IEEE results, but for three that are documented: a product with a constant zero is zero whatever
the other factor, x + 0 is x (the sign of a zero may differ), and 0 / x is 0. Negations move outwards and commutative
operands stand in one order, so that more values are shared. a - a is never folded: it is NaN for infinity and NaN.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from knuckle.native.ir import BOOL, INDEX, Builder, Contents, Node, is_float

COMMUTATIVE = {"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"}
ODD = {"sin", "tan", "tanh", "sinh", "asin", "atan", "erf", "erf_inv", "cbrt", "asinh", "atanh"}
EVEN = {"cos", "cosh", "abs"}
COMPARISONS = {"eq", "ne", "lt", "le"}


def _truncated_divide(a, b):
    if b == 0:
        return np.array(-1).astype(a.dtype)[()]
    quotient = abs(int(a)) // abs(int(b))
    return np.array(quotient if (int(a) < 0) == (int(b) < 0) else -quotient).astype(a.dtype)[()]


def _remainder(a, b):
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return (
        a
        if b == 0
        else np.array(int(math.fmod(int(a), int(b))) if abs(int(a)) < 2**53 else _exact_rem(a, b)).astype(a.dtype)[()]
    )


def _exact_rem(a, b) -> int:
    magnitude = abs(int(a)) % abs(int(b))
    return -magnitude if int(a) < 0 else magnitude


def _shift(a, b, left: bool, logical: bool):
    bits = a.dtype.itemsize * 8
    count = int(np.array(b).astype(f"u{a.dtype.itemsize}"))
    unsigned = int(np.array(a).astype(f"u{a.dtype.itemsize}"))
    if left:
        value = 0 if count >= bits else (unsigned << count) & (2**bits - 1)
    elif logical:
        value = 0 if count >= bits else unsigned >> count
    else:
        value = int(np.array(a).astype(f"i{a.dtype.itemsize}")) >> min(count, bits - 1)  # of the bits, as in JAX
    return np.array(value & (2**bits - 1)).astype(f"u{a.dtype.itemsize}").astype(a.dtype)[()]


FOLDS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if a.dtype.kind == "f" else _truncated_divide(a, b),
    "rem": _remainder,
    "neg": lambda a: -a,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "max": np.maximum,
    "min": np.minimum,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_even": np.rint,
    "trunc": np.trunc,
    "round_away": lambda a: np.copysign(np.trunc(np.abs(a) + np.nextafter(a.dtype.type(0.5), a.dtype.type(0))), a),
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": lambda a, b: _shift(a, b, True, True),
    "shr_logical": lambda a, b: _shift(a, b, False, True),
    "shr_arithmetic": lambda a, b: _shift(a, b, False, False),
    "popcount": lambda a: np.array(bin(int(np.array(a).astype(f"u{a.dtype.itemsize}"))).count("1")).astype(a.dtype)[()],
    "clz": lambda a: np.array(
        a.dtype.itemsize * 8 - int(np.array(a).astype(f"u{a.dtype.itemsize}")).bit_length()
    ).astype(a.dtype)[()],
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "pow": lambda a, b: np.power([a, a], [b, b])[0],  # NumPy's power of one element has NaN for -inf and 1/2
    "cbrt": np.cbrt,
    "erf": special.erf,
    "erfc": special.erfc,
    "erf_inv": special.erfinv,
    "logistic": special.expit,
}


class Algebra(Builder):
    """A builder whose operations fold constants and apply identities."""

    def fold(self, op: str, dtype: str, args: tuple[Node, ...]) -> Node:
        key = ("fold", op, *[a.number for a in args])
        found = self.root.table.get(key)
        if found is None:
            with np.errstate(all="ignore"):
                found = self.root.table[key] = self.constant(FOLDS[op](*[a.attr for a in args]), dtype)
        return found

    def unary(self, op: str, a: Node) -> Node:
        if a.op == "const":
            return self.fold(op, a.dtype, (a,))
        if op == "neg":
            return self.neg(a)
        if op == "abs" and a.dtype[0] in "ub":
            return a
        if a.op == "neg" and op in ODD:
            return self.neg(self.unary(op, a.args[0]))
        if a.op == "neg" and op in EVEN:
            return self.unary(op, a.args[0])
        if op == "abs" and a.op in ("abs", "sqrt", "exp"):
            return a
        if op == "not" and a.op == "not":
            return a.args[0]
        return self.node(op, (a,), a.dtype)

    def binary(self, op: str, a: Node, b: Node) -> Node:
        if a.dtype != b.dtype and not op.startswith("sh"):
            raise TypeError(f"native {op}: operands of different dtypes, {a.dtype} and {b.dtype}")
        special_rule = getattr(self, op + "_", None)
        if special_rule is not None:
            return special_rule(a, b)
        return self.plain(op, a, b)

    def plain(self, op: str, a: Node, b: Node, dtype: str | None = None) -> Node:
        dtype = dtype or (BOOL if op in COMPARISONS else a.dtype)
        if a.op == "const" and b.op == "const":
            return self.fold(op, dtype, (a, b))
        if op in COMMUTATIVE and (a.number > b.number):
            a, b = b, a
        return self.node(op, (a, b), dtype)

    def neg(self, a: Node) -> Node:
        if a.op == "const":
            return self.fold("neg", a.dtype, (a,))
        if a.op == "neg":
            return a.args[0]
        return self.node("neg", (a,), a.dtype)

    def add_(self, a: Node, b: Node) -> Node:
        if a.dtype == BOOL:
            return self.or_(a, b)
        if b.op == "const":
            a, b = b, a
        if a is self.zero(a.dtype) or (a.op == "const" and a.attr == 0):
            return b
        if a.op == "neg" and b.op == "neg":
            return self.neg(self.add_(a.args[0], b.args[0]))
        if b.op == "neg":
            return self.sub_(a, b.args[0])
        if a.op == "neg":
            return self.sub_(b, a.args[0])
        if a.op == "const" and b.op == "add" and b.args[0].op == "const" and not is_float(a.dtype):
            return self.add_(self.plain("add", a, b.args[0]), b.args[1])
        return self.plain("add", a, b)

    def sub_(self, a: Node, b: Node) -> Node:
        if b.op == "const":
            return self.add_(a, self.neg(b)) if a.op != "const" else self.fold("sub", a.dtype, (a, b))
        if a.op == "const" and a.attr == 0:
            return self.neg(b)
        if b.op == "neg":
            return self.add_(a, b.args[0])
        if a.op == "neg":
            return self.neg(self.add_(a.args[0], b))
        if a.op != "const" and a.number > b.number and is_float(a.dtype):
            return self.neg(self.node("sub", (b, a), a.dtype))
        return self.node("sub", (a, b), a.dtype)

    def mul_(self, a: Node, b: Node) -> Node:
        if a.dtype == BOOL:
            return self.and_(a, b)
        if b.op == "const":
            a, b = b, a
        if a.op == "const":
            if a is self.zero(a.dtype):
                return a
            if b.op == "const":
                return self.fold("mul", a.dtype, (a, b))
            if a.attr == 0:
                return self.zero(a.dtype)
            if a.attr == 1:
                return b
            if a.attr == -1 and a.dtype[0] != "u":
                return self.neg(b)
            if a.attr < 0 and is_float(a.dtype):
                return self.neg(self.mul_(self.neg(a), b))
        if a.op == "neg":
            return self.neg(self.mul_(a.args[0], b))
        if b.op == "neg":
            return self.neg(self.mul_(a, b.args[0]))
        return self.plain("mul", a, b)

    def div_(self, a: Node, b: Node) -> Node:
        if a.op == "const" and b.op == "const":
            return self.fold("div", a.dtype, (a, b))
        if b.op == "const" and b.attr == 1:
            return a
        if not is_float(a.dtype):
            return self.node("div", (a, b), a.dtype)
        if a.op == "const" and a.attr == 0:
            return self.constant(0, a.dtype)
        if b.op == "const" and _is_power_of_two(float(b.attr)):
            return self.mul_(a, self.constant(1 / b.attr, a.dtype))
        if a.op == "neg":
            return self.neg(self.div_(a.args[0], b))
        if b.op == "neg":
            return self.neg(self.div_(a, b.args[0]))
        return self.node("div", (a, b), a.dtype)

    def max_(self, a: Node, b: Node) -> Node:
        return a if a is b else self.plain("max", a, b)

    def min_(self, a: Node, b: Node) -> Node:
        return a if a is b else self.plain("min", a, b)

    def and_(self, a: Node, b: Node) -> Node:
        return self._logic("and", a, b)

    def or_(self, a: Node, b: Node) -> Node:
        return self._logic("or", a, b)

    def _logic(self, op: str, a: Node, b: Node) -> Node:
        if a is b:
            return a
        for one, other in ((a, b), (b, a)):
            if one.op == "const" and one.dtype == BOOL:
                keeps = bool(one.attr) == (op == "and")
                return other if keeps else one
        return self.plain(op, a, b)

    def gt_(self, a: Node, b: Node) -> Node:
        return self.plain("lt", b, a)

    def ge_(self, a: Node, b: Node) -> Node:
        return self.plain("le", b, a)

    def select(self, test: Node, if_true: Node, if_false: Node) -> Node:
        if test.op == "const":
            return if_true if test.attr else if_false
        if if_true is if_false:
            return if_true
        if test.op == "not":
            return self.select(test.args[0], if_false, if_true)
        if if_true.dtype == BOOL and if_true.op == "const" and if_false.op == "const":
            return test if if_true.attr else self.unary("not", test)
        return self.node("select", (test, if_true, if_false), if_true.dtype)

    def convert(self, a: Node, dtype: str) -> Node:
        if a.dtype == dtype:
            return a
        if a.op == "const":
            return self.constant(_converted(a.attr, dtype), dtype)
        if dtype == BOOL:
            return self.plain("ne", a, self.constant(0, a.dtype))
        return self.node("convert", (a,), dtype)

    def bitcast(self, a: Node, dtype: str) -> Node:
        if a.dtype == dtype:
            return a
        if a.op == "const":
            return self.constant(np.array(a.attr).view(dtype)[()], dtype)
        return self.node("bitcast", (a,), dtype)

    def fma(self, a: Node, b: Node, c: Node) -> Node:
        """a * b + c; whether it rounds once or twice is decided when all uses are known."""
        return self.add_(self.mul_(a, b), c)

    def clamp_index(self, index: Node, upper: int) -> Node:
        """`index` as an offset within [0, upper]."""
        index = self.convert(index, INDEX)
        return self.min_(self.max_(index, self.index(0)), self.index(upper))

    def load_at(self, contents: Contents, offset: int) -> Node:
        return self.load(contents, self.index(offset))


def _is_power_of_two(value: float) -> bool:
    if value == 0 or not math.isfinite(value):
        return False
    mantissa, exponent = math.frexp(value)
    return abs(mantissa) == 0.5 and -100 < exponent < 100


def _converted(value, dtype: str):
    """As XLA converts: floats to integers truncate and saturate, NaN to 0."""
    if value.dtype.kind == "f" and dtype[0] in "iu":
        if np.isnan(value):
            return 0
        limits = np.iinfo(dtype)
        return (
            int(min(max(float(np.trunc(value)), limits.min), limits.max))
            if np.isfinite(value)
            else (limits.max if value > 0 else limits.min)
        )
    return value
