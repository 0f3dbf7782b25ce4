"""The parts of the solve: bounded least squares, the prior's metric, log-Cholesky coordinates, blocks."""

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from knuckle.sysid.regression.consistent import LogCholesky, consistent_solution
from knuckle.sysid.regression.filters import Filter
from knuckle.sysid.regression.jackknife import standard_errors
from knuckle.sysid.regression.linear import solve_bounded
from knuckle.sysid.regression.prior import metric, parameters_of, pseudo_inertia, smallest_eigenvalues
from knuckle.sysid.regression.problem import inefficiency


def body(rng, links=3):
    """Pseudo-inertias of random bodies."""
    half = rng.normal(size=(links, 4, 4))
    return half @ np.swapaxes(half, 1, 2) + 0.1 * np.eye(4)


@pytest.mark.parametrize("seed", range(5))
def test_bounded_least_squares_is_that_of_scipy(seed):
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(30, 8)), rng.normal(size=30)
    lower = np.where(rng.random(8) < 0.5, 0.0, -np.inf)
    wanted = lsq_linear(A, b, (lower, np.inf), tol=1e-14).x
    np.testing.assert_allclose(solve_bounded(A.T @ A, A.T @ b, lower), wanted, atol=1e-6)


def test_the_prior_does_not_depend_on_the_frame_of_a_link():
    """tr(J0^-1 dJ J0^-1 dJ) is the same for T J T^T with any rigid transform T."""
    rng = np.random.default_rng(0)
    J, change = body(rng), 0.1 * body(rng)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    T = np.block([[turn, rng.normal(size=(3, 1))], [np.zeros((1, 3)), np.ones((1, 1))]])
    costs = []
    for X in (np.eye(4), T):
        moved, moved_change = X @ J @ X.T, X @ change @ X.T
        d = parameters_of(moved_change)
        costs.append(np.einsum("lk,lkm,lm->l", d, metric(moved), d))
    np.testing.assert_allclose(costs[1], costs[0], rtol=1e-9)


def test_log_cholesky_coordinates_return_the_body_and_their_jacobian_is_right():
    rng = np.random.default_rng(1)
    J = body(rng)
    chart = LogCholesky(body(rng))
    phi = chart.coordinates(parameters_of(J))
    np.testing.assert_allclose(pseudo_inertia(chart.inertial(phi)), J, rtol=1e-9)
    step = 1e-6 * rng.normal(size=phi.shape)
    difference = (chart.inertial(phi + step) - chart.inertial(phi - step)) / 2
    np.testing.assert_allclose(difference, np.einsum("lij,lj->li", chart.jacobian(phi), step), atol=1e-12)


def test_an_inconsistent_solution_becomes_the_best_consistent_one():
    """Where the linear solution is consistent it stays; elsewhere the result is consistent and better than clipping."""
    rng = np.random.default_rng(2)
    centre = body(rng, 2)
    A = rng.normal(size=(60, 21))
    H, lower = A.T @ A, np.append(np.full(20, -np.inf), 0.0)
    for good in (True, False):
        target = body(rng, 2)
        if not good:
            target[0, 0, 0] -= 1.5 * np.linalg.eigvalsh(target[0])[-1]
        theta = np.append(parameters_of(target).reshape(-1), 0.7)
        found = consistent_solution(H, H @ theta, theta, centre, lower)
        assert np.all(smallest_eigenvalues(found[:20].reshape(2, 10), centre) > 0)
        if good:
            np.testing.assert_allclose(found, theta, atol=1e-4)
        else:
            chart = LogCholesky(centre)
            clipped = np.append(chart.inertial(chart.coordinates(theta[:20].reshape(2, 10))).reshape(-1), 0.7)
            cost = [(x - theta) @ H @ (x - theta) for x in (found, clipped)]
            assert cost[0] < cost[1]


def test_the_filter_has_no_phase_and_passes_what_is_slow():
    time = np.arange(1000) / 100
    slow, fast = np.sin(2 * np.pi * 0.5 * time), np.sin(2 * np.pi * 30 * time)
    np.testing.assert_allclose(Filter(5.0, 100.0)(slow + fast)[100:-100], slow[100:-100], atol=1e-3)


def test_inefficiency_is_that_of_an_autoregression():
    """(1 + rho) / (1 - rho) of a first-order autoregression, to a fifth in 20000 samples; 1 of white noise."""
    rng = np.random.default_rng(0)
    x = np.zeros(20000)
    for k, e in enumerate(rng.normal(size=len(x) - 1), 1):
        x[k] = 0.8 * x[k - 1] + e
    np.testing.assert_allclose(inefficiency(x), 9.0, rtol=0.2)
    np.testing.assert_allclose(inefficiency(rng.normal(size=20000)), 1.0, atol=0.2)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    x = np.random.default_rng(0).normal(size=50)
    without = (x.sum() - x) / 49
    np.testing.assert_allclose(standard_errors(without[:, None])[0], x.std(ddof=1) / np.sqrt(50))
