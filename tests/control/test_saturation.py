"""Where actuators saturate: limits as bounds of the control, and derivatives with and without them."""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import control, native, saturation

ROD = {"joints": kn.revolute("y"), "mass": 1.0, "com": (0, 0, -0.5), "inertia": (0.1, 0.1, 0.01)}


def robot(*actuators, effort=np.inf) -> kn.Model:
    links = [kn.Link("a", **ROD), kn.Link("b", "a", **ROD)]
    model = kn.build(links, actuators=actuators)
    return eqx.tree_at(lambda m: m.effort, model, np.full(2, effort))


MOTOR = kn.motor("a_joint", gear=2.0, control_lower=-5, control_upper=7, force_lower=-3, force_upper=6)
SERVO = kn.position_servo("b_joint", kp=30.0, kv=1.0, force_lower=-4, force_upper=4)


def test_limits_of_motors_are_bounds_of_their_controls_and_those_of_servos_are_not():
    lower, upper = saturation.control_limits(robot(MOTOR, SERVO, effort=8.0))
    np.testing.assert_array_equal(lower, [-3, -np.inf])
    np.testing.assert_array_equal(upper, [4, np.inf])  # 8 N m over a gear of 2
    assert saturation.limited_by_state(robot(MOTOR, SERVO)) == [robot(MOTOR, SERVO).actuators.names[1]]


def test_an_effort_of_several_actuators_together_is_refused():
    with pytest.raises(ValueError, match="'a_joint': its effort limits several actuators"):
        saturation.control_limits(robot(kn.motor("a_joint", name="x"), kn.motor("a_joint", name="y"), effort=1.0))


@functools.cache
def program():
    """Motion and B with limits, without, and by the unclipped derivative; which actuators saturate."""
    model = robot(MOTOR, SERVO, effort=8.0)
    bare = saturation.without_limits(model)

    def moved(model, state, u):
        after = kn.step(model, state, u, dt=0.01, contact=None)
        return jnp.concatenate([after.q, after.qd])

    def all_of_it(state, u):
        same = saturation.straight_through(model, state, u)
        maps = [
            kn.linearize(of, state, at, dt=0.01, contact=None, unclipped=unclipped)[1]
            for of, at, unclipped in ((bare, same, False), (model, u, True), (model, u, False))
        ]
        return moved(model, state, u), moved(bare, state, same), same, *maps, saturation.saturated(model, state, u)

    return native.jit(all_of_it)


@pytest.mark.parametrize("u", [(1.0, 0.1), (9.0, 0.1), (-4.0, 2.0), (5.0, -1.0)])
def test_the_unclipped_derivative_moves_the_same_and_answers_to_every_control(u):
    """B of a model without limits at the control that makes the same force; the motion is the clipped one."""
    model = robot(MOTOR, SERVO, effort=8.0)
    state, u = model.state(np.array([0.3, -0.2]), np.array([0.5, 1.0])), np.array(u)
    clipped, reached, same, expected, unclipped, plain, held = program()(state, u)
    np.testing.assert_allclose(reached, clipped, atol=1e-14)
    np.testing.assert_allclose(unclipped, expected, atol=1e-13)
    assert np.all(np.abs(expected).max(axis=0) > 1e-4) and same.shape == (2,)
    assert np.array_equal(np.all(np.abs(plain) < 1e-15, axis=0), held)


def test_a_plan_says_where_servos_saturate_and_leaves_saturation_with_the_unclipped_derivative():
    """A servo whose target stays beyond its force limit has no derivative: the plain search leaves it where it is."""
    model = robot(kn.motor("a_joint"), SERVO)
    goal = model.state()
    costs = control.quadratic(model, goal, q=1.0, control=[1e-4, 0.0]), control.quadratic(model, goal, q=10.0, qd=1.0)
    far = np.tile([0.0, 0.3], (5, 1))
    stuck, freed = (
        control.ilqr(model, model.state(), *costs, steps=5, dt=0.02, controls=far, derivative=kind, max_iterations=40)
        for kind in ("clipped", "unclipped")
    )
    np.testing.assert_allclose(stuck.controls[:, 1], 0.3, atol=1e-9)
    assert "force limit" in stuck.notes[0] and "unclipped" in stuck.notes[0]
    assert freed.cost < 0.5 * stuck.cost and not freed.notes
