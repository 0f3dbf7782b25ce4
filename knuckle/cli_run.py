"""A fit from the command line while it runs and when it is done: progress, Ctrl-C, and what is asked for beside it."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

import knuckle as kn
from knuckle.cli_common import at_work, err, fail, out, plain
from knuckle.cli_folder import all_or_nothing, mark_written
from knuckle.cli_results import (
    CHECKPOINT,
    CHECKPOINTS,
    SAMPLES,
    Results,
    about_fit,
    note,
    proposed_for_report,
    sampled_for_report,
    warn,
)
from knuckle.cli_show import show
from knuckle.cli_sure import Wishes, propose, sampled
from knuckle.deadline import Deadline, OutOfTime, bounded, slowness

if TYPE_CHECKING:
    from knuckle.interrupt import Interrupts
    from knuckle.sysid import Fit, Recordings
    from knuckle.sysid.solve import Look

LINE_EVERY = 5.0  # seconds between lines while the words stay the same
REPORT = 4.0  # seconds that writing the report takes, about
INTERRUPTED, DOUBTFUL = 130, 3  # exit codes; the second: results are written, but a warning says not to trust them
COMPILING = "compiling"  # until the search first looks


class Display:
    """What the search is at: shown live, on what is not a terminal line by line, and kept for the report."""

    def __init__(
        self, seconds: float | None, stop: Interrupts, lines: Console | None = None, began: float | None = None
    ):
        self.seconds, self.stop, self.began = seconds, stop, time.monotonic() if began is None else began
        self.points: list[tuple[float, float]] = []  # seconds, half the sum of squares
        self.text, self.look, self.least = COMPILING, None, math.inf
        self.lines, self.said, self.phase = lines, -math.inf, ""
        self._ended, self._saying = threading.Event(), threading.Lock()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def progress(self, text: str) -> None:
        self.text = text
        self._say()

    def watch(self, look: Look) -> None:
        self.points.append((self.elapsed, look.value))
        self.look = look
        if look.relative is not None and look.relative < self.least:
            self.least = look.relative
        self.text = self.text.replace(COMPILING, "searching")
        self._say()

    def __enter__(self) -> Display:
        """Lines come on, even while a phase has nothing to tell."""
        if self.lines is not None:
            threading.Thread(target=self._keep_saying, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()

    def _keep_saying(self) -> None:
        while not self._ended.wait(0.5):
            self._say()

    def _say(self) -> None:
        """A line for each new phase (the same words with other numbers are the same one), and every few seconds."""
        phase = re.sub(r"[\d.,e+-]+", "", self.text)
        with self._saying:
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
        parts = [f"{self.elapsed:.1f} s", self.time_left(), f"{len(self.points)} evaluations"]
        return "   ".join([*parts, *self.residuals()])

    def residuals(self) -> list[str]:
        """How far the simulation is from the data, in units of their noise and of the channels; least so far."""
        look = self.look
        if look is None:
            return []
        if look.relative is None:
            return [f"loss {look.value:.6g}", f"best {look.best:.6g}"]
        shown = ", ".join(f"{key} {rms:.3g}" for key, rms in list(look.rms.items())[:3])
        return [f"residual {look.relative:.3g} x noise (RMS: {shown})", f"least {self.least:.3g} x noise"]

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
    deadline: Deadline | None = None,
    compare: Callable[[Fit], dict[str, Any]] = lambda found: {},
) -> None:
    """Fit, show what was found, and write it; `options` are those of the fit, `reading` says how logs were read.

    deadline: for all of this, the report included; by default the seconds of the options from now on. compare: shows
    what the fit is to be compared with, and returns it as data.
    """
    from knuckle import sysid
    from knuckle.interrupt import interrupts
    from knuckle.optim import Status
    from knuckle.sysid.report import summarise

    deadline = Deadline(options["seconds"]) if deadline is None else deadline
    with interrupts() as stop:
        live = out.is_terminal
        display = Display(deadline.seconds, stop, None if live else out, deadline.began)
        told = {"progress": display.progress, "watch": display.watch, "save": folder / CHECKPOINT}
        told["seconds"] = deadline.earlier(min(REPORT * slowness(), 0.35 * (deadline.seconds or 0.0)))
        try:
            mark_written(folder, CHECKPOINTS)
            with display, Live(display, console=out, refresh_per_second=4, transient=True) if live else nullcontext():
                found = sysid.fit(model, list(recordings), **{**options, **told})
            answer = summarise(found, recordings, deadline)
            show(found, answer)
            about = about_fit(robot, recordings, logs, {**options, **reading, **wishes._asdict()})
            about |= _compared(compare, found, deadline, stop)
            results = Results(folder, robot, found, recordings, display.points, about, deadline, answer)
            with at_work("writing the report"):
                results.write()
        except KeyboardInterrupt:
            fail(f"stopped: nothing new is written to {folder}{_to_resume(folder)}", 130)
        except (ImportError, ValueError, OSError, RuntimeError) as error:
            fail(f"{error}{_to_resume(folder)}" if isinstance(error, OSError) else str(error))
        if found.result.status not in (Status.INTERRUPTED, Status.TIME_LIMIT):
            for name in CHECKPOINTS:
                (folder / name).unlink(missing_ok=True)
        if stop.asked:
            rest = "" if wishes == Wishes() else "; what was asked for beside the fit is left out"
            rest += _to_resume(folder)
            err.print(f"[yellow]interrupted[/]: written is the best that was found until then{rest}")
            raise typer.Exit(130)
        code = fulfil(wishes, results, stop, deadline) or (DOUBTFUL if answer.level == "bad" else 0)
    if code:
        raise typer.Exit(code)


def _compared(
    compare: Callable[[Fit], dict[str, Any]], found: Fit, deadline: Deadline, stop: Interrupts
) -> dict[str, Any]:
    """What a comparison gives; nothing if the time is over, which is said."""
    try:
        return bounded(lambda: compare(found), deadline.earlier(REPORT), stop)
    except OutOfTime:
        text = "what changed: the time was over"
        deadline.leave_out(text)
        note(f"left out: {text}")
        return {}


def fulfil(wishes: Wishes, results: Results, stop: Interrupts, deadline: Deadline) -> int:
    """What is asked for beside the fit, which is written already and stays if this goes wrong. Returns an exit code."""
    found, more, code = results.found, {}, 0

    def sampled_to_file() -> None:
        with at_work("sampling"), all_or_nothing(results.folder) as (part, written):
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
            if deadline.limited:
                bounded(made, deadline.earlier(0.5 * REPORT), stop)
            else:
                with stop.anywhere():
                    made()
        except OutOfTime:
            results.regret(f"{option} is left out: the time was over")
            code = 1
        except KeyboardInterrupt:
            code = INTERRUPTED
            results.regret(f"{option} was stopped by Ctrl-C")
        except Exception as error:  # whatever it is, the fit stays
            code = 1
            results.regret(f"{option} failed: {type(error).__name__}: {error}")
    if more or code:
        try:
            with at_work("writing the report"):
                results.write_again(**more)
        except (KeyboardInterrupt, OSError) as error:
            code = code or (1 if isinstance(error, OSError) else INTERRUPTED)
            warn(f"the report lacks what came after the fit: {error or 'stopped by Ctrl-C'}")
    return code


def _to_resume(folder: Path) -> str:
    return "; --resume goes on from there" if any((folder / name).exists() for name in CHECKPOINTS) else ""
