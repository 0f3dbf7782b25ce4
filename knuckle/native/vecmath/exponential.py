"""exp, log and tanh: argument reduction by powers of two, then a polynomial."""

from __future__ import annotations

from .coefficients import EXP_TAIL, LN2, LOG2_E, LOG_TAIL, TANH_TAIL, TANH_TAIL_BELOW
from .lanes import Lanes, polynomial

ROUND_TO_INTEGER = 1.5 * 2.0**52  # adding it leaves the nearest integer in the low bits
EXPONENT_OF_ONE = 1023
MANTISSA_BITS = 52
INFINITY = float("inf")
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
SMALLEST_NORMAL = 2.0**-1022


def nearest_integer(x: Lanes) -> tuple[Lanes, Lanes]:
    """The nearest integer to |x| < 2^51, as a double and as an int64."""
    shifted = x + ROUND_TO_INTEGER
    number = shifted - ROUND_TO_INTEGER
    return number, shifted.bits() - shifted.like(ROUND_TO_INTEGER).bits()


def power_of_two(k: Lanes) -> Lanes:
    """2^k for integers -1022 <= k <= 1023."""
    return ((k + EXPONENT_OF_ONE) << MANTISSA_BITS).as_double()


def scale_by_power(x: Lanes, k: Lanes) -> Lanes:
    """x * 2^k for |k| <= 2044, rounded once even where the result is subnormal."""
    half = k.shift_signed(1)
    return x * power_of_two(half) * power_of_two(k - half)


def exp(x: Lanes) -> Lanes:
    """e^x."""
    inside = (x > 710.0).select(710.0, x)
    inside = (inside < -746.0).select(-746.0, inside)
    number, k = nearest_integer(inside * LOG2_E[0])
    r = number.fma(-LN2[0], inside)
    r = number.fma(-LN2[1], r)
    result = (r * r).fma(polynomial(EXP_TAIL, r), r) + 1.0
    return scale_by_power(result, k)


def split_exponent(x: Lanes) -> tuple[Lanes, Lanes]:
    """x > 0 as m * 2^k with m in [sqrt(1/2), sqrt(2)), k as a double."""
    tiny = x < SMALLEST_NORMAL
    bits = tiny.select(x * 2.0**54, x).bits()
    k = (bits - SQRT_HALF_BITS).shift_signed(MANTISSA_BITS)
    m = (bits - (k << MANTISSA_BITS)).as_double()
    return m, k.to_double() - tiny.select(m.like(54.0), 0.0)


def log_special(x: Lanes, result: Lanes, at_zero: float = -INFINITY) -> Lanes:
    """The result, corrected for x = 0, x < 0, infinity and NaN."""
    result = (x < INFINITY).select(result, x)
    result = x.equals(0.0).select(at_zero, result)
    return (x < 0.0).select(float("nan"), result)


def log(x: Lanes) -> Lanes:
    """Natural logarithm: with f = m - 1 and s = f/(2 + f), log(m) = f - (f^2/2 - s (f^2/2 + R)) (fdlibm e_log.c)."""
    m, k = split_exponent(x)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    tail = polynomial(LOG_TAIL, z) * z * 2.0
    correction = k.fma(LN2[1], s * (half_square + tail)) - half_square
    return log_special(x, k.fma(LN2[0], f + correction))


def tanh(x: Lanes) -> Lanes:
    """x + x^3 P/Q of x^2 below 5/8, else 1 - 2/(e^2x + 1), with one division for both (Cephes tanh.c)."""
    size = x.abs()
    small = size < 0.625
    z = size * size
    above = small.select(z * polynomial(TANH_TAIL, z), 2.0)
    below = small.select(polynomial(TANH_TAIL_BELOW, z), exp(size + size) + 1.0)
    ratio = above / below
    return small.select(size.fma(ratio, size), 1.0 - ratio).copysign(x)
