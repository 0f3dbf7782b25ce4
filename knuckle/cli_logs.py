"""Logs of `knuckle fit`, `simulate` and `info`: how they are read, and what is shown of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import knuckle as kn
from knuckle.cli_common import at_work, columns, out, plain
from knuckle.cli_parse import numbers, pairs, positive

if TYPE_CHECKING:
    from knuckle.deadline import Deadline
    from knuckle.hybrid import Calibration
    from knuckle.sysid import Recording, Recordings

SHOWN = 20  # recordings
CHECKS = 0.25  # share of the time after which forces are not checked any more


class Reading(NamedTuple):
    """What options say about logs."""

    column: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    units: str | None = None
    quaternion: str | None = None
    rate: float | None = None
    max_bytes: int | None = None
    shift: Sequence[str] | None = None
    gain: Sequence[str] | None = None  # JOINT=VALUE
    currents: bool = False
    known_gains: tuple[tuple[str, float], ...] = ()  # of a .knuckle file, where options give none

    def knowing(self, calibration: Calibration) -> Reading:
        """With the drive gains of a model that was fitted to currents."""
        return self._replace(known_gains=calibration.drive_gains)

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
            "gains": numbers(self.gain, "--gain", "JOINT=VALUE") or dict(self.known_gains),
            "currents": self.currents,
        }

    def shifts(self) -> dict[str, float]:
        """Seconds by channel."""
        return numbers(self.shift, "--shift", "CHANNEL=SECONDS")


def read(
    model: kn.Model, logs: Sequence[str], held_out: Sequence[str], reading: Reading, deadline: Deadline | None = None
):
    """Recordings to fit to, with findings of all logs, and those that the fit does not see."""
    with at_work(f"reading {', '.join(map(str, [*logs, *held_out][:3]))}{' ...' * (len(logs) + len(held_out) > 3)}"):
        found = recordings_of(model, logs, reading, deadline)
        unseen = recordings_of(model, held_out, reading, deadline) if held_out else ()
    if not len(found):
        raise ValueError(f"there is no recording in {', '.join(logs)}")
    if held_out:
        found.report.extend(unseen.report)  # pyright: ignore[reportAttributeAccessIssue]
    _show(model, found, unseen)
    return found, list(unseen)


def recordings_of(
    model: kn.Model, logs: Sequence[str], reading: Reading, deadline: Deadline | None = None
) -> Recordings:
    """The recordings of logs, read as all commands read them."""
    from knuckle import sysid

    options: dict[str, Any] = {**reading.options(), "deadline": deadline and deadline.share(CHECKS)}
    return _shifted(sysid.read_recordings(logs, model, **options), reading.shifts())


def drive_gains(texts: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The texts of --gain that are channels with an unknown scale, and those that are gains of drives, JOINT=VALUE."""
    given = list(texts or ())
    return [text for text in given if "=" not in text], [text for text in given if "=" in text]


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
    return sysid.Recordings(recordings, found.report, found.columns, found.drive_gains)


def channels_of(recordings: Sequence[Recording]) -> list[str]:
    return list(dict.fromkeys(key for r in recordings for key in r.channels))


def noise_of(texts: Sequence[str] | None) -> dict[str, Any]:
    """Standard deviations by channel; CHANNEL:KIND=VALUE gives them by kind of entry."""
    found: dict[str, Any] = {}
    for name, value in numbers(texts, "--noise", "CHANNEL=VALUE").items():
        channel, colon, kind = name.partition(":")
        if colon and not isinstance(found.setdefault(channel, {}), dict):
            raise ValueError(f"--noise: {channel} is given as a whole and by kind")
        if colon:
            found[channel][kind] = value
        elif channel in found:
            raise ValueError(f"--noise: {channel} is given as a whole and by kind")
        else:
            found[channel] = value
    return found


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


def show_logs(model: kn.Model, found: Recordings) -> None:
    """What columns are, the channels of each recording with their ranges, and all findings."""
    meanings = dict.fromkeys((c.column, f"{c.channel} {c.entry or ''}".strip(), c.unit or "") for c in found.columns)
    if meanings:
        out.print(columns(("column", "is", "unit of the column"), list(meanings)))
    for recording in found[:SHOWN]:
        out.print(f"\n[bold]{plain(recording.name)}[/]: {len(recording)} samples over {recording.duration:.4g} s, "
                  f"every {recording.period:.4g} s")  # fmt: skip
        out.print(columns(("channel", "least", "mean", "most", "measured", "unit"), _ranges(model, recording)))
    if len(found) > SHOWN:
        out.print(f"and {len(found) - SHOWN} more recordings")
    out.print("\nfound in the logs:" if len(found.report) else "\nnothing to remark")
    if len(found.report):
        out.print(found.report.table())


def _ranges(model: kn.Model, recording: Recording) -> list[tuple[str, ...]]:
    """A row for each entry of each channel: least, mean and largest value that was measured."""
    rows = []
    for key, channel in recording.channels.items():
        for j, (name, unit) in enumerate(zip(channel.names, _units(model, key, len(channel.names)), strict=True)):
            values = channel.values[channel.valid[:, j], j]
            numbers_of = [f"{x:.4g}" for x in (values.min(), values.mean(), values.max())] if len(values) else [""] * 3
            rows.append((f"{key} {name}", *numbers_of, f"{100 * channel.valid[:, j].mean():.4g} %", unit))
    return rows


def _units(model: kn.Model, key: str, count: int) -> list[str]:
    from knuckle.sysid.entries import CHANNELS, dimensions

    known = key in CHANNELS or key.startswith(("pose/", "point/"))
    kinds = dimensions(model, key) if known else ("number",) * count
    names = {"q": ("rad", "m"), "qd": ("rad/s", "m/s"), "qdd": ("rad/s^2", "m/s^2"), "tau": ("N m", "N")}
    angle, length = names.get(key, ("", "m" if known else ""))
    return [{"angle": angle, "length": length}.get(kind, "") for kind in kinds]
