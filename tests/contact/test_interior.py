"""The interior-point solver: closed forms, the law written out, residuals of random problems, derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle import native
from knuckle.contact import interior
from knuckle.contact.interior_problem import Problem, row_scale, velocity
from knuckle.contact.interior_pyramid import corners, imbalance, imbalance_slope, margin, project_on_polygon, residual
from knuckle.contact.search import search
from tests.contact.scenes import as_problem, as_system, block, random_contacts, stack

TOLERANCE = 1e-8
NONE = jnp.zeros(0)


MOST_NATIVE_ROWS = 9  # more rows compile faster by XLA


def plain(problem: Problem, tolerance, smoothing=None, directions: int = 4, smooth_value: bool = True):
    """The solver from zero; smoothing None is the hard law."""
    width = 0.0 if smoothing is None else smoothing
    options = {"directions": directions, "smoothing": width, "smooth_value": smooth_value}
    return interior.solve(problem, jnp.zeros_like(problem.b), tolerance=tolerance, most_iterations=600, **options)


class Compiled:
    """A function of a problem, as native code where the problem is small; one version for all tolerances."""

    def __init__(self, function, static=()):
        self.natively = native.jit(function, static_argnames=static)
        self.by_xla = jax.jit(function, static_argnames=static)

    def __call__(self, problem: Problem, *inputs, **options):
        small = problem.b.shape[-1] <= MOST_NATIVE_ROWS
        return (self.natively if small else self.by_xla)(problem, *inputs, **options)


compiled = Compiled(plain, ("directions", "smooth_value"))


def solve(problem: Problem, directions: int = 4, tolerance: float = TOLERANCE, smoothing: float | None = None):
    return compiled(problem, tolerance, smoothing, directions=directions)


def point_mass(v, mass: float = 2.0, friction: float = 0.5) -> Problem:
    """A mass that touches a plane, with velocity v (normal, two tangents) if nothing stopped it."""
    return Problem(jnp.eye(3) / mass, jnp.asarray(v, float), jnp.array([friction]), NONE, NONE)


def rows(A, b, bound=(), one_sided: int = 0) -> Problem:
    return Problem(jnp.asarray(A, float), jnp.asarray(b, float), NONE, jnp.asarray(bound, float), jnp.zeros(one_sided))


def check_laws(problem: Problem, r: jax.Array, directions: int, tolerance: float) -> None:
    """Signorini, the pyramid, and the most dissipation within it, written out contact by contact."""
    u = np.asarray(velocity(problem, r)).reshape(-1, 3)
    impulse, scale = np.asarray(r).reshape(-1, 3), np.asarray(row_scale(problem)).reshape(-1, 3)[:, 0]
    along = corners(directions)
    between = (along + np.roll(along, 1, axis=0)) / 2  # middles of the edges: normals of length cos(pi / directions)
    for k, mu in enumerate(np.asarray(problem.friction)):
        push, drag = impulse[k, 0] * scale[k], impulse[k, 1:] * scale[k]
        assert min(push, u[k, 0]) == pytest.approx(0, abs=3 * tolerance)
        assert np.max(between @ drag) <= mu * push * np.sum(between[0] ** 2) + 3 * tolerance
        lost, most = -drag @ u[k, 1:], mu * push * np.max(along @ u[k, 1:])
        assert lost == pytest.approx(most, abs=10 * tolerance * (1 + push + np.linalg.norm(u[k])))


@pytest.mark.parametrize("slope", [0.2, 0.4, 0.5, 0.8])
def test_block_on_a_slope_sticks_up_to_the_friction_angle(slope):
    """Free fall for 10 ms along the first tangent, a direction of the pyramid: Coulomb's law exactly."""
    mass, mu, g_dt = 2.0, 0.5, 0.0981
    found = solve(point_mass([-g_dt * np.cos(slope), g_dt * np.sin(slope), 0], mass, mu))
    most, wanted = mu * np.cos(slope), np.sin(slope)
    assert bool(found.converged)
    expected = mass * g_dt * np.array([np.cos(slope), -min(most, wanted), 0.0])
    np.testing.assert_allclose(found.impulse, expected, atol=2 * TOLERANCE)


def test_pyramid_of_four_holds_less_along_a_diagonal():
    """Between two corners the square's edge is nearer by cos(45 degrees)."""
    found = solve(point_mass([-1.0, 3.0, 3.0], mass=1.0, friction=0.5))
    np.testing.assert_allclose(found.impulse, [1.0, -0.25, -0.25], atol=2 * TOLERANCE)
    eight = solve(point_mass([-1.0, 3.0, 3.0], mass=1.0, friction=0.5), 8)
    np.testing.assert_allclose(eight.impulse, [1.0, -0.5 * np.sqrt(0.5), -0.5 * np.sqrt(0.5)], atol=2 * TOLERANCE)


def test_impact_and_departure():
    mass, v, e = 3.0, 2.0, 0.7
    hit = solve(point_mass([-(1 + e) * v, 0.0, 0.0], mass))
    np.testing.assert_allclose(hit.impulse, [mass * (1 + e) * v, 0, 0], atol=1e-7)
    away = solve(point_mass([5.0, 1.0, -2.0], mass))
    np.testing.assert_allclose(away.impulse, 0, atol=0)
    assert int(away.iterations) == 0


def test_two_limits_on_one_joint():
    """Only the limit that the joint runs into pushes; between them neither does."""
    inverse = np.array([[1.0, -1.0], [-1.0, 1.0]]) / 4.0 + 1e-9 * np.eye(2)
    for free, expected in ((3.0, [0.0, 4 * 2.0]), (-3.0, [4 * 2.0, 0.0]), (0.5, [0.0, 0.0])):
        found = solve(rows(inverse, [free + 1.0, 1.0 - free], one_sided=2))  # -1 <= velocity <= 1
        assert bool(found.converged)
        np.testing.assert_allclose(found.impulse, expected, atol=1e-6)


@pytest.mark.parametrize(("free", "expected"), [(3.0, -0.5), (-3.0, 0.5), (0.1, -0.2)])
def test_dry_friction_holds_up_to_its_bound(free, expected):
    found = solve(rows([[0.5]], [free], bound=[0.5]))
    np.testing.assert_allclose(found.impulse, [expected], atol=1e-7)
    nothing = solve(rows([[0.5]], [free], bound=[0.0]))
    assert bool(nothing.converged)
    np.testing.assert_allclose(nothing.impulse, 0, atol=0)


def mixed(rng: np.random.Generator) -> Problem:
    """Two contacts, three one-sided, three equal, three bounded rows."""
    root = rng.normal(size=(15, 15))
    return Problem(
        A=jnp.asarray(root @ root.T + 0.1 * np.eye(15)),
        b=jnp.asarray(rng.normal(size=15)),
        friction=jnp.array([0.3, 0.8]),
        bound=jnp.array([0.1, 10.0, 0.05]),
        one_sided=jnp.zeros(3),
    )


def test_all_laws_hold_beside_each_other():
    for seed in range(5):
        problem = mixed(np.random.default_rng(seed))
        found = solve(problem, tolerance=1e-10)
        assert bool(found.converged)
        r, u = np.asarray(found.impulse), np.asarray(velocity(problem, found.impulse))
        np.testing.assert_allclose(np.minimum(r[6:9], u[6:9]), 0, atol=1e-9)
        np.testing.assert_allclose(u[9:12], 0, atol=1e-9)
        for k, most in zip(range(12, 15), (0.1, 10.0, 0.05), strict=True):
            assert abs(r[k]) <= most + 1e-9
            assert u[k] == pytest.approx(0, abs=1e-9) or r[k] == pytest.approx(-most * np.sign(u[k]), abs=1e-9)


def newton(problem: Problem):
    return search(as_system(problem), jnp.zeros_like(problem.b), tolerance=1e-10, most_iterations=600)


by_newton = Compiled(newton)


def test_without_friction_it_agrees_with_newtons_method():
    """Strictly convex without friction: one solution, so two residuals of 1e-10 are near each other."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        problem = random_contacts(rng, 6, 6)._replace(friction=jnp.zeros(6))
        other, found = by_newton(problem), solve(problem, tolerance=1e-10)
        assert bool(found.converged)
        assert bool(other.converged)
        np.testing.assert_allclose(found.impulse, other.impulse, atol=1e-7)


def sliding_box(v, mixing: float = 1e-6, turn: float = 0.0) -> Problem:
    """A cube of 1 kg on four corners (more rows than freedoms), falling at 0.1 m/s with tangential velocity v."""
    F = np.array([[0, 0, 1], [np.cos(turn), np.sin(turn), 0], [-np.sin(turn), np.cos(turn), 0.0]])
    J = np.vstack([block(F, np.array([x, y, -0.5])) for x in (-0.5, 0.5) for y in (-0.5, 0.5)])
    inverse = np.array([1.0] * 3 + [6.0] * 3)
    return as_problem(J, inverse, np.array([*v, -0.1, 0, 0, 0]), np.full(4, 0.3), mixing)


@pytest.mark.parametrize("v", [(1.0, 0.0), (0.0, -0.7), (0.01, 0.0)])
def test_slip_along_a_direction_of_the_pyramid_is_that_of_the_cone(v):
    problem = sliding_box(v)
    found, other = solve(problem, tolerance=1e-11), by_newton(problem)
    assert bool(found.converged)
    np.testing.assert_allclose(found.impulse, other.impulse, atol=1e-5)  # a residual of 1e-11 over R = 1e-6
    np.testing.assert_allclose(velocity(problem, found.impulse), velocity(problem, other.impulse), atol=1e-9)


@pytest.mark.parametrize("directions", [2, 4])
@pytest.mark.parametrize("slip", [0.0, 0.05, 2.0])
def test_a_missing_second_tangent_does_no_harm(directions, slip):
    """Planar models: the second tangent's row of A holds only the regularisation, and its b is zero."""
    problem = point_mass([-1.0, slip, 0.0], mass=1.0, friction=0.4)
    problem = problem._replace(A=jnp.diag(jnp.array([1.0, 1.0, 0.0]) + 1e-6))
    found = solve(problem, directions)
    assert bool(found.converged)
    np.testing.assert_allclose(found.impulse, [1.0, -min(slip, 0.4), 0.0], atol=1e-5)  # R changes it by 1e-6


SETS = {
    "six bodies": lambda rng: random_contacts(rng, 6, 12),
    "mass ratio 1e4": lambda rng: random_contacts(rng, 6, 12, mass_ratio=1e4),
    "redundant": lambda rng: random_contacts(rng, 2, 12),
    "one body, 36 rows for 6 freedoms": lambda rng: random_contacts(rng, 1, 12),
    "three cubes": lambda rng: stack(rng, 3),
    "three cubes, heavy on top": lambda rng: stack(rng, 3, mass_ratio=1e4),
    "three cubes, light on top": lambda rng: stack(rng, 3, mass_ratio=1e-4),
}


@pytest.mark.parametrize("name", SETS)
def test_every_problem_is_solved_to_the_tolerance(name):
    rng = np.random.default_rng(12)
    for _ in range(10):
        problem = SETS[name](rng)
        found = solve(problem)
        assert bool(found.converged), f"residual {float(found.residual):.1e} after {int(found.iterations)}"
        assert float(residual(problem, found.impulse, 4)) <= TOLERANCE
        check_laws(problem, found.impulse, 4, TOLERANCE)


def test_a_relaxed_problem_is_solved_to_rounding():
    """Not to the tolerance only: rounding decided by how much it was met, so that tracing changed a step by 7e-9."""
    rng = np.random.default_rng(12)
    for _ in range(10):
        found = solve(SETS["six bodies"](rng), smoothing=0.2)
        assert bool(found.converged) and float(found.residual) < 1e-3 * TOLERANCE


def test_eight_directions_obey_the_law_too():
    rng = np.random.default_rng(13)
    for _ in range(5):
        problem = SETS["six bodies"](rng)
        found = solve(problem, directions=8)
        assert bool(found.converged)
        check_laws(problem, found.impulse, 8, TOLERANCE)


def test_an_unsolved_problem_is_flagged_and_a_broken_start_does_no_harm():
    problem = random_contacts(np.random.default_rng(1), 1, 5)

    @native.jit
    def within(most, start):
        return interior.solve(problem, start, tolerance=TOLERANCE, most_iterations=most)

    short = within(1, jnp.zeros_like(problem.b))
    assert not bool(short.converged)
    assert float(short.residual) > TOLERANCE
    assert np.all(np.isfinite(short.impulse))
    whole = within(600, jnp.full_like(problem.b, jnp.nan))
    assert bool(whole.converged)
    assert int(within(600, whole.impulse).iterations) == 0


@pytest.mark.parametrize("directions", [4, 6, 8])
def test_projection_on_the_polygon_is_the_nearest_point(directions):
    rng = np.random.default_rng(7)
    x, radius = jnp.asarray(rng.normal(size=(200, 2))), jnp.asarray(rng.uniform(0.1, 2, 200))
    nearest = np.asarray(project_on_polygon(x, radius, directions))
    for _ in range(300):  # no other point of the polygon is nearer
        weight = rng.dirichlet(np.full(directions, 0.3), 200)
        other = np.asarray(radius)[:, None] * (weight @ corners(directions))
        assert np.all(np.linalg.norm(x - nearest, axis=1) <= np.linalg.norm(np.asarray(x) - other, axis=1) + 1e-12)
    again = project_on_polygon(jnp.asarray(nearest) * (1 - 1e-12), radius, directions)
    np.testing.assert_allclose(again, nearest, atol=1e-11)


@pytest.mark.parametrize("directions", [2, 4, 8])
def test_slope_is_the_derivative_of_the_map(directions):
    problem = mixed(np.random.default_rng(3))
    r = jnp.asarray(np.random.default_rng(4).normal(size=15))
    scale = row_scale(problem)
    exact = jax.jacfwd(lambda r: imbalance(problem, r, scale, directions))(r)
    np.testing.assert_allclose(imbalance_slope(problem, r, scale, directions), exact, atol=1e-12)


def in_both_modes(problem: Problem, change: Problem, weight, smoothing=None):
    """The impulses' change in forward mode; that times weights; the same in reverse mode."""

    def impulse(problem):
        return plain(problem, 1e-12, smoothing).impulse

    forward = jax.jvp(impulse, (problem,), (change,))[1]
    back = jax.vjp(impulse, problem)[1](weight)[0]
    reverse = sum(jnp.sum(x * y) for x, y in zip(back, change, strict=True))
    return forward, jnp.sum(weight * forward), reverse


both_modes = Compiled(in_both_modes)


def check_derivative(problem: Problem, argument: str, rng, tolerance: float, smoothing: float | None = None) -> None:
    """Central differences with h = 1e-6 in a random direction, forward mode and reverse mode."""
    value, h = getattr(problem, argument), 1e-6
    direction = jnp.asarray(0.1 * rng.normal(size=value.shape))
    change = jax.tree.map(jnp.zeros_like, problem)._replace(**{argument: direction})
    ends = [
        solve(problem._replace(**{argument: value + t * direction}), tolerance=1e-12, smoothing=smoothing).impulse
        for t in (h, -h)
    ]
    weight = jnp.asarray(rng.normal(size=problem.b.shape))
    forward, weighted, reverse = both_modes(problem, change, weight, smoothing)
    np.testing.assert_allclose(forward, (ends[0] - ends[1]) / (2 * h), rtol=tolerance, atol=tolerance)
    assert float(reverse) == pytest.approx(float(weighted), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("argument", ["A", "b", "friction"])
def test_derivative_of_the_solution(argument):
    rng = np.random.default_rng(6)
    tried = 0
    for _ in range(6):
        problem = random_contacts(rng, 4, 6)
        if float(margin(problem, solve(problem, tolerance=1e-12).impulse, 4)) < 1e-3:
            continue
        tried += 1
        check_derivative(problem, argument, rng, 1e-5)
    assert tried >= 3


@pytest.mark.parametrize("argument", ["A", "b", "friction", "bound"])
def test_derivative_beside_limits_equal_and_dry_rows(argument):
    problem = mixed(np.random.default_rng(2))
    assert float(margin(problem, solve(problem, tolerance=1e-12).impulse, 4)) > 1e-3
    check_derivative(problem, argument, np.random.default_rng(8), 1e-5)


@pytest.mark.parametrize("v", [(1.0, 0.2), (0.004, 0.002)], ids=["slide", "stick"])
def test_derivative_of_a_box_on_four_corners(v):
    """More rows than freedoms: R picks the solution, forward and backward; b changes as the box's velocity does."""
    problem = sliding_box(v, turn=0.3)
    assert float(margin(problem, solve(problem, tolerance=1e-12).impulse, 4)) > 1e-3

    F = np.array([[0, 0, 1], [np.cos(0.3), np.sin(0.3), 0], [-np.sin(0.3), np.cos(0.3), 0.0]])
    J = jnp.asarray(np.vstack([block(F, np.array([x, y, -0.5])) for x in (-0.5, 0.5) for y in (-0.5, 0.5)]))
    at, h = np.array([*v, -0.1, 0.02, -0.01, 0.03]), 1e-6
    _, forward, reverse = box_after(problem, J, at)
    ends = [[np.asarray(box_after(problem, J, at + s)[0]) for s in (step, -step)] for step in h * np.eye(6)]
    differences = np.stack([(more - less) / (2 * h) for more, less in ends], axis=1)
    np.testing.assert_allclose(forward, differences, atol=1e-4)
    np.testing.assert_allclose(reverse, forward, atol=1e-10)


def box_velocity_and_slopes(problem: Problem, J, v):
    def after(v):
        found = plain(problem._replace(b=J @ v), 1e-12)
        return v + jnp.asarray([1.0] * 3 + [6.0] * 3) * (J.T @ found.impulse)

    return after(v), jax.jacfwd(after)(v), jax.jacrev(after)(v)


box_after = Compiled(box_velocity_and_slopes)


def test_forward_and_reverse_mode_agree_where_the_problem_is_not_symmetric():
    """Sliding makes the system unsymmetric: reverse mode needs its transpose."""
    problem = random_contacts(np.random.default_rng(15), 3, 5)
    scale, r = row_scale(problem), solve(problem, tolerance=1e-12).impulse
    slope = np.asarray(imbalance_slope(problem, jnp.asarray(r), scale, 4))
    assert np.max(np.abs(slope - slope.T)) > 0.1
    forward, reverse = slopes_by_b(problem)
    np.testing.assert_allclose(reverse, forward, atol=1e-10)


def both_slopes_by_b(problem: Problem):
    def impulse(b):
        return plain(problem._replace(b=b), 1e-12).impulse

    return jax.jacfwd(impulse)(problem.b), jax.jacrev(impulse)(problem.b)


slopes_by_b = Compiled(both_slopes_by_b)


@pytest.mark.parametrize("b", [-0.3, 0.0, 0.2])
def test_smoothing_has_its_closed_form(b):
    """One push: x = d r and x (x + b) = (s / 2)^2; derivative-only smoothing leaves the value hard."""
    s, mass = 0.1, 2.0
    problem = rows([[1 / mass]], [b], one_sided=1)
    root = np.sqrt(b**2 + s**2)
    for smooth_value, expected in ((True, mass * (root - b) / 2), (False, mass * max(-b, 0.0))):
        value, slope = push_and_slope(problem, s, smooth_value=smooth_value)
        assert float(value) == pytest.approx(expected, abs=1e-9)
        assert float(slope) == pytest.approx(mass * (b / root - 1) / 2, abs=1e-8)


@partial(native.jit, static_argnames="smooth_value")
def push_and_slope(problem: Problem, smoothing, smooth_value: bool):
    def push(b):
        return plain(problem._replace(b=b), 1e-12, smoothing, smooth_value=smooth_value).impulse[0]

    value, slope = jax.value_and_grad(push)(problem.b)
    return value, slope[0]


@pytest.mark.parametrize("argument", ["A", "b", "friction", "bound"])
def test_relaxed_derivative_is_that_of_the_relaxed_value(argument):
    check_derivative(mixed(np.random.default_rng(9)), argument, np.random.default_rng(10), 1e-6, smoothing=0.2)


def test_relaxed_solution_tends_to_the_hard_one_and_its_width_has_a_derivative():
    problem = random_contacts(np.random.default_rng(16), 3, 5)
    hard = np.asarray(solve(problem).impulse)
    relaxed = {s: [np.asarray(x) for x in by_width(problem, s)] for s in (1e-1, 1e-2, 1e-3, 0.1 + 1e-6, 0.1 - 1e-6)}
    distance = [np.max(np.abs(relaxed[s][0] - hard)) for s in (1e-1, 1e-2, 1e-3)]
    assert distance[0] > distance[1] > distance[2]
    assert distance[2] < 1e-3
    differences = (relaxed[0.1 + 1e-6][0] - relaxed[0.1 - 1e-6][0]) / 2e-6
    np.testing.assert_allclose(relaxed[0.1][1], differences, atol=1e-6)


def impulse_and_slope_by_width(problem: Problem, smoothing):
    """Relaxed impulses and their derivative by the width."""
    return jax.jvp(lambda s: plain(problem, 1e-11, s).impulse, (smoothing,), (jnp.ones_like(smoothing),))


by_width = Compiled(impulse_and_slope_by_width)


STILL = {
    "at rest": [-0.01, 0.0, 0.0],
    "zero velocity": [0.0, 0.0, 0.0],
    "grazing": [0.0, 1.0, 0.0],
    "no contact": [1e6, 0.0, 0.0],
    "at the friction limit": [-1.0, 0.5, 0.0],
    "on a corner between edges": [-1.0, 1.0, 0.5],
}


@native.jit
def value_and_slopes(problem: Problem, smoothing=None):
    def impulse(problem):
        return plain(problem, TOLERANCE, smoothing).impulse

    return impulse(problem), jax.jacfwd(impulse)(problem), jax.jacrev(impulse)(problem)


@pytest.mark.parametrize("smoothing", [None, 0.01])
def test_nothing_is_ever_nan(smoothing):
    for name, b in STILL.items():
        for friction in (0.0, 0.5):
            for leaf in jax.tree.leaves(value_and_slopes(point_mass(b, friction=friction), smoothing)):
                assert np.all(np.isfinite(leaf)), f"{name}, friction {friction}"


def test_no_rows_at_all():
    found = solve(rows(np.zeros((0, 0)), np.zeros(0)))
    assert found.impulse.shape == (0,)
    assert bool(found.converged)


def batch(count: int) -> Problem:
    rng = np.random.default_rng(17)
    problems = [random_contacts(rng, 2, 3) for _ in range(count)]
    return jax.tree.map(lambda *x: jnp.stack(x), *problems)


def summary(problem: Problem):
    """Impulses and a gradient: what a step needs."""

    def energy(b):
        impulse = plain(problem._replace(b=b), TOLERANCE).impulse
        return jnp.sum(impulse**2), impulse

    slope, impulse = jax.grad(energy, has_aux=True)(problem.b)
    return impulse, slope


def test_batches_and_native_code_give_the_same():
    problems, one = batch(5), jax.jit(summary)
    each = [one(jax.tree.map(lambda x, i=i: x[i], problems)) for i in range(5)]
    expected = [np.stack([np.asarray(e[k]) for e in each]) for k in range(2)]
    together = jax.jit(jax.vmap(summary))(problems)
    natively = native.jit(summary)(jax.tree.map(lambda x: x[0], problems))
    all_natively = native.vmap(summary)(problems)
    for k in range(2):  # each is within the tolerance of the solution; gradients hang on impulses up to 1e-8 off
        np.testing.assert_allclose(together[k], expected[k], atol=1e-6)
        np.testing.assert_allclose(natively[k], expected[k][0], atol=1e-6)
        np.testing.assert_allclose(all_natively[k], expected[k], atol=1e-6)


def test_bad_arguments_are_named():
    problem = point_mass([-1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"directions must be even and at least 2.*got 3"):
        plain(problem, TOLERANCE, directions=3)
    with pytest.raises(ValueError, match=r"smoothing must not be negative, got -0\.1"):
        plain(problem, TOLERANCE, -0.1)
