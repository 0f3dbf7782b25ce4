"""From recordings to a model that agrees with them, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from knuckle.contact.resolve import ContactModel
from knuckle.deadline import Deadline, OutOfTime
from knuckle.integrate import RK4, Integrator, SemiImplicitEuler
from knuckle.interrupt import interrupts
from knuckle.model.model import Model
from knuckle.optim import LocalSolver, Result, Status
from knuckle.optim.box_step import box_step
from knuckle.optim.robust import Loss as Robust
from knuckle.optim.workers import WorkerPlan
from knuckle.sysid.colour import colours_of, left_of, widening
from knuckle.sysid.contradictions import find_contradictions
from knuckle.sysid.drives import drive_channel
from knuckle.sysid.global_search import Method, Name, method_of
from knuckle.sysid.held_out import NOISY, HeldOut
from knuckle.sysid.jumps import jumps_in_words
from knuckle.sysid.left import what_is_missing
from knuckle.sysid.many import MANY
from knuckle.sysid.measuring import instrument_estimates
from knuckle.sysid.noise_kinds import ChannelNoise, Given, NoiseBy, by_kind, overall
from knuckle.sysid.noise_kinds import in_words as noise_in_words
from knuckle.sysid.objective import Objective, Regularise
from knuckle.sysid.parameters import Parameters, Prior, choose
from knuckle.sysid.plausibility import implausible, no_links
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.intervals import estimates_of, regression_interval
from knuckle.sysid.regression.networks import unsuited, without_laws
from knuckle.sysid.regression.regress import regress
from knuckle.sysid.regression.result import Regression
from knuckle.sysid.selection import FEWEST
from knuckle.sysid.shooting import Observe, Simulator
from knuckle.sysid.shots import Drive, Shots
from knuckle.sysid.solve import Look, Search
from knuckle.sysid.task import Found, Loss, Task, parts_of
from knuckle.sysid.torque_fit import TorqueFit, diverges, torque_fit, unmeasured, with_measured_friction
from knuckle.sysid.uncertainty import Certainty, Estimate, Interval, certainty, described, estimates, interval
from knuckle.taps import Blueprint

FAILED = (Status.NUMERICAL_FAILURE, Status.NON_FINITE_START)
HELPS = 0.95  # held-out error with networks over that without, below which they are kept
NEAR = 0.3  # standard deviations of the next step, below which intervals hold though the search was stopped


@dataclass(frozen=True)
class Fit:
    """A fitted simulator: what was found, how sure that is, and how it does on data that it has not seen."""

    model: Model
    contact: ContactModel | None
    blueprint: Blueprint | None
    estimates: list[Estimate]
    certainty: Certainty
    noise: dict[str, float]  # deviation that the fit leaves in each channel, over all kinds of its entries
    held_out: HeldOut | None
    result: Result
    simulator: Simulator
    shots: Shots
    objective: Objective
    task: Task
    next_step: float = 0.0  # of the search, in standard deviations of the parameter that it would move most
    contradictions: list[str] = field(default_factory=list)  # of recordings, in words
    implausible: list[str] = field(default_factory=list)  # values that no robot of this kind has, in words
    left_out: list[str] = field(default_factory=list)  # for want of time or memory, or because it failed, in words
    notes: list[str] = field(default_factory=list)  # what else there is to say, in words
    regression: Regression | None = None  # on measured torques, refined by roll-outs if that helped
    method: str = ""  # how it was fitted and why so, in words
    column_noise: dict[str, ChannelNoise] = field(default_factory=dict)  # as weights use it: see `noise_kinds`

    @property
    def converged(self) -> bool:
        """Whether the search came to its end, or so near that the next step is small beside the intervals."""
        return self.regression is not None or self.result.successful or self.next_step < NEAR

    @property
    def evaluated(self) -> bool:
        """Whether any simulation, or a regression, was compared with the data."""
        return self.regression is not None or bool(np.isfinite(self.result.value))

    @property
    def noise_by_kind(self) -> dict[str, dict[str, float]]:
        """Noise of each channel by kind of entry (position, angle, rotation, ...), or by entry on request."""
        return by_kind(self.model, self.column_noise, self.task.search.noise_by)

    @property
    def parameters(self) -> Parameters:
        return self.simulator.parameters

    def again(self, recordings: Recording | Sequence[Recording], **changes) -> Fit:
        """The same fit to other recordings, compiled already if they are as long; `changes` of options: held_out=0."""
        recordings = [recordings] if isinstance(recordings, Recording) else list(recordings)
        with jax.enable_x64(True), interrupts() as stop:
            deadline = self.task.search.deadline.again()
            search = replace(self.task.search, stop=stop, save=None, resume=False, deadline=deadline)
            task = self.task._replace(search=search, **changes)
            if self.regression is not None:
                return _regressed(task, torque_fit(task, recordings, self.rolled_out), self.method)
            return _fitted(task, task.run(recordings, self.objective))

    @property
    def step(self) -> float:
        """The longest time step with which this model was simulated, or can be [s]."""
        if self.regression is not None:
            return self.regression.step if self.task.step is None else min(self.task.step, self.regression.step)
        return self.shots.period / self.simulator.substeps

    @property
    def plain_model(self) -> Model:
        """The model for files without networks: friction that it cannot hold is Coulomb friction at the mean load.

        Files have no width of Coulomb friction either: it is the one of the description.
        """
        if self.regression is None:
            return self.model
        width = self.regression.described.friction_speed
        return eqx.tree_at(lambda m: m.friction_speed, self.regression.plain_model(), width)

    @property
    def rolled_out(self) -> bool:
        """Whether roll-outs are part of it."""
        return self.task.loss != "torque"

    def interval(self, function: Callable[[Model], Array], level: float = 0.95) -> Interval:
        """Any vector function of the model, such as combinations of parameters, with its interval.

        Ends of the interval are NaN where the fit did not converge. Of a regression, by its block jackknife.
        """
        if self.regression is not None:
            return regression_interval(self.regression, function, level)
        z, size = self.result.x[: self.parameters.size], self.parameters.size
        value = lambda z: jnp.ravel(function(self.parameters.applied(self.simulator.model, self.contact, z)[0]))  # noqa: E731
        with jax.enable_x64(True):
            covariance = self.certainty.covariance[:size, :size]
            return interval(value, z, covariance if self.converged else np.full_like(covariance, np.nan), level)

    def predict(self, target, control=None, **options):
        """A roll-out from a state, or a function of the model, with intervals: see `sysid.prediction.predict`."""
        from knuckle.sysid.prediction import predict

        return predict(self if self.regression is None else self.regression, target, control, **options)

    def remarks(self, most: int | None = None) -> list[str]:
        """In words: notes, what the model lacks, and what the data cannot tell (at most so many lines of that)."""
        if self.regression is not None:
            return [*self.notes, *self.regression.notes, *self._no_better()]
        return self.notes + self.missing() + self.certainty.untold(most=most)

    def _no_better(self) -> list[str]:
        """A note on a regression whose roll-outs are no nearer to held-out positions than those of the description."""
        held_out = self.held_out
        if held_out is None or held_out.after["q"] < max(held_out.before["q"], NOISY * self.noise["q"]):
            return []
        return [
            "roll-outs predict held-out positions no better than the description does: torques or velocities are noisy "
            'or late; loss="multiple shooting" (--loss multiple) does without accelerations'
        ]

    def warnings(self) -> list[str]:
        """In words, reasons not to trust this fit."""
        status = str(self.result.status)
        found = []
        if not self.evaluated:
            found.append(f"{status}: nothing was fitted, all values are those of the description")
            if self.result.status is Status.NON_FINITE_START:
                found.append(
                    "the simulation diverges from the description: are friction and rotor inertia (armature) in it? "
                    "Shorter segments (segment=, --segment) may help"
                )
        elif not self.converged:
            far = f"; the next step would move a parameter by {self.next_step:.2g} standard deviations"
            known = far if np.isfinite(self.next_step) else ""
            found.append(f"{status}: the search did not converge{known}; there are no intervals")
        if self.held_out is not None:
            for key, (before, after) in self.held_out.worse(self.noise).items():
                said = f"{self.held_out.text(key, before)} -> {self.held_out.text(key, after)}"
                found.append(
                    f"the held-out error of {key} is worse than before the fit: {said}; "
                    "do not use this fit before it is known why"
                )
        return found + self.contradictions + self.implausible

    @property
    def is_doubtful(self) -> bool:
        """Whether held-out data are predicted worse than before, recordings contradict, or nothing was fitted."""
        worse = self.held_out is not None and bool(self.held_out.worse(self.noise))
        return worse or bool(self.contradictions) or not self.evaluated or self.result.status in FAILED

    def missing(self) -> list[str]:
        """In words, signs that the model lacks something, and what that may be."""
        return self._missing

    @cached_property
    def residuals(self) -> dict[str, np.ndarray]:
        """What the fit leaves in training data, over the noise: (piece, sample, entry), NaN where not measured."""
        if not self.evaluated or self.regression is not None:
            return {}
        with jax.enable_x64(True):
            return self.objective.by_channel(self.result.x)

    @cached_property
    def _missing(self) -> list[str]:
        if not self.evaluated or self.regression is not None:
            return []
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
        if self.regression is not None:
            lines = [self.method, str(self.regression), *([] if self.held_out is None else [repr(self.held_out)])]
            lines += [f"warning: {line}" for line in self.warnings()]
            return "\n".join(
                [*lines, *(f"left out: {line}" for line in self.left_out), *self.notes, *self._no_better()]
            )
        rows = [("parameter", "before", "value", "95 % interval", "unit", "")]
        rows += [(e.name, *e.texts, e.unit, e.verdict) for e in self.estimates]
        widths = [max(len(row[k]) for row in rows) for k in range(6)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [self.method] if self.method else []
        lines += [f"{self.result.status}, {self.result.iterations} iterations, {self.result.seconds:.2f} s"]
        lines += [] if self.held_out is None else [repr(self.held_out)]
        lines += noise_in_words(self.model, self.column_noise, self.task.search.noise_by)
        lines += [f"warning: {line}" for line in self.warnings()]
        lines += [f"left out: {line}" for line in self.left_out]
        return "\n".join(lines + self.remarks(most=10))


def fit(
    model: Model,
    recordings: Recording | Sequence[Recording],
    free: Sequence[str] | Mapping[str, Prior | tuple[float, float] | None] | None = None,
    *,
    blueprint: Blueprint | None = None,
    contact: ContactModel | None = None,
    integrator: Integrator | None = None,
    loss: Loss | None = None,
    segment: float | None = None,
    step: float | None = None,
    noise: Mapping[str, Given] | None = None,
    noise_by: NoiseBy = "kind",
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
    seconds: float | Deadline | None = None,
    draws: int = 4,
    keep_networks: bool = True,
    save: Path | str | None = None,
    resume: bool = False,
    progress: Callable[[str], None] | None = None,
    watch: Callable[[Look], None] | None = None,
) -> Fit:
    """Fit a model, and the networks of a blueprint, to recordings.

    Args:
        free: patterns of what is fitted (see `choose`), with a prior or bounds each.
        loss: "multiple shooting" (pieces of `segment` seconds whose starts are fitted and tied together), "single
            shooting" (whole recordings), "one step" (from each measured state to the next, taken as exact) or "torque"
            (a regression on measured torques, without simulation). By default, if torques of all joints were measured
            and nothing else is asked for, the regression, which roll-outs judge and refine; else multiple shooting.
            `method` of the result says which and why.
        integrator: by default RK4, which adds no error of its own to the parameters; with contact SemiImplicitEuler.
        step: longest time step [s]; samples are cut into equal ones. By default 2 ms; with RK4 5 ms, or less where
            springs, damping or servos of the joints are fast.
        noise: standard deviation of each channel: a number, one per column, or a dictionary by kind of entry such as
            {"position": 1e-3, "rotation": 1e-2}. By default it is estimated from the data, then from the residuals.
        noise_by: which entries of a channel share a noise figure: those of one "kind" (position, angle, rotation,
            velocity, angular velocity), or none: each "entry" has its own (the three of a rotation share one).
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
        seconds: for all of it, compiling included: where they do not suffice, fewer segments are used, or the held-out
            error or intervals are left out, as `left_out` of the result says. Ctrl-C ends a search too, and what was
            found so far is kept.
        draws: first weights of networks that are tried at most; the given ones suffice where the model then holds from
            piece to piece and what it leaves is noise.
        keep_networks: if False, the same is fitted without the new networks too, and they are left out unless they make
            the held-out error smaller.
        save: a file for the state while it runs. resume: go on from that file.
        progress: told in words what is going on. watch: told what the search sees.
    """
    recordings = [recordings] if isinstance(recordings, Recording) else recordings
    _check_kinds(model, recordings)
    if loss is not None:
        _one_of("loss", loss, Loss)
    _one_of("robust", robust, Robust)
    _one_of("noise_by", noise_by, NoiseBy)
    method = method_of(search)
    if drive is not None:
        _one_of("drive", drive, Drive)
    if draws < 1:
        raise ValueError(f"draws: expected 1 or more, got {draws}")
    if resume and save is None:
        raise ValueError("resume=True needs save=, the file that the fit was saved to")
    recordings = list(recordings)
    networks = without_laws(blueprint)
    other = unsuited(networks)
    asked = {
        "free": free is not None,
        other or "networks": other is not None,
        "contact": contact is not None,
        "observe": bool(observe),
        "offsets, gains or delays": bool(offsets or gains or delays),
        f'robust="{robust}"': robust != "squares",
        "a solver or a global search": solver is not None or method is not None,
        "resume": resume,
    }
    with jax.enable_x64(True), interrupts() as stop:
        search_plan = Search(
            *(solver, method, starts, workers, seed),
            seconds if isinstance(seconds, Deadline) else Deadline(seconds),
            *(draws, save, resume, stop),
            *(progress or (lambda text: None), watch or (lambda look: None), noise_by),
        )
        task = Task(
            model,
            Parameters(),
            *(blueprint, contact, integrator or (RK4() if contact is None else SemiImplicitEuler())),
            *(loss or "multiple shooting", segment, step, dict(noise or {}), dict(observe or {})),
            *(_several(offsets), _several(gains), _several(delays)),
            *(drive, robust, regularise, held_out, seed),
            search_plan,
        )
        why = "as asked for"
        if loss in (None, "torque"):
            others = [name for name, given in asked.items() if given]
            trained = task._replace(blueprint=networks)
            found = _by_torque(trained, recordings, loss is not None, others, keep_networks)
            if isinstance(found, Fit):
                return found
            why = found
        task, rescued = _started(task._replace(parameters=choose(model, free, contact)), recordings, free)
        new = not keep_networks and bool(task.new_networks)
        made = _with_networks_that_help(task, recordings) if new else _fitted(task, task.run(recordings))
        made.notes.extend(rescued)
        return replace(made, method=f"{task.loss}: {why}")


def _by_torque(
    task: Task, recordings: list[Recording], insisted: bool, asked: list[str], keep_networks: bool
) -> Fit | str:
    """The fit by a regression on torques, or why it cannot be one."""
    if asked and insisted:
        raise ValueError(f'loss="torque" is a regression without simulation: it has no {", ".join(asked)}')
    why = f"{' and '.join(asked)} given" if asked else unmeasured(task.model, recordings)
    if why is not None and not insisted:
        return why
    try:
        found = torque_fit(task, recordings, simulate=not insisted, keep_networks=keep_networks)
    except (ValueError, OutOfTime) as error:
        if insisted and isinstance(error, ValueError):
            raise
        return str(error) or "the regression on torques ran out of time"
    reason = "as asked for" if insisted else "positions and efforts of the joints were measured"
    beside = "" if task.blueprint is None else " with networks on its residuals"
    return _regressed(task, found, f"torque regression{beside}: {reason}")


def _started(task: Task, recordings: list[Recording], free) -> tuple[Task, list[str]]:
    """From the description; if its roll-outs diverge, with friction and rotor inertia of a regression on torques."""
    driven = any(drive_channel(r) is not None for r in recordings)
    if not driven or task.contact is not None or unmeasured(task.model, recordings) is not None:
        return task, []
    task.search.progress("checking whether the description can be simulated")
    bad = task.attempt("a check of the description", 0.3, lambda: diverges(task.objective(recordings, FEWEST)))
    if not bad:
        return task, []
    train, _ = parts_of(recordings, task.held_out, task.seed)
    what = "friction and rotor inertia from a regression on torques, though roll-outs of the description diverge"
    found = task.attempt(what, 0.4, lambda: regress(task.model, train))
    if found is None:
        return task, []
    model = with_measured_friction(task.model, found)
    note = (
        "roll-outs of the description diverge: friction, damping, rotor inertia and constant torques begin at those of "
        "a regression on torques"
    )
    step = found.step if task.step is None else min(task.step, found.step)
    return task._replace(model=model, parameters=choose(model, free, task.contact), step=step), [note]


def _regressed(task: Task, found: TorqueFit, method: str) -> Fit:
    """A regression as a fit."""
    regression, rollouts, deadline = found.regression, found.rollouts, task.search.deadline
    x = np.zeros(0) if rollouts is None else rollouts.of(regression.theta)
    result = Result(found.status, x, np.nan, np.zeros_like(x), seconds=found.seconds)
    objective: Any = None if rollouts is None else rollouts.objective
    simulator, shots = (None, None) if rollouts is None else (objective.simulator, rollouts.shots)
    return Fit(
        *(regression.model, None, regression.blueprint, estimates_of(regression), Certainty.unknown(0, (), ())),
        *(overall(task.model, found.noise), found.held_out, result, simulator, shots, objective, task),  # type: ignore[arg-type]
        implausible=no_links(regression.model, regression.described),
        left_out=deadline.left_out,
        notes=list(found.notes),
        regression=regression,
        method=method,
        column_noise=found.noise,
    )


def _with_networks_that_help(task: Task, recordings: list[Recording]) -> Fit:
    """The fit with its new networks, or the one without them if it predicts held-out data about as well."""
    plain = task.without_new_networks()
    if plain is None:
        made = _fitted(task, task.run(recordings))
        made.notes.append("whether the networks help was not tested: nothing else is free")
        return made
    bare = _fitted(plain, plain.run(recordings))
    made = _fitted(task, task.run(recordings))
    if bare.held_out is None or made.held_out is None:
        made.notes.append("whether the networks help was not tested: there is no held-out error")
        return made if made.evaluated else bare
    errors = ", ".join(
        f"{key} {bare.held_out.after[key]:.4g} without, {made.held_out.after[key]:.4g} with"
        for key in made.held_out.after
    )
    kept = bare.held_out.ratio(made.held_out) < HELPS
    names = " and ".join(task.new_networks)
    verdict = "is kept" if kept else "brought nothing and is left out (keep_networks=True, --keep-networks keeps it)"
    chosen = made if kept else bare
    chosen.notes.append(f"the network at {names} {verdict}; held-out error: {errors}")
    return chosen


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


class _Judged(NamedTuple):
    """What the Jacobian at the end of a search says."""

    certainty: Certainty
    next_step: float  # of the search, in standard deviations of the parameter that it would move most


def _fitted(task: Task, found: Found) -> Fit:
    """The fit, with all that is said about it; what fails or takes too long is left out, and said to be."""
    objective, result, deadline = found.objective, found.result, task.search.deadline
    simulator, z = objective.simulator, found.result.x[: objective.size]
    known, own = simulator.physical, task.parameters.size
    unknown = Certainty.unknown(
        known, objective.labels[:known], (*task.parameters.entries, *objective.labels[own:known])
    )
    judged, errors, against, unlikely = _Judged(unknown, math.nan), None, None, []
    used = task.parameters.put(task.model, task.contact, z[:own]) if found.evaluated else (task.model, task.contact)
    if found.evaluated:
        task.search.progress("working out the intervals")
        judged = task.attempt("intervals", 0.5, lambda: _judge(task, found)) or judged
        errors = task.attempt("the held-out error", 0.8, lambda: task.judge(found))
        against = task.attempt("whether recordings contradict", 0.9, lambda: find_contradictions(task, found, errors))
        unlikely = implausible(task.parameters, task.model, used[0], z)
    sure, step = judged
    rows = estimates(task.parameters, z, sure) if found.evaluated else described(task.parameters)
    rows += instrument_estimates(objective, z, sure)
    if not (result.successful or step < NEAR):
        rows = [row.without_interval() for row in rows]
    made = Fit(
        *used,
        None if simulator.blueprint is None else simulator.networks(jnp.asarray(z[known:])),
        *(rows, sure, overall(task.model, found.noise), errors, result, simulator, objective.shots, objective, task),
        *(step, against or [], unlikely, deadline.left_out),
        column_noise=found.noise,
    )
    if deadline.limited and task.attempt("what residuals show", 1.0, lambda: (made.residuals, made.missing())) is None:
        vars(made).update(residuals={}, _missing=[])
    return made


def _judge(task: Task, found: Found) -> _Judged:
    objective, x = found.objective, found.result.x
    known, jacobian = objective.simulator.physical, objective.sensitivity(x)
    more = widening(objective, jacobian, colours_of(objective, x, jacobian))
    prior, labels = objective.prior[:known], objective.labels[:known]
    sure = certainty(jacobian, known, prior, labels, task.parameters, x[: objective.size], more)
    if not sure.is_known:
        raise np.linalg.LinAlgError("the covariance is not finite: simulations diverge near the solution")
    return _Judged(sure, 0.0 if found.result.successful else _next_step(objective, x, sure))


def _next_step(objective: Objective, x: np.ndarray, sure: Certainty) -> float:
    """How far the undamped step of Gauss and Newton goes, in standard deviations of the parameters."""
    if objective.size > MANY:
        return math.inf
    residuals, jacobian = objective(x)
    reduced, problem, own = (
        jacobian.normal().reduced(jacobian.transposed(residuals)),
        objective.problem(),
        objective.size,
    )
    if reduced is None:
        return math.inf
    step = box_step(reduced.matrix, reduced.slope, problem.lower[:own] - x[:own], problem.upper[:own] - x[:own])
    known = objective.simulator.physical
    return (
        math.inf
        if step is None
        else float(np.max(np.abs(step[:known]) / np.sqrt(np.diag(sure.covariance)), initial=0.0))
    )
