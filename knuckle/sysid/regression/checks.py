"""Efforts held against the description: reversed signs, wrong scales, and what the motion does not explain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.design import PASSIVE, Design, Layout
from knuckle.sysid.regression.result import TorqueError, joint_name

LARGEST_SCALE = 3.0  # of efforts over the description's: beyond, units or torque constants are doubtful
LEAST_PART = 0.2  # of the effort's spread that rigid-body forces make up: below, nothing is said of their scale
LARGE_PART = 0.7  # the same of efforts that are far smaller than the description's forces
PARTLY = 0.25  # held-out error over the effort's spread, from which on a fit is to be used with care
UNEXPLAINED = 0.5  # held-out error over the effort's spread


def scale_notes(design: Design, layout: Layout) -> list[str]:
    """Notes on joints whose effort is not near the description's rigid-body force plus friction and rotor inertia."""
    described = np.asarray(inertial(design.model), float)
    scales = {}
    for k in range(len(layout.joints)):
        rows = design.rows(layout, k)
        own = rows.columns >= layout.inertial
        rigid = rows.features[:, ~own] @ described[rows.columns[~own]]
        if np.std(rigid) == 0 or len(rigid) < 20:
            continue
        columns = np.column_stack([rigid, rows.features[:, own]])
        found = np.linalg.lstsq(columns / _sizes(columns), rows.effort, rcond=None)[0] / _sizes(columns)
        part = abs(found[0]) * np.std(rigid) / max(float(np.std(rows.effort)), 1e-300)
        small = np.std(rows.effort) < PASSIVE * np.std(
            rigid
        )  # currents follow the forces; a joint that swings does not
        if part > (LARGE_PART if small else LEAST_PART):
            scales[joint_name(design.model, layout.joints[k])] = float(found[0])
    reversed_ = [name for name, scale in scales.items() if scale < -0.1]
    notes = []
    if reversed_:
        notes.append(
            f"the sign of the effort of {', '.join(reversed_)} is opposite to that of gravity and inertia in the "
            "description: check the sign of these channels"
        )
    off = {n: s for n, s in scales.items() if s > LARGEST_SCALE or 0 < s < 1 / LARGEST_SCALE}
    if off:
        listed = ", ".join(f"{name} {scale:.2g}" for name, scale in off.items())
        notes.append(
            f"efforts are not on the scale of the description (measured over described: {listed}): if they are "
            "currents or motor-side torques, give gains; all masses scale with them"
        )
    return notes


def _sizes(columns: np.ndarray) -> np.ndarray:
    return np.maximum(np.sqrt(np.mean(columns**2, axis=0)), 1e-12)


def error_notes(errors: Sequence[TorqueError]) -> list[str]:
    """Notes on joints whose torques the fit does not explain, or only in part."""
    bad = [e.joint for e in errors if e.held_out > UNEXPLAINED * e.size]
    partly = [
        f"{e.joint} {e.held_out / e.size:.0%}"
        for e in errors
        if PARTLY < e.held_out / max(e.size, 1e-300) <= UNEXPLAINED
    ]
    notes = []
    if bad:
        notes.append(
            f"the torques of {', '.join(bad)} are not explained by the motion (held-out error above half of their "
            "spread): check units, signs, the order of joints and clocks"
        )
    if partly:
        notes.append(
            f"torques are explained only in part (held-out error over their spread: {', '.join(partly)}): efforts are "
            "noisy, stamps are inexact, or the model lacks an effect"
        )
    return notes
