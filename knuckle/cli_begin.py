"""What `knuckle simulate` begins with: a start and controls, given as numbers or by a log that is done again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.cli_common import err, out, plain
from knuckle.cli_logs import Reading, recordings_of

if TYPE_CHECKING:
    from knuckle.hybrid import Calibration
    from knuckle.sysid import Recording


def read_numbers(text: str, option: str) -> np.ndarray:
    try:
        values = np.array([float(part) for part in text.replace(",", " ").split()])
    except ValueError:
        raise ValueError(f"{option} takes numbers with commas between, got {text!r}") from None
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{option} takes finite numbers, got {text!r}")
    return values


def _are_numbers(text: str) -> bool:
    try:
        return all(math.isfinite(float(part)) for part in text.replace(",", " ").split())
    except ValueError:
        return False


def start(
    model: kn.Model, q: str | None, qd: str | None, keyframe: str | None, log: Recording | None = None
) -> kn.State:
    if q is not None and keyframe is not None:
        raise ValueError("--q and --keyframe both say where to start: give one of them")
    first = next(iter(model.keyframes), None)
    at = read_numbers(q, "--q") if q is not None else keyframe or first
    velocity = None if qd is None else read_numbers(qd, "--qd")
    if log is not None and "q" in log.channels and q is None and keyframe is None:
        at, slope = _start_of(model, log)
        velocity = slope if velocity is None else velocity
    for option, values, size in (("--q", at, model.nq), ("--qd", velocity, model.nv)):
        if isinstance(values, np.ndarray) and len(values) != size:
            raise ValueError(
                f"{option} takes {size} numbers for joints {', '.join(model.joint_names)}, got {len(values)}"
            )
    return model.state(at, velocity)


def controls(model: kn.Model, state: kn.State, text: str | None) -> np.ndarray:
    """One control that is held: by default that of the state, a keyframe's."""
    if text is None and state.control is not None:
        return np.asarray(state.control)
    if text is None or text == "hold":
        return np.asarray(model.holding_control(np.asarray(state.q)))
    values = read_numbers(text, "--control")
    if model.nu == 0:
        raise ValueError(f"--control {text}: {model.name} has no actuators")
    if len(values) not in (1, model.nu):
        names = ", ".join(model.actuators.names) or "none"
        raise ValueError(
            f"--control takes hold, 1 or {model.nu} numbers for actuators {names}; got {len(values)} numbers"
        )
    return np.broadcast_to(values, (model.nu,)).copy() if len(values) == 1 else values


def logged(model: kn.Model, control: str | None, placed: bool, reading: Reading, calibration: Calibration):
    """The recording that a control names, if it is neither numbers nor a word, from where on it is known.

    It is what the robot did, not what instruments said of it, where their offsets and gains are known.

    placed: where to start is given by other options, so that only controls must be known there.
    """
    from knuckle.sysid.readers import SUFFIXES

    if control is None:
        return None
    path = Path(control)
    if control == "hold" or _are_numbers(control) or not (path.exists() or path.suffix.lower() in SUFFIXES):
        return None
    found = recordings_of(model, [control], reading.knowing(calibration))
    if len(found.report):
        out.print(found.report.table())
    if len(found) > 1:
        _note(f"{control} holds {len(found)} recordings; simulated is the first")
    return corrected(model, _known_part(model, found[0], control, placed), calibration)


def corrected(model: kn.Model, log: Recording, calibration: Calibration) -> Recording:
    """A recording without what instruments added to it: offsets and gains of channels, and late stamps of efforts."""
    from knuckle.sysid import Channel, shift

    offsets, gains = dict(calibration.offsets), dict(calibration.gains)
    for key in (key for key in log.channels if key in offsets or key in gains):
        channel = log[key]
        off, gain = np.array(offsets.get(key, 0.0)), np.array(gains.get(key, 1.0))
        if key == "q" and model.nq != model.nv:
            values = np.asarray(jax.vmap(lambda q, off=off: jnp.asarray(kn.retract(model, q, -off)))(channel.values))
        else:
            values = (channel.values - off) / gain
        log = log.replace(**{key: Channel(values, channel.valid, channel.names)})
    if calibration.effort_delay and "tau" in log.channels:
        log = shift(log, "tau", -calibration.effort_delay)
    for line in calibration.in_words():
        _note(f"as the model's file says: {line}")
    return log


def _note(text: str) -> None:
    err.print(f"[yellow]note:[/] {plain(text)}")


def _known_part(model: kn.Model, log: Recording, place: str, placed: bool) -> Recording:
    """From the first sample at which what drives the robot, and where it is, was measured."""
    from knuckle.sysid.drives import drive_channel

    key, known = drive_channel(log), np.ones(len(log), bool)
    if model.nu and (key is None or not log[key].valid.any()):
        raise ValueError(f"{place}: there are neither controls nor torques in it; --control also takes numbers or hold")
    if key is not None:
        known &= log[key].valid[:, log[key].valid.any(axis=0)].all(axis=1)
    if "q" in log.channels and not placed:
        known &= log["q"].valid.all(axis=1)
    if not known[:-1].any():
        raise ValueError(f"{place}: at no time are all positions and controls known; --q and --qd say where to start")
    first = int(np.argmax(known))
    if first:
        _note(f"{place}: begun at {log.time[first]:.4g} s, before which positions or controls were not measured")
    log = log.at(first, len(log))
    lost = 0 if key is None else np.count_nonzero(~log[key].valid[:, log[key].valid.any(axis=0)])
    if lost:
        done = "commands are held" if key == "control" else "torques are interpolated"
        _note(f"{place}: {lost} values of {key} are missing; {done}")
    return log


def _start_of(model: kn.Model, log: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Where a recording starts, its velocities measured or by the slope of its positions."""
    from knuckle.sysid.noise import noise_of
    from knuckle.sysid.shots import measured_start

    noise = {key: noise_of(log.time, channel.values, channel.valid) for key, channel in log.channels.items()}
    q, qd, _ = measured_start(model, log, noise)
    return np.asarray(q), np.asarray(qd)


def driven(model: kn.Model, log: Recording, dt: float, steps: int, late: float = 0.0) -> np.ndarray:
    """Controls in the middle of each step: commands are held from sample to sample, measured torques linear.

    late: seconds after which controls act, as seen by sensors.
    """
    from knuckle.sysid.drives import controls_of, drive_channel

    values, since, at = controls_of(model, log), log.time - log.time[0], dt * (np.arange(steps) + 0.5) - late
    channel = drive_channel(log)
    if channel == "tau":
        return np.array([np.interp(at, since, column) for column in values.T]).reshape(model.nu, steps).T
    if channel == "control":
        last = np.maximum.accumulate(np.where(log[channel].valid, np.arange(len(log))[:, None], 0))
        values = np.take_along_axis(values, last, axis=0)
    return values[np.clip(np.searchsorted(since, at, side="right") - 1, 0, len(values) - 1)]
