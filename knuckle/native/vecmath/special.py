"""The error function and its kin, and the cube root."""

from __future__ import annotations

from .coefficients import (
    CBRT_GUESS,
    ERF_INV_HIGH,
    ERF_INV_LOW,
    ERF_INV_MIDDLE,
    ERF_TAIL,
    ERFC_MIDDLE,
    ERFC_TAIL,
    SCALED_ERFC_AT_MIDDLE,
    TWO_OVER_SQRT_PI,
)
from .exponential import INFINITY, clamp, expm1_of_sum, nearest_integer, power_of_two, reduce_exponent, scale_by_power
from .lanes import Lanes, polynomial, two_product, two_sum
from .logarithm import NAN, log_of_sum, split_exponent


def _erf_below_one(x: Lanes) -> tuple[Lanes, Lanes]:
    """erf(x) for |x| <= 1 as a sum of two doubles."""
    z = x * x
    high = x * TWO_OVER_SQRT_PI[0]
    low = x.fma(TWO_OVER_SQRT_PI[1], x.fma(TWO_OVER_SQRT_PI[0], -high))
    return high, (x * z).fma(polynomial(ERF_TAIL, z), low)


def _erfc_from_half(x: Lanes) -> Lanes:
    """erfc(x) for x >= 1/2: e^(-x^2) w(t)/(1 + 2x), t = (x - a)/(x + a) (Shepherd and Laframboise 1981)."""
    x = clamp(x, 0.5, 28.0)
    t = (x - ERFC_MIDDLE) / (x + ERFC_MIDDLE)
    change = t * polynomial(ERFC_TAIL, t)
    w, w_low = two_sum(x.like(SCALED_ERFC_AT_MIDDLE[0]), change)
    w_low = w_low + SCALED_ERFC_AT_MIDDLE[1]
    bottom, bottom_low = two_sum(x + x, x.like(1.0))
    inverse = 1.0 / bottom
    ratio = w * inverse
    ratio_low = (ratio.fma(-bottom, w) + ratio.fma(-bottom_low, w_low)) * inverse
    square, square_low = two_product(x, x)
    r, k = reduce_exponent(-square)
    growth = expm1_of_sum(r, -square_low)
    return scale_by_power(ratio + ratio.fma(growth, ratio_low.fma(growth, ratio_low)), k)


def erf(x: Lanes) -> Lanes:
    """The error function."""
    size = x.abs()
    high, low = _erf_below_one(size)
    return (size < 1.0).select(high + low, 1.0 - _erfc_from_half(size)).copysign(x)


def erfc(x: Lanes) -> Lanes:
    """1 - erf(x), accurate where it is small."""
    high, low = _erf_below_one(x)
    total, lost = two_sum(x.like(1.0), -high)
    tail = _erfc_from_half(x.abs())
    tail = (x < 0.0).select(2.0 - tail, tail)
    return (x.abs() < 0.5).select(total + (lost - low), tail)


def erf_inv(x: Lanes) -> Lanes:
    """The inverse of erf: x times a polynomial of w = -log(1 - x^2), or of its root (Giles 2012)."""
    size = x.abs()
    inside = (size < 1.0).select(size, 0.5)
    w = -log_of_sum((1.0 - inside) * (1.0 + inside))
    w = (w > 0.0).select(w, 0.0)
    root = w.sqrt()
    lost = root.fma(-root, w) / (root + root)
    change = (root < 4.0).select(polynomial(ERF_INV_MIDDLE, root - 3.0), polynomial(ERF_INV_HIGH, root - 5.0))
    beyond = root + (change + lost)
    slope = (root < 2.0).select(w.fma(polynomial(ERF_INV_LOW[1:], w), ERF_INV_LOW[0]), beyond)
    result = size.equals(1.0).select(INFINITY, inside * slope)
    return (size <= 1.0).select(result, NAN).copysign(x)


def cbrt(x: Lanes) -> Lanes:
    """The cube root: a polynomial guess and three Newton steps, the last with the remainder in twice the precision."""
    size = x.abs()
    finite = (size > 0.0) & (size < INFINITY)
    m, k = split_exponent(finite.select(size, 1.0))
    third, third_integer = nearest_integer(k.to_double(), 1.0 / 3.0)
    _, rest = nearest_integer(k.to_double() - third * 3.0)
    m = m * power_of_two(rest)
    inverse = 1.0 / (m * 3.0)
    y = polynomial(CBRT_GUESS, m)
    for _ in range(2):
        y = y - (y * y).fma(y, -m) * (y * inverse)
    square, square_low = two_product(y, y)
    remainder = square.fma(y, -m) + square_low * y
    y = y - remainder * (y * inverse)
    return finite.select(y * power_of_two(third_integer), x).copysign(x)
