"""What all commands share: the console, robots by name or file, and errors in one line."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

import knuckle as kn
from knuckle.contact.default import Contact
from knuckle.contact.softness import deepest_rest

out, err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)


ROBOT_OR_HYBRID = "A built-in robot, or the path of a URDF, MJCF or .knuckle file."
FLOATING = "Free or fix the base; by default as in the file."
REPAIR_INERTIA = "Repair inertia that no real body can have, and say where."
FORCE = "Replace files in the folder that no command of knuckle wrote."
SOFT = 1e-3  # [m]; MuJoCo's default is 0.2 mm
BY_FILE = "by default as a .knuckle file says, or none"
BY_MODEL = "by default as a .knuckle file says, or impulse if the robot has any of them"


class Touching(StrEnum):
    """Contact models by the names of the command line."""

    NONE = "none"
    IMPULSE = "impulse"
    COMPLIANT = "compliant"
    INTERIOR_POINT = "interior-point"


TOUCHING = {
    Touching.NONE: None,
    Touching.IMPULSE: kn.contact.Impulse(),
    Touching.COMPLIANT: kn.contact.Compliant(),
    Touching.INTERIOR_POINT: kn.contact.InteriorPoint(),
}


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


_started: list[float] = []  # moment of the monotonic clock at which the process began, if it is a command


def process_begins() -> None:
    """Remember when this process began: a command that is limited in time counts its imports too.

    By its computing time: a shell that replaces itself by its last command hands on its own age.
    """
    _started[:] = [time.monotonic() - time.process_time()]


def began() -> float:
    """When this command began, on the monotonic clock."""
    return _started.pop() if _started else time.monotonic()


@contextmanager
def at_work(text: str) -> Iterator[None]:
    """Say what is going on: in motion on a terminal, else in a line."""
    if not out.is_terminal:
        out.print(plain(text))
    with out.status(plain(text)):
        yield


def fail(message: str, code: int = 1) -> NoReturn:
    err.print(f"[bold red]error:[/] {plain(message)}")
    raise typer.Exit(code)


def plain(text: str) -> str:
    """Text in which rich sees no markup."""
    return text.replace("[", r"\[")


def columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns of text; no name is ever broken or cut."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
    return f"[dim]{plain(lines[0])}[/]\n" + plain("\n".join(lines[1:]))


def worded(value: Any) -> Any:
    """An option as JSON data: names of recordings and of taps, and a text for what is no number."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): worded(item) for key, item in value.items()}
    if isinstance(value, kn.Blueprint):
        return list(value.augments)
    if isinstance(value, kn.Recording):
        return value.name
    if isinstance(value, kn.Prior | kn.sysid.Regularise):
        return worded(value._asdict())
    return [worded(item) for item in value] if isinstance(value, list | tuple) else str(value)


def load(robot: str, floating: bool | None = None, repair_inertia: bool = False) -> kn.Model:
    """A built-in robot by name, else a file; what the reader repaired or left out is shown."""
    from knuckle import robots

    built_in = robot in robots.names()
    if not built_in and Path(robot).is_dir():
        raise ValueError(f"{robot} is a folder; expected a URDF or MJCF file, or one of {', '.join(robots.names())}")
    if not built_in and not Path(robot).is_file():
        raise ValueError(f"no file and no built-in robot {robot!r}; built in are {', '.join(robots.names())}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = robots.path(robot) if built_in else Path(robot)
        model = _read(path, floating, repair_inertia)
    for warning in caught:
        err.print(f"[yellow]warning:[/] {plain(str(warning.message))}")
    return model


def read_hybrid(
    robot: str, floating: bool | None = None, repair_inertia: bool = False, contact: Contact = None
) -> kn.Hybrid:
    """A saved hybrid model, or a robot without networks, for which `contact` is chosen."""
    if Path(robot).suffix != ".knuckle":
        return kn.Hybrid(load(robot, floating, repair_inertia), contact=contact)
    if floating is not None or repair_inertia:
        raise ValueError(f"--floating, --fixed and --repair-inertia are for URDF and MJCF files, not {robot}")
    if not Path(robot).is_file():
        raise ValueError(f"no file {robot}")
    return kn.load_hybrid(robot)


def chosen(file: kn.Hybrid, contact: Touching | None, integrator: Method | None = None) -> kn.Hybrid:
    """What a file says, unless options say otherwise."""
    touching = file.contact if contact is None else TOUCHING[contact]
    stepped = file.integrator if integrator is None else METHODS[integrator]
    able = tuple(type(METHODS[name]) for name in WITH_CONTACT)
    if touching is not None and stepped is not None and not isinstance(stepped, able):
        methods = " or ".join(WITH_CONTACT)
        raise ValueError(f"contact needs --integrator {methods}, got {type(stepped).__name__}; or --contact none")
    return kn.Hybrid(file.model, file.blueprint, touching, stepped, file.dt, calibration=file.calibration)


def step_of(file: kn.Hybrid) -> float:
    """The time step of a .knuckle file, else of the robot's description, else 1 ms [s]."""
    return file.dt or file.model.timestep or 1e-3


def held_by_contact(model: kn.Model) -> list[str]:
    """What a model was described with that holds only with a contact model."""
    topology = model.topology
    kinds = {
        "contact": _may_touch(model),
        "joint limits": bool(topology.limited),
        "equality constraints": any(model.equalities.active),
        "dry joint friction (smooth instead)": bool(topology.rubbing),
    }
    return [kind for kind, there in kinds.items() if there]


def soft_contact(model: kn.Model) -> str:
    """In words, that a file asks for contact that is clearly soft in MuJoCo; empty if it does not."""
    try:
        depth = deepest_rest(model)
    except ValueError:  # some shapes have no test
        return ""
    if depth < SOFT:
        return ""
    return (
        f"the file's solref and solimp let a body rest about {1e3 * depth:.2g} mm deep in MuJoCo; contact here is rigid"
    )


def _may_touch(model: kn.Model) -> bool:
    try:
        return bool(kn.contact.contact_pairs(model))
    except ValueError:  # some shapes have no test
        return True


def _read(path: Path, floating: bool | None, repair_inertia: bool) -> kn.Model:
    from knuckle.model.load import load as load_file
    from knuckle.model.report import LoadError

    def loaded(floating: bool | None, repair_inertia: bool) -> kn.Model | LoadError:
        try:
            return load_file(path, floating=floating, repair_inertia=repair_inertia)
        except LoadError as error:
            return error

    found = loaded(floating, repair_inertia)
    if not isinstance(found, LoadError):
        return found
    for option, others in (("--repair-inertia", (floating, True)), ("--floating", (True, repair_inertia))):
        if not isinstance(loaded(*others), LoadError):
            raise ValueError(f"{found}\nit loads with {option}")
    raise found
