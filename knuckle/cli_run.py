"""A fit from the command line while it runs and when it is done: progress, Ctrl-C, and what is asked for beside it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

import knuckle as kn
from knuckle.cli_common import columns, err, fail, out, plain
from knuckle.cli_results import (
    SAMPLES,
    Results,
    about_fit,
    all_or_nothing,
    note,
    proposed_for_report,
    sampled_for_report,
    warn,
)
from knuckle.cli_sure import Wishes, propose, sampled

if TYPE_CHECKING:
    from knuckle.sysid import Fit, Recordings
    from knuckle.sysid.interrupt import Interrupts
    from knuckle.sysid.solve import Look

CHECKPOINT = "checkpoint.npz"
LINE_EVERY = 10.0  # seconds between lines at least, while the words stay the same
INTERRUPTED = 130  # exit code
COMPILING = "compiling"  # until the search first looks


class Display:
    """What the search is at: shown live, on what is not a terminal line by line, and kept for the report."""

    def __init__(self, seconds: float | None, stop: Interrupts, lines: Console | None = None):
        self.seconds, self.stop, self.began = seconds, stop, time.perf_counter()
        self.points: list[tuple[float, float]] = []  # seconds, half the sum of squares
        self.text, self.look = COMPILING, None
        self.lines, self.said, self.phase = lines, -math.inf, ""

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def progress(self, text: str) -> None:
        self.text = text
        self._say()

    def watch(self, look: Look) -> None:
        self.points.append((self.elapsed, look.value))
        self.look = look
        self.text = self.text.replace(COMPILING, "searching")
        self._say()

    def _say(self) -> None:
        """A line for each new phase (the same words with other numbers are the same one), and every few seconds."""
        phase = re.sub(r"[\d.,e+-]+", "", self.text)
        if self.lines is not None and (phase != self.phase or self.elapsed > self.said + LINE_EVERY):
            self.lines.print(plain(f"{self.summary()}   {self.text}"))
            self.said, self.phase = self.elapsed, phase

    def time_left(self) -> str:
        """By the pace of a global search or by the limit; a local search may end at any step."""
        limit = None if self.seconds is None else max(self.seconds - self.elapsed, 0.0)
        pace = None if self.look is None else self.look.seconds_left
        if pace is not None:
            return f"about {min(pace, math.inf if limit is None else limit):.0f} s left"
        return "time left unknown" if limit is None else f"at most {limit:.0f} s left"

    def summary(self) -> str:
        parts = [f"{self.elapsed:.1f} s", self.time_left(), f"{len(self.points)} looks"]
        if self.look is not None:
            parts += [f"loss {self.look.value:.6g}", f"best {self.look.best:.6g}"]
        return "   ".join(parts)

    def __rich__(self) -> Group:
        asked = "Ctrl-C: finishing with what was found so far; again to stop at once"
        return Group(Text(self.summary()), Text(asked if self.stop.asked else self.text, style="dim"))


def fit_and_write(
    robot: str,
    model: kn.Model,
    recordings: Recordings,
    logs: Sequence[str],
    options: dict,
    folder: Path,
    wishes: Wishes,
    reading: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Fit, show what was found, and write it; `options` are those of the fit, `reading` says how logs were read."""
    from knuckle import sysid
    from knuckle.optim import Status
    from knuckle.sysid.interrupt import interrupts

    with interrupts() as stop:
        live = out.is_terminal
        display, save = Display(options["seconds"], stop, None if live else out), folder / CHECKPOINT
        told = {"progress": display.progress, "watch": display.watch, "save": save}
        try:
            with Live(display, console=out, refresh_per_second=4, transient=True) if live else nullcontext():
                found = sysid.fit(model, list(recordings), **told, **options)
            show(found)
            about = about_fit(robot, recordings, logs, {**options, **reading, **wishes._asdict()})
            results = Results(folder, robot, found, recordings, display.points, about)
            with out.status("writing the report"):
                results.write()
        except KeyboardInterrupt:
            fail(f"stopped: nothing new is written to {folder}{_to_resume(folder)}", 130)
        except (ImportError, ValueError, OSError, RuntimeError) as error:
            fail(f"{error}{_to_resume(folder)}" if isinstance(error, OSError) else str(error))
        if found.result.status not in (Status.INTERRUPTED, Status.TIME_LIMIT):
            for path in folder.glob(f"{CHECKPOINT.partition('.')[0]}.*"):
                path.unlink()
        if stop.asked:
            rest = "" if wishes == Wishes() else "; what was asked for beside the fit is left out"
            rest += _to_resume(folder)
            err.print(f"[yellow]interrupted[/]: written is the best that was found until then{rest}")
            raise typer.Exit(130)
        code = fulfil(wishes, results, stop)
    if code:
        raise typer.Exit(code)


def fulfil(wishes: Wishes, results: Results, stop: Interrupts) -> int:
    """What is asked for beside the fit, which is written already and stays if this goes wrong. Returns an exit code."""
    found, more, code = results.found, {}, 0

    def sampled_to_file() -> None:
        with out.status("sampling"), all_or_nothing(results.folder) as (part, written):
            data = sampled(found, wishes.posterior, part / SAMPLES)["posterior"]
        more["posterior"] = sampled_for_report(data, found)
        out.print(f"wrote {plain(str(written[0]))}")

    def proposed_to_file() -> None:
        assert wishes.next_experiment is not None
        proposed = propose(found, wishes.next_experiment, wishes.speed)
        more["next_experiment"] = proposed_for_report(proposed, wishes.next_experiment)

    asked = {"--posterior": (wishes.posterior, sampled_to_file)}
    asked |= {"--next-experiment": (wishes.next_experiment, proposed_to_file)}
    for option, (wanted, made) in asked.items():
        if not wanted or code == INTERRUPTED:
            continue
        try:
            with stop.anywhere():
                made()
        except KeyboardInterrupt:
            code = INTERRUPTED
            results.regret(f"{option} was stopped by Ctrl-C")
        except Exception as error:  # whatever it is, the fit stays
            code = 1
            results.regret(f"{option} failed: {type(error).__name__}: {error}")
    if more or code:
        try:
            with out.status("writing the report"):
                results.write_again(**more)
        except (KeyboardInterrupt, OSError) as error:
            code = code or (1 if isinstance(error, OSError) else INTERRUPTED)
            warn(f"the report lacks what came after the fit: {error or 'stopped by Ctrl-C'}")
    return code


def _to_resume(folder: Path) -> str:
    return "; --resume goes on from there" if list(folder.glob(f"{CHECKPOINT.partition('.')[0]}.*")) else ""


def show(found: Fit) -> None:
    """Parameters, the error on held-out data, and what the data cannot tell, on the console."""
    rows = [(e.name, *e.texts, e.verdict, e.unit) for e in found.estimates]
    if rows:
        out.print(columns(("parameter", "before", "value", "95 % interval", "verdict", "unit"), rows))
    if found.blueprint is not None:
        out.print(plain(repr(found.blueprint)))
    from knuckle.sysid.report import failures_in_words

    result = found.result
    out.print(f"{result.status} after {result.iterations} iterations")
    if found.held_out is not None:
        out.print(f"[bold]{plain(repr(found.held_out))}[/]")
    for line in found.remarks(most=10):
        note(line)
    if result.failures:
        note(failures_in_words(result.failures))
