"""Environments of any robot file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.envs.environment import Environment, Reward, Start
from knuckle.model.joints import retract
from knuckle.model.load import load
from knuckle.model.model import Model, State


def from_file(
    path: str | Path, task: Reward, *, start: Start | None = None, spread: float = 0.01, **options: Any
) -> Environment:
    """An environment of a URDF or MJCF file with a reward function `task(model, state, control, after)`.

    Episodes begin at the first keyframe, or at the model's reference, with normal noise of `spread` in all coordinates
    and velocities, unless `start` says otherwise. Other options are those of `Environment`.
    """
    model = load(path)
    if not callable(task):
        raise TypeError(f"task must be a reward function of model, state, control and next state, got {task!r}")
    options.setdefault("dt", model.timestep if model.timestep else 0.005)
    options.setdefault("name", Path(str(path)).stem if not str(path).lstrip().startswith("<") else model.name)
    return Environment(model, start or near_first_keyframe(model, spread), task, **options)


def near_first_keyframe(model: Model, spread: float) -> Start:
    first = model.state(next(iter(model.keyframes))) if model.keyframes else model.state()

    def start(model: Model, key) -> State:
        of_q, of_qd = jax.random.split(key)
        q = retract(model, jnp.asarray(np.asarray(first.q, float)), spread * jax.random.normal(of_q, (model.nv,)))
        return State(q, np.asarray(first.qd, float) + spread * jax.random.normal(of_qd, (model.nv,)))

    return start
