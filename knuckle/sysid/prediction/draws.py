"""Models that data and prior leave possible, and what they do: functions of them, and roll-outs in native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from knuckle import native
from knuckle.contact.resolve import ContactModel
from knuckle.integrate import Integrator
from knuckle.model.joints import retract
from knuckle.model.model import Model, State
from knuckle.simulate import Policy, begin, step
from knuckle.sysid.prediction.intervals import MotionPrediction, Prediction, check_level, prediction
from knuckle.sysid.smoothing import EffortNoise
from knuckle.sysid.smoothing.system import EffortError
from knuckle.taps import Augment, Blueprint

FAR = 1e6  # a coordinate or velocity beyond this has diverged

Simulated = tuple[Model, ContactModel | None, Blueprint | None]


@dataclass(frozen=True)
class Draws:
    """The fitted simulator, and others that are as possible as the posterior says: those that parameters may have."""

    fitted: Simulated
    others: list[Simulated]
    integrator: Integrator
    notes: tuple[str, ...] = ()
    _compiled: dict[Any, Callable] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.others)

    def of(self, function: Callable[[Model], Any], level: float = 0.95) -> Prediction:
        """Any function of the model, with its interval."""
        check_level(level, len(self))
        with jax.enable_x64(True):
            value = np.asarray(function(self.fitted[0]), float)
            samples = np.stack([np.asarray(function(model), float) for model, _, _ in self.others])
        fine = np.all(np.isfinite(samples.reshape(len(samples), -1)), axis=1)
        return prediction(value, samples, fine, level, self.notes)

    def rollout(
        self,
        state: State,
        control=None,
        *,
        dt: float,
        steps: int | None = None,
        level: float = 0.95,
        covariance: np.ndarray | None = None,
        effort_noise: EffortNoise | None = None,
        effort_error: tuple[np.ndarray, np.ndarray] | None = None,
        measurement_noise: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> MotionPrediction:
        """Coordinates and velocities after each step; arguments as of `predict`."""
        check_level(level, len(self))
        model = self.fitted[0]
        q, qd = (np.asarray(x, float) for x in (state.q, state.qd))
        if q.shape != (model.nq,) or qd.shape != (model.nv,):
            raise ValueError(f"predict: expected q {(model.nq,)} and qd {(model.nv,)}, got {q.shape} and {qd.shape}")
        if not (np.isfinite(dt) and dt > 0):
            raise ValueError(f"predict: dt must be positive, got {dt}")
        policy, table, steps = _controls(model, control, steps)
        rng, count = np.random.default_rng(seed), len(self)
        with jax.enable_x64(True):
            off = _drawn_starts(rng, covariance, model.nv, count)
            errors = _drawn_errors(rng, effort_noise, effort_error, model.nv, count, steps, dt)
            run = self._run(policy, steps)
            moved = [np.zeros((1, 2 * model.nv)), off]
            kicks = [np.zeros((1, steps, model.nv)), errors]
            found = run(
                self._varied, np.concatenate(moved), np.concatenate(kicks), q, qd, state.memory, table, np.asarray(dt)
            )  # fmt: skip
        positions, speeds = (np.asarray(part) for part in found)
        positions = _same_signs(model, positions)
        near = np.concatenate([np.abs(positions), np.abs(speeds)], axis=2) < FAR
        fine = np.array([bool(np.all(part)) for part in near])
        if not fine[0]:
            raise ValueError("predict: the roll-out of the fitted model itself diverges: is dt too long for it?")
        noise = measurement_noise or {}
        q_samples = _measured(rng, positions[1:], noise.get("q"))
        qd_samples = _measured(rng, speeds[1:], noise.get("qd"))
        own = prediction(positions[0], q_samples, fine[1:], level, self.notes)
        speed = prediction(speeds[0], qd_samples, fine[1:], level, self.notes)
        return MotionPrediction(dt * np.arange(1, steps + 1), own, speed, own.diverged, own.notes)

    @property
    def _leaves(self) -> tuple[list[np.ndarray], Any, list[int]]:
        """Leaves of all models stacked, the fitted one first, their tree, and which differ."""
        if "leaves" not in self._compiled:
            flat = [jax.tree.flatten(parts) for parts in (self.fitted, *self.others)]
            stacked = [np.stack([np.asarray(x) for x in part]) for part in zip(*(f[0] for f in flat), strict=True)]
            differ = [k for k, part in enumerate(stacked) if np.any(part != part[:1])]
            self._compiled["leaves"] = lambda: (stacked, flat[0][1], differ)
        return self._compiled["leaves"]()

    @property
    def _varied(self) -> list[np.ndarray]:
        stacked, _, differ = self._leaves
        return [stacked[k] for k in differ]

    def _run(self, policy: Policy | None, steps: int) -> Callable:
        """Roll-outs of all models; what they share is compiled in."""
        key = (policy, steps)
        if key not in self._compiled:
            stacked, tree, differ = self._leaves

            def one(varied, moved, errors, q, qd, memory, table, dt):
                leaves = [part[0] for part in stacked]
                for k, value in zip(differ, varied, strict=True):
                    leaves[k] = value
                simulated = jax.tree.unflatten(tree, leaves)
                return _rolled(simulated, self.integrator, moved, errors, q, qd, memory, table, policy, dt)

            self._compiled[key] = native.vmap(one, (0, 0, 0, None, None, None, None, None))
        return self._compiled[key]


def _rolled(simulated, integrator: Integrator, moved, errors, q, qd, memory, table, policy, dt):
    """Coordinates and velocities after each step of one model."""
    model, contact, blueprint = simulated

    def options(error) -> dict[str, Any]:
        kick = Blueprint({"actuator/force": Augment(EffortError(error), "qd")})
        whole = kick if blueprint is None else blueprint | kick
        return {"integrator": integrator, "contact": contact, "blueprint": whole}

    def following(state, x):
        number, row, error = x
        time = number * dt
        u = row if policy is None else jnp.asarray(policy(time, State(state.q, state.qd)))
        after = step(model, state, u, dt=dt, time=time, **options(error))
        return after, (after.q, after.qd)

    first = State(jnp.asarray(retract(model, q, moved[: model.nv])), qd + moved[model.nv :], memory=memory)
    first = begin(model, first, dt=dt, wrench=None, **options(errors[0]))
    numbers = jnp.arange(len(errors)).astype(first.q.dtype)
    return jax.lax.scan(following, first, (numbers, table, errors))[1]


def _controls(model: Model, control: Any, steps: int | None) -> tuple[Policy | None, np.ndarray, int]:
    """The policy if there is one, a row of controls for each step, and the number of steps."""
    if control is None or callable(control):
        if steps is None or steps < 1:
            raise ValueError("predict: steps=... (1 or more) is needed where controls are not an array over time")
        policy: Any = control
        return policy, np.zeros((steps, model.nu)), int(steps)
    table = np.asarray(control, float)
    if table.ndim == 1 and steps is not None:
        table = np.broadcast_to(table, (steps, *table.shape))
    if table.ndim != 2 or table.shape[1] != model.nu or not len(table) or steps not in (None, len(table)):
        wanted = f"({'steps' if steps is None else steps}, {model.nu}), or ({model.nu},) with steps=..."
        raise ValueError(f"predict: controls must have shape {wanted}, got {np.shape(control)}")
    return None, np.ascontiguousarray(table), len(table)


def _drawn_starts(rng: np.random.Generator, covariance, nv: int, count: int) -> np.ndarray:
    """How far initial states are off the given one (count, 2 nv)."""
    if covariance is None:
        return np.zeros((count, 2 * nv))
    return rng.normal(size=(count, 2 * nv)) @ root_of(covariance, 2 * nv, "covariance of the state").T


def root_of(covariance, size: int, what: str) -> np.ndarray:
    """R with R R^T = covariance."""
    covariance = np.asarray(covariance, float)
    if covariance.shape != (size, size) or not np.isfinite(covariance).all():
        raise ValueError(f"predict: the {what} must be finite with shape {(size, size)}, got {covariance.shape}")
    values, axes = np.linalg.eigh((covariance + covariance.T) / 2)
    if values.min(initial=0.0) < -1e-8 * max(values.max(initial=0.0), 1e-300):
        raise ValueError(f"predict: the {what} must be positive semi-definite, got an eigenvalue of {values.min():.3g}")
    return axes * np.sqrt(np.maximum(values, 0.0))


def _drawn_errors(rng, noise: EffortNoise | None, first, nv: int, count: int, steps: int, dt: float) -> np.ndarray:
    """Errors of the effort (count, steps, nv), held for a period each, from a known error at the start on."""
    if noise is None:
        return np.zeros((count, steps, nv))
    deviation = np.broadcast_to(np.asarray(noise.deviation, float), (nv,))
    period = noise.period if noise.period > 0 else dt
    number = (np.arange(steps) * dt / period + 1e-9).astype(int)
    keep = float(np.exp(-period / noise.correlation)) if noise.correlation > 0 else 0.0
    white = rng.normal(size=(count, number[-1] + 1, nv)) * deviation
    if first is not None:
        white[:, 0] = first[0] + rng.normal(size=(count, nv)) @ root_of(first[1], nv, "covariance of the effort").T
    for k in range(1, white.shape[1]):
        white[:, k] = keep * white[:, k - 1] + np.sqrt(1 - keep**2) * white[:, k]
    return white[:, number]


def _measured(rng, samples: np.ndarray, noise) -> np.ndarray:
    """Samples as an instrument with such noise would show them."""
    return samples if noise is None else samples + np.asarray(noise, float) * rng.normal(size=samples.shape)


def _same_signs(model: Model, q: np.ndarray) -> np.ndarray:
    """Quaternions q and -q are one rotation: those of samples with the sign of the fitted model's."""
    topology, q = model.topology, q.copy()
    balls, bodies = topology.q_index("ball"), topology.q_index("free")
    for turn in (*balls, *(columns[3:] for columns in bodies)):
        against = np.sum(q[:, :, turn] * q[:1, :, turn], axis=2, keepdims=True) < 0
        q[:, :, turn] = np.where(against, -q[:, :, turn], q[:, :, turn])
    return q
