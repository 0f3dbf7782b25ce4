"""sin, cos and tan."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .coefficients import (
    COS_TAIL,
    PI_HALF,
    SIN_TAIL,
    TWO_OVER_PI,
    TWO_OVER_PI_WORDS,
)
from .exponential import INFINITY, ROUND_TO_INTEGER
from .lanes import DOUBLE, I64, SIGN_BIT, Lanes, polynomial, two_sum, with_lanes

HUGE_ANGLE = 2.0**30  # up to here three parts of pi/2 suffice: their first product is exact under fma
WIDE = ir.IntType(192)
WIDER = ir.IntType(256)
I32 = ir.IntType(32)


def reduce_angle(size: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """size >= 0 as quadrant * pi/2 + r with |r| <= pi/4, by Cody and Waite's method with fma.

    (r, r_low, quadrant in the low bits); r_low refines r where r is not small.
    """
    shifted = size.fma(TWO_OVER_PI, ROUND_TO_INTEGER)
    number, quadrant = shifted - ROUND_TO_INTEGER, shifted.bits()
    exact = number.fma(-PI_HALF[0], size)
    r = number.fma(-PI_HALF[1], exact)
    r_low = number.fma(-PI_HALF[1], exact - r)
    r_low = (r.abs() > 2.0**-10).select(r_low, 0.0)
    r = number.fma(-PI_HALF[2], r)
    return reduce_huge_lanes(size, r, r_low, quadrant)


def reduce_huge_lanes(size: Lanes, r: Lanes, r_low: Lanes, quadrant: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """The reduction, replaced in the lanes with size > HUGE_ANGLE; costs one branch where there are none."""
    builder = size.builder
    huge = size > HUGE_ANGLE
    before = builder.block
    with builder.if_then(huge.any(), likely=False):
        finite = huge & (size < INFINITY)
        slow = _reduce_each_lane(finite.select(size, HUGE_ANGLE))
        replaced = [finite.select(new, old) for new, old in zip(slow, (r, r_low, quadrant), strict=True)]
        inside = builder.block
    merged = []
    for old, new in zip((r, r_low, quadrant), replaced, strict=True):
        phi = builder.phi(old.type)
        phi.add_incoming(old.value, before)
        phi.add_incoming(new.value, inside)
        merged.append(Lanes(builder, phi))
    return merged[0], merged[1], merged[2]


def _reduce_each_lane(size: Lanes) -> list[Lanes]:
    builder = size.builder
    function = _payne_hanek(builder.module)
    if not isinstance(size.type, ir.VectorType):
        parts = builder.call(function, [size.value])
        return [Lanes(builder, builder.extract_value(parts, k)) for k in range(3)]
    results: list[Any] = [
        ir.Constant(with_lanes(element, size.type), ir.Undefined) for element in (DOUBLE, DOUBLE, I64)
    ]
    for lane in range(size.type.count):
        index = ir.Constant(I32, lane)
        parts = builder.call(function, [builder.extract_element(size.value, index)])
        for k in range(3):
            results[k] = builder.insert_element(results[k], builder.extract_value(parts, k), index)
    return [Lanes(builder, result) for result in results]


def _table_of_two_over_pi(module: ir.Module) -> ir.GlobalVariable:
    table_type = ir.ArrayType(I64, len(TWO_OVER_PI_WORDS))
    table: Any = ir.GlobalVariable(module, table_type, "vecmath.two_over_pi")
    table.linkage = "internal"
    table.global_constant = True
    table.initializer = ir.Constant(table_type, list(TWO_OVER_PI_WORDS))
    return table


def _payne_hanek(module: ir.Module) -> ir.Function:
    """{r, r_low, quadrant} of a finite double >= HUGE_ANGLE by its product with 192 bits of 2/pi (Payne and Hanek)."""
    name = "vecmath.payne_hanek"
    if name in module.globals:
        return module.globals[name]
    parts_type = ir.LiteralStructType([DOUBLE, DOUBLE, I64])
    function = ir.Function(module, ir.FunctionType(parts_type, [DOUBLE]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    bits = builder.bitcast(function.args[0], I64)
    exponent = builder.sub(builder.lshr(bits, I64(52)), I64(1023 + 52))
    mantissa = builder.or_(builder.and_(bits, I64((1 << 52) - 1)), I64(1 << 52))
    first_bit = builder.add(exponent, I64(62))  # bit j of 2/pi is bit j + 63 of the table; j = exponent - 1
    word = builder.lshr(first_bit, I64(6))
    table = _table_of_two_over_pi(module)
    window = WIDER(0)
    for offset in range(4):
        address = builder.gep(table, [I64(0), builder.add(word, I64(offset))])
        window = builder.or_(builder.shl(window, WIDER(64)), builder.zext(builder.load(address, typ=I64), WIDER))
    skip = builder.zext(builder.and_(first_bit, I64(63)), WIDER)
    window = builder.trunc(builder.lshr(builder.shl(window, skip), WIDER(64)), WIDE)
    turns = builder.mul(window, builder.zext(mantissa, WIDE))  # x * 2/pi mod 4, in units of 2^-190
    quadrant = builder.trunc(builder.lshr(builder.add(turns, WIDE(1 << 189)), WIDE(190)), I64)
    fraction = builder.shl(turns, WIDE(2))  # signed, in units of 2^-192
    parts: Any = ir.Constant(parts_type, ir.Undefined)
    for k, value in enumerate((*_fraction_to_angle(builder, fraction), quadrant)):
        parts = builder.insert_value(parts, value, k)
    builder.ret(parts)
    return function


def _fraction_to_angle(builder: ir.IRBuilder, fraction: Any) -> tuple[Any, Any]:
    """fraction * 2^-192 * pi/2 for a signed 192-bit fraction, as a sum of two doubles."""
    negative = builder.icmp_signed("<", fraction, WIDE(0))
    size = builder.select(negative, builder.neg(fraction), fraction)
    zeros = builder.ctlz(size, ir.IntType(1)(0))
    digits = builder.shl(size, zeros)
    parts = []
    for position in (139, 86):
        part = builder.and_(builder.trunc(builder.lshr(digits, WIDE(position)), I64), I64((1 << 53) - 1))
        parts.append(Lanes(builder, builder.uitofp(part, DOUBLE)))
    zeros64 = Lanes(builder, builder.trunc(zeros, I64))
    unit = ((1023 - 53 - zeros64) << 52).as_double()
    high, low = parts[0] * unit, parts[1] * (unit * 2.0**-53)
    product = high * PI_HALF[0]
    rest = high.fma(PI_HALF[0], -product) + high.fma(PI_HALF[1], low * PI_HALF[0])
    r, r_low = two_sum(product, rest)
    sign = Lanes(builder, builder.select(negative, I64(SIGN_BIT), I64(0)))
    return r.flip_sign(sign).value, r_low.flip_sign(sign).value


def sin_reduced(r: Lanes) -> Lanes:
    z = r * r
    return (z * r).fma(polynomial(SIN_TAIL, z), r)


def cos_reduced(r: Lanes) -> Lanes:
    z = r * r
    leading = z.fma(-0.5, 1.0)
    lost = z.fma(-0.5, 1.0 - leading)
    return leading + (z * z).fma(polynomial(COS_TAIL, z), lost)


def sincos(x: Lanes) -> tuple[Lanes, Lanes]:
    """(sin x, cos x) at the price of little more than one of them."""
    r, _, quadrant = reduce_angle(x.abs())
    sine, cosine = sin_reduced(r), cos_reduced(r)
    odd = (quadrant & 1).equals(1)
    sine_sign = ((quadrant & 2) << 62) ^ x.sign_bit()
    cosine_sign = ((quadrant + 1) & 2) << 62
    return odd.select(cosine, sine).flip_sign(sine_sign), odd.select(sine, cosine).flip_sign(cosine_sign)


def sin(x: Lanes) -> Lanes:
    return sincos(x)[0]


def cos(x: Lanes) -> Lanes:
    return sincos(x)[1]


def tan(x: Lanes) -> Lanes:
    """sin/cos or -cos/sin of the reduced angle, in two doubles each, the division corrected by its remainder."""
    r, r_low, quadrant = reduce_angle(x.abs())
    z = r * r
    sine, sine_low = r, (z * r).fma(polynomial(SIN_TAIL, z), z.fma(r_low * -0.5, r_low))
    cosine = z.fma(-0.5, 1.0)
    cosine_low = (z * z).fma(polynomial(COS_TAIL, z), z.fma(-0.5, 1.0 - cosine) - r * r_low)
    odd = (quadrant & 1).equals(1)
    top, top_low = odd.select(cosine, sine), odd.select(cosine_low, sine_low)
    bottom, bottom_low = odd.select(sine, cosine), odd.select(sine_low, cosine_low)
    bottom, bottom_low = two_sum(bottom, bottom_low)
    quotient = top / bottom
    remainder = quotient.fma(-bottom, top) + quotient.fma(-bottom_low, top_low)
    result = quotient + remainder / bottom
    return result.flip_sign(((quadrant & 1) << 63) ^ x.sign_bit())
