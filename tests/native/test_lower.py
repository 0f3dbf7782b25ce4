"""Native code against `jax.jit` on programs of every family of primitives, alone and over a batch."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native_customers import CUSTOMERS

from knuckle import native
from knuckle.native import compile as native_compiler
from knuckle.native import schedule

# each result is a sum of at most some hundred terms of the size of its inputs; both sides round each of them
TOLERANCE = 1e-11


def flat_numpy(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


@pytest.fixture(autouse=True)
def jax_numpy_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", CUSTOMERS)
def test_native_equals_jax(name):
    function, arguments = CUSTOMERS[name]
    arguments = jax.tree.map(np.asarray, arguments)
    expected = flat_numpy(jax.jit(function)(*arguments))
    found = flat_numpy(native.jit(function)(*arguments))
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        scale = max(1.0, float(np.max(np.abs(theirs), initial=0, where=np.isfinite(theirs)))) if mine.size else 1.0
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE * scale)


@pytest.mark.parametrize("name", CUSTOMERS)
def test_code_without_optimisations_has_the_same_bits(name, monkeypatch):
    function, arguments = CUSTOMERS[name]
    arguments = jax.tree.map(np.asarray, arguments)
    usual = flat_numpy(native.jit(function)(*arguments))
    monkeypatch.setattr(native_compiler, "CODEGEN_LEVEL", 0)
    quick = flat_numpy(native.jit(function)(*arguments))
    for one, other in zip(quick, usual, strict=True):
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def varied(leaf, count):
    generator = np.random.default_rng(leaf.size)
    rows = np.stack([leaf] * count)
    return rows * generator.uniform(0.8, 1.2, rows.shape) if leaf.dtype.kind == "f" else rows


@pytest.mark.parametrize("name", CUSTOMERS)
def test_each_lane_has_the_bits_of_the_single_program(name):
    function, arguments = CUSTOMERS[name]
    leaves, tree = jax.tree.flatten(jax.tree.map(np.asarray, arguments))
    count = 11  # a full group of lanes and a remainder, whether lanes are 2, 4 or 8
    rows = [varied(leaf, count) for leaf in leaves]
    together = flat_numpy(native.vmap(function)(*jax.tree.unflatten(tree, rows)))
    alone = native.jit(function)
    for k in range(count):
        single = flat_numpy(alone(*jax.tree.unflatten(tree, [np.array(row[k]) for row in rows])))
        for mine, one in zip(together, single, strict=True):
            assert np.array_equal(mine[k], one, equal_nan=mine.dtype.kind == "f"), (name, k)


def test_constants_closed_over_fold_away():
    weights = np.diag([1.0, 0.0, 2.0])
    free = native.jit(lambda w, x: w @ x).compiled(weights, np.ones(3))
    folded = native.jit(lambda x: weights @ x).compiled(np.ones(3))
    assert free.kinds["fma"] + free.kinds["mul"] == 9
    assert folded.kinds.get("mul", 0) + folded.kinds.get("fma", 0) == 1  # 1 * x is x, 0 * x is 0


def test_a_product_with_a_constant_zero_is_zero_even_for_nan():
    assert native.jit(lambda x: x * 0.0)(np.array(np.nan)) == 0


def test_a_difference_of_equal_values_is_not_folded():
    assert np.isnan(native.jit(lambda x: x - x)(np.array(np.inf)))


def test_loop_invariant_code_leaves_the_loop():
    def function(x, y):
        return jax.lax.fori_loop(0, 1000, lambda i, s: s * 0.5 + jnp.sin(y) * jnp.cos(y * 2) + jnp.exp(y), x)

    text = native.jit(function).compiled(np.array(1.0), np.array(2.0))
    assert text.kinds["loop"] == 1 and text.kinds["sin"] == 1
    assert np.isclose(native.jit(function)(1.0, 2.0), jax.jit(function)(1.0, 2.0), rtol=1e-13)


def test_uncovered_primitive_is_named_with_the_users_line():
    def with_callback(x):
        return jax.pure_callback(lambda v: v, x, x)

    with pytest.raises(native.UnsupportedPrimitive, match=r"pure_callback.*test_lower\.py:\d+.*jax\.jit will do"):
        native.jit(with_callback)(np.ones(2))


def test_very_long_code_is_cut_and_still_right(short_pieces):
    def function(x):
        for k in range(400):
            x = jnp.sin(x) + 0.1 * jnp.roll(x, 1) * (k + 1) / 400
        return x

    x = np.linspace(-1, 1, 6)
    compiled = native.jit(function).compiled(x)
    assert compiled.operations["order"] > 5000  # or the cutting would not be tested
    eager = np.array(x)
    for k in range(400):
        eager = np.sin(eager) + 0.1 * np.roll(eager, 1) * (k + 1) / 400
    np.testing.assert_allclose(native.jit(function)(x), eager, rtol=1e-12)
    batch = np.stack([x * s for s in np.linspace(0.5, 1.5, 9)])
    together = native.vmap(function)(batch)
    assert all(np.array_equal(row, native.jit(function)(x)) for row, x in zip(together, batch, strict=True))


def test_long_loop_bodies_are_cut_too(short_pieces):
    def body(carry, x):
        start = carry
        for k in range(400):
            carry = 0.5 * jnp.cos(carry * (1 + k / 400)) + 0.05 * jnp.roll(carry, 1) * x
        return carry, start.sum()

    def function(x, xs):
        return jax.lax.scan(body, x, xs)

    x, xs = np.linspace(-1, 1, 6), np.array([0.3, 0.7, 0.1])
    compiled = native.jit(function).compiled(x, xs)
    assert compiled.operations["order"] > 5000
    state, sums = x, []
    for value in xs:
        sums.append(state.sum())
        for k in range(400):
            state = 0.5 * np.cos(state * (1 + k / 400)) + 0.05 * np.roll(state, 1) * value
    last, stacked = native.jit(function)(x, xs)
    np.testing.assert_allclose(last, state, rtol=1e-12)
    np.testing.assert_allclose(stacked, sums, rtol=1e-12)


def test_the_same_program_gives_the_same_machine_code():
    function, arguments = CUSTOMERS["pendulum gradient"]
    first = native.compile_jaxpr(jax.make_jaxpr(function)(*arguments))
    second = native.compile_jaxpr(jax.make_jaxpr(function)(*arguments))
    assert first.object_code == second.object_code


def test_sine_and_cosine_of_one_angle_survive_cutting(short_pieces):
    def function(x):
        for k in range(300):
            angles = x * (1 + k / 300)
            x = 0.5 * jnp.sin(angles) + 0.3 * jnp.roll(jnp.cos(angles), 1) * x + 0.1 * x[::-1]
        return x, jnp.sin(x).sum() * jnp.cos(x)

    x = np.linspace(-1, 1, 6)
    compiled = native.jit(function).compiled(x)
    assert compiled.kinds["sincos"] == 301 * 6 and compiled.operations["order"] > 5000
    with jax.disable_jit():
        expected = function(jnp.asarray(x))
    for mine, theirs in zip(native.jit(function)(x), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_log_gamma_between_and_at_its_poles():
    x = np.array(
        [
            np.inf,
            -np.inf,
            np.nan,
            0.0,
            -1.0,
            -7.0,
            -1e17,
            -2.5,
            -100.5,
            -19.999,
            1e-300,
            0.1,
            1.0,
            2.0,
            3.7,
            170.0,
            1e300,
        ]
    )
    found, expected = native.jit(jax.lax.lgamma)(x), np.asarray(jax.lax.lgamma(x))
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-14)  # the same series, summed in the same order


def test_more_results_than_are_ordered_together():
    def function(x):
        rows = [x * k + jnp.roll(x, k) ** 2 for k in range(1, 7)]
        return rows, [row + rows[0] for row in rows]

    x = np.linspace(-1, 1, 200)
    assert native.jit(function).compiled(x).kinds["store"] > schedule.TOGETHER
    for mine, theirs in zip(flat_numpy(native.jit(function)(x)), flat_numpy(jax.jit(function)(x)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE)


def test_elements_of_inputs_are_read_again_where_long_code_is_cut(short_pieces):
    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(w @ x)
        return jnp.sum(x**2)

    weights = [np.random.default_rng(k).normal(size=(16, 16)) / 4 for k in range(5)]
    x = np.linspace(-1, 1, 16)
    code = native.jit(jax.grad(loss)).compiled(weights, x)
    assert code.operations["order"] > 5000  # so it is cut
    assert code.workspace_bytes < 8 * 16 * 5 * 3  # a few values for each of the layers' elements, not the weights
    expected = jax.jit(jax.grad(loss))(weights, x)
    for mine, theirs in zip(native.jit(jax.grad(loss))(weights, x), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE)


def test_divisions_by_one_value_are_within_one_and_a_half_units_in_the_last_place():
    """One reciprocal and products: infinite where the divisor is subnormal, as docs/native.md says."""
    rng = np.random.default_rng(0)
    x, divisor = rng.normal(size=(2000, 4)), rng.normal(size=2000)
    found = native.vmap(lambda x, d: x / d)(x, divisor)
    quotients = [[Fraction(a) / Fraction(d) for a in row] for row, d in zip(x, divisor, strict=True)]
    off = [abs(Fraction(f) - q) / Fraction(np.spacing(abs(f))) for fs, qs in zip(found, quotients, strict=True)
           for f, q in zip(fs, qs, strict=True)]  # fmt: skip
    assert max(off) <= Fraction(3, 2)
    assert np.isinf(native.jit(lambda x, d: x / d)(np.ones(4), np.array(1e-310))).all()


def test_a_product_that_is_added_is_rounded_once():
    a, b = 1 + 2.0**-30, 1 - 2.0**-30
    assert native.jit(lambda a, b, c: a * b + c)(a, b, -1.0) == -(2.0**-60)
    assert a * b - 1 == 0  # rounded twice
