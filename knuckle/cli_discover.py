"""The command `knuckle discover`: what a robot's model is missing, from logs that disagree with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import jax
import typer

import knuckle as kn
from knuckle import cli_options as o
from knuckle.cli_common import chosen, fail, out, plain, read_hybrid
from knuckle.cli_folder import made_folder, mark_written
from knuckle.cli_logs import Reading, drive_gains, noise_of, read
from knuckle.cli_observe import observers
from knuckle.cli_parse import patterns, positive
from knuckle.cli_results import note

HYBRID, PAGE, DATA = "model.knuckle", "discovery.html", "discovery.json"
Folder = Annotated[Path | None, typer.Option("--out", help="Folder for results; by default runs/<robot>_discover.")]
Networks = Annotated[
    bool, typer.Option("--networks/--no-networks", help="Train networks too, to find what no formula explains.")
]
Resamples = Annotated[int, typer.Option(min=0, help="Of the recordings, to see how often each effect is chosen.")]


def discover(
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
    gain: o.DriveGain = None,
    currents: o.Currents = False,
    max_bytes: o.MaxBytes = None,
    held_out: o.HeldOut = None,
    held_out_log: o.HeldOutLog = None,
    free: o.Free = None,
    segment: o.Segment = None,
    noise: o.Noise = None,
    drive: o.Drive = None,
    observe: o.Observe = None,
    networks: Networks = True,
    resamples: Resamples = 50,
    seed: o.Seed = 0,
    folder: Folder = None,
    force: o.Force = False,
) -> None:
    """Say what a robot's model is missing: which effect, at which tap, as a formula; or that nothing is."""
    from knuckle import sysid

    reading = Reading(column, ignore, units, quaternion, rate, max_bytes, shift, drive_gains(gain)[1], currents)
    with jax.enable_x64(True):
        try:
            hybrid = chosen(read_hybrid(robot, floating, repair_inertia), contact, integrator)
            if hybrid.blueprint is not None and hybrid.blueprint.size:
                raise ValueError(f"{robot} has networks already: discover what the model without them is missing")
            share = 0.25 if held_out is None else held_out
            recordings, unseen = read(hybrid.model, logs, held_out_log or (), reading.knowing(hybrid.calibration))
            folder = made_folder(folder or Path("runs") / f"{Path(robot).stem}_discover", (HYBRID, PAGE, DATA), force)
            with out.status("discovering") as status:
                found = sysid.discover(
                    hybrid.model,
                    list(recordings),
                    free=list(patterns(free) or ()),
                    contact=hybrid.contact,
                    integrator=hybrid.integrator,
                    segment=positive("--segment", segment),
                    step=positive("--step", step),
                    noise=noise_of(noise),
                    observe=observers(observe),
                    drive=None if drive is None else drive.value,  # type: ignore[arg-type]
                    held_out=unseen or share,
                    networks=networks,
                    resamples=resamples,
                    seed=seed,
                    progress=lambda text: status.update(plain(text)),
                )
        except (ValueError, OSError) as error:
            fail(str(error))
        _show(found)
        _write(found, folder, robot, logs, list(recordings), hybrid)


def _show(found: Any) -> None:
    for line in str(found).splitlines():
        out.print(plain(line), soft_wrap=True)


def _write(found: Any, folder: Path, robot: str, logs: list[str], recordings: list, hybrid: kn.Hybrid) -> None:
    from knuckle.sysid.discovery.page import page
    from knuckle.sysid.discovery.visited import recorded_states
    from knuckle.sysid.numbers import as_text, plain_data

    options = {"contact": hybrid.contact, "integrator": hybrid.integrator}
    kn.save_hybrid(folder / HYBRID, found.model, found.blueprint, **options)
    (folder / DATA).write_text(as_text(plain_data(found.data())) + "\n", encoding="utf-8")
    states = recorded_states(found.described, recordings)
    text = page(found, f"What {Path(robot).stem} is missing", logs, states)
    (folder / PAGE).write_text(text, encoding="utf-8")
    mark_written(folder, (HYBRID, DATA, PAGE))
    note(f"{folder / HYBRID} holds the model with what was found: knuckle fit {folder / HYBRID} LOG... goes on from it")
