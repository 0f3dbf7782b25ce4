"""Small quadratic programmes over boxes: optimality conditions of random ones, in native code and by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle import native
from knuckle.control.box_newton import minimise_in_box


@pytest.mark.parametrize("size", [1, 2, 5])
def test_random_programmes_meet_the_optimality_conditions(size):
    """Free entries have no slope, others one that pushes outwards: 1e-9 of slopes of about one, after Cholesky."""
    rng, solve = np.random.default_rng(size), native.jit(minimise_in_box)
    held = 0
    for _ in range(200):
        half = rng.normal(size=(size, size + 1))
        H, g = half @ half.T + 1e-3 * np.eye(size), 3 * rng.normal(size=size)
        low, high = -rng.exponential(size=size), rng.exponential(size=size)
        low[rng.random(size) < 0.2], high[rng.random(size) < 0.2] = -np.inf, np.inf
        low[rng.random(size) < 0.1] = 0.0
        x, free, factor = solve(H, g, low, high)
        slope = g + H @ x
        assert np.all((x >= low) & (x <= high))
        assert np.max(np.abs(slope[free]), initial=0) < 1e-9 * (1 + np.abs(g).max())
        assert np.all(slope[~free & (x == low)] > 0) and np.all(slope[~free & (x == high)] < 0)
        assert np.all((x == low) | (x == high) | free)
        held += np.sum(~free)
        right = rng.normal(size=(size, 2))
        gain = native_solution(x, free, factor, right)
        np.testing.assert_allclose(H[np.ix_(free, free)] @ gain[free], right[free], atol=1e-8)
        assert np.all(gain[~free] == 0)
    assert held > 50  # bounds did hold


def native_solution(x, free, factor, right):
    from knuckle.control.box_newton import BoxSolution

    return np.asarray(BoxSolution(jnp.asarray(x), jnp.asarray(free), jnp.asarray(factor)).solve(jnp.asarray(right)))


@pytest.mark.parametrize("size", [1, 3])
def test_a_hessian_that_is_not_positive_definite_gives_no_number(size):
    H = -np.eye(size)
    for solve in (jax.jit(minimise_in_box), native.jit(minimise_in_box)):
        found = solve(H, np.ones(size), np.full(size, -np.inf), np.full(size, np.inf))
        assert not np.all(np.isfinite(found.x))
