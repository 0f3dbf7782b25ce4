"""From recordings to a model that agrees with them, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from knuckle.contact.resolve import ContactModel
from knuckle.integrate import RK4, Integrator, SemiImplicitEuler
from knuckle.model.model import Model
from knuckle.optim import LocalSolver, Result
from knuckle.optim.robust import Loss as Robust
from knuckle.optim.workers import WorkerPlan
from knuckle.sysid.entries import POSE_PREFIX
from knuckle.sysid.global_search import Method
from knuckle.sysid.held_out import HeldOut, held_out_errors
from knuckle.sysid.interrupt import interrupts
from knuckle.sysid.left import what_is_missing
from knuckle.sysid.noise import counted_once
from knuckle.sysid.objective import Objective, Regularise, noise_of
from knuckle.sysid.parameters import Parameters, Prior, choose
from knuckle.sysid.recording import Recording
from knuckle.sysid.shooting import Instruments, Observe, Simulator
from knuckle.sysid.shots import DRIVES, Drive, Shots, make_shots
from knuckle.sysid.solve import Look, Search, solve
from knuckle.sysid.split import split
from knuckle.sysid.uncertainty import Certainty, Estimate, Interval, certainty, estimates, interval, verdict
from knuckle.taps import Blueprint

Loss = Literal["multiple shooting", "single shooting", "one step"]
LONGEST_STEP, LONGEST_STEP_RK4 = 2e-3, 5e-3  # [s]
LONGEST_DELAY = 0.1  # [s]


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
    objective: Objective
    task: _Task

    @property
    def parameters(self) -> Parameters:
        return self.simulator.parameters

    def again(self, recordings: Recording | Sequence[Recording], **changes) -> Fit:
        """The same fit to other recordings, compiled already if they are as long; `changes` of options: held_out=0."""
        recordings = [recordings] if isinstance(recordings, Recording) else list(recordings)
        with jax.enable_x64(True), interrupts() as stop:
            search = replace(self.task.search, stop=stop, save=None, resume=False)
            return self.task._replace(search=search, **changes).run(recordings, self.objective)

    def interval(self, function: Callable[[Model], Array], level: float = 0.95) -> Interval:
        """Any vector function of the model, such as combinations of parameters, with its interval."""
        z, size = self.result.x[: self.parameters.size], self.parameters.size
        value = lambda z: jnp.ravel(function(self.parameters.applied(self.simulator.model, self.contact, z)[0]))  # noqa: E731
        with jax.enable_x64(True):
            return interval(value, z, self.certainty.covariance[:size, :size], level)

    def remarks(self, most: int | None = None) -> list[str]:
        """In words: what the model lacks, and what the data cannot tell (at most so many lines of that)."""
        return self.missing() + self.certainty.untold(most=most)

    def missing(self) -> list[str]:
        """In words, channels of which the fit leaves more than noise."""
        with jax.enable_x64(True):
            left = self.objective.by_channel(self.result.x)
        return what_is_missing(left, held=self.shots.control.shape[-1] > 0 and not self.shots.linear)

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
        widths = [max(len(row[k]) for row in rows) for k in range(6)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [f"{self.result.status}, {self.result.iterations} iterations, {self.result.seconds:.2f} s"]
        lines += [] if self.held_out is None else [repr(self.held_out)]
        return "\n".join(lines + self.remarks(most=10))


def fit(
    model: Model,
    recordings: Recording | Sequence[Recording],
    free: Sequence[str] | Mapping[str, Prior | tuple[float, float] | None] | None = None,
    *,
    blueprint: Blueprint | None = None,
    contact: ContactModel | None = None,
    integrator: Integrator | None = None,
    loss: Loss = "multiple shooting",
    segment: float | None = None,
    step: float | None = None,
    noise: Mapping[str, float] | None = None,
    observe: Mapping[str, Observe] | None = None,
    offsets: Sequence[str] = (),
    gains: Sequence[str] = (),
    delays: Sequence[Literal["sensor", "actuator"]] = (),
    drive: Drive | None = None,
    robust: Robust = "squares",
    regularise: Regularise = Regularise(),
    held_out: float | Sequence[Recording] = 0.25,
    solver: LocalSolver | None = None,
    seed: int = 0,
    search: Method = "local",
    starts: int = 64,
    workers: int | WorkerPlan | None = None,
    seconds: float | None = None,
    save: Path | str | None = None,
    resume: bool = False,
    progress: Callable[[str], None] | None = None,
    watch: Callable[[Look], None] | None = None,
) -> Fit:
    """Fit a model, and the networks of a blueprint, to recordings.

    Args:
        free: patterns of what is fitted (see `choose`), with a prior or bounds each.
        loss: "multiple shooting" (pieces of `segment` seconds whose starts are fitted and tied together), "single
            shooting" (whole recordings) or "one step" (from each sample to the next, starts as measured).
        integrator: by default RK4, which adds no error of its own to the parameters; with contact SemiImplicitEuler.
        step: longest time step [s]; samples are cut into equal ones.
        noise: deviation of each channel; by default it is found from the data, then from what the fit leaves.
        observe: for channels of one's own, function(model, state) that gives what is measured.
        offsets: channels with an unknown constant offset. gains: channels with an unknown scale, entry by entry.
        delays: whether "sensor" or "actuator" may be late.
        drive: what controls do between samples, "held" or "linear"; by default commands are held, and measured torques
            change linearly.
        robust: "huber", "soft_l1" or "cauchy": measurements far off count less than their squares, and do not make the
            noise.
        regularise: what keeps the weights of networks small.
        held_out: share of the data, or recordings, that the fit does not see.
        search: "basin hopping" or "population": the best of so many local searches from `starts`, over parameters and
            instruments. The result does not depend on `workers` (processes, by default one for each processor, or
            `kn.optim.Ray(address)`), unless `seconds` run out.
        seconds: for the search; Ctrl-C ends it too, and what was found so far is kept.
        save: a file for the state while it runs. resume: go on from that file.
        progress: told in words what is going on. watch: told what the search sees.
    """
    _one_of("loss", loss, Loss)
    _one_of("robust", robust, Robust)
    _one_of("search", search, Method)
    if drive is not None:
        _one_of("drive", drive, Drive)
    if resume and save is None:
        raise ValueError("resume=True needs save=, the file that the fit was saved to")
    with jax.enable_x64(True), interrupts() as stop:
        task = _Task(
            model,
            choose(model, free, contact),
            *(blueprint, contact, integrator or (RK4() if contact is None else SemiImplicitEuler())),
            *(loss, segment, step, dict(noise or {}), dict(observe or {}), tuple(offsets), tuple(gains), tuple(delays)),
            *(drive, robust, regularise, held_out, seed),
            Search(
                *(solver, search, starts, workers, seed, seconds, save, resume, stop),
                *(progress or (lambda text: None), watch or (lambda look: None)),
            ),
        )
        return task.run([recordings] if isinstance(recordings, Recording) else list(recordings))


class _Task(NamedTuple):
    """All that is asked of a fit but the recordings."""

    model: Model
    parameters: Parameters
    blueprint: Blueprint | None
    contact: ContactModel | None
    integrator: Integrator
    loss: Loss
    segment: float | None
    step: float | None
    noise: dict[str, float]
    observe: dict[str, Observe]
    offsets: tuple[str, ...]
    gains: tuple[str, ...]
    delays: tuple[str, ...]
    drive: Drive | None
    robust: Robust
    regularise: Regularise
    held_out: float | Sequence[Recording]
    seed: int
    search: Search

    def run(self, recordings: list[Recording], compiled: Objective | None = None) -> Fit:
        train, test = _parts(recordings, self.held_out, self.seed)
        given, noise = set(self.noise), {**_noise(train), **self.noise}
        period = float(np.median([r.period for r in train]))
        shots, instruments = self.pieces(train, noise)
        if compiled is not None and (compiled.shots.period, compiled.shots.history) == (period, shots.history):
            objective = compiled.on(shots)
        else:
            options = {"fixed_starts": self.loss == "one step", "robust": self.robust, "regularise": self.regularise}
            objective = Objective(self._simulator(period, instruments), shots, **options)
        tell = self.search.progress
        tell(f"{objective.size} free numbers, {shots.count} pieces of {shots.samples} samples, compiling")
        result, noise = solve(objective, noise, given, self.search, {"loss": self.loss, "seed": str(self.seed)})
        errors = None
        if test:
            tell("simulating what the fit has not seen")
            length = self._length(period)
            unseen = self._cut(test, None if length is None else max(length, 2 * period), noise)
            ends = objective.first[: objective.size], result.x[: objective.size]
            errors = held_out_errors(objective.simulator, unseen, *ends, self.robust)
        return self._fit(objective, result, noise, errors)

    def pieces(self, recordings: Sequence[Recording], noise: Mapping[str, float]) -> tuple[Shots, Instruments]:
        """Recordings as this fit compares them, and what it fits of the measuring."""
        length = self._length(float(np.median([r.period for r in recordings])))
        shots = self._cut(recordings, length, noise)
        instruments = _instruments(self.model, shots, self.offsets, self.gains, self.delays)
        return counted_once(_seen_through(shots, instruments), self.loss == "one step"), instruments

    def _cut(self, recordings: Sequence[Recording], length: float | None, noise: Mapping[str, float]) -> Shots:
        latest, steady = LONGEST_DELAY if self.delays else 0.0, self.robust != "squares"
        options = {"noise": noise, "latest": latest, "steady": steady, "drive": self.drive}
        return make_shots(self.model, recordings, length=length, **options)

    def _length(self, period: float) -> float | None:
        longest = self.segment or max(0.5, 25 * period)
        return {"single shooting": None, "one step": period}.get(self.loss, longest)

    def _simulator(self, period: float, instruments: Instruments) -> Simulator:
        longest = self.step or (LONGEST_STEP_RK4 if isinstance(self.integrator, RK4) else LONGEST_STEP)
        substeps = max(1, int(np.ceil(period / longest * (1 - 1e-9))))
        simulator = Simulator(
            *(self.model, self.parameters, self.contact, self.integrator, self.blueprint, substeps),
            *(self.observe, instruments),
        )
        if simulator.size == 0:
            raise ValueError("nothing is free: choose parameters by free=, or give a blueprint")
        return simulator

    def _fit(self, objective: Objective, result: Result, noise: dict[str, float], errors: HeldOut | None) -> Fit:
        simulator, known = objective.simulator, objective.simulator.physical
        sure = certainty(objective.sensitivity(result.x), known, objective.prior[:known], objective.labels[:known])
        z = result.x[: objective.size]
        found = estimates(self.parameters, z, sure) + _of_instruments(objective, z, sure)
        used = simulator.used(jnp.asarray(z))
        return Fit(*used, found, sure, noise, errors, result, simulator, objective.shots, objective, self)


def _one_of(name: str, value: str, kinds) -> None:
    if value not in get_args(kinds):
        raise ValueError(f"{name}: expected one of {', '.join(get_args(kinds))}, got {value!r}")


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


def _instruments(model: Model, shots: Shots, offsets, gains, delays) -> Instruments:
    unknown = [key for key in (*offsets, *gains) if key not in shots.measured]
    if unknown or not set(delays) <= {"sensor", "actuator"}:
        raise ValueError(
            f"offsets and gains must be of channels that are compared ({', '.join(shots.measured)}) and delays "
            f"'sensor' or 'actuator', got {', '.join(map(str, (*offsets, *gains, *delays)))}"
        )
    turned = [key for key in gains if key.startswith(POSE_PREFIX) or (key == "q" and model.nq != model.nv)]
    if turned:
        raise ValueError(f"gains: {turned[0]} holds quaternions, which have no scale")

    def sized(channels) -> tuple[tuple[str, int], ...]:
        return tuple((key, model.nv if key == "q" else shots.measured[key].shape[-1]) for key in channels)

    return Instruments(sized(offsets), "sensor" in delays, "actuator" in delays, sized(gains))


def _of_instruments(objective: Objective, z: np.ndarray, sure: Certainty) -> list[Estimate]:
    """Offsets, gains and delays with their intervals."""
    first, instruments = objective.simulator.parameters.size, objective.simulator.instruments
    found = []
    for k, (name, kind) in enumerate(zip(instruments.labels, instruments.kinds, strict=True), start=first):
        before = 1.0 if kind == "gain" else 0.0
        unit = {"gain": "1", "delay": "s"}.get(kind, "of the channel")
        value, deviation = before + float(z[k]), float(np.sqrt(sure.covariance[k, k]))
        ends = value - 1.96 * deviation, value + 1.96 * deviation
        told = verdict(deviation, float(objective.prior[k]))
        found.append(Estimate(name, unit, before, value, deviation, *ends, told))
    return found


def _seen_through(shots: Shots, instruments: Instruments) -> Shots:
    """Starts are known less well through unknown instruments; what a late sensor saw before a start is left out."""
    if not instruments.size:
        return shots
    there = np.arange(shots.samples) >= (shots.history if instruments.sensor_delay else 0)
    weight = {key: np.asarray(w) * there[None, :, None] for key, w in shots.weight.items()}
    return eqx.tree_at(lambda s: (s.weight, s.known), shots, (weight, 10 * np.asarray(shots.known)))
