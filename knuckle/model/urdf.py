"""URDF to a description: full inertias, every joint type, limits, friction, mimics, shapes and meshes.

Values are read by yourdfpy from a tree that `urdf_check` found sound. Two elements of Drake's older dialect that say
something about the mechanism are read here: <frame> (a named pose) and <loop_joint> (a hinge that closes a loop).
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
from scipy.spatial.transform import Rotation

from knuckle.model import description as kd
from knuckle.model.geometry import Shape
from knuckle.model.inertia import COLUMNS, ROWS, describe_repair, faults, matrix_of, repaired
from knuckle.model.mesh_file import read_mesh
from knuckle.model.report import Omission, refuse
from knuckle.model.urdf_check import JOINT_TYPES, Findings, check, numbers_in
from knuckle.model.xml import Document, Folders, PathEscape, line_of, parse

MOVING = {"revolute": "revolute", "continuous": "revolute", "prismatic": "prismatic", "planar": "planar"}
ROOT_JOINT = "floating_base"
GREY = (0.5, 0.5, 0.5, 1.0)


def read(
    source: str | Path,
    *,
    floating: bool | None = None,
    strict: bool = True,
    repair_inertia: bool = False,
    package_paths: Sequence[str | Path] = (),
) -> tuple[kd.Description, list[Omission]]:
    """The mechanism that a URDF file or string describes, and what of it was repaired or left out.

    `floating=True` frees the root link (unless the file does), `False` also fixes what hangs on the root by a floating
    joint, None takes the file as it is. `strict` refuses what cannot be represented; otherwise that is left out.
    Inertia that no real body can have is refused, or repaired with `repair_inertia`.
    """
    document = parse(source)
    if document.root.tag != "robot":
        refuse(document.source, f"expected a <robot>, got <{document.root.tag}>")
    reader = _Reader(document, Folders.of(document.path, package_paths), repair_inertia)
    result = reader.description(floating)
    findings = reader.findings
    problems = findings.errors + (findings.refusals if strict else [])
    if problems or result is None:
        refuse(document.source, problems)
    return result, findings.refusals + findings.notes + ([] if strict else findings.customs)


@dataclass
class _Shapes:
    """What yourdfpy does not keep of the shapes of a clean tree, by their new, unique names."""

    order: dict[str, int] = field(default_factory=dict)  # in the file
    line: dict[str, int | None] = field(default_factory=dict)
    capsules: set[str] = field(default_factory=set)
    material: dict[str, Element | None] = field(default_factory=dict)


class _Reader:
    def __init__(self, document: Document, folders: Folders, repair_inertia: bool):
        self.document = document
        self.folders = folders
        self.repair_inertia = repair_inertia
        self.findings = Findings()
        self.lines = {(e.tag, e.get("name")): line_of(e) for e in document.root}
        self.meshes: dict[str, object] = {}

    def description(self, floating: bool | None) -> kd.Description | None:
        """None if the file has errors that leave nothing to describe."""
        clean = check(self.document.root, self.findings)
        if self.findings.errors:
            return None
        self.shapes = _name_shapes(clean)
        robot = _yourdfpy_robot(clean)
        self.colors = {m.get("name"): _color(m) for m in clean.iter("material") if m.get("name") and _color(m)}
        order = self._order(robot)
        if order is None:
            return None
        joint_of = {joint.child: joint for joint in robot.joints}
        links = [self._link(link, joint_of.get(link.name)) for link in order]
        links, world = self._base(links, floating)
        frames = self._frames(clean, {link.name for link in order})
        links = [_with_frames(link, frames) for link in links]
        moving = [j for link in links for j in link.all_joints()]
        description = kd.Description(
            links,
            name=robot.name,
            world_shapes=world.all_shapes() if world is not None else (),
            world_frames=frames.get(kd.WORLD, ()),
            actuators=[a for joint in moving for a in motors(joint.kind, joint.name)],
            equalities=[*self._mimics(robot, [j.name for j in moving]), *self._loops(clean, order)],
        )
        return None if self.findings.errors else description

    # Reporting

    def _line(self, tag: str, name: str) -> int | None:
        return self.lines.get((tag, name))

    def _error(self, tag: str, name: str, reason: str):
        self.findings.errors.append(Omission(f"{tag} {name!r}", reason, self._line(tag, name)))

    def _refusal(self, tag: str, name: str, reason: str):
        self.findings.refusals.append(Omission(f"{tag} {name!r}", reason, self._line(tag, name)))

    def _note(self, tag: str, name: str, reason: str):
        self.findings.notes.append(Omission(f"{tag} {name!r}", reason, self._line(tag, name)))

    # The tree

    def _order(self, robot) -> list | None:
        """Links depth first, children in the order of their joints; None if it is no tree."""
        links = self._unique("link", robot.links)
        self._unique("joint", robot.joints)
        children: dict[str, list[str]] = {}
        carried: dict[str, str] = {}
        for joint in robot.joints:
            for end, name in (("parent", joint.parent), ("child", joint.child)):
                if name not in links:
                    self._error("joint", joint.name, f"its {end} is link {name!r}, which is not in the file")
            if joint.child in carried:
                reason = f"its child, link {joint.child!r}, already hangs on joint {carried[joint.child]!r}: not a tree"
                self._error("joint", joint.name, reason)
            if joint.type not in JOINT_TYPES:
                self._error("joint", joint.name, f"type: expected one of {', '.join(JOINT_TYPES)}, got {joint.type!r}")
            carried[joint.child] = joint.name
            children.setdefault(joint.parent, []).append(joint.child)
        roots = [name for name in links if name not in carried]
        if len(roots) != 1 and not self.findings.errors:
            listed = ", ".join(map(repr, roots)) or "none: the links hang on each other in a ring"
            lost = [f for f in self.findings.refusals if "not covered" in f.reason]
            because = "".join(f"; {Omission(finding.element, 'not covered', finding.line)}" for finding in lost)
            self.findings.errors.append(Omission("robot", f"expected one root link, there are {listed}{because}"))
        if kd.WORLD in carried:
            self._error("link", kd.WORLD, "only the root may be called 'world': it names the ground")
        return None if self.findings.errors else self._walk(links, children, roots[0])

    def _walk(self, links: dict, children: dict[str, list[str]], root: str) -> list | None:
        ordered, stack = [], [root]
        while stack:
            name = stack.pop()
            ordered.append(links[name])
            stack.extend(reversed(children.get(name, [])))
        reached = {link.name for link in ordered}
        for name in links:
            if name not in reached:
                self._error("link", name, "hangs in a ring of joints, not on the root")
        return None if self.findings.errors else ordered

    def _unique(self, tag: str, elements) -> dict:
        by_name: dict = {}
        for element in elements:
            if element.name in by_name:
                self._error(tag, element.name, "the name stands twice")
            by_name[element.name] = element
        return by_name

    def _base(self, links: list[kd.Link], floating: bool | None) -> tuple[list[kd.Link], kd.Link | None]:
        """The links with the base freed or fixed as asked, and the root apart if it is the world itself."""
        root, rest = links[0], links[1:]
        free_already = [link for link in rest if link.parent == root.name and _is_free(link)]
        if floating is False:
            fixed = {link.name for link in free_already}
            rest = [_replaced(link, joints=()) if link.name in fixed else link for link in rest]
        if root.name != kd.WORLD:
            freed = floating is True and not free_already
            return [_replaced(root, joints=kd.free(name=self._free_name(rest))) if freed else root, *rest], None
        if root.mass > 0:
            self._note("link", root.name, f"its mass of {root.mass:g} kg stands still: the link is the ground itself")
        if floating is True and not free_already:
            return self._free_on_world(root, rest), root
        return rest, root

    def _free_on_world(self, root: kd.Link, rest: list[kd.Link]) -> list[kd.Link]:
        """Free the base that a file fixes to its root link 'world'."""
        bases = [link for link in rest if link.parent == root.name]
        if len(bases) != 1 or bases[0].all_joints():
            reason = "cannot float: it names the ground, and there is not one link fixed to it that could float instead"
            self._error("link", root.name, reason)
            return rest
        name = self._free_name(rest)
        return [_replaced(link, joints=kd.free(name=name)) if link is bases[0] else link for link in rest]

    def _free_name(self, links: list[kd.Link]) -> str:
        taken = {j.name for link in links for j in link.all_joints()}
        return ROOT_JOINT if ROOT_JOINT not in taken else ROOT_JOINT + "_"

    # Links

    def _link(self, link, joint) -> kd.Link:
        mass, com, moment = self._inertia(link)
        position, rotation = _pose(joint.origin if joint is not None else None)
        return kd.Link(
            name=link.name,
            parent=joint.parent if joint is not None else kd.WORLD,
            joints=self._joint(joint) if joint is not None and joint.type != "fixed" else (),
            position=position,
            rotation=rotation,
            mass=mass,
            com=com,
            inertia=moment,
            shapes=self._link_shapes(link),
        )

    def _inertia(self, link) -> tuple[float, np.ndarray, np.ndarray]:
        if link.inertial is None:
            return 0.0, np.zeros(3), np.zeros(6)
        mass, matrix = float(link.inertial.mass), link.inertial.inertia
        moment = matrix[ROWS, COLUMNS]
        broken = faults(mass, moment)
        if broken and self.repair_inertia and mass >= 0:
            self._note("link", link.name, describe_repair(mass, moment))
            matrix = matrix_of(repaired(mass, moment))
        elif broken:
            self._error("link", link.name, "; ".join(broken))
        position, _ = _pose(link.inertial.origin)
        turn = np.eye(3) if link.inertial.origin is None else link.inertial.origin[:3, :3]
        return mass, position, (turn @ matrix @ turn.T)[ROWS, COLUMNS]

    def _link_shapes(self, link) -> list[Shape]:
        elements = sorted((*link.visuals, *link.collisions), key=lambda e: self.shapes.order[e.name])
        touching = {collision.name for collision in link.collisions}
        shapes = [self._shape(link.name, e, contact=int(e.name in touching)) for e in elements]
        return [shape for shape in shapes if shape is not None]

    def _shape(self, link: str, element, contact: int) -> Shape | None:
        geometry = element.geometry
        position, rotation = _pose(element.origin)
        rgba = self._rgba(self.shapes.material[element.name])
        common = {"position": position, "rotation": rotation, "name": element.name, "rgba": rgba}
        common |= {"contype": contact, "conaffinity": contact}
        if geometry.box is not None:
            return Shape("box", tuple(0.5 * geometry.box.size), **common)
        if geometry.sphere is not None:
            return Shape("sphere", (geometry.sphere.radius,), **common)
        if geometry.cylinder is not None:
            kind = "capsule" if element.name in self.shapes.capsules else "cylinder"
            return Shape(kind, (geometry.cylinder.radius, 0.5 * geometry.cylinder.length), **common)
        return self._mesh(link, element, common)

    def _mesh(self, link: str, element, common: dict) -> Shape | None:
        name = element.geometry.mesh.filename
        where, line = f"link {link!r} <mesh {name!r}>", self.shapes.line[element.name]
        try:
            path = self.folders.find(name)
            if path is None:
                raise FileNotFoundError("the file was not found: the shape is left out (see package_paths)")
            if name not in self.meshes:
                self.meshes[name] = read_mesh(path, name)
        except PathEscape as escape:
            self.findings.refusals.append(Omission(where, str(escape), line))
            return None
        except (OSError, ValueError) as error:
            self.findings.notes.append(Omission(where, str(error), line))
            return None
        scale = element.geometry.mesh.scale
        scale = np.ones(3) if scale is None else np.broadcast_to(scale, (3,))
        if not np.all(scale):
            self.findings.refusals.append(Omission(where, f"scale must not be zero, got {scale.tolist()}", line))
            return None
        return Shape("mesh", tuple(scale), mesh=self.meshes[name], **common)  # type: ignore[arg-type]

    def _rgba(self, material: Element | None) -> tuple[float, ...]:
        """The material's own colour, or that of its name, or grey."""
        own = None if material is None else _color(material) or self.colors.get(material.get("name"))
        return own or GREY

    # Joints

    def _joint(self, joint) -> kd.Joint:
        if joint.type in ("floating", "planar"):
            return self._wide_joint(joint)
        if not np.any(joint.axis):
            self._error("joint", joint.name, "axis must not be zero")
        lower, upper = self._range(joint)
        damping, friction = _dynamics(joint)
        for what, value in (("damping", damping), ("friction", friction)):
            if value < 0:
                self._error("joint", joint.name, f"{what} must not be negative, got {value:g}")
        return kd.Joint(
            kind=MOVING[joint.type],  # type: ignore[arg-type]
            name=joint.name,
            axis=joint.axis,
            lower=lower,
            upper=upper,
            damping=damping,
            friction=friction,
            effort=self._bound(joint, "effort"),
            speed=self._bound(joint, "velocity"),
        )

    def _bound(self, joint, name: str) -> float:
        """A largest force or speed; zero, which files hold in place of an unknown one, is taken as none."""
        value = getattr(joint.limit, name) if joint.limit is not None else None
        if value is None or value > 0:
            return math.inf if value is None else value
        if value == 0:
            told = Omission(
                f"joint {joint.name!r}", f"{name} 0 is taken as without a bound", self._line("joint", joint.name)
            )
            self.findings.customs.append(told)
        else:
            self._refusal(
                "joint", joint.name, f"{name} must not be negative, got {value:g}; without a bound if left out"
            )
        return math.inf

    def _wide_joint(self, joint) -> kd.Joint:
        """A floating or planar joint: URDF gives its limits no meaning."""
        if joint.limit is not None and any(
            (joint.limit.lower, joint.limit.upper, joint.limit.effort, joint.limit.velocity)
        ):
            self._note("joint", joint.name, f"<limit> left out: it has no meaning for a {joint.type} joint")
        if joint.type == "floating":
            return kd.free(name=joint.name)
        if not np.any(joint.axis):
            self._error("joint", joint.name, "axis must not be zero")
        return kd.planar(joint.axis, name=joint.name)

    def _range(self, joint) -> tuple[float, float]:
        limit = joint.limit
        ends = (limit.lower, limit.upper) if limit is not None else (None, None)
        given, (lower, upper) = ends != (None, None), (end or 0.0 for end in ends)
        if joint.type == "continuous":
            if lower or upper:
                self._note("joint", joint.name, f"limits {lower:g}..{upper:g} left out: the joint is continuous")
            return -math.inf, math.inf
        if lower == math.inf or upper == -math.inf:
            self._error("joint", joint.name, f"limits {lower:g}..{upper:g} leave no room")
        if lower > upper or lower == upper == 0:
            what = f"limits {lower:g}..{upper:g} leave no room" if given else "no limits are given"
            bullet = ", as Bullet takes them" if lower > upper else ""
            self._note("joint", joint.name, f"{what}: taken as without limits{bullet}")
            return -math.inf, math.inf
        return lower, upper

    def _mimics(self, robot, moving: list[str]) -> list[kd.Mimic]:
        """Constraints in the order of the joints that follow."""
        found = []
        kinds = {joint.name: joint.type for joint in robot.joints}
        for joint in robot.joints:
            if joint.mimic is None:
                continue
            leader = joint.mimic.joint
            wide = [n for n in (joint.name, leader) if kinds.get(n) in ("floating", "planar")]
            if leader not in moving or joint.name not in moving:
                still = leader if leader not in moving else joint.name
                self._refusal("joint", joint.name, f"<mimic> of {leader!r}: there is no moving joint {still!r}")
            elif wide or leader == joint.name:
                self._refusal(
                    "joint", joint.name, f"<mimic> of {leader!r}: both must be different joints of one freedom"
                )
            else:
                rule = (joint.mimic.offset, joint.mimic.multiplier, 0.0, 0.0, 0.0)
                found.append(kd.Mimic(joint.name, leader, rule, name=mimic_name(joint.name)))
        return sorted(found, key=lambda mimic: moving.index(mimic.joint_a))

    # Drake's <loop_joint> and <frame>

    def _loops(self, clean: Element, order: list) -> list[kd.Connect]:
        """A hinge that closes a loop: two points on its axis are held together."""
        names, found = {link.name for link in order}, []
        for loop in clean.findall("loop_joint"):
            name = loop.get("name", "")
            ends = [loop.find("link1"), loop.find("link2")]
            links = [end.get("link", "") for end in ends if end is not None]
            axis = loop.find("axis")
            along = np.array(numbers_in(axis.get("xyz", "")) if axis is not None else (1.0, 0.0, 0.0), float)
            if loop.get("type") not in ("continuous", "revolute") or not set(links) <= names or not np.any(along):
                self._refusal("loop_joint", name, "expected a hinge with an axis, between two links of the file")
                continue
            poses = [_own_pose(end) for end in ends if end is not None]
            for number, step in enumerate((0.0, 0.1 / np.linalg.norm(along))):
                point_a, point_b = (p + R.apply(step * along) for p, R in poses)
                found.append(kd.Connect(links[0], links[1], point_a, point_b, name=f"{name}_{number}"))
        return found

    def _frames(self, clean: Element, order: set[str]) -> dict[str, list[kd.Frame]]:
        frames: dict[str, list[kd.Frame]] = {}
        taken = set(order)
        for element in clean.findall("frame"):
            name, link = element.get("name", ""), element.get("link", "")
            if link not in order or name in taken:
                self._refusal("frame", name, f"expected a new name and a link of the file, got link {link!r}")
                continue
            taken.add(name)
            position, turn = _own_pose(element)
            frames.setdefault(link, []).append(kd.Frame(name, position, _wxyz(turn)))
        return frames


def _name_shapes(clean: Element) -> _Shapes:
    """Give every shape of a clean tree a name of its own, and turn capsules into cylinders, which yourdfpy reads."""
    shapes = _Shapes()
    for link in clean.findall("link"):
        for number, element in enumerate(e for e in link if e.tag in ("visual", "collision")):
            name = element.get("name") or f"{link.get('name')}_{element.tag}{number}"
            while name in shapes.order:
                name = f"{name}_{len(shapes.order)}"
            shapes.order[name] = len(shapes.order)
            element.set("name", name)
            shapes.line[name] = int(element.attrib.pop("line")) or None
            shapes.material[name] = element.find("material")
            for capsule in element.iter("capsule"):
                capsule.tag = "cylinder"
                shapes.capsules.add(name)
    return shapes


def _color(material: Element) -> tuple[float, ...] | None:
    rgba = [numbers_in(color.get("rgba", "1 1 1 1")) for color in material.iter("color")]
    return tuple(rgba[0]) if rgba and rgba[0] else None


def _yourdfpy_robot(clean: Element):
    import yourdfpy  # slow to import: it brings trimesh

    clean.set("name", clean.get("name") or "robot")
    text = io.BytesIO(ElementTree.tostring(clean, "utf-8"))
    return yourdfpy.URDF.load(text, build_scene_graph=False, load_meshes=False).robot


def motors(kind: kd.JointKind, joint: str) -> list[kd.Actuator]:
    """The control of a joint is its force; a planar joint has three, a free one none."""
    if kind == "free":
        return []
    if kind == "planar":
        gears = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "turn": (0.0, 0.0, 1.0)}
        return [kd.motor(joint, gear, name=f"{joint}_{key}") for key, gear in gears.items()]
    return [kd.motor(joint, name=joint)]


def mimic_name(joint: str) -> str:
    """What the constraint of a joint that mimics another is called."""
    return f"{joint}_mimic"


def _replaced(link: kd.Link, **changes) -> kd.Link:
    return kd.Link(**{**link.__dict__, **changes})


def _with_frames(link: kd.Link, frames: dict[str, list[kd.Frame]]) -> kd.Link:
    return _replaced(link, frames=frames[link.name]) if link.name in frames else link


def _is_free(link: kd.Link) -> bool:
    return any(joint.kind == "free" for joint in link.all_joints())


def _dynamics(joint) -> tuple[float, float]:
    if joint.dynamics is None:
        return 0.0, 0.0
    return float(joint.dynamics.damping or 0.0), float(joint.dynamics.friction or 0.0)


def _pose(matrix: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Position and quaternion wxyz of a 4x4 matrix."""
    if matrix is None:
        return np.zeros(3), np.array(kd.IDENTITY)
    return matrix[:3, 3].copy(), _wxyz(Rotation.from_matrix(matrix[:3, :3]))


def _own_pose(element: Element) -> tuple[np.ndarray, Rotation]:
    """The pose of an element that carries xyz and rpy itself."""
    xyz, rpy = (numbers_in(element.get(key, "0 0 0")) for key in ("xyz", "rpy"))
    return np.array(xyz, float), Rotation.from_euler("xyz", np.array(rpy, float))


def _wxyz(turn: Rotation) -> np.ndarray:
    return np.roll(turn.as_quat(canonical=True), 1)
