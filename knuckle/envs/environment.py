"""An environment as pure functions: begin, step, observe, for JAX, native code and Gymnasium alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from knuckle.contact.default import Contact, chosen_contact
from knuckle.envs.randomise import Randomisation, Range, randomisation
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.model.model import Model, State
from knuckle.simulate import begin, step

Key: TypeAlias = UInt32[Array, "2"]
Start: TypeAlias = Callable[[Model, Key], State]
Observe: TypeAlias = Callable[[Model, State], Float[Array, " entry"]]
Reward: TypeAlias = Callable[[Model, State, Float[Array, " nu"], State], Float[Array, ""]]
Ends: TypeAlias = Callable[[Model, State], Bool[Array, ""]]


class Episode(NamedTuple):
    """Where an environment is; all arrays, so it can be batched, kept and carried through loops."""

    state: State
    steps: Int[Array, ""]  # actions taken
    parameters: Float[Array, " free"]  # of the model in this episode, empty unless they are drawn
    key: Key  # for draws of the next episode


class Step(NamedTuple):
    """What an action led to."""

    episode: Episode
    observation: Float[Array, " entry"]
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


def never(model: Model, state: State) -> Bool[Array, ""]:
    return jnp.array(False)


def all_of(model: Model, state: State) -> Float[Array, " entry"]:
    """The coordinates and velocities as they are."""
    return jnp.concatenate([state.q, state.qd])


@dataclass(frozen=True, eq=False)
class Environment:
    """A robot with a task. An action sets the control of all actuators for `substeps` steps of `dt` seconds.

    Args:
        start: where an episode begins, from the model and a key for random numbers.
        observe: what an agent sees of a state. reward: of state, control and next state.
        ends: whether a state ends an episode. longest: actions after which it is cut off; None: never.
        limits: lowest and highest control, one number or one per actuator; by default the actuators' own.
        normalised: whether actions are from -1 to 1, which stand for the limits; else they are controls.
        randomise: ranges of parameters by pattern, drawn anew for each episode (see `kn.envs.randomisation`).
    """

    model: Model
    start: Start
    reward: Reward
    observe: Observe = all_of
    ends: Ends = never
    dt: float = 0.005
    substeps: int = 4
    longest: int | None = 1000
    limits: tuple[Any, Any] | None = None
    normalised: bool = True
    randomise: Mapping[str, Range] | Randomisation | None = None
    contact: Contact = "default"
    integrator: Integrator = field(default_factory=SemiImplicitEuler)
    name: str = "environment"

    def __post_init__(self):
        if not (np.isfinite(self.dt) and self.dt > 0):
            raise ValueError(f"{self.name}: dt must be a positive number of seconds, got {self.dt!r}")
        if self.substeps != int(self.substeps) or self.substeps < 1:
            raise ValueError(f"{self.name}: substeps must be a whole number of at least 1, got {self.substeps!r}")
        if self.longest is not None and self.longest < 1:
            raise ValueError(f"{self.name}: longest must be at least one action or None, got {self.longest!r}")
        if self.model.nu == 0:
            raise ValueError(f"{self.name}: the model has no actuators, so there is nothing to act with")
        object.__setattr__(self, "randomise", randomisation(self.model, self.randomise))
        object.__setattr__(self, "contact", chosen_contact(self.model, self.contact))
        self.control_limits()

    @property
    def action_range(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest action."""
        return (-np.ones(self.model.nu), np.ones(self.model.nu)) if self.normalised else self.control_limits()

    def control_of(self, action: Float[Array, " nu"]) -> Float[Array, " nu"]:
        """The control that an action stands for, within its limits."""
        lower, upper = self.control_limits()
        control = (lower + upper) / 2 + (upper - lower) / 2 * action if self.normalised else action
        return jnp.clip(control, lower, upper)

    @property
    def seconds(self) -> float:
        """Of one action."""
        return self.dt * self.substeps

    def control_limits(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest control."""
        actuators = self.model.actuators
        given = (actuators.control_lower, actuators.control_upper) if self.limits is None else self.limits
        lower, upper = (np.broadcast_to(np.asarray(side, float), (self.model.nu,)) for side in given)
        for name, low, high in zip(actuators.names, lower, upper, strict=True):
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise ValueError(
                    f"{self.name}: controls need finite limits, actuator {name!r} has {low:g} to {high:g}; give limits="
                )
        return lower, upper

    def begin(self, key: Key) -> Episode:
        """A new episode; the same key gives the same one."""
        key, of_model, of_state = jax.random.split(jnp.asarray(key), 3)
        parameters = self.randomise.drawn(of_model)  # type: ignore[union-attr]
        model = self.model_of(parameters)
        state = self.start(model, of_state)
        options = {"dt": self.dt, "integrator": self.integrator, "contact": self.contact, "wrench": None}
        state = begin(model, State(jnp.asarray(state.q), jnp.asarray(state.qd)), None, **options)
        return Episode(state, jnp.zeros((), jnp.int32), parameters, key)

    def model_of(self, parameters: Float[Array, " free"]) -> Model:
        """The model of an episode with these free numbers."""
        return self.randomise.applied(self.model, parameters)  # type: ignore[union-attr]

    def observation(self, episode: Episode) -> Float[Array, " entry"]:
        return self.observe(self.model_of(episode.parameters), episode.state)

    def step(self, episode: Episode, action: Float[Array, " nu"]) -> Step:
        """What the action leads to."""
        model = self.model_of(episode.parameters)
        control = self.control_of(jnp.asarray(action, episode.state.q.dtype))
        options = {"dt": self.dt, "integrator": self.integrator, "contact": self.contact}

        def substep(state: State, _) -> tuple[State, None]:
            return step(model, state, control, **options), None

        after, _ = jax.lax.scan(substep, episode.state, None, length=self.substeps)
        steps = episode.steps + 1
        cut = jnp.array(False) if self.longest is None else steps >= self.longest
        gone = ~jnp.all(jnp.isfinite(after.q)) | ~jnp.all(jnp.isfinite(after.qd))
        return Step(
            Episode(after, steps, episode.parameters, episode.key),
            self.observe(model, after),
            jnp.asarray(self.reward(model, episode.state, control, after)),
            jnp.asarray(self.ends(model, after)) | gone,
            cut,
        )


def first_key(seed: int) -> np.ndarray:
    """The key of a seed."""
    return np.asarray(jax.random.PRNGKey(int(seed)))
