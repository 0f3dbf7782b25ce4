"""Projected Gauss-Seidel: the solution of Newton's method where it converges, and a flag where it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse, InteriorPoint
from knuckle.contact.coupling import joined
from knuckle.contact.gauss_seidel import GaussSeidel
from knuckle.contact.search import search
from tests.contact.scenes import as_system, random_contacts, stack
from tests.contact.test_search import check_laws

TOLERANCE = 1e-8
SWEEPS = 5000
GAUSS_SEIDEL = Impulse(solver="gauss_seidel", most_iterations=SWEEPS)


def solve(system, sweeps=SWEEPS):
    zero = jnp.zeros_like(joined(system.b))
    return GaussSeidel().solve(system, zero, tolerance=TOLERANCE, most_iterations=sweeps)


def test_random_contacts_are_solved_as_by_newton():
    rng, zero = np.random.default_rng(5), jnp.zeros(36)
    compiled = jax.jit(solve)
    for _ in range(10):
        system = as_system(random_contacts(rng, 6, 12))
        found = compiled(system)
        assert bool(found.converged)
        check_laws(system, found.impulse, TOLERANCE)
        # both are within the tolerance of laws whose solution is unique in u: contacts are not redundant here
        newton = jax.jit(search, static_argnames=("tolerance", "most_iterations"))
        other = newton(system, zero, tolerance=TOLERANCE, most_iterations=600)
        moved = joined(system.coupling.velocity(system.split(found.impulse - other.impulse)))
        assert np.abs(moved).max() < 1e3 * TOLERANCE


def test_a_stack_with_a_heavy_top_is_flagged_not_wrong():
    system = as_system(stack(np.random.default_rng(2), 4, mass_ratio=1e4))
    found = jax.jit(lambda s: solve(s, 20))(system)
    assert not bool(found.converged) and float(found.residual) > TOLERANCE
    r = joined(system.split(found.impulse))
    assert float(r @ (joined(system.coupling.velocity(system.split(r))) + joined(system.b))) <= 1e-12


def scene(friction=0.5):
    """A ball that slides into another, and a limited arm with dry friction that hits its stop: nothing redundant."""
    hinge = kn.revolute("y", lower=-0.3, upper=0.2, friction=0.05)
    links = [
        kn.Link("large", joints=kn.free(), mass=1.0, shapes=kn.shapes.sphere(0.1, friction=(friction,))),
        kn.Link("small", joints=kn.free(), mass=0.5, shapes=kn.shapes.sphere(0.05, friction=(friction,))),
        kn.Link("arm", joints=hinge, position=(0, 1.0, 1.0), mass=0.3, com=(0.1, 0, 0), inertia=(1e-3,) * 3),
    ]
    return kn.build(links, world_shapes=[kn.shapes.plane(friction=(friction,))])


START = kn.State(
    np.array([0, 0, 0.1, 1.0, 0, 0, 0, 0.2, 0.02, 0.05, 1.0, 0, 0, 0, 0.1]),
    np.array([1.0, 0.2, -0.5, 0, 0, 1.0, *[-0.5, 0, 0, 0, 0, 0], 4.0]),
)


@pytest.mark.parametrize("native", [True, False])
def test_a_roll_out_is_that_of_newton(native):
    """Contacts, a limit and dry friction. Few steps may stay unsolved, and say so."""
    newton, other = (
        kn.rollout(scene(), START, dt=2e-3, steps=100, contact=contact, native=native)
        for contact in (Impulse(), GAUSS_SEIDEL)
    )
    assert other.contact is not None and np.mean(other.contact.converged) >= 0.95
    np.testing.assert_array_equal(other.contact.converged, np.asarray(other.contact.residual) <= TOLERANCE)
    np.testing.assert_allclose(other.q, newton.q, atol=1e-6)
    np.testing.assert_allclose(other.qd, newton.qd, atol=1e-5)


def test_the_gradient_is_that_of_newton():
    """The derivative is that of the solution, whichever way that was found."""

    def reach(speed, contact):
        state = kn.State(jnp.asarray(START.q), jnp.asarray(START.qd).at[0].set(speed))
        return kn.rollout(scene(), state, dt=2e-3, steps=20, contact=contact).q[-1, 0]

    slopes = [kn.native.jit(jax.grad(lambda s, c=c: reach(s, c)))(1.0) for c in (Impulse(), GAUSS_SEIDEL)]
    assert slopes[1] == pytest.approx(slopes[0], rel=1e-6)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="no smoothing: use solver='newton'"):
        Impulse(solver="gauss_seidel", smoothing=0.1)
    with pytest.raises(ValueError, match="one of newton, gauss_seidel, got 'pgs'"):
        Impulse(solver="pgs")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="solver of its own"):
        InteriorPoint(solver="gauss_seidel")
