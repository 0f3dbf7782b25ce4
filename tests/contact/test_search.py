"""The solver of rows under laws: solved to its tolerance or flagged, never wrong in silence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle.contact.coupling import joined, layout_of, slope_matrix, split
from knuckle.contact.laws import Between, Bounded, Coulomb, Pyramid, length, project_on_cone
from knuckle.contact.laws_smooth import Given, Relaxed, Springy
from knuckle.contact.progress import INNER_STEPS
from knuckle.contact.search import search
from knuckle.contact.system import System, block_scales, imbalance, slopes, velocity
from tests.contact.scenes import as_system, random_contacts, stack

TOLERANCE = 1e-8

solve = jax.jit(lambda s: search(s, jnp.zeros_like(joined(s.b)), tolerance=TOLERANCE, most_iterations=600))

SETS = {
    "six bodies": lambda rng: random_contacts(rng, 6, 12),
    "mass ratio 1e4": lambda rng: random_contacts(rng, 6, 12, mass_ratio=1e4),
    "redundant": lambda rng: random_contacts(rng, 2, 12),
    "one body, 36 rows for 6 freedoms": lambda rng: random_contacts(rng, 1, 12),
    "four cubes": lambda rng: stack(rng, 4),
    "four cubes, heavy on top": lambda rng: stack(rng, 4, mass_ratio=1e4),
    "four cubes, light on top": lambda rng: stack(rng, 4, mass_ratio=1e-4),
}


def check_laws(system: System, r: jax.Array, tolerance: float) -> None:
    """Signorini, Coulomb and maximum dissipation, each in m/s, written out contact by contact."""
    u, impulse = np.asarray(joined(velocity(system, system.split(r)))).reshape(-1, 3), np.asarray(r).reshape(-1, 3)
    scale = np.asarray(block_scales(system)[0])
    law = system.laws[0]
    assert isinstance(law, Coulomb)
    for k, mu in enumerate(np.asarray(law.friction)):
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
        system = as_system(SETS[name](rng))
        found = solve(system)
        assert bool(found.converged), f"residual {float(found.residual):.1e} after {int(found.iterations)}"
        check_laws(system, found.impulse, TOLERANCE)


def test_a_search_by_easier_problems_ends_at_rounding_if_contacts_are_not_redundant():
    """The path converges linearly, to just below the tolerance: what it leaves must not depend on the path."""
    rng, residuals = np.random.default_rng(12), []
    for name in ("six bodies", "mass ratio 1e4"):
        found = [solve(as_system(SETS[name](rng))) for _ in range(30)]
        residuals += [float(one.residual) for one in found if int(one.iterations) > INNER_STEPS]
    assert len(residuals) > 4
    assert np.median(residuals) < 1e-3 * TOLERANCE  # a Newton step from 1e-8


def test_an_unsolved_problem_is_flagged():
    system = as_system(SETS["redundant"](np.random.default_rng(1)))
    found = search(system, jnp.zeros_like(joined(system.b)), tolerance=TOLERANCE, most_iterations=1)
    assert not bool(found.converged)
    assert float(found.residual) > TOLERANCE
    assert np.all(np.isfinite(found.impulse))


@pytest.mark.parametrize("law", [Coulomb, Pyramid])
def test_unsolved_impulses_push_within_the_cone_and_add_no_energy(law):
    """Whatever the search was at: contacts that pull would add energy where bodies may still come nearer."""
    rng = np.random.default_rng(3)
    searched = jax.jit(lambda system, start: search(system, start, tolerance=TOLERANCE, most_iterations=1))
    unsolved = 0
    for _ in range(20):
        system = as_system(SETS["redundant"](rng))
        friction = system.laws[0].friction  # type: ignore[attr-defined]
        b = joined(system.b)
        system = system._replace(b=system.split(b + rng.normal(size=len(b))), laws=(law(friction),))
        start = jnp.asarray(rng.normal(size=len(b)))
        found = searched(system, start)
        unsolved += not bool(found.converged)
        r = np.asarray(found.impulse)
        blocks = r.reshape(-1, 3)
        assert np.all(blocks[:, 0] >= 0)
        size = np.linalg.norm(blocks[:, 1:], axis=1) if law is Coulomb else np.abs(blocks[:, 1:]).max(axis=1)
        assert np.all(size <= np.asarray(friction) * blocks[:, 0] * (1 + 1e-12))
        assert r @ (np.asarray(joined(system.b)) + np.asarray(system.A) @ r) <= 1e-12
    assert unsolved >= 10


def test_a_warm_start_at_the_solution_takes_no_iteration_and_a_broken_one_does_no_harm():
    system = as_system(SETS["six bodies"](np.random.default_rng(2)))
    found = solve(system)
    again = search(system, found.impulse, tolerance=TOLERANCE, most_iterations=600)
    assert int(again.iterations) == 0
    from_nan = search(system, jnp.full_like(joined(system.b), jnp.nan), tolerance=TOLERANCE, most_iterations=600)
    assert bool(from_nan.converged)


def some_law(name: str, rng: np.random.Generator):
    positive: list[Any] = [jnp.asarray(rng.uniform(0.2, 1.5, 40)) for _ in range(8)]
    return {
        "Coulomb": lambda: Coulomb(positive[0]),
        "Coulomb in a plane": lambda: Coulomb(positive[0], tangents=1),
        "Pyramid": lambda: Pyramid(positive[0]),
        "Between": lambda: Between(-positive[0], positive[1]),
        "Bounded": lambda: Bounded(positive[0]),
        "Relaxed": lambda: Relaxed(*positive[:3]),
        "Springy": lambda: Springy(positive[7] - 1, *positive[:7]),
        "Given": lambda: Given(jnp.asarray(rng.normal(size=(40, 3)))),
    }[name]()


LAWS = ["Coulomb", "Coulomb in a plane", "Pyramid", "Between", "Bounded", "Relaxed", "Springy", "Given"]


@pytest.mark.parametrize("name", LAWS)
def test_slopes_are_the_derivative_of_the_imbalance(name):
    rng = np.random.default_rng(3)
    law = some_law(name, rng)
    root = rng.normal(size=(law.rows, law.rows))
    A = jnp.asarray(root @ root.T / law.rows + 0.1 * np.eye(law.rows))
    r, b = jnp.asarray(rng.normal(size=law.rows)), jnp.asarray(rng.normal(size=law.rows))

    @jax.jit
    def exact_and_found(r):
        scales, layout = block_scales(System.of_matrix(A, b, (law,))), layout_of((law,))

        def parts(r):
            return split(layout, r), split(layout, A @ r + b)

        exact = jax.jacfwd(lambda r: joined(imbalance((law,), *parts(r), scales)))(r)
        return exact, slope_matrix(A, slopes((law,), *parts(r), scales))

    exact, found = exact_and_found(r)
    np.testing.assert_allclose(found, exact, atol=1e-10)


def test_other_laws_hold_beside_contacts():
    """Rows between bounds, equal and bounded ones: checked by their definitions on a random positive definite A."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(15, 15))
    laws = (
        Coulomb(jnp.array([0.3, 0.8])),
        Between(jnp.array([0.0, -0.5, -2.0]), jnp.array([jnp.inf, -0.1, 2.0])),
        Between(jnp.full(3, 0.2), jnp.full(3, 0.2)),
        Bounded(jnp.array([0.1, 10.0, 0.05])),
    )
    system = System.of_matrix(jnp.asarray(root @ root.T + 0.1 * np.eye(15)), jnp.asarray(rng.normal(size=15)), laws)
    found = search(system, jnp.zeros(15), tolerance=1e-10, most_iterations=600)
    assert bool(found.converged)
    r, u = np.asarray(found.impulse), np.asarray(joined(velocity(system, system.split(found.impulse))))
    for k, (low, high) in zip(range(6, 9), ((0.0, np.inf), (-0.5, -0.1), (-2.0, 2.0)), strict=True):
        assert low - 1e-9 <= u[k] <= high + 1e-9
        assert r[k] <= 1e-9 or u[k] == pytest.approx(low, abs=1e-9)
        assert r[k] >= -1e-9 or u[k] == pytest.approx(high, abs=1e-9)
    np.testing.assert_allclose(u[9:12], 0.2, atol=1e-9)
    for k, most in zip(range(12, 15), (0.1, 10.0, 0.05), strict=True):
        assert abs(r[k]) <= most + 1e-9
        assert u[k] == pytest.approx(0, abs=1e-9) or r[k] == pytest.approx(-most * np.sign(u[k]), abs=1e-9)


def test_relaxed_solutions_tend_to_the_hard_one():
    system = as_system(SETS["six bodies"](np.random.default_rng(8)))
    hard = solve(system).impulse
    law = system.laws[0]
    assert isinstance(law, Coulomb)
    friction = law.friction
    errors = []
    for sigma in (1e-1, 1e-2, 1e-3):
        law = Relaxed(friction, jnp.full_like(friction, sigma), block_scales(system)[0])
        relaxed = system._replace(laws=(law,))
        found = search(relaxed, hard, tolerance=TOLERANCE, most_iterations=600)
        assert bool(found.converged)
        errors.append(float(jnp.max(jnp.abs(found.impulse - hard))))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05 * errors[0]


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


@pytest.mark.parametrize(
    "law",
    [Coulomb(jnp.zeros(1)), Coulomb(jnp.ones(1)), Pyramid(jnp.zeros(1)), Pyramid(jnp.ones(1)), Bounded(jnp.zeros(1))],
)
def test_rows_that_do_nothing_have_the_slopes_of_their_law_at_exactly_zero_slip(law):
    """A contact that opens, or a joint without friction, is a tie at rest; half of a slope gave a wrong gradient."""
    r, scale = jnp.zeros((1, law.block)), jnp.ones(1)
    u = r.at[0, 0].set(2.0) if law.block > 1 else r
    by_r, by_u = jax.jacfwd(lambda r, u: law.imbalance(r, u, scale), (0, 1))(r, u)
    wanted = law.slopes(r, u, scale)
    np.testing.assert_array_equal(by_r[0, :, 0], wanted.by_impulse[0])
    np.testing.assert_array_equal(by_u[0, :, 0], wanted.by_velocity[0])
