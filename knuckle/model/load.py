"""One way in for every robot description: the root element says which reader takes it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, overload

from knuckle.model.build import build
from knuckle.model.description import Description
from knuckle.model.model import Model
from knuckle.model.report import LoadError, LoadWarning, Omission, refuse
from knuckle.model.xml import Document, parse

Reader = Callable[..., tuple[Description, list[Omission]]]
LISTED_IN_WARNING = 8


@overload
def load(
    source: str | Path,
    *,
    floating: bool | None = None,
    strict: Literal[True] = True,
    repair_inertia: bool = False,
    package_paths: Sequence[str | Path] = (),
) -> Model: ...


@overload
def load(
    source: str | Path,
    *,
    floating: bool | None = None,
    strict: Literal[False],
    repair_inertia: bool = False,
    package_paths: Sequence[str | Path] = (),
) -> tuple[Model, list[Omission]]: ...


def load(
    source: str | Path,
    *,
    floating: bool | None = None,
    strict: bool = True,
    repair_inertia: bool = False,
    package_paths: Sequence[str | Path] = (),
) -> Model | tuple[Model, list[Omission]]:
    """The model that a URDF or MJCF file, or a string of its XML, describes; its leaves are NumPy float64.

    Args:
        source: path of a file, or XML itself.
        floating: True frees the base, False fixes it, None takes the file as it is.
        strict: refuse what cannot be represented, naming it; if False, leave it out and return (model, omissions).
        repair_inertia: mend inertia that no real body can have instead of refusing it, and warn.
        package_paths: folders that `package://` and mesh files may lie in, besides the file's own.

    Raises:
        LoadError: a ValueError that lists every offending element with its line and the reason.
    """
    document = parse(source)
    description, omissions = _reader(document)(
        source, floating=floating, strict=strict, repair_inertia=repair_inertia, package_paths=package_paths
    )
    try:
        model = build(description)
    except ValueError as error:
        raise LoadError(document.source, str(error)) from error
    if not strict:
        return model, omissions
    _warn(document, omissions)
    return model


def _reader(document: Document) -> Reader:
    """The reader for a root element; readers are imported when needed, since their libraries are slow to import."""
    tag = document.root.tag
    if tag == "robot":
        from knuckle.model import urdf

        return urdf.read
    if tag == "mujoco":
        from knuckle.model import mjcf

        return mjcf.read
    hints = {
        "sdf": "SDF is not read; convert it to URDF or MJCF first",
        "mujocoinclude": "this is a part of an MJCF model; load the file that includes it",
    }
    hint = hints.get(tag, "this is run through `xacro` first" if tag.startswith("xacro:") else "")
    refuse(
        document.source, f"expected a <robot> (URDF) or <mujoco> (MJCF), got <{tag}>" + (f": {hint}" if hint else "")
    )


def _warn(document: Document, omissions: Sequence[Omission]):
    """One warning for all that was mended or left out without stopping a strict load."""
    if not omissions:
        return
    groups: dict[str, list[Omission]] = {}
    for omission in sorted(omissions, key=lambda o: not o.reason.startswith("mended")):
        groups.setdefault(omission.reason, []).append(omission)
    mended = sum(reason.startswith("mended") for reason in groups)
    shown = max(mended, LISTED_IN_WARNING)
    listed = "".join(f"\n  {_together(group)}" for group in list(groups.values())[:shown])
    more = sum(map(len, list(groups.values())[shown:]))
    rest = f"\n  and {more} more: load with strict=False to get them all" if more else ""
    warnings.warn(f"{document.source}: mended or left out:{listed}{rest}", LoadWarning, stacklevel=3)


def _together(group: Sequence[Omission]) -> str:
    """Omissions for one reason in a line, by the first of them."""
    first = str(Omission(group[0].element, "", group[0].line)).removesuffix(": ")
    others = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{first}{others}: {group[0].reason}"
