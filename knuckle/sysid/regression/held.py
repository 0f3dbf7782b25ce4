"""Joints that a regression takes as they are: never measured, as fingers of an arm often are, or coupled to others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.entries import names_of
from knuckle.sysid.recording import Channel, Recording

SINGLE = ("revolute", "prismatic")
LIGHT = 0.05  # of the mass of all links


def coupled(model: Model) -> np.ndarray:
    """Degrees of freedom that a mimic couples (nv,): its force acts there, and was not measured."""
    found, rows = np.zeros(model.nv, bool), model.equalities
    for kind, a, b, active in zip(rows.kind, rows.a, rows.b, rows.active, strict=True):
        if kind == "mimic" and active:
            found[[model.topology.v_start[joint] for joint in (a, b) if joint >= 0]] = True
    return found


def unlogged(model: Model, recording: Recording) -> np.ndarray:
    """Degrees of freedom that may be taken as stationary since a recording says nothing of them (nv,).

    They are of single joints without measured position, velocity, effort or control, which are coupled, or carry at
    most a twentieth of the robot's mass: a pole that nobody measured is no finger.
    """
    single = np.array([kind in SINGLE for kind in model.topology.kind], bool)[model.topology.dof_link]
    found = single & (coupled(model) | _light(model))
    for key in ("qd", "tau"):
        if key in recording.channels:
            found &= ~recording[key].valid.any(axis=0)
    if "q" in recording.channels:
        seen = np.asarray(recording["q"].valid.any(axis=0))
        found &= ~np.array([seen[_coordinate(model, dof)] if single[dof] else True for dof in range(model.nv)])
    if "control" in recording.channels:
        used = np.asarray(recording["control"].valid.any(axis=0))
        acts = model.actuators
        driven = [dof for actuator, dof in zip(acts.entry_actuator, acts.entry_dof, strict=True) if used[actuator]]
        found &= ~np.isin(np.arange(model.nv), driven)
    return found


def _light(model: Model) -> np.ndarray:
    """Degrees of freedom that carry little of the mass (nv,)."""
    carried = np.array(model.inertia.mass, float)
    for link in reversed(range(len(carried))):
        parent = model.topology.parent[link]
        if parent >= 0:
            carried[parent] += carried[link]
    return (carried <= LIGHT * float(np.sum(np.asarray(model.inertia.mass))))[list(model.topology.dof_link)]


def _coordinate(model: Model, dof: int) -> int:
    link = int(model.topology.dof_link[dof])
    return int(model.topology.q_start[link]) + dof - int(model.topology.v_start[link])


def with_held_joints(model: Model, recording: Recording) -> Recording:
    """The recording with joints that it says nothing of stationary where the description has them."""
    dofs = np.flatnonzero(unlogged(model, recording)).tolist()
    if not len(dofs) or "q" not in recording.channels:
        return recording
    places = [_coordinate(model, dof) for dof in dofs]
    channels = {"q": _filled(recording["q"], places, np.asarray(model.reference, float)[places])}
    if "qd" in recording.channels:
        channels["qd"] = _filled(recording["qd"], dofs, 0.0)
    return recording.replace(**channels)


def _filled(channel: Channel, places: Sequence[int] | np.ndarray, value) -> Channel:
    values, valid = channel.values.copy(), channel.valid.copy()
    values[:, places], valid[:, places] = value, True
    return Channel(values, valid, channel.names)


def held_names(model: Model, recordings: Sequence[Recording]) -> list[str]:
    """Joints of which no recording says anything."""
    never = np.all([unlogged(model, recording) for recording in recordings], axis=0)
    return [name for name, own in zip(names_of(model, "tau"), never, strict=True) if own]
