"""The linear-quadratic regulator against closed forms, and what it refuses."""

import numpy as np
import pytest

from knuckle.control import lqr

A, B = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.005], [0.1]])
Q, R = np.diag([1.0, 0.1]), np.array([[0.01]])


def quadratic_programme(steps, final, start, N):
    """The same controls by one dense least-squares problem over all of them."""
    n, nu = B.shape
    free = np.concatenate([np.linalg.matrix_power(A, t) for t in range(steps + 1)])
    forced = np.zeros(((steps + 1) * n, steps * nu))
    for t in range(1, steps + 1):
        for s in range(t):
            forced[t * n : (t + 1) * n, s * nu : (s + 1) * nu] = np.linalg.matrix_power(A, t - 1 - s) @ B
    weights = np.kron(np.diag([1.0] * steps + [0.0]), Q)
    weights[-n:, -n:] = final
    cross = np.zeros(((steps + 1) * n, steps * nu))
    for t in range(steps):
        cross[t * n : (t + 1) * n, t * nu : (t + 1) * nu] = N
    H = forced.T @ weights @ forced + np.kron(np.eye(steps), R) + forced.T @ cross + cross.T @ forced
    return np.linalg.solve(H, -(forced.T @ weights + cross.T) @ free @ start)


def test_a_finite_horizon_is_the_minimum_of_the_sum():
    steps, final, start, N = 8, np.diag([5.0, 2.0]), np.array([1.0, -0.4]), np.array([[0.01], [0.002]])
    found = lqr(A, B, Q, R, N=N, steps=steps, final=final)
    x, controls = start, []
    for gain in found.gain:
        controls.append(-gain @ x)
        x = A @ x + B @ controls[-1]
    np.testing.assert_allclose(np.ravel(controls), quadratic_programme(steps, final, start, N), atol=1e-11)


def test_an_infinite_horizon_is_the_limit_of_finite_ones_and_a_scalar_has_its_closed_form():
    infinite, long = lqr(A, B, Q, R), lqr(A, B, Q, R, steps=400)
    np.testing.assert_allclose(long.gain[0], infinite.gain, atol=1e-10)
    np.testing.assert_allclose(long.value[0], infinite.value, atol=1e-9)
    # x' = x + u, Q = R = 1: p = 1 + p - p^2 / (1 + p), the golden ratio
    p = lqr(np.eye(1), np.eye(1), np.eye(1), np.eye(1)).value[0, 0]
    assert abs(p - (1 + 5**0.5) / 2) < 1e-12


def test_matrices_may_differ_from_step_to_step():
    many = lqr(np.tile(A, (5, 1, 1)), np.tile(B, (5, 1, 1)), np.tile(Q, (5, 1, 1)), R, steps=5)
    np.testing.assert_allclose(many.gain, lqr(A, B, Q, R, steps=5).gain, atol=1e-14)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 2.0}, "steps must be a whole number"),
        ({"R": np.zeros((1, 1))}, "R must be positive definite"),
        ({"Q": -Q}, "Q must be positive semi-definite"),
        ({"Q": np.array([[1.0, 0.5], [0.0, 1.0]])}, "Q must be symmetric"),
        ({"B": np.zeros((3, 1))}, r"B must have shape \(2, 1\), got \(3, 1\)"),
        ({"A": A * np.nan}, "A must be finite, got nan"),
        ({"B": np.zeros((2, 1))}, "infinite horizon|not below 1"),
        ({"final": Q}, "needs steps"),
        ({"A": np.ones(2)}, "must be matrices"),
    ],
)
def test_bad_input_is_refused(given, message):
    arguments = {"A": A, "B": B, "Q": Q, "R": R} | given
    with pytest.raises(ValueError, match=message):
        lqr(**arguments)
