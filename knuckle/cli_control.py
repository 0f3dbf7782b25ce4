"""The command `knuckle control`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

import knuckle as kn
from knuckle.cli_begin import read_numbers, start
from knuckle.cli_common import (
    FLOATING,
    FORCE,
    REPAIR_INERTIA,
    ROBOT_OR_HYBRID,
    TOUCHING,
    Touching,
    at_work,
    err,
    fail,
    out,
    plain,
    read_hybrid,
    step_of,
)
from knuckle.cli_folder import all_or_nothing, made_folder
from knuckle.cli_results import HYBRID
from knuckle.cli_write import FILES, write
from knuckle.integrate import nearest_to_file
from knuckle.simulate import first_not_finite

PLAN = "plan.npz"
LONGEST = 5000  # knots
SUBSTEPS = 10  # of a plan from knot to knot, where the simulation takes more
Text = str | None


class TaskName(StrEnum):
    """Built-in tasks."""

    SWING_UP = "swing-up"
    REACH = "reach"


def control(
    robot: Annotated[str, typer.Argument(help=ROBOT_OR_HYBRID)] = "cartpole",
    task: Annotated[TaskName, typer.Option(help="What the robot is to do.")] = TaskName.SWING_UP,
    time: Annotated[float, typer.Option(help="Horizon of the plan in s.")] = 3.0,
    knot: Annotated[float, typer.Option(help="Time for which a control is held, in s.")] = 0.02,
    goal: Annotated[
        str | None, typer.Option(help="Swing-up: a keyframe, or nq numbers; by default 'upright', or the highest pose.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Reach: x,y,z of the frame in the world, in m.")] = None,
    frame: Annotated[
        str | None, typer.Option(help="Reach: a frame or link; by default the last frame, or link.")
    ] = None,
    q: Annotated[str | None, typer.Option(help="Coordinates at the start: nq numbers with commas between.")] = None,
    qd: Annotated[str | None, typer.Option(help="Velocities at the start: nv numbers with commas between.")] = None,
    keyframe: Annotated[
        str | None, typer.Option(help="Start at this keyframe. Swing-up: by default 'hanging', or the lowest pose.")
    ] = None,
    contact: Annotated[
        Touching | None,
        typer.Option(help="Contact inside the plan; by default none. The plan is simulated with the robot's own."),
    ] = None,
    iterations: Annotated[int, typer.Option(help="At most so many iterations of iLQR.")] = 300,
    segments: Annotated[int, typer.Option(help="Segments of multiple shooting.")] = 1,
    floating: Annotated[bool | None, typer.Option("--floating/--fixed", help=FLOATING)] = None,
    repair_inertia: Annotated[bool, typer.Option("--repair-inertia", help=REPAIR_INERTIA)] = False,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; by default runs/<robot>_<task>.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
) -> None:
    """Plan a task by iLQR, simulate it with the plan's feedback, and write trajectory (npz, csv), plot and plan."""
    with jax.enable_x64(True):
        try:
            hybrid = _stepped(read_hybrid(robot, floating, repair_inertia, "default"))
            model = hybrid.model
            steps, substeps, dt = _knots(time, knot, step_of(hybrid))
            made, state = _task(model, task, knot, goal, (frame, target), (q, qd, keyframe))
            how = {"dt": knot, "substeps": min(substeps, SUBSTEPS), "steps": steps, "segments": segments}
            touching = None if contact is None else TOUCHING[contact]
            planner = _planner(hybrid, made, touching, how)
            folder = made_folder(folder or Path("runs") / f"{_name(robot)}_{task}", (*FILES, PLAN), force)
            out.print(f"[bold]{plain(model.name)}[/]: {task}, {steps} knots of {knot:g} s, {substeps} steps each")
            with at_work("planning"):
                plan = planner.plan(state, max_iterations=iterations)
        except (ValueError, OSError) as error:
            fail(str(error))
        out.print(
            f"plan: {plan.status} after {plan.iterations} iterations, cost {plan.cost:.4g} ({plan.seconds:.2f} s)"
        )
        late = hybrid.calibration.actuator_delay
        delay = [f"the actuators of this model act {late:.3g} s late, which the plan does not know"] if late else []
        for note in (*plan.notes, *delay):
            err.print(f"[yellow]note:[/] {plain(note)}")
        motion = _executed(hybrid, plan, state, dt, steps * substeps)
        try:
            write(model, motion, folder, f"{model.name}   {task}")
            _write_plan(folder, plan)
        except OSError as error:
            fail(str(error))
        _tell(model, motion, planner, task)
    if not plan.successful and plan.status != kn.optim.Status.MAX_ITERATIONS:
        fail(
            f"{plan.status}: {plan.message}; written is the best plan so far",
            130 if plan.status == "interrupted" else 1,
        )


def _stepped(file: kn.Hybrid) -> kn.Hybrid:
    """A file with an integrator: its own, or the one nearest to what the description asks for."""
    nearest, _ = nearest_to_file(file.model, contact=file.contact is not None)
    return kn.Hybrid(
        file.model, file.blueprint, file.contact, file.integrator or nearest, file.dt, calibration=file.calibration
    )


def _knots(time: float, knot: float, dt: float) -> tuple[int, int, float]:
    """Knots, steps of the simulation from knot to knot, and their length [s]."""
    for name, value in (("--time", time), ("--knot", knot)):
        if not 0 < value < np.inf:
            raise ValueError(f"{name} must be a positive number of seconds, got {value:g}")
    steps, substeps = round(time / knot), max(round(knot / dt), 1)
    if not 1 <= steps <= LONGEST:
        raise ValueError(f"--time / --knot must give 1 to {LONGEST} knots, got {time / knot:g}")
    return steps, substeps, knot / substeps


def _task(
    model: kn.Model,
    task: TaskName,
    knot: float,
    goal: str | None,
    reached: tuple[Text, Text],
    first: tuple[Text, Text, Text],
):
    """Costs of a task, and the state where it starts."""
    from knuckle.control import tasks  # loads LLVM

    frame, target = reached
    if task is TaskName.SWING_UP:
        if target is not None or frame is not None:
            raise ValueError("--target and --frame are for --task reach")
        state = _hanging(model) if first == (None, None, None) else start(model, *first)
        return tasks.swing_up(model, knot, _goal(model, goal)), state
    if target is None:
        raise ValueError("--task reach needs --target x,y,z")
    if goal is not None:
        raise ValueError("--goal is for --task swing-up")
    name = frame or (*model.link_names, *model.frames.names)[-1]
    return tasks.reach(model, knot, name, _vector(target, 3, "--target")), start(model, *first)


def _planner(hybrid: kn.Hybrid, task, touching, how: dict[str, Any]):
    from knuckle.control import Planner

    options = {"integrator": hybrid.integrator, "blueprint": hybrid.blueprint, "contact": touching}
    return Planner(hybrid.model, task.running, task.terminal, **how, **options)


def _goal(model: kn.Model, goal: str | None) -> kn.State:
    from knuckle.control.tasks import extreme_pose

    named = "upright" if goal is None else goal
    if named in model.keyframes:
        q = model.keyframes[named]
    else:
        q = extreme_pose(model, True) if goal is None else _vector(goal, model.nq, "--goal")
    return kn.State(q, np.zeros(model.nv))


def _vector(text: str, size: int, option: str) -> np.ndarray:
    values = read_numbers(text, option)
    if len(values) != size:
        raise ValueError(f"{option} takes {size} numbers, got {len(values)}")
    return values


def _hanging(model: kn.Model) -> kn.State:
    from knuckle.control.tasks import extreme_pose

    return model.state("hanging") if "hanging" in model.keyframes else model.state(extreme_pose(model, False))


def _name(robot: str) -> str:
    path = Path(robot)
    return f"{path.resolve().parent.name}_model" if path.name == HYBRID else path.stem


def _executed(hybrid: kn.Hybrid, plan, state: kn.State, dt: float, steps: int) -> kn.Trajectory:
    """The motion under the plan's feedback, start included, with contact as the robot has it."""
    options = {**hybrid.options, "dt": dt}
    with at_work("simulating"):
        found = kn.rollout(
            hybrid.model, kn.State(state.q, state.qd), plan.policy(), steps=steps, native=True, **options
        )
    fault = first_not_finite(hybrid.model, np.asarray(found.q), np.asarray(found.qd))
    count = steps if fault is None else fault[0]
    if fault is not None:
        err.print(f"[yellow]warning:[/] the simulation diverges at step {count}, first of all {fault[1]}")
    q, qd = (np.concatenate([[a], np.asarray(b)[:count]]) for a, b in ((state.q, found.q), (state.qd, found.qd)))
    u = np.asarray(found.control)[: max(count, 1)]
    return kn.Trajectory(dt * np.arange(count + 1), q, qd, np.concatenate([u, u[-1:]])[: count + 1])


def _write_plan(folder: Path, plan) -> None:
    arrays = {
        "time": plan.times,
        "q": plan.states.q,
        "qd": plan.states.qd,
        "control": plan.controls,
        "gain": plan.gains,
    }
    with all_or_nothing(folder) as (part, _):
        np.savez_compressed(part / PLAN, allow_pickle=False, cost=plan.history.cost, **arrays)
    out.print(f"wrote {plain(str(folder / PLAN))}")


def _tell(model: kn.Model, motion: kn.Trajectory, planner, task: TaskName) -> None:
    """How near the motion came to the goal."""
    last, end = motion.last, planner.terminal
    if task is TaskName.REACH:
        cost = end.parts[0]
        place = kn.native.jit(lambda q: kn.kinematics.frame_pose(model, q, cost.name).position)(np.asarray(last.q))
        out.print(
            f"{plain(cost.name)} ends {1e3 * float(np.linalg.norm(place - cost.position)):.2g} mm from the target"
        )
        return
    off = np.asarray(kn.difference(model, np.asarray(end.goal.q), np.asarray(last.q)))
    turning = [model.topology.kind[link] == "revolute" for link in model.topology.dof_link]
    wrapped = np.where(turning, (off + np.pi) % (2 * np.pi) - np.pi, off)
    out.print(
        f"ends {np.max(np.abs(wrapped)):.2g} rad or m from the goal, at {np.max(np.abs(last.qd)):.2g} rad/s or m/s"
    )
