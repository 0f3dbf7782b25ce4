"""Motor currents turned into joint torques by drive gains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from knuckle.model.model import Model
from knuckle.sysid import units
from knuckle.sysid.entries import dimensions, names_of
from knuckle.sysid.findings import RecordingError, Report, listed
from knuckle.sysid.match import CURRENT, Place


@dataclass(frozen=True)
class DriveGains:
    """Torque per current of each joint [N m/A or N/A]; `everywhere`: columns of efforts hold currents too."""

    gains: Mapping[str, float] = field(default_factory=dict)
    everywhere: bool = False

    def checked(self, model: Model) -> DriveGains:
        names = names_of(model, "tau")
        for joint, gain in self.gains.items():
            if joint not in names:
                raise ValueError(f"gains (--gain): there is no joint {joint!r}; there are {', '.join(names)}")
            if not (isinstance(gain, int | float) and math.isfinite(gain) and gain != 0):
                raise ValueError(f"gains (--gain): {joint} must have a finite gain other than 0 [N m/A], got {gain}")
        return self

    def applied(self, path: Path, places: dict[str, Place], model: Model, run: str, report: Report) -> dict[str, Place]:
        """Places in which currents are torques; an error if a gain is missing."""
        amperes = {n: self._as_current(p, model) for n, p in places.items()}
        currents = {n: p for n, p in amperes.items() if p is not None}
        if not currents:
            if self.gains:
                detail = "no column holds currents; --currents says that those of torques do"
                report.add("gains not used", listed(self.gains), len(self.gains), "note", detail, run)
            return places
        torques = {p.entry for n, p in places.items() if p.channel == "tau" and n not in currents}
        spare = [n for n, p in currents.items() if None in torques or p.entry in torques]
        for name in spare:
            report.add("currents", name, 1, "note", "not read: the joint's torque is in the log too", run)
        used = {n: p for n, p in currents.items() if n not in spare}
        self._check_known(path, used, model)
        if used:
            shown = ", ".join(f"{joint} {gain:g}" for joint, gain in self.gains.items())
            detail = f"turned into torques by the gains given [N m/A]: {shown}"
            report.add("currents", listed(used, 8), len(used), "note", detail, run)
        others = {n: p for n, p in places.items() if n not in currents}
        return others | {n: self._as_torque(p, model) for n, p in used.items()}

    def _as_current(self, place: Place, model: Model) -> Place | None:
        if place.channel == CURRENT:
            return place
        if place.channel != "tau" or not (units.is_current(place.unit) or (self.everywhere and not place.unit)):
            return None
        return replace(place, channel=CURRENT)

    def _check_known(self, path: Path, used: Mapping[str, Place], model: Model) -> None:
        names = names_of(model, "tau")
        joints = [j for p in used.values() for j in (names if p.entry is None else (p.entry,))]
        missing = [joint for joint in dict.fromkeys(joints) if joint not in self.gains]
        if missing:
            raise RecordingError(
                path,
                f"{listed(used, 8)}: motor currents, whose gains [N m/A] are not known for {listed(missing)}\n"
                f"  give them with gains={{{missing[0]!r}: 8.4}} (--gain {missing[0]}=8.4, again for each joint),\n"
                f"  or leave the currents out with ignore= (--ignore '{next(iter(used))}')",
            )

    def _as_torque(self, place: Place, model: Model) -> Place:
        names, kinds = names_of(model, "tau"), dimensions(model, "tau")
        entries = names if place.entry is None else (place.entry,)
        unit = place.unit or "A"
        factors = [units.factor(unit, CURRENT, kinds[names.index(e)]) for e in entries]
        if any(factor is None for factor in factors):
            raise ValueError(f"unit {unit!r} is none of currents; there are {', '.join(units.CURRENT)}")
        scale = tuple(self.gains[e] * (f or 1.0) for e, f in zip(entries, factors, strict=True))
        return Place("tau", place.entry, None, place.guessed, scale)
