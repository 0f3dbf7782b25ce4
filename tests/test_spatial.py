"""Spatial algebra against its definitions, SciPy's rotations and clouds of points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from knuckle import spatial
from knuckle.model.inertia import moment_of
from tests.random_models import quick_jit, random_moment, random_quaternion

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=25, deadline=None)
ROUNDING = 1e-13  # a few products of numbers of size one


def scipy_rotation(q):
    return Rotation.from_quat(q, scalar_first=True)


@quick
@given(seeds)
def test_cross_products_are_those_of_the_book(seed):
    w, v, m0, m, f0, f = np.random.default_rng(seed).normal(size=(6, 3))
    motion = spatial.cross_motion(jnp.array([*w, *v]), jnp.array([*m0, *m]))
    np.testing.assert_allclose(motion, [*np.cross(w, m0), *(np.cross(w, m) + np.cross(v, m0))], atol=ROUNDING)
    force = spatial.cross_force(jnp.array([*w, *v]), jnp.array([*f0, *f]))
    np.testing.assert_allclose(force, [*(np.cross(w, f0) + np.cross(v, f)), *np.cross(w, f)], atol=ROUNDING)
    np.testing.assert_allclose(spatial.cross(w, v), np.cross(w, v), atol=ROUNDING)


@quick
@given(seeds, st.floats(0.01, 100))
def test_rotation_of_a_quaternion_of_any_length(seed, length):
    q = random_quaternion(np.random.default_rng(seed), 5)
    found = spatial.rotation_of_quaternion(jnp.asarray(length * q))
    np.testing.assert_allclose(found, scipy_rotation(q).as_matrix(), atol=ROUNDING)


@quick
@given(seeds)
def test_quaternion_product_composes_rotations(seed):
    a, b = random_quaternion(np.random.default_rng(seed), 2)
    found = spatial.rotation_of_quaternion(spatial.quaternion_product(a, b))
    np.testing.assert_allclose(found, (scipy_rotation(a) * scipy_rotation(b)).as_matrix(), atol=ROUNDING)
    back = spatial.quaternion_product(a, spatial.quaternion_conjugate(a))
    np.testing.assert_allclose(back, [1, 0, 0, 0], atol=ROUNDING)


@quick
@given(seeds, st.floats(-10, 10))
def test_rotation_about_an_axis(seed, angle):
    axis = np.random.default_rng(seed).normal(size=3)
    axis /= np.linalg.norm(axis)
    expected = Rotation.from_rotvec(angle * axis).as_matrix()
    np.testing.assert_allclose(spatial.rotation_about(jnp.asarray(axis), jnp.asarray(angle)), expected, atol=ROUNDING)


@quick
@given(seeds, st.floats(-12, 0.49))
def test_exponential_and_logarithm_undo_each_other_from_tiny_to_half_a_turn(seed, exponent):
    direction = np.random.default_rng(seed).normal(size=3)
    u = direction / np.linalg.norm(direction) * 10.0**exponent
    q = spatial.quaternion_exp(u)
    np.testing.assert_allclose(jnp.linalg.norm(q), 1, atol=ROUNDING)
    np.testing.assert_allclose(q, Rotation.from_rotvec(u).as_quat(scalar_first=True), atol=ROUNDING)
    for same in (q, -q):
        np.testing.assert_allclose(spatial.quaternion_log(same), u, rtol=1e-12)


EXP_LOG_JACOBIAN = quick_jit(jax.jacrev(lambda u: spatial.quaternion_log(spatial.quaternion_exp(u))))


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-3, 0.9999e-2, 1.0001e-2, 1.9999e-3, 2.0001e-3, 1.0, 3.0])
def test_derivatives_of_exponential_and_logarithm_are_right_on_both_sides_of_the_series(angle):
    u = angle * np.array([0.6, -0.64, 0.48])
    D = jax.jacfwd(spatial.quaternion_exp)(u)
    q = spatial.quaternion_exp(u)
    # q* dq = (0, J_r du / 2) with the right Jacobian of SO(3)
    body = np.stack([spatial.quaternion_product(spatial.quaternion_conjugate(q), column) for column in D.T], axis=1)
    np.testing.assert_allclose(2 * body[1:], right_jacobian(u), atol=1e-12)
    there_and_back = EXP_LOG_JACOBIAN(u)
    np.testing.assert_allclose(there_and_back, np.eye(3), atol=1e-11)


def right_jacobian(u):
    """1 - (1 - cos t)/t^2 [u] + (t - sin t)/t^3 [u]^2, by its power series in 60 terms."""
    K = np.asarray(spatial.skew(jnp.asarray(u)))
    total, term = np.zeros((3, 3)), np.eye(3)
    for k in range(60):
        total, term = total + term, -term @ K / (k + 2)
    return total


def test_second_derivatives_at_the_identity_are_finite_and_right():
    H = jax.hessian(lambda u: spatial.quaternion_exp(u)[0])(jnp.zeros(3))
    np.testing.assert_allclose(H, -0.25 * np.eye(3), atol=ROUNDING)  # cos(|u|/2) = 1 - |u|^2/8
    third = quick_jit(jax.jacfwd(jax.hessian(lambda q: spatial.quaternion_log(q)[0])))(jnp.array([1.0, 0, 0, 0]))
    assert np.all(np.isfinite(third))


def test_normalize_leaves_zero_alone_and_its_gradient_is_finite():
    v = jnp.array([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(spatial.normalize(v), [[0.6, 0, 0.8], [0, 0, 0]], atol=ROUNDING)
    D = jax.jacrev(spatial.normalize)(v)
    np.testing.assert_allclose(D[0, :, 0], (np.eye(3) - np.outer([0.6, 0, 0.8], [0.6, 0, 0.8])) / 5, atol=ROUNDING)
    assert not np.any(D[1])


@quick
@given(seeds)
def test_spatial_inertia_gives_the_kinetic_energy_and_momentum_of_the_points_of_a_body(seed):
    rng = np.random.default_rng(seed)
    points, masses = rng.normal(size=(20, 3)), rng.uniform(0.1, 1, 20)
    R, p, w, v = scipy_rotation(random_quaternion(rng)).as_matrix(), *rng.normal(size=(3, 3))
    com = masses @ points / masses.sum()
    arm = points - com
    moment = sum(m * (r @ r * np.eye(3) - np.outer(r, r)) for m, r in zip(masses, arm, strict=True))
    I = spatial.inertia_matrix(
        jnp.asarray(masses.sum()), jnp.asarray(com), jnp.asarray(moment_of(moment, "cloud")), jnp.asarray(R), p
    )
    at = points @ R.T + p
    speed = v + np.cross(w, at)
    expected = 0.5 * np.sum(masses * np.sum(speed**2, axis=1))
    twist = np.array([*w, *v])
    np.testing.assert_allclose(0.5 * twist @ I @ twist, expected, rtol=1e-12)
    momentum = [*(masses @ np.cross(at, speed)), *(masses @ speed)]
    np.testing.assert_allclose(I @ twist, momentum, rtol=1e-10, atol=1e-11)


def test_spatial_inertia_is_symmetric_and_positive_definite():
    rng = np.random.default_rng(0)
    moment = jnp.asarray(moment_of(random_moment(rng, 2.0), "random"))
    I = spatial.inertia_matrix(jnp.asarray(2.0), jnp.asarray(rng.normal(size=3)), moment, jnp.eye(3), jnp.zeros(3))
    assert np.array_equal(I, I.T)
    assert np.linalg.eigvalsh(I)[0] > 0
