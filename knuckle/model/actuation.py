"""Arrays of described actuators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from knuckle.model import inertia as rigid
from knuckle.model.description import Actuator
from knuckle.model.model import Actuators
from knuckle.model.topology import FREEDOMS, Topology


def make_actuators(actuators: Sequence[Actuator], topology: Topology) -> Actuators:
    """Gear entries in a list (actuator, degree of freedom, gear); the rest one row per actuator."""
    entries = [entry for number, actuator in enumerate(actuators) for entry in _gear(number, actuator, topology)]
    names = tuple(a.name or f"{a.joint}_actuator{i}" for i, a in enumerate(actuators))
    if len(set(names)) != len(names):
        raise ValueError(f"actuator names must differ, got {', '.join(names)}")
    return Actuators(
        gear=rigid.table([gear for _, _, gear in entries], -1),
        gain=rigid.table([a.gain for a in actuators], -1),
        bias=rigid.table([a.bias for a in actuators], -1, 3),
        control_lower=rigid.table([a.control_lower for a in actuators], -1),
        control_upper=rigid.table([a.control_upper for a in actuators], -1),
        force_lower=rigid.table([a.force_lower for a in actuators], -1),
        force_upper=rigid.table([a.force_upper for a in actuators], -1),
        entry_actuator=tuple(number for number, _, _ in entries),
        entry_dof=tuple(dof for _, dof, _ in entries),
        names=names,
    )


def _gear(number: int, actuator: Actuator, topology: Topology) -> list[tuple[int, int, Any]]:
    where = f"actuator {actuator.name or number!r}"
    if actuator.joint not in topology.joint_names:
        raise ValueError(f"{where}: no joint {actuator.joint!r}; there are {', '.join(topology.joint_names)}")
    for low, high, what in (
        (actuator.control_lower, actuator.control_upper, "control"),
        (actuator.force_lower, actuator.force_upper, "force"),
    ):
        if not rigid.is_traced(low, high) and not low <= high:
            raise ValueError(f"{where}: {what} limits must be (lower, upper), got ({low:g}, {high:g})")
    rigid.finite_vector([actuator.gain], 1, f"{where}: gain")
    rigid.finite_vector(actuator.bias, 3, f"{where}: bias")
    link = topology.joint(actuator.joint)
    size = FREEDOMS[topology.kind[link]]
    gear = rigid.numbers(actuator.gear)
    gear = rigid.numbers([gear, *[0.0] * (size - 1)]) if gear.ndim == 0 else gear
    if gear.shape != (size,) or not (rigid.is_traced(gear) or np.all(np.isfinite(gear))):
        raise ValueError(f"{where}: gear must be one number or {size}, got {actuator.gear!r}")
    start = int(topology.v_start[link])
    return [(number, start + k, g) for k, g in enumerate(gear) if rigid.is_traced(g) or g != 0 or size == 1]
