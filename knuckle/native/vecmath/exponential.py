"""exp and its kin: argument reduction by powers of two, then a polynomial."""

from __future__ import annotations

from .coefficients import EXP_TAIL, LN2, LOG2_E, TANH_TAIL, TANH_TAIL_BELOW
from .lanes import Lanes, polynomial, sum_in_any_order, two_sum

ROUND_TO_INTEGER = 1.5 * 2.0**52  # adding it leaves the nearest integer in the low bits
EXPONENT_OF_ONE = 1023
MANTISSA_BITS = 52
INFINITY = float("inf")
EXP_HIGH, EXP_LOW = 710.0, -746.0  # beyond, e^x is infinite or zero


def nearest_integer(x: Lanes, factor: float = 1.0) -> tuple[Lanes, Lanes]:
    """The nearest integer to x * factor, below 2^51 in size, as a double and as an int64."""
    shifted = x.fma(factor, ROUND_TO_INTEGER)
    number = shifted - ROUND_TO_INTEGER
    return number, shifted.bits() - shifted.like(ROUND_TO_INTEGER).bits()


def power_of_two(k: Lanes) -> Lanes:
    """2^k for integers -1022 <= k <= 1023."""
    return ((k + EXPONENT_OF_ONE) << MANTISSA_BITS).as_double()


def scale_by_power(x: Lanes, k: Lanes) -> Lanes:
    """x * 2^k for |k| <= 2044, rounded once even where the result is subnormal."""
    half = k.shift_signed(1)
    return x * power_of_two(half) * power_of_two(k - half)


def clamp(x: Lanes, low: float, high: float) -> Lanes:
    """x within [low, high]; NaN stays."""
    x = (x > high).select(high, x)
    return (x < low).select(low, x)


def reduce_exponent(x: Lanes) -> tuple[Lanes, Lanes]:
    """x = k ln 2 + r with |r| <= ln(2)/2: (r, k)."""
    number, k = nearest_integer(x, LOG2_E[0])
    r = number.fma(-LN2[0], x)
    return number.fma(-LN2[1], r), k


def expm1_reduced(r: Lanes) -> Lanes:
    """e^r - 1 for |r| <= ln(2)/2."""
    return (r * r).fma(polynomial(EXP_TAIL, r), r)


def exp(x: Lanes) -> Lanes:
    """e^x."""
    r, k = reduce_exponent(clamp(x, EXP_LOW, EXP_HIGH))
    return scale_by_power(expm1_reduced(r) + 1.0, k)


def expm1_of_sum(r: Lanes, low: Lanes) -> Lanes:
    """e^(r + low) - 1 for |r| <= ln(2)/2 and a low part of up to about 2^-40: e^r - 1 + low e^r."""
    square_term = r * r * polynomial(EXP_TAIL, r)
    return r + (square_term + low.fma(r + square_term, low))


def exp_of_sum(high: Lanes, low: Lanes) -> Lanes:
    """e^(high + low) for a low part below the last place of the high one."""
    inside = clamp(high, EXP_LOW, EXP_HIGH)
    r, k = reduce_exponent(inside)
    low = (high.equals(inside) & (low.abs() < 1.0)).select(low, 0.0)
    return scale_by_power(expm1_of_sum(r, low) + 1.0, k)


def exp2(x: Lanes) -> Lanes:
    """2^x."""
    inside = clamp(x, -1076.0, 1025.0)
    number, k = nearest_integer(inside)
    fraction = inside - number
    r = fraction * LN2[0]
    low = fraction.fma(LN2[1], fraction.fma(LN2[0], -r))
    return scale_by_power(r + (r * r).fma(polynomial(EXP_TAIL, r), low) + 1.0, k)


def reduce_exponent_finely(x: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """x = k ln 2 + r + r_low, |r| <= ln(2)/2: (r, r_low, k)."""
    number, k = nearest_integer(x, LOG2_E[0])
    leading = number.fma(-LN2[0], x)
    r = number.fma(-LN2[1], leading)
    return r, number.fma(-LN2[1], leading - r), k


def expm1(x: Lanes) -> Lanes:
    """e^x - 1 = 2^k (e^r - 1) + (2^k - 1)."""
    r, r_low, k = reduce_exponent_finely(clamp(x, -60.0, EXP_HIGH))
    top = k > 1023
    scale = power_of_two(top.select(1023, k))
    total, lost = sum_in_any_order(scale - 1.0, scale * r)
    result = total + scale.fma((r * r).fma(polynomial(EXP_TAIL, r), r_low), lost)
    return x.equals(0.0).select(x, result * top.select(scale.like(2.0), 1.0))


def _half_of_exponentials(size: Lanes, sign: float) -> Lanes:
    """(e^x + sign e^-x)/2 for x >= 0: the powers of two, what is linear in r and the rest are added apart."""
    r, r_low, k = reduce_exponent_finely(clamp(size, 0.0, 710.8))
    grown = power_of_two(k - 2)
    shrunk = power_of_two(-2 - (k > 1000).select(1000, k)) * sign
    square = r * r
    rest = grown * square.fma(polynomial(EXP_TAIL, r), r_low)
    rest = shrunk.fma(square.fma(polynomial(EXP_TAIL, -r), -r_low), rest)
    slope = grown - shrunk
    linear = r * slope
    total, lost = sum_in_any_order(grown + shrunk, linear)
    return (total + (lost + (r.fma(slope, -linear) + rest))) * 2.0


def sinh(x: Lanes) -> Lanes:
    """(e^x - e^-x)/2."""
    size = x.abs()
    return (size < 2.0**-28).select(size, _half_of_exponentials(size, -1.0)).copysign(x)


def cosh(x: Lanes) -> Lanes:
    """(e^x + e^-x)/2."""
    return _half_of_exponentials(x.abs(), 1.0)


def tanh(x: Lanes) -> Lanes:
    """x + x^3 P/Q of x^2 below 5/8, else 1 - 2/(e^2x + 1), with one division for both (Cephes tanh.c)."""
    size = x.abs()
    small = size < 0.625
    z = size * size
    above = small.select(z * polynomial(TANH_TAIL, z), 2.0)
    below = small.select(polynomial(TANH_TAIL_BELOW, z), exp(size + size) + 1.0)
    ratio = above / below
    return small.select(size.fma(ratio, size), 1.0 - ratio).copysign(x)


def logistic(x: Lanes) -> Lanes:
    """1/(1 + e^-x): with e = e^-|x| it is e/(1 + e) or 1/(1 + e), the division corrected by its remainder."""
    size = clamp(x.abs(), 0.0, 746.0)
    r, k = reduce_exponent(-size)
    rest = expm1_reduced(r)
    far = size > 40.0
    scale = power_of_two((k < -64).select(-64, k))
    high, low = two_sum(scale, scale * rest)
    negative = x < 0.0
    top, top_low = negative.select(high, 1.0), negative.select(low, 0.0)
    bottom, bottom_low = two_sum(high.like(1.0), high)
    inverse = 1.0 / bottom
    quotient = top * inverse
    remainder = quotient.fma(-bottom, top) + quotient.fma(-(bottom_low + low), top_low)
    near = remainder.fma(inverse, quotient)
    limit = negative.select(scale_by_power(rest + 1.0, k), 1.0)
    return far.select(limit, near)
