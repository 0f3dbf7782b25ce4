"""Adaptive control of systems whose parameters are not known, and environments that do not fit."""

from types import SimpleNamespace
from typing import Any

import equinox as eqx
import numpy as np
import pytest

import knuckle as kn
from knuckle import control, native
from tests.control.robots import carriages, pendulum

DT = 0.05


class Pendulum:
    """A Gymnasium-like environment of a pendulum that the model does not know."""

    def __init__(self, truth):
        self.action_space = SimpleNamespace(shape=(1,))
        self.unwrapped, self.dt = self, DT
        self.step_of = native.jit(lambda q, qd, u: kn.step(truth, kn.State(q, qd), u, dt=DT, contact=None))
        self.data = SimpleNamespace(qpos=np.zeros(1), qvel=np.zeros(1))

    def reset(self):
        self.data.qpos, self.data.qvel = np.array([0.1]), np.zeros(1)
        return self.data.qpos, {}

    def step(self, action):
        after = self.step_of(self.data.qpos, self.data.qvel, np.asarray(action, float))
        self.data.qpos, self.data.qvel = np.asarray(after.q), np.asarray(after.qd)
        return self.data.qpos, -float(self.data.qvel[0] ** 2), False, False, {}


@pytest.fixture(scope="module")
def adapted():
    truth = pendulum(limit=8.0)
    wrong = eqx.tree_at(lambda m: (m.inertia.mass, m.damping), truth, (np.array([2.5]), np.array([0.4])))
    goal = wrong.state(np.array([np.pi]))
    costs = (
        control.quadratic(wrong, goal, q=0.5, qd=0.02, control=0.01, periodic=True),
        control.quadratic(wrong, goal, q=20.0, qd=2.0, periodic=True),
    )
    free = {"rod.mass": None, "rod_joint.damping": None}
    found = control.adaptive_mpc(
        wrong, Pendulum(truth), *costs, free=free, steps=20, dt=DT, episodes=2, length=60, fit_every=20
    )
    return found, truth


def test_parameters_are_found_and_the_task_is_done(adapted):
    """Transitions of the same integrator without noise: parameters to 1e-5, and a pendulum that stands."""
    found, truth = adapted
    assert abs(found.values["rod.mass"] / truth.inertia.mass[0] - 1) < 1e-5
    assert abs(found.values["rod_joint.damping"] / truth.damping[0] - 1) < 1e-4
    assert all(low <= found.values[name] <= high for name, (low, high) in found.intervals.items())
    last = found.episodes[-1]
    assert abs(np.cos(last.q[-1][0]) + 1) < 0.01 and abs(last.qd[-1][0]) < 0.1
    assert np.mean(last.costs) <= np.mean(found.episodes[0].costs)
    assert len(found.buffer) == 120 and [f.transitions for f in found.fits] == [0, 20, 40, 60, 120]


def test_what_is_not_known_is_explored_first_and_not_later(adapted):
    found, _ = adapted
    assert found.episodes[0].explored[0] and not any(found.episodes[1].explored)
    assert found.fits[-1].deviations.max() < 1e-2 * found.fits[0].deviations.max()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (SimpleNamespace(action_space=SimpleNamespace(shape=(2,))), r"its actions have shape \(2,\), the model has 1"),
        (SimpleNamespace(), "action_space .Gymnasium. or action_spec.. .dm_control."),
    ],
)
def test_environments_of_other_shapes_are_refused(environment, message):
    with pytest.raises(ValueError, match=message):
        control.Environment(environment, pendulum())


def test_states_of_other_shapes_are_refused():
    two = SimpleNamespace(action_space=SimpleNamespace(shape=(2,)), reset=lambda: (np.zeros(1), {}))
    with pytest.raises(ValueError, match="has no MuJoCo data to read q and qd from"):
        control.Environment(two, carriages()).reset()
    short = control.Environment(two, carriages(), lambda _, o: kn.State(o, o))
    with pytest.raises(ValueError, match=r"its q has shape \(1,\), the model's is \(2,\)"):
        short.reset()


def test_an_environment_of_another_time_step_is_refused():
    inner = Pendulum(pendulum())
    inner.dt = 0.01
    with pytest.raises(ValueError, match=r"one step of it takes 0\.01 s, but dt is 0\.05 s"):
        control.adaptive_mpc(pendulum(), inner, steps=5, dt=DT)


@pytest.mark.parametrize("name", ["episodes", "length", "fit_every"])
def test_counts_of_zero_are_refused(name):
    counts: Any = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, got 0"):
        control.adaptive_mpc(pendulum(), Pendulum(pendulum()), steps=5, dt=DT, **counts)
