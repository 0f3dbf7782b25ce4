"""Logarithms, inverse hyperbolic functions and powers."""

from __future__ import annotations

from .coefficients import LN2, LOG2_E, LOG_TAIL, LOG_TAIL_5, THIRD
from .exponential import INFINITY, MANTISSA_BITS, exp_of_sum, power_of_two
from .lanes import SIGN_BIT, Lanes, polynomial, sum_in_any_order, two_product, two_sum

SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
SMALLEST_NORMAL = 2.0**-1022
NAN = float("nan")
LARGE = 2.0**28  # beyond, x^2 +- 1 is x^2


def split_exponent(x: Lanes) -> tuple[Lanes, Lanes]:
    """x > 0 as m * 2^k with m in [sqrt(1/2), sqrt(2)), k as an int64."""
    tiny = x < SMALLEST_NORMAL
    bits = tiny.select(x * 2.0**54, x).bits()
    k = (bits - SQRT_HALF_BITS).shift_signed(MANTISSA_BITS)
    m = (bits - (k << MANTISSA_BITS)).as_double()
    return m, k - tiny.select(k.like(54), 0)


def log_special(x: Lanes, result: Lanes) -> Lanes:
    """The result, corrected for x = 0, x < 0, infinity and NaN."""
    result = (x < INFINITY).select(result, x)
    result = x.equals(0.0).select(-INFINITY, result)
    return (x < 0.0).select(NAN, result)


def log_of_sum(high: Lanes, low: Lanes | None = None, doublings: Lanes | None = None) -> Lanes:
    """log((high + low) 2^doublings) for a low part below the last place of the high one, high positive and finite.

    With m = high/2^k, f = m - 1 and s = f/(2 + f): log(m) = f - (f^2/2 - s (f^2/2 + R)) (fdlibm e_log.c).
    """
    m, exponent = split_exponent(high)
    k = exponent.to_double()
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    tail = polynomial(LOG_TAIL, z) * z * 2.0
    total = k if doublings is None else k + doublings
    correction = total.fma(LN2[1], s * (half_square + tail)) - half_square
    if low is not None:
        rest = low * power_of_two(-(exponent > 1000).select(1000, exponent))
        correction = correction + rest * s.fma(-2.0, 1.0)
    return total.fma(LN2[0], f + correction)


def log(x: Lanes) -> Lanes:
    """Natural logarithm."""
    return log_special(x, log_of_sum(x))


def log1p(x: Lanes) -> Lanes:
    """log(1 + x)."""
    high, low = sum_in_any_order(x.like(1.0), x)
    result = log_special(high, log_of_sum(high, low))
    return x.equals(0.0).select(x, result)


def log2(x: Lanes) -> Lanes:
    """Logarithm to base 2, exact for powers of two."""
    m, exponent = split_exponent(x)
    high, low = _log_near_one(m)
    product = high * LOG2_E[0]
    rest = high.fma(LOG2_E[0], -product) + low.fma(LOG2_E[0], high * LOG2_E[1])
    total, error = two_sum(exponent.to_double(), product)
    return log_special(x, total + (error + rest))


def _log_near_one(m: Lanes) -> tuple[Lanes, Lanes]:
    """log(m) for m in [sqrt(1/2), sqrt(2)] as a sum of two doubles, within 2^-64 of it.

    2 atanh(s) with s = (m - 1)/(m + 1): s and s^3/3 in twice the precision, the rest in one.
    """
    f = m - 1.0
    bottom, bottom_low = two_sum(m.like(2.0), f)
    inverse = 1.0 / bottom
    s = f * inverse
    s_low = (s.fma(-bottom, f) - s * bottom_low) * inverse
    s, s_low = two_sum(s, s_low)
    z, z_low = two_product(s, s)
    z_low = (s + s).fma(s_low, z_low)
    cube, cube_low = two_product(s, z)
    cube_low = cube_low + s.fma(z_low, s_low * z)
    third = cube * THIRD[0]
    third_low = cube.fma(THIRD[0], -third) + cube_low.fma(THIRD[0], cube * THIRD[1])
    tail = cube * z * polynomial(LOG_TAIL_5, z)
    high, low = two_sum(s, third)
    low = low + (s_low + (third_low + tail))
    high, low = two_sum(high, low)
    return high + high, low + low


def log_in_two_parts(x: Lanes) -> tuple[Lanes, Lanes]:
    """log(x) of a positive finite x as a sum of two doubles."""
    m, exponent = split_exponent(x)
    k = exponent.to_double()
    high, low = _log_near_one(m)
    shift = k * LN2[0]
    shift_low = k.fma(LN2[1], k.fma(LN2[0], -shift))
    total, error = two_sum(shift, high)
    total, error = k.equals(0.0).select(high, total), k.equals(0.0).select(0.0, error)
    return two_sum(total, error + (shift_low + low))


def asinh(x: Lanes) -> Lanes:
    """log(|x| + sqrt(x^2 + 1)) with the sign of x, the sum in twice the precision."""
    size = x.abs()
    large = size > LARGE
    inside = large.select(1.0, size)
    square, square_low = two_product(inside, inside)
    under, under_low = sum_in_any_order(square, square.like(1.0))
    root = under.sqrt()
    root_low = (root.fma(-root, under) + (under_low + square_low)) / (root + root)
    high, low = two_sum(root, inside)
    high, low = large.select(size, high), large.select(0.0, low + root_low)
    result = log_of_sum(high, low, large.select(high.like(1.0), 0.0))
    result = (size < INFINITY).select(result, size)
    return (size < 2.0**-28).select(size, result).copysign(x)


def acosh(x: Lanes) -> Lanes:
    """log(1 + t + sqrt(2t + t^2)) with t = x - 1, the sum in twice the precision."""
    large = x > LARGE
    t = large.select(1.0, x) - 1.0
    square, square_low = two_product(t, t)
    under, under_low = sum_in_any_order(t + t, square)
    root = under.sqrt()
    root_low = (root.fma(-root, under) + (under_low + square_low)) / (root + root)
    root_low = (root > 0.0).select(root_low, 0.0)
    part, part_low = sum_in_any_order(t, root)
    high, low = sum_in_any_order(part.like(1.0), part)
    high, low = large.select(x, high), large.select(0.0, low + (part_low + root_low))
    result = log_of_sum(high, low, large.select(high.like(1.0), 0.0))
    result = (x < INFINITY).select(result, x)
    return (x < 1.0).select(NAN, result)


def atanh(x: Lanes) -> Lanes:
    """log((1 + x)/(1 - x))/2, the quotient in twice the precision."""
    size = x.abs()
    top, top_low = two_sum(size.like(1.0), size)
    bottom, bottom_low = two_sum(size.like(1.0), -size)
    ratio = top / bottom
    ratio_low = (ratio.fma(-bottom, top) + ratio.fma(-bottom_low, top_low)) / bottom
    result = log_of_sum(ratio, ratio_low) * 0.5
    result = (size < 2.0**-28).select(size, result)
    result = size.equals(1.0).select(INFINITY, result)
    result = (size <= 1.0).select(result, (size - size) / (size - size))
    return result.copysign(x)


def pow(x: Lanes, y: Lanes) -> Lanes:
    """x^y = e^(y log|x|), the exponent in twice the precision, with C's rules for signs, zeros and infinities."""
    size = x.abs()
    finite = (size > 0.0) & (size < INFINITY)
    high, low = log_in_two_parts(finite.select(size, 1.0))
    product = y * high
    product_low = y.fma(high, -product) + y * low
    result = exp_of_sum(product, product_low)
    result = finite.select(result, _power_of_zero_or_infinity(size, y))
    odd, integer = _is_odd(y), y.floor().equals(y)
    negative = x.bits() < 0
    result = odd.select(result.flip_sign(negative.to_mask() & SIGN_BIT), result)
    bad_base = negative & finite & (integer.to_mask().equals(0))
    result = bad_base.select(NAN, result)
    result = (x.is_nan() | y.is_nan()).select(x + y, result)
    infinite_power = y.abs().equals(INFINITY) & size.equals(1.0)
    return (x.equals(1.0) | y.equals(0.0) | infinite_power).select(1.0, result)


def _power_of_zero_or_infinity(size: Lanes, y: Lanes) -> Lanes:
    """0^y or infinity^y without regard to signs of the base; y is not 0."""
    grows = (size > 1.0).to_mask().equals((y > 0.0).to_mask())
    return grows.select(size.like(INFINITY), 0.0)


def _is_odd(y: Lanes) -> Lanes:
    """Whether y is an odd integer."""
    half = y * 0.5
    return y.floor().equals(y) & (half.floor().equals(half).to_mask().equals(0))
