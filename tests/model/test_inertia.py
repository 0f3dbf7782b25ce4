"""Inertia of merged and moved bodies against clouds of points; what no real body can have; repair."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from knuckle.model import inertia as rigid
from tests.random_models import random_moment, random_quaternion

quick = settings(max_examples=50, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def cloud_body(points, masses):
    """Mass, centre of mass and central moments, by summing over points."""
    com = masses @ points / masses.sum()
    moment = sum(m * (r @ r * np.eye(3) - np.outer(r, r)) for m, r in zip(masses, points - com, strict=True))
    return masses.sum(), com, rigid.moment_of(moment, "cloud")


@quick
@given(seeds)
def test_merged_bodies_are_the_body_of_all_points(seed):
    rng = np.random.default_rng(seed)
    points, masses = rng.normal(size=(12, 3)), rng.uniform(0.1, 1, 12)
    merged = rigid.merge(cloud_body(points[:5], masses[:5]), cloud_body(points[5:], masses[5:]))
    for found, expected in zip(merged, cloud_body(points, masses), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@quick
@given(seeds)
def test_a_moved_body_is_the_body_of_moved_points(seed):
    rng = np.random.default_rng(seed)
    points, masses, p, q = rng.normal(size=(6, 3)), rng.uniform(0.1, 1, 6), rng.normal(size=3), random_quaternion(rng)
    R = Rotation.from_quat(q, scalar_first=True).as_matrix()
    moved = rigid.moved(cloud_body(points, masses), p, q)
    for found, expected in zip(moved, cloud_body(points @ R.T + p, masses), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_nothing_merged_with_nothing_is_nothing():
    empty = (0.0, np.zeros(3), np.zeros(6))
    mass, com, moment = rigid.merge(empty, empty)
    assert mass == 0 and not np.any(com) and not np.any(moment)


@pytest.mark.parametrize(
    "value", [(1.0, 2.0, 2.5), (1.0, 2.0, 2.5, 0.1, 0.2, 0.3), [[1, 0.1, 0.2], [0.1, 2, 0.3], [0.2, 0.3, 2.5]]]
)
def test_moments_are_read_from_three_numbers_six_or_a_matrix(value):
    matrix = rigid.matrix_of(rigid.moment_of(value, "here"))
    assert np.array_equal(np.diag(matrix), [1, 2, 2.5])
    if len(np.ravel(value)) > 3:
        assert (matrix[0, 1], matrix[0, 2], matrix[1, 2]) == (0.1, 0.2, 0.3)


def test_a_matrix_that_is_symmetric_up_to_rounding_is_read():
    matrix = np.diag([2.0, 2.0, 1.0])
    matrix[0, 1], matrix[1, 0] = 3e-17, -2e-17  # what turning a matrix there and back leaves
    np.testing.assert_array_equal(rigid.moment_of(matrix, "here")[:3], [2, 2, 1])


@pytest.mark.parametrize("value", [1.0, (1.0, 2.0), [[1, 0.1, 0], [0.2, 1, 0], [0, 0, 1]], np.eye(4)])
def test_other_moments_are_refused_by_name(value):
    with pytest.raises(ValueError, match="arm: inertia must be"):
        rigid.moment_of(value, "arm")


@quick
@given(seeds, st.floats(1e-3, 1e3))
def test_real_bodies_have_no_faults_and_repair_leaves_them_alone(seed, mass):
    moment = rigid.moment_of(random_moment(np.random.default_rng(seed), mass), "random")
    assert rigid.faults(mass, moment) == []
    np.testing.assert_allclose(rigid.repaired(mass, moment), moment, rtol=1e-9, atol=1e-12 * mass)


@pytest.mark.parametrize("body", [(0.0, (0, 0, 0)), (1.0, (0, 0, 0)), (1.0, (1, 1, 0)), (1.0, (1, 1, 2))])
def test_nothing_a_point_a_rod_and_a_plate_are_real_bodies(body):
    mass, principal = body
    assert rigid.faults(mass, rigid.moment_of(principal, "here")) == []


FAULTY = [
    (-1.0, (1, 1, 1), "negative"),
    (1.0, (1, 1, -0.1), "positive definite"),
    (1.0, (1, 1, 2.1), "triangle"),
    (0.0, (1, 1, 1), "without mass"),
    (np.nan, (1, 1, 1), "finite"),
    (1.0, (1, np.inf, 1), "finite"),
    (1.0, (1, 1, 1, 2, 0, 0), "positive definite"),
]


@pytest.mark.parametrize("mass, moment, rule", FAULTY)
def test_impossible_inertia_is_named_by_rule_and_mended(mass, moment, rule):
    moment = rigid.moment_of(moment, "here")
    (fault,) = rigid.faults(mass, moment)
    assert rule in fault
    if mass > 0:
        assert rigid.faults(mass, rigid.repaired(mass, moment)) == []


def test_repair_moves_as_little_as_a_search_can():
    moment = rigid.moment_of((1.0, 1.0, 2.5, 0.2, 0.0, 0.1), "here")
    repaired = rigid.matrix_of(rigid.repaired(1.0, moment))
    distance = np.linalg.norm(second_moments(repaired) - second_moments(rigid.matrix_of(moment)))
    rng = np.random.default_rng(0)
    for _ in range(2000):
        factor = np.linalg.cholesky(second_moments(repaired) + 1e-9 * np.eye(3)) + 0.05 * rng.normal(size=(3, 3))
        other = np.linalg.norm(factor @ factor.T - second_moments(rigid.matrix_of(moment)))
        assert other > distance - 1e-8


def second_moments(inertia):
    return 0.5 * np.trace(inertia) * np.eye(3) - inertia
