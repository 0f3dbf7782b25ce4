"""The commands `knuckle info` and `knuckle export`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer

import knuckle as kn
from knuckle import cli_options as o
from knuckle.cli_common import (
    BY_FILE,
    BY_MODEL,
    FLOATING,
    FORCE,
    REPAIR_INERTIA,
    ROBOT_OR_HYBRID,
    Method,
    Touching,
    chosen,
    columns,
    fail,
    held_by_contact,
    out,
    plain,
    read_hybrid,
    soft_contact,
    step_of,
)
from knuckle.cli_folder import check_not_strange, mark_written
from knuckle.cli_logs import Reading, recordings_of, show_logs

Floating = Annotated[bool | None, typer.Option("--floating/--fixed", help=FLOATING)]
Repair = Annotated[bool, typer.Option("--repair-inertia", help=REPAIR_INERTIA)]
WITHOUT_DELAY = "Write a model whose actuators act late as if they acted at once."


def info(
    robot: Annotated[str, typer.Argument(help=ROBOT_OR_HYBRID)],
    logs: Annotated[
        list[str] | None, typer.Argument(help="Logs or folders: what is read in them, and what is found.")
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
    contact: Annotated[
        Touching | None, typer.Option(help=f"How bodies touch: has parameters and taps of its own; {BY_FILE}.")
    ] = None,
    floating: Floating = None,
    repair_inertia: Repair = False,
) -> None:
    """Show what is in a model, what of it can be fitted, and which quantities networks can act on (taps).

    With logs: what their columns are, what is recorded, and what was found in them.
    """
    reading = Reading(column, ignore, units, quaternion, rate, max_bytes, shift, gain, currents)
    with jax.enable_x64(True):
        try:
            file = read_hybrid(robot, floating, repair_inertia)
            if logs:
                return show_logs(file.model, recordings_of(file.model, logs, reading.knowing(file.calibration)))
            if reading != Reading():
                raise ValueError("--column, --ignore, --units and the like say how logs are read: name a log")
            parts = kn.Hybrid(file.model, file.blueprint, file.contact, calibration=file.calibration)
            hybrid = chosen(parts, contact)
            taps = kn.list_taps(hybrid.model, contact=hybrid.contact)
        except (ValueError, OSError) as error:
            fail(str(error))
        model = hybrid.model
        sizes = f"{len(model.link_names)} links, nq {model.nq}, nv {model.nv}, nu {model.nu}"
        out.print(f"[bold]{plain(model.name)}[/]: {sizes}, {float(np.sum(model.inertia.mass)):.4g} kg in all")
        out.print(_links(model))
        _print_extras(model)
        if hybrid.blueprint is not None:
            out.print(plain(repr(hybrid.blueprint)))
        for line in hybrid.calibration.in_words():
            out.print(plain(line))
        out.print("\n[bold]can be fitted[/] (knuckle fit --free PATTERN)")
        out.print(_fittable(model, hybrid.contact))
        out.print("\n[bold]taps[/] (knuckle fit --network TAP)")
        out.print(columns(("tap", "shape", "unit", "meaning"), [
            (t.name, str(t.shape), t.unit, t.meaning + (" (read only)" if t.read_only else "")) for t in taps
        ]))  # fmt: skip


def export(
    robot: Annotated[str, typer.Argument(help=ROBOT_OR_HYBRID)],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A .urdf, .xml, .mjcf or .c file.")],
    dt: Annotated[
        float | None, typer.Option(help="Time step in s of the C function; by default the file's, or 0.001.")
    ] = None,
    contact: Annotated[
        Touching | None, typer.Option(help=f"How bodies touch, and limits hold, in the C function; {BY_MODEL}.")
    ] = None,
    integrator: Annotated[
        Method | None, typer.Option(help="How the C function takes a step; by default as a .knuckle file says.")
    ] = None,
    without_delay: Annotated[bool, typer.Option("--without-delay", help=WITHOUT_DELAY)] = False,
    floating: Floating = None,
    repair_inertia: Repair = False,
    force: Annotated[bool, typer.Option("--force", help=FORCE)] = False,
) -> None:
    """Write a robot as URDF or MJCF, or one step of its simulation as C that allocates nothing, networks included."""
    with jax.enable_x64(True):
        try:
            touching = "default" if target.suffix == ".c" else None
            hybrid = chosen(read_hybrid(robot, floating, repair_inertia, touching), contact, integrator)
            _refuse_delay(hybrid, target, without_delay)
            if target.suffix == ".c":
                written = _export_c(hybrid, target, dt, force)
                lacking = [] if hybrid.contact else held_by_contact(hybrid.model)
                if lacking:
                    out.print(f"[yellow]note:[/] without --contact these do not hold: {', '.join(lacking)}")
            else:
                if (dt, contact, integrator) != (None, None, None):
                    raise ValueError(f"--dt, --contact and --integrator are for a .c file, not {target}")
                _refuse_networks(hybrid, target)
                check_not_strange(target.parent, [target.name], force)
                kn.save(hybrid.model, target)
                mark_written(target.parent, [target.name])
                written = target
        except (ValueError, OSError, NotImplementedError) as error:
            fail(str(error))
    out.print(f"wrote {plain(str(written))}")


def _refuse_delay(hybrid: kn.Hybrid, target: Path, without_delay: bool) -> None:
    late = hybrid.calibration.actuator_delay
    if late and not without_delay:
        raise ValueError(
            f"the actuators of this model act {late:.4g} s late, and {target.suffix} holds no delay: give each control "
            "that much later yourself, and --without-delay"
        )


def _refuse_networks(hybrid: kn.Hybrid, target: Path) -> None:
    if target.suffix not in (".urdf", ".xml", ".mjcf"):
        raise ValueError(f"OUT must end in .urdf, .xml, .mjcf or .c, got {str(target)!r}")
    if hybrid.blueprint is not None and hybrid.blueprint.size:
        taps = ", ".join(hybrid.blueprint.augments)
        raise ValueError(f"{target.suffix} holds no networks, and there are some at {taps}; .c does")


def _export_c(hybrid: kn.Hybrid, target: Path, dt: float | None, force: bool) -> Path:
    """The step as C, with header, example and CMake file beside it, in the folder of the target."""
    dt = dt if dt is not None else step_of(hybrid)
    if not (math.isfinite(dt) and dt > 0):
        raise ValueError(f"--dt must be a positive number of seconds, got {dt:g}")
    model = hybrid.model
    state = jax.tree.map(jnp.asarray, model.state())
    control = jnp.zeros(model.nu)

    def step(state, control):
        return hybrid.step(state, control, dt=dt)

    if jax.tree.structure(jax.eval_shape(step, state, control)) != jax.tree.structure(state):
        state = jax.jit(step)(state, control)  # with all that a step remembers
    name = "".join(c if c.isalnum() and c.isascii() else "_" for c in target.stem)
    if name != target.stem:
        raise ValueError(f"{target.name}: a C function's name has only letters, digits and _; for example {name}.c")
    if not target.parent.is_dir():
        raise ValueError(f"there is no folder {target.parent}")
    files = [target.name, f"{name}.h", "example.c", "CMakeLists.txt"]
    check_not_strange(target.parent, files, force)
    kn.native.export_c(step, (state, control), target.parent, name)
    mark_written(target.parent, files)
    return target


def _links(model: kn.Model) -> str:
    topology = model.topology
    rows = []
    for i, link in enumerate(topology.link_names):
        parent = topology.parent[i]
        limits = [f"{float(a):.4g} .. {float(b):.4g}" for a, b in zip(model.lower, model.upper, strict=True)]
        first = int(topology.v_start[i])
        limited = topology.kind[i] in ("revolute", "prismatic") and first < len(limits)
        rows.append((
            link, "world" if parent < 0 else topology.link_names[parent], topology.joint_names[i], topology.kind[i],
            limits[first] if limited else "", f"{float(model.inertia.mass[i]):.4g}",
        ))  # fmt: skip
    return columns(("link", "on", "by joint", "kind", "limits", "mass [kg]"), rows)


def _print_extras(model: kn.Model) -> None:
    extras = {
        "actuators": model.actuators.names,
        "frames": model.frames.names,
        "shapes": tuple(
            f"{n or '(no name)'} ({k})" for n, k in zip(model.geometry.names, model.geometry.kind, strict=True)
        ),
        "equalities": model.equalities.names,
        "keyframes": tuple(model.keyframes),
    }
    for name, items in extras.items():
        if items:
            out.print(f"{name}: {plain(', '.join(items))}")
    own = model.geometry.pairs
    if len(own):
        ends = (f"{model.geometry.names[a]}|{model.geometry.names[b]}" for a, b in zip(own.a, own.b, strict=True))
        out.print(f"contact pairs with settings of their own: {plain(', '.join(ends))}")
    soft = soft_contact(model)
    if soft:
        out.print(soft)
    if model.timestep is not None:
        out.print(f"the file asks for steps of {model.timestep:g} s by {model.integrator}")


def _fittable(model: kn.Model, contact) -> str:
    """One row for each family: its pattern, whose it is, and values."""
    from knuckle.sysid.parameters import DEFAULT, fittable

    families: dict[str, list[str]] = {}
    found = fittable(model, contact)
    for name in found:
        owner, _, family = name.rpartition(".")
        alone = owner.partition(".")[0] in ("world", "contact")
        families.setdefault(name if alone else f"*.{family}", []).append(name)
    rows = []
    for pattern, names in families.items():
        family, _ = found[names[0]]
        owner = {"dof": "joint"}.get(family.owner, family.owner)
        count = f"{len(names)} {owner}s" if len(names) > 1 else owner
        by_default = any(pattern == default for default in DEFAULT)
        rows.append((pattern, count, names[0], family.kind, "yes" if by_default else "", family.unit))
    return columns(("pattern", "of", "for example", "values", "by default", "unit"), rows)
