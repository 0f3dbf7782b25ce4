"""Noise by kind of entry: metres and radians of one channel have a standard deviation each.

A channel's noise is a number if all of its entries are of one kind, else an array with one number per column. Columns
are as recorded; differences have three entries for the four columns of a quaternion, which share one number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.entries import (
    CHANNELS,
    POINT_PREFIX,
    POSE_PREFIX,
    dimensions,
    entry_units,
    names_of,
)

NoiseBy = Literal["kind", "entry"]
ChannelNoise = float | np.ndarray
Given = float | Sequence[float] | np.ndarray | Mapping[str, float]
NAMES = {
    "q": {"length": "position", "angle": "angle", "quaternion": "rotation"},
    "qd": {"length": "velocity", "angle": "angular velocity"},
    "qdd": {"length": "acceleration", "angle": "angular acceleration"},
    "tau": {"length": "force", "angle": "torque"},
}
ROTATION_OF_QUATERNION = 2 * np.sqrt(4 / 3)  # noise of a rotation vector over that of a quaternion's four entries


def is_known(key: str) -> bool:
    return key in CHANNELS or key.startswith((POSE_PREFIX, POINT_PREFIX))


def column_kinds(model: Model, key: str, count: int, by: NoiseBy = "kind") -> tuple[str, ...]:
    """Which columns of a channel share their noise: a name for each; a channel of one's own has one kind."""
    if not is_known(key):
        return ("",) * count if by == "kind" else tuple(map(str, range(count)))
    kinds = tuple(NAMES.get(key, NAMES["q"]).get(d, "") for d in dimensions(model, key))
    if by == "kind":
        return kinds
    names = names_of(model, key)
    owners = [name.rpartition(".")[0] for name in names]
    return tuple(
        f"{owner} rotation".strip() if kind == "rotation" else name
        for name, owner, kind in zip(names, owners, kinds, strict=True)
    )


def entry_kinds(model: Model, key: str, count: int, by: NoiseBy = "kind") -> tuple[str, ...]:
    """The same for the entries of differences, of which a rotation has three."""
    return tuple(entry_values(model, key, np.array(column_kinds(model, key, count, by))))


def entry_values(model: Model, key: str, columns: np.ndarray) -> np.ndarray:
    """Of each entry of differences, what its column has: one of the four columns of a quaternion is left out."""
    if key != "q" and not key.startswith(POSE_PREFIX):
        return columns
    kept, names = np.ones(len(columns), bool), dimensions(model, key)
    turning = [k for k, name in enumerate(names) if name == "quaternion"]
    kept[turning[::4]] = False
    return columns[kept]


def estimate_channel(model: Model, key: str, time, values, valid, by: NoiseBy, estimate) -> np.ndarray:
    """Noise of each column, by `estimate(time, values, valid)` of those that share it."""
    kinds = np.array(column_kinds(model, key, values.shape[1], by))
    turning = np.array(_is_quaternion(model, key, len(kinds)))
    found = np.zeros(len(kinds))
    for kind in dict.fromkeys(kinds):
        own = kinds == kind
        scale = ROTATION_OF_QUATERNION if turning[own].any() else 1.0
        found[own] = scale * estimate(time, values[:, own], valid[:, own])
    return found


def _is_quaternion(model: Model, key: str, count: int) -> tuple[bool, ...]:
    return tuple(d == "quaternion" for d in dimensions(model, key)) if is_known(key) else (False,) * count


def compact(columns: np.ndarray, kinds: Sequence[str]) -> ChannelNoise:
    """One number if all columns share their noise."""
    return float(columns[0]) if len(set(kinds)) == 1 else columns


def given_noise(model: Model, key: str, count: int, given: Given) -> ChannelNoise:
    """What a user gave: a number for all columns, one per column, or one per kind by name."""
    if isinstance(given, Mapping):
        kinds = column_kinds(model, key, count)
        if set(given) != set(kinds):
            raise ValueError(
                f"noise: {key} has the kinds {', '.join(dict.fromkeys(kinds))}, got {', '.join(map(str, given))}"
            )
        given = [given[kind] for kind in kinds]
    found = np.asarray(given, float)
    if found.shape not in ((), (count,)):
        raise ValueError(f"noise: that of {key} must be a number, {count} numbers or one by kind, got {given!r}")
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise ValueError(f"noise: that of {key} must be a positive deviation, got {given}")
    return float(found) if found.shape == () else found


def of_entries(model: Model, key: str, noise: ChannelNoise) -> ChannelNoise:
    """Noise of the entries of differences."""
    return noise if np.ndim(noise) == 0 else entry_values(model, key, np.asarray(noise))


def overall(model: Model, noise: Mapping[str, ChannelNoise]) -> dict[str, float]:
    """One number per channel: the root mean square over the entries of its differences."""
    return {key: _root_mean_square(of_entries(model, key, value)) for key, value in noise.items()}


def by_kind(model: Model, noise: Mapping[str, ChannelNoise], by: NoiseBy = "kind") -> dict[str, dict[str, float]]:
    """Noise of each channel by kind of entry, or by entry."""
    found = {}
    for key, value in noise.items():
        if np.ndim(value) == 0:
            kinds = set(column_kinds(model, key, 1)) if is_known(key) else {""}
            found[key] = {kind or key: float(value) for kind in kinds}
            continue
        names = column_kinds(model, key, len(np.asarray(value)), by)
        found[key] = {name: float(x) for name, x in zip(names, np.asarray(value), strict=True)}
    return found


def in_words(model: Model, noise: Mapping[str, ChannelNoise], by: NoiseBy = "kind") -> list[str]:
    """A line for each channel whose entries are of several kinds."""
    lines = []
    for key, value in noise.items():
        if np.ndim(value) == 0:
            continue
        columns = np.asarray(value)
        names = entry_kinds(model, key, len(columns), by)
        units = entry_units(model, key, len(names))
        each = dict(zip(names, zip(entry_values(model, key, columns), units, strict=True), strict=True))
        lines.append(f"noise of {key}: " + ", ".join(f"{n} {x:.3g} {u}".rstrip() for n, (x, u) in each.items()))
    return lines


def of_unit(model: Model, key: str, noise: ChannelNoise, entries: Sequence[int]) -> float:
    """Root mean square of the noise of some entries of differences."""
    own = of_entries(model, key, noise)
    return _root_mean_square(own if np.ndim(own) == 0 else np.asarray(own)[list(entries)])


def _root_mean_square(values: ChannelNoise) -> float:
    return float(values) if np.ndim(values) == 0 else float(np.sqrt(np.mean(np.square(values))))
