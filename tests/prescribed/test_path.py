"""Paths by samples and by functions: interpolation, velocities, derivatives, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import knuckle as kn
from knuckle.prescribed.path import velocity_at, velocity_between

TIMES = np.array([0.0, 0.3, 0.4, 1.0, 1.1, 2.0])


def unit(values):
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def poses(seed: int, count: int = len(TIMES)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(count, 3)), unit(rng.normal(size=(count, 4)))], axis=1)


@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
def test_a_path_goes_through_its_samples(interpolation):
    values = poses(0)
    path = kn.Path(TIMES, values, interpolation=interpolation)
    found = np.stack([path(t) for t in TIMES])
    np.testing.assert_allclose(found[:, :3], values[:, :3], atol=1e-14)
    np.testing.assert_allclose(np.abs(np.sum(found[:, 3:] * values[:, 3:], axis=1)), 1, atol=1e-14)  # either sign


def test_cubic_reproduces_a_parabola_and_a_steady_turn():
    def pose(t):
        turn = Rotation.from_rotvec(np.outer(np.atleast_1d(t), [0.3, -0.5, 0.7])).as_quat(scalar_first=True)
        return np.concatenate([np.stack([1 + t, t * t, 2 - 3 * t * t], axis=-1).reshape(-1, 3), turn], axis=1)

    path, t = kn.Path(TIMES, pose(TIMES)), np.linspace(0, 2, 41)
    np.testing.assert_allclose(jax.vmap(path)(t), pose(t), atol=1e-13)


def test_cubic_has_a_continuous_velocity_and_linear_a_constant_one():
    values = poses(1)
    cubic, linear = (kn.Path(TIMES, values, interpolation=kind) for kind in ("cubic", "linear"))
    for t in TIMES[1:-1]:
        left, right = (velocity_at(cubic, jnp.asarray(t + side)) for side in (-1e-9, 1e-9))
        np.testing.assert_allclose(left, right, atol=1e-6)  # accelerations are below 1e3: 2e-9 s make 2e-6
    inner = [velocity_at(linear, jnp.asarray(t)) for t in (0.45, 0.7, 0.95)]
    np.testing.assert_allclose(inner[1:], np.broadcast_to(inner[0], (2, 6)), atol=1e-12)


def test_velocity_is_the_limit_of_displacements():
    path, t, h = kn.Path(TIMES, poses(2)), jnp.asarray(0.77), 1e-6
    mean = velocity_between(path(t - h), path(t + h), 2 * h)
    np.testing.assert_allclose(
        velocity_at(path, t), mean, rtol=1e-6, atol=1e-6
    )  # h times the turn, and rounding over h


def test_velocity_at_the_ends_is_one_sided():
    path = kn.Path([0.0, 1.0, 2.0], [0.0, 1.0, 4.0])  # t^2
    np.testing.assert_allclose([velocity_at(path, jnp.asarray(t))[0] for t in (0.0, 2.0)], [0.0, 4.0], atol=1e-14)


@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
def test_derivative_by_samples_and_times(interpolation):
    def value(times, values):
        path = kn.Path(times, values, interpolation=interpolation)
        return jnp.stack([path(t) for t in (0.35, 0.6, 1.7)])

    values, rng = poses(3), np.random.default_rng(4)
    direction = rng.normal(size=len(TIMES)) * 0.1, rng.normal(size=values.shape)
    _, slope = jax.jvp(value, (TIMES, values), direction)
    h = 1e-6
    ends = [value(TIMES + s * h * direction[0], values + s * h * direction[1]) for s in (1, -1)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-8)


def test_equal_samples_have_a_finite_gradient():
    values = np.tile([0.1, 0.2, 0.3, 1.0, 0, 0, 0], (4, 1))
    slope = jax.jacrev(lambda v: kn.Path(np.arange(4.0), v)(1.5))(jnp.asarray(values))
    assert np.isfinite(slope).all() and np.abs(slope).max() > 0


def test_beyond_the_samples_a_path_holds_or_continues():
    held = kn.Path([0.0, 1.0], [[0.0], [2.0]], beyond="hold")
    np.testing.assert_array_equal([held(-1.0)[0], held(3.0)[0]], [0.0, 2.0])
    going = kn.Path([0.0, 1.0], [[0.0], [2.0]])
    np.testing.assert_allclose([going(-1.0)[0], going(3.0)[0]], [-2.0, 6.0])


def test_native_code_and_batches_agree():
    values, times = jnp.asarray(np.stack([poses(5), poses(6)])), np.linspace(0, 2, 7)
    together = jax.vmap(lambda v: jax.vmap(kn.Path(TIMES, v))(times))(values)
    native = kn.native.jit(lambda v: jax.lax.map(kn.Path(TIMES, v), jnp.asarray(times)))
    np.testing.assert_allclose([native(v) for v in values], together, atol=1e-13)


@pytest.mark.parametrize(
    ("times", "values", "options", "message"),
    [
        ([0.0, 1.0, 1.0], np.zeros((3, 1)), {}, "times must increase, got 1 s and then 1 s"),
        ([0.0, np.nan], np.zeros((2, 1)), {}, "times must be finite"),
        ([0.0], np.zeros((1, 1)), {}, "two samples or more"),
        ([0.0, 1.0], np.zeros((3, 1)), {}, r"shape \(2, n\), n one of 1, 3, 4, 7, got \(3, 1\)"),
        ([0.0, 1.0], np.zeros((2, 2)), {}, r"got \(2, 2\)"),
        ([0.0, 1.0], [[0.0], [np.nan]], {}, r"must be finite, got \[nan\] in row 1"),
        ([0.0, 1.0], [[1.0, 0, 0, 0], [2.0, 0, 0, 0]], {}, "unit length, that of row 1 is 2 long"),
        ([0.0, 1.0], np.zeros((2, 7)), {}, "unit length, that of row 0 is 0 long"),
        ([0.0, 1.0], np.zeros((2, 1)), {"interpolation": "spline"}, "must be 'cubic' or 'linear', got 'spline'"),
        ([0.0, 1.0], np.zeros((2, 1)), {"beyond": "wrap"}, "must be 'refuse' or 'hold', got 'wrap'"),
    ],
)
def test_wrong_samples_are_refused(times, values, options, message):
    with pytest.raises(ValueError, match=message):
        kn.Path(times, values, **options)
