"""What was found in a log, where, how often, and what was done about it; the error for one that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Action = Literal["note", "repaired", "left out", "suspect"]
FIRST: tuple[Action, ...] = ("suspect", "left out", "repaired", "note")


class RecordingError(ValueError):
    """A log that cannot be used as a recording: names the file, the place in it, and the reason."""

    def __init__(self, source: str | Path, reason: str, place: str = ""):
        self.source, self.place = str(source), printable(place)
        self.reason = "\n".join(printable(line, 1000) for line in reason.splitlines()[:20])
        super().__init__(f"{source}{f', {self.place}' if place else ''}: {self.reason}")


@dataclass(frozen=True)
class Finding:
    """One kind of thing at one place of a recording."""

    what: str  # in one or two words: "gaps", "wrapped angle", "degrees"
    place: str  # the channel and entry, column or line
    count: int  # of samples, rows or events
    action: Action  # "note": as it should be; "suspect": nothing was changed, look at it
    detail: str
    recording: str = ""

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.recording, self.place) if part)
        return f"{where}: {self.what} ({self.count}), {self.action}: {self.detail}"


class Report(Sequence[Finding]):
    """Findings in the order in which they were made; prints as a table."""

    def __init__(self, findings: Iterable[Finding] = ()):
        self._findings = list(findings)

    def add(self, what: str, place: str, count: int, action: Action, detail: str, recording: str = "") -> None:
        self._findings.append(Finding(what, place, int(count), action, detail, recording))

    def extend(self, findings: Iterable[Finding]) -> None:
        self._findings.extend(findings)

    def of(self, what: str) -> list[Finding]:
        """The findings of one kind."""
        return [finding for finding in self._findings if finding.what == what]

    def __getitem__(self, index):
        return self._findings[index]

    def __len__(self) -> int:
        return len(self._findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings)

    def table(self, most: int = 60) -> Table:
        """For a console, like findings together; text from the log is never taken for markup."""
        table = Table("recording", "place", "finding", "count", "action", "detail", title=None)
        rows = together(self._findings)
        for f in rows[:most]:
            cells = (f.recording, f.place, f.what, str(f.count), f.action, f.detail)
            table.add_row(*(Text(printable(cell)) for cell in cells))
        if len(rows) > most:
            table.add_row("...", "", f"{len(rows) - most} more rows", "", "", "a Report is a sequence of them all")
        return table

    def __str__(self) -> str:
        if not self._findings:
            return "nothing found"
        console = Console(width=160, color_system=None)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get().rstrip()

    def __repr__(self) -> str:
        return f"Report({len(self)} findings)"


def together(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that differ in their places only as one, and then those that differ in their recordings only.

    Columns that were matched alike to entries of one channel are one finding too. Those to look at come first.
    """
    alike = _merged(_merged(_matched(findings), "place"), "recording")
    return sorted(alike, key=lambda f: FIRST.index(f.action))


def _matched(findings: Iterable[Finding]) -> list[Finding]:
    groups: dict[tuple, list[Finding]] = {}
    for number, finding in enumerate(findings):
        to, _, how = finding.detail.partition(": ")
        alike = (finding.recording, to.partition(" ")[0], how) if finding.what == "matched" else (number,)
        groups.setdefault(alike, []).append(finding)
    return [_channel(group) for group in groups.values()]


def _channel(group: Sequence[Finding]) -> Finding:
    """Of columns with the details `q shoulder: how` to `q wrist: how` one with `q shoulder .. wrist: how`."""
    first, last = group[0], group[-1]
    if first is last:
        return first
    entry, how = last.detail.partition(": ")[0].partition(" ")[2], first.detail.partition(": ")[2]
    detail = f"{first.detail.partition(': ')[0]} .. {entry}: {how}"
    return replace(first, place=f"{first.place} .. {last.place}", count=len(group), detail=detail)


def _merged(findings: Iterable[Finding], field: Literal["place", "recording"]) -> list[Finding]:
    groups: dict[Finding, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(replace(finding, count=0, **{field: ""}), []).append(finding)
    return [
        replace(alike, count=sum(f.count for f in group), **{field: _named([getattr(f, field) for f in group])})
        for alike, group in groups.items()
    ]


def _named(names: Sequence[str]) -> str:
    """Names in a row, each once: `q a, b, c` for entries of one channel."""
    names = list(dict.fromkeys(names))
    if len(names) == 1:
        return names[0]
    channel = names[0].partition(" ")[0]
    if all(name.startswith(f"{channel} ") for name in names):
        names = [names[0], *(name.removeprefix(f"{channel} ") for name in names[1:])]
    return listed(names, 8)


def printable(text: str, most: int = 200) -> str:
    """Text from a file, cut, with what a terminal would act upon made visible."""
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def listed(names: Iterable[str], most: int = 40) -> str:
    """Names for an error message; a long list is cut, and says so."""
    shown = [printable(str(name), 80) for name in names]
    more = len(shown) - most
    return (", ".join(shown[:most]) or "none") + (f" and {more} more" if more > 0 else "")
