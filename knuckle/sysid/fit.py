"""From recordings to a model that agrees with them, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from knuckle.contact.resolve import ContactModel
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.model.model import Model
from knuckle.optim import LBFGSB, LevenbergMarquardt, LocalSolver, Problem, Result, Status
from knuckle.sysid.held_out import HeldOut, held_out_errors
from knuckle.sysid.objective import Objective, noise_of
from knuckle.sysid.parameters import Parameters, Prior, choose
from knuckle.sysid.recording import Recording
from knuckle.sysid.shooting import Instruments, Observe, Simulator
from knuckle.sysid.shots import DRIVES, Shots, make_shots
from knuckle.sysid.split import split
from knuckle.sysid.uncertainty import Certainty, Estimate, certainty, estimates
from knuckle.taps import Blueprint

Loss = Literal["multiple shooting", "single shooting", "one step"]
LONGEST_STEP = 2e-3  # [s]
LONGEST_DELAY = 0.1  # [s]
MANY = 300  # free numbers from which on reverse mode is used
SETTLED = 0.05  # relative change of the noise at which it counts as known


@dataclass(frozen=True)
class Fit:
    """A fitted simulator: what was found, how sure that is, and how it does on data that it has not seen."""

    model: Model
    contact: ContactModel | None
    blueprint: Blueprint | None
    estimates: list[Estimate]
    certainty: Certainty
    noise: dict[str, float]  # deviation that the fit leaves in each channel
    held_out: HeldOut | None
    result: Result
    simulator: Simulator
    shots: Shots
    instruments: dict[str, float]

    @property
    def parameters(self) -> Parameters:
        return self.simulator.parameters

    def __getitem__(self, name: str) -> Estimate:
        found = [e for e in self.estimates if e.name == name]
        if not found:
            raise KeyError(f"no parameter {name!r} was fitted; there are {', '.join(e.name for e in self.estimates)}")
        return found[0]

    def __repr__(self) -> str:
        rows = [("parameter", "before", "value", "95 % interval", "unit", "")]
        rows += [
            (e.name, f"{e.before:.4g}", f"{e.value:.4g}", f"{e.lower:.4g} .. {e.upper:.4g}", e.unit, e.verdict)
            for e in self.estimates
        ]
        rows += [(name, "0", f"{value:.4g}", "", "", "") for name, value in self.instruments.items()]
        widths = [max(len(row[k]) for row in rows) for k in range(6)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [f"{self.result.status}, {self.result.iterations} iterations, {self.result.seconds:.2f} s"]
        return "\n".join(lines + ([] if self.held_out is None else [repr(self.held_out)]) + self.certainty.untold())


def fit(
    model: Model,
    recordings: Recording | Sequence[Recording],
    free: Sequence[str] | Mapping[str, Prior | tuple[float, float] | None] | None = None,
    *,
    blueprint: Blueprint | None = None,
    contact: ContactModel | None = None,
    integrator: Integrator = SemiImplicitEuler(),
    loss: Loss = "multiple shooting",
    segment: float | None = None,
    step: float | None = None,
    noise: Mapping[str, float] | None = None,
    observe: Mapping[str, Observe] | None = None,
    offsets: Sequence[str] = (),
    delays: Sequence[Literal["sensor", "actuator"]] = (),
    held_out: float | Sequence[Recording] = 0.25,
    solver: LocalSolver | None = None,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
    watch: Callable[[float], None] | None = None,
) -> Fit:
    """Fit a model, and the networks of a blueprint, to recordings.

    Args:
        free: patterns of what is fitted (see `choose`), with a prior or bounds each.
        loss: "multiple shooting" (pieces of `segment` seconds whose starts are fitted and tied together), "single
            shooting" (whole recordings) or "one step" (from each sample to the next, starts as measured).
        step: longest time step [s]; samples are cut into equal ones.
        noise: deviation of each channel; by default it is found from the data, then from what the fit leaves.
        observe: for channels of one's own, function(model, state) that gives what is measured.
        offsets: channels with an unknown constant offset. delays: whether sensors or actuators may be late.
        held_out: share of the data, or recordings, that the fit does not see.
        seconds: for the search; Ctrl-C ends it too, and what was found so far is kept.
        progress: told in words what is going on. watch: told half the sum of squares wherever the search looks.
    """
    with jax.enable_x64(True):
        return _fit(
            model,
            [recordings] if isinstance(recordings, Recording) else list(recordings),
            choose(model, free, contact),
            *(blueprint, contact, integrator, loss, segment, step, dict(noise or {}), dict(observe or {})),
            *(tuple(offsets), tuple(delays), held_out, solver, seed, seconds, progress or (lambda text: None), watch),
        )


def _fit(model, recordings, parameters, blueprint, contact, integrator, loss, segment, step, noise, observe, offsets,
         delays, held_out, solver, seed, seconds, progress, watch) -> Fit:  # fmt: skip
    train, test = _parts(recordings, held_out, seed)
    given, noise = set(noise), {**_noise(train), **noise}
    period = float(np.median([r.period for r in train]))
    length = {"single shooting": None, "one step": period}.get(loss, segment or max(0.5, 25 * period))
    latest = LONGEST_DELAY if delays else 0.0
    shots = make_shots(model, train, length=length, noise=noise, latest=latest)
    instruments = _instruments(model, shots, offsets, delays)
    shots = _seen_through(shots, instruments)
    substeps = max(1, int(np.ceil(period / (step or LONGEST_STEP) * (1 - 1e-9))))
    simulator = Simulator(model, parameters, contact, integrator, blueprint, substeps, observe, instruments)
    if simulator.size == 0:
        raise ValueError("nothing is free: choose parameters by free=, or give a blueprint")
    objective = Objective(simulator, shots, fixed_starts=loss == "one step")
    progress(f"{objective.size} free numbers, {shots.count} pieces of {shots.samples} samples, compiling")
    x, last = objective.first, None
    for _ in range(4):
        result = last = _searched(objective, x, last, solver, seconds, watch)
        seconds = None if seconds is None else max(seconds - result.seconds, 0.0)
        x = result.x
        progress(f"{result.status} after {result.iterations} iterations, half the sum of squares {result.value:.6g}")
        if result.status in (Status.INTERRUPTED, Status.TIME_LIMIT):
            break
        factors = {key: f for key, f in _left(objective, x).items() if key not in given}
        if all(abs(f - 1) < SETTLED for f in factors.values()):
            break
        noise |= {key: noise[key] * factor for key, factor in factors.items()}
        objective.shots = _reweighed(objective.shots, factors)
    _, jacobian = objective(x)
    known = simulator.physical  # weights of networks count as things that are not asked for
    sure = certainty(jacobian, known, objective.prior[:known], objective.labels[:known])
    z = x[: objective.size]
    fitted, fitted_contact, fitted_blueprint = simulator.used(jnp.asarray(z))
    errors = None
    if test:
        progress("simulating what the fit has not seen")
        unseen = make_shots(model, test, length=length and max(length, 2 * period), noise=noise, latest=latest)
        errors = held_out_errors(simulator, unseen, objective.first[: objective.size], z)
    return Fit(
        *(fitted, fitted_contact, fitted_blueprint, estimates(parameters, z, sure), sure, noise, errors, result),
        *(simulator, objective.shots),
        dict(zip(instruments.labels, z[parameters.size : simulator.physical].tolist(), strict=True)),
    )


def _parts(recordings, held_out, seed) -> tuple[list[Recording], list[Recording]]:
    if not recordings:
        raise ValueError("there is no recording to fit to")
    if not isinstance(held_out, float | int):
        return recordings, list(held_out)
    return (recordings, []) if held_out == 0 else split(recordings, held_out=held_out, seed=seed)


def _noise(recordings: Sequence[Recording]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for r in recordings:
        for key, channel in r.channels.items():
            if key not in DRIVES:
                found.setdefault(key, []).append(noise_of(channel.values, channel.valid))
    return {key: float(np.median(values)) for key, values in found.items()}


def _instruments(model: Model, shots: Shots, offsets, delays) -> Instruments:
    unknown = [key for key in offsets if key not in shots.measured]
    if unknown or not set(delays) <= {"sensor", "actuator"}:
        raise ValueError(
            f"offsets must be of channels that are compared ({', '.join(shots.measured)}) and delays 'sensor' or "
            f"'actuator', got {', '.join(map(str, (*offsets, *delays)))}"
        )
    sizes = tuple((key, model.nv if key == "q" else shots.measured[key].shape[-1]) for key in offsets)
    return Instruments(sizes, "sensor" in delays, "actuator" in delays)


def _seen_through(shots: Shots, instruments: Instruments) -> Shots:
    """Starts are known less well through unknown instruments; what a late sensor saw before a start is left out."""
    if not instruments.size:
        return shots
    there = np.arange(shots.samples) >= (shots.history if instruments.sensor_delay else 0)
    weight = {key: np.asarray(w) * there[None, :, None] for key, w in shots.weight.items()}
    return eqx.tree_at(lambda s: (s.weight, s.known), shots, (weight, 10 * np.asarray(shots.known)))


def _searched(objective, x, last: Result | None, solver, seconds, watch) -> Result:
    """What a solver finds from x; interrupted before it looked anywhere, the last result."""
    try:
        return _solved(objective, x, solver, seconds, watch)
    except KeyboardInterrupt:
        if last is None:
            raise
        return replace(last, status=Status.INTERRUPTED)


def _solved(objective: Objective, x: np.ndarray, solver: LocalSolver | None, seconds, watch) -> Result:
    if solver is None:
        solver = LevenbergMarquardt(value_tolerance=1e-8) if objective.size <= MANY else LBFGSB()
    problem = objective.problem() if isinstance(solver, LevenbergMarquardt) else objective.smooth()
    if watch is not None:
        problem.function = _watched(problem, watch)
    return solver(problem, x, seconds=seconds)


def _watched(problem: Problem, watch: Callable[[float], None]) -> Callable:
    function = problem.function

    def watched(x):
        value, derivative = function(x)
        watch(float(value) if np.ndim(value) == 0 else 0.5 * float(value @ value))
        return value, derivative

    return watched


def _left(objective: Objective, x: np.ndarray) -> dict[str, float]:
    """For each channel the deviation that is left, over what was taken as its noise."""
    values, at, left = objective.values(x), 0, {}
    for key, weight in objective.shots.weight.items():
        entries = objective.entries(key)
        part = values[:, at : at + entries * objective.shots.samples]
        at += entries * objective.shots.samples
        measured = np.count_nonzero(np.asarray(weight))
        left[key] = float(np.sqrt(np.sum(part**2) / max(measured, 1)))
    return {key: max(value, 1e-6) for key, value in left.items()}


def _reweighed(shots: Shots, factors: Mapping[str, float]) -> Shots:
    weight = {key: np.asarray(w) / factors.get(key, 1.0) for key, w in shots.weight.items()}
    return eqx.tree_at(lambda s: s.weight, shots, weight)
