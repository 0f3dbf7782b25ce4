"""Logs of `knuckle fit`: how they are read, and what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import knuckle as kn
from knuckle.cli_common import out, plain
from knuckle.cli_parse import numbers, pairs, positive

if TYPE_CHECKING:
    from knuckle.sysid import Recording, Recordings

SHOWN = 20  # recordings


class Reading(NamedTuple):
    """What options say about logs."""

    column: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    units: str | None = None
    quaternion: str | None = None
    rate: float | None = None
    max_bytes: int | None = None
    shift: Sequence[str] | None = None

    def options(self) -> dict[str, Any]:
        """For `read_recordings`."""
        positive("--rate", self.rate, " of samples per second")
        positive("--max-bytes", self.max_bytes)
        limit = {} if self.max_bytes is None else {"max_bytes": self.max_bytes}
        return limit | {
            "columns": pairs(self.column, "--column"),
            "ignore": self.ignore or (),
            "units": self.units,
            "quaternion": self.quaternion,
            "rate": self.rate,
        }

    def shifts(self) -> dict[str, float]:
        """Seconds by channel."""
        return numbers(self.shift, "--shift", "CHANNEL=SECONDS")


def read(model: kn.Model, logs: Sequence[str], held_out: Sequence[str], reading: Reading):
    """Recordings to fit to, with findings of all logs, and those that the fit does not see."""
    from knuckle import sysid

    options, shifts = reading.options(), reading.shifts()
    found = _shifted(sysid.read_recordings(logs, model, **options), shifts)
    unseen = _shifted(sysid.read_recordings(held_out, model, **options), shifts) if held_out else ()
    if not len(found):
        raise ValueError(f"there is no recording in {', '.join(logs)}")
    if held_out:
        found.report.extend(unseen.report)  # pyright: ignore[reportAttributeAccessIssue]
    _show(model, found, unseen)
    return found, list(unseen)


def _shifted(found: Recordings, shifts: dict[str, float]) -> Recordings:
    """With the stamps of channels moved, which the report then says."""
    from knuckle import sysid

    recordings = list(found)
    for channel, by in shifts.items():
        there = [r for r in recordings if channel in r.channels]
        if not there:
            raise ValueError(f"--shift: there is no channel {channel}; there are {', '.join(channels_of(recordings))}")
        shortest = min(r.duration for r in there)
        if abs(by) >= shortest:
            raise ValueError(f"--shift: {channel}={by:g} is more than a recording of {shortest:.4g} s has")
        recordings = [sysid.shift(r, channel, by) if channel in r.channels else r for r in recordings]
        found.report.add("shifted", channel, len(there), "repaired", f"stamps moved by {by:g} s, as --shift says")
    return sysid.Recordings(recordings, found.report)


def channels_of(recordings: Sequence[Recording]) -> list[str]:
    return list(dict.fromkeys(key for r in recordings for key in r.channels))


def noise_of(texts: Sequence[str] | None) -> dict[str, float]:
    """Deviations by channel."""
    return numbers(texts, "--noise", "CHANNEL=VALUE")


def _show(model: kn.Model, found: Recordings, unseen: Sequence[Recording]) -> None:
    more = f", and {len(unseen)} that the fit does not see" if unseen else ""
    out.print(f"[bold]{plain(model.name)}[/]: {len(found)} recordings, {sum(map(len, found))} samples{more}")
    for recording in found[:SHOWN]:
        out.print(f"  {plain(repr(recording))}")
    if len(found) > SHOWN:
        out.print(f"  and {len(found) - SHOWN} more")
    if len(found.report):
        out.print("found in the logs:")
        out.print(found.report.table())
