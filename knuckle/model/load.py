"""One way in for every robot description: the root element says which reader takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, overload

from knuckle.model.build import build
from knuckle.model.description import Description
from knuckle.model.model import Model
from knuckle.model.report import LoadError, Omission, refuse, warn_of
from knuckle.model.xml import Document, parse

Reader = Callable[..., tuple[Description, list[Omission]]]


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
        repair_inertia: repair inertia that no real body can have instead of refusing it, and warn.
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
    warn_of(document.source, omissions)
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
