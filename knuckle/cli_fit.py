"""The commands `knuckle fit` and `knuckle demo`: from a robot and logs to a folder with a fitted simulator."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import jax
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

import knuckle as kn
from knuckle.cli_common import TOUCHING, Touching, columns, err, fail, load, made_folder, out, plain

if TYPE_CHECKING:
    from knuckle.optim import LevenbergMarquardt
    from knuckle.sysid import Fit, Recording, Recordings

HIDDEN = (6,)  # sizes of the hidden layers of networks by default
JOINT_FORCES = ("joint/force", "joint/passive_force")
DEMO_ROBOT, DEMO_SECONDS = "double_pendulum", 60.0


class Shooting(StrEnum):
    """Losses by the names of the command line."""

    MULTIPLE = "multiple"
    SINGLE = "single"
    ONE_STEP = "one-step"


LOSSES = {
    Shooting.MULTIPLE: "multiple shooting",
    Shooting.SINGLE: "single shooting",
    Shooting.ONE_STEP: "one step",
}


def fit(
    robot: Annotated[str, typer.Argument(help="A built-in robot, or the path of a URDF or MJCF file.")],
    logs: Annotated[list[str], typer.Argument(help="Logs (CSV, NPZ, HDF5, Parquet, MCAP, ROS bags) or folders.")],
    free: Annotated[
        list[str] | None,
        typer.Option(help="What is fitted, such as '*.mass' or 'elbow.damping=0:0.5'; again for more."),
    ] = None,
    network: Annotated[list[str] | None, typer.Option(help="A tap at which a network learns what is left.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for results; by default runs/<robot>_fit.")
    ] = None,
    contact: Annotated[Touching, typer.Option(help="How bodies touch.")] = Touching.NONE,
    loss: Annotated[Shooting, typer.Option(help="How simulation and log are compared.")] = Shooting.MULTIPLE,
    segment: Annotated[float | None, typer.Option(help="Seconds of a piece in multiple shooting.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="What a column is: 'enc_a=q shoulder'; again for more.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column or topic to leave out; again for more.")] = None,
    offset: Annotated[list[str] | None, typer.Option(help="A channel with an unknown offset, such as q.")] = None,
    delay: Annotated[list[str] | None, typer.Option(help="What may be late: sensor or actuator.")] = None,
    held_out: Annotated[float, typer.Option(help="Share of the data that the fit does not see.")] = 0.25,
    seed: Annotated[int, typer.Option(help="Of the held-out part and of networks.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="Most time for the search.")] = None,
    repair_inertia: Annotated[
        bool, typer.Option("--repair-inertia", help="Mend inertia that no real body can have, and say where.")
    ] = False,
) -> None:
    """Fit a robot, and networks inside it, to logs of what it did; Ctrl-C keeps what was found so far."""
    with jax.enable_x64(True):
        try:
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"--seconds must be a positive number, got {seconds:g}")
            if not 0 <= held_out < 1:
                raise ValueError(f"--held-out must be 0 or more and below 1, got {held_out:g}")
            patterns = _patterns(free)
            model = load(robot, repair_inertia=repair_inertia)
            blueprint = networks(model, network or (), TOUCHING[contact], seed)
            recordings = _recordings(model, logs, _pairs(column or (), "--column"), ignore or ())
            folder = made_folder(folder or Path("runs") / f"{Path(robot).stem}_fit")
        except (ValueError, OSError) as error:
            fail(str(error))
        options = {
            "free": patterns,
            "blueprint": blueprint,
            "contact": TOUCHING[contact],
            "loss": LOSSES[loss],
            "segment": segment,
            "offsets": tuple(offset or ()),
            "delays": tuple(delay or ()),
            "held_out": held_out,
            "seed": seed,
            "seconds": seconds,
            "solver": _solver(blueprint),
        }
        _fit_and_write(robot, model, recordings, logs, options, folder)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("runs/demo"),
) -> None:
    """Fit the built-in double pendulum to a log that comes with the package, with a small network for its friction."""
    from knuckle.sysid.demo import LOG, MADE_BY

    out.print(f"[bold]demo[/]: the log is {plain(MADE_BY)}")
    out.print(f"the same as: knuckle fit {DEMO_ROBOT} {plain(str(LOG))} --free '*.mass' --network joint/passive_force")
    fit(DEMO_ROBOT, [str(LOG)], ["*.mass"], ["joint/passive_force"], folder, seconds=DEMO_SECONDS)


def networks(model: kn.Model, taps: Sequence[str], contact, seed: int) -> kn.Blueprint | None:
    """A small network at each tap, fed by coordinates and velocities: one that only takes energy at joint forces."""
    from knuckle.neural import MLP, Dissipative
    from knuckle.sysid.learned import added_shape

    if not taps:
        return None
    there, made = kn.list_taps(model, contact=contact), {}
    for number, tap in enumerate(taps):
        known = [t for t in there if t.name == tap]
        if not known or known[0].read_only:
            able = ", ".join(t.name for t in there if not t.read_only)
            raise ValueError(f"--network: there is no tap {tap!r} to act on; there are {able}")
        if tap in made:
            raise ValueError(f"--network: {tap} is given twice")
        key = jax.random.fold_in(jax.random.key(seed), number)
        if tap in JOINT_FORCES:
            made[tap] = kn.Augment(Dissipative(model, HIDDEN, structure="diagonal", key=key), ("q", "qd"))
        elif tap in ("q", "qd"):
            raise ValueError(f"--network: {tap} is what the network itself reads; choose a later tap")
        else:
            sizes = (model.nq + model.nv, *HIDDEN, math.prod(added_shape(model, tap, known[0].shape)))
            made[tap] = kn.Augment(MLP(sizes, key=key), ("q", "qd"))
    return kn.Blueprint(made)


def _solver(blueprint: kn.Blueprint | None) -> LevenbergMarquardt | None:
    """Small networks take more steps than parameters and are worth fewer digits; None: as `sysid.fit` chooses."""
    from knuckle.optim import LevenbergMarquardt
    from knuckle.sysid.fit import MANY

    small = blueprint is not None and blueprint.size <= MANY // 2
    return LevenbergMarquardt(value_tolerance=1e-6, max_iterations=1000) if small else None


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    pairs = [text.rpartition("=") for text in texts]
    bad = [text for text, (name, _, meaning) in zip(texts, pairs, strict=True) if not name or not meaning]
    if bad:
        raise ValueError(f"{option} takes NAME=MEANING, got {bad[0]!r}")
    return {name: meaning for name, _, meaning in pairs}


def _patterns(texts: Sequence[str] | None) -> dict[str, tuple[float, float] | None] | None:
    """Patterns of what is free, some with bounds: '*.mass=0.5:3'."""
    if not texts:
        return None
    found: dict[str, tuple[float, float] | None] = {}
    for text in texts:
        pattern, _, bounds = text.partition("=")
        try:
            lower, upper = (float(part) for part in bounds.split(":")) if bounds else (0.0, 0.0)
        except ValueError:
            raise ValueError(f"--free takes PATTERN or PATTERN=LOWER:UPPER, got {text!r}") from None
        found[pattern] = (lower, upper) if bounds else None
    return found


def _recordings(model: kn.Model, logs: Sequence[str], columns: dict[str, str], ignore: Sequence[str]) -> Recordings:
    from knuckle import sysid

    found = sysid.read_recordings(logs, model, columns=columns, ignore=ignore)
    if not len(found):
        raise ValueError(f"there is no recording in {', '.join(logs)}")
    out.print(f"[bold]{plain(model.name)}[/]: {len(found)} recordings, {sum(map(len, found))} samples")
    for recording in found[:20]:
        out.print(f"  {plain(repr(recording))}")
    if len(found.report):
        out.print("found in the logs:")
        out.print(found.report.table())
    return found


class Search:
    """What the search is at: shown live, kept for the report, and ended by the first Ctrl-C."""

    def __init__(self, seconds: float | None):
        self.seconds, self.began = seconds, time.perf_counter()
        self.points: list[tuple[float, float]] = []  # seconds, half the sum of squares
        self.text, self.asked = "compiling", False

    def progress(self, text: str) -> None:
        self.text = text

    def watch(self, value: float) -> None:
        self.points.append((time.perf_counter() - self.began, value))
        if self.asked and len(self.points) > 1:
            raise KeyboardInterrupt

    def interrupt(self, *_) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked, self.text = True, "Ctrl-C: finishing with what was found so far; again to stop at once"

    def __rich__(self) -> Group:
        elapsed = time.perf_counter() - self.began
        limit = "" if self.seconds is None else f" of at most {self.seconds:g} s"
        values = [value for _, value in self.points]
        best = f"best {min(values):.6g}" if values else ""
        last = f"loss {values[-1]:.6g}" if values else ""
        numbers = "   ".join(filter(None, (f"{elapsed:.1f} s{limit}", f"{len(values)} evaluations", last, best)))
        return Group(Text(numbers), Text(self.text, style="dim"))


@contextmanager
def _interrupts(handler: Callable) -> Iterator[None]:
    """Ctrl-C goes to the handler; outside the main thread, where there are no signals, nowhere."""
    try:
        before = signal.signal(signal.SIGINT, handler)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _fit_and_write(robot: str, model: kn.Model, recordings: Recordings, logs, options: dict, folder: Path) -> None:
    from knuckle import sysid

    search = Search(options["seconds"])
    try:
        with _interrupts(search.interrupt), Live(search, console=out, refresh_per_second=4, transient=True):
            found = sysid.fit(model, list(recordings), progress=search.progress, watch=search.watch, **options)
    except KeyboardInterrupt:
        fail("interrupted before anything was found: nothing is written", 130)
    except (ValueError, OSError) as error:
        fail(str(error))
    show(found)
    try:
        with out.status("writing the report"):
            write(folder, robot, found, recordings, search.points, logs, options)
    except (ValueError, OSError) as error:
        fail(f"writing to {folder}: {error}")
    if search.asked:
        err.print("[yellow]interrupted[/]: written is the best that was found until then")
        raise typer.Exit(130)


def show(found: Fit) -> None:
    """Parameters, the error on held-out data, and what the data cannot tell, on the console."""
    rows = [
        (e.name, f"{e.before:.4g}", f"{e.value:.4g}", f"{e.lower:.4g} .. {e.upper:.4g}", e.verdict, e.unit)
        for e in found.estimates
    ]
    rows += [(name, "0", f"{value:.4g}", "", "", "") for name, value in found.instruments.items()]
    if rows:
        out.print(columns(("parameter", "before", "value", "95 % interval", "verdict", "unit"), rows))
    if found.blueprint is not None:
        out.print(plain(repr(found.blueprint)))
    result = found.result
    out.print(f"{result.status} after {result.iterations} iterations")
    if found.held_out is not None:
        out.print(f"[bold]{plain(repr(found.held_out))}[/]")
    for line in found.certainty.untold():
        out.print(f"[yellow]note:[/] {plain(line)}")


def write(folder: Path, robot: str, found: Fit, recordings, points, logs: Sequence[str], options: dict) -> None:
    """The fitted robot, the hybrid model, fit.json and report.html."""
    from knuckle.sysid.report import write_report

    suffix = ".urdf" if Path(robot).suffix.lower() == ".urdf" else ".xml"
    fitted, hybrid = folder / f"{Path(robot).stem}{suffix}", folder / "model.knuckle"
    written = [hybrid]
    about = _about(robot, recordings, logs, options)
    dt = found.shots.period / found.simulator.substeps
    integrator = found.simulator.integrator
    notes = {"robot": about["robot"], "logs": about["logs"]}
    kn.save_hybrid(
        hybrid, found.model, found.blueprint, contact=found.contact, integrator=integrator, dt=dt, notes=notes
    )
    try:
        kn.save(found.model, fitted)
        written.append(fitted)
    except ValueError as error:
        err.print(f"[yellow]warning:[/] {plain(str(error))}; the fitted model is in {plain(str(hybrid))}")
    written += write_report(folder, found, findings=recordings.report, search=points, about=about)
    out.print(f"wrote {plain(' '.join(map(str, written)))}")


def _about(robot: str, recordings: Sequence[Recording], logs: Sequence[str], options: dict) -> dict:
    runs = [
        {"name": r.name, "samples": len(r), "duration": r.duration, "channels": list(r.channels)} for r in recordings
    ]
    kept = ("loss", "segment", "offsets", "delays", "held_out", "seed", "seconds")
    return {
        "knuckle": kn.__version__,
        "robot": robot,
        "logs": [str(log) for log in logs],
        "recordings": runs,
        "options": {name: options[name] for name in kept} | {"free": options["free"]},
    }
