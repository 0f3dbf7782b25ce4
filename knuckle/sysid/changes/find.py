"""`find_changes`: what changed on a robot between two sets of logs, on top of the regression on torques."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.changes.differences import Difference, Pair
from knuckle.sysid.changes.gains import drive_gains
from knuckle.sysid.changes.intervals import spread
from knuckle.sysid.changes.payloads import payload_body
from knuckle.sysid.changes.quantities import described_changes, excluded_payload, residuals
from knuckle.sysid.changes.result import Change, Changes, Gain
from knuckle.sysid.changes.search import search
from knuckle.sysid.changes.sides import make_side, zero_columns
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.checks import scale_notes
from knuckle.sysid.regression.design import Layout
from knuckle.sysid.regression.friction import MOVES
from knuckle.sysid.regression.jackknife import block_length
from knuckle.sysid.regression.prior import metric, metric_centre
from knuckle.sysid.regression.problem import Problem, inefficiencies
from knuckle.sysid.regression.regress import LEAST_SECONDS, regress
from knuckle.sysid.regression.result import Regression, joint_name
from knuckle.sysid.regression.signals import Signals, prepare

LARGEST_ZERO = 0.15  # [rad or m]: a larger change of a joint's zero is doubtful
FIRST_BLOCK = 1.0  # [s], before the autocorrelation of the residuals is known


def find_changes(
    model: Model,
    before: Recording | Sequence[Recording],
    after: Recording | Sequence[Recording],
    *,
    load: Mapping[str, float] | None = None,
    gains: Mapping[str, float] | None = None,
    regression: Regression | None = None,
) -> Changes:
    """Compare two sets of logs of one robot: a payload, friction, an offset or a joint's zero, or nothing.

    Both sets are fitted together, with shared parameters and a few differences. Friction and offsets of all joints may
    always differ; payloads and zeros are added if cross-validation over blocks asks for them.

    Args:
        before, after: with positions, if possible velocities, and torques or controls of motors, like for `regress`.
        load: link or frame and mass [kg] of a known load that is on the robot after, to estimate the drive gains.
        gains: N m/A or N/A by joint, if "tau" holds currents.
        regression: of the logs before, if it is already there.
    """
    first, second = _runs(before, "before"), _runs(after, "after")
    _check(first, second)
    place = None if load is None else _load(model, load)
    with jax.enable_x64(True):
        found = regress(model, first, gains=gains) if regression is None else regression
        sets = prepare(model, first, gains), prepare(model, second, gains)
        layout, notes = _layout(model, found, *sets)
        pair = _pair(found, layout, *sets, found.cutoff)
        pair, joints = _with_zeros(pair)
        drift = joint_differences(layout)
        candidates = [*payload_differences(model), *zero_differences(layout, joints)]
        slower = _pair(found, layout, *sets, found.cutoff / 2, pair.before.problem.design.seconds)
        slower = _with_zeros(slower)[0]
        chosen = search(pair, slower, drift, candidates)
        groups = (*drift, *chosen.chosen)
        estimates = spread(pair, slower, groups)
        changes, drifts = described_changes(pair, estimates, chosen)
        known = () if place is None else _gains(pair, slower, drift, place)
        payload = any(c.kind == "payload" for c in changes)
        return Changes(
            changes=changes,
            drifts=drifts,
            gains=known,
            errors=residuals(pair, groups, estimates.estimate),
            excluded=None if payload else excluded_payload(pair, slower, drift, payload_differences(model)),
            notes=(*notes, *_doubts(pair, changes), *_other_payloads(model, changes, place)),
            blocks=(pair.before.block_gram.blocks, pair.after.block_gram.blocks),
            block=pair.before.problem.design.seconds,
            regression=found,
        )


def _runs(given: Recording | Sequence[Recording], name: str) -> list[Recording]:
    runs = [given] if isinstance(given, Recording) else given
    if not isinstance(runs, Iterable) or not all(isinstance(run, Recording) for run in runs):
        raise TypeError(f"find_changes: {name} must be recordings, got {type(given).__name__}")
    if not len(runs):
        raise ValueError(f"find_changes: at least one recording {name} is needed")
    return list(runs)


def _check(before: Sequence[Recording], after: Sequence[Recording]) -> None:
    for a in before:
        for b in after:
            same = a is b or (len(a) == len(b) and all(k in b.channels for k in a.channels) and _equal(a, b))
            if same:
                raise ValueError(f"find_changes: {a.name!r} is in both sets: two different recordings are needed")


def _equal(a: Recording, b: Recording) -> bool:
    return all(np.array_equal(a[key].values, b[key].values, equal_nan=True) for key in a.channels)


def _load(model: Model, load: Mapping[str, float]) -> tuple[int, float]:
    """Link and mass of the known load."""
    if len(load) != 1:
        raise ValueError(f"find_changes: load must be one link and its load's mass, got {len(load)} entries")
    ((name, mass),) = load.items()
    frames = dict(zip(model.frames.names, model.frames.link, strict=True))
    links = {**{n: k for n, k in frames.items() if k >= 0}, **{n: k for k, n in enumerate(model.link_names)}}
    if name not in links:
        raise ValueError(f"find_changes: load: no link or frame {name!r}; there are {', '.join(links)}")
    if not (np.isfinite(mass) and mass > 0):
        raise ValueError(f"find_changes: load: the mass on {name} must be positive, got {mass}")
    return links[name], float(mass)


def _layout(
    model: Model, found: Regression, before: Sequence[Signals], after: Sequence[Signals]
) -> tuple[Layout, tuple[str, ...]]:
    """Joints that move and whose efforts are measured in both sets, with the friction terms of the regression."""
    kept = []
    for k, dof in enumerate(found.layout.joints):
        seconds = [sum(_moving_seconds(s, dof, found.layout.slow[dof]) for s in signals) for signals in (before, after)]
        if min(seconds) >= LEAST_SECONDS:
            kept.append(k)
    names = [joint_name(model, dof) for dof in found.layout.joints]
    left = [n for k, n in enumerate(names) if k not in kept]
    if not kept:
        raise ValueError(
            f"find_changes: no joint with measured effort moves for at least {LEAST_SECONDS:g} s in both sets of logs: "
            "dry friction hides what changed; record motions"
        )
    layout = found.layout
    joints, friction = (tuple(x[k] for k in kept) for x in (layout.joints, layout.friction))
    notes = (f"{', '.join(left)} do not move in both sets, or have no measured effort there: left out",) if left else ()
    return Layout(model, joints, friction), notes


def _moving_seconds(signals: Signals, dof: int, slow: float) -> float:
    moves = signals.measured[:, dof] & (np.abs(signals.qd[:, dof]) > MOVES * slow)
    effort = signals.effort[signals.measured[:, dof], dof]
    return float(moves.sum() / signals.rate) if len(effort) and np.ptp(effort) > 0 else 0.0


def _pair(
    found: Regression,
    layout: Layout,
    before: Sequence[Signals],
    after: Sequence[Signals],
    cutoff: float,
    seconds: float | None = None,
) -> Pair:
    """Both sets below a cut-off [Hz] in blocks of `seconds`.

    The prior has the metric of links with a payload on each, so that it does not hold a set with a load back.
    """
    described, model = found.problem.described, layout.model
    body = payload_body(model, described)
    problem: Problem = replace(found.problem, metric=metric(metric_centre(model, described) + body))
    first = make_side(before, problem, layout, cutoff, FIRST_BLOCK)
    second = make_side(after, problem, layout, cutoff, FIRST_BLOCK)
    if seconds is None:
        seconds = min(block_length(s.problem, s.solved, inefficiencies(s.solved)) for s in (first, second))
    return Pair(first.divided(seconds), second.divided(seconds), body, problem.prior)


def _with_zeros(pair: Pair) -> tuple[Pair, tuple[int, ...]]:
    """With columns of joints' zeros, and these joints."""
    joints, columns = zero_columns(pair.after, pair.before.theta[: pair.layout.inertial])
    return replace(pair, after=pair.after.with_columns(columns)), joints


def joint_differences(layout: Layout) -> list[Difference]:
    """Friction and offset of each joint."""
    found = []
    for k, dof in enumerate(layout.joints):
        name = joint_name(layout.model, dof)
        found.append(Difference("friction", name, (layout.at(k, "damping"), layout.at(k, "friction"))))
        found.append(Difference("offset", name, (layout.at(k, "offset"),)))
    return found


def payload_differences(model: Model) -> list[Difference]:
    return [Difference("payload", link, tuple(range(10 * k, 10 * k + 10))) for k, link in enumerate(model.link_names)]


def zero_differences(layout: Layout, joints: Sequence[int]) -> list[Difference]:
    return [Difference("zero", joint_name(layout.model, j), (layout.size + k,)) for k, j in enumerate(joints)]


def _doubts(pair: Pair, changes: Sequence[Change]) -> list[str]:
    """Notes on logs after whose efforts have another sign or scale, and on zeros beyond the linearisation."""
    notes = [f"logs after: {note}" for note in scale_notes(pair.after.problem.design, pair.layout)]
    for change in changes:
        if change.kind == "zero" and abs(change["zero"].value) > LARGEST_ZERO:
            notes.append(
                f"the zero of {change.place} moved by over {LARGEST_ZERO:g}; beyond that its effect is not linear: "
                "correct the positions of the logs after and compare again"
            )
    return notes


def _other_payloads(model: Model, changes: Sequence[Change], place: tuple[int, float] | None) -> tuple[str, ...]:
    """A note if the logs show changes beside the known load, or another one."""
    if place is None:
        return ()
    link = model.link_names[place[0]]
    if [(c.kind, c.place) for c in changes if c.kind in ("payload", "zero")] == [("payload", link)]:
        return ()
    return (f"the logs do not show a load on {link} and nothing else: the drive gains rest on it nevertheless",)


def _gains(pair: Pair, slower: Pair, drift: Sequence[Difference], place: tuple[int, float]) -> tuple[Gain, ...]:
    """Drive gains with the known load as the only payload."""
    link, mass = place
    payload = payload_differences(pair.layout.model)[link]
    groups = [*drift, payload]
    if pair.solve(groups, consistent=False).of(groups, payload.key)[0] <= 0:
        raise ValueError(
            f"find_changes: load: the logs after do not show a load on {payload.place} (its estimated mass is not "
            "positive): are the two sets of logs in the right order?"
        )
    return drive_gains(pair, slower, drift, pair.solve(groups), payload, mass)
