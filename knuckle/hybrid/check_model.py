"""Whether a model fits together: shapes of arrays, indices in range, parents before children, numbers that divide.

Raises ValueError with place and reason. Nothing of a model that passes can make a step read where it should not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from knuckle.hybrid.fields import UNLIMITED, hints
from knuckle.model.description import WORLD
from knuckle.model.geometry import CONDIMS, SIZES, Geometry, polygon
from knuckle.model.model import Equalities, Model
from knuckle.model.topology import COORDINATES, Topology

MOST_LINKS = 10_000
SINGLE = ("revolute", "prismatic")


def check_model(model: Model) -> None:
    _check_topology(model.topology, model.nu)
    _check_arrays(model, "model", sizes_of(model))
    _check_names(model)
    links, t = len(model.topology.parent), model.topology
    _check_indices("model/frames/link", model.frames.link, -1, links)
    _check_indices("model/geometry/link", model.geometry.link, -1, links)
    _check_indices("model/actuators/entry_actuator", model.actuators.entry_actuator, 0, model.nu)
    _check_indices("model/actuators/entry_dof", model.actuators.entry_dof, 0, t.nv)
    _check_equalities(model.equalities, t)
    _check_geometry(model.geometry)
    _check_directions(model)


def sizes_of(model: Model) -> dict[str, int]:
    """What the names of axes in the types of the arrays stand for."""
    return {
        "link": len(model.topology.parent),
        "nq": model.topology.nq,
        "nv": model.topology.nv,
        "frame": len(model.frames.names),
        "actuator": len(model.actuators.names),
        "entry": len(model.actuators.entry_dof),
        "equality": len(model.equalities.kind),
        "shape": len(model.geometry.kind),
        "pair": len(model.geometry.pairs.a),
    }


def _fail(place: str, message: str):
    raise ValueError(f"{place}: {message}")


def _check_arrays(module: Any, place: str, sizes: dict[str, int]) -> None:
    """Shapes as the fields' types say, floating numbers, finite but for limits."""
    for field in dataclasses.fields(module):
        where, value, kind = f"{place}/{field.name}", getattr(module, field.name), hints(type(module))[field.name]
        dims = next((k.dim_str for k in get_args(kind) if hasattr(k, "dim_str")), None)
        if dims is not None:
            shape = tuple(int(d) if d.isdigit() else sizes[d] for d in dims.split())
            if not hasattr(value, "dtype") or value.shape != shape or np.dtype(value.dtype).kind != "f":
                got = f"{value.dtype} of shape {value.shape}" if hasattr(value, "dtype") else repr(value)
                _fail(where, f"expected floating numbers of shape {shape} ({dims.strip()}), got {got}")
            numbers = np.asarray(value)
            if not np.all(~np.isnan(numbers) if where in UNLIMITED else np.isfinite(numbers)):
                _fail(where, "expected finite numbers, got NaN or infinity")
        elif dataclasses.is_dataclass(value) and not field.metadata.get("static"):
            _check_arrays(value, where, sizes)


def _check_topology(t: Topology, actuators: int) -> None:
    count = len(t.parent)
    if not 1 <= count <= MOST_LINKS:
        _fail("model/topology/parent", f"expected 1 to {MOST_LINKS} links, got {count}")
    for name in ("kind", "link_names", "joint_names"):
        if len(getattr(t, name)) != count:
            _fail(f"model/topology/{name}", f"expected {count} entries, one per link, got {len(getattr(t, name))}")
    branch: list[int] = [-1]  # the link before, and those that it hangs on
    for link, parent in enumerate(t.parent):
        while branch and branch[-1] != parent:
            branch.pop()
        if not branch:
            _fail(f"model/topology/parent/{link}", f"expected links in depth-first order after their parents: {parent}")
        branch.append(link)
    for name in ("limited", "rubbing"):
        dofs = getattr(t, name)
        _check_indices(f"model/topology/{name}", dofs, 0, t.nv)
        if list(dofs) != sorted(set(dofs)):
            _fail(f"model/topology/{name}", f"expected increasing numbers of degrees of freedom, got {dofs}")
    known = [name for name, _ in t.keyframes]
    for what, size in (("keyframes", t.nq), ("keyframe_velocities", t.nv), ("keyframe_controls", actuators)):
        for name, values in getattr(t, what):
            if name not in known:
                _fail(f"model/topology/{what}/{name}", "expected the name of a keyframe")
            if len(values) != size or not np.all(np.isfinite(values)):
                _fail(f"model/topology/{what}/{name}", f"expected {size} finite numbers, got {values!r:.200}")
    if t.timestep is not None and not 0 < t.timestep < np.inf:
        _fail("model/topology/timestep", f"expected a positive number [s], got {t.timestep}")
    if not 0 <= t.ground_mass < np.inf:
        _fail("model/topology/ground_mass", f"expected a mass [kg], got {t.ground_mass}")


def _check_indices(place: str, indices: Sequence[int], least: int, stop: int) -> None:
    for number, index in enumerate(indices):
        if not least <= index < stop:
            _fail(f"{place}/{number}", f"expected a number from {least} to {stop - 1}, got {index}")


def _check_names(model: Model) -> None:
    t = model.topology
    distinct = {
        "model/topology/joint_names": t.joint_names,
        "model/frames/names": (*t.link_names, *model.frames.names),
        "model/actuators/names": model.actuators.names,
        "model/topology/keyframes": [name for name, _ in t.keyframes],
        "model/topology/keyframe_velocities": [name for name, _ in t.keyframe_velocities],
        "model/topology/keyframe_controls": [name for name, _ in t.keyframe_controls],
    }
    for place, names in distinct.items():
        if len(set(names)) != len(names):
            _fail(place, "a name stands twice")
    known = {WORLD, *t.link_names, *model.frames.names}
    for pair in t.excludes:
        if not set(pair) <= known:
            _fail("model/topology/excludes", f"expected names of links, got {pair}")
    lengths = {
        "model/frames/link": (model.frames.link, len(model.frames.names)),
        "model/actuators/entry_actuator": (model.actuators.entry_actuator, len(model.actuators.entry_dof)),
    }
    for field in ("a", "b", "active", "names"):
        lengths[f"model/equalities/{field}"] = getattr(model.equalities, field), len(model.equalities.kind)
    settings = ("condim", "priority", "gap", "solref", "solimp", "solmix")
    for field in ("link", "names", "body", "contype", "conaffinity", "rgba", "mesh", *settings):
        lengths[f"model/geometry/{field}"] = getattr(model.geometry, field), len(model.geometry.kind)
    pairs = model.geometry.pairs
    for field in ("b", "condim", "gap", "solref", "solreffriction", "solimp", "names"):
        lengths[f"model/geometry/pairs/{field}"] = getattr(pairs, field), len(pairs)
    if not set(model.geometry.condim) <= set(CONDIMS):
        _fail("model/geometry/condim", f"expected 1, 3, 4 or 6, got {model.geometry.condim!r:.200}")
    for place, (entries, count) in lengths.items():
        if len(entries) != count:
            _fail(place, f"expected {count} entries, got {len(entries)}")


def _check_equalities(equalities: Equalities, t: Topology) -> None:
    for number, kind in enumerate(equalities.kind):
        place = f"model/equalities/{number}"
        if kind not in ("connect", "weld", "mimic"):
            _fail(place, f"expected connect, weld or mimic, got {kind!r}")
        a, b = equalities.a[number], equalities.b[number]
        _check_indices(f"{place}/a", [a], 0 if kind == "mimic" else -1, len(t.parent))
        _check_indices(f"{place}/b", [b], -1, len(t.parent))
        if kind == "mimic" and any(t.kind[joint] not in SINGLE for joint in (a, b) if joint >= 0):
            _fail(place, "a mimic ties revolute and prismatic joints")


def _check_geometry(geometry: Geometry) -> None:
    pairs = geometry.pairs
    _check_indices("model/geometry/pairs/a", pairs.a, 0, len(geometry))
    _check_indices("model/geometry/pairs/b", pairs.b, 0, len(geometry))
    ends = [frozenset(pair) for pair in zip(pairs.a, pairs.b, strict=True)]
    if len(set(ends)) < len(ends) or any(len(pair) < 2 for pair in ends):
        _fail("model/geometry/pairs", "expected two shapes each, and no two a second time")
    if not set(pairs.condim) <= {1, 3, 4, 6}:
        _fail("model/geometry/pairs/condim", f"expected 1, 3, 4 or 6, got {pairs.condim!r:.200}")
    for number, (kind, mesh) in enumerate(zip(geometry.kind, geometry.mesh, strict=True)):
        place = f"model/geometry/{number}"
        if mesh is None and kind in ("mesh", "polygon", "points"):
            _fail(place, f"a {kind} needs vertices")
        if not np.all(np.asarray(geometry.size)[number, : SIZES[kind]]):
            _fail(place, f"the sizes of a {kind} must not be zero")
        if mesh is None:
            continue
        if not len(mesh.vertices) or not np.all(np.isfinite(mesh.vertices)):
            _fail(place, "expected vertices of finite numbers")
        if np.any(mesh.faces < 0) or np.any(mesh.faces >= len(mesh.vertices)):
            _fail(place, f"expected faces of the {len(mesh.vertices)} vertices")
        if kind == "polygon":
            polygon(mesh.vertices[:, :2], name=geometry.names[number])


def _check_directions(model: Model) -> None:
    """Quaternions and axes are divided by their length."""
    places = {
        "model/rotation": model.rotation,
        "model/frames/rotation": model.frames.rotation,
        "model/geometry/rotation": model.geometry.rotation,
        "model/equalities/rotation_a": model.equalities.rotation_a,
        "model/equalities/rotation_b": model.equalities.rotation_b,
    }
    t = model.topology
    places["model/axis"] = np.asarray(model.axis)[t.of_kind("revolute", "prismatic", "planar")]
    reference = np.asarray(model.reference)
    turning = [int(t.q_start[link]) + COORDINATES[t.kind[link]] for link in t.of_kind("ball", "free")]
    places["model/reference"] = np.array([reference[end - 4 : end] for end in turning]).reshape(-1, 4)
    for place, rows in places.items():
        if not np.all(np.any(np.asarray(rows) != 0, axis=-1)):
            _fail(place, "a direction of length zero")
