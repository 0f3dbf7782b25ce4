"""Forces held against those of the description: signs, units, currents, exchanged joints, zeros of joints.

The description need not be right, only near enough that its rigid-body forces, with any friction, rotor inertia and
scale of each joint, explain most of the measured ones. What is suspected explains far more of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.check_motion import pairs
from knuckle.sysid.check_torques import filled, forces_on_joints, model_says, smoothed
from knuckle.sysid.compare import even
from knuckle.sysid.draft import Draft
from knuckle.sysid.effort_model import Explained, Motions, explain, explain_many, payload_effect
from knuckle.sysid.entries import names_of
from knuckle.sysid.findings import Report

WINDOWS = (0.06, 0.24)  # over which motion and forces are smoothed [s]: noisy logs need the long one
ENOUGH, MOST_ROWS = 100, 300  # samples
SLOWEST = 0.02  # [rad/s or m/s]: a robot that never exceeds it stands still
DOUBT = 0.05  # share of a force's variance that is unexplained, below which nothing is looked for
BETTER = 1.5  # by which the sum of logarithms of what is unexplained must fall
AS_GOOD = 0.3  # difference of that sum between explanations that cannot be told apart
WELL = 0.35  # share of the variance that may stay unexplained where a fault was found
STEP = 15  # of zeros of joints that are tried [degrees]
LEAST_ANGLE = 20.0  # [degrees]: less passes for an error of the description
MOST_FAULTS = 3
ANOTHER = 4.0  # times as large as described, or as small: no masses are so far off
CLEAR = 0.5  # share of what is unexplained with the described scale that another scale may leave
RIGID = 0.3  # share of a force that rigid-body forces make up, from which on their scale is known
MOST_JOINTS = 14  # beyond, only signs are tried: pairs and zeros are too many


class Fault(NamedTuple):
    """One thing that may be wrong, and the motions without it."""

    kind: str  # "force sign", "motion sign", "forces", "motions", "joints", "zero"
    dofs: tuple[int, ...]
    motions: Motions
    angle: float = 0.0  # [rad]


ORDER = ("force sign", "motion sign", "forces", "motions", "joints", "zero")  # simple explanations first


def check_efforts(draft: Draft, report: Report) -> None:
    """What forces and motion contradict, if the description is near the truth, is suspect."""
    for channel in ("tau", "control"):
        motions = _motions(draft, channel)
        if motions is None:
            continue
        for _ in range(MOST_FAULTS):
            found = find_fault(draft.model, motions)
            if not found:
                break
            _say(draft, channel, found, report)
            motions = found[0].motions
        _check_scale(draft, channel, motions, explain(draft.model, motions), report)


def find_fault(model: Model, motions: Motions) -> list[Fault]:
    """The explanation that leaves far less unexplained, with others that are as good; none if nothing does."""
    before = explain(model, motions)
    if before.unexplained.max() < DOUBT:
        return []
    faults = list(_faults(model, motions))
    after = explain_many(model, [fault.motions for fault in faults])
    gains = np.array([before.score - e.score for e in after])
    believed = [_believed(fault, motions, before, e) for fault, e in zip(faults, after, strict=True)]
    gains = np.where(believed, gains, -np.inf)
    if not len(gains) or gains.max() < BETTER:
        return []
    close = [
        k for k in np.flatnonzero(gains > gains.max() - AS_GOOD) if faults[k].kind != "zero" or gains[k] == gains.max()
    ]
    chosen = sorted((faults[k] for k in close), key=lambda fault: ORDER.index(fault.kind))
    first = _refined(model, chosen[0]) if chosen[0].kind == "zero" else chosen[0]
    if first.kind == "zero" and abs(np.degrees(first.angle)) < LEAST_ANGLE:
        return []
    return [first, *(fault for fault in chosen[1:] if fault.kind != "zero")]


def _believed(fault: Fault, motions: Motions, before: Explained, after: Explained) -> bool:
    """Whether the joints that gain by it are then explained well."""
    gained = np.log(np.maximum(before.unexplained, 0.01) / np.maximum(after.unexplained, 0.01))
    most = int(np.argmax(gained))
    return bool(after.unexplained[most] < WELL)


def _faults(model: Model, motions: Motions) -> Iterator[Fault]:
    driven = motions.dofs
    turning = [
        int(v) for kind, v in zip(model.topology.kind, model.topology.v_start, strict=True) if kind == "revolute"
    ]
    for dof in driven:
        yield Fault("force sign", (dof,), motions.reversed_force(dof))
    for dof in range(model.nv):
        yield Fault("motion sign", (dof,), motions.reversed_motion(dof))
    for a, b in itertools.combinations(range(model.nv), 2) if model.nv <= MOST_JOINTS else ():
        yield Fault("motions", (a, b), motions.exchanged_motion(a, b))
        if a in driven and b in driven:
            yield Fault("forces", (a, b), motions.exchanged_forces(a, b))
            yield Fault("joints", (a, b), motions.exchanged_motion(a, b).exchanged_forces(a, b))
    for dof in turning if model.nv <= MOST_JOINTS else ():
        for degrees in range(STEP - 180, 181, STEP):
            if degrees:
                yield _zero(motions, dof, np.radians(degrees))


def _zero(motions: Motions, dof: int, by: float) -> Fault:
    return Fault("zero", (dof,), motions.turned(dof, by), by)


def _refined(model: Model, fault: Fault) -> Fault:
    """The zero of a joint to about a degree."""
    (dof,) = fault.dofs
    start = fault.motions.turned(dof, -fault.angle)
    tried = [_zero(start, dof, fault.angle + np.radians(d)) for d in np.arange(-14.0, 15.0, 2.0)]
    scores = [e.score for e in explain_many(model, [t.motions for t in tried])]
    return tried[int(np.argmin(scores))]


def _say(draft: Draft, channel: str, found: list[Fault], report: Report) -> None:
    names, fault, count = names_of(draft.model, "tau"), found[0], len(draft.time)
    joints = [names[dof] for dof in fault.dofs]
    others = "".join(f"; or {_worded(f, channel, [names[d] for d in f.dofs])}" for f in found[1:3])
    what, place, advice = _advised(fault, channel, joints)
    detail = f"{_worded(fault, channel, joints)}, by the description's forces{others}; {advice}"
    draft.say(report, what, place, count, "suspect", detail)


def _advised(fault: Fault, channel: str, joints: list[str]) -> tuple[str, str, str]:
    """Kind and place of a finding, and what to do."""
    if fault.kind == "force sign":
        return "opposite force", f"{channel} {joints[0]}", "change the sign of this column"
    if fault.kind == "motion sign":
        return "opposite motion", f"q {joints[0]}", "change the sign of its positions and velocities"
    if fault.kind == "zero":
        add = f"add {np.degrees(fault.angle):.0f} degrees ({fault.angle:.3g} rad) to it, or fit it with --offset q"
        return "zero offset", f"q {joints[0]}", add
    key = channel if fault.kind == "forces" else "q"
    a, b = joints
    advice = f"say which is which with --column 'NAME={key} {a}' and --column 'NAME={key} {b}'"
    places = {"forces": f"{channel} {a}, {b}", "motions": f"q {a}, {b}", "joints": f"{a}, {b}"}
    return "exchanged joints", places[fault.kind], advice + ", in all channels" * (fault.kind == "joints")


def _worded(fault: Fault, channel: str, joints: list[str]) -> str:
    if fault.kind == "zero":
        return f"the zero of {joints[0]} is about {-np.degrees(fault.angle):.0f} degrees off"
    return {
        "force sign": f"{channel} of {joints[0]} has the opposite sign",
        "motion sign": f"{joints[0]} moves the other way than its positions say",
        "forces": f"{channel} of {' and '.join(joints)} are exchanged",
        "motions": f"positions of {' and '.join(joints)} are exchanged",
        "joints": f"{' and '.join(joints)} are exchanged in all channels",
    }[fault.kind]


def _check_scale(draft: Draft, channel: str, motions: Motions, found: Explained, report: Report) -> None:
    """Forces that are far larger or smaller than described: other units, currents, or torques before a gear."""
    names, known = names_of(draft.model, "tau"), found.rigid_share > RIGID
    clear = known & (found.unexplained < CLEAR * found.as_described) & (found.unexplained < WELL)
    clear &= (found.scale < 1 / ANOTHER) | (found.scale > ANOTHER)
    if not clear.any():
        return
    loaded = ANOTHER * payload_effect(draft.model, motions)
    for k, dof in enumerate(motions.dofs):
        scale = found.scale[k]
        if clear[k] and not 1 / ANOTHER < scale < loaded[k]:
            gain = f"if it is a current, --currents --gain {names[dof]}={1 / scale:.3g} (N m/A) turns it into a torque"
            detail = f"is {scale:.3g} times what the description needs for the motion: another unit, a motor current, "
            detail += f"or before a gear? {gain}"
            draft.say(report, "force scale", f"{channel} {names[dof]}", len(draft.time), "suspect", detail)


def _motions(draft: Draft, channel: str) -> Motions | None:
    """Smoothed motion and forces at some of the samples; None if the description cannot say."""
    model = draft.model
    if channel not in draft.values or "q" not in draft.values:
        return None
    if channel == "control" and np.any(np.asarray(model.actuators.bias)[:, 1:]):
        return None  # a servo's control is a position
    joints = [j for j, _ in pairs(draft) if draft.entry("q", j) is not None]
    dofs, forces = forces_on_joints(draft, channel)
    if not model_says(model, joints) or not dofs:
        return None
    spaced = even(draft.time, *(filled(x) for x in draft.values["q"].T), *forces)
    if spaced is None or len(spaced[1][0]) < ENOUGH:
        return None
    dt, signals = spaced
    tried = [_smooth(model, tuple(dofs), np.array(signals), dt, window) for window in WINDOWS]
    if np.percentile(np.abs(tried[-1].qd), 98, axis=0).max() < SLOWEST:
        return None
    return min(tried, key=lambda motions: explain(model, motions).score)


def _smooth(model: Model, dofs: tuple[int, ...], signals: np.ndarray, dt: float, window: float) -> Motions:
    rows = np.unique(np.linspace(0, signals.shape[1] - 1, MOST_ROWS).astype(int))
    q, qd, qdd = (smoothed(signals[: model.nq], dt, window, k)[:, rows].T for k in range(3))
    return Motions(q, qd, qdd, smoothed(signals[model.nq :], dt, window)[:, rows].T, dofs)
