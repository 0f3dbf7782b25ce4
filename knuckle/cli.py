"""The command line: all commands, and `knuckle simulate`."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

import knuckle as kn
from knuckle import cli_fit, cli_info
from knuckle.cli_common import TOUCHING, Touching, err, fail, load, made_folder, out, plain
from knuckle.contact.resolve import ContactModel
from knuckle.integrate import Integrator
from knuckle.model.joints import neutral

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(cli_fit.fit)
app.command()(cli_fit.demo)
app.command()(cli_info.info)
app.command()(cli_info.export)
MOST_STEPS, LEAST_PIECES, LONGEST_PIECE = 1_000_000, 100, 2000


class Method(StrEnum):
    """Integrators by the names of the command line."""

    SEMI_IMPLICIT = "semi-implicit"
    EXPLICIT = "explicit"
    RK4 = "rk4"
    IMPLICIT = "implicit"


METHODS = {
    Method.SEMI_IMPLICIT: kn.SemiImplicitEuler(),
    Method.EXPLICIT: kn.ExplicitEuler(),
    Method.RK4: kn.RK4(),
    Method.IMPLICIT: kn.Implicit(),
}


WITH_CONTACT = (Method.SEMI_IMPLICIT, Method.IMPLICIT)
INTERRUPTED = "interrupted"
DIVERGED = "the simulation diverged to values that are not finite"


class Run(NamedTuple):
    """What was simulated, start included, why it ended before its time, if it did, and steps that were not solved."""

    motion: kn.Trajectory
    ended_by: str = ""
    unsolved: int = 0


def main() -> None:
    """Entry point of the command."""
    app()


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Knuckle: a differentiable rigid-body simulator."""
    if version:
        typer.echo(f"knuckle {kn.__version__}")
        raise typer.Exit()


@app.command()
def simulate(
    robot: Annotated[
        str, typer.Argument(help="A built-in robot, or the path of a URDF or MJCF file.")
    ] = "double_pendulum",
    time: Annotated[float, typer.Option(help="Simulated time in s.")] = 5.0,
    dt: Annotated[float, typer.Option(help="Time step in s.")] = 0.001,
    integrator: Annotated[Method, typer.Option(help="How a step is taken.")] = Method.SEMI_IMPLICIT,
    contact: Annotated[
        Touching, typer.Option(help="How bodies touch, and whether joint limits and equalities hold.")
    ] = Touching.NONE,
    q: Annotated[str | None, typer.Option(help="Coordinates at the start: nq numbers with commas between.")] = None,
    qd: Annotated[str | None, typer.Option(help="Velocities at the start: nv numbers with commas between.")] = None,
    keyframe: Annotated[
        str | None, typer.Option(help="Start at this keyframe of the file. Without --q or this: at its first, if any.")
    ] = None,
    control: Annotated[
        str, typer.Option(help="One number per actuator, or one for all; hold: servos hold the start, motors rest.")
    ] = "hold",
    floating: Annotated[
        bool | None, typer.Option("--floating/--fixed", help="Free or fix the base; by default as in the file.")
    ] = None,
    repair_inertia: Annotated[
        bool, typer.Option("--repair-inertia", help="Mend inertia that no real body can have, and say where.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; by default runs/<robot>.")
    ] = None,
) -> None:
    """Simulate a robot and write its trajectory (npz, csv) and a plot."""
    with jax.enable_x64(True):
        try:
            steps = _steps(time, dt)
            if contact is not Touching.NONE and integrator not in WITH_CONTACT:
                raise ValueError(f"--contact needs --integrator {' or '.join(WITH_CONTACT)}, got {integrator}")
            model = load(robot, floating, repair_inertia)
            state = _start(model, q, qd, keyframe)
            held = _control(model, state, control)
            _check_pairs(model, TOUCHING[contact])
            folder = made_folder(folder or Path("runs") / Path(robot).stem)
        except (ValueError, OSError) as error:
            fail(str(error))
        _announce(model, state, contact)
        run = _simulate(model, state, held, dt, steps, METHODS[integrator], TOUCHING[contact])
        if len(run.motion.time) < 2:
            fail(f"{run.ended_by} at the first step: nothing is written", _code(run))
        _write(model, run.motion, folder, f"{model.name}   {integrator.value}, dt = {dt:g} s")
    if run.unsolved:
        err.print(f"[yellow]warning:[/] contact was not solved to its tolerance in {run.unsolved} steps")
    if run.ended_by:
        until = f"written is what was simulated until {run.motion.time[-1]:.4g} s of {time:g} s"
        fail(f"{run.ended_by}; {until}", _code(run))


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


def _numbers(text: str, option: str) -> np.ndarray:
    try:
        values = np.array([float(part) for part in text.replace(",", " ").split()])
    except ValueError:
        raise ValueError(f"{option} takes numbers with commas between, got {text!r}") from None
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{option} takes finite numbers, got {text!r}")
    return values


def _start(model: kn.Model, q: str | None, qd: str | None, keyframe: str | None) -> kn.State:
    if q is not None and keyframe is not None:
        raise ValueError("--q and --keyframe both say where to start: give one of them")
    first = next(iter(model.keyframes), None)
    at = _numbers(q, "--q") if q is not None else keyframe or first
    velocity = None if qd is None else _numbers(qd, "--qd")
    for option, values, size in (("--q", at, model.nq), ("--qd", velocity, model.nv)):
        if isinstance(values, np.ndarray) and len(values) != size:
            raise ValueError(
                f"{option} takes {size} numbers for joints {', '.join(model.joint_names)}, got {len(values)}"
            )
    return model.state(at, velocity)


def _control(model: kn.Model, state: kn.State, text: str) -> np.ndarray:
    if text == "hold":
        return _holding(model, state)
    values = _numbers(text, "--control")
    if model.nu == 0:
        raise ValueError(f"--control {text}: {model.name} has no actuators")
    if len(values) not in (1, model.nu):
        names = ", ".join(model.actuators.names) or "none"
        raise ValueError(
            f"--control takes hold, 1 or {model.nu} numbers for actuators {names}; got {len(values)} numbers"
        )
    return np.broadcast_to(values, (model.nu,)).copy() if len(values) == 1 else values


def _holding(model: kn.Model, state: kn.State) -> np.ndarray:
    """The control at which each position servo pulls to where it stands; zero for all other actuators."""
    actuators = model.actuators
    moved = np.asarray(kn.difference(model, jnp.asarray(neutral(model.topology)), jnp.asarray(state.q)))
    length = np.zeros(model.nu)
    np.add.at(length, list(actuators.entry_actuator), actuators.gear * moved[list(actuators.entry_dof)])
    gain = np.asarray(actuators.gain)
    return np.divide(-actuators.bias[:, 1] * length, gain, out=np.zeros(model.nu), where=gain != 0)


def _check_pairs(model: kn.Model, contact: ContactModel | None) -> None:
    """Raise if two shapes that may touch have no test."""
    if contact is not None:
        kn.contact.contact_pairs(model, self_collision=contact.self_collision)


def _announce(model: kn.Model, state: kn.State, contact: Touching) -> None:
    out.print(
        f"[bold]{plain(model.name)}[/]: {len(model.link_names)} links, nq {model.nq}, nv {model.nv}, nu {model.nu}"
    )
    touching = any(a and b for a in model.geometry.contype for b in model.geometry.conaffinity)
    ignored = [
        *(["contact"] if touching else []),
        *(["joint limits"] if np.isfinite(model.lower).any() or np.isfinite(model.upper).any() else []),
        *(["equality constraints"] if any(model.equalities.active) else []),
    ]
    if ignored and contact is Touching.NONE:
        out.print(f"[yellow]note:[/] the model has {' and '.join(ignored)}, which only --contact enforces")
    still = _weightless_joints(model, state) if model.topology.weightless_tips else []
    if still:
        out.print(
            f"[yellow]note:[/] no mass or inertia hangs on joint {plain(', '.join(still))}: it does not accelerate"
        )


def _simulate(
    model: kn.Model,
    state: kn.State,
    control: np.ndarray,
    dt: float,
    steps: int,
    integrator: Integrator,
    contact: ContactModel | None,
) -> Run:
    """Pieces of a roll-out, so that there is progress to show, and something to keep when it is interrupted."""
    from knuckle import native  # loads LLVM

    piece = min(math.ceil(steps / LEAST_PIECES), LONGEST_PIECE)
    held = jnp.asarray(control)
    compiler = native.jit if jax.default_backend() == "cpu" else jax.jit
    options = {"dt": dt, "steps": piece, "integrator": integrator, "contact": contact}
    advance = compiler(lambda s: _kept(kn.rollout(model, s, held, **options)))
    states, ended_by, unsolved = [np.concatenate([state.q, state.qd])[None]], "", 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    try:
        with Progress(*columns, TimeRemainingColumn(), console=out) as progress:
            task = progress.add_task("compiling", total=steps)
            for done in range(0, steps, piece):
                after, solved = (np.asarray(x)[: steps - done] for x in advance(state))
                count = _finite_rows(after)
                states.append(after[:count])
                unsolved += int(np.sum(~solved[:count]))
                progress.update(task, completed=done + count, description="simulating")
                if count < len(after):
                    ended_by = DIVERGED
                    break
                q, qd = np.split(after[-1], [model.nq])
                state = kn.State(q, qd)
    except KeyboardInterrupt:
        ended_by = INTERRUPTED
    q, qd = np.split(np.concatenate(states), [model.nq], axis=1)
    time, controls = dt * np.arange(len(q)), np.broadcast_to(control, (len(q), model.nu))
    motion = kn.Trajectory(jnp.asarray(time), jnp.asarray(q), jnp.asarray(qd), jnp.asarray(controls))
    return Run(motion, ended_by, unsolved)


def _kept(motion: kn.Trajectory) -> tuple[jax.Array, jax.Array]:
    """States, and whether contact was solved, after each step."""
    states = jnp.concatenate([motion.q, motion.qd], axis=1)
    solved = jnp.ones(len(states), bool) if motion.contact is None else motion.contact.converged
    return states, solved


def _finite_rows(values: np.ndarray) -> int:
    """How many rows there are before the first that has an entry which is not finite."""
    broken = np.flatnonzero(~np.isfinite(values).all(axis=1))
    return int(broken[0]) if len(broken) else len(values)


def _energies(model: kn.Model, motion: kn.Trajectory) -> dict[str, np.ndarray]:
    def both(state):
        return kn.dynamics.kinetic_energy(model, *state), kn.dynamics.potential_energy(model, state[0])

    states = (jnp.asarray(motion.q), jnp.asarray(motion.qd))
    kinetic, potential = map(np.asarray, jax.jit(lambda s: jax.lax.map(both, s, batch_size=1000))(states))
    return {"kinetic": kinetic, "potential": potential, "total": kinetic + potential}


def _write(model: kn.Model, motion: kn.Trajectory, folder: Path, title: str) -> None:
    """trajectory.npz, trajectory.csv and motion.png."""
    from knuckle.viewer import motion_figure

    energies = _energies(model, motion)
    arrays = {"time": motion.time, "q": motion.q, "qd": motion.qd, "control": motion.control}
    arrays = {name: np.asarray(values) for name, values in arrays.items()} | energies
    columns = ["time", *_column_names(model), *energies]
    np.savez_compressed(folder / "trajectory.npz", allow_pickle=False, columns=columns, **arrays)
    table = np.column_stack(list(arrays.values()))
    np.savetxt(folder / "trajectory.csv", table, delimiter=",", header=",".join(columns), comments="", fmt="%.12g")
    motion_figure(model, motion, energies, title).savefig(folder / "motion.png")
    names = " ".join(str(folder / name) for name in ("trajectory.npz", "trajectory.csv", "motion.png"))
    out.print(f"wrote {plain(names)}")


COORDINATES = {"planar": ".x .y .angle", "ball": ".w .x .y .z", "free": ".x .y .z .qw .qx .qy .qz"}
VELOCITIES = {"planar": ".x .y .angle", "ball": ".wx .wy .wz", "free": ".vx .vy .vz .wx .wy .wz"}


def _column_names(model: kn.Model) -> list[str]:
    """One name per entry of q, qd and control, in order."""
    joints = list(zip(model.joint_names, model.topology.kind, strict=True))
    q = [f"q {name}{part}" for name, kind in joints for part in COORDINATES.get(kind, "").split() or [""]]
    qd = [f"qd {name}{part}" for name, kind in joints for part in VELOCITIES.get(kind, "").split() or [""]]
    return [*q, *qd, *(f"u {name}" for name in model.actuators.names)]
