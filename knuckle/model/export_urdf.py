"""A model as URDF, with every number to the last digit.

The ground is a root link called `world`; a named frame is a link fixed where it stands, with the shapes that it had
before it was welded. Mass that was welded is part of what it was welded to; that on the ground stands on one of its
frames. Capsules are written as <capsule>, which URDF proper lacks and most readers know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from knuckle.model.build import FRICTION_SPEED
from knuckle.model.description import WORLD, motor
from knuckle.model.export_order import Carrier, ground_carrier, ground_problems, hanging_order
from knuckle.model.geometry import Mesh
from knuckle.model.inertia import rotation_matrix
from knuckle.model.joints import neutral
from knuckle.model.model import Model
from knuckle.model.topology import COORDINATES
from knuckle.model.urdf import GREY, mimic_name, motors

TYPES = {"revolute": "revolute", "prismatic": "prismatic", "planar": "planar", "free": "floating"}
SHAPES = ("sphere", "box", "cylinder", "capsule", "mesh")
GRAVITY = (0.0, 0.0, -9.81)
FRICTION = (1.0, 0.005, 0.0001)
MOMENTS = ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")


def write(model: Model, mesh_names: Mapping[Mesh, str] | None = None) -> str:
    """The text of a URDF file; raises a ValueError that lists all that URDF has no place for.

    Args:
        mesh_names: file names of meshes, if other than their own.
    """
    files = {mesh: mesh.path for mesh in model.geometry.mesh if mesh is not None} | dict(mesh_names or {})
    problems = [*_model_problems(model), *_joint_problems(model), *_actuator_problems(model)]
    problems += [*_equality_problems(model), *_shape_problems(model, files)]
    if problems:
        raise ValueError("URDF cannot hold this model:" + "".join(f"\n  {p}" for p in problems))
    root = Element("robot", name=model.name)
    _write_shapes(_write_links(root, model), model, files)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode") + "\n"


def _numbers(values) -> str:
    return " ".join(repr(float(v)) for v in np.ravel(np.asarray(values, float)))


def _name(model: Model, link: int) -> str:
    return model.link_names[link] if link >= 0 else WORLD


# What URDF has no place for


def _model_problems(model: Model) -> list[str]:
    found = []
    if tuple(np.asarray(model.gravity, float)) != GRAVITY:
        found.append(f"gravity {_numbers(model.gravity)}: URDF has none of its own, {_numbers(GRAVITY)} is assumed")
    found += ground_problems(model)
    found += [f"keyframe {name!r}" for name in model.keyframes]
    found += [f"exclude {a!r}, {b!r}" for a, b in model.topology.excludes]
    found += [f"contact pair {name!r} with settings of its own" for name in model.geometry.pairs.names]
    if not model.name:
        found.append("a robot without a name")
    return found


def _joint_problems(model: Model) -> list[str]:
    topology, start = model.topology, neutral(model.topology)
    found = []
    for link, (kind, name) in enumerate(zip(topology.kind, topology.joint_names, strict=True)):
        q = slice(topology.q_start[link], topology.q_start[link] + COORDINATES[kind])
        v = slice(topology.v_start[link], topology.v_stop[link])
        found += [f"joint {name!r}: {problem}" for problem in _one_joint_problems(model, link, start, q, v)]
    return found


def _one_joint_problems(model: Model, link: int, start: np.ndarray, q: slice, v: slice):
    kind = model.topology.kind[link]
    values = {n: np.asarray(getattr(model, n), float)[v] for n in _PER_FREEDOM}
    if kind not in TYPES:
        yield f"there are no {kind} joints"
    if kind == "revolute" and np.any(model.anchor[link]):
        yield f"a link turns about its own origin, here about {_numbers(model.anchor[link])}"
    for what in ("reference", "rest"):
        at = np.asarray(getattr(model, what), float)[q]
        if np.any(at != start[q]):
            yield f"the {what} is zero, here it is {_numbers(at)}"
    for what in ("stiffness", "armature"):
        if np.any(values[what]):
            yield f"no {what}, here {_numbers(values[what])}"
    if np.any(values["friction_speed"] != FRICTION_SPEED):
        yield f"no friction_speed other than {FRICTION_SPEED}"
    if kind in ("revolute", "prismatic"):
        yield from _single_problems(values)
    else:
        for what, usual in _WIDE_USUAL.items():
            if np.any(values[what] != usual):
                yield f"no {what} on a {kind} joint, here {_numbers(values[what])}"


_WIDE_USUAL = {
    "damping": 0.0,
    "friction": 0.0,
    "lower": -math.inf,
    "upper": math.inf,
    "effort": math.inf,
    "speed": math.inf,
}
_PER_FREEDOM = ("stiffness", "armature", "friction_speed", *_WIDE_USUAL)


def _single_problems(values: dict[str, np.ndarray]):
    for what in ("damping", "friction"):
        if values[what][0] < 0:
            yield f"no negative {what}, here {values[what][0]:g}"
    for what in ("effort", "speed"):
        if values[what][0] <= 0:
            yield f"a largest {what} of zero stands for none"
    lower, upper = values["lower"][0], values["upper"][0]
    if lower == upper == 0:
        yield "limits 0..0 stand for none"
    if math.isfinite(lower) != math.isfinite(upper):
        yield f"no limit on one side only, here {lower:g}..{upper:g}"


def _actuator_problems(model: Model) -> list[str]:
    """The actuators must be those that every URDF joint has: the control is the force."""
    topology, actuators = model.topology, model.actuators
    wanted = [a for kind, name in zip(topology.kind, topology.joint_names, strict=True) for a in motors(kind, name)]
    plain, found = motor(""), []
    for k, name in enumerate(actuators.names):
        limits = [
            getattr(actuators, f"{what}_{side}")[k] for what in ("control", "force") for side in ("lower", "upper")
        ]
        law = (float(actuators.gain[k]), *map(float, actuators.bias[k]))
        if np.any(np.isfinite(limits)):
            found.append(f"actuator {name!r}: only motors without limits of their own")
        if law != (plain.gain, *plain.bias):
            found.append(f"actuator {name!r}: URDF has no place for {_law_in_words(law)}")
    if actuators.names != tuple(a.name for a in wanted):
        listed = ", ".join(a.name for a in wanted) or "none"
        found.append(f"actuators {', '.join(actuators.names) or 'none'}: every joint has its motor, that is {listed}")
    elif np.any(np.asarray(actuators.gear) != 1) or len(actuators.gear) != len(wanted):
        found.append("actuators: no gear other than 1")
    return found


def _equality_problems(model: Model) -> list[str]:
    rows, found = model.equalities, []
    for k, (kind, name) in enumerate(zip(rows.kind, rows.names, strict=True)):
        if kind != "mimic":
            found.append(f"equality {name!r}: there is no {kind}")
        elif rows.b[k] < 0 or np.any(rows.polynomial[k][2:]) or not rows.active[k]:
            found.append(f"equality {name!r}: only an active, linear mimic of another joint")
        elif name != mimic_name(model.joint_names[rows.a[k]]):
            found.append(f"equality {name!r}: it would be called {mimic_name(model.joint_names[rows.a[k]])!r}")
    followers = [a for a, kind in zip(rows.a, rows.kind, strict=True) if kind == "mimic"]
    if followers != sorted(set(followers)):
        found.append("equalities: a joint mimics one other at most, and they stand in the order of the joints")
    return found


def _shape_problems(model: Model, files: Mapping[Mesh, str]) -> list[str]:
    geometry, found = model.geometry, []
    for k, (kind, name) in enumerate(zip(geometry.kind, geometry.names, strict=True)):
        where, mesh = f"shape {name!r}", geometry.mesh[k]
        if kind not in SHAPES:
            found.append(f"{where}: there is no {kind}")
        if (geometry.contype[k], geometry.conaffinity[k]) not in ((0, 0), (1, 1)):
            found.append(f"{where}: contype and conaffinity are both 0 (visual) or both 1 (collision)")
        if float(geometry.margin[k]) != 0:
            found.append(f"{where}: no margin, here {_numbers(geometry.margin[k])}")
        if tuple(map(float, geometry.friction[k])) != FRICTION:
            found.append(f"{where}: no friction of its own, here {_numbers(geometry.friction[k])}")
        if geometry.condim[k] != 3:
            found.append(f"{where}: no condim of its own, here {geometry.condim[k]}")
        if mesh is not None and not files[mesh]:
            found.append(f"{where}: a mesh stands in a file of its own, and this one has none")
        if kind == "mesh" and (mesh is None or not len(mesh.faces)):
            found.append(f"{where}: a mesh has triangles, and this one has none")
    return found


# Links and joints


def _write_links(root: Element, model: Model) -> dict[str, Carrier]:
    """Links, and frames as links of their own, with the joints on each link in their order; returns them by name."""
    carriers = {WORLD: Carrier.of_link(SubElement(root, "link", name=WORLD))}
    heavy, taken = ground_carrier(model), set(model.joint_names)
    for link, items in hanging_order(model).items():
        for kind, number in items:
            if kind == "link":
                name = model.link_names[number]
                carriers[name] = Carrier.of_link(SubElement(root, "link", name=name))
                _write_inertial(carriers[name].element, model, number)
                root.append(_joint(model, number))
            else:
                name = model.frames.names[number]
                carriers[name] = Carrier.of_frame(SubElement(root, "link", name=name), model, number)
                if name == heavy:
                    _write_mass(carriers[name].element, model.topology.ground_mass, np.zeros(3), np.zeros(6))
                root.append(_fixed_joint(model, link, number, taken))
    return carriers


def _write_inertial(link: Element, model: Model, number: int) -> None:
    mass, moment = float(model.inertia.mass[number]), np.asarray(model.inertia.moment[number], float)
    com = np.asarray(model.inertia.com[number], float)
    if mass != 0 or np.any(moment) or np.any(com):
        _write_mass(link, mass, com, moment)


def _write_mass(link: Element, mass: float, com: np.ndarray, moment: np.ndarray) -> None:
    inertial = SubElement(link, "inertial")
    SubElement(inertial, "origin", xyz=_numbers(com), rpy="0 0 0")
    SubElement(inertial, "mass", value=repr(mass))
    SubElement(inertial, "inertia", {key: repr(float(x)) for key, x in zip(MOMENTS, moment, strict=True)})


def _fixed_joint(model: Model, link: int, frame: int, taken: set[str]) -> Element:
    """What holds a frame where it stands, under a name that no other joint has."""
    name = model.frames.names[frame]
    fixing = f"{name}_fixed"
    while fixing in taken:
        fixing += "_"
    taken.add(fixing)
    joint = Element("joint", name=fixing, type="fixed")
    SubElement(joint, "parent", link=_name(model, link))
    SubElement(joint, "child", link=name)
    joint.append(_origin(model.frames.position[frame], model.frames.rotation[frame]))
    return joint


def _origin(position, rotation) -> Element:
    return Element("origin", xyz=_numbers(position), rpy=_numbers(roll_pitch_yaw(rotation_matrix(rotation))))


def roll_pitch_yaw(R: np.ndarray) -> np.ndarray:
    """Angles about the fixed axes x, y, z with R = Rz Ry Rx [rad].

    Near a pitch of a quarter turn roll and yaw are each poorly determined; so pitch and yaw are taken from what the
    rounded roll leaves, and R is met to the last digit there too.
    """
    roll = math.atan2(R[2, 1], R[2, 2])
    c, s = math.cos(roll), math.sin(roll)
    rest = R @ np.array([[1, 0, 0], [0, c, s], [0, -s, c]])  # Rz Ry
    return np.array([roll, math.atan2(-rest[2, 0], rest[2, 2]), math.atan2(-rest[0, 1], rest[1, 1])])


def _joint(model: Model, link: int) -> Element:
    topology, v = model.topology, int(model.topology.v_start[link])
    kind, name = topology.kind[link], topology.joint_names[link]
    lower, upper = float(model.lower[v]), float(model.upper[v])
    endless = kind == "revolute" and math.isinf(lower)
    joint = Element("joint", name=name, type="continuous" if endless else TYPES[kind])
    SubElement(joint, "parent", link=_name(model, topology.parent[link]))
    SubElement(joint, "child", link=topology.link_names[link])
    joint.append(_origin(model.position[link], model.rotation[link]))
    if kind != "free":
        SubElement(joint, "axis", xyz=_numbers(model.axis[link]))
    if kind in ("revolute", "prismatic"):
        _write_numbers(joint, model, v, lower, upper)
        _write_mimic(joint, model, link)
    return joint


def _write_numbers(joint: Element, model: Model, v: int, lower: float, upper: float) -> None:
    """Limits and friction; a largest force or speed of 0 stands for none, since readers want both attributes."""
    limit = SubElement(joint, "limit")
    if math.isfinite(lower):
        limit.attrib |= {"lower": repr(lower), "upper": repr(upper)}
    for key, value in (("effort", float(model.effort[v])), ("velocity", float(model.speed[v]))):
        limit.set(key, repr(value) if math.isfinite(value) else "0")
    SubElement(joint, "dynamics", damping=_numbers(model.damping[v]), friction=_numbers(model.friction[v]))


def _write_mimic(joint: Element, model: Model, link: int) -> None:
    rows = model.equalities
    for k, kind in enumerate(rows.kind):
        if kind == "mimic" and rows.a[k] == link:
            offset, multiplier = map(float, rows.polynomial[k][:2])
            leader = model.joint_names[rows.b[k]]
            SubElement(joint, "mimic", joint=leader, multiplier=repr(multiplier), offset=repr(offset))


# What stands on links


def _write_shapes(carriers: dict[str, Carrier], model: Model, files: Mapping[Mesh, str]) -> None:
    geometry = model.geometry
    for k, (kind, body) in enumerate(zip(geometry.kind, geometry.body, strict=True)):
        shape = SubElement(carriers[body].element, "collision" if geometry.contype[k] else "visual")
        if geometry.names[k]:
            shape.set("name", geometry.names[k])
        shape.append(_origin(*carriers[body].pose_of(geometry.position[k], geometry.rotation[k])))
        solid = SubElement(SubElement(shape, "geometry"), kind)
        solid.attrib |= _sizes(kind, np.asarray(geometry.size[k], float))
        mesh = geometry.mesh[k]
        if mesh is not None:
            solid.set("filename", files[mesh])
        if geometry.rgba[k] != GREY:
            SubElement(SubElement(shape, "material", name=""), "color", rgba=_numbers(geometry.rgba[k]))


def _sizes(kind: str, size: np.ndarray) -> dict[str, str]:
    if kind == "mesh":
        return {"scale": _numbers(size)}
    if kind == "box":
        return {"size": _numbers(2 * size)}
    length = {} if kind == "sphere" else {"length": _numbers(2 * size[1])}
    return {"radius": _numbers(size[0]), **length}


def _law_in_words(law: tuple[float, ...]) -> str:
    """What a motor whose force is not its control has."""
    gain, constant, *servo = law
    if any(servo):
        return "a servo, whose force depends on position or velocity"
    parts = [f"a motor's bias ({constant:g})"] if constant else []
    return " and ".join([*parts, *([f"a motor's gain ({gain:g})"] if gain != motor("").gain else [])])
