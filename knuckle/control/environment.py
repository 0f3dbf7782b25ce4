"""Environments with the interface of Gymnasium or of dm_control, as the real system of a controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from knuckle.model.model import Model, State

StateOf = Callable[[Any, Any], State]  # of the environment and its last observation


class Observed(NamedTuple):
    """What an environment answers: the state, the reward, and whether the episode has ended."""

    state: State
    reward: float
    ended: bool


class Environment:
    """One interface to Gymnasium's and dm_control's: `reset()` and `step(control)` give `Observed`.

    The state is `state_of(environment, observation)`, by default that of the environment's own MuJoCo data. Raises
    ValueError if actions or states do not have the shapes of the model.
    """

    def __init__(self, environment: Any, model: Model, state_of: StateOf | None = None):
        self.environment, self.model = environment, model
        self.state_of = mujoco_state if state_of is None else state_of
        if hasattr(environment, "action_spec"):
            self.kind, shape = "dm_control", tuple(environment.action_spec().shape)
        elif hasattr(environment, "action_space"):
            self.kind, shape = "gymnasium", tuple(environment.action_space.shape or ())
        else:
            wanted = "expected one with action_space (Gymnasium) or action_spec() (dm_control)"
            raise ValueError(f"environment: {wanted}, got {type(environment).__name__}")
        if shape != (model.nu,):
            raise ValueError(f"environment: its actions have shape {shape}, the model has {model.nu} actuators")

    def check_step(self, dt: float) -> None:
        """Raise ValueError if the environment says that a step of it takes another time."""
        inner = getattr(self.environment, "unwrapped", self.environment)
        given = inner.control_timestep() if hasattr(inner, "control_timestep") else getattr(inner, "dt", None)
        if isinstance(given, int | float) and abs(float(given) - dt) > 1e-9 * dt:
            raise ValueError(f"environment: one step of it takes {float(given):g} s, but dt is {dt:g} s")

    def reset(self) -> Observed:
        found = self.environment.reset()
        observation = found.observation if self.kind == "dm_control" else found[0]
        return Observed(self._state(observation), 0.0, False)

    def step(self, control: np.ndarray) -> Observed:
        found = self.environment.step(np.asarray(control))
        if self.kind == "dm_control":
            return Observed(self._state(found.observation), float(found.reward or 0.0), bool(found.last()))
        observation, reward, terminated, truncated = found[:4]
        return Observed(self._state(observation), float(reward), bool(terminated or truncated))

    def _state(self, observation: Any) -> State:
        state = self.state_of(self.environment, observation)
        for name, size in (("q", self.model.nq), ("qd", self.model.nv)):
            array = np.array(getattr(state, name), float)
            if array.shape != (size,):
                raise ValueError(f"environment: its {name} has shape {array.shape}, the model's is ({size},)")
            if not np.all(np.isfinite(array)):
                raise ValueError(f"environment: its {name} is not finite: {array}")
        return State(np.array(state.q, float), np.array(state.qd, float))


def mujoco_state(environment: Any, observation: Any) -> State:
    """qpos and qvel of the MuJoCo data inside an environment."""
    inner = getattr(environment, "unwrapped", environment)
    found = (getattr(place, "data", None) for place in (inner, getattr(inner, "physics", None)))
    data: Any = next((data for data in found if hasattr(data, "qpos")), None)
    if data is None:
        raise ValueError(
            f"environment: {type(environment).__name__} has no MuJoCo data to read q and qd from: give "
            "state_of=lambda environment, observation: kn.State(q, qd)"
        )
    return State(np.array(data.qpos), np.array(data.qvel))
