"""Inertia stated in MJCF: checked before MuJoCo sees it, repaired if asked, and put as MuJoCo takes it."""

from __future__ import annotations

import math

import mujoco
import numpy as np
from mujoco import mjtInertiaFromGeom

from knuckle.model import inertia as rigid
from knuckle.model.mjcf_check import line_of_info
from knuckle.model.report import Omission

NOTHING = 2e-15  # kg or kg m^2: stands for zero in files for MuJoCo, which wants moving bodies above 1e-15


def check_inertias(spec: mujoco.MjSpec, repair: bool) -> tuple[list[Omission], list[Omission]]:
    """Bodies whose stated inertia was repaired, and bodies whose inertia is impossible."""
    compiler = spec.compiler
    repaired, impossible = [], []
    if compiler.inertiafromgeom == mjtInertiaFromGeom.mjINERTIAFROMGEOM_TRUE or compiler.balanceinertia:
        return repaired, impossible
    for body in spec.bodies:
        if not body.explicitinertial:
            continue
        moment = _stated_moment(body)
        faults = rigid.faults(body.mass, moment)
        element, line = f"body {body.name!r}", line_of_info(body)
        if faults and not (repair and body.mass > 0 and math.isfinite(body.mass)):
            impossible.extend(Omission(element, fault, line) for fault in faults)
        elif faults or _refused_by_rounding(moment):
            moment = rigid.repaired(body.mass, moment)
            _state_moment(body, moment)
            repaired.extend(Omission(element, f"repaired: {fault}", line) for fault in faults)
    return repaired, impossible


def _stated_moment(body) -> np.ndarray:
    if np.isnan(body.fullinertia[0]):
        return rigid.moment_of(body.inertia, f"body {body.name!r}")
    return np.array(body.fullinertia)  # M11 M22 M33 M12 M13 M23


def _refused_by_rounding(moment: np.ndarray) -> bool:
    a, b, c = np.linalg.eigvalsh(rigid.matrix_of(moment))
    return a + b < c


def _state_moment(body, moment: np.ndarray) -> None:
    diagonal_given = np.isnan(body.fullinertia[0])
    moments, quaternion = principal(moment)
    body.fullinertia = [math.nan, 0, 0, 0, 0, 0]
    body.inertia = np.maximum(moments, NOTHING)
    if not diagonal_given:
        body.iquat = quaternion


def principal(moment: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Principal moments that obey the triangle inequality to the last bit, and the quaternion of their axes."""
    matrix = rigid.matrix_of(moment)
    if not np.any(moment[3:]):
        moments, axes = moment[:3].copy(), np.eye(3)
    else:
        moments, axes = np.linalg.eigh(matrix)
        axes[:, 2] = np.cross(axes[:, 0], axes[:, 1])
    low, middle, high = np.argsort(moments)
    most = moments[low] + moments[middle]
    if most < moments[high] <= most * (1 + 1e-9):
        moments[high] = most
    quaternion = np.zeros(4)
    mujoco.mju_mat2Quat(quaternion, axes.ravel())
    return moments, quaternion
