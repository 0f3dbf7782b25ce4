"""The impulse solver: solved to its tolerance or flagged, and differentiated at the solution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle.contact import newton
from knuckle.contact.problem import (
    Problem,
    imbalance,
    imbalance_slope,
    length,
    margin,
    project_on_cone,
    row_scale,
    velocity,
)
from tests.contact.scenes import random_contacts, stack

TOLERANCE = 1e-8

solve = jax.jit(lambda p: newton.solve(p, jnp.zeros_like(p.b), tolerance=TOLERANCE, most_iterations=600))

SETS = {
    "six bodies": lambda rng: random_contacts(rng, 6, 12),
    "mass ratio 1e4": lambda rng: random_contacts(rng, 6, 12, mass_ratio=1e4),
    "redundant": lambda rng: random_contacts(rng, 2, 12),
    "one body, 36 rows for 6 freedoms": lambda rng: random_contacts(rng, 1, 12),
    "four cubes": lambda rng: stack(rng, 4),
    "four cubes, heavy on top": lambda rng: stack(rng, 4, mass_ratio=1e4),
    "four cubes, light on top": lambda rng: stack(rng, 4, mass_ratio=1e-4),
}


def check_laws(problem: Problem, r: jax.Array, tolerance: float) -> None:
    """Signorini, Coulomb and maximum dissipation, each in m/s, written out contact by contact."""
    u = np.asarray(velocity(problem, r)).reshape(-1, 3)
    impulse, scale = np.asarray(r).reshape(-1, 3), np.asarray(row_scale(problem)).reshape(-1, 3)[:, 0]
    for k, mu in enumerate(np.asarray(problem.friction)):
        push, slip = impulse[k, 0], np.linalg.norm(u[k, 1:])
        drag = np.linalg.norm(impulse[k, 1:])
        assert min(push * scale[k], u[k, 0]) == pytest.approx(0, abs=3 * tolerance)
        assert drag * scale[k] <= mu * push * scale[k] + 3 * tolerance
        if slip > 1e3 * tolerance:  # an error of u turns the direction of slip by error / slip
            against = -mu * push * u[k, 1:] / slip
            error = 10 * tolerance * (1 + mu * push * scale[k] / slip)
            np.testing.assert_allclose(impulse[k, 1:] * scale[k], against * scale[k], atol=error, rtol=0)


@pytest.mark.parametrize("name", SETS)
def test_every_problem_is_solved_to_the_tolerance(name):
    rng = np.random.default_rng(11)
    for _ in range(12):
        problem = SETS[name](rng)
        found = solve(problem)
        assert bool(found.converged), f"residual {float(found.residual):.1e} after {int(found.iterations)}"
        check_laws(problem, found.impulse, TOLERANCE)


def test_an_unsolved_problem_is_flagged():
    problem = SETS["redundant"](np.random.default_rng(1))
    found = newton.solve(problem, jnp.zeros_like(problem.b), tolerance=TOLERANCE, most_iterations=1)
    assert not bool(found.converged)
    assert float(found.residual) > TOLERANCE
    assert np.all(np.isfinite(found.impulse))


def test_a_warm_start_at_the_solution_takes_no_iteration_and_a_broken_one_does_no_harm():
    problem = SETS["six bodies"](np.random.default_rng(2))
    found = solve(problem)
    again = newton.solve(problem, found.impulse, tolerance=TOLERANCE, most_iterations=600)
    assert int(again.iterations) == 0
    from_nan = newton.solve(problem, jnp.full_like(problem.b, jnp.nan), tolerance=TOLERANCE, most_iterations=600)
    assert bool(from_nan.converged)


def test_slope_is_the_derivative_of_the_map():
    problem = SETS["six bodies"](np.random.default_rng(3))
    r = jnp.asarray(np.random.default_rng(4).normal(size=36))
    scale = row_scale(problem)
    exact = jax.jacfwd(lambda r: imbalance(problem, r, scale))(r)
    np.testing.assert_allclose(imbalance_slope(problem, r, scale), exact, atol=1e-12)


def test_other_laws_hold_beside_contacts():
    """One-sided, equal and bounded rows: checked by their definitions on a random positive definite A."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(15, 15))
    problem = Problem(
        A=jnp.asarray(root @ root.T + 0.1 * np.eye(15)),
        b=jnp.asarray(rng.normal(size=15)),
        friction=jnp.array([0.3, 0.8]),
        bound=jnp.array([0.1, 10.0, 0.05]),
        one_sided=jnp.zeros(3),
    )
    found = newton.solve(problem, jnp.zeros(15), tolerance=1e-10, most_iterations=600)
    assert bool(found.converged)
    r, u = np.asarray(found.impulse), np.asarray(velocity(problem, found.impulse))
    np.testing.assert_allclose(np.minimum(r[6:9], u[6:9]), 0, atol=1e-9)
    np.testing.assert_allclose(u[9:12], 0, atol=1e-9)
    for k, most in zip(range(12, 15), (0.1, 10.0, 0.05), strict=True):
        assert abs(r[k]) <= most + 1e-9
        assert u[k] == pytest.approx(0, abs=1e-9) or r[k] == pytest.approx(-most * np.sign(u[k]), abs=1e-9)


@pytest.mark.parametrize("argument", ["A", "b", "friction"])
def test_derivative_of_the_solution(argument):
    """Central differences with h = 1e-6: truncation 1e-12, rounding of a solution good to 1e-12 about 1e-6."""
    rng = np.random.default_rng(6)
    solve_tightly = jax.jit(
        lambda p: newton.solve(p, jnp.zeros_like(p.b), tolerance=1e-13, most_iterations=300).impulse
    )
    tried = 0
    for _ in range(6):
        problem = random_contacts(rng, 4, 6)
        if float(margin(problem, solve_tightly(problem))) < 1e-3:
            continue
        tried += 1
        value = getattr(problem, argument)
        direction = jnp.asarray(rng.normal(size=value.shape)) * 0.1

        def along(t, problem=problem, value=value, direction=direction):
            return solve_tightly(problem._replace(**{argument: value + t * direction}))

        h = 1e-6
        differences = (along(h) - along(-h)) / (2 * h)
        forward = jax.jvp(along, (0.0,), (1.0,))[1]
        reverse = jax.jacrev(along)(0.0)
        np.testing.assert_allclose(forward, differences, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(reverse, forward, rtol=1e-9, atol=1e-12)
    assert tried >= 3


def test_projection_on_the_cone_is_the_nearest_point():
    rng = np.random.default_rng(7)
    x, mu = jnp.asarray(rng.normal(size=(200, 3))), jnp.asarray(rng.uniform(0.1, 2, 200))
    nearest = project_on_cone(x, mu)
    assert np.all(length(nearest[:, 1:]) <= mu * nearest[:, 0] + 1e-12)
    for _ in range(200):  # no other point of the cone is nearer
        normal = rng.uniform(0, 3, 200)
        tangent = rng.normal(size=(200, 2))
        tangent *= (rng.uniform(0, 1, 200) * mu * normal / np.linalg.norm(tangent, axis=1))[:, None]
        other = np.concatenate([normal[:, None], tangent], axis=1)
        assert np.all(np.linalg.norm(x - nearest, axis=1) <= np.linalg.norm(np.asarray(x) - other, axis=1) + 1e-12)
