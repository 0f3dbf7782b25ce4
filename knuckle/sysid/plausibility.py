"""Values that no robot like the described one has: far outside the prior, or bodies that no link could be."""

from __future__ import annotations

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.parameters import Parameters

FAR = 3.0  # standard deviations of the prior
LARGER = 2.0  # times the extent of the robot, that no link has


def implausible(parameters: Parameters, model: Model, fitted: Model, z: np.ndarray) -> list[str]:
    """In words, parameters at free numbers z that are far from the description, and links that are no bodies."""
    if not parameters or not np.isfinite(z).all():
        return []
    own = z[: parameters.size]
    after, _ = map(np.asarray, parameters.values_and_slopes(own))
    before, _ = map(np.asarray, parameters.values_and_slopes(np.zeros_like(own)))
    found, at = [], 0
    for p in parameters:
        rows = slice(at, at + p.start.size)
        off = np.abs(own[p.free]) / p.deviation
        if off.max(initial=0.0) > FAR and p.family.kind != "zero or more":  # of those descriptions often say nothing
            worst = int(np.argmax(off)) if len(off) == p.start.size else int(np.argmax(np.abs(after - before)[rows]))
            name, unit = p.entries[worst], p.units[worst]
            found.append(
                f"implausible: {name} is {after[rows][worst]:.4g} {unit}, the description says "
                f"{before[rows][worst]:.4g}: {off.max():.2g} standard deviations of the prior away"
            )
        at = rows.stop
    return found + no_links(fitted, model)


def no_links(fitted: Model, model: Model) -> list[str]:
    """Links whose mass is farther from their joint, or spread out farther, than the robot is large."""
    largest, found = LARGER * extent(model), []
    for k, name in enumerate(model.link_names):
        away = float(np.linalg.norm(np.asarray(fitted.inertia.com)[k]))
        for what, size in (("centre of mass", away), ("radius of gyration", float(_gyration(fitted)[k]))):
            if size > largest:
                found.append(
                    f"implausible: the {what} of {name} is {size:.4g} m, of a robot of about {extent(model):.2g} m"
                )
    return found


def _gyration(model: Model) -> np.ndarray:
    """Largest radius of gyration of each link [m]; 0 of links without mass."""
    xx, yy, zz, xy, xz, yz = np.asarray(model.inertia.moment).T
    moments = np.stack([xx, xy, xz, xy, yy, yz, xz, yz, zz], axis=1).reshape(-1, 3, 3)
    largest, mass = np.linalg.eigvalsh(moments)[:, -1], np.asarray(model.inertia.mass)
    return np.sqrt(np.divide(np.maximum(largest, 0.0), mass, out=np.zeros_like(mass), where=mass > 0))


def extent(model: Model) -> float:
    """How large a robot is, about: the sum of distances from joint to joint and of the extents of its links [m]."""
    lengths = (np.linalg.norm(np.asarray(part), axis=1) for part in (model.inertia.com, model.position))
    return float(sum(part.sum() for part in lengths) + _gyration(model).sum())
