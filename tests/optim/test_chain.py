"""Pieces in a chain: the same as the dense Jacobian, without ever forming it."""

import time
from dataclasses import replace

import numpy as np
import pytest

from knuckle.optim import LeastSquares, LevenbergMarquardt
from knuckle.optim.chain import Chain
from knuckle.optim.normal import Dense, normal_equations, transposed, weighed
from knuckle.sysid.uncertainty import certainty

SHAPES = [(5, 7, 3, 4), (1, 6, 2, 3), (4, 5, 2, 0), (3, 9, 0, 4)]  # pieces, data, own, shared


def chain(count=5, data=7, own=3, shared=4, tied=True, seed=0) -> Chain:
    rng = np.random.default_rng(seed)
    joined = np.ones((count, 1)) * tied
    joined[-1] = 0
    if count > 3:
        joined[1] = 0  # two recordings
    return Chain(
        by_shared=rng.normal(size=(count, data, shared)),
        by_own=rng.normal(size=(count, data, own)),
        tie_by_shared=joined[..., None] * rng.normal(size=(count, own, shared)),
        tie_by_own=joined[..., None] * rng.normal(size=(count, own, own)),
        tie_by_next=joined * rng.normal(size=(count, own)),
        alone=np.concatenate([rng.normal(size=(2, shared)), np.diag(rng.uniform(0.5, 2, shared))]),
        own_alone=rng.uniform(0.5, 2, (count, own)),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_it_is_the_dense_jacobian(shape, tied):
    J, rng = chain(*shape, tied=tied), np.random.default_rng(1)
    dense = J.dense()
    assert dense.shape == J.shape
    p, r = rng.normal(size=J.shape[1]), rng.normal(size=J.shape[0])
    np.testing.assert_allclose(J @ p, dense @ p, atol=1e-12)
    np.testing.assert_allclose(transposed(J, r), dense.T @ r, atol=1e-12)
    normal = J.normal()
    np.testing.assert_allclose(normal @ p, dense.T @ dense @ p, atol=1e-11)
    np.testing.assert_allclose(normal.diagonal(), np.diag(dense.T @ dense), atol=1e-12)
    assert normal.log_determinant() == pytest.approx(np.linalg.slogdet(dense.T @ dense)[1], abs=1e-9)
    hat = dense @ np.linalg.inv(dense.T @ dense) @ dense.T
    count, data = J.sizes[:2]
    np.testing.assert_allclose(J.leverage().reshape(-1), np.diag(hat)[: count * data], atol=1e-10)


def test_rows_are_weighed():
    J = chain()
    weight = np.random.default_rng(2).uniform(0.5, 2, J.shape[0])
    scaled = weighed(J, weight)
    assert isinstance(scaled, Chain)
    np.testing.assert_allclose(scaled.dense(), weight[:, None] * J.dense(), atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_damped_step_within_bounds_is_that_of_the_dense_problem(shape):
    J, rng = chain(*shape), np.random.default_rng(3)
    size, shared = J.shape[1], J.sizes[-1]
    gradient, more = 5 * rng.normal(size=size), rng.uniform(0, 1, size)
    wide = np.full(size - shared, np.inf)
    low = np.concatenate([-rng.uniform(0, 0.05, shared), -wide])
    high = np.concatenate([rng.uniform(0, 0.05, shared), wide])
    ours = normal_equations(J).step(gradient, more, low, high)
    theirs = Dense(J.dense()).step(gradient, more, low, high)
    assert ours is not None and theirs is not None
    np.testing.assert_allclose(ours, theirs, atol=1e-9)
    assert shared == 0 or np.any((ours == low) | (ours == high))


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("size", [3, 2])  # of which the others are weights of networks
def test_certainty_is_that_of_the_dense_jacobian(shape, size):
    J = chain(*shape)
    prior = 1 / np.diag(J.alone[-J.sizes[-1] :])[:size]
    sure = certainty(J, size, prior, tuple("abc"[:size]))
    dense = J.dense()
    covariance = np.linalg.inv(dense.T @ dense)[:size, :size]
    np.testing.assert_allclose(sure.covariance, covariance, rtol=1e-9)
    told = (sure.directions.T * sure.singular_values**2) @ sure.directions
    np.testing.assert_allclose(told + np.eye(size), np.linalg.inv(covariance / np.outer(prior, prior)), atol=1e-9)


def test_small_singular_values_are_not_drowned_by_large_ones():
    J = chain(3, 9, 0, 2)
    J = replace(J, by_shared=J.by_shared * np.array([1e9, 0.0]))
    sure = certainty(J, 2, np.ones(2), ("seen", "unseen"))
    assert sure.singular_values[0] > 1e9 and sure.singular_values[1] < 10


def tied_oscillators(count: int):
    """Pieces of a decaying wave: shared are rate and decay, own numbers are where each piece starts."""
    t = np.linspace(0, 1, 30)
    truth = 0.3, 4.0

    def piece(z, start):
        decay, rate = z
        wave = np.exp(-decay * t) * np.stack([np.cos(rate * t), np.sin(rate * t)])
        turned = np.array([[start[0], -start[1]], [start[1], start[0]]])
        value = turned @ wave
        by_z = np.stack([-t * value, t * np.stack([-value[1], value[0]])], axis=-1)
        by_start = np.stack([wave, np.stack([-wave[1], wave[0]])], axis=-1)
        return value, by_z, by_start

    starts = [np.array([1.0, 0.2])]
    for _ in range(count - 1):
        starts.append(piece(truth, starts[-1])[0][:, -1])
    measured = np.stack([piece(truth, s)[0] for s in starts])
    measured = measured + 1e-3 * np.random.default_rng(0).normal(size=measured.shape)
    guess = measured[:, :, 0]

    def function(x):
        z, own = x[:2], x[2:].reshape(count, 2)
        parts = [piece(z, a) for a in guess + own]
        value, by_z, by_start = (np.stack([p[k] for p in parts]) for k in range(3))
        tie = np.ones((count, 1))
        tie[-1] = 0
        apart = tie * (value[:, :, -1] - np.roll(guess + own, -1, axis=0))
        data = ((value - measured) / 1e-3).reshape(count, -1)
        J = Chain(
            *(by_z.reshape(count, -1, 2) / 1e-3, by_start.reshape(count, -1, 2) / 1e-3),
            *(tie[..., None] * by_z[:, :, -1], tie[..., None] * by_start[:, :, -1], -tie * np.ones((count, 2))),
            *(np.eye(2) * 1e-3, np.ones((count, 2))),
        )
        return np.concatenate([data.reshape(-1), apart.reshape(-1), 1e-3 * z, x[2:]]), J

    return LeastSquares(function, 2 + 2 * count, lower=np.concatenate([[0, 0], np.full(2 * count, -np.inf)])), truth


@pytest.mark.parametrize("loss", ["squares", "huber"])
def test_levenberg_marquardt_finds_the_same_as_with_the_dense_jacobian(loss):
    problem, truth = tied_oscillators(12)
    chained = problem.function
    start = np.concatenate([[0.0, 3.5], np.zeros(24)])
    ours = LevenbergMarquardt(accelerate=True, loss=loss)(problem, start)

    def dense(x):
        r, J = chained(x)
        assert isinstance(J, Chain)
        return r, J.dense()

    problem.function = dense
    theirs = LevenbergMarquardt(accelerate=True, loss=loss)(problem, start)
    assert ours.status == theirs.status == "converged"
    np.testing.assert_allclose(ours.x, theirs.x, atol=1e-8)
    np.testing.assert_allclose(ours.x[:2], truth, rtol=1e-3)


def test_bounds_of_own_numbers_are_refused():
    problem, _ = tied_oscillators(2)
    bounded = LeastSquares(problem.function, 6, lower=-1.0, names=("decay", "rate", "a", "b", "c", "d"))
    with pytest.raises(ValueError, match="'a': only parameters that all pieces of a Chain share may have bounds"):
        LevenbergMarquardt()(bounded, np.array([0.0, 3.5, 0, 0, 0, 0]))


def test_time_grows_with_the_number_of_pieces_not_with_its_square():
    def seconds(count: int) -> float:
        J = chain(count, 40, 4, 6)
        gradient = np.ones(J.shape[1])
        wide = np.full(J.shape[1], np.inf)
        spent = []
        for _ in range(5):
            began = time.perf_counter()
            normal_equations(J).step(gradient, np.ones(J.shape[1]), -wide, wide)
            spent.append(time.perf_counter() - began)
        return min(spent)

    assert seconds(4000) < 40 * seconds(400)  # a hundredfold or more if it grew with the square


def test_looks_spare_jacobians():
    """Rosenbrock's valley, many times over."""
    size, calls = 30, []

    def residuals(x):
        return np.concatenate([10 * (x[1::2] - x[::2] ** 2), 1 - x[::2]])

    def function(x):
        calls.append(x)
        jacobian, k = np.zeros((size, size)), np.arange(size // 2)
        jacobian[k, 2 * k], jacobian[k, 2 * k + 1], jacobian[size // 2 + k, 2 * k] = -20 * x[::2], 10.0, -1.0
        return residuals(x), jacobian

    start = np.tile([-1.2, 1.0], size // 2)
    plain = LevenbergMarquardt()(LeastSquares(function, size), start)
    without, calls[:] = len(calls), []
    spared = LevenbergMarquardt()(LeastSquares(function, size, look=residuals), start)
    assert plain.status == spared.status == "converged" and len(calls) < without
    np.testing.assert_allclose(spared.x, np.ones(size), atol=1e-8)
