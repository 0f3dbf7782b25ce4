"""A fit where joint torques were measured: regression first, judged by roll-outs, refined if that helps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import equinox as eqx
import numpy as np

from knuckle.deadline import bounded, slowness
from knuckle.model.model import Model
from knuckle.optim import Status
from knuckle.sysid.absurd import check_sizes
from knuckle.sysid.entries import names_of
from knuckle.sysid.findings import listed
from knuckle.sysid.held_out import DIVERGED, HeldOut, from_differences
from knuckle.sysid.noise_kinds import ChannelNoise
from knuckle.sysid.objective import Objective
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.design import Design, make_stretch
from knuckle.sysid.regression.held import coupled, held_names, unlogged
from knuckle.sysid.regression.learn import block_squares, learn
from knuckle.sysid.regression.refine import refine
from knuckle.sysid.regression.regress import SELECTION_BLOCK, refit, regress
from knuckle.sysid.regression.result import Regression
from knuckle.sysid.regression.rollouts import Rollouts
from knuckle.sysid.regression.selection import helps
from knuckle.sysid.regression.signals import efforts, prepare
from knuckle.sysid.selection import subset
from knuckle.sysid.split import thinned
from knuckle.sysid.task import Task, parts_of
from knuckle.taps import Blueprint

Answer = TypeVar("Answer")
REGRESSION = 0.9  # share of the time
SAMPLES = 10_000  # of a joint for each second that is left: a regression, its like without held-out data, and a reserve
LEAST_SAMPLES = 100_000  # fewer save little: the rest of the work does not depend on their number
LEARNING = 0.4  # share of the time for networks: twice, and roll-outs between
LEAST_GAIN = 0.02  # by so much networks must lower the held-out torque error
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


def torque_fit(task: Task, recordings: list[Recording], simulate: bool, keep_networks: bool = True) -> TorqueFit:
    """The regression on all recordings but held-out ones. ValueError: why there is none.

    With a share held out, roll-outs of the same regression to the rest are compared with that share. Networks of the
    task are trained on residual torques. They, or else a refinement by roll-outs, are accepted by the same data, and
    then made with all recordings.
    """
    began, search = time.monotonic(), task.search
    train, test = parts_of(recordings, task.held_out, task.seed)
    check_sizes([*train, *test])
    share = isinstance(task.held_out, float | int)
    part = _affordable(task, [*train, *test])
    if part < 1:
        train, test = thinned(train, part), thinned(test, part)
        recordings = [*train, *test] if share else train
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
    simulate = simulate and bool(test) and not held
    if simulate or task.blueprint is not None:
        what = "whatever held-out data judge"
        partial = _attempt(task, what, 0.6, lambda: refit(found, train)) if share and test else found
        made = made if partial is None else _judged(task, made, partial, train, test, simulate, keep_networks)
    status = Status.INTERRUPTED if search.stop.asked else made.status
    return made._replace(status=status, seconds=time.monotonic() - began)


def _affordable(task: Task, recordings: Sequence[Recording]) -> float:
    """The share of the samples that the time allows; what is left out is said."""
    deadline = task.search.deadline
    samples = sum(map(len, recordings)) * task.model.nv
    most = max(deadline.left * SAMPLES / slowness(), LEAST_SAMPLES)
    if samples <= most:
        return 1.0
    deadline.leave_out(f"data: {most / samples:.0%} are used, spread over the recordings: all of them need more time")
    return most / samples


def _attempt(task: Task, what: str, part: float, function: Callable[[], Answer]) -> Answer | None:
    def work() -> Answer:
        with task.search.stop.anywhere():
            return function()

    return task.attempt(what, part, work)


def _judged(
    task: Task,
    made: TorqueFit,
    partial: Regression,
    train: list[Recording],
    test: list[Recording],
    simulate: bool,
    keep_networks: bool,
) -> TorqueFit:
    """Networks, roll-outs and a refinement, all judged by data that `partial` did not see."""
    search, learnt = task.search, None
    if task.blueprint is not None:
        search.progress("training networks on residual torques")
        learnt = _attempt(task, "the networks", LEARNING, lambda: _learnt(task, partial, task.blueprint))
    if simulate:
        search.progress("simulating held-out data")
        work = lambda: _simulated(task, made, partial, learnt, train, test)  # noqa: E731
        made = _attempt(task, "the motion error on held-out data", 0.6, work) or made
    if learnt is not None:
        made = _with_networks(task, made, partial, learnt, test, keep_networks)
    if made.rollouts is not None and made.regression.layout.networks is None:
        search.progress("refining by roll-outs")
        made = _attempt(task, "refinement by roll-outs", 0.8, lambda: _refined(task, made, partial, test)) or made
    return made


def _learnt(task: Task, partial: Regression, networks: Blueprint | None) -> Regression:
    """The regression with networks trained on its residuals, within half of the time that is left."""
    assert networks is not None
    search, deadline = task.search, task.search.deadline.share(0.5 * LEARNING)
    options = {"regularise": task.regularise, "draws": search.draws, "seed": task.seed, "tell": search.progress}
    return learn(partial, networks, deadline=deadline, **options)


def _simulated(
    task: Task,
    made: TorqueFit,
    partial: Regression,
    learnt: Regression | None,
    train: list[Recording],
    test: list[Recording],
) -> TorqueFit:
    """With the motion error on held-out data of `partial`, the regression that did not see them."""
    found = made.regression
    if learnt is not None:
        found = replace(found, layout=learnt.layout).moved(found.theta)
    period = float(np.median([r.period for r in (*train, *test)]))
    options = {"integrator": task.integrator, "step": task.step, "drive": task.drive}
    length = task.segment or max(0.5, 25 * period)
    rollouts = Rollouts(found, [*train, *test], noise=made.noise, segment=length, **options)
    unseen = np.asarray(rollouts.shots.run) >= len(train)
    rollouts.silent = True
    before, after = (rollouts.differences(z) for z in (rollouts.described, rollouts.of(partial.theta)))
    before, after = _of((before, after), unseen)
    held_out = from_differences(task.model, subset(rollouts.shots, np.flatnonzero(unseen)), before, after, FILTERED)
    if rollouts.shots.count < rollouts.available:
        task.search.deadline.leave_out(
            f"roll-outs: {rollouts.shots.count} of {rollouts.available} segments are simulated, spread over the data"
        )
    return made._replace(held_out=held_out, rollouts=rollouts, unseen=unseen)


def _with_networks(
    task: Task, made: TorqueFit, partial: Regression, learnt: Regression, test: list[Recording], insisted: bool
) -> TorqueFit:
    """The fit with networks, if torques and motion of held-out data are for them or it is insisted; with a note."""
    names = " and ".join(learnt.layout.networks.augments) if learnt.layout.networks is not None else ""
    if not test:
        return _kept(task, made, partial, learnt, test, f"the network at {names}: no data are held out to judge it")
    gain, ratio = torque_gain(*(block_squares(r, _blocks(learnt, test)) for r in (partial, learnt)))
    useful = gain and ratio <= 1 - LEAST_GAIN
    figures, worse, held_out = f"torque error {ratio - 1:+.1%}", False, made.held_out
    if made.rollouts is not None and held_out is not None and made.unseen is not None:
        (new,) = _of([made.rollouts.differences(made.rollouts.numbers(learnt.model, learnt.blueprint))], made.unseen)
        after = from_differences(task.model, held_out.shots, held_out.off_before, new, FILTERED)
        first, second = segment_squares(held_out.off_after["q"], new["q"])
        worse = helps(second, first)
        errors = [held_out.text("q", h.after["q"]) for h in (held_out, after)]
        figures += f", position error {errors[0]} -> {errors[1]}"
        held_out = after
    if insisted or (useful and not worse):
        verdict = "is kept" if useful and not worse else "is kept as asked for, though it brings nothing"
        note = f"the network at {names} {verdict}; held-out data with it: {figures}"
        return _kept(task, made._replace(held_out=held_out), partial, learnt, test, note)
    why = "roll-outs get worse" if useful else f"torques gain less than {LEAST_GAIN:.0%} or one standard error"
    verdict = f"brought nothing and is left out ({why}; keep_networks=True, --keep-networks keeps it)"
    return _noted(made, f"the network at {names} {verdict}; held-out data with it: {figures}")


def torque_gain(before: np.ndarray, after: np.ndarray) -> tuple[bool, float]:
    """Whether squared residuals (joint, block) fall by more than one standard error, and the ratio of the errors.

    The ratio is the geometric mean over the joints. Joints count in units of the geometric mean of both errors, so that
    one which gains much and one which loses as much cancel.
    """
    sums = [np.maximum(squares.sum(axis=1), 1e-300) for squares in (before, after)]
    unit = np.sqrt(sums[0] * sums[1])[:, None]
    return helps((before / unit).sum(axis=0), (after / unit).sum(axis=0)), float(
        np.exp(0.5 * np.mean(np.log(sums[1] / sums[0])))
    )


def _kept(
    task: Task, made: TorqueFit, partial: Regression, learnt: Regression, test: list[Recording], note: str
) -> TorqueFit:
    """With networks trained on all data, from the weights that held-out data judged."""
    final, found = learnt, made.regression
    if partial is not found:
        networks = learnt.layout.networks
        final = _attempt(task, "networks trained on all data", LEARNING, lambda: _learnt(task, found, networks))
        if final is None:  # the weights that held-out data judged
            final = replace(found, layout=learnt.layout).moved(found.theta)
    if test:
        torques = learnt.torque_errors(test)
        final = replace(final, errors=tuple(e._replace(held_out=torques[e.joint]) for e in final.errors))
    if made.rollouts is not None:
        made.rollouts.found, made.rollouts.silent = final, False
    return _noted(made._replace(regression=final), note)


def _blocks(found: Regression, recordings: Sequence[Recording]) -> Design:
    signals = prepare(found.described, recordings, found.gains)
    stretches = [make_stretch(found.described, s, found.cutoff, found.layout.slow) for s in signals]
    return Design(found.described, stretches, SELECTION_BLOCK)


def _of(parts: Sequence[dict[str, np.ndarray]], segments: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [{key: off[segments] for key, off in part.items()} for part in parts]


def _refined(task: Task, made: TorqueFit, partial: Regression, test: list[Recording]) -> TorqueFit:
    """The refined fit, if held-out data are for it; else the regression, with a note."""
    found, rollouts, held_out, unseen = made.regression, made.rollouts, made.held_out, made.unseen
    assert rollouts is not None and held_out is not None and unseen is not None
    stop = task.search.stop.end_if_asked
    tried = refine(partial, rollouts, ~unseen, stop)
    if not tried.refined:
        return _noted(made, "refinement by roll-outs found nothing better than the regression")
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
        return _noted(made, f"refinement by roll-outs was refused, the regression stands ({why}): {figures}")
    final = tried if partial is found else refine(found, rollouts, stop=stop)
    torques = tried.torque_errors(test)
    final = replace(final, errors=tuple(e._replace(held_out=torques[e.joint]) for e in final.errors))
    note = f"refined by roll-outs within the covariance of the regression: {figures}"
    return _noted(made._replace(regression=final, held_out=after), note)


def _noted(made: TorqueFit, note: str) -> TorqueFit:
    return made._replace(notes=[*made.notes, note])


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
