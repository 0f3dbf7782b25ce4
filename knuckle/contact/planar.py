"""Whether a model moves in a plane: there, contacts have one tangent instead of two."""

from __future__ import annotations

import numpy as np

from knuckle.model.inertia import quaternion_product, rotation_matrix
from knuckle.model.model import Model

ALONG, ACROSS = 1 - 1e-9, 1e-5  # of the cosine to the normal: as near to 1 and to 0 as 4.5e-5 and 1e-5 rad


def motion_normal(model: Model) -> np.ndarray | None:
    """The unit normal, in the world, of the plane in which all links move; None if there is no such plane.

    Planar and revolute joints turn about the normal, prismatic ones slide across it. Needs the model's own numbers, so
    not under a transformation that traces them.
    """
    rotations: list[np.ndarray] = []
    for link, parent in enumerate(model.topology.parent):
        own = np.asarray(model.rotation[link], float)
        rotations.append(quaternion_product(rotations[parent], own) if parent >= 0 else own)
    axes = [
        _unit(rotation_matrix(r / np.linalg.norm(r)) @ np.asarray(a, float))
        for r, a in zip(rotations, model.axis, strict=True)
    ]
    kinds = model.topology.kind
    turning = [axis for axis, kind in zip(axes, kinds, strict=True) if kind in ("planar", "revolute")]
    if not turning or not set(kinds) <= {"planar", "revolute", "prismatic"}:
        return None
    cosines = np.abs([axis @ turning[0] for axis in axes])
    slides = np.array([kind == "prismatic" for kind in kinds])
    return turning[0] if np.all(np.where(slides, cosines < ACROSS, cosines > ALONG)) else None


def _unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)
