"""Forces of actuators, springs, damping and friction, against their formulas and their own derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.dynamics import bias_force, crba
from knuckle.forces import Loads, actuator_force, passive_force, stiffness_and_damping
from knuckle.model import Actuator
from tests.random_models import Body, quick_jit, random_model, random_state


def slider(actuators=(), mass=2.0, **joint):
    """One mass on a slider without gravity."""
    link = kn.Link("block", joints=kn.prismatic("x", name="rail", **joint), mass=mass)
    return kn.build([link], gravity=(0, 0, 0), actuators=actuators)


def force_of(actuator, q=0.3, qd=-0.7, control=2.0, **joint):
    return float(actuator_force(slider([actuator], **joint), *(np.array([x]) for x in (q, qd, control)))[0])


def test_a_motor_gives_gear_times_control():
    assert force_of(kn.motor("rail", gear=3.0)) == pytest.approx(6.0)


def test_servos_act_on_geared_length_and_velocity():
    length, velocity = 3.0 * 0.3, 3.0 * -0.7
    expected = 3.0 * (10 * (2.0 - length) - 0.5 * velocity)
    assert force_of(kn.position_servo("rail", kp=10, kv=0.5, gear=3.0)) == pytest.approx(expected)
    assert force_of(kn.velocity_servo("rail", kv=4, gear=3.0)) == pytest.approx(3.0 * 4 * (2.0 - velocity))


def test_an_affine_actuator_has_gain_and_three_biases():
    actuator = Actuator("rail", gain=5.0, bias=(1.0, 2.0, 3.0), gear=0.5)
    assert force_of(actuator) == pytest.approx(0.5 * (5 * 2 + 1 + 2 * 0.15 + 3 * -0.35))


def test_control_force_and_effort_are_clipped_each_in_its_place():
    limits = {"control_lower": -1.0, "control_upper": 1.0}
    assert force_of(kn.motor("rail", gear=3.0, **limits)) == pytest.approx(3.0)
    assert force_of(kn.motor("rail", gear=3.0, force_lower=-1.5, force_upper=1.5)) == pytest.approx(4.5)
    assert force_of(kn.motor("rail", gear=3.0), effort=4.0) == pytest.approx(4.0)


def test_effort_bounds_the_sum_of_all_actuators_of_a_joint():
    model = slider([kn.motor("rail", name="a"), kn.motor("rail", name="b")], effort=3.0)
    force = actuator_force(model, np.zeros(1), np.zeros(1), np.array([5.0, -1.0]))
    assert float(force[0]) == 3.0


def test_a_servo_on_a_ball_joint_acts_on_the_rotation_vector():
    link = kn.Link("head", joints=kn.ball(name="neck"), mass=1.0, inertia=(1, 1, 1))
    gear = np.array([1.0, 2.0, -1.0])
    model = kn.build([link], actuators=[kn.position_servo("neck", kp=7.0, gear=gear)])
    u = jnp.array([0.2, -0.4, 0.3])
    q = kn.spatial.quaternion_exp(u)
    force = actuator_force(model, q, np.zeros(3), np.array([0.5]))
    np.testing.assert_allclose(force, gear * 7.0 * (0.5 - gear @ u), rtol=1e-12)


def test_springs_damping_and_friction_of_a_slider():
    model = slider(stiffness=5.0, rest=0.1, damping=0.4, friction=2.0)
    found = passive_force(model, np.array([0.3]), np.array([0.02]))
    np.testing.assert_allclose(found, [-5 * 0.2 - 0.4 * 0.02 - 2 * np.tanh(2.0)], rtol=1e-14)


def test_a_spring_on_a_ball_joint_pulls_along_the_rotation_vector():
    rest = kn.spatial.quaternion_exp(jnp.array([0.1, 0.2, 0.3]))
    link = kn.Link("head", joints=kn.ball(stiffness=3.0, rest=np.asarray(rest)), mass=1.0, inertia=(1, 1, 1))
    model = kn.build([link])
    u = jnp.array([-0.5, 0.3, 0.8])
    q = kn.spatial.quaternion_product(rest, kn.spatial.quaternion_exp(u))
    np.testing.assert_allclose(passive_force(model, q, np.zeros(3)), -3.0 * u, rtol=1e-12)


def test_friction_has_a_finite_slope_everywhere():
    model = slider(friction=2.0)
    slope = jax.vmap(jax.grad(lambda v: passive_force(model, jnp.zeros(1), v[None])[0]))
    assert np.all(np.isfinite(slope(jnp.array([-1e3, -1e-9, 0.0, 1e-9, 1e3]))))
    assert float(slope(jnp.zeros(1))[0]) == pytest.approx(-2.0 / 0.01)


SINGLES = (Body(-1, ("free",)), Body(0, ("revolute",)), Body(1, ("revolute", "prismatic")), Body(0, ("prismatic",)))


def test_stiffness_and_damping_are_the_derivatives_of_the_forces():
    model = random_model(np.random.default_rng(0), SINGLES, actuated=True)
    model = eqx.tree_at(lambda m: m.friction, model, 0 * model.friction)  # friction counts by its chord, tested below
    state = random_state(np.random.default_rng(1), model)
    loads = Loads(jnp.ones(model.nu))

    @quick_jit
    def both(q, qd):
        along = lambda u, qd: loads.joint_force(model, kn.retract(model, q, u), qd)  # noqa: E731
        K, D = jax.jacfwd(along, argnums=(0, 1))(jnp.zeros(model.nv), qd)
        return (-jnp.diag(K), -jnp.diag(D)), stiffness_and_damping(model, q, qd, loads.control)

    for expected, found in zip(*both(state.q, state.qd), strict=True):
        assert np.any(expected != 0)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("speed", [0.0, 1e-9, 1e-6, 1e-3, -0.02, 5.0])
def test_friction_counts_as_the_damping_of_equal_force(speed):
    model = slider(friction=2.0)
    _, damping = stiffness_and_damping(model, np.zeros(1), np.array([speed]), np.zeros(0))
    expected = 2.0 / 0.01 if speed == 0 else 2 * np.tanh(speed / 0.01) / speed
    np.testing.assert_allclose(damping, [expected], rtol=1e-9)


@pytest.mark.parametrize("limit", ["force", "effort"])
def test_a_servo_at_its_limit_is_neither_stiff_nor_damping(limit):
    by_force = {"force_lower": -1.0, "force_upper": 1.0} if limit == "force" else {}
    by_effort = {"effort": 1.0} if limit == "effort" else {}
    model = slider([kn.position_servo("rail", kp=1e6, kv=1e3, **by_force)], **by_effort)
    stiffness, damping = stiffness_and_damping(model, np.zeros(1), np.zeros(1), np.ones(1))
    assert float(stiffness[0]) == 0 and float(damping[0]) == 0
    stiffness, damping = stiffness_and_damping(model, np.zeros(1), np.zeros(1), np.zeros(1))
    assert float(stiffness[0]) == 1e6 and float(damping[0]) == 1e3


def test_implicit_acceleration_solves_the_linearly_implicit_equation():
    """(M + dt D + dt^2 K) qdd = force - bias - dt K qd with a dense solve."""
    model = random_model(np.random.default_rng(2), SINGLES, actuated=True)
    state, dt = random_state(np.random.default_rng(3), model), 0.05
    loads = Loads(jnp.ones(model.nu), jnp.ones((len(model.link_names), 6)))

    @quick_jit
    def both(q, qd):
        K, D = (jnp.diag(x) for x in stiffness_and_damping(model, q, qd, loads.control))
        force = loads.joint_force(model, q, qd) - bias_force(model, q, qd, loads.wrench) - dt * K @ qd
        after = kn.Implicit().advance(model, loads, kn.State(q, qd), dt)
        return after.qd, qd + dt * jnp.linalg.solve(crba(model, q) + dt * D + dt**2 * K, force)

    np.testing.assert_allclose(*both(jnp.asarray(state.q), jnp.asarray(state.qd)), rtol=1e-10, atol=1e-11)


def test_a_motor_has_the_slope_of_a_servo_that_pulls():
    """(g u - K (x + dt v) - D v) / (m + dt D + dt^2 K) by K = -g^2 bias_1 and D = -g^2 bias_2, where both are zero."""
    mass, gear, dt, x, v, u = 2.0, 3.0, 0.1, 0.3, -0.7, 1.5
    model = slider([kn.motor("rail", gear=gear)], mass=mass)

    def acceleration(bias):
        servo = eqx.tree_at(lambda m: m.actuators.bias, model, bias)
        return Loads(jnp.array([u])).implicit_acceleration(servo, jnp.array([x]), jnp.array([v]), dt)[0][0]

    slope = jax.grad(acceleration)(jnp.zeros((1, 3)))[0]
    by_stiffness, by_damping = (-(x + dt * v) - gear * u * dt**2 / mass) / mass, (-v - gear * u * dt / mass) / mass
    np.testing.assert_allclose(slope, [gear / mass, -(gear**2) * by_stiffness, -(gear**2) * by_damping], rtol=1e-12)
    pushing = jnp.array([[0.0, 10.0, 10.0]])
    np.testing.assert_allclose(acceleration(pushing), gear * (u + 10 * gear * (x + v)) / mass, rtol=1e-12)
