"""A model as MJCF, with every number to the last digit."""

from __future__ import annotations

import math
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from knuckle.model.build import FRICTION_SPEED
from knuckle.model.export_order import (
    IDENTITY,
    Carrier,
    Item,
    ground_carrier,
    ground_problems,
    hanging_order,
    moved_by_mocap,
    unit,
)
from knuckle.model.geometry import Mesh
from knuckle.model.mjcf_arrays import CARRIED
from knuckle.model.mjcf_inertia import NOTHING, principal
from knuckle.model.model import Model
from knuckle.model.topology import COORDINATES, FREEDOMS

TYPES = {"revolute": "hinge", "prismatic": "slide", "ball": "ball", "free": "free"}


class CannotHold(ValueError):
    """The model has something that the file format has no place for."""


def write(model: Model) -> str:
    """The text of an MJCF file; raises CannotHold that lists all that MJCF has no place for."""
    problems = _problems(model)
    if problems:
        raise CannotHold("MJCF cannot hold this model:" + "".join(f"\n  {p}" for p in problems))
    root = Element("mujoco", model=model.name)
    SubElement(root, "compiler", angle="radian", autolimits="false", inertiafromgeom="auto")
    _write_option(root, model)
    meshes = _write_meshes(root, model)
    bodies = _Bodies(SubElement(root, "worldbody"), model)
    _write_geoms(root, bodies.carriers, model, meshes)
    _write_contact(root, model)
    _write_equalities(root, bodies, model)
    _write_actuators(root, model)
    _write_speeds(root, model)
    _write_keyframes(root, model)
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode") + "\n"


def _numbers(values) -> str:
    """All digits; what is too small to have them all is zero, since MuJoCo does not read it."""
    values = np.ravel(np.asarray(values, float))
    return " ".join(repr(float(v)) for v in np.where(np.abs(values) < np.finfo(float).tiny, 0.0, values))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _write_option(root: Element, model: Model) -> None:
    option = SubElement(root, "option", gravity=_numbers(model.gravity))
    if model.timestep is None:
        _carry(root, "no_timestep", 0.0)
    else:
        option.set("timestep", _numbers(model.timestep))
        option.set("integrator", model.integrator or "Euler")
    if model.topology.parents_collide:
        SubElement(option, "flag", filterparent="disable")
    if not model.topology.self_collision:
        _carry(root, "no_self_collision", 0.0)


# What MJCF has no place for


def _problems(model: Model) -> list[str]:
    found = [*ground_problems(model), *(p for k in range(len(model.link_names)) for p in _link_problems(model, k))]
    found += [
        f"shape {name!r}: a plane stands on the world only"
        for name, kind, link in zip(model.geometry.names, model.geometry.kind, model.geometry.link, strict=True)
        if kind == "plane" and link >= 0
    ]
    found += [
        f"shape {name!r}: no shape is of kind {kind}"
        for name, kind in zip(model.geometry.names, model.geometry.kind, strict=True)
        if kind in ("polygon", "points")
    ]
    driving = set(model.actuators.entry_actuator)
    found += [
        f"actuator {name!r}: it drives no joint" for k, name in enumerate(model.actuators.names) if k not in driving
    ]
    return found


def _link_problems(model: Model, link: int) -> list[str]:
    topology = model.topology
    kind, joint = topology.kind[link], f"joint {topology.joint_names[link]!r}"
    q = slice(topology.q_start[link], topology.q_start[link] + COORDINATES[kind])
    v = slice(topology.v_start[link], topology.v_stop[link])
    found = []
    if kind not in TYPES:
        found.append(f"{joint}: there are no {kind} joints; use two prismatic and a revolute one")
    for name in ("stiffness", "damping", "armature", "friction", "upper", "effort"):
        values = np.asarray(getattr(model, name))[v]
        if kind in ("ball", "free") and np.any(values != values[0]):
            found.append(f"{joint}: one {name} for all freedoms of a joint, got {values.tolist()}")
    if kind in ("ball", "free") and np.any(np.isfinite(np.asarray(model.effort)[v])):
        found.append(f"{joint}: no effort limit on a {kind} joint")
    if np.any(np.asarray(model.friction)[v]) and np.any(np.asarray(model.friction_speed)[v] != FRICTION_SPEED):
        found.append(f"{joint}: no friction_speed other than {FRICTION_SPEED}")
    if kind == "ball" and np.any(np.asarray(model.reference)[q] != IDENTITY):
        found.append(f"{joint}: the reference of a ball joint is the identity")
    if kind == "free":
        found += _free_problems(model, link, joint, v)
    return found


def _free_problems(model: Model, link: int, joint: str, v: slice) -> list[str]:
    found = []
    if model.topology.parent[link] >= 0:
        found.append(f"{joint}: a free joint hangs on the world only")
    if np.any(model.position[link]) or np.any(unit(model.rotation[link]) != IDENTITY):
        found.append(f"{joint}: a free joint's frame is the world's own")
    if np.any(np.isfinite(np.asarray(model.lower)[v])) or np.any(np.isfinite(np.asarray(model.upper)[v])):
        found.append(f"{joint}: a free joint has no limits")
    return found


def _stages(model: Model) -> set[int]:
    """Links without mass that stand for all but the last of several joints on one body."""
    topology, found = model.topology, set()
    for child, stage in reversed(list(enumerate(topology.parent))):
        if stage < 0:
            continue
        owner = topology.link_names[child] if child not in found else topology.link_names[child].rpartition("/")[0]
        named = topology.link_names[stage] == f"{owner}/{topology.joint_names[stage]}"
        plain = not np.any(model.position[child]) and np.array_equal(unit(model.rotation[child]), IDENTITY)
        if named and plain and not np.any(model.inertia.mass[stage]) and not np.any(model.inertia.moment[stage]):
            found.add(stage)
    return found


# Bodies


class _Bodies:
    """The elements of links by number (-1 is the world), and of all that can carry shapes by name.

    One frame on the world, `heavy`, carries the mass of all that is welded to it.
    """

    def __init__(self, world: Element, model: Model):
        self.model, self.stages = model, _stages(model)
        self.elements = {-1: world}
        self.carriers = {"world": Carrier.of_link(world)}
        self.named = {*model.geometry.body, *(name for pair in model.topology.excludes for name in pair)}
        self.heavy = ground_carrier(model)
        for link, items in hanging_order(model).items():
            self._write_items(link, items)

    def _write_items(self, link: int, items: list[Item]) -> None:
        """Frames that come before all else are sites; later ones, and those with shapes, are bodies without joints."""
        bodies_begun = False
        for kind, number in items:
            bodies_begun |= kind == "link" or self.model.frames.names[number] in {*self.named, self.heavy}
            bodies_begun |= kind == "frame" and self.model.frames.names[number] in self.model.topology.mocap
            if kind == "link":
                self._write_link(link, number)
            else:
                self._write_frame(link, number, "body" if bodies_begun else "site")

    def _write_frame(self, link: int, number: int, tag: str) -> None:
        frames, above = self.model.frames, self._above(link, number)
        name, position, rotation = frames.names[number], frames.position[number], frames.rotation[number]
        if above is not None:
            position, rotation = above.pose_of(position, unit(rotation))
        pose = {"pos": _numbers(position), "quat": _numbers(rotation)}
        element = SubElement(self.elements[link] if above is None else above.element, tag, {"name": name, **pose})
        if link < 0 and name in self.model.topology.mocap:
            element.set("mocap", "true")
        if name == self.heavy:
            mass, moment = _numbers(self.model.topology.ground_mass), _numbers([NOTHING] * 3)
            SubElement(element, "inertial", pos="0 0 0", mass=mass, diaginertia=moment)
        self.carriers[name] = Carrier.of_frame(element, self.model, number)

    def _above(self, link: int, number: int) -> Carrier | None:
        """The body that a frame hangs on, if that moves as a mocap body does."""
        moving = moved_by_mocap(self.model) if link < 0 else {}
        return self.carriers.get(moving.get(self.model.frames.names[number], ""))

    def _write_link(self, parent: int, link: int) -> None:
        body, name = self.elements[parent], self.model.link_names[link]
        if parent not in self.stages:
            body = SubElement(body, "body", _placement(self.model, link))
        if link not in self.stages:
            body.set("name", name)
            body.insert(0, _inertial(self.model, link))
        body.append(_joint(self.model, link))
        self.elements[link] = body
        self.carriers[name] = Carrier.of_link(body)


def _placement(model: Model, link: int) -> dict[str, str]:
    if model.topology.kind[link] != "free":
        return {"pos": _numbers(model.position[link]), "quat": _numbers(model.rotation[link])}
    start = model.topology.q_start[link]
    pose = np.asarray(model.reference)[start : start + 7]
    return {"pos": _numbers(pose[:3]), "quat": _numbers(pose[3:])}


def _inertial(model: Model, link: int) -> Element:
    moments, quaternion = principal(np.asarray(model.inertia.moment[link], float))
    return Element(
        "inertial",
        pos=_numbers(model.inertia.com[link]),
        quat=_numbers(quaternion),
        mass=_numbers(max(float(model.inertia.mass[link]), NOTHING)),
        diaginertia=_numbers(np.maximum(moments, NOTHING)),
    )


def _joint(model: Model, link: int) -> Element:
    topology = model.topology
    kind, q, v = topology.kind[link], topology.q_start[link], topology.v_start[link]
    element = Element("joint", name=topology.joint_names[link], type=TYPES[kind])
    for ours, theirs in (
        ("stiffness", "stiffness"),
        ("damping", "damping"),
        ("armature", "armature"),
        ("friction", "frictionloss"),
    ):
        element.set(theirs, _numbers(getattr(model, ours)[v]))
    if kind in ("revolute", "ball"):
        element.set("pos", _numbers(model.anchor[link]))
    if kind in ("revolute", "prismatic"):
        element.set("axis", _numbers(model.axis[link]))
        element.set("ref", _numbers(model.reference[q]))
        element.set("springref", _numbers(model.rest[q]))
    lower, upper, effort = float(model.lower[v]), float(model.upper[v]), float(model.effort[v])
    if kind == "ball" and math.isfinite(upper):
        element.attrib |= {"limited": "true", "range": _numbers((0.0, upper))}
    elif kind != "ball" and (math.isfinite(lower) or math.isfinite(upper)):
        element.attrib |= {"limited": "true", "range": _numbers((lower, upper))}
    if math.isfinite(effort):
        element.attrib |= {"actuatorfrclimited": "true", "actuatorfrcrange": _numbers((-effort, effort))}
    return element


# What stands on bodies


def _write_meshes(root: Element, model: Model) -> dict[int, str]:
    """An asset for each mesh at each scale; returns their names by number of the shape."""
    geometry = model.geometry
    names: dict[tuple[Mesh, str], str] = {}
    used: dict[int, str] = {}
    asset = Element("asset")
    custom = Element("custom")
    for k, mesh in enumerate(geometry.mesh):
        if mesh is None:
            continue
        key = mesh, _numbers(geometry.size[k])
        if key not in names:
            names[key] = f"mesh{len(names)}"
            attributes = {"vertex": _numbers(mesh.vertices), "face": " ".join(map(str, mesh.faces.ravel()))}
            SubElement(asset, "mesh", {"name": names[key], "scale": key[1], "inertia": "shell", **attributes})
            if mesh.path:
                SubElement(custom, "text", name=f"{CARRIED}path/{names[key]}", data=mesh.path)
        used[k] = names[key]
    root.extend(element for element in (asset, custom) if len(element))
    return used


def _write_geoms(root: Element, carriers: dict[str, Carrier], model: Model, meshes: dict[int, str]) -> None:
    """Geoms without mass, since bodies state theirs; colours of more digits than MuJoCo keeps are carried along."""
    geometry = model.geometry
    for k, kind in enumerate(geometry.kind):
        carrier = carriers[geometry.body[k]]
        element = SubElement(carrier.element, "geom", type=kind, mass="0")
        if geometry.names[k]:
            element.set("name", geometry.names[k])
        if kind == "mesh":
            element.set("mesh", meshes[k])
        else:
            size = (0.0, 0.0, 1.0) if kind == "plane" else np.asarray(geometry.size[k])
            element.set("size", _numbers(size))
        position, rotation = carrier.pose_of(geometry.position[k], geometry.rotation[k])
        element.attrib |= {
            "pos": _numbers(position),
            "quat": _numbers(rotation),
            "friction": _numbers(geometry.friction[k]),
            "contype": str(geometry.contype[k]),
            "conaffinity": str(geometry.conaffinity[k]),
            "margin": _numbers(geometry.margin[k]),
            "gap": _numbers(geometry.gap[k]),
            "priority": str(geometry.priority[k]),
            "solref": _numbers(geometry.solref[k]),
            "solimp": _numbers(geometry.solimp[k]),
            "solmix": _numbers(geometry.solmix[k]),
            "rgba": _numbers(geometry.rgba[k]),
        }
        if geometry.condim[k] != 3:
            element.set("condim", str(geometry.condim[k]))
        if tuple(float(str(np.float32(c))) for c in geometry.rgba[k]) != geometry.rgba[k] and geometry.names[k]:
            _carry(root, f"rgba/{geometry.names[k]}", geometry.rgba[k])


# What stands beside bodies


def _write_contact(root: Element, model: Model) -> None:
    pairs, names = model.geometry.pairs, model.geometry.names
    contact = SubElement(root, "contact") if model.topology.excludes or len(pairs) else root
    for first, second in model.topology.excludes:
        SubElement(contact, "exclude", body1=first, body2=second)
    for k in range(len(pairs)):
        sliding, torsional, rolling = np.asarray(pairs.friction[k], float)
        element = SubElement(contact, "pair", geom1=names[pairs.a[k]], geom2=names[pairs.b[k]])
        element.attrib |= {"name": pairs.names[k]} if pairs.names[k] else {}
        element.attrib |= {
            "friction": _numbers((sliding, sliding, torsional, rolling, rolling)),
            "margin": _numbers(pairs.margin[k]),
            "gap": _numbers(pairs.gap[k]),
            "condim": str(pairs.condim[k]),
            "solref": _numbers(pairs.solref[k]),
            "solreffriction": _numbers(pairs.solreffriction[k]),
            "solimp": _numbers(pairs.solimp[k]),
        }


def _write_equalities(root: Element, bodies: _Bodies, model: Model) -> None:
    """Both sides of a connect or weld are sites of their own, since MJCF's body form states one side only."""
    rows = model.equalities
    parent = SubElement(root, "equality") if rows.names else root
    for k, (kind, name) in enumerate(zip(rows.kind, rows.names, strict=True)):
        element = SubElement(parent, "joint" if kind == "mimic" else kind, name=name, active=_flag(rows.active[k]))
        if kind == "mimic":
            element.set("joint1", model.joint_names[rows.a[k]])
            if rows.b[k] >= 0:
                element.set("joint2", model.joint_names[rows.b[k]])
            element.set("polycoef", _numbers(rows.polynomial[k]))
            continue
        for number, side in ((1, "a"), (2, "b")):
            site, link = f"{CARRIED}{name}/{side}", getattr(rows, side)[k]
            position, rotation = getattr(rows, f"position_{side}")[k], getattr(rows, f"rotation_{side}")[k]
            element_of, body = bodies.elements[link], getattr(rows, f"body_{side}")[k]
            if link < 0 and body in moved_by_mocap(model):
                position, rotation = bodies.carriers[body].pose_of(position, unit(rotation))
                element_of = bodies.carriers[body].element
            SubElement(element_of, "site", {"name": site, "pos": _numbers(position), "quat": _numbers(rotation)})
            element.set(f"site{number}", site)
        if kind == "weld":
            element.set("torquescale", _numbers(rows.torque_scale[k]))


def _write_actuators(root: Element, model: Model) -> None:
    actuators = model.actuators
    parent = SubElement(root, "actuator") if model.nu else root
    for k, name in enumerate(actuators.names):
        joint, gear = _transmission(model, k)
        element = SubElement(parent, "general", name=name, joint=joint, gear=_numbers(gear))
        element.attrib |= {
            "gaintype": "fixed",
            "gainprm": _numbers(actuators.gain[k]),
            "biastype": "affine",
            "biasprm": _numbers(actuators.bias[k]),
        }
        for ours, theirs in (("control", "ctrl"), ("force", "force")):
            bounds = float(getattr(actuators, f"{ours}_lower")[k]), float(getattr(actuators, f"{ours}_upper")[k])
            limited = any(map(math.isfinite, bounds))
            element.set(f"{theirs}limited", _flag(limited))
            if limited:
                element.set(f"{theirs}range", _numbers(bounds))


def _transmission(model: Model, actuator: int) -> tuple[str, np.ndarray]:
    """The joint that an actuator drives, and its gear for each freedom of that joint."""
    topology, entries = model.topology, model.actuators
    mine = [e for e, number in enumerate(entries.entry_actuator) if number == actuator]
    link = int(topology.dof_link[entries.entry_dof[mine[0]]])
    gear = np.zeros(FREEDOMS[topology.kind[link]])
    for entry in mine:
        gear[entries.entry_dof[entry] - topology.v_start[link]] = float(entries.gear[entry])
    return topology.joint_names[link], gear


def _write_speeds(root: Element, model: Model) -> None:
    topology = model.topology
    for link, joint in enumerate(topology.joint_names):
        speed = np.asarray(model.speed)[topology.v_start[link] : topology.v_stop[link]]
        if np.any(np.isfinite(speed)):
            _carry(root, f"speed/{joint}", speed)


def _carry(root: Element, name: str, numbers) -> None:
    """Write numbers as custom data: MJCF has no attribute for them, or one of fewer digits."""
    custom = root.find("custom")
    custom = SubElement(root, "custom") if custom is None else custom
    SubElement(custom, "numeric", name=CARRIED + name, data=_numbers(numbers))


def _write_keyframes(root: Element, model: Model) -> None:
    if model.keyframes:
        parent = SubElement(root, "keyframe")
        topology = model.topology
        velocities, controls = dict(topology.keyframe_velocities), dict(topology.keyframe_controls)
        for name, q in model.keyframes.items():
            key = SubElement(parent, "key", name=name, qpos=_numbers(q))
            for attribute, values in (("qvel", velocities.get(name)), ("ctrl", controls.get(name))):
                if values is not None:
                    key.set(attribute, _numbers(values))
