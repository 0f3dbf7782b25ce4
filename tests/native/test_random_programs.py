"""Random programs, loops and branches included, against evaluation with 60 digits, and special values against JAX."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from knuckle import native

SIZE = 3
mpmath.mp.dps = 60


def on_each(function):
    return np.vectorize(function, otypes=[object])


# name: (number of operands, in JAX, in mpmath); arguments are kept where the functions are tame
OPERATIONS = {
    "add": (2, lambda a, b: a + b, lambda a, b: a + b),
    "subtract": (2, lambda a, b: a - b, lambda a, b: a - b),
    "multiply": (2, lambda a, b: a * b, lambda a, b: a * b),
    "divide": (2, lambda a, b: a / (1 + b * b), lambda a, b: a / (1 + b * b)),
    "sin": (1, jnp.sin, on_each(mpmath.sin)),
    "cos": (1, jnp.cos, on_each(mpmath.cos)),
    "tanh": (1, jnp.tanh, on_each(mpmath.tanh)),
    "exp": (1, lambda a: jnp.exp(-a * a), on_each(lambda a: mpmath.exp(-a * a))),
    "log": (1, lambda a: jnp.log(1 + a * a), on_each(lambda a: mpmath.log(1 + a * a))),
    "sqrt": (1, lambda a: jnp.sqrt(1 + a * a), on_each(lambda a: mpmath.sqrt(1 + a * a))),
    "atan2": (2, lambda a, b: jnp.arctan2(a, 1 + b * b), on_each(lambda a, b: mpmath.atan2(a, 1 + b * b))),
    "reverse": (1, lambda a: a[::-1], lambda a: a[::-1]),
    "sum": (1, lambda a: jnp.full(SIZE, a.sum()), lambda a: np.array([a.sum()] * SIZE, object)),
    "cumsum": (1, jnp.cumsum, np.cumsum),
    "outer": (2, lambda a, b: jnp.outer(a, b) @ b, lambda a, b: np.outer(a, b) @ b),
    "gather": (1, lambda a: a[jnp.array([2, 0, 0])], lambda a: a[[2, 0, 0]]),
    "scatter": (2, lambda a, b: a.at[1].add(b[0]), lambda a, b: a + np.array([0, b[0], 0], object)),
}

straight = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8
)
blocks = st.lists(
    st.tuples(st.sampled_from(["plain", "loop", "scan", "branch"]), straight, straight, st.integers(1, 12)),
    min_size=1,
    max_size=3,
)
inputs = st.lists(st.floats(-3, 3).filter(lambda v: abs(v) > 1e-6), min_size=SIZE, max_size=SIZE)


def evaluate(steps, values, exact: bool):
    """Each operation takes earlier values by number; the result is damped, so that loops stay bounded."""
    pool = list(values)
    for name, first, second in steps:
        arity, in_jax, in_mpmath = OPERATIONS[name]
        chosen = [pool[first % len(pool)], pool[second % len(pool)]][:arity]
        pool.append((in_mpmath if exact else in_jax)(*chosen))
    return pool[-1] / 4 + pool[0] / 8


def run_exactly(program, x):
    x = np.array([mpmath.mpf(float(v)) for v in x], object)
    sign = x[0] > 0
    state = x
    for kind, steps, others, turns in program:
        if kind == "plain":
            state = evaluate(steps, [state, x], True)
        elif kind == "branch":
            state = evaluate(steps if sign else others, [state, x], True)
        else:
            total = x * 0
            for _ in range(turns):
                state = evaluate(steps, [state, x], True)
                total = total + state
            state = state + total / turns if kind == "scan" else state
    return state


def in_jax(program):
    def function(x):
        sign = x[0] > 0
        state = x
        for kind, steps, others, turns in program:
            if kind == "plain":
                state = evaluate(steps, [state, x], False)
            elif kind == "branch":
                state = jax.lax.cond(
                    sign,
                    lambda s, steps=steps: evaluate(steps, [s, x], False),
                    lambda s, others=others: evaluate(others, [s, x], False),
                    state,
                )
            elif kind == "loop":
                state = jax.lax.fori_loop(0, turns, lambda _, s, steps=steps: evaluate(steps, [s, x], False), state)
            else:

                def body(s, _, steps=steps):
                    after = evaluate(steps, [s, x], False)
                    return after, after

                state, rows = jax.lax.scan(body, state, None, length=turns)
                state = state + rows.sum(0) / turns
        return state

    return function


def worst_error(found, exact):
    return max(abs(mpmath.mpf(float(a)) - b) for a, b in zip(np.asarray(found), exact, strict=True))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(blocks, inputs)
def test_error_is_at_most_four_times_that_of_xla(program, x):
    """XLA's error is the worst over the input and neighbours of it, as a single one may be zero by luck.

    It counts as half a unit in the last place of the result at least, the rounding of that result itself.
    """
    x = np.array(x)
    function = in_jax(program)
    exact = run_exactly(program, x)
    theirs = jax.jit(function)
    neighbours = [x] + [x * (1 + np.array(s) * 2.0**-52) for s in ([1, 1, 1], [-1, -1, -1], [1, -1, 1], [-1, 1, -1])]
    assume(all(np.isfinite(theirs(n)).all() for n in neighbours))  # beyond the range of doubles there is no error
    xla = max(worst_error(theirs(n), run_exactly(program, n)) for n in neighbours)
    moved = max(worst_error([float(v) for v in run_exactly(program, n)], exact) for n in neighbours)
    smallest = mpmath.mpf(2) ** -1060  # results among the subnormal numbers
    rounded = max(abs(value) for value in exact) * mpmath.mpf(2) ** -53
    assert worst_error(native.jit(function)(x), exact) <= 4 * max(xla, moved, rounded) + smallest


# no subnormal numbers: XLA takes them as zero, native code does not
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e308, -1e308, 3e-308, 710.0, -750.0, 1e22])
UNARY = [
    jnp.sin, jnp.cos, jnp.tan, jnp.exp, jnp.expm1, jnp.log, jnp.log1p, jnp.tanh, jnp.sinh, jnp.cosh, jnp.arcsin,
    jnp.arccos, jnp.arctan, jnp.sqrt, jax.lax.rsqrt, jnp.abs, jnp.sign, jnp.floor, jnp.ceil, jnp.round, jnp.isnan,
    jnp.isfinite,
    jax.nn.sigmoid, jax.scipy.special.erf, jnp.cbrt, jnp.square, jnp.negative, lambda x: x**3, lambda x: x**-2,
    lambda x: x.astype(jnp.int32), lambda x: x - x, jnp.cumsum, jnp.sort, jnp.argmax, jnp.max, jax.nn.softplus,
]  # fmt: skip
BINARY = [
    jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, jnp.arctan2, jnp.power, jnp.less,
    jnp.equal, jnp.fmod, jnp.where, jnp.hypot,
]  # fmt: skip


def same_specials(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-307)  # XLA may flush subnormal numbers to zero


@pytest.mark.parametrize("number", range(len(UNARY)))
def test_nan_and_infinity_come_out_as_in_jax(number):
    same_specials(native.jit(UNARY[number])(SPECIAL), jax.jit(UNARY[number])(SPECIAL))


@pytest.mark.parametrize("number", range(len(BINARY)))
def test_nan_and_infinity_of_two_operands(number):
    function = BINARY[number]
    if function is jnp.where:
        function = lambda a, b: jnp.where(a > b, a, b)  # noqa: E731
    left, right = (m.ravel() for m in np.meshgrid(SPECIAL, SPECIAL))
    same_specials(native.jit(function)(left, right), jax.jit(function)(left, right))
