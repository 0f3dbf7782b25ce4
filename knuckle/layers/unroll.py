"""H steps as a function of arrays, and its reverse sweep from the states that it went through.

Figure 2 of Interactive Differentiable Simulation (Heiden et al. 2019): FD, INT and KIN, unrolled. The reverse sweep
takes the states that the forward pass saved, so that both together cost what one native gradient does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import kinematics
from knuckle.contact.constraints import joint_rows
from knuckle.contact.default import chosen_contact
from knuckle.integrate import Integrator
from knuckle.layers.constants import Constant
from knuckle.model.model import Model, State
from knuckle.simulate import advance, begin, control_row, opened
from knuckle.sysid.free_parameters import FreeParameters
from knuckle.taps import Blueprint

INPUTS = ("q", "qd", "tau", "control", "parameters")
OUTPUTS = ("q", "qd", "qdd", "poses", "frames")
Hold = Literal["held", "first", "each"]
Batched = tuple[tuple[str, bool], ...]  # names of inputs, and whether each has a batch axis
Given = dict[str, Float[Array, "..."]]  # inputs of one element of a batch, by name


@dataclass(frozen=True)
class Settings:
    """What is fixed when a layer is compiled."""

    model: Constant
    contact: Constant
    integrator: Constant
    free: FreeParameters | None
    dt: float
    steps: int
    outputs: tuple[str, ...]
    hold: Hold
    whole: bool  # outputs after every step, not only after the last

    def __hash__(self) -> int:
        return hash((self.model, self.contact, self.dt, self.steps, self.outputs, self.hold, self.whole))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each input of one element of a batch."""
        model: Model = self.model.value
        each = (self.steps,) if self.hold == "each" else ()
        size = 0 if self.free is None else self.free.size
        return {
            "q": (model.nq,),
            "qd": (model.nv,),
            "tau": (*each, model.nv),
            "control": (*each, model.nu),
            "parameters": (size,),
        }

    def applied(self, z: Float[Array, " free"] | None, dtype: Any = float) -> tuple[Model, Any]:
        """Model and contact model with these free numbers, in a floating-point type."""
        model, contact = self.model.in_precision(dtype), self.contact.in_precision(dtype)
        if self.free is None or z is None:
            return model, contact
        return self.free.apply(model, z), self.free.apply_contact(model, z) if contact is not None else None


def checked_settings(
    model: Model,
    *,
    dt: float,
    steps: int,
    outputs: tuple[str, ...] | list[str] | str,
    hold: Hold,
    every_step: bool,
    contact: Any,
    integrator: Integrator,
    free: FreeParameters | None,
) -> Settings:
    """Settings of a layer, or a ValueError that says what was expected."""
    outputs = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    unknown = [name for name in outputs if name not in OUTPUTS]
    if unknown or not outputs:
        raise ValueError(f"Physics: outputs must be some of {', '.join(OUTPUTS)}, got {', '.join(unknown) or 'none'}")
    if hold not in ("held", "first", "each"):
        raise ValueError(f"Physics: hold must be 'held', 'first' or 'each', got {hold!r}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"Physics: steps must be a whole number of at least 1, got {steps!r}")
    if not 0 < float(dt) < float("inf"):
        raise ValueError(f"Physics: dt must be a positive number of seconds, got {dt!r}")
    chosen = chosen_contact(model, contact)
    constants = Constant(model, "the model"), Constant(chosen, "the contact model"), Constant(integrator, "integrator")
    return Settings(*constants, free, float(dt), steps, outputs, hold, every_step)


class Path(eqx.Module):
    """One element of a batch on its way: how it starts, and how each step goes on."""

    settings: Settings = eqx.field(static=True)
    blueprint: Blueprint | None
    given: Given

    @property
    def dtype(self):
        return self.given["q"].dtype

    def start(self) -> State:
        model, contact = self.settings.applied(self.given.get("parameters"), self.dtype)
        loads = self._loads(model, 0)
        state = State(self.given["q"], self.given["qd"])
        options = {"dt": self.settings.dt, "integrator": self.settings.integrator.value, "wrench": None, "motion": None}
        return begin(model, state, self.blueprint, contact=contact, force=loads[1], **options)

    def _loads(self, model: Model, number) -> tuple[Array | None, Array | None]:
        """Control and joint force of a step: held, zero after the first, or given for each."""
        control, tau = (self.given.get(name) for name in ("control", "tau"))
        if self.settings.hold == "each":
            return tuple(None if x is None else x[number] for x in (control, tau))  # type: ignore[return-value]
        if self.settings.hold == "first":
            return tuple(None if x is None else jnp.where(number == 0, x, jnp.zeros_like(x)) for x in (control, tau))  # type: ignore[return-value]
        return control, tau

    def step(self, state: State, number) -> tuple[State, dict[str, Array]]:
        """The next state, and the outputs there."""
        settings = self.settings
        model, contact = settings.applied(self.given.get("parameters"), self.dtype)
        control, tau = self._loads(model, number)
        taps = opened(self.blueprint, state, settings.dt * jnp.asarray(number, self.dtype))
        present = None if contact is None else joint_rows(settings.model.value)
        after, _ = advance(
            model,
            state,
            control_row(model, control, state),
            dt=settings.dt,
            integrator=settings.integrator.value,
            contact=contact,
            wrench=None,
            force=tau,
            taps=taps,
            present=present,
        )
        return after, _outputs(settings, model, state, after)


def _outputs(settings: Settings, model: Model, before: State, after: State) -> dict[str, Array]:
    found: dict[str, Callable[[], Any]] = {
        "q": lambda: after.q,
        "qd": lambda: after.qd,
        "qdd": lambda: (after.qd - before.qd) / settings.dt,
        "poses": lambda: _matrix(kinematics.poses(model, after.q)),
        "frames": lambda: _matrix(kinematics.frame_poses(model, after.q)),
    }
    return {name: found[name]() for name in settings.outputs}


def _matrix(pose: kinematics.Poses) -> Float[Array, "body 3 4"]:
    """[R | p] of each body."""
    return jnp.concatenate([pose.rotation, pose.position[..., None]], axis=-1)


def forward(settings: Settings, blueprint: Blueprint | None, given: Given) -> tuple[Any, State]:
    """Outputs by name, after every step or after the last, and the states before each step."""
    path = Path(settings, blueprint, given)

    def following(state, number):
        after, outputs = path.step(state, number)
        return after, (outputs if settings.whole else None, state)

    if settings.whole:
        _, (outputs, states) = jax.lax.scan(following, path.start(), jnp.arange(settings.steps))
        return outputs, states
    last, (_, states) = jax.lax.scan(following, path.start(), jnp.arange(settings.steps))
    model, _ = settings.applied(given.get("parameters"), given["q"].dtype)
    before = jax.tree.map(lambda kept: kept[-1], states)
    return _outputs(settings, model, before, last), states


def backward(
    settings: Settings,
    wanted: tuple[str, ...],
    blueprint: Blueprint | None,
    given: Given,
    states: State,
    cotangents: dict[str, Array],
) -> tuple[Given, Any]:
    """Gradients by the inputs that are wanted ("weights": of the blueprint), from the states before each step."""
    moving = {name: given[name] for name in wanted if name in given}
    weights = blueprint if "weights" in wanted else None
    zero = jax.tree.map(jnp.zeros_like, (moving, weights))

    def path_of(moving, weights) -> Path:
        return Path(settings, blueprint if weights is None else weights, {**given, **moving})

    def sweep(carry, x):
        by_state, total = carry
        state, number, seed = x

        def step(state, moving, weights):
            return path_of(moving, weights).step(state, number)

        _, pull = jax.vjp(step, state, moving, weights)
        by_before, *own = pull((by_state, seed))
        return (by_before, jax.tree.map(jnp.add, total, tuple(own))), None

    last = jax.tree.map(lambda kept: jnp.zeros_like(kept[-1]), states)
    seeds = cotangents if settings.whole else _only_last(settings, cotangents)
    xs = (states, jnp.arange(settings.steps), seeds)
    (by_start, total), _ = jax.lax.scan(sweep, (last, zero), xs, reverse=True)
    _, pull = jax.vjp(lambda moving, weights: path_of(moving, weights).start(), moving, weights)
    return jax.tree.map(jnp.add, total, pull(by_start))


def _only_last(settings: Settings, cotangents: dict[str, Array]) -> dict[str, Array]:
    return {name: jnp.zeros((settings.steps, *x.shape), x.dtype).at[-1].set(x) for name, x in cotangents.items()}


@functools.lru_cache(maxsize=256)
def forward_program(settings: Settings, batched: Batched, threads: int | None = None) -> Callable:
    """Native code of `forward`: of (blueprint, given), over a batch if any input has one."""
    return _native(functools.partial(forward, settings), (None, _axes(batched)), batched, threads)


@functools.lru_cache(maxsize=256)
def backward_program(
    settings: Settings, wanted: tuple[str, ...], batched: Batched, threads: int | None = None
) -> Callable:
    """Native code of `backward`: of (blueprint, given, states, cotangents)."""
    return _native(functools.partial(backward, settings, wanted), (None, _axes(batched), 0, 0), batched, threads)


def _axes(batched: Batched) -> dict[str, int | None]:
    return {name: 0 if flag else None for name, flag in batched}


def _native(function: Callable, axes: tuple, batched: Batched, threads: int | None) -> Callable:
    from knuckle.native import jit, vmap  # loads LLVM

    many = any(flag for _, flag in batched)
    return vmap(function, in_axes=axes, threads=threads) if many else jit(function)


def batch_of(settings: Settings, given: dict[str, Any]) -> tuple[Batched, int | None]:
    """Which inputs have a batch axis, and its size; a ValueError that names an input of wrong shape."""
    sizes, flags = {}, []
    for name, wanted in settings.shapes().items():
        if name not in given:
            continue
        shape = tuple(given[name].shape)
        if shape != wanted and shape[1:] != wanted:
            raise ValueError(f"Physics: {name} must have shape {wanted}, or (batch, ...) before it, got {shape}")
        if shape != wanted:
            sizes[name] = shape[0]
        flags.append((name, shape != wanted))
    if len(set(sizes.values())) > 1:
        raise ValueError(f"Physics: expected one batch size, got {sizes}")
    return tuple(flags), next(iter(sizes.values()), None)
