"""The commands `knuckle fit` and `knuckle demo`: from a robot and logs to a folder with a fitted simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from knuckle import cli_options as o
from knuckle.cli_changed import Comparing, compare_and_show
from knuckle.cli_common import FORCE, began, chosen, fail, out, plain, read_hybrid
from knuckle.cli_folder import made_folder
from knuckle.cli_logs import Reading, drive_gains, noise_of, read
from knuckle.cli_networks import Learning
from knuckle.cli_observe import observers
from knuckle.cli_parse import patterns, positive
from knuckle.cli_results import names_of_results
from knuckle.cli_run import fit_and_write
from knuckle.cli_search import plan_of, search_of, solver_of
from knuckle.cli_sure import Wishes
from knuckle.deadline import Deadline

DEMO_ROBOT, DEMO_NETWORK = "double_pendulum", "joint/passive_force"
HELD_OUT = 0.25  # share of the data
LOSSES = {
    o.Shooting.AUTO: None,
    o.Shooting.TORQUE: "torque",
    o.Shooting.MULTIPLE: "multiple shooting",
    o.Shooting.SINGLE: "single shooting",
    o.Shooting.ONE_STEP: "one step",
}


def fit(
    robot: o.Robot,
    logs: o.Logs,
    floating: o.Floating = None,
    repair_inertia: o.RepairInertia = False,
    contact: o.Contact = None,
    integrator: o.Integrator = None,
    step: o.Step = None,
    column: o.Column = None,
    ignore: o.Ignore = None,
    units: o.Units = None,
    quaternion: o.Quaternion = None,
    rate: o.Rate = None,
    shift: o.Shift = None,
    currents: o.Currents = False,
    max_bytes: o.MaxBytes = None,
    held_out: o.HeldOut = None,
    held_out_log: o.HeldOutLog = None,
    changed: o.Changed = None,
    load: o.Load = None,
    free: o.Free = None,
    offset: o.Offset = None,
    gain: o.Gain = None,
    delay: o.Delay = None,
    network: o.Network = None,
    hidden: o.Hidden = None,
    inputs: o.Inputs = None,
    weight_spread: o.WeightSpread = None,
    lasso: o.Lasso = None,
    group_lasso: o.GroupLasso = None,
    draws: o.Draws = 4,
    keep_networks: o.KeepNetworks = False,
    loss: o.Loss = o.Shooting.AUTO,
    segment: o.Segment = None,
    robust: o.Robust = o.Weighed.SQUARES,
    noise: o.Noise = None,
    drive: o.Drive = None,
    observe: o.Observe = None,
    search: o.Search = o.Searching.LOCAL,
    restart: o.Restart = None,
    patience: o.Patience = None,
    starts: o.Starts = None,
    workers: o.Workers = None,
    ray: o.Ray = None,
    solver: o.Solver = None,
    iterations: o.Iterations = None,
    batch: o.Batch = None,
    learning_rate: o.LearningRate = None,
    seconds: o.Seconds = None,
    seed: o.Seed = 0,
    resume: o.Resume = False,
    posterior: o.Posterior = 0,
    next_experiment: o.NextExperiment = None,
    next_speed: o.NextSpeed = None,
    folder: o.Folder = None,
    force: o.Force = False,
) -> None:
    """Fit a robot, and networks inside it, to logs of what it did; Ctrl-C keeps what was found so far."""
    from knuckle.sysid.compared import check_compared

    deadline = Deadline(seconds, began=began())
    gain, drives = drive_gains(gain)
    reading = Reading(column, ignore, units, quaternion, rate, max_bytes, shift, drives, currents)
    comparing = Comparing(changed or (), load)
    if changed or load:
        loss = o.Shooting.TORQUE
    if loss == o.Shooting.TORQUE:
        _check_torque_options(
            {"--free": free, "--network": network if changed or load else None, "--offset": offset, "--gain": gain,
             "--delay": delay, "--observe": observe, "--noise": noise, "--contact": contact, "--posterior": posterior,
             "--next-experiment": next_experiment, "--segment": segment, "--resume": resume, "--solver": solver}
        )  # fmt: skip
    if loss == o.Shooting.AUTO and (posterior or next_experiment):
        loss = o.Shooting.MULTIPLE  # both need the covariance of roll-outs
    with jax.enable_x64(True):
        try:
            wishes = Wishes(posterior, next_experiment, next_speed).checked()
            comparing.checked([*logs, *(held_out_log or ())])
            options = {
                "free": patterns(free),
                "loss": LOSSES[loss],
                "segment": positive("--segment", segment),
                "robust": robust.replace("-", "_"),
                "observe": observers(observe),
                "offsets": tuple(offset or ()),
                "gains": tuple(gain or ()),
                "delays": tuple(delay or ()),
                "drive": drive,
                "seed": seed,
                "search": search_of(search, restart, patience),
                "starts": 64 if starts is None else starts,
                "workers": plan_of(search, starts, workers, ray),
                "solver": solver_of(solver, iterations, learning_rate, batch),
                "resume": resume,
                "seconds": positive("--seconds", seconds),
                "draws": draws,
                "keep_networks": keep_networks,
            }
            share = _share(held_out, held_out_log or (), logs)
            file = read_hybrid(robot, floating, repair_inertia)
            hybrid = chosen(file, contact, integrator)
            same = type(hybrid.integrator) is type(file.integrator)  # a step that suits one need not suit another
            options |= {"contact": hybrid.contact, "integrator": hybrid.integrator}
            options["step"] = positive("--step", step) or (file.dt if same else None)
            learning = Learning(network or (), hidden, inputs, weight_spread, lasso, group_lasso)
            options["blueprint"] = learning.blueprint(hybrid, seed)
            options["regularise"] = learning.regularise(options["blueprint"])
            _check_something_is_free(options)
            reading = reading.knowing(file.calibration)
            recordings, unseen = read(hybrid.model, logs, held_out_log or (), reading, deadline)
            options |= {"noise": noise_of(noise), "held_out": unseen or share}
            check_compared(hybrid.model, recordings, options["observe"], options["noise"])
            folder = folder or Path("runs") / f"{Path(robot).stem}_fit"
            made_folder(folder, names_of_results(robot, folder), force)
        except (ValueError, OSError) as error:
            fail(str(error))
        compare = partial(compare_and_show, hybrid.model, recordings=recordings, comparing=comparing, reading=reading)
        told = {"reading": reading._asdict(), "deadline": deadline, "compare": compare}
        fit_and_write(robot, hybrid.model, recordings, logs, options, folder, wishes, **told)


def _check_torque_options(given: Mapping[str, Any]) -> None:
    """Refuse options that a regression does not have."""
    unused = [name for name, value in given.items() if value]
    if unused:
        fail(f"--loss torque (implied by --changed) is a regression without simulation: it has no {', '.join(unused)}")


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("runs/demo"),
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
) -> None:
    """Fit the built-in double pendulum to a log that comes with the package, with a small network for its friction."""
    from knuckle import robots
    from knuckle.sysid.demo import LOG, MADE_BY, MASS_FACTORS

    out.print(f"[bold]demo[/]: the log is {plain(MADE_BY)}")
    words = f"--free '*.mass' --network {DEMO_NETWORK} --keep-networks"
    out.print(f"the same as: knuckle fit {DEMO_ROBOT} {plain(str(LOG))} {words}")
    model = robots.load(DEMO_ROBOT)
    truth = zip(model.link_names, model.inertia.mass, MASS_FACTORS, strict=True)
    listed = ", ".join(f"{link}.mass {mass * factor:.4g} kg" for link, mass, factor in truth)
    out.print(f"the truth, which the fit does not know: {plain(listed)}")
    options = {"free": ["*.mass"], "network": [DEMO_NETWORK], "keep_networks": True}
    fit(DEMO_ROBOT, [str(LOG)], folder=folder, force=force, **options)


def _share(held_out: float | None, unseen: Sequence[str], logs: Sequence[str]) -> float:
    """The share of the data that the fit does not see."""
    twice = [log for log in unseen if Path(log).resolve() in [Path(seen).resolve() for seen in logs]]
    if twice:
        raise ValueError(f"--held-out-log: {twice[0]} is among the logs that the fit sees")
    if held_out is not None and unseen:
        raise ValueError("--held-out is a share of the logs, --held-out-log names other ones: give one of them")
    if held_out is not None and not 0 <= held_out < 1:
        raise ValueError(f"--held-out must be 0 or more and below 1, got {held_out:g}")
    return HELD_OUT if held_out is None else held_out


def _check_something_is_free(options: dict) -> None:
    instruments = (options["offsets"], options["gains"], options["delays"])
    if options["free"] == {} and options["blueprint"] is None and not any(instruments):
        raise ValueError(
            "--free none leaves nothing to fit: give --network, a .knuckle file that has networks, or --offset, --gain "
            "or --delay"
        )
