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
from knuckle.integrate import RK4, ExplicitEuler, Integrator
from knuckle.kinematics import frame_pose
from knuckle.model.joints import difference, retract
from knuckle.model.model import Model, State
from knuckle.simulate import begin, rollout, step
from knuckle.sysid.compared import meaningless
from knuckle.sysid.entries import ACCELERATION, POINT_PREFIX, POSE_PREFIX, weights_of_entries
from knuckle.sysid.parameters import Parameters
from knuckle.sysid.shots import Shots
from knuckle.sysid.timing import drive, drive_at_samples, late
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
        """States at the samples of a piece, its start moved by `start`, with what networks remember."""
        model, n, options = self.used(z)[0], self.substeps, self._options(z)
        first = State(jnp.asarray(retract(model, shot.q, start[: model.nv])), shot.qd + start[model.nv :])
        dt, memory = shot.period / n, options["blueprint"] and begin(model, first, dt=shot.period, **options).memory
        first = State(first.q, first.qd, memory=memory)
        control = drive(shot, self.read(z).actuator_delay, n)
        if shot.stamps is None:
            run = rollout(model, first, control, dt=dt, time=jnp.asarray(shot.begin), **options)
            after = jax.tree.map(lambda part: part[n - 1 :: n], State(run.q, run.qd, memory=run.memory))
        else:
            stamps = jnp.asarray(shot.sample_stamps)

            def following(state: State, x):
                time, span, rows = x
                state = rollout(model, state, rows, dt=span / n, time=shot.begin + time, **options).last
                return state, state

            spans = stamps[:-1], jnp.diff(stamps), control.reshape(shot.samples - 1, n, model.nu)
            _, after = jax.lax.scan(following, first, spans)
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, after)

    def read(self, z) -> Read:
        """Instruments at free numbers."""
        return self.instruments.parts(z[self.parameters.size :])

    def _options(self, z) -> dict:
        _, contact, blueprint = self.used(z)
        return {"integrator": self.integrator, "contact": contact, "blueprint": blueprint, "wrench": None}

    def accelerations(self, z, states: State, shot: Shots) -> Float[Array, "sample nv"]:
        """What the step that begins at each sample does to velocities, over its length; with RK4 the slope there."""
        model, options, dt = self.used(z)[0], self._options(z), shot.period / self.substeps
        if isinstance(self.integrator, RK4):
            options["integrator"] = ExplicitEuler()
        control = drive_at_samples(shot, self.read(z).actuator_delay, self.substeps)
        since = jnp.asarray(shot.period * np.arange(shot.samples) if shot.stamps is None else shot.sample_stamps)

        def one(x):
            state, u, time = x
            return (step(model, state, u, dt=dt, time=time, **options).qd - state.qd) / dt

        return jax.lax.map(one, (states, control, shot.begin + since))

    def residuals(self, z, start, shot: Shots) -> tuple[Float[Array, " residual"], Float[Array, " 2nv"]]:
        """Weighed differences from what was measured, and where the piece ends beside where the next one starts."""
        model, read = self.used(z)[0], self.read(z)
        states = seen = self.states(z, start, shot)
        qdd = self.accelerations(z, states, shot) if ACCELERATION in shot.measured else None
        if self.instruments.sensor_delay:
            seen, qdd = late(model, states, qdd, shot, read.sensor_delay)
        parts = []
        for key, measured in shot.measured.items():
            weight = weights_of_entries(model, key, jnp.asarray(shot.weight[key]))
            parts.append((self._off(model, key, seen, qdd, jnp.asarray(measured), read) * weight).reshape(-1))
        last = -1 if shot.last is None else shot.last
        end = jnp.concatenate([difference(model, shot.next_q, states.q[last]), states.qd[last] - shot.next_qd])
        return jnp.concatenate(parts), jnp.asarray(shot.joined) * end

    def _off(self, model: Model, key: str, seen: State, qdd, measured, read: Read) -> Float[Array, "sample entry"]:
        """What a channel shows of states at its samples through its instrument, less what was measured."""

        def simulated():
            return qdd if key == ACCELERATION else jax.vmap(lambda *s: self._simulated(model, key, State(*s)))(*at)

        at = (seen.q, seen.qd)
        if key == ACCELERATION:
            off = qdd - measured
        else:
            off = jax.vmap(lambda y, *s: self.difference(model, key, State(*s), y))(measured, *at)
        off = off + read.gains[key][None] * simulated() if key in read.gains else off
        return off + read.offsets[key][None] if key in read.offsets else off

    def difference(self, model: Model, key: str, state: State, measured) -> Float[Array, " entry"]:
        """What an instrument sees of a state, less what was measured; of rotations a vector."""
        if key == "q":
            return jnp.asarray(difference(model, measured, state.q))
        if key.startswith(POSE_PREFIX):
            pose = frame_pose(model, state.q, key.removeprefix(POSE_PREFIX))
            turned = spatial.rotation_of_quaternion(measured[3:]).T @ pose.rotation
            turn = spatial.quaternion_log(spatial.quaternion_of_rotation(turned))
            return jnp.concatenate([pose.position - measured[:3], turn])
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
        raise ValueError(meaningless(key))
