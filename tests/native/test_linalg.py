"""Factorisations and triangular solves: written out when small, else in memory, when large in blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle import native

SIZES = (
    5,
    9,
    16,
    17,
    31,
    33,
    40,
    70,
)  # written out, padded, whole vectors, one more; in blocks: one more, whole, padded


def matrices(n, *lead):
    return np.random.default_rng(n).normal(size=(*lead, n, n))


def near(found, expected):
    """To 1e-12 of the largest entry: up to 70 products are added up in different orders."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("n", SIZES)
def test_lu_has_the_pivots_and_factors_of_jax(n):
    a = matrices(n)
    found, expected = native.jit(jax.lax.linalg.lu)(a), jax.lax.linalg.lu(a)
    near(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize("shape", [(12, 9), (9, 12), (2, 10, 10), (50, 34), (34, 50), (3, 40), (40, 3), (2, 35, 35)])
def test_lu_of_other_shapes(shape):
    a = np.random.default_rng(0).normal(size=shape)
    for mine, theirs in zip(native.jit(jax.lax.linalg.lu)(a), jax.lax.linalg.lu(a), strict=True):
        near(mine, theirs)


@pytest.mark.parametrize("n", [12, 36])
def test_lu_of_a_singular_matrix(n):
    a = np.zeros((n, n))
    a[3, 4], a[7, 2] = 2.0, -1.0
    for mine, theirs in zip(native.jit(jax.lax.linalg.lu)(a), jax.lax.linalg.lu(a), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("n", SIZES)
def test_cholesky_and_solve(n):
    a = matrices(n)
    positive = a @ a.T + np.eye(n)
    low = native.jit(jnp.linalg.cholesky)(positive)
    near(low @ low.T, positive)
    assert (np.triu(low, 1) == 0).all()
    x = native.jit(jnp.linalg.solve)(a, a[0])
    near(x, np.linalg.solve(a, a[0]))


@pytest.mark.parametrize("n", [26, 37])
@pytest.mark.parametrize("spoil", [1.0, np.nan])
def test_cholesky_reads_the_lower_triangle_of_each_matrix(n, spoil):
    a = matrices(n, 2)
    positive = a @ np.swapaxes(a, -1, -2) + np.eye(n)
    spoilt = positive + np.where(np.triu(np.ones((n, n)), 1) > 0, spoil, 0)
    factor = native.jit(lambda m: jax.lax.linalg.cholesky(m, symmetrize_input=False))
    near(factor(spoilt), np.linalg.cholesky(positive))


@pytest.mark.parametrize("n", [30, 45])
def test_cholesky_of_a_matrix_that_is_not_positive_is_not_a_number(n):
    assert np.isnan(native.jit(jnp.linalg.cholesky)(-np.eye(n))).any()


@pytest.mark.parametrize("n, columns", [(9, 60), (26, 7), (41, 1), (48, 16), (45, 11)])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_triangular_solves_with_many_columns(n, columns, left, lower):
    a = matrices(n) / n + 2 * np.eye(n)
    b = np.random.default_rng(1).normal(size=(n, columns) if left else (columns, n))

    def all_ways(a, b):
        options = [(transpose, unit) for transpose in (False, True) for unit in (False, True)]
        return [
            jax.lax.linalg.triangular_solve(a, b, left_side=left, lower=lower, transpose_a=t, unit_diagonal=u)
            for t, u in options
        ]

    for mine, theirs in zip(native.jit(all_ways)(a, b), all_ways(a, b), strict=True):
        near(mine, theirs)


@pytest.mark.parametrize("n", [20, 35])
def test_each_lane_has_the_bits_of_the_single_program(n):
    def function(a, v):
        return jnp.linalg.solve(a, v), jnp.linalg.cholesky(a @ a.T + jnp.eye(n)), jnp.linalg.inv(a)

    a, v = matrices(n, 9), np.random.default_rng(2).normal(size=(9, n))
    together, alone = native.vmap(function)(a, v), native.jit(function)
    for k in range(9):
        one = alone(np.array(a[k]), np.array(v[k]))
        assert all(np.array_equal(mine[k], other) for mine, other in zip(together, one, strict=True))


@pytest.mark.parametrize("n", [15, 34])
def test_gradient_of_a_solve_in_a_loop(n):
    a = matrices(n) + 8 * np.eye(n)

    def loss(a, v):
        def turn(_, x):
            return jnp.linalg.solve(a + 0.01 * x[0] * jnp.eye(n), x)

        return jnp.sum(jax.lax.fori_loop(0, 5, turn, v) ** 2)

    found = native.jit(jax.grad(loss, argnums=(0, 1)))(a, a[0])
    for mine, theirs in zip(found, jax.jit(jax.grad(loss, argnums=(0, 1)))(a, a[0]), strict=True):
        near(mine, theirs)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_spreads_as_in_jax(value):
    a, v = matrices(41), np.ones(41)
    for place in ((0, 0), (3, 39), (40, 40)):
        spoilt = np.array(a)
        spoilt[place] = value
        found, expected = native.jit(jnp.linalg.solve)(spoilt, v), np.asarray(jnp.linalg.solve(spoilt, v))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_ill_conditioned_matrices_are_factored_as_well_as_by_lapack():
    n = 60
    q, _ = np.linalg.qr(matrices(n))
    a = q @ np.diag(np.logspace(0, -14, n)) @ matrices(n)  # condition above 1e14
    positive = q @ np.diag(np.logspace(0, -12, n)) @ q.T
    packed, _, order = native.jit(jax.lax.linalg.lu)(a)
    low, up = np.tril(packed, -1) + np.eye(n), np.triu(packed)
    rounding = np.finfo(float).eps * n  # a small multiple of it bounds the backward error in practice
    assert np.abs(low @ up - a[order]).max() <= rounding * np.abs(a).max()
    factor = native.jit(jnp.linalg.cholesky)(positive)
    assert np.abs(factor @ factor.T - positive).max() <= rounding * np.abs(positive).max()
    v = np.ones(n)
    x = native.jit(lambda a, v: jax.scipy.linalg.solve_triangular(a, v, lower=True))(factor, v)
    assert np.abs(factor @ x - v).max() <= rounding * np.abs(factor).max() * np.abs(x).max()


def test_single_precision_and_views_that_are_not_contiguous():
    a = matrices(50).astype(np.float32)

    def function(a):
        turned = a[3:41, 5:43].T
        return jnp.linalg.solve(turned, a[:38, 0]), jnp.linalg.cholesky(
            turned @ turned.T + 10 * jnp.eye(38, dtype=a.dtype)
        )

    for mine, theirs in zip(native.jit(function)(a), jax.jit(function)(a), strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-4 * np.abs(theirs).max())  # condition 100 or so


def test_a_stack_inside_lanes_and_a_scan():
    a = matrices(36, 3) + 10 * np.eye(36)

    def function(a):
        stacked = jnp.linalg.solve(a, jnp.ones((3, 36, 2)))
        one_by_one = jax.lax.scan(lambda c, m: (c + 1, jnp.linalg.solve(m, jnp.ones(36)) * c), 1.0, a)[1]
        return stacked, one_by_one, native.lanes(lambda m: jnp.linalg.solve(m, jnp.ones(36)))(a)

    for mine, theirs in zip(native.jit(function)(a), jax.jit(function)(a), strict=True):
        near(mine, theirs)


def test_code_is_as_short_for_many_rows_as_for_few():
    def operations(function, *arguments):
        return native.jit(function).compiled(*arguments).operations["order"]

    gradient = jax.grad(lambda a, v: jnp.sum(jnp.linalg.solve(a, v) ** 2), argnums=(0, 1))
    assert operations(gradient, matrices(60), np.ones(60)) <= 6000  # 38,000 with steps written out
    for factor in (jax.lax.linalg.lu, jnp.linalg.cholesky):
        few, many = (operations(factor, matrices(n)) for n in (64, 256))
        assert many <= 1.1 * few <= 1500
