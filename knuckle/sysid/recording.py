"""One run of a mechanism as it was observed: times, and channels of values with a mask of what was really measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.entries import POINT_PREFIX, POSE_PREFIX, names_of

GAP = 5.0  # a pause of more than this many usual steps is a gap


@dataclass(frozen=True, eq=False)
class Channel:
    """Values over time, (time, entry); where `valid` is False nothing was measured and the value is interpolated."""

    values: np.ndarray
    valid: np.ndarray
    names: tuple[str, ...]

    def same_as(self, other: Channel) -> bool:
        arrays = ((self.values, other.values), (self.valid, other.valid))
        return self.names == other.names and all(np.array_equal(a, b) for a, b in arrays)


@dataclass(frozen=True, eq=False)
class Recording:
    """An immutable run: `time` [s] increases and may be uneven; all channels are on it. SI units, MuJoCo's layout.

    Channels "q", "qd", "qdd", "tau" and "control" have one entry per coordinate, degree of freedom or actuator of the
    model; "pose/NAME" (position, quaternion wxyz, in the world) and "point/NAME" (position) belong to a link or frame;
    every other name is an observation of the user's own, such as pixels of a marker.
    """

    time: np.ndarray
    channels: Mapping[str, Channel]
    name: str = ""
    source: str = ""

    def __post_init__(self):
        time = _frozen(np.array(self.time, float))
        if time.ndim != 1 or len(time) < 2:
            raise ValueError(
                f"recording {self.name!r}: at least 2 times in one axis are needed, got shape {time.shape}"
            )
        bad = np.flatnonzero(~np.isfinite(time))
        if len(bad):
            raise ValueError(f"recording {self.name!r}: time of sample {bad[0]} is {time[bad[0]]}")
        back = np.flatnonzero(np.diff(time) <= 0)
        if len(back):
            i = int(back[0])
            raise ValueError(
                f"recording {self.name!r}: time must increase, sample {i + 1} has {time[i + 1]} after {time[i]}"
            )
        channels = {key: self._checked(key, channel, time) for key, channel in self.channels.items()}
        object.__setattr__(self, "time", time)
        object.__setattr__(self, "channels", MappingProxyType(channels))

    def _checked(self, key: str, channel: Channel, time: np.ndarray) -> Channel:
        values, valid = np.array(channel.values, float), np.array(channel.valid, bool)
        wanted = (len(time), len(channel.names))
        for what, array in (("values", values), ("valid", valid)):
            if array.shape != wanted:
                raise ValueError(
                    f"recording {self.name!r}, channel {key!r}: {what} must be {wanted}, got {array.shape}"
                )
        valid &= np.isfinite(values)
        return Channel(_frozen(_filled(time, values, valid, channel.names)), _frozen(valid), tuple(channel.names))

    @classmethod
    def of(
        cls,
        model: Model,
        time,
        *,
        q=None,
        qd=None,
        qdd=None,
        tau=None,
        control=None,
        poses: Mapping[str, np.ndarray] | None = None,
        points: Mapping[str, np.ndarray] | None = None,
        observed: Mapping[str, np.ndarray] | None = None,
        name: str = "",
        source: str = "",
    ) -> Recording:
        """A recording from arrays over time in the model's order; NaN is what was not measured."""
        given = {"q": q, "qd": qd, "qdd": qdd, "tau": tau, "control": control}
        given |= {f"{POSE_PREFIX}{key}": value for key, value in (poses or {}).items()}
        given |= {f"{POINT_PREFIX}{key}": value for key, value in (points or {}).items()}
        channels = {k: _channel(k, v, names_of(model, k)) for k, v in given.items() if v is not None}
        channels |= {key: _channel(key, value, None) for key, value in (observed or {}).items()}
        return cls(time, channels, name, source)

    def __len__(self) -> int:
        return len(self.time)

    def __getitem__(self, key: str) -> Channel:
        if key not in self.channels:
            raise KeyError(
                f"recording {self.name!r} has no channel {key!r}; it has {', '.join(self.channels) or 'none'}"
            )
        return self.channels[key]

    def _values(self, key: str) -> np.ndarray | None:
        return self.channels[key].values if key in self.channels else None

    @property
    def q(self) -> np.ndarray | None:
        return self._values("q")

    @property
    def qd(self) -> np.ndarray | None:
        return self._values("qd")

    @property
    def tau(self) -> np.ndarray | None:
        return self._values("tau")

    @property
    def control(self) -> np.ndarray | None:
        return self._values("control")

    @property
    def poses(self) -> dict[str, np.ndarray]:
        """Observed poses by link or frame."""
        return {k.removeprefix(POSE_PREFIX): c.values for k, c in self.channels.items() if k.startswith(POSE_PREFIX)}

    @property
    def duration(self) -> float:
        return float(self.time[-1] - self.time[0])

    @property
    def period(self) -> float:
        """The usual time between samples [s]."""
        return float(np.median(np.diff(self.time)))

    @property
    def gaps(self) -> np.ndarray:
        """Samples that are followed by a pause of more than five usual steps."""
        return gaps(self.time)

    def replace(self, **channels: Channel | None) -> Recording:
        """The same run with channels exchanged, added, or (None) left out."""
        merged = {k: c for k, c in {**self.channels, **channels}.items() if c is not None}
        return replace(self, channels=merged)

    def at(self, start: int, stop: int, name: str | None = None) -> Recording:
        """Samples `start` to `stop`, without it."""
        channels = {
            key: Channel(c.values[start:stop], c.valid[start:stop], c.names) for key, c in self.channels.items()
        }
        return Recording(self.time[start:stop], channels, self.name if name is None else name, self.source)

    def same_as(self, other: Recording) -> bool:
        """Whether names, times, values and masks are identical, bit for bit."""
        return (
            (self.name, self.source, list(self.channels)) == (other.name, other.source, list(other.channels))
            and np.array_equal(self.time, other.time)
            and all(c.same_as(other.channels[key]) for key, c in self.channels.items())
        )

    def __repr__(self) -> str:
        parts = ", ".join(f"{key} ({len(c.names)})" for key, c in self.channels.items())
        return f"Recording({self.name!r}: {len(self)} samples over {self.duration:.4g} s, {parts})"


def gaps(time: np.ndarray, factor: float = GAP) -> np.ndarray:
    """Samples that are followed by a pause of more than `factor` usual steps."""
    steps = np.diff(time)
    usual = np.median(steps) if len(steps) else 0.0
    return np.flatnonzero(steps > factor * usual)


def _channel(key: str, values, names: Sequence[str] | None) -> Channel:
    values = np.array(values, float)
    values = values[:, None] if values.ndim == 1 else values.reshape(len(values), -1)
    names = tuple(str(i) for i in range(values.shape[1])) if names is None else tuple(names)
    if values.shape[1] != len(names):
        raise ValueError(f"{key} must have {len(names)} entries in its last axis, got {values.shape[1]}")
    return Channel(values, np.isfinite(values), names)


def _filled(time: np.ndarray, values: np.ndarray, valid: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Values with what is not valid interpolated, held at the ends; never measured: 0, or 1 for w of a quaternion."""
    for j, name in enumerate(names):
        good = valid[:, j]
        if good.all():
            continue
        empty = 1.0 if name.rpartition(".")[2] in ("qw", "w") else 0.0
        values[~good, j] = _between(time[~good], time[good], values[good, j]) if good.any() else empty
    return values


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def _between(at: np.ndarray, time: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Linear interpolation; the value before where stamps are so close that slopes are not finite."""
    linear, before = np.interp(at, time, values), np.clip(np.searchsorted(time, at) - 1, 0, None)
    return np.where(np.isfinite(linear), linear, values[before])
