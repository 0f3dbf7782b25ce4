"""From recordings to a model that agrees with them, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array

from knuckle.contact.resolve import ContactModel
from knuckle.integrate import RK4, Integrator, SemiImplicitEuler
from knuckle.model.model import Model
from knuckle.optim import LocalSolver, Result
from knuckle.optim.robust import Loss as Robust
from knuckle.optim.workers import WorkerPlan
from knuckle.sysid.colour import colours_of, left_of, widening
from knuckle.sysid.global_search import Method, Name, method_of
from knuckle.sysid.held_out import HeldOut
from knuckle.sysid.interrupt import interrupts
from knuckle.sysid.jumps import jumps_in_words
from knuckle.sysid.left import what_is_missing
from knuckle.sysid.measuring import instrument_estimates
from knuckle.sysid.objective import Objective, Regularise
from knuckle.sysid.parameters import Parameters, Prior, choose
from knuckle.sysid.recording import Recording
from knuckle.sysid.shooting import Observe, Simulator
from knuckle.sysid.shots import Drive, Shots
from knuckle.sysid.solve import Look, Search
from knuckle.sysid.task import Found, Loss, Task
from knuckle.sysid.uncertainty import Certainty, Estimate, Interval, certainty, estimates, interval
from knuckle.taps import Blueprint


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
    task: Task

    @property
    def parameters(self) -> Parameters:
        return self.simulator.parameters

    def again(self, recordings: Recording | Sequence[Recording], **changes) -> Fit:
        """The same fit to other recordings, compiled already if they are as long; `changes` of options: held_out=0."""
        recordings = [recordings] if isinstance(recordings, Recording) else list(recordings)
        with jax.enable_x64(True), interrupts() as stop:
            search = replace(self.task.search, stop=stop, save=None, resume=False)
            task = self.task._replace(search=search, **changes)
            return _fitted(task, task.run(recordings, self.objective))

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
        """In words, signs that the model lacks something, and what that may be."""
        objective, control = self.objective, self.shots.control
        with jax.enable_x64(True):
            found = what_is_missing(left_of(objective, self.result.x)) + jumps_in_words(objective, self.result.x)
        if not found:
            return []
        held = control.shape[-1] > 0 and not self.shots.linear
        causes = [
            "delays",
            *['controls that change between samples (drive="linear", --drive linear)'] * held,
            "more free parameters",
        ]
        found.append(
            "the model lacks something, and intervals do not know what parameters took up in its place; "
            f"{', '.join(causes)} or a network may explain it"
        )
        idle = control.shape[-1] > 0 and not control.any()
        return [*found, "all controls were taken as 0: is what drove the robot in the recordings?"] if idle else found

    def __getitem__(self, name: str) -> Estimate:
        found = [e for e in self.estimates if e.name == name]
        if not found:
            raise KeyError(f"no parameter {name!r} was fitted; there are {', '.join(e.name for e in self.estimates)}")
        return found[0]

    def __repr__(self) -> str:
        rows = [("parameter", "before", "value", "95 % interval", "unit", "")]
        rows += [(e.name, *e.texts, e.unit, e.verdict) for e in self.estimates]
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
    search: Name | Method = "local",
    starts: int = 64,
    workers: int | WorkerPlan | None = None,
    seconds: float | None = None,
    draws: int = 4,
    save: Path | str | None = None,
    resume: bool = False,
    progress: Callable[[str], None] | None = None,
    watch: Callable[[Look], None] | None = None,
) -> Fit:
    """Fit a model, and the networks of a blueprint, to recordings.

    Args:
        free: patterns of what is fitted (see `choose`), with a prior or bounds each.
        loss: "multiple shooting" (pieces of `segment` seconds whose starts are fitted and tied together), "single
            shooting" (whole recordings) or "one step" (from each measured state to the next, taken as exact).
        integrator: by default RK4, which adds no error of its own to the parameters; with contact SemiImplicitEuler.
        step: longest time step [s]; samples are cut into equal ones. By default 2 ms; with RK4 5 ms, or less where
            springs, damping or servos of the joints are fast.
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
            instruments; `kn.optim.BasinHopping(restart="anywhere")` and `kn.optim.Population(...)` leave more to
            choose. The result does not depend on `workers` (processes, by default one for each processor, or
            `kn.optim.Ray(address)`), unless `seconds` run out.
        seconds: for the search; Ctrl-C ends it too, and what was found so far is kept.
        draws: first weights of networks that are tried at most; the given ones suffice where the model then holds from
            piece to piece and what it leaves is noise.
        save: a file for the state while it runs. resume: go on from that file.
        progress: told in words what is going on. watch: told what the search sees.
    """
    recordings = [recordings] if isinstance(recordings, Recording) else recordings
    _check_kinds(model, recordings)
    _one_of("loss", loss, Loss)
    _one_of("robust", robust, Robust)
    method = method_of(search)
    if drive is not None:
        _one_of("drive", drive, Drive)
    if draws < 1:
        raise ValueError(f"draws: expected 1 or more, got {draws}")
    if resume and save is None:
        raise ValueError("resume=True needs save=, the file that the fit was saved to")
    with jax.enable_x64(True), interrupts() as stop:
        task = Task(
            model,
            choose(model, free, contact),
            *(blueprint, contact, integrator or (RK4() if contact is None else SemiImplicitEuler())),
            *(loss, segment, step, dict(noise or {}), dict(observe or {})),
            *(_several(offsets), _several(gains), _several(delays)),
            *(drive, robust, regularise, held_out, seed),
            Search(
                *(solver, method, starts, workers, seed, seconds, draws, save, resume, stop),
                *(progress or (lambda text: None), watch or (lambda look: None)),
            ),
        )
        return _fitted(task, task.run(list(recordings)))


def _check_kinds(model, recordings) -> None:
    if not isinstance(model, Model):
        raise TypeError(f"model: expected a Model, got {type(model).__name__}; kn.load(path) reads a URDF or MJCF file")
    others = [recordings] if isinstance(recordings, str | Path) else recordings
    wrong = next((r for r in others if not isinstance(r, Recording)), None)
    if wrong is not None:
        raise TypeError(
            f"recordings: expected Recordings, got {type(wrong).__name__}; sysid.read_recordings(path, model) reads "
            "logs, kn.Recording.of(model, time, q=...) takes arrays"
        )


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _one_of(name: str, value: str, kinds) -> None:
    if value not in get_args(kinds):
        raise ValueError(f"{name}: expected one of {', '.join(get_args(kinds))}, got {value!r}")


def _fitted(task: Task, found: Found) -> Fit:
    objective, result, noise, errors = found
    simulator, known = objective.simulator, objective.simulator.physical
    z, jacobian = result.x[: objective.size], objective.sensitivity(result.x)
    prior, labels = objective.prior[:known], objective.labels[:known]
    more = widening(objective, jacobian, colours_of(objective, result.x, jacobian))
    sure = certainty(jacobian, known, prior, labels, task.parameters, z, more)
    rows = estimates(task.parameters, z, sure) + instrument_estimates(objective, z, sure)
    used = simulator.used(jnp.asarray(z))
    return Fit(*used, rows, sure, noise, errors, result, simulator, objective.shots, objective, task)
