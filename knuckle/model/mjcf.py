"""MJCF to a description: MuJoCo compiles the file (defaults, frames, inertia of geoms), and we read the result."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import mujoco
import numpy as np

from knuckle.model.description import IDENTITY, ORIGIN, WORLD, Description, Joint
from knuckle.model.mjcf_arrays import Reader
from knuckle.model.mjcf_check import Source, notes, refusals, small_notes
from knuckle.model.mjcf_files import Assets, check_files, drop_missing_files
from knuckle.model.mjcf_inertia import check_inertias
from knuckle.model.report import Omission, refuse
from knuckle.model.xml import Document, Folders, parse


def read(
    source: str | Path,
    *,
    floating: bool | None = None,
    strict: bool = True,
    repair_inertia: bool = False,
    package_paths: Sequence[str | Path] = (),
) -> tuple[Description, list[Omission]]:
    """The mechanism that an MJCF file or string describes, and what of it is not kept, or was repaired.

    Raises LoadError that names every element which would make the motion differ from MuJoCo's (strict), and, strict
    or not, every body whose inertia no real body can have, unless `repair_inertia` repairs it.
    """
    document = parse(source)
    folders = Folders.of(document.path, package_paths)
    assets = check_files(document, folders)
    spec = _parsed(source, document, assets)
    repaired, impossible = check_inertias(spec, repair_inertia)
    if impossible:
        refuse(document.source, impossible)
    lost, unknown_mass = drop_missing_files(spec, assets)
    mj_model, warned = _compiled(spec, document)
    compiled = Source(mj_model, spec)
    problems = [*unknown_mass, *refusals(compiled)]
    if strict and problems:
        refuse(document.source, problems)
    try:
        description, renamed = Reader(compiled).description()
    except ValueError as error:
        refuse(document.source, str(error))
    description = _with_base(description, floating, document.source)
    noted = notes(compiled) if strict else [*notes(compiled), *small_notes(compiled)]
    return description, [*problems, *repaired, *lost, *warned, *renamed, *noted]


def _parsed(source: str | Path, document: Document, assets: Assets) -> mujoco.MjSpec:
    try:
        if document.path is not None and document.path.suffix == ".xml":
            return mujoco.MjSpec.from_file(str(document.path))
        text = str(source) if document.path is None else document.path.read_text(encoding="utf-8")
        return mujoco.MjSpec.from_string(text, include=assets.includes)
    except (ValueError, RuntimeError) as error:
        refuse(document.source, f"MuJoCo cannot read it: {_one_line(error)}")


def _compiled(spec: mujoco.MjSpec, document: Document) -> tuple[mujoco.MjModel, list[Omission]]:
    """The compiled model, and what MuJoCo warns of."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = spec.compile()
    except (ValueError, RuntimeError) as error:
        refuse(document.source, f"MuJoCo cannot compile it: {_one_line(error)}")
    return model, [Omission("MuJoCo's warning", _one_line(warning.message)) for warning in caught]


def _one_line(message: Warning | Exception | str) -> str:
    return ", ".join(part.strip() for part in str(message).splitlines() if part.strip())


# The base


def _with_base(description: Description, floating: bool | None, source: str) -> Description:
    """The mechanism with its base set free (`floating=True`), held (`False`), or as the file has it (None)."""
    if floating is None:
        return description
    return _freed(description, source) if floating else _held(description, source)


def _freed(description: Description, source: str) -> Description:
    roots = [link for link in description.links if link.parent == WORLD]
    if len(roots) != 1:
        listed = ", ".join(link.name for link in roots)
        refuse(source, f"floating=True needs one body on the world, there are {len(roots)}: {listed}")
    base = roots[0]
    kinds = [joint.kind for joint in base.all_joints()]
    if kinds == ["free"]:
        return description
    if kinds:
        refuse(source, f"floating=True: body {base.name!r} already moves on the world, by {', '.join(kinds)}")
    pose = np.concatenate([np.asarray(base.position, float), np.asarray(base.rotation, float)])
    taken = {j.name for link in description.links for j in link.all_joints()}
    name = "floating_base" if "floating_base" not in taken else "floating_base_"
    joint = Joint("free", name=name, reference=pose, rest=pose)
    free_base = replace(base, joints=joint, position=ORIGIN, rotation=IDENTITY)
    links = [free_base if link is base else link for link in description.links]
    keyframes = {name: np.concatenate([pose, np.asarray(q)]) for name, q in description.keyframes.items()}
    still = np.zeros(6)
    velocities = {name: np.concatenate([still, qd]) for name, qd in description.keyframe_velocities.items()}
    return replace(description, links=links, keyframes=keyframes, keyframe_velocities=velocities)


def _held(description: Description, source: str) -> Description:
    links, dropped, first = [], [], 0
    stilled, dof = [], 0
    for link in description.links:
        joints = link.all_joints()
        if joints and joints[0].kind == "free":
            _refuse_if_driven(description, joints[0].name, source)
            pose = np.asarray(cast(np.ndarray, joints[0].reference), float)
            link = replace(link, joints=(), position=pose[:3], rotation=pose[3:])
            dropped.extend(range(first, first + 7))
            stilled.extend(range(dof, dof + 6))
        first += sum({"free": 7, "ball": 4}.get(joint.kind, 1) for joint in joints)
        dof += sum({"free": 6, "ball": 3}.get(joint.kind, 1) for joint in joints)
        links.append(link)
    keyframes = {name: np.delete(np.asarray(q), dropped) for name, q in description.keyframes.items()}
    moving = {name: np.delete(np.asarray(qd), stilled) for name, qd in description.keyframe_velocities.items()}
    return replace(description, links=links, keyframes=keyframes, keyframe_velocities=moving)


def _refuse_if_driven(description: Description, joint: str, source: str) -> None:
    drivers = [actuator.name for actuator in description.actuators if actuator.joint == joint]
    if drivers:
        refuse(source, f"floating=False: joint {joint!r} would go, but these actuators act on it: {', '.join(drivers)}")
