"""Receding horizons: the regulator as their limit, limits of controls, warm starts, and what is refused."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import control, native
from tests.control.robots import carriages, pendulum

DT = 0.05


def run(model, controller, state, steps, disturb=None):
    """The closed loop by `kn.step`."""
    step = native.jit(lambda s, u: kn.step(model, s, u, dt=DT, contact=None))
    states, controls = [state], []
    for k in range(steps):
        controls.append(controller(states[-1], k * DT))
        after = step(kn.State(np.asarray(states[-1].q), np.asarray(states[-1].qd)), controls[-1])
        states.append(kn.State(after.q + (0 if disturb is None else disturb[k]), after.qd))
    return states, np.array(controls)


def test_with_the_cost_to_go_of_the_regulator_a_short_horizon_is_the_regulator():
    model = carriages()
    start = model.state(np.array([1.0, -0.5]))
    A, B = native.jit(lambda s: kn.linearize(model, s, jnp.zeros(2), dt=DT))(start)
    regulator = control.lqr(A, B, np.diag([1, 1, 0.1, 0.1]), 0.01 * np.eye(2))
    running = control.quadratic(model, q=1.0, qd=0.1, control=0.01)
    root = np.linalg.cholesky(regulator.value).T

    def to_go(time, state):
        return root @ jnp.concatenate([state.q, state.qd])

    mpc = control.MPC(model, running, control.squares(to_go), steps=5, dt=DT, iterations=1)
    states, controls = run(model, mpc, start, 10, disturb=1e-2 * np.random.default_rng(0).normal(size=(10, 2)))
    expected = [-regulator.gain @ np.concatenate([s.q, s.qd]) for s in states[:-1]]
    np.testing.assert_allclose(controls, expected, atol=1e-9)


@pytest.fixture(scope="module")
def swinging():
    """A pendulum whose motor cannot lift it in one go: 1.5 N m, and 4.9 when level."""
    model = pendulum(limit=1.5)
    goal = model.state(np.array([np.pi]))
    running = control.quadratic(model, goal, q=0.2, qd=0.02, control=0.01, periodic=True)
    terminal = control.quadratic(model, goal, q=20.0, qd=4.0, periodic=True)
    return model, running, terminal


@pytest.mark.parametrize("hold", [1, 4])
def test_a_weak_motor_swings_a_pendulum_up_and_holds_it(swinging, hold):
    model, running, terminal = swinging
    mpc = control.MPC(model, running, terminal, steps=60, dt=DT, hold=hold)
    states, controls = run(model, mpc, model.state(), 160)
    assert np.all(np.abs(controls) <= 1.5) and np.any(np.abs(controls) == 1.5)
    upright = [abs(np.cos(s.q[0]) + 1) + 0.1 * abs(s.qd[0]) for s in states[-20:]]
    assert max(upright) < 0.01 and mpc.failures == 0


def test_a_warm_start_needs_fewer_iterations_than_a_cold_one(swinging):
    model, running, terminal = swinging
    mpc = control.MPC(model, running, terminal, steps=60, dt=DT, iterations=200)
    state = model.state(np.array([1.0]))
    mpc(state, 0.0)
    first = mpc.plan
    assert first is not None
    after = kn.State(first.states.q[1], first.states.qd[1])
    mpc(after, DT)
    assert mpc.plan is not None and mpc.plan.iterations < 0.5 * mpc.planner.plan(after).iterations


def test_time_that_goes_back_and_bad_numbers_are_refused(swinging):
    model, running, terminal = swinging
    mpc = control.MPC(model, running, terminal, steps=10, dt=DT)
    mpc(model.state(), 1.0)
    with pytest.raises(ValueError, match=r"time went back from 1 to 0.5 s: call reset\(\)"):
        mpc(model.state(), 0.5)
    with pytest.raises(ValueError, match="the state is not finite"):
        mpc(model.state(np.array([np.nan])), 1.1)
    mpc.reset()
    assert np.all(np.isfinite(mpc(model.state(), 0.5)))
    bad: list[dict[str, Any]] = [{"hold": 11}, {"hold": 0}, {"iterations": 0}]
    for counts in bad:
        with pytest.raises(ValueError, match=f"MPC: {next(iter(counts))} must be"):
            control.MPC(model, running, terminal, steps=10, dt=DT, **counts)
