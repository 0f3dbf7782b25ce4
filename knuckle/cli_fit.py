"""The commands `knuckle fit` and `knuckle demo`: from a robot and logs to a folder with a fitted simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import jax
import typer

import knuckle as kn
from knuckle.cli_common import TOUCHING, Touching, fail, load, made_folder, out, plain
from knuckle.cli_run import fit_and_write
from knuckle.cli_sure import Wishes

if TYPE_CHECKING:
    from knuckle.optim import Ray
    from knuckle.sysid import Recordings

HIDDEN = (6,)  # sizes of the hidden layers of networks by default
JOINT_FORCES = ("joint/force", "joint/passive_force")
SHOWN = 20  # recordings
DEMO_ROBOT, DEMO_SECONDS = "double_pendulum", 60.0


class Shooting(StrEnum):
    """Losses by the names of the command line."""

    MULTIPLE = "multiple"
    SINGLE = "single"
    ONE_STEP = "one-step"


class Robust(StrEnum):
    """What a measurement far off counts, by the names of the command line."""

    SQUARES = "squares"
    HUBER = "huber"
    SOFT_L1 = "soft-l1"
    CAUCHY = "cauchy"


class Driven(StrEnum):
    """What controls do between samples."""

    HELD = "held"
    LINEAR = "linear"


class Angles(StrEnum):
    """Units of angles."""

    RAD = "rad"
    DEG = "deg"


class Method(StrEnum):
    """Searches by the names of the command line."""

    LOCAL = "local"
    BASIN_HOPPING = "basin-hopping"
    POPULATION = "population"


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
    robust: Annotated[
        Robust, typer.Option(help="What measurements far off count; squares: all alike.")
    ] = Robust.SQUARES,
    column: Annotated[
        list[str] | None, typer.Option(help="What a column is: 'enc_a=q shoulder'; again for more.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column or topic to leave out; again for more.")] = None,
    units: Annotated[Angles | None, typer.Option(help="Of angles without a unit in their header; else found.")] = None,
    rate: Annotated[float | None, typer.Option(help="Samples per second of logs without times.")] = None,
    offset: Annotated[list[str] | None, typer.Option(help="A channel with an unknown offset, such as q.")] = None,
    gain: Annotated[list[str] | None, typer.Option(help="A channel with an unknown scale, such as q.")] = None,
    delay: Annotated[list[str] | None, typer.Option(help="What may be late: sensor or actuator.")] = None,
    drive: Annotated[
        Driven | None,
        typer.Option(help="What controls do between samples; by default commands are held, measured torques linear."),
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of the data that the fit does not see.")] = 0.25,
    search: Annotated[Method, typer.Option(help="From the description only, or many local searches.")] = Method.LOCAL,
    starts: Annotated[int | None, typer.Option(help="Local searches of a global one; by default 64.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes for a global search; by default one for each processor.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster for a global search; auto: here.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a fit that was stopped in that folder.")] = False,
    seed: Annotated[int, typer.Option(help="Of the held-out part, of networks and of a global search.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="Most time for the search.")] = None,
    draws: Annotated[
        int, typer.Option(help="First weights of networks that are tried at most, where some come to a bad place.")
    ] = 4,
    posterior: Annotated[int, typer.Option(help="So many samples of what the data leave possible.")] = 0,
    next_experiment: Annotated[
        Path | None,
        typer.Option(help="CSV or NPZ file for the motion to record next: it shows what is least known."),
    ] = None,
    next_speed: Annotated[
        float | None,
        typer.Option(help="Largest joint speed of that motion [rad/s or m/s]; else what the robot states."),
    ] = None,
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
            wishes = Wishes(posterior, next_experiment, next_speed).checked()
            patterns, plan = _patterns(free), _plan(search, starts, workers, ray)
            model = load(robot, repair_inertia=repair_inertia)
            blueprint = networks(model, network or (), TOUCHING[contact], seed)
            if rate is not None and not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"--rate must be a positive number of samples per second, got {rate:g}")
            reading = {
                "columns": _pairs(column or (), "--column"),
                "ignore": ignore or (),
                "units": units,
                "rate": rate,
            }
            recordings = _recordings(model, logs, reading)
            folder = made_folder(folder or Path("runs") / f"{Path(robot).stem}_fit")
        except (ValueError, OSError) as error:
            fail(str(error))
        options = {
            "free": patterns,
            "blueprint": blueprint,
            "contact": TOUCHING[contact],
            "loss": LOSSES[loss],
            "segment": segment,
            "robust": robust.replace("-", "_"),
            "offsets": tuple(offset or ()),
            "gains": tuple(gain or ()),
            "delays": tuple(delay or ()),
            "drive": None if drive is None else drive.value,
            "held_out": held_out,
            "seed": seed,
            "search": search.replace("-", " "),
            "starts": 64 if starts is None else starts,
            "workers": plan,
            "resume": resume,
            "seconds": seconds,
            "draws": draws,
        }
        fit_and_write(robot, model, recordings, logs, options, folder, wishes)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("runs/demo"),
) -> None:
    """Fit the built-in double pendulum to a log that comes with the package, with a small network for its friction."""
    from knuckle import robots
    from knuckle.sysid.demo import LOG, MADE_BY, MASS_FACTORS

    out.print(f"[bold]demo[/]: the log is {plain(MADE_BY)}")
    out.print(f"the same as: knuckle fit {DEMO_ROBOT} {plain(str(LOG))} --free '*.mass' --network joint/passive_force")
    model = robots.load(DEMO_ROBOT)
    truth = zip(model.link_names, model.inertia.mass, MASS_FACTORS, strict=True)
    listed = ", ".join(f"{link}.mass {mass * factor:.4g} kg" for link, mass, factor in truth)
    out.print(f"the truth, which the fit does not know: {plain(listed)}")
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


def _plan(search: Method, starts: int | None, workers: int | None, ray: str | None) -> int | Ray | None:
    """Where a global search is done."""
    from knuckle.optim import Ray

    if search is Method.LOCAL and any(option is not None for option in (starts, workers, ray)):
        raise ValueError(
            "--starts, --workers and --ray are for a global search: give --search basin-hopping or population too"
        )
    if workers is not None and ray is not None:
        raise ValueError("--workers are processes of this machine, --ray a cluster: give one of them")
    if (starts is not None and starts < 1) or (workers is not None and workers < 0):
        raise ValueError(f"--starts must be 1 or more and --workers 0 or more, got {starts} and {workers}")
    return workers if ray is None else Ray(ray)


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


def _recordings(model: kn.Model, logs: Sequence[str], options: dict) -> Recordings:
    from knuckle import sysid

    found = sysid.read_recordings(logs, model, **options)
    if not len(found):
        raise ValueError(f"there is no recording in {', '.join(logs)}")
    out.print(f"[bold]{plain(model.name)}[/]: {len(found)} recordings, {sum(map(len, found))} samples")
    for recording in found[:SHOWN]:
        out.print(f"  {plain(repr(recording))}")
    if len(found) > SHOWN:
        out.print(f"  and {len(found) - SHOWN} more")
    if len(found.report):
        out.print("found in the logs:")
        out.print(found.report.table())
    return found
