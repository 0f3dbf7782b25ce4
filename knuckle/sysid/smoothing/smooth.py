"""`smooth`: states of a robot from noisy efforts that drive it and noisy measurements of its motion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from knuckle.contact.resolve import ContactModel
from knuckle.integrate import RK4, Integrator, SemiImplicitEuler
from knuckle.model.model import Model, State
from knuckle.sysid.compared import check_compared
from knuckle.sysid.drives import DRIVES
from knuckle.sysid.noise import noise_of
from knuckle.sysid.recording import Recording
from knuckle.sysid.shooting import Observe
from knuckle.sysid.shots import Drive
from knuckle.sysid.smoothing.iterate import (
    LEAST_ITERATIONS,
    RESTLESS,
    STILL,
    Iteration,
    blocks_for_noise,
    iterate,
    linearise,
)
from knuckle.sysid.smoothing.likelihood import Free, Noise, estimate_noise
from knuckle.sysid.smoothing.linear import Estimates, smooth_linear
from knuckle.sysid.smoothing.problem import Problem, make_problem
from knuckle.sysid.smoothing.result import EffortNoise, Smoothed, Track
from knuckle.sysid.smoothing.system import Nominal
from knuckle.taps import Blueprint

ROUNDS = 2  # of noise estimation, each about the trajectory of the one before
FIRST_SHARE = 0.05  # of the effort's root mean square: where the search for its noise begins
FIRST_CORRELATION = 5.0  # periods
LEAST_EFFORT = 1e-6  # noise of an effort over the largest: none at all makes covariances singular
MOST_ITERATIONS = 40
IMPROBABLE = 1.5  # root mean square of innovations over their standard deviations
LEAST_INNOVATIONS = 50
UNSURE = 4.0  # standard deviations of a first velocity that may be 0
LOOSE = 10.0  # noise of the effort of another start, over that of the first


def smooth(
    model: Model,
    recording: Recording,
    *,
    noise: Mapping[str, float | Sequence[float] | np.ndarray] | None = None,
    effort_noise: float | Sequence[float] | np.ndarray | EffortNoise | None = None,
    correlation: float | None = None,
    blueprint: Blueprint | None = None,
    contact: ContactModel | None = None,
    integrator: Integrator | None = None,
    step: float | None = None,
    observe: Mapping[str, Observe] | None = None,
    drive: Drive | None = None,
    initial: tuple[State, Sequence[float] | np.ndarray] | None = None,
) -> Smoothed:
    """States at the stamps of a recording with covariances, by an iterated extended Kalman smoother.

    Efforts that drive the robot (measured torques, or controls) are noisy inputs: their errors are forces at the
    joints, held from stamp to stamp, which enter the motion through the inverse mass matrix. Measured channels are
    noisy outputs. The smoother is Gauss-Newton on the whole trajectory (Bell 1994), each step of which is a square-root
    Rauch-Tung-Striebel smoother. Gaps of the recording split it; what is not measured does not count.

    Args:
        noise: standard deviation of channels, a number or one per entry. Those not given are estimated.
        effort_noise: standard deviation [N m or N], a number or one per degree of freedom; by default estimated.
        correlation: time over which errors of the effort correlate [s]; 0: from stamp to stamp they are independent.
            By default estimated. All estimates are by maximum likelihood of the innovations.
        step: longest time step [s]; by default one that integrates friction, springs and servos stably.
        observe: for channels of one's own, function(model, state) that gives what is measured.
        drive: what efforts do between samples; by default commands are held, and measured torques change linearly.
        initial: a state at the first stamp and its standard deviations (2 nv) before any measurement; by default one
            near the first measurements that tells next to nothing.
    """
    _check(model, recording)
    with jax.enable_x64(True):
        chosen = integrator or (RK4() if contact is None else SemiImplicitEuler())
        check_compared(model, [recording], observe or {}, {})
        problem = make_problem(model, recording, blueprint, contact, chosen, step, observe or {}, drive, initial)
        first, free = _first_noise(problem, recording, noise or {}, effort_noise, correlation)
        return _smoothed(problem, first, free)


def _check(model, recording) -> None:
    if not isinstance(model, Model):
        raise TypeError(
            f"smooth: expected a Model, got {type(model).__name__}; kn.load(path) reads a URDF or MJCF file"
        )
    if not isinstance(recording, Recording):
        raise TypeError(
            f"smooth: expected one Recording, got {type(recording).__name__}; sysid.read_recordings(path, model) reads "
            "logs, kn.Recording.of(model, time, q=...) takes arrays"
        )
    measured = [key for key in recording.channels if key not in DRIVES]
    if not any(recording[key].valid.any() for key in measured):
        has = ", ".join(recording.channels) or "nothing"
        raise ValueError(f"smooth: recording {recording.name!r} measures no motion: it has {has}")


def _first_noise(problem: Problem, recording: Recording, given, effort_noise, correlation) -> tuple[Noise, Free]:
    """Where the estimation of the noise begins, and what of it is estimated."""
    model, measured, free = problem.system.model, [], []
    unknown = [key for key in given if key not in problem.channels]
    if unknown:
        raise ValueError(f"smooth: noise: {unknown[0]} is not measured; measured are {', '.join(problem.channels)}")
    for key, entries in problem.channels.items():
        own = noise_of(recording.time, recording[key].values, recording[key].valid)
        measured.append(_numbers(f"noise: {key}", given.get(key, own), entries, positive=True))
        free.append(np.full(entries, key not in given))
    if isinstance(effort_noise, EffortNoise):
        correlation = effort_noise.correlation if correlation is None else correlation
        effort_noise = effort_noise.deviation
    if correlation is not None and not (np.isfinite(correlation) and correlation >= 0):
        raise ValueError(f"smooth: correlation must be a time [s] of 0 or more, got {correlation}")
    if effort_noise is None:
        size = np.sqrt(np.mean(np.concatenate([_efforts(problem, k) for k in range(len(problem.runs))]) ** 2, axis=0))
        effort, estimated = FIRST_SHARE * np.where(size > 0, size, max(float(size.max(initial=0.0)), 1.0)), True
    else:
        effort, estimated = _numbers("effort_noise", effort_noise, model.nv, positive=False), False
        if not effort.any():
            raise ValueError("smooth: effort_noise is 0 for all joints: then nothing is uncertain but the first state")
        effort = np.maximum(effort, LEAST_EFFORT * effort.max())
    time = FIRST_CORRELATION * problem.period if correlation is None else float(correlation)
    seen = np.any([np.concatenate([r.valid[k].any(axis=0) for k in r.valid]) for r in problem.runs], axis=0)
    free = Free(np.concatenate(free) & seen, np.full(model.nv, estimated), correlation is None)
    return Noise(np.concatenate(measured), effort, time), free


def _efforts(problem: Problem, k: int) -> np.ndarray:
    return problem.system.forces(problem.nominal[k], problem.runs[k])


def _numbers(what: str, value, count: int, positive: bool) -> np.ndarray:
    try:
        found = np.broadcast_to(np.asarray(value, float), (count,)).copy()
    except ValueError as error:
        raise ValueError(f"smooth: {what} must be a number or {count} of them, got {value!r}") from error
    if not np.isfinite(found).all() or (found < 0).any() or (positive and (found == 0).any()):
        wanted = "positive" if positive else "0 or more"
        raise ValueError(f"smooth: {what} must be {wanted} and finite, got {value!r}")
    return found


def _smoothed(problem: Problem, noise: Noise, free: Free) -> Smoothed:
    """From the first guess; if innovations contradict the end, the most probable end of several starts."""
    best = _from(problem, problem.nominal, noise, free)
    if not _doubtful(best):
        return best
    tried = 1
    for start in _other_starts(problem, noise):
        try:
            other = _from(problem, start, noise, free)
        except ValueError:  # a start from which the simulation diverges
            continue
        tried += 1
        best = other if other.log_likelihood > best.log_likelihood else best
        if not _doubtful(best):
            break
    return replace(best, notes=(*best.notes, f"the most probable end of {tried} starts"))


def _doubtful(found: Smoothed) -> bool:
    return not found.converged or bool(_improbable(found.innovations))


def _other_starts(problem: Problem, noise: Noise) -> Iterator[list[Nominal]]:
    """Other first trajectories, each when it is asked for.

    Velocities at the first stamp that may be noise, reversed and 0: friction that remembers points the way of the first
    motion. Then where efforts with ten times the noise lead, which follows the measurements closely.
    """
    system = problem.system
    for factor in (-1.0, 0.0):
        made = []
        for nominal, run, (_, _, known) in zip(problem.nominal, problem.runs, problem.starts, strict=True):
            qd = nominal.qd.copy()
            unsure = np.abs(qd[0]) < UNSURE * np.maximum(known[system.model.nv :], 0.0)
            qd[0] = np.where(unsure, factor * qd[0], qd[0])
            made.append(system.remembered(nominal._replace(qd=qd), run))
        yield made
    loose = replace(noise, effort=LOOSE * noise.effort)
    yield iterate(problem, problem.nominal, loose, most=LEAST_ITERATIONS).nominal


def _from(problem: Problem, nominal: list[Nominal], noise: Noise, free: Free) -> Smoothed:
    at, rounds = Iteration(nominal, [None] * len(nominal)), ROUNDS if free.any else 0
    for _ in range(rounds):
        at = iterate(problem, at.nominal, noise, most=3)
        blocks = [b for k in range(len(at.nominal)) for b in blocks_for_noise(problem, k, at.nominal[k])]
        longest = max(float(run.time[-1] - run.time[0]) for run in problem.runs)
        noise = estimate_noise(blocks, noise, free, problem.period, longest)
    at = iterate(problem, at.nominal, noise, MOST_ITERATIONS)
    blocks = [linearise(problem, k, part, at.blurs[k]) for k, part in enumerate(at.nominal)]
    found = [smooth_linear(block.linear(noise)) for block in blocks]
    return _result(problem, at, found, noise)


def _improbable(innovations: Mapping[str, np.ndarray]) -> list[str]:
    """A note on channels whose innovations are larger than their standard deviations say."""
    seen = {key: off[np.isfinite(off)] for key, off in innovations.items()}
    sizes = {key: float(np.sqrt(np.mean(off**2))) for key, off in seen.items() if len(off) >= LEAST_INNOVATIONS}
    large = ", ".join(f"{key} {size:.2g} times" for key, size in sizes.items() if size > IMPROBABLE)
    if not large:
        return []
    return [
        f"innovations exceed their standard deviations ({large}): the noise that was given is too small, the model "
        "lacks something, or the estimate is a local optimum: the state of dry friction at the first stamp may be wrong"
    ]


def _result(problem: Problem, last: Iteration, found: list[Estimates], noise: Noise) -> Smoothed:
    system, model, nominal = problem.system, problem.system.model, last.nominal
    error, moving = system.effort, slice(0, 2 * model.nv)

    def rows(parts) -> np.ndarray:
        return np.concatenate([part[own] for part, own in zip(parts, problem.own, strict=True)])

    moved = [system.moved(n, f.filtered) for n, f in zip(nominal, found, strict=True)]
    filtered = Track(
        rows([m.q for m in moved]), rows([m.qd for m in moved]),
        rows([f.filtered_covariance[:, moving, moving] for f in found]), rows([m.effort for m in moved]),
        rows([f.filtered_covariance[:, error, error] for f in found]),
    )  # fmt: skip
    at = np.cumsum([0, *problem.channels.values()])
    notes = list(problem.notes)
    if last.change >= STILL:
        notes.append(
            f"{'' if last.converged else 'not converged: '}the last step moved {last.restless:.2%} of the states by "
            f"more than {RESTLESS} standard deviations, one by {last.change:.2g}"
        )
    off, deviation = rows([f.innovations for f in found]), np.split(noise.measured, at[1:-1])
    innovations = {key: off[:, a:b] for key, a, b in zip(problem.channels, at[:-1], at[1:], strict=True)}
    notes += _improbable(innovations)
    return Smoothed(
        time=rows([run.time for run in problem.runs]),
        q=rows([n.q for n in nominal]),
        qd=rows([n.qd for n in nominal]),
        covariance=rows([f.covariance[:, moving, moving] for f in found]),
        effort=rows([system.forces(n, run) for n, run in zip(nominal, problem.runs, strict=True)]),
        effort_covariance=rows([f.covariance[:, error, error] for f in found]),
        effort_error=rows([n.effort for n in nominal]),
        filtered=filtered,
        noise=dict(zip(problem.channels, deviation, strict=True)),
        effort_noise=EffortNoise(noise.effort, noise.correlation, problem.period),
        log_likelihood=float(sum(f.log_likelihood for f in found)),
        innovations=innovations,
        iterations=last.count,
        converged=last.converged,
        notes=tuple(notes),
        memory=rows([n.memory for n in nominal]),
        memory_of=system.memory_of,
    )
