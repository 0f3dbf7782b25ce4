"""Inverse trigonometric functions."""

from __future__ import annotations

from .coefficients import ASIN_TAIL, ATAN_TAIL, PI_HALF, PI_QUARTER
from .exponential import INFINITY
from .lanes import Lanes, polynomial


def atan_ratio(small: Lanes, large: Lanes) -> tuple[Lanes, Lanes]:
    """atan(small/large) for 0 <= small <= large, 0 < large < 2^1023, as (v, k): v + k pi/4 with |v| <= 1/2.

    Beyond tan(1/2) the difference above is exact and the angle at least 1/2, so the rounding of u counts little.
    """
    beyond = small > large * 0.5463024898437905
    above = beyond.select(small - large, small)
    below = beyond.select(small + large, large)
    u = above / below
    z = u * u
    v = (u * z).fma(polynomial(ATAN_TAIL, z), u)
    return v, beyond.select(v.like(1.0), 0.0)


def atan2(y: Lanes, x: Lanes) -> Lanes:
    """The angle of the point (x, y), with C's conventions for zeros and infinities."""
    size_x, size_y = x.abs(), y.abs()
    steep = size_y > size_x
    large = steep.select(size_y, size_x)
    small = steep.select(size_x, size_y)
    scale = (large > 2.0**1000).select(large.like(2.0**-4), (large < 2.0**-900).select(large.like(2.0**120), 1.0))
    infinite = large.equals(INFINITY)
    ratio_top = infinite.select(small.equals(INFINITY).select(small.like(1.0), 0.0), small * scale)
    ratio_bottom = (infinite | large.equals(0.0)).select(1.0, large * scale)
    v, k = atan_ratio(ratio_top, ratio_bottom)
    v, k = steep.select(-v, v), steep.select(2.0 - k, k)
    left = x.bits() < 0
    v, k = left.select(-v, v), left.select(4.0 - k, k)
    angle = k.fma(PI_QUARTER[0], k.fma(PI_QUARTER[1], v)).copysign(y)
    return (x.is_nan() | y.is_nan()).select(x + y, angle)


def atan(x: Lanes) -> Lanes:
    """The angle in [-pi/2, pi/2] whose tangent is x."""
    size = x.abs()
    steep = size > 1.0
    v, k = atan_ratio(steep.select(1.0, size), steep.select(size, 1.0))
    v, k = steep.select(-v, v), steep.select(2.0 - k, k)
    return k.fma(PI_QUARTER[0], k.fma(PI_QUARTER[1], v)).copysign(x)


def _asin_parts(size: Lanes) -> tuple[Lanes, Lanes, Lanes]:
    """(far, s, rest): asin(size) = s + rest up to 1/2, else pi/2 - 2 (s + rest) with s near sqrt((1 - size)/2)."""
    far = size > 0.5
    z = far.select((1.0 - size) * 0.5, size * size)
    root = z.sqrt()
    s = far.select(root, size)
    lost = root.fma(-root, z) / (root + root)
    lost = (far & (root > 0.0)).select(lost, 0.0)
    return far, s, (s * z).fma(polynomial(ASIN_TAIL, z), lost)


def asin(x: Lanes) -> Lanes:
    """The angle in [-pi/2, pi/2] whose sine is x."""
    far, s, rest = _asin_parts(x.abs())
    beyond = (PI_HALF[0] - (s + s)) + (PI_HALF[1] - (rest + rest))
    return far.select(beyond, s + rest).copysign(x)


def acos(x: Lanes) -> Lanes:
    """The angle in [0, pi] whose cosine is x."""
    far, s, rest = _asin_parts(x.abs())
    negative = x < 0.0
    twice, twice_rest = s + s, rest + rest
    beyond = negative.select((2 * PI_HALF[0] - twice) + (2 * PI_HALF[1] - twice_rest), twice + twice_rest)
    s, rest = negative.select(-s, s), negative.select(-rest, rest)
    near_high = PI_HALF[0] - s
    near = near_high + (((PI_HALF[0] - near_high) - s) + (PI_HALF[1] - rest))
    return far.select(beyond, near)
