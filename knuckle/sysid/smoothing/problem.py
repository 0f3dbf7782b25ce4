"""A recording as a smoothing problem: cut at its gaps, with drives between stamps, starts, and a first guess."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from knuckle import native
from knuckle.model.model import Model
from knuckle.sysid.drives import DRIVES, controls_of, drive_channel
from knuckle.sysid.entries import weights_of_entries
from knuckle.sysid.noise import noise_of
from knuckle.sysid.parameters import Parameters
from knuckle.sysid.recording import Recording
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Drive, make_shots, measured_start
from knuckle.sysid.smoothing.system import MOST_SUBSTEPS, Nominal, RobotSystem, Run, stable_step
from knuckle.sysid.split import filled
from knuckle.sysid.starts import located

Start = tuple[np.ndarray, np.ndarray, np.ndarray]  # coordinates, velocities, standard deviations (2 nv)
SEGMENT = 0.25  # seconds that are followed at once where no joint positions were measured


@dataclass(frozen=True)
class Problem:
    """A recording cut at its gaps, with the robot that it is of."""

    system: RobotSystem
    runs: list[Run]
    own: list[np.ndarray]  # rows of each run that are samples of the recording
    starts: list[Start]
    nominal: list[Nominal]
    channels: dict[str, int]  # entries of each
    period: float
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(len(run.time) for run in self.runs)


def make_problem(model, recording, blueprint, contact, integrator, step, observe, drive, initial) -> Problem:
    """The problem of one recording; arguments as of `smooth`."""
    period, notes = recording.period, []
    whole = filled(recording, period)
    own = np.isin(whole.time, recording.time)
    edges = [0, *(whole.gaps + 1).tolist(), len(whole)]
    parts = list(itertools.pairwise(edges))
    if len(parts) > 1:
        notes.append(f"{len(parts) - 1} gaps: the parts between them are estimated by themselves")
    system = RobotSystem(model, blueprint, contact, integrator, observe)
    probed = recording["q"].values if "q" in recording.channels else np.asarray(model.reference, float)[None]
    longest = stable_step(model, blueprint, integrator, probed) if step is None else float(step)
    substeps = _substeps(whole, parts, longest)
    controls, linear = controls_of(model, whole), _is_linear(recording, drive)
    keys = sorted(key for key in recording.channels if key not in DRIVES)
    start_noise = {key: noise_of(recording.time, recording[key].values, recording[key].valid) for key in keys}
    guess = None if "q" in recording.channels else _located(system, recording, start_noise, substeps)
    runs, nominal, starts = [], [], []
    for a, b in parts:
        valid = {key: _valid(model, whole, key)[a:b] for key in keys}
        measured = {key: whole[key].values[a:b] for key in keys}
        rows = _drive(controls[a:b], substeps, linear)
        runs.append(Run(whole.time[a:b], rows, controls[a:b], measured, valid))
        given = initial is not None and a == 0
        starts.append(_given(model, initial) if given else _start(model, whole, a, b, start_noise, guess))
        nominal.append(_first_guess(system, runs[-1], guess, starts[-1]))
    channels = {key: valid.shape[1] for key, valid in runs[0].valid.items()}
    owns = [own[a:b] for a, b in parts]
    return Problem(system, runs, owns, starts, nominal, channels, period, tuple(notes))


def _substeps(whole: Recording, parts: list[tuple[int, int]], longest: float) -> int:
    if not (np.isfinite(longest) and longest > 0):
        raise ValueError(f"smooth: step must be positive, got {longest}")
    spans = [np.diff(whole.time[a:b]).max() for a, b in parts if b - a > 1]
    substeps = max(1, int(np.ceil(max(spans, default=0.0) / longest * (1 - 1e-9))))
    if substeps > MOST_SUBSTEPS:
        raise ValueError(
            f"smooth: {substeps} steps of {longest:.2g} s would be needed between samples: the friction, springs or "
            "servos of the model are too stiff. Give step=, or a larger friction_speed"
        )
    return substeps


def _is_linear(recording: Recording, drive: Drive | None) -> bool:
    if drive not in (None, "held", "linear"):
        raise ValueError(f"smooth: drive: expected held or linear, got {drive!r}")
    return drive == "linear" if drive else drive_channel(recording) == "tau"


def _drive(controls: np.ndarray, substeps: int, linear: bool) -> np.ndarray:
    """Controls of each step between rows."""
    if not linear:
        return np.repeat(controls[:-1, None], substeps, axis=1)
    share = ((np.arange(substeps) + 0.5) / substeps)[:, None]
    return (1 - share) * controls[:-1, None] + share * controls[1:, None]


def _valid(model: Model, recording: Recording, key: str) -> np.ndarray:
    """Whether entries of the tangent space were measured."""
    return np.asarray(weights_of_entries(model, key, jnp.asarray(recording[key].valid, float))) > 0


def _start(model: Model, whole: Recording, a: int, b: int, noise: Mapping[str, float], guess) -> Start:
    """Where a run begins, and how far off that may be: far more than measurements leave open."""
    unknown = np.concatenate([np.full(model.nv, np.pi), np.full(model.nv, 10.0)])
    if guess is not None:
        k = min(int(np.searchsorted(guess[0], whole.time[a] - 1e-9)), len(guess[0]) - 1)
        return guess[1][k], guess[2][k], unknown
    if b - a < 2:
        return whole["q"].values[a], np.zeros(model.nv), unknown
    q, qd, known = measured_start(model, whole.at(a, b), {"qd": 1.0, **noise})
    return np.asarray(q), np.asarray(qd), np.asarray(known)


def _given(model: Model, initial) -> Start:
    try:
        state, deviation = initial
        q, qd, deviation = (np.asarray(x, float) for x in (state.q, state.qd, deviation))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError("smooth: initial must be a State and standard deviations of 2 nv entries") from error
    shapes = ((model.nq,), (model.nv,), (2 * model.nv,))
    if (q.shape, qd.shape, deviation.shape) != shapes or not (np.isfinite(deviation).all() and (deviation > 0).all()):
        raise ValueError(
            f"smooth: initial must be a State with q {shapes[0]}, qd {shapes[1]} and positive standard deviations "
            f"{shapes[2]}, got {q.shape}, {qd.shape} and {deviation.shape}"
        )
    return q, qd, deviation


def _first_guess(system: RobotSystem, run: Run, guess, first) -> Nominal:
    """Positions as measured, velocities as measured or by differences of the positions."""
    nv, rows = system.model.nv, len(run.time)
    if guess is None:
        q, qd = np.array(run.measured["q"]), np.tile(first[1], (rows, 1))
        if rows > 1:
            before, after = np.r_[0, 0 : rows - 1], np.r_[1:rows, rows - 1]
            qd = system.apart(q[before], q[after]) / (run.time[after] - run.time[before])[:, None]
    else:
        at = np.clip(np.searchsorted(guess[0], run.time - 1e-9), 0, len(guess[0]) - 1)
        q, qd = guess[1][at], guess[2][at]
    if "qd" in run.measured:
        qd = np.where(run.valid["qd"], run.measured["qd"], qd)
    nominal = Nominal(q, qd, np.tile(system.first_memory, (rows, 1)), np.zeros((rows, nv)))
    return system.remembered(nominal, run)


def _located(system: RobotSystem, recording: Recording, noise: Mapping[str, float], substeps: int):
    """Times, coordinates and velocities that explain other channels than joint positions, segment by segment."""
    shots = make_shots(system.model, [recording], length=max(SEGMENT, 4 * recording.period), noise=noise)
    parts = (system.contact, system.integrator, system.blueprint, substeps, system.observe)
    simulator = Simulator(system.model, Parameters(), *parts)
    shots = located(simulator, shots)
    nothing = jnp.zeros(2 * system.model.nv)
    run = native.jit(lambda z, shots: jax.lax.map(lambda shot: simulator.states(z, nothing, shot), shots))
    states = run(np.asarray(simulator.first), shots)
    stamps = shots.period * np.arange(shots.samples)[None] if shots.stamps is None else np.asarray(shots.sample_stamps)
    time = (np.asarray(shots.begin)[:, None] + stamps).reshape(-1)
    q, qd = (np.asarray(part).reshape(len(time), -1) for part in (states.q, states.qd))
    order = np.argsort(time, kind="stable")
    order = order[np.isfinite(np.concatenate([q, qd], axis=1)[order]).all(axis=1)]
    return time[order], q[order], qd[order]
