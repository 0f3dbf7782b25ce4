"""A fit from the command line while it runs and when it is done: progress, Ctrl-C, and the folder of results."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

import knuckle as kn
from knuckle.cli_common import columns, err, fail, out, plain, worded
from knuckle.cli_sure import Wishes, propose, sampled

if TYPE_CHECKING:
    from knuckle.sysid import Fit, Recording, Recordings
    from knuckle.sysid.interrupt import Interrupts
    from knuckle.sysid.solve import Look

HYBRID, CHECKPOINT = "model.knuckle", "checkpoint.npz"


class Display:
    """What the search is at: shown live, and kept for the report."""

    def __init__(self, seconds: float | None, stop: Interrupts):
        self.seconds, self.stop, self.began = seconds, stop, time.perf_counter()
        self.points: list[tuple[float, float]] = []  # seconds, half the sum of squares
        self.text, self.look = "compiling", None

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def progress(self, text: str) -> None:
        self.text = text

    def watch(self, look: Look) -> None:
        self.points.append((self.elapsed, look.value))
        self.look = look

    def time_left(self) -> str:
        """By the pace of a global search or by the limit; a local search may end at any step."""
        limit = None if self.seconds is None else max(self.seconds - self.elapsed, 0.0)
        pace = None if self.look is None else self.look.seconds_left
        if pace is not None:
            return f"about {min(pace, math.inf if limit is None else limit):.0f} s left"
        return "time left unknown" if limit is None else f"at most {limit:.0f} s left"

    def __rich__(self) -> Group:
        parts = [f"{self.elapsed:.1f} s", self.time_left(), f"{len(self.points)} looks"]
        if self.look is not None:
            parts += [f"loss {self.look.value:.6g}", f"best {self.look.best:.6g}"]
        asked = "Ctrl-C: finishing with what was found so far; again to stop at once"
        return Group(Text("   ".join(parts)), Text(asked if self.stop.asked else self.text, style="dim"))


def fit_and_write(
    robot: str, model: kn.Model, recordings: Recordings, logs, options: dict, folder: Path, wishes: Wishes
) -> None:
    from knuckle import sysid
    from knuckle.optim import Status
    from knuckle.sysid.interrupt import interrupts

    with interrupts() as stop:
        display, save = Display(options["seconds"], stop), folder / CHECKPOINT
        told = {"progress": display.progress, "watch": display.watch, "save": save}
        try:
            with Live(display, console=out, refresh_per_second=4, transient=True):
                found = sysid.fit(model, list(recordings), **told, **options)
            show(found)
            with out.status("writing the report"):
                write(folder, robot, found, recordings, display.points, logs, options, wishes)
            if wishes.next_experiment is not None:
                propose(found, wishes.next_experiment, wishes.speed)
        except KeyboardInterrupt:
            fail(f"stopped: nothing new is written to {folder}{_to_resume(folder)}", 130)
        except (ImportError, ValueError, OSError, RuntimeError) as error:
            fail(f"{error}{_to_resume(folder)}" if isinstance(error, OSError) else str(error))
        if found.result.status not in (Status.INTERRUPTED, Status.TIME_LIMIT):
            for path in folder.glob(f"{CHECKPOINT.partition('.')[0]}.*"):
                path.unlink()
        if stop.asked:
            err.print(f"[yellow]interrupted[/]: written is the best that was found until then{_to_resume(folder)}")
            raise typer.Exit(130)


def _to_resume(folder: Path) -> str:
    return "; --resume goes on from there" if list(folder.glob(f"{CHECKPOINT.partition('.')[0]}.*")) else ""


def show(found: Fit) -> None:
    """Parameters, the error on held-out data, and what the data cannot tell, on the console."""
    rows = [
        (e.name, f"{e.before:.4g}", f"{e.value:.4g}", f"{e.lower:.4g} .. {e.upper:.4g}", e.verdict, e.unit)
        for e in found.estimates
    ]
    if rows:
        out.print(columns(("parameter", "before", "value", "95 % interval", "verdict", "unit"), rows))
    if found.blueprint is not None:
        out.print(plain(repr(found.blueprint)))
    result = found.result
    out.print(f"{result.status} after {result.iterations} iterations")
    if found.held_out is not None:
        out.print(f"[bold]{plain(repr(found.held_out))}[/]")
    for line in found.remarks(most=10):
        out.print(f"[yellow]note:[/] {plain(line)}")


def write(
    folder: Path, robot: str, found: Fit, recordings, points, logs: Sequence[str], options: dict, wishes: Wishes
) -> None:
    """The fitted robot, the hybrid model, fit.json and report.html: all of them, or what was there before stays."""
    from knuckle.sysid.report import write_report

    suffix = ".urdf" if Path(robot).suffix.lower() == ".urdf" else ".xml"
    about = _about(robot, recordings, logs, options)
    dt = found.shots.period / found.simulator.substeps
    rest = {"contact": found.contact, "integrator": found.simulator.integrator, "dt": dt}
    notes = {"robot": about["robot"], "logs": about["logs"]}
    with _all_or_nothing(folder) as (part, written):
        kn.save_hybrid(part / HYBRID, found.model, found.blueprint, notes=notes, **rest)
        if wishes.posterior:
            about |= sampled(found, wishes.posterior, part / "posterior.csv")
        write_report(part, found, findings=recordings.report, search=points, about=about)
        fitted = folder / f"{Path(robot).stem}{suffix}"
        try:
            kn.save(found.model, fitted)  # where it stays: it refers to meshes from there
            written.append(fitted)
        except ValueError as error:
            err.print(f"[yellow]warning:[/] {plain(str(error))}; the fitted model is in {plain(str(folder / HYBRID))}")
    out.print(f"wrote {plain(' '.join(sorted(map(str, written))))}")


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """A folder whose files move into this one at the end, and their names; if anything goes wrong, none does."""
    part, written = folder / f".{os.getpid()}.part", []
    try:
        part.mkdir()
        yield part, written
        for path in part.iterdir():
            os.replace(path, folder / path.name)
            written.append(folder / path.name)
    except OSError as error:
        raise OSError(f"writing to {folder}: {error}; what was there before is whole") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _about(robot: str, recordings: Sequence[Recording], logs: Sequence[str], options: dict) -> dict:
    runs = [
        {"name": r.name, "samples": len(r), "duration": r.duration, "channels": list(r.channels)} for r in recordings
    ]
    return {
        "knuckle": kn.__version__,
        "robot": robot,
        "logs": [str(log) for log in logs],
        "recordings": runs,
        "options": worded(options),
    }
