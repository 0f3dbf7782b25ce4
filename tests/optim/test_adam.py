"""Adam on whole problems and on batches."""

import jax
import numpy as np
import pytest

from knuckle.optim import Adam, Smooth, Status, Stochastic


def regression(samples: int = 64) -> Stochastic:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(samples, 3))
    b = A @ [1.0, -2.0, 0.5]

    def loss(x, rows):
        r = A[rows] @ x - b[rows]
        return 0.5 * np.mean(r**2), r @ A[rows] / len(rows)

    return Stochastic(loss, 3, samples=samples, upper=[5, 5, 0.25])


def test_batches_lead_to_the_bounded_minimum_and_the_seed_decides_their_order():
    problem = regression()
    found = Adam(epochs=300, rate=0.02, batch=16)(problem, np.zeros(3))
    exact = np.linalg.lstsq(*_without_third(problem), rcond=None)[0]
    assert found.status is Status.MAX_ITERATIONS and found.iterations == 300
    np.testing.assert_allclose(found.x, [*exact, 0.25], atol=0.02)  # Adam circles at about its rate
    assert found.value == pytest.approx(problem.value_and_gradient(found.x)[0], rel=1e-12)
    again, other = (Adam(epochs=20, rate=0.02, batch=16, seed=s)(problem, np.zeros(3)) for s in (0, 1))
    np.testing.assert_array_equal(again.history, found.history[:21])
    assert not np.array_equal(other.x, again.x)


def _without_third(problem: Stochastic):
    """Normal equations of the first two parameters, the third at its bound."""
    columns = [problem.value_and_gradient(e)[1] - problem.value_and_gradient(np.zeros(3))[1] for e in np.eye(3)]
    H, g = np.stack(columns, axis=1), problem.value_and_gradient(np.array([0, 0, 0.25]))[1]
    return H[:2, :2], -g[:2]


def test_a_gradient_that_is_not_finite_refuses_the_step():
    def cliff(x):
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(x[0] - np.log(x[0])), 1 - 1 / x

    found = Adam(epochs=2000, rate=1.5)(Smooth(cliff, 1), [2.0])
    assert np.isfinite(found.value) and found.x[0] == pytest.approx(1, abs=1e-2)
    assert Adam()(Smooth(cliff, 1), [-1.0]).status is Status.NON_FINITE_START


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="batches of 4 need a Stochastic problem, got Smooth"):
        Adam(batch=4)(Smooth(lambda x: (0.0, x), 2), [0, 0])
    with pytest.raises(ValueError, match="samples: expected at least 1"):
        Stochastic(lambda x, rows: (0.0, x), 2, samples=0)


def test_steps_are_those_of_optax():
    optax, problem = pytest.importorskip("optax"), regression()
    transform, x = optax.adam(0.02), np.array([0.5, 0.1, 0.2])
    state = transform.init(x)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(20):
            step, state = transform.update(problem.value_and_gradient(x)[1], state)
            x = np.minimum(x + np.asarray(step), problem.upper)
    found = Adam(epochs=20, rate=0.02)(problem, [0.5, 0.1, 0.2])
    np.testing.assert_allclose(found.x, x, rtol=1e-9)


def test_the_rate_falls_so_that_batches_come_to_rest():
    problem = regression()
    rest, circling = (Adam(epochs=60, rate=0.05, last_rate=last, batch=4)(problem, np.zeros(3)) for last in (0.0, None))
    exact = [*np.linalg.lstsq(*_without_third(problem), rcond=None)[0], 0.25]
    assert np.abs(rest.x - exact).max() < 0.5 * np.abs(circling.x - exact).max()
    with pytest.raises(ValueError, match=r"last_rate: expected 0 to the rate 0\.001, got 1"):
        Adam(last_rate=1.0)


def test_the_value_over_all_samples_may_be_looked_up_alone():
    problem, looks = regression(), []
    plain = Adam(epochs=5, batch=16)(problem, np.zeros(3))
    problem.look = lambda x: looks.append(x) or problem.value_and_gradient(x)[0]
    found = Adam(epochs=5, batch=16)(problem, np.zeros(3))
    assert len(looks) == 5
    np.testing.assert_array_equal(found.history, plain.history)
    np.testing.assert_array_equal(found.gradient, problem.value_and_gradient(found.x)[1])
