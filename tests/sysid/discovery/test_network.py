"""The penalised step: a minimum by its optimality conditions, with exact zeros."""

from __future__ import annotations

import numpy as np

from knuckle.sysid.discovery.network import Groups, block_descent, one_standard_error, penalised_step


def problem(seed=0, size=13):
    rng = np.random.default_rng(seed)
    J = rng.normal(size=(40, size))
    return J.T @ J, J.T @ rng.normal(size=40), rng


def test_block_descent_meets_the_optimality_conditions():
    """At a minimum the slope of a living block is -kappa W / |W|, that of a dead one is no longer than kappa."""
    A, b, _ = problem(size=12)
    blocks = [np.arange(3 * k, 3 * k + 3) for k in range(4)]
    kappa = np.array([0.5, 3.0, 8.0, 1e3])
    x = block_descent(A, b, np.zeros(12), blocks, kappa)
    for g, weight in zip(blocks, kappa, strict=True):
        slope, size = b[g] + A[g] @ x, np.linalg.norm(x[g])
        if size == 0:
            assert np.linalg.norm(slope) <= weight
        else:
            np.testing.assert_allclose(slope, -weight * x[g] / size, atol=1e-6)
    assert not x[blocks[3]].any() and x[blocks[0]].any()


def test_a_penalised_step_eliminates_the_other_weights_exactly():
    """Without a lasso it is the ridge solution; a frozen group stays at zero."""
    A, b, rng = problem()
    groups = Groups([np.arange(3), np.arange(3, 6)], [0, 0], [0, 1], np.arange(6, 13), [np.arange(13)])
    now, none = rng.normal(size=13), np.zeros(2)
    ridge = np.diag(np.r_[np.zeros(6), np.full(7, 2.0)])
    moved = penalised_step(A, b, now, groups, none, 2.0, np.zeros(2, bool))
    np.testing.assert_allclose(moved, np.linalg.solve(A + ridge, A @ now - b), atol=1e-6)
    moved = penalised_step(A, b, now, groups, none, 2.0, np.array([False, True]))
    kept = np.r_[0:3, 6:13]
    np.testing.assert_allclose(
        moved[kept], np.linalg.solve((A + ridge)[np.ix_(kept, kept)], (A @ now - b)[kept]), atol=1e-6
    )
    assert not moved[3:6].any()


def test_the_last_within_one_standard_error_is_chosen():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=30)
    errors = [5 + shared, 1 + shared, 1 + shared + 0.1 * rng.normal(size=30), 3 + shared, np.full(30, np.inf)]
    errors[2] -= errors[2].mean() - errors[1].mean()
    assert one_standard_error(errors) == 2
