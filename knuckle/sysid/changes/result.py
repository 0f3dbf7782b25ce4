"""What changed between two sets of logs, with intervals, and the same in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from knuckle.sysid.regression.result import Regression
from knuckle.sysid.uncertainty import digits


class Measured(NamedTuple):
    """A difference (after less before) with its 95 % interval."""

    name: str
    value: float
    lower: float  # NaN where the data do not determine it
    upper: float
    unit: str
    before: float = np.nan  # the value before, where there was one

    @property
    def determined(self) -> bool:
        return bool(np.isfinite(self.lower) and np.isfinite(self.upper))

    def __str__(self) -> str:
        if not self.determined:
            return f"{self.name} not determined"
        places = digits(self.lower, self.upper)
        return f"{self.name} {self.value:.{places}g} ({self.lower:.{places}g} .. {self.upper:.{places}g})"


class Gain(NamedTuple):
    """True effort over recorded effort of one joint, with its 95 % interval: N m/A or N/A if currents were recorded."""

    joint: str
    scale: float
    lower: float  # NaN if the load does not reveal it
    upper: float

    @property
    def determined(self) -> bool:
        return bool(np.isfinite(self.lower))

    def __str__(self) -> str:
        if not self.determined:
            return f"{self.joint}: not determined by this load"
        return f"{self.joint}: {self.scale:.4g} ({self.lower:.4g} .. {self.upper:.4g})"


@dataclass(frozen=True)
class Change:
    """One difference between the sets: a payload on a link, friction or offset of a joint, or the zero of a joint."""

    kind: str  # "payload", "friction", "offset" or "zero"
    place: str  # link or joint
    quantities: tuple[Measured, ...]
    share: float  # of the squared difference between the sets that only this change explains
    size: float  # friction and offsets: root mean square over that of the joint's friction; others: NaN
    sure: bool  # whether it differs from nothing at the 1 % level over all changes
    ties: tuple[tuple[str, str], ...] = ()  # kind and place of other explanations that are as good

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The same in words."""
        return tuple(
            f"a payload on {place}" if kind == "payload" else f"a moved zero of {place}" for kind, place in self.ties
        )

    def __getitem__(self, name: str) -> Measured:
        for found in self.quantities:
            if found.name == name:
                return found
        raise KeyError(
            f"{self.kind} of {self.place} has no {name!r}; it has {', '.join(q.name for q in self.quantities)}"
        )

    def __str__(self) -> str:
        from knuckle.sysid.changes.words import in_words

        return in_words(self)


@dataclass(frozen=True)
class Changes:
    """The answer: `changes` by how much of the difference they explain, `drifts` of friction and offsets apart."""

    changes: tuple[Change, ...]
    drifts: tuple[Change, ...]  # sure, but small beside the joint's friction
    gains: tuple[Gain, ...]  # of the drives, if the mass of the load was given
    errors: dict[str, tuple[float, float, float]]  # by joint: residual before, after, after with nothing changed
    excluded: tuple[str, float] | None  # if no payload was found: a link and the mass that would have been seen [kg]
    notes: tuple[str, ...]
    blocks: tuple[int, int]
    block: float  # [s]
    regression: Regression  # of the logs before

    @property
    def nothing(self) -> bool:
        """Whether nothing changed beyond drifts."""
        return not self.changes

    def __str__(self) -> str:
        from knuckle.sysid.changes.words import text

        return text(self)

    __repr__ = __str__
