"""Built-in environments: robots of the package with a start, a reward and an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from knuckle import robots
from knuckle.envs.environment import Environment
from knuckle.kinematics import frame_pose
from knuckle.model.model import Model, State

TASKS: dict[str, Callable[..., Environment]] = {}


def task(make: Callable[..., Environment]) -> Callable[..., Environment]:
    TASKS[make.__name__] = make
    return make


def around(q, qd, spread: float, speed: float = 0.0) -> Callable[[Model, Any], State]:
    """Even draws of so much to both sides of a state."""

    def start(model: Model, key) -> State:
        of_q, of_qd = jax.random.split(key)
        off = jax.random.uniform(of_q, (model.nq,), minval=-spread, maxval=spread)
        slow = jax.random.uniform(of_qd, (model.nv,), minval=-speed, maxval=speed)
        return State(np.asarray(q, float) + off, np.asarray(qd, float) + slow)

    return start


def turned(angle) -> jax.Array:
    """The angle's distance from zero, by whole turns [rad]."""
    return jnp.abs(jnp.arctan2(jnp.sin(angle), jnp.cos(angle)))


@task
def pendulum(**changes) -> Environment:
    """Swing a rod up and hold it with a motor that is too weak to lift it at once; costs as Gymnasium's Pendulum."""

    def start(model: Model, key) -> State:
        of_q, of_qd = jax.random.split(key)
        return State(
            jax.random.uniform(of_q, (1,), minval=-np.pi, maxval=np.pi),
            jax.random.uniform(of_qd, (1,), minval=-1.0, maxval=1.0),
        )

    def observe(model: Model, state: State):
        return jnp.concatenate([jnp.cos(state.q), jnp.sin(state.q), state.qd])

    def reward(model: Model, state: State, control, after: State):
        return -(turned(state.q[0]) ** 2 + 0.1 * state.qd[0] ** 2 + 0.001 * control[0] ** 2)

    made = {"model": robots.load("pendulum"), "start": start, "reward": reward, "observe": observe}
    return Environment(**made | {"dt": 0.01, "substeps": 5, "longest": 200, "name": "pendulum"} | changes)


def poles(model: Model, state: State) -> jax.Array:
    """Cart, then cosines and sines of the poles, then velocities."""
    q, qd = state.q, state.qd
    return jnp.concatenate([q[:1], jnp.cos(q[1:]), jnp.sin(q[1:]), qd])


@task
def cartpole(**changes) -> Environment:
    """Balance a pole: 1 for each action until it leans by more than 0.2 rad or the cart is near the end of its rail."""

    def fallen(model: Model, state: State):
        return (jnp.abs(state.q[1]) > 0.2) | (jnp.abs(state.q[0]) > 0.85)

    made = {
        "model": robots.load("cartpole"),
        "start": around([0.0, 0.0], [0.0, 0.0], 0.05, 0.05),
        "observe": poles,
        "reward": lambda model, state, control, after: jnp.ones(()),
        "ends": fallen,
        "dt": 0.005,
        "name": "cartpole",
    }
    return Environment(**made | changes)


def swing_up(robot: str, hanging, **options) -> dict[str, Any]:
    """Height of the tip between -1 and 1, less for a cart away from the middle and for hard work."""

    def reward(model: Model, state: State, control, after: State):
        height = frame_pose(model, after.q, "tip").position[2] / reach
        work = jnp.mean((control / model.actuators.control_upper) ** 2)
        off = after.q[0] ** 2 if robot.endswith("cartpole") else 0.0
        return height - 0.1 * off - 0.01 * work - 0.001 * jnp.sum(after.qd**2)

    model = robots.load(robot)
    with jax.enable_x64(True):
        reach = float(frame_pose(model, jnp.zeros(model.nq), "tip").position[2])
    start = around(hanging, [0.0] * model.nv, 0.1, 0.1)
    return {"model": model, "start": start, "reward": reward, "dt": 0.005, "longest": 500, **options}


@task
def cartpole_swing_up(**changes) -> Environment:
    """Swing a hanging pole up and hold it within the rail."""
    return Environment(**swing_up("cartpole", [0.0, np.pi], observe=poles, name="cartpole_swing_up") | changes)


@task
def double_cartpole(**changes) -> Environment:
    """Swing two hanging poles up by one cart."""
    made = swing_up("double_cartpole", [0.0, np.pi, 0.0], observe=poles, name="double_cartpole")
    return Environment(**made | changes)


@task
def acrobot(**changes) -> Environment:
    """Swing two links up by a motor at the elbow."""

    def observe(model: Model, state: State):
        return jnp.concatenate([jnp.cos(state.q), jnp.sin(state.q), state.qd])

    return Environment(**swing_up("acrobot", [np.pi, 0.0], observe=observe, name="acrobot") | changes)


@task
def reacher(**changes) -> Environment:
    """Bring the tip of two links to a target that lies anywhere within reach."""

    def start(model: Model, key) -> State:
        arm, far, angle = jax.random.split(key, 3)
        radius = 0.2 * jnp.sqrt(jax.random.uniform(far, minval=0.05, maxval=1.0))
        angle = jax.random.uniform(angle, minval=-np.pi, maxval=np.pi)
        target = radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return State(jnp.append(jax.random.uniform(arm, (2,), minval=-1.0, maxval=1.0), target), jnp.zeros(4))

    def gap(model: Model, state: State):
        return frame_pose(model, state.q, "tip").position[:2] - state.q[2:]

    def observe(model: Model, state: State):
        angles = state.q[:2]
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles), state.qd[:2], state.q[2:], gap(model, state)])

    def reward(model: Model, state: State, control, after: State):
        return -jnp.sqrt(jnp.sum(gap(model, after) ** 2) + 1e-12) - 10.0 * jnp.mean(control**2)

    made = {"model": robots.load("reacher"), "start": start, "observe": observe, "reward": reward}
    return Environment(**made | {"longest": 100, "name": "reacher"} | changes)


@task
def hopper(**changes) -> Environment:
    """Hop forward on one leg: speed, and 1 for staying upright, less work; ends when the torso falls or leans."""

    def fallen(model: Model, state: State):
        return (state.q[1] < -0.5) | (jnp.abs(state.q[2]) > 0.4)

    def reward(model: Model, state: State, control, after: State):
        return (after.q[0] - state.q[0]) / 0.016 + 1.0 - 1e-3 * jnp.sum(control**2)

    made = {
        "model": robots.load("hopper"),
        "start": around([0.0] * 6, [0.0] * 6, 5e-3, 5e-3),
        "observe": lambda model, state: jnp.concatenate([state.q[1:], jnp.clip(state.qd, -10.0, 10.0)]),
        "reward": reward,
        "ends": fallen,
        "dt": 0.004,
        "name": "hopper",
    }
    return Environment(**made | changes)


def make(name: str, **changes) -> Environment:
    """A built-in environment; `changes` are arguments of `Environment` that replace its own."""
    if name not in TASKS:
        raise ValueError(f"no built-in environment {name!r}; there are {', '.join(sorted(TASKS))}")
    return TASKS[name](**changes)
