"""What a fit found of instruments and drives, as it travels with a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

Values = tuple[tuple[str, tuple[float, ...]], ...]
CHANNELS, DELAYS = ("offsets", "gains"), ("sensor_delay", "actuator_delay", "effort_delay")
LONGEST = 10.0  # [s]


@dataclass(frozen=True)
class Calibration:
    """measured = gain * true + offset of channels; delays [s] of sensors, actuators and the stamps of measured efforts;
    torque per motor current of joints [N m/A or N/A]. `Calibration.of` takes dictionaries."""

    offsets: Values = ()
    gains: Values = ()
    drive_gains: tuple[tuple[str, float], ...] = ()
    sensor_delay: float = 0.0
    actuator_delay: float = 0.0
    effort_delay: float = 0.0

    @classmethod
    def of(
        cls,
        *,
        offsets: Mapping[str, Sequence[float]] | None = None,
        gains: Mapping[str, Sequence[float]] | None = None,
        drive_gains: Mapping[str, float] | None = None,
        sensor_delay: float = 0.0,
        actuator_delay: float = 0.0,
        effort_delay: float = 0.0,
    ) -> Calibration:
        """From dictionaries: values of the entries by channel, gains by joint."""
        drives = tuple((joint, float(gain)) for joint, gain in (drive_gains or {}).items())
        delays = float(sensor_delay), float(actuator_delay), float(effort_delay)
        return cls(_values(offsets), _values(gains), drives, *delays)

    def __bool__(self) -> bool:
        return self != Calibration()

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        parts = {key: {channel: list(values) for channel, values in getattr(self, key)} for key in CHANNELS}
        return parts | {"drive_gains": dict(self.drive_gains)} | {key: getattr(self, key) for key in DELAYS}

    def in_words(self) -> list[str]:
        """A line for each part that says something."""
        lines = [
            f"delay of {key.partition('_')[0]}s: {getattr(self, key):.4g} s" for key in DELAYS if getattr(self, key)
        ]
        for key in CHANNELS:
            for channel, values in getattr(self, key):
                lines.append(f"{key} of {channel}: {', '.join(f'{value:.6g}' for value in values)}")
        if self.drive_gains:
            lines.append("drive gains [N m/A]: " + ", ".join(f"{joint} {gain:.4g}" for joint, gain in self.drive_gains))
        return lines


def _values(channels: Mapping[str, Sequence[float]] | None) -> Values:
    return tuple((channel, tuple(map(float, values))) for channel, values in (channels or {}).items())


def calibration_of_data(node: Any) -> Calibration:
    """From JSON data; a ValueError says what is wrong."""
    names = {field.name for field in fields(Calibration)}
    if not isinstance(node, dict) or set(node) != names:
        raise ValueError(f"expected {', '.join(sorted(names))}, got {node!r:.200}")
    for key in (*CHANNELS, "drive_gains"):
        if not isinstance(node[key], dict):
            raise ValueError(f"{key}: expected names and numbers, got {node[key]!r:.200}")
    for key in CHANNELS:
        for channel, values in node[key].items():
            if not isinstance(values, list) or not all(_is_number(value) for value in values):
                raise ValueError(f"{key}: {channel}: expected a list of finite numbers, got {values!r:.200}")
    for joint, gain in node["drive_gains"].items():
        if not _is_number(gain):
            raise ValueError(f"drive_gains: {joint}: expected a finite number, got {gain!r:.200}")
    for key in DELAYS:
        if not _is_number(node[key]):
            raise ValueError(f"{key}: expected a finite number [s], got {node[key]!r:.200}")
    return Calibration.of(**node)


def check_calibration(calibration: Calibration, nv: int) -> None:
    """A ValueError for what no model of this many degrees of freedom can have."""
    for key in CHANNELS:
        for channel, values in getattr(calibration, key):
            if channel in ("q", "qd", "qdd", "tau") and len(values) != nv:
                raise ValueError(f"calibration: {key} of {channel}: expected {nv} numbers, got {len(values)}")
            if not all(math.isfinite(value) for value in values) or (key == "gains" and 0.0 in values):
                raise ValueError(f"calibration: {key} of {channel}: expected finite numbers, gains not 0, got {values}")
    for joint, gain in calibration.drive_gains:
        if not math.isfinite(gain) or gain == 0:
            raise ValueError(f"calibration: drive gain of {joint}: expected a finite number other than 0, got {gain}")
    for key in DELAYS:
        if not abs(getattr(calibration, key)) < LONGEST:
            raise ValueError(f"calibration: {key}: expected less than {LONGEST:g} s, got {getattr(calibration, key)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
