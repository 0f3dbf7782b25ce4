"""Factorisations and triangular solves: written out when small, else in memory, when large with loops over steps."""

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
    70,
)  # written out, padded, whole vectors, one more, several vectors, beyond written-out steps


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


@pytest.mark.parametrize("shape", [(12, 9), (9, 12), (2, 10, 10)])
def test_lu_of_other_shapes(shape):
    a = np.random.default_rng(0).normal(size=shape)
    for mine, theirs in zip(native.jit(jax.lax.linalg.lu)(a), jax.lax.linalg.lu(a), strict=True):
        near(mine, theirs)


def test_lu_of_a_singular_matrix():
    a = np.zeros((12, 12))
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


def test_cholesky_reads_the_lower_triangle_of_each_matrix():
    a = matrices(26, 2)
    positive = a @ np.swapaxes(a, -1, -2) + np.eye(26)
    spoilt = positive + np.triu(np.ones((26, 26)), 1)
    factor = native.jit(lambda m: jax.lax.linalg.cholesky(m, symmetrize_input=False))
    near(factor(spoilt), np.linalg.cholesky(positive))


def test_cholesky_of_a_matrix_that_is_not_positive_is_not_a_number():
    assert np.isnan(native.jit(jnp.linalg.cholesky)(-np.eye(30))).any()


@pytest.mark.parametrize("n, columns", [(9, 60), (26, 7)])
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


def test_each_lane_has_the_bits_of_the_single_program():
    def function(a, v):
        return jnp.linalg.solve(a, v), jnp.linalg.cholesky(a @ a.T + jnp.eye(26)), jnp.linalg.inv(a)

    a, v = matrices(26, 9), np.random.default_rng(2).normal(size=(9, 26))
    together, alone = native.vmap(function)(a, v), native.jit(function)
    for k in range(9):
        one = alone(np.array(a[k]), np.array(v[k]))
        assert all(np.array_equal(mine[k], other) for mine, other in zip(together, one, strict=True))


def test_gradient_of_a_solve_in_a_loop():
    a = matrices(15) + 8 * np.eye(15)

    def loss(a, v):
        def turn(_, x):
            return jnp.linalg.solve(a + 0.01 * x[0] * jnp.eye(15), x)

        return jnp.sum(jax.lax.fori_loop(0, 5, turn, v) ** 2)

    found = native.jit(jax.grad(loss, argnums=(0, 1)))(a, a[0])
    for mine, theirs in zip(found, jax.jit(jax.grad(loss, argnums=(0, 1)))(a, a[0]), strict=True):
        near(mine, theirs)
