"""A fit where joint torques were measured: regression first, judged by roll-outs, refined if that helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import equinox as eqx
import numpy as np

from knuckle.deadline import bounded
from knuckle.model.model import Model
from knuckle.optim import Status
from knuckle.sysid.absurd import check_sizes
from knuckle.sysid.entries import names_of
from knuckle.sysid.findings import listed
from knuckle.sysid.held_out import DIVERGED, HeldOut, from_differences
from knuckle.sysid.noise_kinds import ChannelNoise
from knuckle.sysid.objective import Objective
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.held import coupled, held_names, unlogged
from knuckle.sysid.regression.refine import refine
from knuckle.sysid.regression.regress import refit, regress
from knuckle.sysid.regression.result import Regression
from knuckle.sysid.regression.rollouts import Rollouts
from knuckle.sysid.regression.selection import helps
from knuckle.sysid.regression.signals import efforts
from knuckle.sysid.selection import subset
from knuckle.sysid.task import Task, parts_of

Answer = TypeVar("Answer")
REGRESSION = 0.9  # share of the time
TORQUE_MARGIN = 0.02  # by so much the held-out torque error may rise
MOST_SQUARE = 1e3  # of a segment over the mean: one that diverges does not outweigh all others
FILTERED = "filtered positions and velocities"


class TorqueFit(NamedTuple):
    """What was found, and how its roll-outs do on held-out data."""

    regression: Regression
    noise: dict[str, ChannelNoise]  # standard deviation of each channel
    rollouts: Rollouts | None = None  # of all recordings
    unseen: np.ndarray | None = None  # which of them are held out
    held_out: HeldOut | None = None
    status: Status = Status.CONVERGED
    seconds: float = 0.0
    notes: Sequence[str] = ()


def unmeasured(model: Model, recordings: Sequence[Recording]) -> str | None:
    """Why the torques of a log say nothing about all joints, in words; None: they do."""
    for recording in recordings:
        if "q" not in recording.channels:
            return f"{recording.name} has no joint positions"
        if "tau" not in recording.channels and "control" not in recording.channels:
            return f"{recording.name} has neither joint torques nor controls"
        try:
            known = efforts(model, recording)[1].any(axis=0)
        except ValueError as error:
            return str(error)
        lacking = ~known & ~coupled(model) & ~unlogged(model, recording)
        if lacking.any():
            return f"{recording.name} has no effort of {listed(np.array(names_of(model, 'tau'), object)[lacking])}"
    return None


def torque_fit(task: Task, recordings: list[Recording], simulate: bool) -> TorqueFit:
    """The regression on all recordings but held-out ones. ValueError: why there is none.

    With a share held out, roll-outs of the same regression to the rest are compared with that share. A refinement by
    roll-outs is accepted by the same data, and then made with all recordings.
    """
    began, search = time.monotonic(), task.search
    train, test = parts_of(recordings, task.held_out, task.seed)
    check_sizes([*train, *test])
    share = isinstance(task.held_out, float | int)
    search.progress("regression on torques")

    def regressed() -> Regression:
        with search.stop.anywhere():
            return regress(task.model, recordings, held_out=() if share else test)

    found = bounded(regressed, search.deadline.share(REGRESSION), search.stop)
    noise = task.first_noise(recordings)
    made = TorqueFit(found, noise)
    held = [name for name, tied in zip(names_of(task.model, "tau"), coupled(task.model), strict=True) if tied]
    held = list(dict.fromkeys([*held, *(name for r in recordings for name in held_names(task.model, [r]))]))
    if simulate and held:
        task.search.deadline.leave_out(
            f"roll-outs: forces at {listed(held)} are not known, so the motion cannot be simulated"
        )
    elif simulate and test:
        search.progress("simulating held-out data")
        judged = _attempt(task, "the motion error on held-out data", 0.6, lambda: _judged(task, made, train, test))
        if judged is not None:
            made, partial = judged
            search.progress("refining by roll-outs")
            made = _attempt(task, "refinement by roll-outs", 0.8, lambda: _refined(task, made, partial, test)) or made
    status = Status.INTERRUPTED if search.stop.asked else made.status
    return made._replace(status=status, seconds=time.monotonic() - began)


def _attempt(task: Task, what: str, part: float, function: Callable[[], Answer]) -> Answer | None:
    def work() -> Answer:
        with task.search.stop.anywhere():
            return function()

    return task.attempt(what, part, work)


def _judged(task: Task, made: TorqueFit, train: list[Recording], test: list[Recording]) -> tuple[TorqueFit, Regression]:
    """With the motion error on held-out data, and the regression that did not see them."""
    found = made.regression
    partial = refit(found, train) if isinstance(task.held_out, float | int) else found
    period = float(np.median([r.period for r in (*train, *test)]))
    options = {"integrator": task.integrator, "step": task.step, "drive": task.drive}
    length = task.segment or max(0.5, 25 * period)
    rollouts = Rollouts(found, [*train, *test], noise=made.noise, segment=length, **options)  # pyright: ignore[reportArgumentType]
    unseen = np.asarray(rollouts.shots.run) >= len(train)
    before, after = (rollouts.differences(z) for z in (rollouts.described, rollouts.of(partial.theta)))
    before, after = _of((before, after), unseen)
    held_out = from_differences(task.model, subset(rollouts.shots, np.flatnonzero(unseen)), before, after, FILTERED)
    if rollouts.shots.count < rollouts.available:
        task.search.deadline.leave_out(
            f"roll-outs: {rollouts.shots.count} of {rollouts.available} segments are simulated, spread over the data"
        )
    return made._replace(held_out=held_out, rollouts=rollouts, unseen=unseen), partial


def _of(parts: Sequence[dict[str, np.ndarray]], segments: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [{key: off[segments] for key, off in part.items()} for part in parts]


def _refined(task: Task, made: TorqueFit, partial: Regression, test: list[Recording]) -> TorqueFit:
    """The refined fit, if held-out data are for it; else the regression, with a note."""
    found, rollouts, held_out, unseen = made.regression, made.rollouts, made.held_out, made.unseen
    assert rollouts is not None and held_out is not None and unseen is not None
    stop = task.search.stop.end_if_asked
    tried = refine(partial, rollouts, ~unseen, stop)
    if not tried.refined:
        return made._replace(notes=["refinement by roll-outs found nothing better than the regression"])
    (new,) = _of([rollouts.differences(rollouts.of(tried.theta))], unseen)
    after = from_differences(task.model, held_out.shots, held_out.off_before, new, FILTERED)
    torque = torque_ratio(partial, tried, test)
    better, cheap = helps(*segment_squares(held_out.off_after["q"], new["q"])), torque <= 1 + TORQUE_MARGIN
    errors = [held_out.text("q", h.after["q"]) for h in (held_out, after)]
    figures = (
        f"position error {errors[0]} -> {errors[1]}, torque error {round(torque - 1, 3) + 0.0:+.1%} on held-out data"
    )
    if not (better and cheap):
        why = "torques get worse" if better else "the position error does not fall by more than one standard error"
        return made._replace(notes=[f"refinement by roll-outs was refused, the regression stands ({why}): {figures}"])
    final = tried if partial is found else refine(found, rollouts, stop=stop)
    torques = tried.torque_errors(test)
    final = replace(final, errors=tuple(e._replace(held_out=torques[e.joint]) for e in final.errors))
    notes = [f"refined by roll-outs within the covariance of the regression: {figures}"]
    return made._replace(regression=final, held_out=after, notes=notes)


def segment_squares(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean squares of each segment, joints in units of their mean before; (segment, sample, joint) of errors."""

    def squares(off: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.nanmean(np.square(off[:, 1:]), axis=1)

    first = squares(before)
    scale = np.maximum(np.median(np.where(np.isfinite(first), first, np.inf), axis=0), 1e-300)
    return tuple(np.minimum(np.nanmean(x / scale, axis=1), MOST_SQUARE) for x in (first, squares(after)))  # type: ignore[return-value]


def torque_ratio(before: Regression, after: Regression, recordings: Sequence[Recording]) -> float:
    """Torque error on recordings over that of another, joints in units of their residuals."""
    squares = [np.array(list(f.torque_errors(recordings).values())) ** 2 for f in (before, after)]
    weight = 1 / np.square(before.solved.deviation)
    known = np.isfinite(squares[0]) & np.isfinite(squares[1])
    if not known.any():
        return 1.0
    return float(np.sqrt(np.sum((weight * squares[1])[known]) / np.sum((weight * squares[0])[known])))


def with_measured_friction(model: Model, found: Regression) -> Model:
    """A description with friction, rotor inertia and constant torques as measured torques show them."""

    def of(m: Model):
        return m.armature, m.damping, m.friction, m.friction_speed, m.actuators.bias

    return eqx.tree_at(of, model, of(found.plain_model()))


def diverges(objective: Objective) -> bool:
    """Whether roll-outs of the description are farther from the data than ten times their spread, or not finite."""
    for key, part in objective.by_channel(objective.first).items():
        weight = np.asarray(objective.shots.weight[key]) > 0
        spread = float(np.std(np.asarray(objective.shots.measured[key])[weight])) if weight.any() else 0.0
        with np.errstate(all="ignore"):
            off = part / np.where(objective.weights(key) > 0, objective.weights(key), np.nan)
        seen = objective.weights(key) > 0
        if seen.any() and not np.sqrt(np.mean(np.square(off[seen]))) <= DIVERGED * max(spread, 1e-12):
            return True
    return False
