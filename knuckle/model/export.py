"""Save a model as MJCF or URDF, only if it loads back as the same model."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import numpy as np

from knuckle.model.export_meshes import mesh_files
from knuckle.model.load import load
from knuckle.model.model import Model
from knuckle.model.report import LoadError, LoadWarning

TOLERANCE = 1e-12
LEAST_GYRATION = 0.01  # m^2: moments are compared relative to themselves, or to this times the mass
COLOUR_TOLERANCE = 1e-6  # MuJoCo keeps colours as float32
TABLES = {
    "inertia": ("com",),
    "actuators": ("gear", "gain", "bias", "control_lower", "control_upper", "force_lower", "force_upper"),
    "equalities": ("position_a", "position_b", "polynomial", "torque_scale"),
    "frames": ("position",),
    "geometry": ("position", "size", "friction", "margin"),
}
ARRAYS = (
    *("position", "reference", "rest", "stiffness", "damping", "armature", "friction", "friction_speed"),
    *("lower", "upper", "effort", "speed", "gravity"),
)
SETTINGS = {  # no part of the mechanism; URDF has no place for them
    "topology": ("timestep", "integrator", "self_collision", "parents_collide"),
    "geometry": ("priority", "gap", "solref", "solimp", "solmix"),
}
LABELS = {
    "actuators": ("names", "entry_actuator", "entry_dof"),
    "equalities": ("names", "kind", "a", "b", "active"),
    "frames": ("names", "link"),
    "geometry": ("kind", "link", "body", "names", "contype", "conaffinity", "condim"),
}


def save(model: Model, path: str | Path) -> None:
    """Write a model as MJCF (.xml, .mjcf) or URDF (.urdf), whole or not at all.

    The text is loaded back and compared before it takes the file's place, so what the format cannot hold raises a
    ValueError that names it. Mesh vertices and colours are float32 in MJCF. A URDF names mesh files: those that are not
    found from `path` are written beside it, into NAME_meshes. Of what is welded to the ground only the mass is kept.
    URDF has no place for the time step and integrator of a model's file, for whether its links touch each other, and
    for the softness and priority of its shapes in MuJoCo: they are left out.
    """
    path = Path(path).resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save {str(path)!r}: there is no folder {str(path.parent)!r}")
    if path.suffix in (".xml", ".mjcf"):
        from knuckle.model import export_mjcf  # when needed, since MuJoCo is slow to import

        _replace(path, export_mjcf.write(model), model)
    elif path.suffix == ".urdf":
        from knuckle.model import export_urdf

        with mesh_files(path, model.geometry.mesh) as names:
            _replace(path, export_urdf.write(model, names), model)
    else:
        raise ValueError(f"save {str(path)!r}: expected a name that ends in .xml or .mjcf (MJCF) or .urdf (URDF)")


def _replace(path: Path, text: str, model: Model) -> None:
    """Put the text in the file's place if it loads as the model."""
    handle, name = tempfile.mkstemp(suffix=path.suffix, prefix=f".{path.stem}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _check(model, Path(name), path)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check(model: Model, written: Path, path: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoadWarning)
            loaded = load(written)
    except LoadError as error:
        reasons = "; ".join(map(str, error.problems)) or str(error).partition(": ")[2]
        raise ValueError(f"save {str(path)!r}: the format does not take this model: {reasons}") from error
    changed = differences(model, loaded, settings=path.suffix != ".urdf")
    if changed:
        raise ValueError(f"save {str(path)!r}: these would not load back the same: {', '.join(changed)}")


def differences(a: Model, b: Model, tolerance: float = TOLERANCE, *, settings: bool = True) -> list[str]:
    """The parts in which two models differ, with the largest difference of each array.

    `settings`: compare how their files ask to step and to touch, too. Lengths of axes and quaternions, and the order of
    frames and of shapes on different links, have no meaning and are not compared; nor are names of shapes that have
    none in `a`.
    """
    if _topology(a) != _topology(b):
        return [f"topology: {x} became {y}" for x, y in zip(_topology(a), _topology(b), strict=True) if x != y]
    tables = {"frames": (_by_name(a), _by_name(b)), "geometry": (_by_link(a), _by_link(b))}
    found = []
    for table, labels in LABELS.items():
        order = tables.get(table, (None, None))
        for label in labels:
            x, y = _picked(a, table, label, order[0]), _picked(b, table, label, order[1])
            if label == "names" and table == "geometry":
                y = [name if own else own for own, name in zip(x, y, strict=True)] if len(x) == len(y) else y
            if list(x) != list(y):
                found.append(f"{table}.{label}: {x} became {y}")
    if found or len(a.geometry.pairs) != len(b.geometry.pairs):
        return found or [f"geometry.pairs: {len(a.geometry.pairs)} became {len(b.geometry.pairs)}"]
    if settings:
        found += _setting_differences(a, b, tables["geometry"])
    rgba = (_picked(m, "geometry", "rgba", order) for m, order in zip((a, b), tables["geometry"], strict=True))
    if _change(*rgba) > COLOUR_TOLERANCE:
        found.append("geometry.rgba")
    for name, x, y in _arrays(a, b, tables):
        change = _change(x, y)
        if not change <= tolerance:
            found.append(f"{name} by {change:.3g}")
    return found + _mesh_differences(a, b, tables["geometry"])


def _topology(model: Model) -> tuple:
    t = model.topology
    rows = (t.keyframes, t.keyframe_velocities, t.keyframe_controls)
    keyframes = tuple(tuple(name for name, _ in named) for named in rows)
    mocap = tuple(sorted((name, tuple(sorted(t.standing_on(name)))) for name in t.mocap))
    return t.name, t.parent, t.kind, t.link_names, t.joint_names, t.excludes, keyframes, mocap


def _setting_differences(a: Model, b: Model, order: tuple[list[int], list[int]]) -> list[str]:
    found = []
    for name in SETTINGS["topology"]:
        x, y = getattr(a.topology, name), getattr(b.topology, name)
        if x != y:
            found.append(f"{name}: {x} became {y}")
    for name in SETTINGS["geometry"]:
        x, y = (_picked(m, "geometry", name, rows) for m, rows in zip((a, b), order, strict=True))
        if list(x) != list(y):
            found.append(f"geometry.{name}: {x} became {y}")
    return found


def _by_name(model: Model) -> list[int]:
    names = model.frames.names
    return sorted(range(len(names)), key=names.__getitem__)


def _by_link(model: Model) -> list[int]:
    links = model.geometry.link
    return sorted(range(len(links)), key=links.__getitem__)


def _picked(model: Model, table: str, label: str, order: list[int] | None):
    values = getattr(getattr(model, table), label)
    return values if order is None else [values[k] for k in order]


def _arrays(a: Model, b: Model, tables: dict):
    """Every array of both models that has a meaning, rows in the same order."""
    for name in ARRAYS:
        yield name, getattr(a, name), getattr(b, name)
    for table, names in TABLES.items():
        order = tables.get(table, (None, None))
        for name in names:
            x, y = getattr(getattr(a, table), name), getattr(getattr(b, table), name)
            yield f"{table}.{name}", _ordered(x, order[0]), _ordered(y, order[1])
    pairs = [_pair_tables(m) for m in (a, b)]
    for name in pairs[0]:
        yield f"geometry.pairs.{name}", *(table[name] for table in pairs)
    ground = [m.topology.ground_mass / _or_one(a.topology.ground_mass) for m in (a, b)]
    yield "topology.ground_mass", *ground
    yield "inertia.mass", *(np.asarray(m.inertia.mass) / _or_one(a.inertia.mass) for m in (a, b))
    size = np.maximum(np.max(np.abs(a.inertia.moment), axis=1), LEAST_GYRATION * np.asarray(a.inertia.mass))
    yield "inertia.moment", *(np.asarray(m.inertia.moment) / _or_one(size)[:, None] for m in (a, b))
    kinds = np.array(a.topology.kind)
    straight, turning = np.isin(kinds, ("revolute", "prismatic", "planar")), np.isin(kinds, ("revolute", "ball"))
    yield "axis", _unit(a.axis)[straight], _unit(b.axis)[straight]
    yield "anchor", np.asarray(a.anchor)[turning], np.asarray(b.anchor)[turning]
    yield "rotation", _quaternion(a.rotation), _quaternion(b.rotation)
    for table in ("frames", "geometry"):
        x, y = (_quaternion(getattr(m, table).rotation) for m in (a, b))
        yield f"{table}.rotation", _ordered(x, tables[table][0]), _ordered(y, tables[table][1])
    welds = np.array(a.equalities.kind, str) == "weld"
    for side in ("rotation_a", "rotation_b"):
        yield f"equalities.{side}", *(_quaternion(getattr(m.equalities, side))[welds] for m in (a, b))
    for what in ("keyframes", "keyframe_velocities", "keyframe_controls"):
        for (name, x), (_, y) in zip(getattr(a.topology, what), getattr(b.topology, what), strict=True):
            yield f"{what} {name!r}", np.array(x), np.array(y)


def _pair_tables(model: Model) -> dict[str, np.ndarray]:
    """Settings of pairs of shapes, and shapes by their number in the order in which they are compared."""
    place, pairs = np.argsort(_by_link(model)), model.geometry.pairs
    ends = [sorted((int(place[a]), int(place[b]))) for a, b in zip(pairs.a, pairs.b, strict=True)]
    order = sorted(range(len(ends)), key=ends.__getitem__)
    names = ("friction", "margin", "condim", "gap", "solref", "solreffriction", "solimp")
    tables = {"shapes": ends} | {name: getattr(pairs, name) for name in names}
    return {name: np.array([np.asarray(table[k], float) for k in order]) for name, table in tables.items()}


def _or_one(values) -> np.ndarray:
    return np.where(np.asarray(values) > 0, values, 1.0)


def _ordered(values, order: list[int] | None) -> np.ndarray:
    return np.asarray(values) if order is None else np.asarray(values)[order]


def _unit(vectors) -> np.ndarray:
    vectors = np.asarray(vectors, float)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _quaternion(values) -> np.ndarray:
    """Of unit length, of the two signs the one whose largest entry is positive."""
    unit = _unit(values)
    largest = np.take_along_axis(unit, np.argmax(np.abs(unit) > 0.49, axis=-1)[..., None], axis=-1)
    return unit * np.sign(np.where(largest == 0, 1.0, largest))


def _change(x, y) -> float:
    """Largest difference, relative for entries above one; equal infinities do not differ."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.shape != y.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        change = np.where(x == y, 0.0, np.abs(x - y) / np.maximum(1.0, np.abs(x)))
    return float(np.max(change, initial=0.0))


def _mesh_differences(a: Model, b: Model, order: tuple[list[int], list[int]]) -> list[str]:
    found = []
    for i, j in zip(*order, strict=True):
        x, y = a.geometry.mesh[i], b.geometry.mesh[j]
        if x is None or y is None:
            same = x is y
        else:
            rounded = x.vertices.astype(np.float32)
            same = np.array_equal(x.faces, y.faces) and np.array_equal(rounded, y.vertices.astype(np.float32))
        if not same:
            found.append(f"mesh of shape {a.geometry.names[i]!r}")
    return found
