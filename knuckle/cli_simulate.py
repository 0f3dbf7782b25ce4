"""The command `knuckle simulate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

import knuckle as kn
from knuckle import cli_options as o
from knuckle.cli_begin import controls, driven, logged, start
from knuckle.cli_common import (
    BY_MODEL,
    FLOATING,
    FORCE,
    REPAIR_INERTIA,
    ROBOT_OR_HYBRID,
    TOUCHING,
    Method,
    Touching,
    chosen,
    err,
    fail,
    held_by_contact,
    out,
    plain,
    read_hybrid,
    soft_contact,
    step_of,
)
from knuckle.cli_folder import made_folder
from knuckle.cli_logs import Reading
from knuckle.cli_results import HYBRID
from knuckle.cli_write import FILES, compare, write
from knuckle.contact.resolve import ContactModel
from knuckle.integrate import nearest_to_file
from knuckle.simulate import first_not_finite

if TYPE_CHECKING:
    from knuckle.sysid import Recording

MOST_STEPS, LEAST_PIECES, LONGEST_PIECE = 1_000_000, 100, 2000


INTERRUPTED = "interrupted"
DIVERGED = "the simulation diverged to values that are not finite"


class Run(NamedTuple):
    """What was simulated, start included, why it ended before its time, if it did, and steps that were not solved.

    Controls of the motion are those from each time on, as in logs.
    """

    motion: kn.Trajectory
    ended_by: str = ""
    unsolved: int = 0


def simulate(
    robot: Annotated[str, typer.Argument(help=ROBOT_OR_HYBRID)] = "double_pendulum",
    time: Annotated[
        float | None, typer.Option(help="Simulated time in s; by default as long as the log of --control, or 5.")
    ] = None,
    dt: Annotated[float | None, typer.Option(help="Time step in s; by default the file's, or 0.001.")] = None,
    integrator: Annotated[
        Method | None, typer.Option(help="How a step is taken; by default as the file says, or semi-implicit.")
    ] = None,
    contact: Annotated[
        Touching | None,
        typer.Option(help=f"How bodies touch, and how joint limits, equalities and dry friction hold; {BY_MODEL}."),
    ] = None,
    q: Annotated[str | None, typer.Option(help="Coordinates at the start: nq numbers with commas between.")] = None,
    qd: Annotated[str | None, typer.Option(help="Velocities at the start: nv numbers with commas between.")] = None,
    keyframe: Annotated[
        str | None, typer.Option(help="Start at this keyframe of the file. Without --q or this: at its first, if any.")
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(
            help="One number per actuator, or one for all; hold: servos hold the start, motors rest; or a log whose "
            "controls, or torques, are done again from where it starts. By default a keyframe's controls, or hold."
        ),
    ] = None,
    column: o.Column = None,
    ignore: o.Ignore = None,
    units: o.Units = None,
    quaternion: o.Quaternion = None,
    rate: o.Rate = None,
    shift: o.Shift = None,
    gain: o.DriveGain = None,
    currents: o.Currents = False,
    max_bytes: o.MaxBytes = None,
    floating: Annotated[bool | None, typer.Option("--floating/--fixed", help=FLOATING)] = None,
    repair_inertia: Annotated[bool, typer.Option("--repair-inertia", help=REPAIR_INERTIA)] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; by default runs/<robot>.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
) -> None:
    """Simulate a robot, with the networks of a .knuckle file, and write its trajectory (npz, csv) and a plot."""
    with jax.enable_x64(True):
        try:
            hybrid, differs = _simulated(robot, floating, repair_inertia, integrator, contact)
            model = hybrid.model
            reading = Reading(column, ignore, units, quaternion, rate, max_bytes, shift, gain, currents)
            known = hybrid.calibration
            log = logged(model, control, q is not None or keyframe is not None, reading, known)
            _check_used(reading, log)
            dt = step_of(hybrid) if dt is None else dt
            steps = _steps(time if time is not None else 5.0 if log is None else log.duration, dt)
            state = start(model, q, qd, keyframe, log)
            if log is None:
                table = np.tile(controls(model, state, control), (steps, 1))
            else:
                table = driven(model, log, dt, steps, known.actuator_delay + known.sensor_delay)
            _check_pairs(model, hybrid.contact)
            folder = made_folder(folder or Path("runs") / _name(robot), FILES, force)
        except (ValueError, OSError) as error:
            fail(str(error))
        _announce(hybrid, state, dt, differs)
        run = _simulate(hybrid, state, table, dt)
        if len(run.motion.time) < 2:
            fail(f"{run.ended_by} at the first step: nothing is written", _code(run))
        try:
            write(model, run.motion, folder, f"{model.name}   {type(hybrid.integrator).__name__}, dt = {dt:g} s")
        except OSError as error:
            fail(str(error))
        if log is not None:
            compare(model, run.motion, log)
    if run.unsolved:
        err.print(f"[yellow]warning:[/] contact was not solved to its tolerance in {run.unsolved} steps")
    if run.ended_by:
        until = f"written is what was simulated until {run.motion.time[-1]:.4g} s of {steps * dt:g} s"
        fail(f"{run.ended_by}; {until}", _code(run))


def _advanced(hybrid: kn.Hybrid, state: kn.State, controls, dt: float, time) -> kn.Trajectory:
    """Controls are delayed already: the whole table at once, of which this is a part."""
    return kn.rollout(hybrid.model, state, controls, **{**hybrid.options, "dt": dt, "time": time})


def _name(robot: str) -> str:
    """Of a folder for results. Fits write model.knuckle, each into its own folder: that tells them apart."""
    path = Path(robot)
    return f"{path.resolve().parent.name}_model" if path.name == HYBRID else path.stem


def _simulated(
    robot: str, floating: bool | None, repair_inertia: bool, integrator: Method | None, contact: Touching | None
) -> tuple[kn.Hybrid, str]:
    """What is simulated, and how its integrator differs from the one that its file asks for."""
    file = read_hybrid(robot, floating, repair_inertia, "default")
    touching = file.contact if contact is None else TOUCHING[contact]
    nearest, differs = nearest_to_file(file.model, contact=touching is not None)
    own = file.integrator is not None or integrator is not None
    parts = kn.Hybrid(
        file.model, file.blueprint, touching, file.integrator or nearest, file.dt, calibration=file.calibration
    )
    return chosen(parts, None, integrator), "" if own else differs


def _check_used(reading: Reading, log: Recording | None) -> None:
    if log is None and reading != Reading():
        raise ValueError("--column, --ignore, --units and the like say how a log is read, and --control names none")


def _weightless_joints(model: kn.Model, state: kn.State) -> list[str]:
    """Joints that move no mass; they do not accelerate."""
    inertia = np.diag(jax.jit(kn.dynamics.crba)(model, state.q))
    links = [model.topology.dof_link[k] for k in np.flatnonzero(inertia <= 0)]
    return list(dict.fromkeys(model.joint_names[link] for link in links))


def _code(run: Run) -> int:
    return 130 if run.ended_by == INTERRUPTED else 1


def _steps(time: float, dt: float) -> int:
    for name, value in (("--time", time), ("--dt", dt)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number of seconds, got {value:g}")
    if not 1 <= round(time / dt) <= MOST_STEPS:
        raise ValueError(f"--time / --dt must give 1 to {MOST_STEPS:,} steps, got {time:g} / {dt:g} = {time / dt:g}")
    return round(time / dt)


def _check_pairs(model: kn.Model, contact: ContactModel | None) -> None:
    """Raise if two shapes that may touch have no test, or a rule of the contact model has no pair."""
    if contact is not None:
        contact.by_rule(model)


def _announce(hybrid: kn.Hybrid, state: kn.State, dt: float, differs: str) -> None:
    model = hybrid.model
    out.print(
        f"[bold]{plain(model.name)}[/]: {len(model.link_names)} links, nq {model.nq}, nv {model.nv}, nu {model.nu}"
    )
    touching = "no contact" if hybrid.contact is None else f"contact by {type(hybrid.contact).__name__}"
    out.print(f"{type(hybrid.integrator).__name__}, dt = {dt:g} s, {touching}")
    if differs:
        out.print(f"[yellow]note:[/] the file asks for the integrator {model.integrator}; here {differs}")
    if hybrid.blueprint is not None:
        out.print(plain(repr(hybrid.blueprint)))
    soft = soft_contact(model) if isinstance(hybrid.contact, kn.contact.Impulse) else ""
    if soft:
        out.print(f"[yellow]note:[/] {soft}")
    ignored = held_by_contact(model)
    if ignored and hybrid.contact is None:
        out.print(f"[yellow]note:[/] without contact these do not hold: {', '.join(ignored)}")
    still = _weightless_joints(model, state) if model.topology.weightless_tips else []
    if still:
        out.print(
            f"[yellow]note:[/] no mass or inertia hangs on joint {plain(', '.join(still))}: it does not accelerate"
        )


def _simulate(hybrid: kn.Hybrid, state: kn.State, table: np.ndarray, dt: float) -> Run:
    """Pieces of a roll-out, so that there is progress to show, and something to keep when it is interrupted."""
    from knuckle import native  # loads LLVM

    model, steps, state = hybrid.model, len(table), kn.State(state.q, state.qd)
    piece = min(math.ceil(steps / LEAST_PIECES), LONGEST_PIECE)
    compiler = native.jit if jax.default_backend() == "cpu" else jax.jit
    advance = compiler(lambda s, controls, time: _kept(_advanced(hybrid, s, controls, dt, time)))
    padded = np.concatenate([table, np.tile(table[-1:], (-steps % piece, 1))])
    states, ended_by, unsolved = [np.concatenate([state.q, state.qd])[None]], "", 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    try:
        with Progress(*columns, TimeRemainingColumn(), console=out) as progress:
            task = progress.add_task("compiling", total=steps)
            for done in range(0, steps, piece):
                rows, flags, state = advance(state, padded[done : done + piece], done * dt)
                after, solved = (np.asarray(x)[: steps - done] for x in (rows, flags))
                fault = first_not_finite(model, after[:, : model.nq], after[:, model.nq :])
                count = len(after) if fault is None else fault[0]
                states.append(after[:count])
                unsolved += int(np.sum(~solved[:count]))
                progress.update(task, completed=done + count, description="simulating")
                if fault is not None:
                    ended_by = f"{DIVERGED} at step {done + count}, first of all {fault[1]}"
                    break
    except KeyboardInterrupt:
        ended_by = INTERRUPTED
    q, qd = np.split(np.concatenate(states), [model.nq], axis=1)
    time, following = dt * np.arange(len(q)), np.concatenate([table, table[-1:]])[: len(q)]
    motion = kn.Trajectory(jnp.asarray(time), jnp.asarray(q), jnp.asarray(qd), jnp.asarray(following))
    return Run(motion, ended_by, unsolved)


def _kept(motion: kn.Trajectory) -> tuple[jax.Array, jax.Array, kn.State]:
    """States, and whether contact was solved, after each step; the last state with what networks remember."""
    states = jnp.concatenate([motion.q, motion.qd], axis=1)
    solved = jnp.ones(len(states), bool) if motion.contact is None else motion.contact.converged
    return states, solved, motion.last
