"""A recording in the making: values that are not known, or not believed, are NaN; checks repair it in place."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.findings import Action, Report
from knuckle.sysid.recording import Channel, Recording


@dataclass(eq=False)
class Draft:
    """Channels over one clock."""

    name: str
    source: str
    model: Model
    time: np.ndarray
    values: dict[str, np.ndarray]
    names: dict[str, tuple[str, ...]]
    units_known: set[tuple[str, str]] = field(default_factory=set)  # channel and entry whose header gave a unit
    order_known: set[str] = field(default_factory=set)  # channels whose quaternions are known to be wxyz

    def entry(self, channel: str, index: int) -> np.ndarray | None:
        """Values of one entry, or None where nothing of it was measured."""
        if channel not in self.values:
            return None
        column = self.values[channel][:, index]
        return column if np.isfinite(column).any() else None

    def place(self, channel: str, index: int) -> str:
        return f"{channel} {self.names[channel][index]}"

    def say(self, report: Report, what: str, place: str, count: int, action: Action, detail: str) -> None:
        report.add(what, place, count, action, detail, self.name)

    def at(self, start: int, stop: int, name: str) -> Draft:
        values = {key: array[start:stop].copy() for key, array in self.values.items()}
        return Draft(
            name, self.source, self.model, self.time[start:stop], values, self.names, self.units_known, self.order_known
        )

    def finished(self) -> Recording:
        channels = {key: Channel(v, np.isfinite(v), self.names[key]) for key, v in self.values.items()}
        return Recording(self.time, channels, self.name, self.source)
