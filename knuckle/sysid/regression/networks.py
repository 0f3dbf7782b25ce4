"""Networks beside a regression: forces at the joints by positions and velocities, trained on torques."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.neural.joint_friction import JointFriction
from knuckle.sysid.regression.filters import Filter
from knuckle.taps import Augment, Blueprint, meaning_of
from knuckle.taps.augment import CONSTANT, Value

FORCES = ("actuator/force", "joint/passive_force", "joint/force")  # forces at the joints that simply add up
INPUTS = ("q", "qd")
ROWS = 2048  # samples of one call are a multiple of it: few programs serve recordings of any length


def without_laws(blueprint: Blueprint | None) -> Blueprint | None:
    """Networks of a blueprint but for laws of joint friction, which a regression finds anew; None: there are none."""
    parts = {} if blueprint is None else blueprint.augments
    kept = {tap: tuple(a for a in some if not isinstance(a.network, JointFriction)) for tap, some in parts.items()}
    kept = {tap: some for tap, some in kept.items() if some}
    return Blueprint(kept) if kept else None


def unsuited(networks: Blueprint | None) -> str | None:
    """Why networks cannot be trained on torques, in words; None: they can."""
    for tap, _, augment in networks or Blueprint():
        if tap not in FORCES:
            return f"network at {tap}, which is no force at the joints"
        if augment.mode != "add":
            return f'network at {tap} in mode "{augment.mode}"'
        others = [name for name in augment.inputs if name not in INPUTS and not name.startswith(CONSTANT)]
        if others:
            return f"network at {tap} that reads {', '.join(others)}"
        if augment.is_recurrent:
            return f"recurrent network at {tap}"
    return None


def force_of(networks: Blueprint, q, qd):
    """Sum of what networks add to the forces at the joints [N m or N], of one state."""
    force = jnp.zeros_like(qd)
    for _, _, augment in networks:
        output, _ = augment.output([_input(augment, name, q, qd) for name in augment.inputs], "dof", qd.shape, None)
        force = augment.applied(force, output, jnp.add)
    return force


def _input(augment: Augment, name: str, q, qd) -> Value:
    if name.startswith(CONSTANT):
        return Value(augment.constants[int(name.removeprefix(CONSTANT))].astype(qd.dtype), None)
    return Value(q if name == "q" else qd, meaning_of(name).axis)


def network_forces(networks: Blueprint, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """The same of samples (time, dof)."""
    count = len(q)
    more = -(-count // ROWS) * ROWS - count
    padded = [np.concatenate([x, np.repeat(x[-1:], more, axis=0)]) for x in (q, qd)]
    with jax.enable_x64(True):
        return np.asarray(_forces()(networks, *padded))[:count]


@functools.cache
def _forces():
    return jax.jit(jax.vmap(force_of, (None, 0, 0)))


def low_passed(low_pass: Filter, x):
    """A zero-phase filter along the first axis in JAX, the same as `Filter` but within its transient at the ends."""
    if not low_pass.acts:
        return x
    ends = 3 * low_pass.edge
    longer = jnp.pad(x, ((ends, ends), *[(0, 0)] * (x.ndim - 1)), mode="edge")
    gain = low_pass.gain(np.fft.rfftfreq(longer.shape[0], 1 / low_pass.rate))
    spectrum = jnp.fft.rfft(longer, axis=0)
    spectrum = spectrum * jnp.asarray(gain.reshape(-1, *[1] * (x.ndim - 1)), spectrum.dtype)
    return jnp.fft.irfft(spectrum, longer.shape[0], axis=0)[ends : ends + x.shape[0]]
