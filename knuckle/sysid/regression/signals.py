"""Recordings as even signals: positions, velocities, accelerations and efforts, with what was not measured marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.interpolate import CubicSpline

from knuckle.model.joints import difference
from knuckle.model.model import Model
from knuckle.native import jit
from knuckle.sysid.entries import names_of, weights_of_entries
from knuckle.sysid.recording import Channel, Recording
from knuckle.sysid.regression.filters import Filter, noisier_than_positions
from knuckle.sysid.regression.held import coupled, unlogged, with_held_joints
from knuckle.sysid.split import resample, stretches

LEAST_SAMPLES = 20  # of a stretch: shorter ones are left out
OUTLIER = 8.0  # robust standard deviations of the noise
NEIGHBOURS = 9
ENDS = 5  # samples


@dataclass(frozen=True)
class Signals:
    """A stretch without gaps at an even rate. SI units; one entry per degree of freedom except for `q` (nq)."""

    name: str
    time: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    effort: np.ndarray
    known: np.ndarray  # (time,): whether the motion of all joints was measured
    measured: np.ndarray  # (time, dof): whether the effort was
    velocity_measured: np.ndarray  # (dof,)

    @property
    def rate(self) -> float:
        return (len(self.time) - 1) / (self.time[-1] - self.time[0])

    def __len__(self) -> int:
        return len(self.time)


def prepare(
    model: Model,
    recordings: Sequence[Recording],
    gains: Mapping[str, float] | None = None,
    as_measured: bool = False,
) -> list[Signals]:
    """Stretches between gaps at the median rate of each recording, without outliers.

    Args:
        gains: N m/A or N/A of joints whose channel "tau" holds currents.
        as_measured: whether measured velocities are used though the slope of the positions is less noisy.
    """
    factor, tied = _gains(model, gains), coupled(model)
    found = []
    for recording in recordings:
        whole, held = with_held_joints(model, recording), unlogged(model, recording)
        _check_channels(model, whole)
        for stretch in stretches(whole):
            if len(stretch) >= LEAST_SAMPLES:
                found.append(_of_stretch(model, stretch, factor, ~(tied | held), as_measured))
    if not found:
        shortest = f"at least {LEAST_SAMPLES} samples without a gap are needed"
        raise ValueError(f"regress: no recording is long enough: {shortest}")
    return found


def _check_channels(model: Model, recording: Recording) -> None:
    if "q" not in recording.channels:
        raise ValueError(f"regress: recording {recording.name!r} has no positions (channel 'q')")
    if "tau" not in recording.channels and "control" not in recording.channels:
        raise ValueError(
            f"regress: recording {recording.name!r} has neither measured joint torques (channel 'tau') nor controls of "
            "motors (channel 'control'): a regression on torques needs one of them"
        )
    channel = recording["q"]
    never = [name for k, name in enumerate(channel.names) if not channel.valid[:, k].any()]
    if never:
        raise ValueError(
            f"regress: recording {recording.name!r}: positions of {', '.join(never)} were never measured; the forces "
            "of all joints depend on them"
        )


def _gains(model: Model, gains: Mapping[str, float] | None) -> np.ndarray:
    factor = np.ones(model.nv)
    names = names_of(model, "tau")
    for name, gain in (gains or {}).items():
        if name not in names:
            raise ValueError(f"regress: gains: no joint {name!r}; there are {', '.join(names)}")
        if not np.isfinite(gain) or gain == 0:
            raise ValueError(f"regress: gains: {name} must have a finite gain other than 0, got {gain}")
        factor[names.index(name)] = gain
    return factor


def _of_stretch(model: Model, stretch: Recording, factor: np.ndarray, counts: np.ndarray, as_measured: bool) -> Signals:
    effort, known = efforts(model, stretch)
    known = known & counts
    plain = stretch.replace(tau=Channel(effort * factor, known, names_of(model, "tau")), control=None)
    clean = without_outliers(plain)
    even = _with_cubics(clean, resample(clean, rate=1 / clean.period))
    q, position = even["q"].values, even["q"].valid
    valid = np.asarray(weights_of_entries(model, "q", jnp.asarray(position.astype(float)))) > 0
    derived = _velocity(model, even.time, q)
    qd, from_q = derived, np.ones(derived.shape, bool)
    if "qd" in even.channels:
        seen = even["qd"].valid
        if not as_measured:
            seen = seen & ~noisier_than_positions(q, even["qd"].values, 1 / clean.period)
        qd, from_q = np.where(seen, even["qd"].values, derived), ~seen
    tau, known = even["tau"], np.all(valid, axis=1)
    return Signals(even.name, even.time, q, qd, tau.values, known, tau.valid, from_q.mean(axis=0) < 0.5)


def _with_cubics(measured: Recording, even: Recording) -> Recording:
    """Values at even times by cubic splines through what was measured, for each entry by itself.

    Straight lines between samples lose (2 pi f)^2 / (12 rate^2) of a motion of frequency f, and bend at each sample.
    """
    channels = {}
    for key, channel in even.channels.items():
        if key == "q" and _has_quaternion(even):
            continue
        values = channel.values.copy()
        for k, (x, valid) in enumerate(zip(measured[key].values.T, measured[key].valid.T, strict=True)):
            if valid.sum() >= LEAST_SAMPLES:
                spline = CubicSpline(measured.time[valid], x[valid])
                values[:, k] = np.where(channel.valid[:, k], spline(even.time), values[:, k])
        channels[key] = replace(channel, values=values)
    return even.replace(**channels)


def slope(time: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Derivative over time of the cubic spline through samples.

    It loses (2 pi f)^4 / (180 rate^4) of a motion of frequency f; central differences lose (2 pi f)^2 / (6 rate^2),
    which would be added to every inertia.
    """
    plain = np.gradient(x, time, axis=0)
    if len(time) < LEAST_SAMPLES:
        return plain
    found = np.asarray(CubicSpline(time, x)(time, 1))
    found[:ENDS], found[-ENDS:] = plain[:ENDS], plain[-ENDS:]  # there splines magnify noise most
    return found


def _velocity(model: Model, time: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Velocity as the slope of the positions; for rotations by central differences."""
    if model.nq == model.nv:
        return slope(time, q)
    with jax.enable_x64(True):
        step = jit(lambda a, b: jax.lax.map(lambda x: difference(model, *x), (a, b)))
        after = np.asarray(step(q[np.r_[0, 0 : len(q) - 2, len(q) - 2]], q[np.r_[1, 2 : len(q), len(q) - 1]]))
    span = np.r_[time[1] - time[0], time[2:] - time[:-2], time[-1] - time[-2]]
    return after / span[:, None]


def efforts(model: Model, recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Joint efforts and whether they are known: measured torques, or controls of motors through gain and gear.

    The effort of a joint that no actuator drives is 0 if the model has actuators elsewhere; joints with several degrees
    of freedom (a floating base) need measured forces.
    """
    shape = (len(recording), model.nv)
    driven = np.isin(np.arange(model.nv), model.actuators.entry_dof)
    single = np.array([k in ("revolute", "prismatic") for k in model.topology.kind])[model.topology.dof_link]
    passive = ~driven & single & bool(model.nu)
    effort, known = np.zeros(shape), np.broadcast_to(passive, shape).copy()
    if "tau" in recording.channels:
        values, valid = recording["tau"].values, recording["tau"].valid
        ever = valid.any(axis=0)
        return np.where(ever, values, effort), np.where(ever, valid, known)
    acts, control = model.actuators, recording["control"]
    servos = np.asarray(acts.bias)[:, 1:].any(axis=1)
    if servos.any():
        names = ", ".join(acts.names[k] for k in np.flatnonzero(servos))
        raise ValueError(
            f"regress: recording {recording.name!r} has controls but no torques, and {names} are servos: their torques "
            "are not known; record them in the channel 'tau'"
        )
    bounded = np.clip(control.values, acts.control_lower, acts.control_upper)
    force = np.clip(np.asarray(acts.gain) * bounded + np.asarray(acts.bias)[:, 0], acts.force_lower, acts.force_upper)
    for gear, actuator, dof in zip(np.asarray(acts.gear), acts.entry_actuator, acts.entry_dof, strict=True):
        first = not known[:, dof].any()
        effort[:, dof] += gear * force[:, actuator]
        known[:, dof] = control.valid[:, actuator] & (first | known[:, dof])
    return effort, known


def without_outliers(recording: Recording) -> Recording:
    """The recording with isolated outliers of positions, velocities and efforts marked as not measured."""
    channels = {}
    for key in ("q", "qd", "tau"):
        if key in recording.channels and not (key == "q" and _has_quaternion(recording)):
            channel = recording[key]
            bad = np.stack([_outliers(x) for x in channel.values.T], axis=1) & channel.valid
            if bad.any():
                channels[key] = replace(channel, valid=channel.valid & ~bad, values=channel.values.copy())
    return recording.replace(**channels) if channels else recording


def _has_quaternion(recording: Recording) -> bool:
    return any(name.rpartition(".")[2] in ("qw", "w") for name in recording["q"].names)


def _outliers(x: np.ndarray) -> np.ndarray:
    """Samples far outside the range of their neighbours, of which two on either side of it may be outliers too.

    Far is both twice that range, so that jumps of dry friction stay, and eight robust standard deviations of the noise.
    """
    if len(x) < NEIGHBOURS:
        return np.zeros(len(x), bool)
    around = np.sort(sliding_window_view(np.pad(x, NEIGHBOURS // 2, mode="edge"), NEIGHBOURS), axis=1)
    low, high = around[:, 2], around[:, -3]
    noise = 1.4826 * np.median(np.abs(x - around[:, NEIGHBOURS // 2]))
    margin = 2 * (high - low) + OUTLIER * noise + 1e-3 * np.std(x)
    return (x > high + margin) | (x < low - margin)


def smoothed(signals: Signals, cutoff: float) -> tuple[Signals, np.ndarray]:
    """Signals with positions and velocities below `cutoff` [Hz], and the accelerations."""
    pass_low = Filter(cutoff, signals.rate)
    qd = pass_low(signals.qd)
    plain = signals.q.shape[1] == qd.shape[1]
    q = pass_low(signals.q) if plain else signals.q
    return replace(signals, q=q, qd=qd), slope(signals.time, qd)


def smoothed_within(signals: Signals, cutoff: float) -> tuple[Signals, Signals, np.ndarray]:
    """Signals without their ends, the same below `cutoff` [Hz], and the accelerations.

    At an end slopes magnify noise and the filter has its transient, which a slower filter would spread.
    """
    wide, qdd = smoothed(signals, cutoff)
    ends = min(max(Filter(cutoff, signals.rate).edge, ENDS), len(qdd) // 10)
    rows = slice(ends, len(qdd) - ends)
    return _at(signals, rows), _at(wide, rows), qdd[rows]


def _at(signals: Signals, rows: slice) -> Signals:
    """Some rows of signals."""
    parts = {key: getattr(signals, key)[rows] for key in ("time", "q", "qd", "effort", "known", "measured")}
    return replace(signals, **parts)
