"""Motions of a fitted robot for its next experiment: Fourier series of joint positions or controls, within limits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.dynamics.rnea import rnea
from knuckle.forces import passive_force
from knuckle.model.model import State
from knuckle.native import jit
from knuckle.simulate import rollout
from knuckle.sysid.fit import Fit
from knuckle.sysid.recording import Recording

WAVES = 5
RAMP = 0.15  # of the duration, over which a motion grows from rest, and fades
SHRINK, MOST_SHRINKS = 0.8, 12


class Motion(NamedTuple):
    """A motion and the numbers that it was made from."""

    numbers: np.ndarray
    recording: Recording


class Motions:
    """Makes motions of a fitted robot from Fourier coefficients."""

    def __init__(self, fit: Fit, seconds: float, start, speed: float | None, margin: float, highest: float):
        model = fit.model
        if model.nu == 0:
            raise ValueError(f"{model.name} has no actuators: there is no motion to choose but where it starts")
        self.fit, self.model, self.period = fit, model, fit.shots.period
        self.time = self.period * np.arange(round(seconds / self.period) + 1)
        self.start = np.asarray(model.state(start).q, float)
        self.by_path = _own_actuators(model)
        share = 1 - margin
        self.speed = share * np.minimum(np.asarray(model.speed, float), np.inf if speed is None else speed)
        self.lower, self.upper = _within(np.asarray(model.lower, float), np.asarray(model.upper, float), share)
        if self.by_path:  # what has no limits goes half a turn to each side, or as many metres
            self.lower = np.where(np.isfinite(self.lower), self.lower, self.start - np.pi)
            self.upper = np.where(np.isfinite(self.upper), self.upper, self.start + np.pi)
        actuators = model.actuators
        low, high = np.asarray(actuators.control_lower, float), np.asarray(actuators.control_upper, float)
        if not self.by_path and not np.all(np.isfinite(low) & np.isfinite(high)):
            raise ValueError(f"{model.name}: a control without limits has no largest motion; give it a range")
        self.least, self.most = _within(low, high, share)
        self.waves = np.linspace(1 / (2 * seconds), highest, WAVES)
        self.width = model.nv if self.by_path else model.nu
        self._controls = jit(self._path_controls)
        self._run = jit(self._simulated)

    def random(self, rng: np.random.Generator) -> Motion | None:
        """Some joints far and fast, others hardly: one joint's torque does not hold back all others."""
        numbers = rng.normal(size=(2, WAVES, self.width))
        numbers = self._reaching(numbers) if self.by_path else numbers
        return self.made(numbers * rng.uniform(0.1, 1.0, self.width))

    def varied(self, motion: Motion, step: float, rng: np.random.Generator) -> Motion | None:
        size = np.abs(motion.numbers).mean(axis=(0, 1))
        moved = motion.numbers + step * size * rng.normal(size=motion.numbers.shape)
        return self.made(moved * np.exp(step * rng.normal(size=self.width)))

    def made(self, numbers: np.ndarray) -> Motion | None:
        """The motion of these coefficients, made smaller until it keeps to the limits; None if that does not help."""
        numbers = self._reaching(numbers) if self.by_path else numbers
        for _ in range(MOST_SHRINKS):
            recording = self._along_path(numbers) if self.by_path else self._by_control(numbers)
            if recording is not None:
                return Motion(numbers, recording)
            numbers = SHRINK * numbers
        return None

    def _series(self, numbers: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Values of the series, in units of half a range, from rest to rest."""
        edge = RAMP * self.time[-1]
        ramp = np.clip(np.minimum(t, self.time[-1] - t) / edge, 0.0, 1.0)
        envelope = (ramp**3 * (10 - 15 * ramp + 6 * ramp**2))[:, None]
        angle = 2 * np.pi * t[:, None] * self.waves
        falling = 1 / (1 + self.waves[:, None] * 2)
        return envelope * (np.sin(angle) @ (falling * numbers[0]) + np.cos(angle) @ (falling * numbers[1]))

    def _reaching(self, numbers: np.ndarray) -> np.ndarray:
        """Coefficients of each joint made smaller by as much as its own range and speed ask for."""
        fine = np.linspace(0.0, self.time[-1], 4 * len(self.time))
        moved = self._reach * self._series(numbers, fine)
        speed = np.abs(np.gradient(moved, fine, axis=0)).max(axis=0)
        above, below = np.maximum(self.upper - self.start, 1e-9), np.maximum(self.start - self.lower, 1e-9)
        over = np.maximum(np.max(moved / above, axis=0), np.max(-moved / below, axis=0))
        return numbers / np.maximum(1.01 * np.maximum(over, speed / self.speed), 1.0)

    @property
    def _reach(self) -> np.ndarray:
        return np.minimum((self.upper - self.lower) / 2, np.pi)

    def _along_path(self, numbers: np.ndarray) -> Recording | None:
        path = lambda t: self.start + self._reach * self._series(numbers, t)  # noqa: E731
        h, middle = 1e-4, np.minimum(self.time + self.period / 2, self.time[-1])
        q, qd = path(self.time), (path(self.time + h) - path(self.time - h)) / (2 * h)
        if not (np.all(q >= self.lower) and np.all(q <= self.upper) and np.all(np.abs(qd) <= self.speed)):
            return None
        held, ahead, behind = path(middle), path(middle + h), path(middle - h)
        control = np.asarray(self._controls(held, (ahead - behind) / (2 * h), (ahead - 2 * held + behind) / h**2))
        if not (np.all(control >= self.least) and np.all(control <= self.most)):
            return None
        return self._recording(q, qd, control)

    def _path_controls(self, q, qd, qdd):
        """Controls that give the forces of inverse dynamics, each joint by its own actuator."""
        model, actuators = self.model, self.model.actuators
        dof = np.array(actuators.entry_dof)[np.argsort(actuators.entry_actuator)]
        gear = np.asarray(actuators.gear)[np.argsort(actuators.entry_actuator)]
        bias = np.asarray(actuators.bias)

        def one(args):
            q, qd, qdd = args
            force = (rnea(model, q, qd, qdd) - passive_force(model, q, qd))[dof] / gear
            return (force - bias[:, 0] - bias[:, 1] * gear * q[dof] - bias[:, 2] * gear * qd[dof]) / actuators.gain

        return jax.lax.map(one, (q, qd, qdd))

    def _by_control(self, numbers: np.ndarray) -> Recording | None:
        middle, half = (self.most + self.least) / 2, (self.most - self.least) / 2
        control = np.clip(middle + half * self._series(numbers, self.time), self.least, self.most)
        q, qd = (np.asarray(a) for a in self._run(control))
        if not (np.all(np.isfinite(q)) and np.all(np.abs(qd) <= self.speed)):
            return None
        if self.model.nq == self.model.nv and not (np.all(q >= self.lower) and np.all(q <= self.upper)):
            return None
        return self._recording(q, qd, control)

    def _simulated(self, control):
        fit, n = self.fit, self.fit.simulator.substeps
        first = State(jnp.asarray(self.start), jnp.zeros(self.model.nv))
        options = {"integrator": fit.simulator.integrator, "contact": fit.contact, "blueprint": fit.blueprint}
        run = rollout(self.model, first, jnp.repeat(control[:-1], n, axis=0), dt=self.period / n, **options)
        q, qd = run.q[n - 1 :: n], run.qd[n - 1 :: n]
        return jnp.concatenate([first.q[None], q]), jnp.concatenate([first.qd[None], qd])

    def _recording(self, q: np.ndarray, qd: np.ndarray, control: np.ndarray) -> Recording:
        return Recording.of(self.model, self.time, q=q, qd=qd, control=control, name="next experiment")


def _own_actuators(model) -> bool:
    """Whether each degree of freedom has one actuator and each actuator one degree of freedom, without quaternions."""
    dofs = model.actuators.entry_dof
    alone = model.nu == model.nv == model.nq == len(dofs) == len(set(dofs))
    return alone and bool(np.all(np.asarray(model.actuators.gain) != 0))


def _within(low: np.ndarray, high: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The middle part of ranges; what has no limits keeps none."""
    both = np.isfinite(low) & np.isfinite(high)
    a, b = np.where(both, low, -1.0), np.where(both, high, 1.0)
    middle, half = (a + b) / 2, share * (b - a) / 2
    return np.where(both, middle - half, low), np.where(both, middle + half, high)
