"""Robots with tasks: pure functions for JAX and native code, Gymnasium environments, and vectors of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knuckle.envs.environment import Environment, Episode, Step, all_of, first_key, never
from knuckle.envs.files import from_file
from knuckle.envs.randomise import Randomisation, from_posterior, randomisation
from knuckle.envs.tasks import TASKS, make

if TYPE_CHECKING:
    from knuckle.envs.gym import GymEnvironment, VectorEnvironment, register

__all__ = [
    "TASKS",
    "Environment",
    "Episode",
    "GymEnvironment",
    "Randomisation",
    "Step",
    "VectorEnvironment",
    "all_of",
    "first_key",
    "from_file",
    "from_posterior",
    "make",
    "names",
    "never",
    "randomisation",
    "register",
]


def names() -> tuple[str, ...]:
    """The built-in environments."""
    return tuple(sorted(TASKS))


def __getattr__(name: str):
    if name in ("GymEnvironment", "VectorEnvironment", "register"):
        from knuckle.envs import gym  # needs Gymnasium, an extra

        return getattr(gym, name)
    raise AttributeError(f"module 'knuckle.envs' has no attribute {name!r}")
