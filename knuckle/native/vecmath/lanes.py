"""Arithmetic on LLVM values as Python operators: a scalar or a vector of lanes, the same text for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

DOUBLE = ir.DoubleType()
I64 = ir.IntType(64)
SIGN_BIT = 1 << 63


def lane_count(type: Any) -> int:
    """Number of lanes of a type; a scalar has one."""
    return type.count if isinstance(type, ir.VectorType) else 1


def with_lanes(element: Any, like: Any) -> Any:
    """The type with the element type `element` and the lanes of the type `like`."""
    return ir.VectorType(element, like.count) if isinstance(like, ir.VectorType) else element


def splat(type: Any, number: float) -> ir.Constant:
    """The constant of the type that has `number` in every lane."""
    if not isinstance(type, ir.VectorType):
        return ir.Constant(type, number)
    return ir.Constant(type, [ir.Constant(type.element, number)] * type.count)


class Lanes:
    """A double, an int64 or a bool per lane; no fast-math flags, so that every lane count gives the same bits."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: ir.IRBuilder, value: Any):
        self.builder = builder
        self.value = value

    @property
    def type(self) -> Any:
        return self.value.type

    @property
    def is_float(self) -> bool:
        element = self.type.element if isinstance(self.type, ir.VectorType) else self.type
        return isinstance(element, ir.DoubleType)

    def like(self, number: float | Lanes) -> Lanes:
        """A constant of this value's type."""
        return number if isinstance(number, Lanes) else Lanes(self.builder, splat(self.type, number))

    def _binary(self, name: str, other: float | Lanes) -> Lanes:
        return Lanes(self.builder, getattr(self.builder, name)(self.value, self.like(other).value))

    def __add__(self, other: float | Lanes) -> Lanes:
        return self._binary("fadd" if self.is_float else "add", other)

    def __sub__(self, other: float | Lanes) -> Lanes:
        return self._binary("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: float | Lanes) -> Lanes:
        return self._binary("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: float | Lanes) -> Lanes:
        return self._binary("fdiv", other)

    def __radd__(self, other: float) -> Lanes:
        return self.like(other) + self

    def __rsub__(self, other: float) -> Lanes:
        return self.like(other) - self

    def __rmul__(self, other: float) -> Lanes:
        return self.like(other) * self

    def __rtruediv__(self, other: float) -> Lanes:
        return self.like(other) / self

    def __neg__(self) -> Lanes:
        negate = self.builder.fneg if self.is_float else self.builder.neg
        return Lanes(self.builder, negate(self.value))

    def __and__(self, other: int | Lanes) -> Lanes:
        return self._binary("and_", other)

    def __or__(self, other: int | Lanes) -> Lanes:
        return self._binary("or_", other)

    def __xor__(self, other: int | Lanes) -> Lanes:
        return self._binary("xor", other)

    def __lshift__(self, other: int | Lanes) -> Lanes:
        return self._binary("shl", other)

    def __rshift__(self, other: int | Lanes) -> Lanes:
        """Shift to the right, filling with zeros."""
        return self._binary("lshr", other)

    def shift_signed(self, other: int | Lanes) -> Lanes:
        """Shift to the right, filling with the sign."""
        return self._binary("ashr", other)

    def _compare(self, operator: str, other: float | Lanes) -> Lanes:
        compare = self.builder.fcmp_ordered if self.is_float else self.builder.icmp_signed
        return Lanes(self.builder, compare(operator, self.value, self.like(other).value))

    def __lt__(self, other: float | Lanes) -> Lanes:
        return self._compare("<", other)

    def __le__(self, other: float | Lanes) -> Lanes:
        return self._compare("<=", other)

    def __gt__(self, other: float | Lanes) -> Lanes:
        return self._compare(">", other)

    def __ge__(self, other: float | Lanes) -> Lanes:
        return self._compare(">=", other)

    def equals(self, other: float | Lanes) -> Lanes:
        """Equality per lane; false for NaN."""
        return self._compare("==", other)

    def is_nan(self) -> Lanes:
        return Lanes(self.builder, self.builder.fcmp_unordered("uno", self.value, self.value))

    def select(self, yes: Lanes | float, no: Lanes | float) -> Lanes:
        """`yes` in the lanes where this condition holds, else `no`; one of them must be a value."""
        anchor = yes if isinstance(yes, Lanes) else no
        assert isinstance(anchor, Lanes)
        chosen = self.builder.select(self.value, anchor.like(yes).value, anchor.like(no).value)
        return Lanes(self.builder, chosen)

    def bits(self) -> Lanes:
        """The doubles' bit patterns as integers."""
        return Lanes(self.builder, self.builder.bitcast(self.value, with_lanes(I64, self.type)))

    def as_double(self) -> Lanes:
        """The doubles that have these bit patterns."""
        return Lanes(self.builder, self.builder.bitcast(self.value, with_lanes(DOUBLE, self.type)))

    def to_double(self) -> Lanes:
        """Signed integers converted to double."""
        return Lanes(self.builder, self.builder.sitofp(self.value, with_lanes(DOUBLE, self.type)))

    def to_mask(self) -> Lanes:
        """All ones where the condition holds, else zero, as integers."""
        return Lanes(self.builder, self.builder.sext(self.value, with_lanes(I64, self.type)))

    def intrinsic(self, name: str, *others: Lanes | float) -> Lanes:
        """An LLVM intrinsic on this double and others of the same type."""
        values = [self.value, *(self.like(other).value for other in others)]
        lanes = f"v{self.type.count}" if isinstance(self.type, ir.VectorType) else ""
        symbol = f"{name}.{lanes}f64"
        module = self.builder.module
        function = module.globals.get(symbol)
        if function is None:
            function = ir.Function(module, ir.FunctionType(self.type, [self.type] * len(values)), symbol)
        return Lanes(self.builder, self.builder.call(function, values))

    def fma(self, factor: Lanes | float, addend: Lanes | float) -> Lanes:
        """self * factor + addend, rounded once."""
        return self.intrinsic("llvm.fma", factor, addend)

    def sqrt(self) -> Lanes:
        return self.intrinsic("llvm.sqrt")

    def floor(self) -> Lanes:
        return self.intrinsic("llvm.floor")

    def abs(self) -> Lanes:
        return self.intrinsic("llvm.fabs")

    def copysign(self, sign: Lanes) -> Lanes:
        return self.intrinsic("llvm.copysign", sign)

    def sign_bit(self) -> Lanes:
        """The sign bit alone, in place, as an integer."""
        return self.bits() & SIGN_BIT

    def flip_sign(self, sign_bit: Lanes) -> Lanes:
        """The value with its sign bit flipped where `sign_bit` is set."""
        return (self.bits() ^ sign_bit).as_double()

    def any(self) -> Any:
        """One i1: whether the condition holds in some lane."""
        if not isinstance(self.type, ir.VectorType):
            return self.value
        mask: Any = self.builder.bitcast(self.value, ir.IntType(self.type.count))
        return self.builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, 0))


def polynomial(coefficients: Sequence[float], x: Lanes) -> Lanes:
    """The polynomial with ascending coefficients, by Estrin's scheme (short dependency chains)."""
    terms: list[Any] = list(coefficients)
    power = x
    while len(terms) > 1:
        odd_one = terms[len(terms) & ~1 :]
        terms = [power.like(high).fma(power, low) for low, high in zip(terms[::2], terms[1::2], strict=False)] + odd_one
        power = power * power if len(terms) > 1 else power
    return x.like(terms[0])


def two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """a + b as a rounded sum and its exact error, |a| >= |b| (Dekker)."""
    total = a + b
    return total, b - (total - a)


def sum_in_any_order(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """a + b as a rounded sum and its exact error (Knuth)."""
    total = a + b
    b_seen = total - a
    return total, (a - (total - b_seen)) + (b - b_seen)


def two_product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """a * b as a rounded product and its exact error."""
    product = a * b
    return product, a.fma(b, -product)
