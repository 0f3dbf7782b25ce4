"""Environments as pure functions: episodes, actions, draws of parameters, ends, and input that is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import envs, native, robots
from knuckle.dynamics import kinetic_energy, potential_energy


@pytest.fixture(scope="module")
def pendulum() -> envs.Environment:
    return envs.make("pendulum")


@pytest.fixture(scope="module")
def begun(pendulum) -> envs.Episode:
    return native.jit(pendulum.begin)(envs.first_key(0))


def test_an_action_is_a_control_held_for_some_steps(pendulum, begun):
    """Half of the action's range is half of the motor's: the same motion as by `rollout` with 1 N m."""
    found = native.jit(pendulum.step)(begun, np.array([0.5]))
    run = kn.rollout(pendulum.model, begun.state, np.array([1.0]), dt=0.01, steps=5, native=True)
    np.testing.assert_allclose(found.episode.state.q, run.q[-1], rtol=0, atol=1e-14)
    np.testing.assert_allclose(found.observation, [*np.cos(run.q[-1]), *np.sin(run.q[-1]), *run.qd[-1]], atol=1e-14)
    angle, speed = begun.state.q[0], begun.state.qd[0]
    assert found.reward == pytest.approx(-(angle**2 + 0.1 * speed**2 + 0.001), abs=1e-12)  # |angle| < pi
    assert found.episode.steps == 1 and not found.terminated and not found.truncated


def test_the_same_functions_run_in_jax_and_differentiate(pendulum, begun):
    """The reward of 5 actions by the first one: against central differences, whose error is below 1e-8."""

    def total(first):
        def act(episode, action):
            step = pendulum.step(episode, action)
            return step.episode, step.reward

        actions = jnp.concatenate([first[None], jnp.zeros((4, 1))])
        return jnp.sum(jax.lax.scan(act, begun, actions)[1])

    slope = native.jit(jax.grad(total))(np.array([0.3]))
    apart = [float(native.jit(total)(np.array([0.3 + d]))) for d in (-1e-5, 1e-5)]
    assert slope[0] == pytest.approx((apart[1] - apart[0]) / 2e-5, abs=1e-7)


def test_episodes_end_where_the_task_says_and_after_the_longest_time():
    made = envs.make("cartpole", longest=7)
    step, episode = native.jit(made.step), native.jit(made.begin)(envs.first_key(1))
    cut = []
    for _ in range(7):
        found = step(episode, np.zeros(1))
        episode = found.episode
        cut.append(bool(found.truncated))
    assert cut == [False] * 6 + [True] and not found.terminated
    leaning = episode._replace(state=kn.State(np.array([0.0, 0.21]), np.zeros(2), episode.state.impulse))
    assert step(leaning, np.zeros(1)).terminated
    broken = episode._replace(state=kn.State(np.array([0.0, np.nan]), np.zeros(2), episode.state.impulse))
    assert step(broken, np.zeros(1)).terminated  # what is no number does not go on


def test_parameters_are_drawn_within_their_ranges_and_act():
    """Factors of 200 episodes fill their range, evenly in the logarithm: the mean's deviation is range / sqrt(12 n)."""
    made = envs.make("pendulum", randomise={"*.mass": (0.5, 2.0), "*.damping": (0.8, 1.25)})
    keys = np.random.default_rng(0).integers(2**32, size=(200, 2), dtype=np.uint32)
    many = native.vmap(made.begin)(keys)
    models = jax.vmap(made.model_of)(many.parameters)
    plain = made.model
    drawn = (models.inertia.mass, plain.inertia.mass, 2.0), (models.damping, plain.damping, 1.25)
    for value, first, widest in drawn:
        factor = np.log(np.asarray(value)[:, 0] / first)
        assert np.abs(factor).max() <= np.log(widest) * (1 + 1e-12)
        assert abs(factor.mean()) < 4 * 2 * np.log(widest) / np.sqrt(12 * 200) and np.ptp(factor) > 1.9 * np.log(widest)
    still = jax.tree.map(lambda x: np.asarray(x)[:2].copy(), many)
    still.state.q[:] = 1.0
    still.state.qd[:] = 0.0
    speeds = native.vmap(made.step)(still, np.zeros((2, 1))).episode.state.qd[:, 0]
    heavy = models.inertia.mass[:2, 0]
    for k in range(2):  # mass alone: the second moment stays, so a heavier rod falls faster
        model = jax.tree.map(lambda x, k=k: np.asarray(x)[k], models)
        run = kn.rollout(model, kn.State(np.ones(1), np.zeros(1)), dt=0.01, steps=5, native=True)
        assert speeds[k] == pytest.approx(float(run.qd[-1, 0]), abs=1e-12)
    assert (heavy[0] > heavy[1]) == (speeds[0] > speeds[1])


def test_the_posterior_of_a_fit_is_a_range():
    model = robots.load("cartpole")
    free = kn.parameters(model, ["*.mass"])
    covariance = np.array([[0.01, 0.006], [0.006, 0.04]])
    drawn = envs.make("cartpole", randomise=envs.from_posterior(free, [0.1, -0.2], covariance))
    keys = np.random.default_rng(0).integers(2**32, size=(4000, 2), dtype=np.uint32)
    z = np.asarray(native.vmap(drawn.begin)(keys).parameters)
    np.testing.assert_allclose(z.mean(axis=0), [0.1, -0.2], atol=4 * 0.2 / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(z.T), covariance, atol=4 * 0.04 * np.sqrt(2 / 4000))
    with pytest.raises(ValueError, match="not positive semidefinite"):
        envs.from_posterior(free, [0, 0], [[1, 2], [2, 1]])


def test_a_file_and_a_reward_are_an_environment(tmp_path):
    path = tmp_path / "rod.xml"
    path.write_text(robots.path("pendulum").read_text())

    def energy(model, state, control, after):
        return -kinetic_energy(model, after.q, after.qd) - potential_energy(model, after.q)

    made = envs.from_file(path, energy, longest=10)
    episode = native.jit(made.begin)(envs.first_key(0))
    assert made.dt == 0.01 and made.name == "rod"
    np.testing.assert_allclose(episode.state.q, [np.pi], atol=0.05)  # the first keyframe, and noise of 0.01
    assert np.isfinite(native.jit(made.step)(episode, np.zeros(1)).reward)
    with pytest.raises(TypeError, match="reward function"):
        envs.from_file(path, "swing up")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dt": 0.0}, "dt must be a positive number"),
        ({"substeps": 0}, "substeps must be a whole number"),
        ({"longest": 0}, "longest must be at least one action"),
        ({"limits": (-np.inf, 1)}, "controls need finite limits, actuator 'drive' has -inf to 1"),
        ({"limits": (1, -1)}, "has 1 to -1"),
        ({"randomise": {"*.mass": (0.0, 1.0)}}, "needs factors 0 < low <= high"),
        ({"randomise": {"*.armature": (0.5, 1.0)}}, "all that '\\*.armature' names is zero"),
        ({"randomise": {"*.inertia": (0.5, 1.0)}}, "depends on more than one free number"),
        ({"model": kn.build([kn.Link("rod", joints=kn.revolute("y"), mass=1.0)])}, "no actuators"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        envs.make("pendulum", **changes)


def test_an_unknown_name_lists_those_that_exist():
    with pytest.raises(ValueError, match="no built-in environment 'swimmer'; there are acrobot"):
        envs.make("swimmer")
