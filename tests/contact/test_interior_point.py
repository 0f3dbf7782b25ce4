"""`InteriorPoint` in the step: beside `Impulse`, with constraints, and its derivative."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse, InteriorPoint
from tests.contact.scenes import boxes, planar_chain, pose
from tests.derivatives import by_columns


def final(model, q, qd, contact, *, steps=100, dt=2e-3):
    run = kn.rollout(model, kn.State(q, qd), dt=dt, steps=steps, contact=contact)
    assert run.contact is not None
    return jnp.concatenate([run.q[-1], run.qd[-1]]), run.contact.converged.all()


def test_a_box_that_slides_along_a_direction_of_the_pyramid_moves_as_on_the_cone():
    model = boxes(1)
    q, qd = pose([0, 0, 0.5]), np.array([1.0, 0, 0, 0, 0, 0])
    cone, pyramid = (
        kn.native.jit(lambda q, qd, c=c: final(model, q, qd, c))(q, qd) for c in (Impulse(), InteriorPoint())
    )
    assert bool(pyramid[1])
    np.testing.assert_allclose(pyramid[0], cone[0], atol=1e-6)  # both solved to 1e-8 m/s, 100 steps
    assert float(pyramid[0][0]) > 0.1


def test_with_limits_ties_and_dry_friction_in_a_plane_it_moves_as_the_cone_does():
    """In a plane the pyramid is the cone."""
    model = planar_chain()
    q, qd = np.array([0.0, 0.349, -0.6, 0.0]), np.array([0.3, 1.0, -0.4, 0.0])
    cone, pyramid = (
        kn.native.jit(lambda q, qd, c=c: final(model, q, qd, c, steps=60))(q, qd) for c in (Impulse(), InteriorPoint())
    )
    assert bool(cone[1]) and bool(pyramid[1])
    np.testing.assert_allclose(pyramid[0], cone[0], atol=1e-6)
    gradients = [
        by_columns(lambda q, c=c: final(model, q, jnp.asarray(qd), c, steps=60)[0])(q)
        for c in (Impulse(tolerance=1e-11), InteriorPoint(tolerance=1e-11))
    ]
    np.testing.assert_allclose(gradients[1], gradients[0], atol=1e-5 * np.abs(gradients[0]).max())


def test_smoothing_gives_a_gradient_before_the_touch():
    """A ball 1 mm over the ground and at rest: what its step does to the next velocity is felt ahead of the touch."""
    link = kn.Link("ball", joints=kn.prismatic("z"), mass=1.0, shapes=kn.shapes.sphere(0.1))
    model = kn.build([link], world_shapes=[kn.shapes.plane()])

    def speed_and_slope(contact):
        def speed(h):
            return kn.step(model, kn.State(jnp.array([0.1]) + h, jnp.zeros(1)), dt=1e-3, contact=contact).qd[0]

        return kn.native.jit(jax.value_and_grad(speed))

    hard, flat = speed_and_slope(InteriorPoint())(1e-3)
    assert float(flat) == 0.0
    value, slope = speed_and_slope(InteriorPoint(smoothing=0.5, smooth="derivative"))(1e-3)
    assert abs(float(slope)) > 1.0 and float(value) == pytest.approx(float(hard), abs=1e-12)
    both = speed_and_slope(InteriorPoint(smoothing=0.5, smooth="both"))
    value, slope = both(1e-3)
    assert abs(float(slope)) > 1.0 and float(value) > float(hard) + 1e-3
    h = 1e-6
    around = [float(both(1e-3 + d)[0]) for d in (h, -h)]
    assert float(slope) == pytest.approx((around[0] - around[1]) / (2 * h), rel=1e-5)


def masses_and_pushes(model, q, qd):
    """Velocities after a relaxed step, by relative changes of masses, friction of joints and width of smoothing."""
    links = len(model.link_names)

    def velocity(x):
        q_change, qd_change, by_mass, by_rest = jnp.split(x, np.cumsum([model.nv, model.nv, links]))
        changed = eqx.tree_at(
            lambda m: (m.inertia.mass, m.friction),
            model,
            (model.inertia.mass * (1 + by_mass), model.friction * (1 + by_rest[0])),
        )
        width, friction = 0.1 * (1 + by_rest[1]), 0.5 * (1 + by_rest[2])
        contact = InteriorPoint(smoothing=width, friction=friction, tolerance=1e-12)
        state = kn.State(kn.retract(model, q, q_change), qd + qd_change)
        return kn.step(changed, state, dt=2e-3, contact=contact).qd

    return velocity, np.zeros(2 * model.nv + links + 3)


RELAXED = {
    "planar chain": (planar_chain, np.array([0.0, 0.349, -0.6, 0.0]), np.array([0.3, 1.0, -0.4, 0.0])),
    "box": (lambda: boxes(1), pose([0, 0, 0.5]), np.array([0.5, 0.2, -0.3, 0.1, -0.2, 0.3])),
}


@pytest.mark.parametrize("name", RELAXED)
def test_the_derivative_of_the_relaxed_step_is_its_own(name):
    """By state, masses, joint friction, width and friction of contacts: beside limits, ties and dry friction too."""
    build, q, qd = RELAXED[name]
    velocity, x = masses_and_pushes(build(), q, qd)
    at, slopes = kn.native.jit(velocity), by_columns(velocity)
    exact = slopes(x)
    steps = np.where(np.arange(len(x)) < len(qd), 1e-8, 1e-6)  # gaps count as closed within micrometres
    numeric = [(np.asarray(at(h)) - np.asarray(at(-h))) / (2 * h.max()) for h in np.diag(steps)]
    for k, column in enumerate(numeric):
        noise = 1e-12 / steps[k]  # velocities are solved to 1e-12 m/s
        np.testing.assert_allclose(exact[:, k], column, atol=1e-5 * np.abs(column).max() + noise, err_msg=f"column {k}")


def test_relaxed_impulses_of_bodies_that_are_far_apart_are_work_over_velocity():
    """r (r / m + b) = m (s / 2)^2 with b = gap / dt. Velocities beyond 1 m/s were cut: impulses were too large."""
    ball = kn.Link("ball", joints=kn.prismatic("z"), mass=2.0, shapes=kn.shapes.sphere(0.1))
    model, dt = kn.build([ball], world_shapes=[kn.shapes.plane()], gravity=(0, 0, 0)), 1e-3

    def speed(height, width, solver):
        contact = solver(smoothing=width, friction=0.5, mixing=0.0)
        return kn.step(model, kn.State(height[None], jnp.zeros(1)), dt=dt, contact=contact).qd[0]

    both = kn.native.jit(lambda *at: [jax.value_and_grad(speed)(*at, solver) for solver in (InteriorPoint, Impulse)])
    for width, b in itertools.product((0.2, 2.0), (0.5, 1.5, 5.0, 50.0, 500.0)):
        (found, slope), (other, other_slope) = both(0.1 + b * dt, width)
        # 1e-8 m/s is the solver's tolerance, 1e-3 what far rows may differ by
        np.testing.assert_allclose(found, other, rtol=1e-3, atol=1e-8)
        np.testing.assert_allclose(slope, other_slope, rtol=1e-3, atol=1e-5)
        closed = 0.5 * width**2 / (b + np.hypot(b, width))
        np.testing.assert_allclose(found, closed, rtol=0.02)  # touching begins a little above the ground


@pytest.mark.parametrize("smooth", ["both", "derivative"])
def test_a_tie_that_opens_fast_is_closed_though_nothing_else_moves(smooth):
    """Its velocity of 5 m/s was cut to 1 m/s, as that of a gap: the sliders went on at 4.5 and 0.5 m/s, converged."""
    sliders = [kn.Link(name, joints=kn.prismatic("x"), mass=1.0) for name in ("a", "b")]
    model = kn.build(sliders, equalities=[kn.Mimic("a_joint", "b_joint", (0, 1.0, 0, 0, 0))], gravity=(0, 0, 0))
    run = kn.rollout(
        model, kn.State(np.zeros(2), np.array([5.0, 0.0])), dt=1e-3, steps=1, native=True,
        contact=InteriorPoint(smoothing=0.1, smooth=smooth),
    )  # fmt: skip
    np.testing.assert_allclose(run.qd[0], [2.5, 2.5], atol=1e-6)
    assert run.contact is not None and bool(run.contact.converged[0])
