"""What planning refuses, with what was expected and what came; contact, networks and costs that it takes."""

from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import control, neural
from tests.control.robots import carriages, pendulum

MODEL = pendulum()
COST = control.quadratic(MODEL, q=1.0, control=0.1)
NO_COST: Any = 3.0
SINGLE = SimpleNamespace(time=np.zeros(1), q=np.zeros((1, 1)), qd=np.zeros((1, 1)), control=np.zeros((1, 1)))


def nan_at_the_third(time, state, control):
    return jnp.where(time > 0.09, jnp.nan, 0.0) + control @ control


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"dt": 0.0}, "dt must be a positive time"),
        ({"dt": None}, "dt must be a positive time from knot to knot"),
        ({"segments": 11}, "segments must be a whole number from 1 to 10"),
        ({"limits": (1.0, -1.0)}, "limits of 'rod_joint_actuator0' cross: lower 1, upper -1"),
        ({"limits": (np.zeros(2), 1.0)}, "limits must be two arrays"),
        ({"limits": "none"}, "limits must be 'model', None or"),
        ({"method": "newton"}, "method must be one of ilqr, ddp, got 'newton'"),
        ({"running": nan_at_the_third}, "the running cost is nan at step 2 of the first guess"),
        ({"terminal": lambda t, s: jnp.exp(1e4 + s.q[0])}, "the terminal cost is inf"),
        ({"running": None, "terminal": None}, "expected a running cost, a terminal cost or both"),
        ({"controls": np.zeros((9, 1))}, r"controls must have shape \(10, 1\) or \(1,\), got \(9, 1\)"),
        ({"controls": np.full((10, 1), np.nan)}, "controls must be finite, that of 'rod_joint_actuator0' at step 0"),
        ({"state": kn.State(np.zeros(2), np.zeros(1))}, r"state.q must have shape \(1,\), got \(2,\)"),
        ({"state": kn.State(np.full(1, np.nan), np.zeros(1))}, "the state is not finite: the coordinate of joint"),
        ({"model": kn.build([kn.Link("a", joints=kn.free(), mass=1.0, inertia=(1, 1, 1))])}, "has no actuators"),
        ({"model": "robot.xml"}, "expected a kn.Model or a kn.Hybrid, got str"),
        ({"free": ("masses",)}, "free may name 'model' and 'costs', got 'masses'"),
    ],
)
def test_bad_input_is_refused(given, message):
    arguments = {"model": MODEL, "state": MODEL.state(), "running": COST, "terminal": COST, "steps": 10, "dt": 0.05}
    with pytest.raises(ValueError, match=message):
        control.ilqr(**(arguments | given))


def test_given_limits_narrow_those_of_the_model():
    model = pendulum(limit=3.0)
    made = [
        control.Planner(model, COST, steps=2, dt=0.1, limits=limits)
        for limits in ("model", (-9.0, 1.0), None, (-2.0, 9.0))
    ]
    ends = [(float(p.lower[0, 0]), float(p.upper[0, 0])) for p in made]
    assert ends == [(-3.0, 3.0), (-3.0, 1.0), (-np.inf, np.inf), (-2.0, 3.0)]


def test_a_first_guess_that_explodes_is_refused_with_the_joint():
    model, costs = carriages(), [control.quadratic(carriages(), q=1.0, control=0.1)] * 2
    with pytest.raises(ValueError, match="not finite from step 1 on, first of all the coordinate of joint 'b_joint'"):
        control.ilqr(model, model.state(), *costs, steps=5, dt=1e200, controls=np.ones((5, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: control.quadratic(MODEL, q=-1.0), "the weight q must be finite and not negative"),
        (lambda: control.quadratic(MODEL, q=np.ones(3)), r"the weight q must be one number or 1, got shape \(3,\)"),
        (lambda: control.quadratic(MODEL, goal_control=np.ones(2)), r"goal_control must have shape \(1,\)"),
        (lambda: control.frame(MODEL, "hand", np.zeros(3)), "no link or frame 'hand'; there are rod"),
        (lambda: control.frame(MODEL, "rod"), "expected a position, a rotation or both"),
        (lambda: control.squares(NO_COST), "expected a function"),
        (lambda: COST + NO_COST, "a cost must be a function"),
        (lambda: control.tracking(MODEL, SINGLE), "two samples"),
    ],
)
def test_bad_costs_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_networks_and_what_they_remember_are_part_of_the_plan():
    """The gradient of the cost through `kn.rollout` with a recurrent network vanishes at the plan."""
    network = neural.Recurrent(1, 1, 3, key=jax.random.key(0))
    network = eqx.tree_at(lambda n: n.head.weights, network, [np.array([[0.5, -1.0, 0.8]])])
    blueprint = kn.Blueprint({"joint/force": kn.Augment(network, inputs="qd")})
    costs = control.quadratic(MODEL, q=1.0, control=0.1), control.quadratic(MODEL, q=10.0, qd=1.0)
    start = MODEL.state(np.array([1.0]))
    plan = control.ilqr(MODEL, start, *costs, steps=12, dt=0.05, blueprint=blueprint, tolerance=1e-16)
    assert plan.gains.shape[2] > 2

    def cost(u):
        motion = kn.rollout(MODEL, start, u, dt=0.05, blueprint=blueprint, contact=None)
        q, qd = jnp.concatenate([start.q[None], motion.q]), jnp.concatenate([start.qd[None], motion.qd])
        rows = [costs[0](0.0, kn.State(q[k], qd[k]), u[k]) for k in range(12)]
        return sum(rows) + costs[1](0.0, kn.State(q[-1], qd[-1]))

    gradient = kn.native.jit(jax.grad(cost))(plan.controls)
    assert np.max(np.abs(gradient)) < 1e-6


def test_contact_is_planned_through():
    """A puck on a floor is pushed 0.2 m by a force against dry friction, and stays where it is without one."""
    puck = kn.Link(
        "puck",
        joints=[kn.prismatic("x", name="along"), kn.prismatic("z", name="up")],
        mass=1.0,
        shapes=kn.shapes.box(0.1, 0.1, 0.05),
    )
    model = kn.build([puck], world_shapes=[kn.shapes.plane(position=(0, 0, -0.05))], actuators=[kn.motor("along")])
    goal = model.state(np.array([0.2, 0.0]))
    running, terminal = (
        control.quadratic(model, control=1e-4),
        control.quadratic(model, goal, q=[100.0, 0], qd=[10.0, 0]),
    )
    plan = control.ilqr(
        model, model.state(), running, terminal, steps=20, dt=0.02, controls=np.full((20, 1), 15.0), max_iterations=60
    )
    again = kn.rollout(model, model.state(), plan.controls, dt=0.02, native=True)
    np.testing.assert_allclose(again.q, plan.trajectory.q, atol=1e-6)
    assert abs(plan.states.q[-1, 0] - 0.2) < 0.01 and plan.states.qd[-1, 0] < 0.1
