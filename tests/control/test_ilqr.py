"""iLQR and DDP on closed forms: linear-quadratic problems, active limits, quadratic convergence."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import control, native
from knuckle.optim import Status
from tests.control.robots import carriages, pendulum, satellite

STEPS, DT = 30, 0.05


def linear_map(model, state, control, dt):
    return native.jit(lambda s, u: kn.linearize(model, s, u, dt=dt, contact=None))(state, control)


def sum_of_costs(model, running, terminal, state, controls, dt, **options):
    """The cost by `kn.rollout`, which planning does not use."""
    motion = kn.rollout(model, state, controls, dt=dt, contact=None, **options)
    q, qd = (jnp.concatenate([a[None], b]) for a, b in ((state.q, motion.q), (state.qd, motion.qd)))
    times = dt * jnp.arange(len(controls) + 1).astype(float)
    rows = jax.vmap(lambda t, q, qd, u: running(t, kn.State(q, qd), u))
    return jnp.sum(rows(times[:-1], q[:-1], qd[:-1], controls)) + terminal(times[-1], motion.last)


@pytest.fixture(scope="module")
def linear():
    """A linear-quadratic problem, its planner, and its solution by the Riccati recursion."""
    model = carriages()
    running = control.quadratic(model, q=1.0, qd=0.1, control=0.01)
    terminal = control.quadratic(model, q=10.0, qd=1.0)
    start = model.state(np.array([1.0, -0.5]), np.array([0.3, 0.0]))
    A, B = linear_map(model, start, np.zeros(2), DT)
    Q, R, final = np.diag([1, 1, 0.1, 0.1]), 0.01 * np.eye(2), np.diag([10.0, 10, 1, 1])
    return model, running, terminal, start, (A, B), control.lqr(A, B, Q, R, steps=STEPS, final=final)


@pytest.mark.parametrize("segments", [1, 6, STEPS])
def test_one_iteration_solves_a_linear_quadratic_problem(linear, segments):
    """1e-10 as promised; from an infeasible guess in multiple shooting too."""
    model, running, terminal, start, (A, B), exact = linear
    states = None
    if segments > 1:
        rng = np.random.default_rng(0)
        states = kn.State(rng.normal(size=(STEPS + 1, 2)), rng.normal(size=(STEPS + 1, 2)))
    plan = control.ilqr(
        model, start, running, terminal, steps=STEPS, dt=DT, segments=segments, states=states, max_iterations=1
    )
    x, controls = np.concatenate([start.q, start.qd]), []
    value = 0.5 * x @ exact.value[0] @ x
    for gain in exact.gain:
        controls.append(-gain @ x)
        x = A @ x + B @ controls[-1]
    np.testing.assert_allclose(plan.controls, controls, atol=1e-10)
    np.testing.assert_allclose(plan.gains, -exact.gain, atol=1e-10)
    assert abs(plan.cost - value) < 1e-10 * value
    assert plan.gap < 1e-10 and plan.history.share[0] == 1


def test_active_limits_meet_the_optimality_conditions(linear):
    """Gradient of the cost by the controls, through `kn.rollout`: zero on free ones, outwards on those at a limit."""
    model, running, terminal, start, _, _ = linear
    limits = (np.array([-2.0, -0.5]), np.array([0.3, np.inf]))
    plan = control.ilqr(
        model, start, running, terminal, steps=STEPS, dt=DT, limits=limits, tolerance=1e-20, max_iterations=30
    )
    cost = native.jit(jax.value_and_grad(lambda u: sum_of_costs(model, running, terminal, start, u, DT)))
    value, gradient = cost(plan.controls)
    low, high = plan.controls == limits[0], plan.controls == limits[1]
    assert low.sum() > 2 and high.sum() > 2 and (~low & ~high).sum() > 10
    assert np.all(gradient[low] >= -1e-8) and np.all(gradient[high] <= 1e-8)
    assert np.max(np.abs(gradient[~low & ~high])) < 1e-8
    assert plan.successful and np.array_equal(plan.saturated, low | high)
    assert abs(value - plan.cost) < 1e-12 * plan.cost
    assert np.all(plan.controls >= limits[0]) and np.all(plan.controls <= limits[1])
    assert np.all(plan.gains[low | high] == 0)


@pytest.fixture(scope="module")
def swing():
    """A pendulum that is to stand after two seconds."""
    model = pendulum()
    goal = model.state(np.array([np.pi]))
    running = control.quadratic(model, goal, q=0.1, qd=0.01, control=0.02)
    return model, running, control.quadratic(model, goal, q=20.0, qd=2.0), model.state(np.array([0.4]))


def test_ddp_converges_quadratically_and_ilqr_to_the_same_minimum(swing):
    """The Newton decrement goes with the square of the distance: its digits double, 1.8 times at least."""
    model, running, terminal, start = swing
    exact = control.ilqr(model, start, running, terminal, steps=40, dt=0.05, method="ddp", tolerance=1e-28)
    left = exact.history.decrement / exact.cost
    near = [(a, b) for a, b in itertools.pairwise(left) if a < 1e-2 and b > 1e-29]
    assert len(near) >= 2
    assert all(np.log(b) / np.log(a) > 1.8 for a, b in near)
    newton = control.ilqr(model, start, running, terminal, steps=40, dt=0.05, tolerance=1e-14, max_iterations=300)
    assert newton.successful and abs(newton.cost - exact.cost) < 1e-10 * exact.cost
    np.testing.assert_allclose(newton.controls, exact.controls, atol=1e-5)
    assert exact.iterations < newton.iterations


def test_costs_never_rise_and_the_policy_repeats_the_plan(swing):
    model, running, terminal, start = swing
    plan = control.ilqr(model, start, running, terminal, steps=40, dt=0.05)
    assert np.all(np.diff(plan.history.cost) <= 1e-12 * plan.history.cost[0])
    again = kn.rollout(model, start, plan.policy(), dt=0.05, steps=40, contact=None, native=True)
    np.testing.assert_allclose(again.q, plan.trajectory.q, atol=1e-10)
    np.testing.assert_allclose(again.control, plan.controls, atol=1e-10)
    pushed = kn.rollout(
        model, model.state(np.array([0.5])), plan.policy(), dt=0.05, steps=40, contact=None, native=True
    )
    without = kn.rollout(model, model.state(np.array([0.5])), plan.controls, dt=0.05, contact=None, native=True)
    assert abs(pushed.q[-1, 0] - np.pi) < 0.2 * abs(without.q[-1, 0] - np.pi)


def test_a_stationary_first_guess_that_is_no_minimum_is_left():
    """A hanging pendulum with a goal straight above: zero torque is stationary, by symmetry."""
    model = pendulum()
    running = control.quadratic(model, model.state(np.array([np.pi])), q=0.1, control=0.01, periodic=True)
    terminal = control.quadratic(model, model.state(np.array([np.pi])), q=20.0, qd=2.0, periodic=True)
    planner = control.Planner(model, running, terminal, steps=40, dt=0.05)
    stuck = planner.plan(model.state(), np.zeros((40, 1)))
    assert stuck.iterations == 1 and stuck.successful
    plan = planner.plan(model.state())
    assert plan.cost < 0.2 * stuck.cost and abs(np.cos(plan.states.q[-1, 0]) + 1) < 0.01


def test_quaternions_are_planned_on_their_manifold():
    """A free body turns by 2 rad about a skew axis and stops; multiple shooting finds the same."""
    model = satellite()
    axis = np.array([1.0, 2.0, -1.0]) / np.sqrt(6)
    goal = model.state(np.concatenate([[np.cos(1.0)], np.sin(1.0) * axis]))
    running = control.quadratic(model, goal, qd=1e-3, control=1e-2)
    terminal = control.quadratic(model, goal, q=100.0, qd=10.0)
    plans = [
        control.ilqr(model, model.state(), running, terminal, steps=20, dt=0.05, segments=segments, tolerance=1e-13)
        for segments in (1, 5)
    ]
    for plan in plans:
        assert plan.successful
        assert np.linalg.norm(kn.difference(model, goal.q, plan.states.q[-1])) < 0.02
        np.testing.assert_allclose(np.linalg.norm(plan.states.q, axis=1), 1, atol=1e-12)
    assert abs(plans[0].cost - plans[1].cost) < 1e-9 * plans[0].cost
    assert plans[1].gap < 1e-9
    gradient = native.jit(jax.grad(lambda u: sum_of_costs(model, running, terminal, model.state(), u, 0.05)))(
        plans[0].controls
    )
    assert np.max(np.abs(gradient)) < 1e-4  # at a relative distance of 1e-13 from a minimum of about 0.1


def test_segments_bridge_a_horizon_over_which_roll_outs_explode():
    """x'' = 400 x grows by e^200 in 10 s: a roll-out of any guess is useless, and one in segments is not."""
    body = {"mass": 1.0, "inertia": (1.0, 1.0, 1.0)}
    rail = kn.Link("a", joints=kn.prismatic("x", stiffness=1.0), **body)
    model = kn.build([rail], actuators=[kn.motor("a_joint")], gravity=(0, 0, 0))
    model = eqx.tree_at(lambda m: m.stiffness, model, np.array([-400.0]))
    running, start = control.quadratic(model, q=1.0, control=1e-3), model.state(np.array([1.0]))
    how = {"steps": 500, "dt": 0.02, "max_iterations": 3}
    still = kn.State(np.zeros((501, 1)), np.zeros((501, 1)))
    plan = control.ilqr(model, start, running, running, segments=100, states=still, **how)
    A, B = linear_map(model, start, np.zeros(1), 0.02)
    best = control.lqr(A, B, np.diag([1.0, 0]), 1e-3 * np.eye(1), steps=500, final=np.diag([1.0, 0])).value[0]
    assert abs(plan.cost - 0.5 * best[0, 0]) < 1e-9 * plan.cost
    assert plan.gap < 1e-8


def test_substeps_are_steps_of_the_simulation(linear):
    model, running, terminal, start, _, _ = linear
    plan = control.ilqr(model, start, running, terminal, steps=6, dt=DT, substeps=5, max_iterations=3)
    fine = kn.rollout(model, start, np.repeat(plan.controls, 5, axis=0), dt=DT / 5, contact=None, native=True)
    np.testing.assert_allclose(fine.q[4::5], plan.trajectory.q, atol=1e-12)
    assert plan.successful


def test_an_iteration_is_the_same_by_jax_and_by_native_code(swing):
    model, running, terminal, start = swing
    plans = [
        control.Planner(model, running, terminal, steps=10, dt=0.05, limits=(-3.0, 3.0), native=native).plan(
            start, max_iterations=4
        )
        for native in (True, False)
    ]
    np.testing.assert_allclose(plans[0].controls, plans[1].controls, atol=1e-9)
    np.testing.assert_allclose(plans[0].gains, plans[1].gains, atol=1e-8)


def test_free_models_and_costs_are_those_of_each_call(swing):
    """One program for several masses and goals, each with the plan of a planner of its own."""
    model, running, terminal, start = swing
    heavy = eqx.tree_at(lambda m: m.inertia.mass, model, 2 * model.inertia.mass)
    nearer = control.quadratic(model, model.state(np.array([1.0])), q=20.0, qd=2.0)
    shared = control.Planner(model, running, terminal, steps=20, dt=0.05, free=("model", "costs"))
    all_changes: list[dict[str, Any]] = [{}, {"model": heavy}, {"terminal": nearer}]
    for changes in all_changes:
        own = control.Planner(
            changes.get("model", model), running, changes.get("terminal", terminal), steps=20, dt=0.05
        )
        plan, other = shared.plan(start, **changes), own.plan(start)
        assert abs(plan.cost - other.cost) < 1e-7 * other.cost, changes
    with pytest.raises(ValueError, match="another model needs a Planner with free="):
        own.plan(start, model=heavy)


def test_limits_of_time_and_iterations_end_a_search_with_what_there_is(swing):
    model, running, terminal, start = swing
    planner = control.Planner(model, running, terminal, steps=40, dt=0.05)
    few, none = planner.plan(start, max_iterations=2), planner.plan(start, seconds=0.0)
    assert few.status is Status.MAX_ITERATIONS and few.iterations == 2
    assert none.status is Status.TIME_LIMIT and none.iterations == 1
    warm = planner.plan(start, planner.plan(start).controls)
    assert warm.iterations < planner.plan(start).iterations


def test_a_derivative_that_is_not_finite_ends_a_search_and_is_not_called_converged(swing):
    model, _, terminal, start = swing

    def kinked(time, state, control):
        return jnp.sqrt(jnp.abs(control[0])) + 0.0 * state.q[0]

    plan = control.ilqr(model, start, kinked, terminal, steps=10, dt=0.05)
    assert plan.status is Status.NUMERICAL_FAILURE and not plan.successful
    assert np.all(np.isfinite(plan.controls)) and np.isfinite(plan.cost)
