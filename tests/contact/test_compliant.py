"""Springy contact: forces against their formulas, bounces against fine integration, gradients against differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Compliant
from tests.contact.scenes import ball, boxes, pose

G = 9.81
R = 0.1
DT = 1e-3
SUBSTEPS = [None, 8]  # implicit, and integrated within the step


def roll(model: kn.Model, q, qd, contact: Compliant, steps: int, dt: float = DT) -> Any:
    state = kn.State(np.asarray(q, float), np.asarray(qd, float))
    return kn.rollout(model, state, dt=dt, steps=steps, contact=contact, native=True)


def slider(gravity: float = G) -> kn.Model:
    """A ball of 1 kg that moves in x and z and does not turn."""
    joints = (kn.prismatic("x"), kn.prismatic("z"))
    link = kn.Link("slider", joints=joints, mass=1.0, shapes=kn.shapes.sphere(R))
    return kn.build([link], gravity=(0, 0, -gravity), world_shapes=[kn.shapes.plane()])


def rest_depth(stiffness: float, exponent: float = 1.5, load: float = G) -> float:
    return (load / stiffness) ** (1 / exponent)


@pytest.mark.parametrize("substeps", SUBSTEPS)
def test_the_ground_never_pulls(substeps):
    """Strong dissipation at 3 m/s apart would pull by the formula without its bound."""
    contact = Compliant(stiffness=1e4, dissipation=2.0, substeps=substeps)
    for depth, speed in ((0.01, 3.0), (0.01, 0.4), (0.001, -2.0)):
        run = roll(slider(), [0, R - depth], [0, speed], contact, 200)
        push = np.asarray(run.contact.impulse[:, 0, 0])
        assert push.min() >= 0
        assert push.max() > 0 or speed == 3.0


@pytest.mark.parametrize("stiffness", [1e5, 1e8])
def test_a_stiff_ground_is_stable_and_carries_exactly(stiffness):
    """Implicit at 1 ms: a drop of 0.1 m gains no energy and ends at the depth (m g / k)^(2/3)."""
    contact = Compliant(stiffness=stiffness, dissipation=2.0, tolerance=1e-10)  # far below what is compared
    run = roll(slider(), [0, R + 0.1], [0, 0], contact, 3000)
    assert bool(run.contact.converged.all())
    energy = 0.5 * run.qd[:, 1] ** 2 + G * (run.q[:, 1] - R)
    assert np.max(energy) <= G * 0.1
    assert R - float(run.q[-1, 1]) == pytest.approx(rest_depth(stiffness), rel=1e-5)
    assert float(run.contact.impulse[-1, 0, 0]) == pytest.approx(G * DT, rel=1e-6)


def test_a_body_at_its_rest_depth_stays():
    start = R - rest_depth(2e5, 1.3)
    run = roll(slider(), [0, start], [0, 0], Compliant(stiffness=2e5, exponent=1.3), 200)
    np.testing.assert_allclose(run.q[:, 1], start, atol=1e-10)


@pytest.mark.parametrize("dt", [1e-3, 1e-4])
def test_with_substeps_a_body_rests_to_first_order(dt):
    """Gravity's push counts from the start of a step, the ground's from its middle: at rest g dt / 2 is left.

    Dissipation takes that for motion, and lets the body sink by 2/3 c g dt / 2 of its depth, about which it swings.
    """
    depth = rest_depth(2e5)
    run = roll(slider(), [0, R - depth], [0, G * dt / 2], Compliant(stiffness=2e5, substeps=8), 200, dt=dt)
    sunk = 2 / 3 * 0.5 * G * dt / 2 * depth
    np.testing.assert_allclose(run.q[:, 1], R - depth, atol=2 * sunk + G * dt**2)
    np.testing.assert_allclose(run.qd[:, 1], G * dt / 2, atol=0.1 * G * dt)


@pytest.mark.parametrize("stiffness", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("transition", [0.1, 1e-2, 1e-4])
def test_every_step_is_solved_from_sliding_to_sticking(stiffness, transition):
    """Where friction is saturated its slope is zero, and whole Newton steps go back and forth for ever."""
    contact = Compliant(stiffness=stiffness, friction=0.5, transition=transition)
    run = roll(ball(), pose([0, 0, R + 0.02]), [1, 0, 0, 0, 0, 0], contact, 200)
    assert bool(run.contact.converged.all())


def bounce_by_fine_steps(stiffness: float, dissipation: float, speed: float, steps: int = 20000) -> float:
    """Speed of leaving over speed of arriving: z'' = k (-z)^1.5 max(1 - c z', 0), by RK4."""
    duration = 2 * 3.218 * (1 / (stiffness**2 * speed)) ** 0.2
    h = duration / steps

    def rate(y):
        push = stiffness * max(-y[0], 0.0) ** 1.5 * max(1 - dissipation * y[1], 0.0)
        return np.array([y[1], push])

    y = np.array([0.0, -speed])
    while y[0] <= 0:
        k1 = rate(y)
        k2 = rate(y + h / 2 * k1)
        k3 = rate(y + h / 2 * k2)
        k4 = rate(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return float(y[1] / speed)


@pytest.mark.parametrize("dissipation", [0.0, 0.05, 0.5])
def test_substeps_bounce_as_the_equation_does(dissipation):
    """Contact lasts 13 steps of 1 ms; small c v gives e = 1 - 2/3 c v (Hunt and Crossley)."""
    stiffness, speed = 1e6, 1.0
    contact = Compliant(stiffness=stiffness, dissipation=dissipation, substeps=8)
    run = roll(slider(gravity=0.0), [0, R + 3.3e-4], [0, -speed], contact, 200)
    restitution = float(run.qd[-1, 1]) / speed
    assert restitution == pytest.approx(bounce_by_fine_steps(stiffness, dissipation, speed, 4000), abs=1e-4)
    if dissipation == 0.05:
        assert (1 - restitution) / (dissipation * speed) == pytest.approx(2 / 3, rel=0.05)


def brown_mcphee(slip, transition, dynamic, static):
    x = slip / transition
    return dynamic * np.tanh(4 * x) + (static - dynamic) * x / (0.25 * x * x + 0.75) ** 2


def test_friction_follows_its_curve():
    """The share of friction in what the contact does, over slip speeds through the transition; its peak is there."""
    contact = Compliant(stiffness=1e5, friction=0.4, static_friction=0.7, transition=0.05, tolerance=1e-12)
    run = roll(slider(), [0, R - rest_depth(1e5)], [0.5, 0], contact, 200)
    slip = np.linalg.norm(run.contact.velocity[:, 0, 1:], axis=1)
    ratio = np.linalg.norm(run.contact.impulse[:, 0, 1:], axis=1) / run.contact.impulse[:, 0, 0]
    assert slip.max() > 0.45 and slip.min() < 0.01
    np.testing.assert_allclose(ratio, brown_mcphee(slip, 0.05, 0.4, 0.7), atol=1e-6)
    assert ratio.max() == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize("substeps", SUBSTEPS)
def test_sliding_ends_after_the_coulomb_distance_and_what_the_transition_adds(substeps):
    """v^2/(2 mu g) + (pi^2/12) (v_t/4)^2/(mu g), the integral of v dv / (mu g tanh(4 v/v_t)).

    Implicit steps move by the speed at their ends: v dt / 2 less. The transition takes five of them.
    """
    v, mu, transition = 1.5, 0.5, 0.1
    contact = Compliant(stiffness=1e5, friction=mu, transition=transition, substeps=substeps)
    rise = 0.0 if substeps is None else G * DT / 2  # of a body at rest
    run = roll(slider(), [0, R - rest_depth(1e5)], [v, rise], contact, 600)
    extra = np.pi**2 / 12 * (transition / 4) ** 2 / (mu * G)
    less = v * DT / 2 if substeps is None else 0.0
    assert float(run.q[-1, 0]) == pytest.approx(v**2 / (2 * mu * G) + extra - less, abs=0.2 * extra)
    assert abs(float(run.qd[-1, 0])) < 1e-6


@pytest.mark.parametrize("substeps", SUBSTEPS)
def test_gradients_match_differences_in_both_modes(substeps):
    """A tilted box that slides and turns on soft ground, by stiffness, dissipation, friction and state."""
    model = boxes(1)
    tilt = np.asarray(kn.spatial.normalize(jnp.array([1.0, 0.02, -0.03, 0.2])))
    q, qd = pose([0, 0, 0.5 + 0.02], tilt), np.array([0.8, -0.3, -0.4, 0.2, 0.5, 0.3])

    def final(x):
        contact = Compliant(
            stiffness=2e4 * (1 + x[0]),
            dissipation=0.5 + x[1],
            friction=0.4 + x[2],
            static_friction=0.6 + x[2],
            transition=0.1,
            tolerance=1e-13,
            substeps=substeps,
        )
        state = kn.State(kn.retract(model, jnp.asarray(q), x[3:9]), qd + x[9:])
        run = kn.rollout(model, state, dt=DT, steps=40, contact=contact)
        return jnp.concatenate([run.q[-1], run.qd[-1]]), run.contact

    def end(x):
        return final(x)[0]

    def by_columns(x):
        return jax.lax.map(lambda along: jax.jvp(end, (x,), (along,))[1], jnp.eye(15)).T

    def by_rows(x):
        return jax.lax.map(lambda of: jax.vjp(end, x)[1](of)[0], jnp.eye(13))

    many = kn.native.jit(lambda xs: jax.lax.map(final, xs))
    forward, backward = (kn.native.jit(by)(np.zeros(15)) for by in (by_columns, by_rows))
    h = 1e-6
    above, outcome = many(h * np.eye(15))
    numeric = (above - many(-h * np.eye(15))[0]).T / (2 * h)
    assert float(outcome.impulse[:, :, :, 0].max()) > 1e-3
    for part in (slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 9), slice(9, 15)):
        size = np.abs(numeric[:, part]).max()
        assert size > 0
        np.testing.assert_allclose(forward[:, part], numeric[:, part], atol=1e-4 * size, rtol=0)
    np.testing.assert_allclose(backward, forward, atol=1e-10 * np.abs(forward).max(), rtol=0)


@pytest.mark.parametrize("substeps", SUBSTEPS)
def test_no_gradient_is_nan(substeps):
    """At rest, at zero slip, exactly touching, apart, deep inside, and leaving faster than dissipation lets it push."""
    model = ball()

    def after(q, qd, numbers):
        k, c, p, mu, transition = numbers
        contact = Compliant(
            stiffness=k, dissipation=c, exponent=p, friction=mu, transition=transition, substeps=substeps
        )
        state = kn.step(model, kn.State(q, qd), dt=DT, contact=contact)
        return jnp.concatenate([state.q, state.qd])

    gradients = kn.native.jit(lambda *x: (after(*x), jax.jacrev(after, (0, 1, 2))(*x)))
    numbers = np.array([1e5, 0.5, 1.5, 0.5, 0.01])
    heights = {"rest": R - rest_depth(1e5), "touching": R, "apart": R + 0.3, "deep": -0.5 * R}
    for name, z in heights.items():
        for qd in (np.zeros(6), np.array([0, 0, 5.0, 0, 0, 0]), np.array([1, 0, -2.0, 0, 10, 0])):
            for number in jax.tree.leaves(gradients(pose([0, 0, z]), qd, numbers)):
                assert np.all(np.isfinite(number)), (name, qd)


@pytest.mark.parametrize("substeps", SUBSTEPS)
def test_it_runs_in_float32(substeps):
    """Close to float64: positions to its 1e-7 times the number of steps."""
    contact = Compliant(stiffness=1e4, friction=0.5, substeps=substeps, tolerance=1e-5)
    q, qd = pose([0, 0, R + 0.02]), np.array([1.0, 0, 0, 0, 0, 0])
    double = roll(ball(), q, qd, contact, 200)
    single = jax.tree.map(lambda x: np.asarray(x, np.float32), (ball(), kn.State(q, qd), contact))
    run = kn.rollout(single[0], single[1], dt=float(np.float32(DT)), steps=200, contact=single[2], native=True)
    assert run.q.dtype == np.float32 and run.contact is not None
    assert bool(run.contact.converged.all())
    np.testing.assert_allclose(run.q[-1], double.q[-1], atol=1e-4)


def test_substeps_that_are_too_long_are_neither_solved_nor_of_a_small_residual():
    """Their impulses are left out; the residual of what was left out was given as 0."""
    run = roll(slider(), [0, R - 1e-3], [0, 0], Compliant(stiffness=1e9, substeps=2), 3)
    refused = ~np.asarray(run.contact.converged)
    assert refused[0] and (np.asarray(run.contact.impulse)[refused] == 0).all()
    assert np.isposinf(np.asarray(run.contact.residual)[refused]).all()
    with pytest.raises(ArithmeticError, match=r"contact was not solved in .* substeps that are too long"):
        run.contact.check()


@pytest.mark.parametrize(("steps", "kept"), [(60, 0.91), (6, 0.44)])
def test_the_implicit_step_loses_speed_in_a_short_bounce(steps, kept):
    """The figures of docs/contact.md: a contact of T = 3.2 (m^2/(k^2 v))^(1/5) over so many steps, undamped."""
    stiffness = (steps * DT / 3.2) ** -2.5
    contact = Compliant(stiffness=stiffness, dissipation=0.0)
    run = roll(slider(gravity=0.0), [0, R], [0, -1.0], contact, 3 * steps + 20)
    assert float(run.qd[-1, 1]) == pytest.approx(kept, abs=0.01)
