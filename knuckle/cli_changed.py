"""`knuckle fit --changed`: what changed from the logs to those of another time, on the console and in the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import knuckle as kn
from knuckle.cli_common import columns, out, plain
from knuckle.cli_logs import Reading, read
from knuckle.cli_parse import numbers
from knuckle.cli_results import note

if TYPE_CHECKING:
    from knuckle.sysid import Fit, Recordings


class Comparing(NamedTuple):
    """Logs after something changed, and the mass of a known load by link."""

    logs: Sequence[str] = ()
    load: Sequence[str] | None = None

    def checked(self, before: Sequence[str]) -> Comparing:
        """Itself, if its options fit together."""
        if self.load and not self.logs:
            raise ValueError("--load says which load the logs of --changed have: give --changed too")
        twice = [log for log in self.logs if Path(log).resolve() in [Path(other).resolve() for other in before]]
        if twice:
            raise ValueError(f"--changed: {twice[0]} is among the logs that it is compared with")
        numbers(self.load, "--load", "LINK=KILOGRAMS")
        return self


def compare_and_show(
    model: kn.Model, found: Fit, recordings: Recordings, comparing: Comparing, reading: Reading
) -> dict[str, Any]:
    """What changed from the logs of `found` to those of `comparing`: shown, and as data for the report."""
    from knuckle import sysid
    from knuckle.sysid.changes.words import ERROR_HEAD, answer, drift_lines, error_rows, gain_lines
    from knuckle.sysid.report.changed import data

    if not comparing.logs:
        return {}
    after, _ = read(model, comparing.logs, (), reading)
    recordings.report.extend(after.report)
    load = numbers(comparing.load, "--load", "LINK=KILOGRAMS") or None
    with out.status("what changed"):
        changes = sysid.find_changes(model, list(recordings), list(after), load=load, regression=found.regression)
    out.print("[bold]what changed[/]")
    for line in answer(changes):
        out.print(f"  {plain(line)}")
    for title, lines in (
        ("small drifts", drift_lines(changes)),
        ("true effort over recorded effort, by the known load", gain_lines(changes)),
    ):
        if lines:
            out.print(title)
            for line in lines:
                out.print(f"  {plain(line)}")
    out.print(columns(tuple("torque residual" if h == "joint" else h for h in ERROR_HEAD), error_rows(changes)))
    for line in changes.notes:
        note(line)
    return {"changed": data(changes) | {"logs": list(map(str, comparing.logs))}}
