"""Torque errors of any simulator: torques that a recorded motion requires, less measured ones, below a cut-off.

The error is M (qdd - a), a the acceleration that the simulator, networks included, has under the measured efforts. It
is computed from wide-band signals and then passes the filter, as in the regression on torques.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from knuckle.dynamics import crba
from knuckle.integrate import ExplicitEuler
from knuckle.model.model import Actuators, Model, State
from knuckle.native import jit
from knuckle.simulate import begin, step
from knuckle.sysid.entries import names_of
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.design import counted_samples
from knuckle.sysid.regression.filters import WIDE, Filter, choose_cutoff
from knuckle.sysid.regression.result import TorqueError, unit_of
from knuckle.sysid.regression.signals import Signals, prepare, smoothed_within
from knuckle.sysid.regression.speeds import moving_joints, slow_speeds
from knuckle.taps import Blueprint

LEAST_SAMPLES = 20  # that count, of a joint
MOST_SAMPLES = 100_000  # of all recordings together
ROWS = 2048  # samples of one call are a multiple of it: few programs serve recordings of any length
SHOWN = 10.0  # seconds of a curve


class TorqueCurve(NamedTuple):
    """Measured and predicted torque of a joint over the seconds with the largest error, below the cut-off."""

    joint: str
    unit: str
    recording: str
    time: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    is_held_out: bool


@dataclass(frozen=True)
class TorqueCheck:
    """Torque errors of a fitted simulator by joint, with the worst stretch of each."""

    errors: tuple[TorqueError, ...]
    curves: tuple[TorqueCurve, ...]
    cutoff: float  # [Hz]
    delay: float  # how late efforts are taken to be [s]
    is_commanded: bool  # efforts are commands of motors, not measured torques


class Simulated(NamedTuple):
    """A simulator: its model, networks and time step [s]."""

    model: Model
    blueprint: Blueprint | None
    dt: float


class Stretch(NamedTuple):
    """Signals of five times the band of the filter, and which samples count."""

    name: str
    time: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    effort: np.ndarray
    counts: np.ndarray  # (time, dof)
    low_pass: Filter


def check_torques(
    described: Simulated,
    fitted: Simulated,
    train: Sequence[Recording],
    test: Sequence[Recording],
    *,
    cutoff: float | None = None,
    delay: float = 0.0,
) -> TorqueCheck | None:
    """Torque errors before and after a fit; None if efforts are not known or nothing moves.

    Args:
        cutoff: of the filter [Hz]; by default where velocities sink into noise.
        delay: how late recorded efforts are [s].
    """
    if not has_efforts(described.model, [*train, *test]):
        return None
    commanded = all("tau" not in r.channels for r in train)
    with jax.enable_x64(True):
        model = described.model
        seen = prepare(model, train)
        slow = slow_speeds(model, seen)
        moving = moving_joints(seen, slow)
        if not moving.any():
            return None
        band = choose_cutoff(seen, moving) if cutoff is None else float(cutoff)
        signals = {False: seen, True: prepare(model, test) if test else []}
        stretches = {held: _stretches(parts, band, delay, slow) for held, parts in signals.items()}
        judged = bool(stretches[True])
        before = [residual_torques(described, s, commanded) for s in stretches[judged]]
        after = {held: [residual_torques(fitted, s, commanded) for s in parts] for held, parts in stretches.items()}
    errors, curves = [], []
    for dof, name in enumerate(names_of(model, "tau")):
        efforts = _counted([s.effort for s in stretches[judged]], stretches[judged], dof)
        if len(efforts) < LEAST_SAMPLES or not np.ptp(efforts) > 0:
            continue
        as_described = _rms(_counted(before, stretches[judged], dof))
        training, held_out = (_rms(_counted(after[held], stretches[held], dof)) for held in (False, True))
        unit = unit_of(model, dof)
        errors.append(TorqueError(name, unit, as_described, training, held_out, float(efforts.std())))
        curves.append(_curve(name, unit_of(model, dof), dof, stretches[judged], after[judged], judged))
    return TorqueCheck(tuple(errors), tuple(curves), band, delay, commanded) if errors else None


def has_efforts(model: Model, recordings: Sequence[Recording]) -> bool:
    """Whether all recordings have positions, and torques or commands of motors (not of servos)."""
    if not recordings or any(model.equalities.active):
        return False
    servos = bool(np.asarray(model.actuators.bias)[:, 1:].any()) if model.nu else False
    return all(
        "q" in r.channels and r["q"].valid.any(axis=0).all() and _is_driven(r, model.nu, servos) for r in recordings
    )


def _is_driven(recording: Recording, actuators: int, servos: bool) -> bool:
    """Whether the efforts of a recording are known."""
    commands = "control" in recording.channels and actuators > 0 and not servos
    return "tau" in recording.channels or commands


def _stretches(signals: Sequence[Signals], cutoff: float, delay: float, slow: np.ndarray) -> list[Stretch]:
    """Wide-band stretches with samples that count, up to `MOST_SAMPLES` in all."""
    found, total = [], 0
    for whole in signals:
        part, wide, qdd = smoothed_within(whole, WIDE * cutoff)
        skip = max(int(part.rate / (2 * WIDE * cutoff)), 1)
        effort = _later(part.time, Filter(WIDE * cutoff, part.rate)(part.effort), delay)
        counts, stationary = counted_samples(part, wide, cutoff, slow, skip)
        at = slice(None, None, skip)
        low_pass = Filter(cutoff, part.rate / skip)
        signal = (wide.time[at], wide.q[at], wide.qd[at], qdd[at], effort[at])
        found.append(Stretch(part.name, *signal, counts & ~stationary, low_pass))
        total += len(found[-1].time)
        if total > MOST_SAMPLES:
            break
    return found


def _later(time: np.ndarray, values: np.ndarray, delay: float) -> np.ndarray:
    """What was recorded `delay` seconds later."""
    return values if delay == 0 else np.stack([np.interp(time + delay, time, x) for x in values.T], axis=1)


def residual_torques(simulated: Simulated, stretch: Stretch, commanded: bool) -> np.ndarray:
    """Required less measured torque (time, dof), through the filter."""
    model = _with_direct_efforts(simulated.model, commanded)
    count = len(stretch.time)
    rows = -(-count // ROWS) * ROWS

    def padded(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.repeat(values[-1:], rows - count, axis=0)])

    parts = [padded(x) for x in (stretch.time, stretch.q, stretch.qd, stretch.qdd, stretch.effort)]
    with jax.enable_x64(True):
        off = np.asarray(_program()(model, simulated.blueprint, float(simulated.dt), *parts))[:count]
    return stretch.low_pass(off)


@functools.cache
def _program():
    zeros = lambda model, *_: (model.inertia, model.position, model.rotation, model.axis)  # noqa: E731
    return jit(_required_less_given, sparse=zeros)


def _required_less_given(model: Model, blueprint, dt, time, q, qd, qdd, effort):
    """M (qdd - a) at all samples in their order: networks may remember."""
    options = {"dt": dt, "integrator": ExplicitEuler(), "contact": None, "wrench": None}
    first = begin(model, State(q[0], qd[0]), blueprint, **options).memory

    def following(memory, x):
        time, q, qd, qdd, effort = x
        state = State(q, qd, memory=memory)
        after = step(model, state, effort, blueprint=blueprint, time=time, **options)
        return after.memory, crba(model, q) @ (qdd - (after.qd - qd) / dt)

    return jax.lax.scan(following, first, (time, q, qd, qdd, effort))[1]


def _with_direct_efforts(model: Model, commanded: bool) -> Model:
    """The model with one motor at each degree of freedom whose control is the effort; constants of motors stay.

    Efforts that come from commands of motors have these constants already.
    """
    acts, constant = model.actuators, np.zeros(model.nv)
    for gear, motor, dof in zip(np.asarray(acts.gear), acts.entry_actuator, acts.entry_dof, strict=True):
        bias = np.asarray(acts.bias)[motor]
        if not commanded and not bias[1:].any():
            constant[dof] += gear * bias[0]
    ones, all_ = np.ones(model.nv), tuple(range(model.nv))
    bias = np.stack([constant, 0 * ones, 0 * ones], axis=1)
    low, high = -np.inf * ones, np.inf * ones
    direct = Actuators(ones, ones, bias, low, high, low, high, all_, all_, names_of(model, "tau"))
    return eqx.tree_at(lambda m: (m.actuators, m.effort), model, (direct, np.inf * ones))


def _counted(values: Sequence[np.ndarray], stretches: Sequence[Stretch], dof: int) -> np.ndarray:
    """Samples of one degree of freedom that count, of all stretches."""
    parts = [v[s.counts[:, dof], dof] for v, s in zip(values, stretches, strict=True)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else float("nan")


def _curve(
    name: str, unit: str, dof: int, stretches: Sequence[Stretch], residuals: Sequence[np.ndarray], held_out: bool
) -> TorqueCurve:
    """The seconds in which a joint's torque is predicted worst."""
    sums, parts = [], []
    for s, off in zip(stretches, residuals, strict=True):
        sum_, part = worst_window(s.time, np.where(s.counts[:, dof], off[:, dof], 0.0))
        sums.append(sum_)
        parts.append(part)
    k = int(np.argmax(sums))
    stretch, part = stretches[k], parts[k]
    measured = stretch.low_pass(stretch.effort[:, dof])[part]
    return TorqueCurve(
        name, unit, stretch.name, stretch.time[part], measured, measured + residuals[k][part, dof], held_out
    )


def worst_window(time: np.ndarray, off: np.ndarray, seconds: float = SHOWN) -> tuple[float, slice]:
    """The sum of squares in the window of so many seconds with the largest one, and where it is."""
    length = min(max(round(seconds / (time[1] - time[0])), 2), len(time))
    sums = np.convolve(np.square(np.where(np.isfinite(off), off, 0.0)), np.ones(length), mode="valid")
    at = int(np.argmax(sums))
    return float(sums[at]), slice(at, at + length)
