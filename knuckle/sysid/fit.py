"""From recordings to a model that agrees with them, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from knuckle.contact.resolve import ContactModel
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.model.model import Model
from knuckle.optim import LocalSolver, Result
from knuckle.optim.robust import Loss as Robust
from knuckle.optim.workers import WorkerPlan
from knuckle.sysid.entries import POSE_PREFIX
from knuckle.sysid.global_search import Method
from knuckle.sysid.held_out import HeldOut, held_out_errors
from knuckle.sysid.interrupt import interrupts
from knuckle.sysid.objective import Objective, Regularise, noise_of
from knuckle.sysid.parameters import Parameters, Prior, choose
from knuckle.sysid.recording import Recording
from knuckle.sysid.shooting import Instruments, Observe, Simulator
from knuckle.sysid.shots import DRIVES, Shots, make_shots
from knuckle.sysid.solve import Look, Search, solve
from knuckle.sysid.split import split
from knuckle.sysid.uncertainty import Certainty, Estimate, certainty, estimates, verdict
from knuckle.taps import Blueprint

Loss = Literal["multiple shooting", "single shooting", "one step"]
LONGEST_STEP = 2e-3  # [s]
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
    gains: Sequence[str] = (),
    delays: Sequence[Literal["sensor", "actuator"]] = (),
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
        step: longest time step [s]; samples are cut into equal ones.
        noise: deviation of each channel; by default it is found from the data, then from what the fit leaves.
        observe: for channels of one's own, function(model, state) that gives what is measured.
        offsets: channels with an unknown constant offset. gains: channels with an unknown scale, entry by entry.
        delays: whether "sensor" or "actuator" may be late.
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
    if resume and save is None:
        raise ValueError("resume=True needs save=, the file that the fit was saved to")
    with jax.enable_x64(True), interrupts() as stop:
        return _fit(
            model,
            [recordings] if isinstance(recordings, Recording) else list(recordings),
            choose(model, free, contact),
            *(blueprint, contact, integrator, loss, segment, step, dict(noise or {}), dict(observe or {})),
            *(tuple(offsets), tuple(gains), tuple(delays), robust, regularise, held_out, seed),
            Search(
                *(solver, search, starts, workers, seed, seconds, save, resume, stop),
                *(progress or (lambda text: None), watch or (lambda look: None)),
            ),
        )


def _fit(model, recordings, parameters, blueprint, contact, integrator, loss, segment, step, noise, observe, offsets,
         gains, delays, robust, regularise, held_out, seed, search: Search) -> Fit:  # fmt: skip
    train, test = _parts(recordings, held_out, seed)
    given, noise = set(noise), {**_noise(train), **noise}
    period = float(np.median([r.period for r in train]))
    length = {"single shooting": None, "one step": period}.get(loss, segment or max(0.5, 25 * period))
    latest = LONGEST_DELAY if delays else 0.0
    cut = partial(make_shots, model, latest=latest, steady=robust != "squares")
    shots = cut(train, length=length, noise=noise)
    instruments = _instruments(model, shots, offsets, gains, delays)
    shots = _seen_through(shots, instruments)
    substeps = max(1, int(np.ceil(period / (step or LONGEST_STEP) * (1 - 1e-9))))
    simulator = Simulator(model, parameters, contact, integrator, blueprint, substeps, observe, instruments)
    if simulator.size == 0:
        raise ValueError("nothing is free: choose parameters by free=, or give a blueprint")
    objective = Objective(simulator, shots, fixed_starts=loss == "one step", robust=robust, regularise=regularise)
    search.progress(f"{objective.size} free numbers, {shots.count} pieces of {shots.samples} samples, compiling")
    result, noise = solve(objective, noise, given, search, {"loss": loss, "seed": str(seed)})
    known = simulator.physical  # weights of networks count as things that are not asked for
    sure = certainty(objective.sensitivity(result.x), known, objective.prior[:known], objective.labels[:known])
    z = result.x[: objective.size]
    fitted, fitted_contact, fitted_blueprint = simulator.used(jnp.asarray(z))
    errors = None
    if test:
        search.progress("simulating what the fit has not seen")
        unseen = cut(test, length=length and max(length, 2 * period), noise=noise)
        errors = held_out_errors(simulator, unseen, objective.first[: objective.size], z, robust)
    found = estimates(parameters, z, sure) + _of_instruments(objective, z, sure)
    used = (fitted, fitted_contact, fitted_blueprint)
    return Fit(*used, found, sure, noise, errors, result, simulator, objective.shots)


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
