"""Changes with intervals, in the units of a user, from the differences of parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knuckle.sysid.changes.differences import Difference, Estimate, Pair
from knuckle.sysid.changes.intervals import LEAST_SHARE, Spread, data_shares, explained, spread
from knuckle.sysid.changes.result import Change, Measured
from knuckle.sysid.changes.search import LEVEL, Found
from knuckle.sysid.entries import dimensions
from knuckle.sysid.regression.friction import LOAD, STRIBECK
from knuckle.sysid.regression.result import joint_name, unit_of
from knuckle.sysid.regression.units import unit_of_parameter

DRIFT = 0.15  # of a joint's friction: what friction and offsets change by with temperature and from day to day


def described_changes(pair: Pair, estimates: Spread, found: Found) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Changes and small drifts, those that explain most first."""
    groups = estimates.groups
    shares = dict(zip([g.key for g in groups], _shares_by_group(pair, groups), strict=True))
    rise = explained(pair, groups, estimates.estimate)
    total = max(_difference(pair, groups, estimates.estimate), 1e-300)
    made = []
    for group in groups:
        quantities, size = _measured(pair, estimates, group, shares[group.key])
        chosen = group.key in found.alternatives
        sure = chosen or _p_value(estimates, group) < LEVEL / len(groups)
        others = tuple(d.key for d in found.alternatives.get(group.key, ()))
        made.append(Change(group.kind, group.place, quantities, min(rise[group.key] / total, 1.0), size, sure, others))
    made.sort(key=lambda c: -c.share)
    large = [c.sure and (np.isnan(c.size) or c.size > DRIFT) for c in made]
    changes = tuple(c for c, big in zip(made, large, strict=True) if big)
    return changes, tuple(c for c, big in zip(made, large, strict=True) if c.sure and not big)


def _shares_by_group(pair: Pair, groups: Sequence[Difference]) -> list[np.ndarray]:
    edges = np.cumsum([len(g.columns) for g in groups])[:-1]
    return np.split(data_shares(pair, groups), edges)


def _difference(pair: Pair, groups: Sequence[Difference], x: Estimate) -> float:
    """Fall of the squares in units of the spread, from no differences to those of the estimate."""
    none = pair.solve(())
    return float(sum(s.sum() for s in pair.squares((), none)) - sum(s.sum() for s in pair.squares(groups, x)))


def _p_value(estimates: Spread, group: Difference) -> float:
    return estimates.p_value(lambda x: x.of(estimates.groups, group.key))


def _measured(
    pair: Pair, estimates: Spread, group: Difference, share: np.ndarray
) -> tuple[tuple[Measured, ...], float]:
    """Quantities of one change, and its size beside the joint's friction."""
    if group.kind == "payload":
        return _payload(estimates, group, share), np.nan
    if group.kind == "zero":
        return _zero(pair, estimates, group, share), np.nan
    names = [joint_name(pair.layout.model, dof) for dof in pair.layout.joints]
    joint = names.index(group.place)
    return (
        _friction(pair, estimates, group, joint) if group.kind == "friction" else _offset(pair, estimates, group, joint)
    )


def _payload(estimates: Spread, group: Difference, share: np.ndarray) -> tuple[Measured, ...]:
    def of(x: Estimate) -> np.ndarray:
        pi = x.of(estimates.groups, group.key)
        mass = pi[0] if abs(pi[0]) > 1e-12 else np.nan
        return np.concatenate([pi[:4], pi[1:4] / mass])

    value, half = estimates.interval(of)
    seen = share[:4] >= LEAST_SHARE
    half[:4][~seen] = np.nan
    half[4:][~(seen[0] & seen[1:4])] = np.nan
    names = ("mass", *(f"first moment {a}" for a in "xyz"), *(f"centre {a}" for a in "xyz"))
    units = ("kg", *("kg m",) * 3, *("m",) * 3)
    return tuple(
        Measured(n, float(v), float(v - h), float(v + h), u)
        for n, v, h, u in zip(names, value, half, units, strict=True)
    )


def _zero(pair: Pair, estimates: Spread, group: Difference, share: np.ndarray) -> tuple[Measured, ...]:
    model = pair.layout.model
    dof = [joint_name(model, d) for d in range(model.nv)].index(group.place)
    unit = "m" if dimensions(model, "tau")[dof] == "length" else "rad"
    value, half = estimates.interval(lambda x: x.of(estimates.groups, group.key))
    half = half if share[0] >= LEAST_SHARE else np.full(1, np.nan)
    return (Measured("zero", float(value[0]), float(value[0] - half[0]), float(value[0] + half[0]), unit),)


def _friction_gram(pair: Pair, joint: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean products of the friction columns of a joint over the logs after, and their columns."""
    layout, grams = pair.layout, pair.after.block_gram
    wanted = [c for c in ("damping", "friction", LOAD, STRIBECK) if c in layout.friction[joint].columns]
    columns = np.array([layout.at(joint, c) for c in wanted])
    at = [int(np.flatnonzero(grams.columns[joint] == c)[0]) for c in columns]
    count = max(float(grams.count[joint].sum()), 1e-300)
    return grams.gram[joint].sum(axis=0)[np.ix_(at, at)] / count, columns


def _scale(pair: Pair, x: Estimate, joint: int) -> float:
    """Root mean square of the friction of a joint before, along the motion after; at least that of its residuals."""
    G, columns = _friction_gram(pair, joint)
    f = x.theta[columns]
    return float(max(np.sqrt(max(f @ G @ f, 0.0)), pair.after.solved.deviation[joint], 1e-12))


def _friction(pair: Pair, estimates: Spread, group: Difference, joint: int) -> tuple[tuple[Measured, ...], float]:
    G, columns = _friction_gram(pair, joint)
    x = estimates.estimate
    scale = _scale(pair, x, joint)
    along = (x.theta[columns] @ G)[:2] / scale**2

    def of(y: Estimate) -> np.ndarray:
        delta = y.of(estimates.groups, group.key)
        return np.append(delta, along @ delta)

    value, half = estimates.interval(of)
    units = [unit_of_parameter(pair.layout.model, pair.layout, c) for c in group.columns]
    before = [*x.theta[list(group.columns)], np.nan]
    names = ("viscous", "Coulomb", "relative")
    size = float(np.sqrt(max(value[:2] @ G[:2, :2] @ value[:2], 0.0)) / scale)
    return (
        tuple(
            Measured(n, float(v), float(v - h), float(v + h), u, float(b))
            for n, v, h, u, b in zip(names, value, half, [*units, ""], before, strict=True)
        ),
        size,
    )


def _offset(pair: Pair, estimates: Spread, group: Difference, joint: int) -> tuple[tuple[Measured, ...], float]:
    value, half = estimates.interval(lambda x: x.of(estimates.groups, group.key))
    unit = unit_of(pair.layout.model, pair.layout.joints[joint])
    before = float(estimates.estimate.theta[group.columns[0]])
    part = Measured("offset", float(value[0]), float(value[0] - half[0]), float(value[0] + half[0]), unit, before)
    return (part,), abs(part.value) / _scale(pair, estimates.estimate, joint)


def residuals(pair: Pair, groups: Sequence[Difference], x: Estimate) -> dict[str, tuple[float, float, float]]:
    """Root mean square residuals by joint: before, after, and after with the parameters before."""
    before = np.sqrt(pair.before.block_gram.mean_squares(x.theta))
    after = np.sqrt(pair.after.block_gram.mean_squares(x.after(groups, pair.size)))
    unchanged = np.sqrt(pair.after.block_gram.mean_squares(Estimate(x.theta, np.zeros(0)).after((), pair.size)))
    names = [joint_name(pair.layout.model, dof) for dof in pair.layout.joints]
    return {n: (float(a), float(b), float(c)) for n, a, b, c in zip(names, before, after, unchanged, strict=True)}


def excluded_payload(
    pair: Pair, slower: Pair, drift: Sequence[Difference], payloads: Sequence[Difference]
) -> tuple[str, float] | None:
    """The last link and the largest mass on it within the 95 % interval [kg]; None if the data do not determine it."""
    last = _last_link(pair)
    groups = (*drift, payloads[last])
    if data_shares(pair, groups)[-10] < LEAST_SHARE:
        return None
    value, half = spread(pair, slower, groups, consistent=False).interval(
        lambda x: x.of(groups, payloads[last].key)[:1]
    )
    return payloads[last].place, float(np.abs(value[0]) + half[0])


def _last_link(pair: Pair) -> int:
    """The link with the most joints between it and the base; the last of those."""
    parent = list(pair.layout.model.topology.parent)
    depth = []
    for link in range(len(parent)):
        depth.append(1 + (depth[parent[link]] if parent[link] >= 0 else 0))
    return int(len(depth) - 1 - np.argmax(depth[::-1]))
