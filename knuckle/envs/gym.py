"""Gymnasium's interface (1.x): one environment, and a vector of them in one call of native code."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import numpy as np

try:
    import gymnasium
    from gymnasium.utils import seeding
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError("kn.envs needs Gymnasium for this: pip install 'knuckle[envs]'") from error

from knuckle.envs.environment import Environment, Episode, Step
from knuckle.envs.tasks import TASKS, make
from knuckle.native import jit, vmap
from knuckle.viewer.stage import Stage


def spaces(environment: Environment) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    """Of observations and of actions."""
    with jax.enable_x64(True):
        key = jax.ShapeDtypeStruct((2,), np.uint32)
        size = jax.eval_shape(lambda k: environment.observation(environment.begin(k)), key).shape
    lower, upper = (np.asarray(side, np.float32) for side in environment.action_range)
    return gymnasium.spaces.Box(-np.inf, np.inf, size, np.float64), gymnasium.spaces.Box(lower, upper, dtype=np.float32)


def _environment(given: Environment | str, changes: dict[str, Any]) -> Environment:
    if isinstance(given, str):
        return make(given, **changes)
    if changes:
        raise TypeError(f"an Environment has its settings already; {', '.join(changes)} are for built-in names")
    return given


class GymEnvironment(gymnasium.Env):
    """An `Environment`, or a built-in one by name, as a Gymnasium environment; steps run as native code in float64."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012

    def __init__(self, environment: Environment | str, render_mode: str | None = None, **changes: Any):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.environment = _environment(environment, changes)
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": max(round(1 / self.environment.seconds), 1)}
        self.observation_space, self.action_space = spaces(self.environment)
        self._begin, self._step = jit(_begun(self.environment)), jit(self.environment.step)
        self.episode: Episode | None = None

    @cached_property
    def stage(self) -> Stage:
        return Stage(self.environment.model)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        key = self.np_random.integers(2**32, size=2, dtype=np.uint32)
        with jax.enable_x64(True):
            self.episode, observation = self._begin(key)
        return np.asarray(observation), {}

    def step(self, action):
        if self.episode is None:
            raise gymnasium.error.ResetNeeded("call reset before the first step")
        with jax.enable_x64(True):
            found: Step = self._step(self.episode, np.asarray(action, float))
        self.episode = found.episode
        return np.asarray(found.observation), float(found.reward), bool(found.terminated), bool(found.truncated), {}

    def render(self):
        if self.render_mode is None:
            return None
        if self.episode is None:
            raise gymnasium.error.ResetNeeded("call reset before the first picture")
        return self.stage.picture(self.episode.state.q)


def _begun(environment: Environment):
    def begun(key):
        episode = environment.begin(key)
        return episode, environment.observation(episode)

    return begun


class VectorEnvironment(VectorEnv):
    """Many episodes of one environment, all in one call of native code.

    Episodes that end begin anew with the next action (`AutoresetMode.NEXT_STEP`), within the same one (`SAME_STEP`,
    with what was seen last in `infos["final_obs"]`), or when `reset` is called with `options={"reset_mask": ...}`
    (`DISABLED`). `threads` as in `kn.native.vmap`.
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        environment: Environment | str,
        num_envs: int,
        *,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        threads: int | None = None,
        **changes: Any,
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.environment, self.num_envs = _environment(environment, changes), int(num_envs)
        self.render_mode, self.autoreset = render_mode, AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset}
        self.single_observation_space, self.single_action_space = spaces(self.environment)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._begin = vmap(_begun(self.environment), threads=threads)
        self._step = vmap(self.environment.step, threads=threads)
        self.episodes: Episode | None = None
        self._seen = np.zeros((0, 0))
        self._over = np.zeros(num_envs, bool)

    @cached_property
    def stage(self) -> Stage:
        return Stage(self.environment.model)

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None):
        mask = self._mask((options or {}).get("reset_mask"))
        keys = self._keys(seed)
        with jax.enable_x64(True):
            begun, seen = self._begin(keys)
        before = self.episodes
        whole = before is None or bool(mask.all())
        self.episodes = begun if before is None or whole else _merged(mask, begun, before)
        self._seen = np.array(seen) if whole else np.where(mask[:, None], seen, self._seen)
        self._over = self._over & ~mask
        return self._seen.copy(), {}

    def _mask(self, given: Any) -> np.ndarray:
        if given is None:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(given)
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise ValueError(f"reset_mask must be {self.num_envs} booleans, got {mask.dtype} of shape {mask.shape}")
        if not mask.any():
            raise ValueError("reset_mask: at least one environment must be reset")
        return mask

    def _keys(self, seed: int | list[int | None] | None) -> np.ndarray:
        """Of each environment; a list has a seed for each."""
        if isinstance(seed, int | np.integer) or seed is None:
            if seed is not None:
                self._np_random, self._np_random_seed = seeding.np_random(int(seed))
            return self.np_random.integers(2**32, size=(self.num_envs, 2), dtype=np.uint32)
        if len(seed) != self.num_envs:
            raise ValueError(f"seed: expected one number or {self.num_envs}, got {len(seed)}")
        generators = [self.np_random if s is None else seeding.np_random(s)[0] for s in seed]
        return np.array([g.integers(2**32, size=2, dtype=np.uint32) for g in generators])

    def step(self, actions):
        if self.episodes is None:
            raise gymnasium.error.ResetNeeded("call reset before the first step")
        actions = np.asarray(actions, float)
        if actions.shape != self.action_space.shape:
            raise ValueError(f"actions must have shape {self.action_space.shape}, got {actions.shape}")
        if self.autoreset is AutoresetMode.DISABLED and self._over.any():
            ended = np.flatnonzero(self._over)
            raise gymnasium.error.ResetNeeded(f"environments {ended[:5].tolist()} have ended: reset them by reset_mask")
        with jax.enable_x64(True):
            found: Step = self._step(self.episodes, actions)
        renewed = self._over if self.autoreset is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        return self._after(found, renewed)

    def _after(self, found: Step, renewed: np.ndarray):
        """What is seen after a step; `renewed` begin anew in place of it."""
        seen, reward = np.array(found.observation), np.array(found.reward)
        terminated, truncated = np.array(found.terminated), np.array(found.truncated)
        self.episodes, infos = found.episode, {}
        terminated[renewed], truncated[renewed], reward[renewed] = False, False, 0.0
        over = terminated | truncated
        if self.autoreset is AutoresetMode.SAME_STEP and over.any():
            renewed = over
            infos = {"final_obs": _each(seen, over), "_final_obs": over.copy()}
            infos |= {"final_info": {}, "_final_info": over.copy()}
        if renewed.any():
            begun, first = self._first_of(renewed)
            seen[renewed] = first
            self.episodes = _placed(renewed, begun, self.episodes)
        self._over = over if self.autoreset is not AutoresetMode.SAME_STEP else np.zeros(self.num_envs, bool)
        self._seen = seen
        return seen.copy(), reward, terminated, truncated, infos

    def _first_of(self, renewed: np.ndarray) -> tuple[Episode, np.ndarray]:
        """New episodes for some, from the keys that their last ones left."""
        assert self.episodes is not None
        with jax.enable_x64(True):
            return self._begin(np.asarray(self.episodes.key)[renewed])

    def render(self):
        if self.render_mode is None:
            return None
        if self.episodes is None:
            raise gymnasium.error.ResetNeeded("call reset before the first picture")
        return tuple(self.stage.picture(q) for q in np.asarray(self.episodes.state.q))


def _each(seen: np.ndarray, over: np.ndarray) -> np.ndarray:
    """What ended episodes saw last, None for others, as Gymnasium gives it."""
    found = np.full(len(over), None, object)
    for k in np.flatnonzero(over):
        found[k] = seen[k].copy()
    return found


def _placed(mask: np.ndarray, some: Episode, others: Episode) -> Episode:
    """Episodes in place of those that the mask names."""

    def placed(new, old):
        whole = np.array(old)
        whole[mask] = new
        return whole

    return jax.tree.map(placed, some, others)


def _merged(mask: np.ndarray, new: Episode, old: Episode) -> Episode:
    return jax.tree.map(lambda a, b: np.where(mask.reshape(-1, *[1] * (np.ndim(a) - 1)), a, b), new, old)


def register() -> tuple[str, ...]:
    """Make the built-in environments known to `gymnasium.make` and `make_vec` as `knuckle/NAME-v0`; returns the ids."""
    ids = []
    for name in sorted(TASKS):
        id = f"knuckle/{name}-v0"
        ids.append(id)
        if id not in gymnasium.registry:
            gymnasium.register(
                id,
                entry_point=lambda name=name, **options: GymEnvironment(name, **options),
                vector_entry_point=lambda name=name, **options: VectorEnvironment(name, **options),
            )
    return tuple(ids)
