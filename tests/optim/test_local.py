"""Local solvers against SciPy's, against closed forms, and at what goes wrong."""

import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, lsq_linear

from knuckle.optim import LBFGSB, LeastSquares, LevenbergMarquardt, Smooth, Status
from knuckle.optim.box_step import box_step
from knuckle.optim.robust import TUNED, as_squares, rho, weigh
from tests.optim.landscapes import (
    beale,
    differentiated,
    freudenstein_roth,
    osborne,
    powell_singular,
    rosenbrock,
)

seeds = st.integers(0, 2**32 - 1)
INF = np.inf
TIGHT: dict[str, Any] = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14}
STANDARD = {
    "rosenbrock": (rosenbrock, [-1.2, 1.0], -INF, INF),
    "rosenbrock, bound active": (rosenbrock, [-1.2, 1.0], [-2, -2], [0.5, 2]),
    "rosenbrock, start on a bound": (rosenbrock, [-2.0, 2.0], [-2, -2], [2, 2]),
    "powell singular": (powell_singular, [3.0, -1, 0, 1], -INF, INF),
    "powell singular, bounded": (powell_singular, [3.0, -1, 0.5, 1], [0.1, -20, 0.1, 0.2], 20.0),
    "freudenstein-roth": (freudenstein_roth, [0.5, -2.0], -INF, INF),
    "beale": (beale, [1.0, 1.0], -INF, INF),
    "beale, bound active": (beale, [1.0, 1.0], -INF, [2.5, 3.0]),
    "osborne": (osborne, [0.5, 1.5, -1.0, 0.01, 0.02], -INF, INF),
    "osborne, bounded": (osborne, [0.5, 1.5, -1.0, 0.01, 0.02], [0, 0, -3, 0.0, 0], [3, 3, 0, 0.1, 0.021]),
}


def problem_of(residuals, start, lower, upper) -> LeastSquares:
    return LeastSquares(differentiated(residuals), len(start), lower=lower, upper=upper)


@pytest.mark.parametrize("name", STANDARD)
def test_levenberg_marquardt_is_as_good_as_scipys_on_standard_problems(name):
    residuals, start, lower, upper = STANDARD[name]
    problem = problem_of(residuals, start, lower, upper)
    ours = LevenbergMarquardt(max_iterations=500)(problem, start)
    options = TIGHT | {"jac": lambda x: problem.function(x)[1], "x_scale": "jac", "max_nfev": 2000}
    peer = least_squares(residuals, start, bounds=(lower, upper), **options)
    assert ours.status is Status.CONVERGED
    assert ours.value <= peer.cost * (1 + 1e-8) + 1e-18  # interior methods stop a little off an active bound
    assert np.all(ours.x >= problem.lower) and np.all(ours.x <= problem.upper)
    np.testing.assert_allclose(ours.value, 0.5 * np.sum(residuals(ours.x) ** 2), rtol=1e-12)
    assert ours.residuals is not None and ours.jacobian is not None
    np.testing.assert_allclose(ours.gradient, ours.residuals @ ours.jacobian, atol=1e-12)


def test_osborne_has_the_published_minimum():
    residuals, start, *bounds = STANDARD["osborne"]
    found = LevenbergMarquardt()(problem_of(residuals, start, *bounds), start)
    assert 2 * found.value == pytest.approx(5.46489e-5, rel=1e-5)  # published to six digits


@given(seed=seeds, size=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_bounded_linear_least_squares_are_solved_exactly(seed, size):
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(size + 3, size)) * 10.0 ** rng.uniform(-2, 2, size), rng.normal(size=size + 3)
    lower = np.where(rng.random(size) < 0.6, rng.normal(size=size) - 0.5, -INF)
    upper = lower + rng.exponential(size=size)
    upper = np.where(np.isfinite(upper), upper, INF)
    found = LevenbergMarquardt()(LeastSquares(lambda x: (A @ x - b, A), size, lower=lower, upper=upper), np.zeros(size))
    exact = lsq_linear(A, b, bounds=(lower, upper), method="bvls", tol=1e-14)
    assert found.status is Status.CONVERGED
    np.testing.assert_allclose(found.value, exact.cost, rtol=1e-9, atol=1e-14)


@given(seed=seeds, size=st.integers(1, 4))
@example(seed=227895, size=3)  # its sets of active bounds cycle
@settings(max_examples=100, deadline=None)
def test_the_step_minimises_its_quadratic_over_the_box(seed, size):
    """Against the best of all sets of active bounds."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    A, g = root @ root.T + 1e-3 * np.eye(size), rng.normal(size=size)
    low, high = -rng.exponential(size=size) * (rng.random(size) < 0.7), rng.exponential(size=size)

    def quadratic(p):
        return g @ p + 0.5 * p @ A @ p

    best = 0.0
    for sides in itertools.product((None, 0, 1), repeat=size):
        p = np.array([0.0 if s is None else (low, high)[s][i] for i, s in enumerate(sides)])
        free = np.array([s is None for s in sides])
        if free.any():
            p[free] = np.linalg.solve(A[np.ix_(free, free)], -(g + A @ p)[free])
        if np.all(p >= low) and np.all(p <= high):
            best = min(best, quadratic(p))
    step = box_step(A, g, low, high)
    assert step is not None and np.all(step >= low) and np.all(step <= high)
    assert quadratic(step) == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("loss", ["squares", "huber", "soft_l1", "cauchy"])
def test_losses_as_squares_have_the_same_value_and_slope(loss):
    r, step = np.array([0.0, 1e-9, 0.3, -1.2, 4.0, -1e4]), 1e-6
    rooted, slope = as_squares(loss, 1.3, r)
    assert 0.5 * rooted @ rooted == pytest.approx(weigh(loss, 1.3, r).value, rel=1e-12)
    above, below = as_squares(loss, 1.3, r + step)[0], as_squares(loss, 1.3, r - step)[0]
    np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-5)


@pytest.mark.parametrize("loss", ["huber", "soft_l1", "cauchy"])
def test_robust_losses_are_scipys(loss):
    rng = np.random.default_rng(3)
    t = np.linspace(0, 3, 80)
    data = 2.0 * np.exp(-0.7 * t) + 0.5 + 0.02 * rng.normal(size=80)
    data[::9] += rng.normal(size=9) * 3  # outliers

    def residuals(x):
        return x[0] * np.exp(-x[1] * t) + x[2] - data

    problem = LeastSquares(differentiated(residuals), 3, lower=0, upper=10)
    ours = LevenbergMarquardt(loss=loss, loss_scale=0.1)(problem, [1.0, 1.0, 1.0])
    peer = least_squares(residuals, [1.0, 1.0, 1.0], loss=loss, f_scale=0.1, bounds=(0, 10), **TIGHT)
    assert ours.status is Status.CONVERGED
    assert ours.value == pytest.approx(peer.cost, rel=1e-8)
    np.testing.assert_allclose(ours.x, peer.x, rtol=1e-4)  # the value is flat at its minimum
    np.testing.assert_allclose(ours.x, [2.0, 0.7, 0.5], atol=0.1)


@pytest.mark.parametrize("loss", ["huber", "soft_l1", "cauchy"])
def test_robust_losses_are_95_percent_as_sharp_as_squares_on_pure_noise(loss):
    """Asymptotic efficiency (E psi')^2 / E psi^2 of an M-estimate (Huber 1981) under normal noise, by quadrature."""
    r = np.linspace(-12, 12, 200_001)
    density = np.exp(-(r**2) / 2) / np.sqrt(2 * np.pi)
    psi = r * rho(loss, (r / TUNED[loss]) ** 2)[1]
    efficiency = np.trapezoid(np.gradient(psi, r) * density, r) ** 2 / np.trapezoid(psi**2 * density, r)
    assert efficiency == pytest.approx(0.95, abs=1e-3)


def test_parameters_that_data_cannot_tell_apart_do_no_harm():
    """Two parameters enter by their sum only, a third not at all."""

    def residuals(x):
        return np.array([x[0] + x[1] - 3, (x[0] + x[1]) ** 2 - 9, 0 * x[2]])

    found = LevenbergMarquardt()(LeastSquares(differentiated(residuals), 3), [0.3, 0.1, 7.0])
    assert found.status is Status.CONVERGED and found.value < 1e-20
    assert found.x[0] + found.x[1] == pytest.approx(3, abs=1e-9) and found.x[2] == 7.0


@given(scale=st.floats(-6, 6))
@settings(max_examples=20, deadline=None)
def test_units_of_parameters_do_not_matter(scale):
    """Powers of two change nothing in floating point but exponents."""
    unit = 2.0 ** round(3 * scale)

    def scaled(x):
        r, J = differentiated(rosenbrock)(x * [1, unit])
        return r, J * [1, unit]

    plain = LevenbergMarquardt()(LeastSquares(differentiated(rosenbrock), 2), [-1.2, 1.0])
    other = LevenbergMarquardt()(LeastSquares(scaled, 2, scale=[1, 1 / unit]), [-1.2, 1 / unit])
    assert plain.iterations == other.iterations
    np.testing.assert_array_equal(plain.x, other.x * [1, unit])


def logarithmic(x):
    """log(x / 0.01) + x and its slope: not a number where x <= 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(x / 0.01) + x, (1 / x + 1)[None]


@pytest.mark.parametrize("solver", [LevenbergMarquardt(), LBFGSB()])
def test_a_value_that_is_not_finite_refuses_the_step_and_the_search_goes_on(solver):
    problem = LeastSquares(logarithmic, 1)
    found = solver(problem, [1.0])
    assert np.isnan(problem.function(np.array([-1.0]))[0]).all() and found.history[0] > 10
    assert found.value < 1e-12 and found.x[0] == pytest.approx(0.01 * np.exp(-found.x[0]), rel=1e-5)
    assert solver(problem, [-1.0]).status is Status.NON_FINITE_START


@pytest.mark.parametrize("solver", [LevenbergMarquardt(), LBFGSB()])
def test_time_iterations_and_ctrl_c_end_a_search_with_the_best_so_far(solver, monkeypatch):
    function, calls = differentiated(rosenbrock), []
    monkeypatch.setattr(time, "perf_counter", lambda: float(len(calls)))

    def slow(x):
        """Takes a second of the clock above."""
        calls.append(x)
        return function(x)

    def interrupted(x):
        calls.append(x)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return function(x)

    start = [-1.2, 1.0]
    first = 0.5 * np.sum(rosenbrock(np.array(start)) ** 2)
    timed = solver(LeastSquares(slow, 2), start, seconds=12)
    assert timed.status is Status.TIME_LIMIT and timed.value < first and 12 <= len(calls) <= 15
    calls.clear()
    stopped = solver(LeastSquares(interrupted, 2), start)
    assert stopped.status is Status.INTERRUPTED
    least = min(0.5 * np.sum(rosenbrock(x) ** 2) for x in calls[:7])
    assert stopped.value == pytest.approx(least, rel=1e-14)
    few = type(solver)(max_iterations=3)(LeastSquares(function, 2), start)
    assert few.status is Status.MAX_ITERATIONS and few.iterations == 3 and len(few.history) == 4
    assert np.all(np.diff(few.history) <= 0)


def test_a_wrong_jacobian_is_a_stall_not_a_minimum():
    found = LevenbergMarquardt()(LeastSquares(lambda x: (x - 5, -np.eye(2)), 2), [1.0, 2.0])
    assert found.status is Status.STALLED and not found.successful
    np.testing.assert_array_equal(found.x, [1.0, 2.0])


def test_lbfgsb_finds_a_bounded_minimum_of_any_smooth_function():
    def bowl(x):
        return np.cosh(x[0] - 2) + (x[1] + 1) ** 2, np.array([np.sinh(x[0] - 2), 2 * (x[1] + 1)])

    found = LBFGSB()(Smooth(bowl, 2, lower=[-5, 0], upper=5, scale=[1, 100]), [-3.0, 4.0])
    assert found.status is Status.CONVERGED and found.residuals is None
    np.testing.assert_allclose(found.x, [2, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeastSquares(rosenbrock, 2, lower=[0, 5], upper=[1, 4]), "'x1': lower bound must be below"),
        (lambda: LeastSquares(rosenbrock, 2, lower=[0, 0, 0]), r"lower: expected one number or 2 .* shape \(3,\)"),
        (lambda: LeastSquares(rosenbrock, 2, scale=[1, 0], names=["m", "l"]), "'l': scale must be positive"),
        (lambda: LeastSquares(rosenbrock, 2, names=["m"]), "expected 2 names of parameters, got 1: m"),
        (lambda: LevenbergMarquardt(loss="tukey"), "loss: expected one of squares, huber"),  # type: ignore[arg-type]
        (lambda: LevenbergMarquardt()(Smooth(rosenbrock, 2), [0, 0]), "needs a LeastSquares problem, got Smooth"),
        (lambda: LevenbergMarquardt()(LeastSquares(rosenbrock, 2), [0, 0, 0]), r"expected 2 numbers .* shape \(3,\)"),
        (lambda: LevenbergMarquardt()(LeastSquares(rosenbrock, 2), [0, np.nan]), "'x1' is not a number"),
        (
            lambda: LevenbergMarquardt()(LeastSquares(lambda x: (x, np.eye(3)), 2), [0, 0]),
            r"Jacobian of 2 residuals by 2 parameters .* got \(3, 3\)",
        ),
    ],
)
def test_mistakes_are_refused_with_what_was_expected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bent_steps_follow_a_narrow_curved_valley():
    """A valley along a circle of radius 1, 1e-4 wide: bent steps take at most half as many."""

    def residuals(x):
        radius = np.hypot(*x)
        r = np.array([1e4 * (radius - 1), x[1] - 0.6])
        return r, np.array([1e4 * x / radius, [0.0, 1.0]])

    problem = LeastSquares(residuals, 2)
    plain, bent = (LevenbergMarquardt(accelerate=a)(problem, [1.0, -0.6]) for a in (False, True))
    np.testing.assert_allclose(bent.x, [0.8, 0.6], atol=1e-6)
    assert bent.status == Status.CONVERGED and bent.iterations <= plain.iterations / 2
