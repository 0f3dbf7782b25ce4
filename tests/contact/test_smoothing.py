"""Relaxed complementarity: near the hard step in value, with a derivative that sees contacts that are not there yet."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse
from tests.contact.scenes import ball, pose

R, DT = 0.1, 1e-3
NUMBERS = np.array([0.5, 0.0])
MODEL = ball()
SLIDES = pose([0, 0, R]), np.array([1.0, 0.3, -0.2, 0, 0, 0])
STICKS = pose([0, 0, R]), np.array([1e-3, 0, -0.2, 0, 0, 0])
COMES = pose([0, 0, R + 1.5e-4]), np.array([0.1, 0, -0.1, 0, 0, 0])  # 0.04 m/s too slow to touch within the step


def velocity(q, qd, numbers, smoothing=None, smooth: Any = "both"):
    """Velocity of a ball after a step; numbers: friction, and by how much more mass it has."""
    contact = Impulse(friction=numbers[0], smoothing=smoothing, smooth=smooth, tolerance=1e-12)
    model = eqx.tree_at(lambda m: m.inertia.mass, MODEL, MODEL.inertia.mass * (1 + numbers[1]))
    return kn.step(model, kn.State(q, qd), dt=DT, contact=contact).qd


hard = kn.native.jit(velocity)
relaxed = kn.native.jit(velocity)
only_derivative = kn.native.jit(lambda *x: velocity(*x, smooth="derivative"))


def by_all(step):
    """Derivative by position, velocity, friction and mass."""

    def moved(dq, qd, numbers, q, *smoothing):
        return step(kn.retract(MODEL, q, dq), qd, numbers, *smoothing)

    columns = kn.native.jit(jax.jacfwd(moved, (0, 1, 2)))

    def derivative(q, qd, numbers, *smoothing) -> np.ndarray:
        return np.concatenate(columns(np.zeros(6), qd, numbers, q, *smoothing), axis=1)

    return derivative


hard_derivative = by_all(velocity)
relaxed_derivative = by_all(velocity)
other_derivative = by_all(lambda *x: velocity(*x, smooth="derivative"))


@pytest.mark.parametrize("state", [SLIDES, STICKS, COMES], ids=["slides", "sticks", "comes"])
def test_the_value_tends_to_the_hard_one(state):
    """At least in proportion to the width."""
    exact = hard(*state, NUMBERS)
    errors = [np.abs(relaxed(*state, NUMBERS, s) - exact).max() for s in (1e-1, 1e-2, 1e-3, 1e-4)]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-3 * errors[0] + 1e-4


@pytest.mark.parametrize("smoothing", [0.1, 0.01])
@pytest.mark.parametrize("state", [SLIDES, STICKS, COMES], ids=["slides", "sticks", "comes"])
def test_the_derivative_of_the_relaxed_step_is_its_own(state, smoothing):
    """Steps in position are small beside the micrometres within which gaps count as closed."""
    (q, qd), steps = state, np.array([1e-8] * 6 + [1e-6] * 8)
    exact = relaxed_derivative(q, qd, NUMBERS, smoothing)

    def at(x):
        return relaxed(np.asarray(kn.retract(MODEL, q, x[:6])), qd + x[6:12], NUMBERS + x[12:], smoothing)

    numeric = np.stack([(at(x) - at(-x)) / (2 * h) for x, h in zip(np.diag(steps), steps, strict=True)], axis=1)
    np.testing.assert_allclose(exact, numeric, atol=1e-5 * np.abs(numeric).max(), rtol=1e-5)


@pytest.mark.parametrize("state", [SLIDES, STICKS, COMES], ids=["slides", "sticks", "comes"])
def test_smoothing_of_the_derivative_only_leaves_the_value(state):
    np.testing.assert_array_equal(only_derivative(*state, NUMBERS, 0.05), hard(*state, NUMBERS))
    other, own = other_derivative(*state, NUMBERS, 0.05), relaxed_derivative(*state, NUMBERS, 0.05)
    np.testing.assert_allclose(other, own, atol=1e-9 * np.abs(own).max())


def test_the_derivative_sees_a_contact_before_it_touches():
    """Upwards velocity after the step by height: zero where nothing touches."""
    assert hard_derivative(*COMES, NUMBERS)[2, 2] == 0
    assert relaxed_derivative(*COMES, NUMBERS, 0.05)[2, 2] < -10


def test_the_derivative_sees_friction_after_it_sticks():
    """A ball that grips: more friction changes nothing, but relaxed it grips harder."""
    assert hard_derivative(*STICKS, NUMBERS)[0, 12] == pytest.approx(0, abs=1e-12)
    assert relaxed_derivative(*STICKS, NUMBERS, 0.05)[0, 12] < -1e-6


def test_smoothing_is_its_width_per_contact_and_positive():
    np.testing.assert_allclose(relaxed(*SLIDES, NUMBERS, np.array([0.05])), relaxed(*SLIDES, NUMBERS, 0.05), atol=1e-10)
    with pytest.raises(ValueError, match="smoothing must be positive"):
        Impulse(smoothing=0.0)
