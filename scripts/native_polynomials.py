"""Fits the polynomials of knuckle/native/vecmath/coefficients.py and writes that file.

Each entry is a function, an interval and the degrees of numerator and denominator. The fit interpolates at
Chebyshev nodes in 80 digits, which is within a small factor of the minimax error; the relative error reached is
written beside the coefficients. Usage: python scripts/native_polynomials.py > knuckle/native/vecmath/coefficients.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
from mpmath import mpf

mp: Any = mpmath.mp

mp.dps = 80
Number = Any  # an mpf
Real = Callable[[Number], Number]


def chebyshev_nodes(low: Number, high: Number, count: int) -> list[Number]:
    """Roots of the Chebyshev polynomial of degree `count`, moved to [low, high]."""
    return [(low + high) / 2 + (high - low) / 2 * mp.cospi((2 * k + 1) / mpf(2 * count)) for k in range(count)]


def fit(function: Real, low: Number, high: Number, top: int, bottom: int) -> tuple[list[Number], list[Number]]:
    """Rational interpolant p/q with q(0) = 1, as two lists of coefficients in ascending order."""
    nodes = chebyshev_nodes(low, high, top + bottom + 1)
    rows = [[x**k for k in range(top + 1)] + [-function(x) * x**k for k in range(1, bottom + 1)] for x in nodes]
    solution = mp.lu_solve(mp.matrix(rows), mp.matrix([function(x) for x in nodes]))
    values = list(solution)
    return values[: top + 1], [mpf(1), *values[top + 1 :]] if bottom else []


def relative_error(function: Real, top: list[Number], bottom: list[Number], low: Number, high: Number) -> Number:
    """Largest relative error of the fit on a grid, with the coefficients rounded to double."""
    grid = [low + (high - low) * k / 499 for k in range(500)]
    rounded = [[mpf(float(c)) for c in reversed(part)] for part in (top, bottom or [mpf(1)])]
    return max(abs(mp.polyval(rounded[0], x) / mp.polyval(rounded[1], x) / function(x) - 1) for x in grid)


def series(function: Real, divisor: Real, limit: Number) -> Real:
    """function/divisor, with its limit at the removable singularity 0."""
    return lambda x: function(x) / divisor(x) if x else limit


def of_square(function: Real) -> Real:
    """The even function as a function of z = x^2."""
    return lambda z: function(mp.sqrt(z))


def half_log_ratio(z: Number) -> Number:
    """(atanh(s) - s) / s^3 at z = s^2, the tail of log((1+s)/(1-s)) / 2."""
    return series(lambda z: mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: z, mpf(1) / 3)(z)


def odd_tail(function: Real, limit: Number) -> Real:
    """(function(x)/x - 1) / x^2 as a function of z = x^2."""
    return series(lambda z: function(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: z, limit)


LN2_HALF = mp.log(2) / 2
QUARTER = mp.pi / 4 * (1 + mpf(2) ** -10)
THIRD = mpf(1) / 3
LOG_Z = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mpf("1.001")

ERFC_MIDDLE = mpf(4)


def log_tail_beyond_cube(z: Number) -> Number:
    return (half_log_ratio(z) - THIRD) / z if z else mpf(1) / 5


def erf_tail(z: Number) -> Number:
    x = mp.sqrt(z)
    return (mp.erf(x) / x - 2 / mp.sqrt(mp.pi)) / z if z else -2 / (3 * mp.sqrt(mp.pi))


def scaled_erfc(x: Number) -> Number:
    """(1 + 2x) exp(x^2) erfc(x): between 1 and 1.3 for all x >= 0 (Shepherd and Laframboise 1981)."""
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def erfc_tail(t: Number) -> Number:
    def slope(x: Number) -> Number:
        return mp.diff(scaled_erfc, x) * 2 * ERFC_MIDDLE

    x = ERFC_MIDDLE * (1 + t) / (1 - t)
    return (scaled_erfc(x) - scaled_erfc(ERFC_MIDDLE)) / t if t else slope(ERFC_MIDDLE)


def erf_inv_of_w(w: Number) -> Number:
    """erf_inv(x)/x as a function of w = -log(1 - x^2)."""
    if not w:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    log_of_rest = -w - mp.log1p(x)  # log(1 - x)
    start = mp.sqrt(mp.pi) / 2 * x if w < 3 else mp.sqrt(w)
    return mp.findroot(lambda y: mp.log(mp.erfc(y)) - log_of_rest, start) / x


def erf_inv_of_root(middle: Number) -> Real:
    return lambda u: erf_inv_of_w((u + middle) ** 2) - (u + middle)


# name: (what it is, function, low, high, degree above, degree below)
FITS: dict[str, tuple[str, Real, Number, Number, int, int]] = {
    "EXP_TAIL": (
        "(exp(r) - 1 - r) / r^2",
        series(lambda r: mp.expm1(r) - r, lambda r: r * r, mpf(1) / 2),
        -LN2_HALF * mpf("1.001"),
        LN2_HALF * mpf("1.001"),
        9,
        0,
    ),
    "LOG_TAIL": ("(atanh(s) - s) / s^3 in s^2", half_log_ratio, mpf(0), LOG_Z, 6, 0),
    "SIN_TAIL": ("(sin(r) - r) / r^3 in r^2", odd_tail(mp.sin, mpf(-1) / 6), mpf(0), QUARTER**2, 5, 0),
    "COS_TAIL": (
        "(cos(r) - 1 + r^2/2) / r^4 in r^2",
        series(lambda z: mp.cos(mp.sqrt(z)) - 1 + z / 2, lambda z: z * z, mpf(1) / 24),
        mpf(0),
        QUARTER**2,
        5,
        0,
    ),
    "TANH_TAIL": ("(tanh(x)/x - 1) / x^2 in x^2", odd_tail(mp.tanh, -THIRD), mpf(0), mpf("0.391"), 3, 3),
    "LOG_TAIL_5": ("(atanh(s) - s - s^3/3) / s^5 in s^2", log_tail_beyond_cube, mpf(0), LOG_Z, 6, 0),
    "ASIN_TAIL": ("(asin(x)/x - 1) / x^2 in x^2", odd_tail(mp.asin, mpf(1) / 6), mpf(0), mpf("0.2501"), 12, 0),
    "ERF_TAIL": ("erf(x)/x - 2/sqrt(pi), over x^2, in x^2", erf_tail, mpf(0), mpf("1.0001"), 12, 0),
    "ERFC_TAIL": (
        "(w(t) - w(0)) / t, w = (1 + 2x) exp(x^2) erfc(x) in t = (x - 4)/(x + 4)",
        erfc_tail,
        (mpf("0.49") - ERFC_MIDDLE) / (mpf("0.49") + ERFC_MIDDLE),
        (mpf(28) - ERFC_MIDDLE) / (mpf(28) + ERFC_MIDDLE),
        27,
        0,
    ),
    "ERF_INV_LOW": ("erf_inv(x)/x in w = -log(1 - x^2) below 4", erf_inv_of_w, mpf(0), mpf("4.001"), 19, 0),
    "ERF_INV_MIDDLE": (
        "erf_inv(x)/x - sqrt(w) in sqrt(w) - 3, w from 4 to 16",
        erf_inv_of_root(mpf(3)),
        mpf("-1.001"),
        mpf("1.001"),
        26,
        0,
    ),
    "ERF_INV_HIGH": (
        "erf_inv(x)/x - sqrt(w) in sqrt(w) - 5, w from 16 on",
        erf_inv_of_root(mpf(5)),
        mpf("-1.001"),
        mpf("1.01"),
        18,
        0,
    ),
    "CBRT_GUESS": ("cube root", mp.cbrt, mpf("0.35"), mpf("2.83"), 5, 0),
    "ATAN_TAIL": ("(atan(u)/u - 1) / u^2 in u^2", odd_tail(mp.atan, -THIRD), mpf(0), mpf("0.29845"), 13, 0),
}


def print_fit(name: str) -> None:
    what, function, low, high, top_degree, bottom_degree = FITS[name]
    top, bottom = fit(function, low, high, top_degree, bottom_degree)
    error = relative_error(function, top, bottom, low, high)
    print(f"\n# {what} on [{mp.nstr(low, 6)}, {mp.nstr(high, 6)}], relative error {mp.nstr(error, 2)}")
    for suffix, part in (("", top), ("_BELOW", bottom)):
        if part:
            print(f"{name}{suffix} = (")
            for value in part:
                print(f"    {float(value)!r},")
            print(")")


def print_split(name: str, value: Number, parts: int) -> None:
    """The value as a sum of `parts` doubles, each the rest of the one before."""
    split = []
    for _ in range(parts):
        split.append(float(value))
        value = value - mpf(split[-1])
    print(f"{name} = ({', '.join(repr(part) for part in split)})")


def two_over_pi_words(count: int) -> list[int]:
    """The binary expansion of 2/pi in 64-bit words, behind one word of zeros."""
    with mp.workprec(64 * count + 128):
        digits = int(mp.floor(2 / mp.pi * mpf(2) ** (64 * count)))
    return [0, *((digits >> (64 * (count - 1 - k))) & (2**64 - 1) for k in range(count))]


def main() -> None:
    print('"""Constants of the vector functions, written by scripts/native_polynomials.py: do not edit."""\n')
    print_split("LN2", mp.log(2), 2)
    print_split("LOG2_E", 1 / mp.log(2), 2)
    print_split("PI_HALF", mp.pi / 2, 3)
    print_split("PI_QUARTER", mp.pi / 4, 2)
    print_split("TWO_OVER_SQRT_PI", 2 / mp.sqrt(mp.pi), 2)
    print_split("THIRD", THIRD, 2)
    print_split("SCALED_ERFC_AT_MIDDLE", scaled_erfc(ERFC_MIDDLE), 2)
    print(f"ERFC_MIDDLE = {float(ERFC_MIDDLE)!r}")
    print(f"TWO_OVER_PI = {float(2 / mp.pi)!r}")
    print("\n# 2/pi in 64-bit words behind one word of zeros\nTWO_OVER_PI_WORDS = (")
    for word in two_over_pi_words(20):
        print(f"    0x{word:016X},")
    print(")")
    for name in FITS:
        print_fit(name)


if __name__ == "__main__":
    main()
