"""Special functions as JAX functions: those that JAX itself writes in terms of others, and series of our own."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax import special as jax_special

from knuckle.native.lower_derived import derived

EULER_TERMS = 9  # of the sum before the series of Euler and Maclaurin takes over
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)  # B_2, B_4, ..


def _in_double(function: Callable) -> Callable:
    """Single precision is worked out in double."""

    def wide(*arrays):
        dtype = jnp.result_type(*arrays)
        return function(*[x.astype(jnp.float64) for x in arrays]).astype(dtype)

    return wide


@derived("lgamma")
def lgamma(params, x):
    return _in_double(_lgamma)(x)


def _lgamma(x):
    """Lanczos' approximation with g = 7, n = 9, reflected below one half; infinite at the poles and at infinity."""
    coefficients = [
        676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
        -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
    ]  # fmt: skip
    reflected = x < 0.5
    z = jnp.where(reflected, -x, x - 1)
    series = jnp.full_like(x, 0.99999999999980993)
    for i, c in enumerate(coefficients):
        series = series + c / (z + (i + 1))
    log_t = np.log(7.5) + jnp.log1p(z / 7.5)
    value = 0.5 * np.log(2 * np.pi) + (z + 0.5 - (z + 7.5) / log_t) * log_t + jnp.log(series)
    beyond = jnp.abs(x) - jnp.floor(jnp.abs(x))  # |sin pi x| from the distance to the nearest integer
    sine = jnp.sin(np.pi * jnp.where(beyond > 0.5, 1 - beyond, beyond))
    mirrored = jnp.where(sine == 0, jnp.inf, np.log(np.pi) - jnp.log(sine) - value)
    return jnp.where(jnp.isinf(x), jnp.inf, jnp.where(reflected, mirrored, value))


@derived("digamma")
def digamma(params, x):
    return _in_double(_digamma)(x)


def _digamma(x):
    """By recurrence ten steps up, there an asymptotic series; reflected below 1/2 (Abramowitz, 6.3.5 to 6.3.18)."""
    reflected = x < 0.5
    z = jnp.where(reflected, 1 - x, x)
    steps = sum(1 / (z + k) for k in range(10))
    far = z + 10
    square = 1 / (far * far)
    series = jnp.zeros_like(x)
    for k in reversed(range(len(BERNOULLI))):
        series = (series + BERNOULLI[k] / (2 * k + 2)) * square
    value = jnp.log(far) - 0.5 / far - series - steps
    part = x - jnp.round(x)
    mirrored = jnp.where(part == 0, jnp.nan, value - np.pi / jnp.tan(np.pi * part))
    return jnp.where(reflected, mirrored, value)


@derived("zeta")
def zeta(params, s, q):
    return _in_double(_zeta)(s, q)


def _zeta(s, q):
    """Hurwitz' zeta function by the sum formula of Euler and Maclaurin, for s > 1 and q > 0, with JAX's edges."""
    total = jnp.zeros_like(s * q)
    for k in range(EULER_TERMS):
        total = total + (q + k) ** -s
    a = q + EULER_TERMS
    last = a**-s
    total = total + last * a / (s - 1) + 0.5 * last
    rising, power = s, last / a  # s (s + 1) .. over (2k)!, and a^(-s - 2k + 1)
    factorial = 2.0
    for k, bernoulli in enumerate(BERNOULLI):
        total = total + bernoulli / factorial * rising * power
        rising = rising * (s + 2 * k + 1) * (s + 2 * k + 2)
        power = power / (a * a)
        factorial *= (2 * k + 3) * (2 * k + 4)
    pole = (q <= 0) & (q == jnp.floor(q))
    outside = (s < 1) | ((q <= 0) & (s != jnp.floor(s)))
    even = jnp.where(s / 2 == jnp.floor(s / 2), jnp.inf, jnp.nan)
    total = jnp.where(pole, even, jnp.where(outside, jnp.nan, total))
    return jnp.where(s == 1, jnp.inf, total)


@derived("polygamma")
def polygamma(params, m, x):
    return _in_double(_polygamma)(m, x)


def _polygamma(m, x):
    sign = jnp.where(m / 2 == jnp.floor(m / 2), -1.0, 1.0)
    value = sign * jnp.exp(_lgamma(m + 1)) * _zeta(m + 1, x)
    whole = (m >= 0) & (m == jnp.floor(m))
    return jnp.where(m == 0, _digamma(x), jnp.where(whole, value, jnp.nan))


@derived("cumlogsumexp", reads=("axis", "reverse"))
def cumlogsumexp_scan(params, x):
    moved = jnp.moveaxis(x, params["axis"], 0)

    def step(total, row):
        total = jnp.logaddexp(total, row)
        return total, total

    start = jnp.full(moved.shape[1:], -jnp.inf, x.dtype)
    return jnp.moveaxis(lax.scan(step, start, moved, reverse=params["reverse"])[1], 0, params["axis"])


# Chebyshev coefficients, highest degree first: exp(-x) I1(x) / x by x / 2 - 2 up to x = 8, and
# exp(-x) I1(x) sqrt(x) by 32 / x - 2 beyond. Computed with 40 digits (80 nodes).
I1E_NEAR = (
    -3.541581772542136e-19, 2.7779141127610464e-18, -2.111421214358166e-17, 1.5536319577362005e-16,
    -1.1055969477353862e-15, 7.600684294735408e-15, -5.042185504727912e-14, 3.223793365945575e-13,
    -1.9839743977649436e-12, 1.1736186298890901e-11, -6.663489723502027e-11, 3.625590281552117e-10,
    -1.8872497517228294e-09, 9.381537386495773e-09, -4.445059128796328e-08, 2.0032947535521353e-07,
    -8.568720264695455e-07, 3.4702513081376785e-06, -1.3273163656039436e-05, 4.781565107550054e-05,
    -0.00016176081582589674, 0.0005122859561685758, -0.0015135724506312532, 0.004156422944312888,
    -0.010564084894626197, 0.024726449030626516, -0.05294598120809499, 0.1026436586898471, -0.17641651835783406,
    0.25258718644363365,
)  # fmt: skip
I1E_FAR = (
    -9.314178867326884e-19, 7.517296310842105e-18, 4.414348323071708e-18, -4.6503053684893586e-17,
    -3.209525921993424e-17, 2.96262899764595e-16, 3.3082023109209285e-16, -1.8803547755107825e-15,
    -3.8144030724370075e-15, 1.0420276984128802e-14, 4.272440016711951e-14, -2.1015418427726643e-14,
    -4.0835511110921974e-13, -7.198551776245908e-13, 2.0356285441470896e-12, 1.4125807436613782e-11,
    3.2526035830154884e-11, -1.8974958123505413e-11, -5.589743462196584e-10, -3.835380385964237e-09,
    -2.6314688468895196e-08, -2.512236237870209e-07, -3.882564808877691e-06, -0.00011058893876262371,
    -0.009761097491361469, 0.7785762350182801,
)  # fmt: skip


@derived("bessel_i1e")
def bessel_i1e(params, x):
    return _in_double(_bessel_i1e)(x)


def _bessel_i1e(x):
    size = jnp.abs(x)
    near = size <= 8
    small, large = jnp.where(near, size, 8.0), jnp.where(near, 8.0, size)
    by_series = jax_special.evaluate_chebyshev_polynomial(small / 2 - 2, np.array(I1E_NEAR)) * small
    far = jax_special.evaluate_chebyshev_polynomial(32 / large - 2, np.array(I1E_FAR)) / jnp.sqrt(large)
    value = jnp.where(near, by_series, far)
    return jnp.where(jnp.isnan(x), x, jnp.sign(x) * value)


def _as_jax_writes(name: str, function: Callable) -> None:
    @derived(name)
    def _(params, *arrays):
        return function(*arrays)


_as_jax_writes("bessel_i0e", jax_special.bessel_i0e_impl)
_as_jax_writes("igamma", jax_special._up_and_broadcast(jax_special.igamma_impl))
_as_jax_writes("igammac", jax_special._up_and_broadcast(jax_special.igammac_impl))
_as_jax_writes("igamma_grad_a", jax_special._up_and_broadcast(jax_special.igamma_grad_a_impl))
_as_jax_writes(
    "regularized_incomplete_beta", jax_special._up_and_broadcast(jax_special.regularized_incomplete_beta_impl)
)
