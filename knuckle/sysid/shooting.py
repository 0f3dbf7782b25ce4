"""What a simulation with given free numbers makes of pieces of recordings: residuals, and their Jacobian."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.resolve import ContactModel
from knuckle.integrate import Integrator
from knuckle.kinematics import frame_pose
from knuckle.model.joints import difference, retract
from knuckle.model.model import Model, State
from knuckle.simulate import rollout
from knuckle.sysid.entries import POINT_PREFIX, POSE_PREFIX
from knuckle.sysid.parameters import Parameters
from knuckle.sysid.shots import Shots
from knuckle.taps import Blueprint

Observe = Callable[[Model, State], Float[Array, " entry"]]


class Read(NamedTuple):
    """Instruments at free numbers."""

    offsets: dict[str, Float[Array, " entry"]]
    gains: dict[str, Float[Array, " entry"]]  # less one
    sensor_delay: Float[Array, ""] | float  # [s]
    actuator_delay: Float[Array, ""] | float


class Instruments(NamedTuple):
    """What is fitted of the measuring itself: measured = gain * true + offset, and delays of sensors and actuators."""

    offsets: tuple[tuple[str, int], ...] = ()  # channels whose offset is free, and how many entries they have
    sensor_delay: bool = False
    actuator_delay: bool = False
    gains: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        offsets = [f"sensor.{key}.offset[{k}]" for key, count in self.offsets for k in range(count)]
        gains = [f"sensor.{key}.gain[{k}]" for key, count in self.gains for k in range(count)]
        delays = [*["sensor.delay"] * self.sensor_delay, *["actuator.delay"] * self.actuator_delay]
        return (*offsets, *gains, *delays)

    @property
    def kinds(self) -> tuple[str, ...]:
        """offset, gain or delay, for each free number."""
        return tuple(label.rpartition(".")[2].partition("[")[0] for label in self.labels)

    def parts(self, a: Float[Array, " free"]) -> Read:
        """What free numbers say."""
        offsets, gains, at = {}, {}, 0
        for found, channels in ((offsets, self.offsets), (gains, self.gains)):
            for key, count in channels:
                found[key] = a[at : at + count]
                at += count
        sensor = a[at] if self.sensor_delay else 0.0
        actuator = a[at + self.sensor_delay] if self.actuator_delay else 0.0
        return Read(offsets, gains, sensor, actuator)


class Simulator(NamedTuple):
    """How recordings are simulated, at free numbers z: of parameters, of instruments, then weights of networks."""

    model: Model
    parameters: Parameters
    contact: ContactModel | None
    integrator: Integrator
    blueprint: Blueprint | None
    substeps: int  # of simulation for each sample
    observe: Mapping[str, Observe]
    instruments: Instruments = Instruments()

    @property
    def physical(self) -> int:
        """How many free numbers are not weights."""
        return self.parameters.size + self.instruments.size

    @property
    def size(self) -> int:
        return self.physical + (0 if self.blueprint is None else self.blueprint.size)

    @property
    def first(self) -> np.ndarray:
        """Free numbers before the fit: the description's values, and weights as they are."""
        weights = [] if self.blueprint is None else [np.asarray(ravel_pytree(self.blueprint.weights)[0])]
        return np.concatenate([np.zeros(self.physical), *weights])

    def used(self, z: Float[Array, " free"]):
        """Model, contact model and blueprint at free numbers."""
        model, contact = self.parameters.applied(self.model, self.contact, z)
        return model, contact, None if self.blueprint is None else self.networks(z[self.physical :])

    def networks(self, weights: Float[Array, " weight"]) -> Blueprint:
        """The blueprint with these weights."""
        assert self.blueprint is not None
        _, unravel = ravel_pytree(self.blueprint.weights)
        return self.blueprint.with_weights(unravel(weights))

    def states(self, z, start: Float[Array, " 2nv"], shot: Shots) -> State:
        """States at the samples of a piece, its start moved by `start`."""
        model, contact, blueprint = self.used(z)
        lag = self.instruments.parts(z[self.parameters.size :]).actuator_delay
        nv, n = model.nv, self.substeps
        first = State(jnp.asarray(retract(model, shot.q, start[:nv])), shot.qd + start[nv:])
        control = _drive(shot, lag / shot.period, n)
        options = {"integrator": self.integrator, "contact": contact, "blueprint": blueprint}
        run = rollout(model, first, control, dt=shot.period / n, **options)
        after = State(run.q[n - 1 :: n], run.qd[n - 1 :: n])
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), State(first.q, first.qd), after)

    def residuals(self, z, start, shot: Shots) -> tuple[Float[Array, " residual"], Float[Array, " 2nv"]]:
        """Weighed differences from what was measured, and where the piece ends beside where the next one starts."""
        model, _, _ = self.used(z)
        read = self.instruments.parts(z[self.parameters.size :])
        states = self.states(z, start, shot)
        seen = _late(model, states, read.sensor_delay / shot.period) if self.instruments.sensor_delay else states
        parts = []
        for key, measured in shot.measured.items():
            off = jax.vmap(lambda q, qd, y, key=key: self.difference(model, key, State(q, qd), y))(
                seen.q, seen.qd, jnp.asarray(measured)
            )
            if key in read.gains:
                simulated = jax.vmap(lambda q, qd, key=key: self._simulated(model, key, State(q, qd)))(seen.q, seen.qd)
                off = off + read.gains[key][None] * simulated
            off = off + read.offsets[key][None] if key in read.offsets else off
            parts.append((off * weights_of_entries(model, key, jnp.asarray(shot.weight[key]))).reshape(-1))
        end = jnp.concatenate([difference(model, shot.next_q, states.q[-1]), states.qd[-1] - shot.next_qd])
        return jnp.concatenate(parts), jnp.asarray(shot.joined) * end

    def difference(self, model: Model, key: str, state: State, measured) -> Float[Array, " entry"]:
        """What an instrument sees of a state, less what was measured; of rotations a vector."""
        if key == "q":
            return jnp.asarray(difference(model, measured, state.q))
        if key.startswith(POSE_PREFIX):
            pose = frame_pose(model, state.q, key.removeprefix(POSE_PREFIX))
            turned = spatial.rotation_of_quaternion(measured[3:]).T @ pose.rotation
            axis = 0.5 * jnp.stack(
                [turned[2, 1] - turned[1, 2], turned[0, 2] - turned[2, 0], turned[1, 0] - turned[0, 1]]
            )
            return jnp.concatenate([pose.position - measured[:3], axis])
        return self._simulated(model, key, state) - measured

    def _simulated(self, model: Model, key: str, state: State) -> Float[Array, " entry"]:
        """What an instrument sees of a state, where that is a vector."""
        if key == "q" and model.nq == model.nv:
            return jnp.asarray(state.q)
        if key == "qd":
            return jnp.asarray(state.qd)
        if key in self.observe:
            return self.observe[key](model, state)
        if key.startswith(POINT_PREFIX):
            return frame_pose(model, state.q, key.removeprefix(POINT_PREFIX)).position
        raise ValueError(f"nothing says what {key!r} observes: give observe={{{key!r}: function(model, state)}}")


def weights_of_entries(model: Model, key: str, weight: Float[Array, "sample entry"]) -> Float[Array, "sample entry"]:
    """Weights of differences in the tangent space, which has fewer entries where there are quaternions."""
    if key == "q" and model.nq != model.nv:
        topology = model.topology
        columns = []
        for i, kind in enumerate(topology.kind):
            a, b = int(topology.q_start[i]), int(topology.v_start[i])
            count = int(topology.v_stop[i]) - b
            if kind == "ball":
                columns += [jnp.min(weight[:, a : a + 4], axis=1)] * 3
            elif kind == "free":
                columns += [weight[:, a + k] for k in range(3)] + [jnp.min(weight[:, a + 3 : a + 7], axis=1)] * 3
            else:
                columns += [weight[:, a + k] for k in range(count)]
        return jnp.stack(columns, axis=1)
    if key.startswith(POSE_PREFIX):
        turning = jnp.min(weight[:, 3:], axis=1, keepdims=True)
        return jnp.concatenate([weight[:, :3], jnp.repeat(turning, 3, axis=1)], axis=1)
    return weight


def _drive(shot: Shots, lag, substeps: int) -> Float[Array, "step nu"]:
    """Controls of all steps as they arrive, `lag` samples late.

    Linear ones are taken in the middle of each step. Held ones that are late are linear between samples too, so that
    the lag has a derivative.
    """
    control, steps = jnp.asarray(shot.control), shot.samples - 1
    if shot.linear:
        at = shot.history + (jnp.arange(steps * substeps).astype(control.dtype) + 0.5) / substeps
        return _between(control, at - lag)
    if shot.history:
        at = jnp.arange(shot.history, shot.history + steps).astype(control.dtype)
        return jnp.repeat(_between(control, at - lag), substeps, axis=0)
    return jnp.repeat(control[:-1], substeps, axis=0)


def _between(control: Float[Array, "drive nu"], at: Float[Array, " step"]) -> Float[Array, "step nu"]:
    """Controls at places between samples; held at the ends."""
    at = jnp.clip(at, 0.0, len(control) - 1.0)
    below = jnp.floor(at).astype(int)
    share = (at - below.astype(at.dtype))[:, None]
    return (1 - share) * control[below] + share * control[jnp.minimum(below + 1, len(control) - 1)]


def _late(model: Model, states: State, lag) -> State:
    """States `lag` samples earlier; linear between samples, along the manifold."""
    last = len(states.q) - 1
    at = jnp.clip(jnp.arange(last + 1).astype(states.q.dtype) - lag, 0.0, float(last))
    below = jnp.minimum(jnp.floor(at).astype(int), last - 1)
    share = at - below.astype(at.dtype)

    def between(share, q, q_next, qd, qd_next):
        step = share * difference(model, q, q_next)
        return jnp.asarray(retract(model, q, step)), (1 - share) * qd + share * qd_next

    q, qd = jax.vmap(between)(share, states.q[below], states.q[below + 1], states.qd[below], states.qd[below + 1])
    return State(q, qd)
