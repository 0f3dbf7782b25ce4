"""Base parameters of a roll-out fit with intervals, and parameters on which no motion depends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import norm

from knuckle.model.model import Model
from knuckle.sysid.base_parameters import COLUMNS, ROWS, BaseParameters, base_parameters
from knuckle.sysid.entries import dimensions
from knuckle.sysid.fit import Fit
from knuckle.sysid.parameters import MOMENTS
from knuckle.sysid.regression.units import INERTIAL
from knuckle.sysid.uncertainty import NOT_CONVERGED, Estimate, verdict

LINK = ("mass", "com.x", "com.y", "com.z", *(f"inertia.{entry}" for entry in MOMENTS))
NOTHING = 1e-9  # of the largest effect: what is below is rounding
WIDTH = float(norm.ppf(0.975))
SMALL = 1e-6  # of the largest base parameter of its unit: what is below is no scale for others

POWERS = {  # of kg, m and s; rad is 1
    "kg": (1, 0, 0),
    "kg m": (1, 1, 0),
    "kg m^2": (1, 2, 0),
    "N m s/rad": (1, 2, -1),
    "N s/m": (1, 0, -1),
    "N m": (1, 2, -2),
    "N": (1, 1, -2),
    "N m/rad": (1, 2, -2),
    "N/m": (1, 0, -2),
}


class Combinations(NamedTuple):
    """Combinations that forces depend on, and what cannot matter."""

    rows: list[Estimate]  # of the combinations that free parameters change
    scale: str  # a combination by which all are divided, since only ratios are determined; "": none
    no_effect: list[str]  # entries of free parameters on which no motion depends

    @property
    def determined(self) -> int:
        return sum(row.verdict == "determined" for row in self.rows)


class _Linear(NamedTuple):
    """Quantities with their values before and after a fit, and their change by the free parameters."""

    names: list[str]
    units: list[str]
    before: np.ndarray
    value: np.ndarray
    slope: np.ndarray  # (quantity, free)


def combinations(fit: Fit) -> Combinations | None:
    """Base parameters with intervals, as ratios where that is what the data determine; None: no inertia is free."""
    chosen = [p for p in fit.parameters if p.family.owner in ("link", "dof")]
    if not any(p.family.owner == "link" for p in chosen):
        return None
    model, described = fit.model, fit.task.model
    base = base_parameters(model, rotors=_rotors(model, chosen))
    effects = base.matrix[:, : 10 * len(model.link_names)] @ inertial_slopes(model)
    names = [f"{link}.{entry}" for link in model.link_names for entry in LINK]
    known = {name for p in chosen for name in p.entries}
    silent = np.abs(effects).max(axis=0, initial=0.0) <= NOTHING * np.abs(effects).max(initial=0.0)
    no_effect = [name for name, nothing in zip(names, silent, strict=True) if nothing and name in known]
    found = _free_combinations(fit, base, effects, names, described)
    if not len(found.names):
        return Combinations([], "", no_effect)
    rows = _with_intervals(fit, found)
    has_scale = np.any(np.asarray(fit.shots.control)) or not (fit.converged and fit.certainty.is_known)
    ratio = None if has_scale else _as_ratios(fit, found)
    if ratio is not None:
        as_ratios = _with_intervals(fit, ratio[0])
        if _determined(as_ratios) > _determined(rows):
            return Combinations(as_ratios, ratio[1], no_effect)
    joints = {name for p in chosen if p.family.owner == "dof" for name in p.entries}  # single parameters in any case
    return Combinations([row for row in rows if row.name not in joints], "", no_effect)


def inertial_slopes(model: Model) -> np.ndarray:
    """Change of `inertial(model)` by mass, centre of mass and moments about it, (10 links, 10 links).

    Differences are exact: moments about the origin are at most quadratic in each of them.
    """
    at = np.concatenate([np.asarray(part).reshape(len(model.link_names), -1) for part in _parts(model)], axis=1)
    found = np.zeros((at.size, at.size))
    for k in range(10):
        moved = np.zeros(10)
        moved[k] = 1.0
        change = (_moments(at + moved) - _moments(at - moved)) / 2
        for link in range(len(at)):
            found[10 * link : 10 * link + 10, 10 * link + k] = change[link]
    return found


def _parts(model: Model) -> tuple:
    return model.inertia.mass, model.inertia.com, model.inertia.moment


def _moments(ten: np.ndarray) -> np.ndarray:
    """Mass, first and second moments about the origin of links (link, 10) given about their centres of mass."""
    mass, com, moment = ten[:, :1], ten[:, 1:4], ten[:, 4:]
    away = np.sum(com**2, axis=1)[:, None, None] * np.eye(3) - com[:, :, None] * com[:, None, :]
    return np.concatenate([mass, mass * com, moment + mass * away[:, ROWS, COLUMNS]], axis=1)


def _rotors(model: Model, chosen: Sequence) -> list[int]:
    """Degrees of freedom whose rotor inertia counts: free, or there already."""
    free = {name for p in chosen for name in p.entries if ".armature" in name}
    there = np.asarray(model.armature) > 0
    return [k for k, name in enumerate(_dof_names(model, "armature")) if there[k] or name in free]


def _dof_names(model: Model, what: str) -> list[str]:
    """Names of the entries of a parameter of joints, as fits have them."""
    topology, found = model.topology, []
    for joint, start, stop in zip(topology.joint_names, topology.v_start, topology.v_stop, strict=True):
        count = int(stop) - int(start)
        found += [f"{joint}.{what}"] if count == 1 else [f"{joint}.{what}[{k}]" for k in range(count)]
    return found


def _free_combinations(
    fit: Fit, base: BaseParameters, effects: np.ndarray, names: Sequence[str], described: Model
) -> _Linear:
    """Base parameters, and friction and springs of joints: those that free parameters change."""
    parameters, model = fit.parameters, fit.model
    z = np.asarray(fit.result.x[: parameters.size], float)
    with jax.enable_x64(True):
        after, slope = map(np.asarray, parameters.values_and_slopes(z))
        first, _ = map(np.asarray, parameters.values_and_slopes(np.zeros_like(z)))
    rows = {name: row for row, name in enumerate(parameters.entries)}
    columns = {name: effects[:, k] for k, name in enumerate(names)}
    rotor_names = [_dof_names(model, "armature")[k] for k in base.rotors]
    columns |= {name: base.matrix[:, 10 * len(model.link_names) + k] for k, name in enumerate(rotor_names)}
    inertial = sum(
        (np.outer(columns[name], slope[rows[name]]) for name in rows if name in columns),
        np.zeros((len(base), parameters.size)),
    )
    units = [_unit(model, base, lead) for lead in base.leading]
    of_joints = [pair for p in parameters if p.family.owner == "dof" for pair in zip(p.entries, p.units, strict=True)]
    own = [(name, unit) for name, unit in of_joints if name not in rotor_names]
    places = [rows[name] for name, _ in own]
    with jax.enable_x64(True):
        values = [np.concatenate([np.asarray(base(m)), x[places]]) for m, x in ((described, first), (model, after))]
    slopes = np.concatenate([inertial, slope[places]])
    changed = np.flatnonzero(np.abs(slopes * parameters.deviation).max(axis=1, initial=0.0) > 0)
    words = [*base.words()[: len(base)], *(name for name, _ in own)]
    all_units = [*units, *(unit for _, unit in own)]
    return _Linear(
        [words[k] for k in changed], [all_units[k] for k in changed],
        values[0][changed], values[1][changed], slopes[changed],
    )  # fmt: skip


def _unit(model: Model, base: BaseParameters, lead: int) -> str:
    links = 10 * len(model.link_names)
    if lead < links:
        return INERTIAL[lead % 10]
    return "kg" if dimensions(model, "tau")[base.rotors[lead - links]] == "length" else "kg m^2"


def _with_intervals(fit: Fit, found: _Linear) -> list[Estimate]:
    size = fit.parameters.size
    sure = fit.converged and fit.certainty.is_known
    covariance = fit.certainty.covariance[:size, :size] if sure else np.full((size, size), np.nan)
    deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", found.slope, covariance, found.slope), 0.0))
    prior = np.linalg.norm(found.slope * fit.objective.prior[:size], axis=1)
    columns = zip(found.names, found.units, found.before, found.value, deviation, prior, strict=True)
    return [
        Estimate(name, unit, float(a) + 0.0, float(b), float(d), float(b - WIDTH * d), float(b + WIDTH * d),
                 verdict(float(d), float(p)) if sure else NOT_CONVERGED)
        for name, unit, a, b, d, p in columns
    ]  # fmt: skip


def _determined(rows: Sequence[Estimate]) -> int:
    return sum(row.verdict == "determined" for row in rows)


def _as_ratios(fit: Fit, found: _Linear) -> tuple[_Linear, str] | None:
    """All but one over that one, chosen such that ratios are best known, and its name."""
    best = None
    for k, unit in enumerate(found.units):
        if unit not in INERTIAL:
            continue
        alike = np.abs(found.value[[u == unit for u in found.units]]).max()
        if not abs(found.value[k]) > SMALL * alike or not abs(found.before[k]) > 0:
            continue
        ratio = _over(found, k)
        count = _determined(_with_intervals(fit, ratio))
        score = (count, found.value[k] > 0)
        if best is None or score > best[0]:
            best = (score, ratio, found.names[k])
    return None if best is None else best[1:]


def _over(found: _Linear, k: int) -> _Linear:
    rest = [i for i in range(len(found.names)) if i != k]
    value = found.value[rest] / found.value[k]
    slope = (found.slope[rest] - value[:, None] * found.slope[k]) / found.value[k]
    units = [_ratio_unit(found.units[i], found.units[k]) for i in rest]
    names = [f"({found.names[i]}) / S" if " " in found.names[i] else f"{found.names[i]} / S" for i in rest]
    return _Linear(names, units, found.before[rest] / found.before[k], value, slope)


def _ratio_unit(a: str, b: str) -> str:
    """The unit of a quantity of unit a over one of unit b: m for kg m^2 over kg m."""
    powers = dict(zip(("kg", "m", "s"), np.subtract(POWERS[a], POWERS[b]).tolist(), strict=True))
    above, below = (
        " ".join(f"{unit}^{abs(p)}" if abs(p) > 1 else unit for unit, p in powers.items() if p * sign > 0)
        for sign in (1, -1)
    )
    return f"{above or '1'}/({below})" if " " in below else f"{above or '1'}/{below}" if below else above or "1"
