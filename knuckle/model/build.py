"""From a description to a model: welded links merged, links in depth-first order, everything checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from knuckle.model import inertia as rigid
from knuckle.model.actuation import make_actuators
from knuckle.model.description import NAMED_AXES, WORLD, Description, Joint, Link
from knuckle.model.equality import make_equalities
from knuckle.model.geometry import Geometry, Shape
from knuckle.model.model import Frames, Inertia, Model
from knuckle.model.options import spelled_out
from knuckle.model.report import Omission, warn_of
from knuckle.model.topology import COORDINATES, FREEDOMS, Ground, Topology

FRICTION_SPEED = 0.01  # rad/s or m/s


@dataclass
class Pose:
    """A rotation and a position, composed by `@`."""

    position: np.ndarray
    quaternion: np.ndarray

    def __matmul__(self, other: Pose) -> Pose:
        turned = rigid.rotation_matrix(self.quaternion) @ other.position
        return Pose(self.position + turned, rigid.quaternion_product(self.quaternion, other.quaternion))


@dataclass
class Placed:
    """Where a described link ended up: the index of the moving link it belongs to, and its pose there."""

    link: int
    pose: Pose


@dataclass
class Moving:
    """A link of the model: one joint, and the bodies that were welded to it."""

    name: str
    parent: int
    joint: Joint
    placement: Pose
    body: tuple[float, np.ndarray, np.ndarray] = field(default_factory=lambda: (0.0, np.zeros(3), np.zeros(6)))


@spelled_out(Description, without=("links",))
def build(links: Description | Sequence[Link], *, repair_inertia: bool = False, **options: Any) -> Model:
    """A model of described links; the other arguments are the fields of `Description`.

    Args:
        repair_inertia: repair inertia that no real body can have instead of refusing it, and warn.

    Raises:
        ValueError: names the link, joint or actuator and says what was expected and what came.
    """
    if isinstance(links, Description) and options:
        raise TypeError(f"a Description holds {', '.join(options)} itself: give no such options beside it")
    description = links if isinstance(links, Description) else Description(list(links), **options)
    builder = _Builder(description, repair_inertia)
    model = builder.model()
    warn_of(f"model {description.name!r}", builder.repaired)
    return model


def _named_rows(named: Mapping[str, Any]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    for name, values in named.items():
        if rigid.is_traced(values):
            raise ValueError(f"keyframe {name!r} is part of the topology, so it cannot be traced: use kn.State instead")
    return tuple((name, tuple(float(x) for x in values)) for name, values in named.items())


class _Builder:
    def __init__(self, description: Description, repair_inertia: bool = False):
        self.description = description
        self.repair_inertia = repair_inertia
        self.repaired: list[Omission] = []
        self.moving: list[Moving] = []
        self.placed: dict[str, Placed] = {WORLD: Placed(-1, _pose((0, 0, 0), (1, 0, 0, 0), "world"))}
        self.frames: list[tuple[str, int, Pose]] = []
        self.shapes: list[tuple[int, str, Shape]] = []
        self.ground: dict[str, Ground] = {}
        self.ground_mass = 0.0

    def model(self) -> Model:
        self._add_world()
        for link in _depth_first(self.description.links):
            self._add(link)
        if not self.moving:
            raise ValueError(f"model {self.description.name!r}: no link has a joint, so nothing moves")
        joints = [m.joint for m in self.moving]
        lower, upper = _per_dof(joints, "lower", None), _checked_upper(joints)
        friction = _per_dof(joints, "friction", 0.0, finite=True)
        topology = replace(
            self._topology(),
            limited=_dofs_with(joints, ("lower", "upper"), np.isfinite),
            rubbing=_dofs_with(joints, ("friction",), lambda friction: friction > 0),
        )
        return Model(
            inertia=self._inertia(),
            position=rigid.table([m.placement.position for m in self.moving], -1, 3),
            rotation=rigid.table([m.placement.quaternion for m in self.moving], -1, 4),
            axis=rigid.table([_axis(j) for j in joints], -1, 3),
            anchor=rigid.table([rigid.finite_vector(j.anchor, 3, f"joint {j.name!r}: anchor") for j in joints], -1, 3),
            reference=_joined([_coordinates(j, j.reference, "reference") for j in joints]),
            rest=_joined([_coordinates(j, j.reference if j.rest is None else j.rest, "rest") for j in joints]),
            stiffness=_per_dof(joints, "stiffness", 0.0, finite=True),
            damping=_per_dof(joints, "damping", None, finite=True),
            armature=_per_dof(joints, "armature", 0.0, finite=True),
            friction=friction,
            friction_speed=np.full(topology.nv, FRICTION_SPEED),
            lower=lower,
            upper=upper,
            effort=_per_dof(joints, "effort", 0.0),
            speed=_per_dof(joints, "speed", 0.0),
            gravity=rigid.finite_vector(self.description.gravity, 3, "gravity"),
            actuators=make_actuators(self.description.actuators, topology),
            frames=self._frames(),
            geometry=Geometry.of(self.shapes, self.description.pairs),
            equalities=make_equalities(self.description.equalities, topology, self.placed, self.ground),
            topology=topology,
        )

    def _add_world(self) -> None:
        for shape in self.description.world_shapes:
            self.shapes.append((-1, WORLD, _checked_shape(shape, WORLD)))
        for frame in self.description.world_frames:
            self._add_frame(frame.name, Placed(-1, _pose(frame.position, frame.rotation, f"frame {frame.name!r}")))

    def _add(self, link: Link) -> None:
        """Append the link as a moving one, or weld it to what its parent belongs to."""
        where = f"link {link.name!r}"
        if link.name in self.placed:
            raise ValueError(f"{where}: the name stands twice")
        parent = self.placed[link.parent]
        placement = parent.pose @ _pose(link.position, link.rotation, where)
        joints = link.all_joints()
        if link.mocap and (joints or link.parent != WORLD):
            raise ValueError(f"{where}: a mocap body hangs on the world and has no joints")
        if joints:
            if link.parent in self.ground:
                self.ground[link.parent] = replace(self.ground[link.parent], carries_joint=True)
            here = Placed(self._add_joints(link, joints, parent.link, placement), _pose((0, 0, 0), (1, 0, 0, 0), where))
        else:
            here = Placed(parent.link, placement)
            self._add_frame(link.name, here)
            if link.mocap or link.parent in self.ground:
                self.ground[link.name] = Ground(link.name, link.parent, link.mocap)
        self.placed[link.name] = here
        self._add_contents(link, here)

    def _add_joints(self, link: Link, joints: tuple[Joint, ...], parent: int, placement: Pose) -> int:
        """A link per joint; all but the last without mass. Returns the index of the last."""
        for number, joint in enumerate(joints):
            if joint.kind not in FREEDOMS:
                raise ValueError(f"link {link.name!r}: joint kind must be one of {list(FREEDOMS)}, got {joint.kind!r}")
            name = joint.name or (f"{link.name}_joint" if len(joints) == 1 else f"{link.name}_joint{number}")
            last = number == len(joints) - 1
            named = Joint(**{**joint.__dict__, "name": name})
            self.moving.append(Moving(link.name if last else f"{link.name}/{name}", parent, named, placement))
            parent, placement = len(self.moving) - 1, _pose((0, 0, 0), (1, 0, 0, 0), link.name)
        return parent

    def _add_contents(self, link: Link, here: Placed) -> None:
        where = f"link {link.name!r}"
        com, moment = link.central_inertia()
        faults = rigid.faults(link.mass if rigid.is_traced(link.mass) else float(link.mass), moment)
        if faults and self.repair_inertia and 0 <= link.mass < np.inf:
            self.repaired.append(Omission(where, rigid.describe_repair(float(link.mass), moment)))
            moment = rigid.repaired(float(link.mass), moment)
        elif faults:
            raise ValueError(f"{where}: {faults[0]}")
        mass = link.mass if rigid.is_traced(link.mass) else float(link.mass)
        central = (mass, rigid.finite_vector(com, 3, f"{where}: com"), moment)
        if here.link >= 0:
            body = rigid.moved(central, here.pose.position, here.pose.quaternion)
            self.moving[here.link].body = rigid.merge(self.moving[here.link].body, body)
        elif rigid.is_traced(link.mass):
            raise ValueError(f"{where}: its mass is traced, but it stands on the world, where mass moves nothing")
        else:
            self.ground_mass += float(link.mass)
        for shape in link.all_shapes():
            pose = here.pose @ _pose(shape.position, shape.rotation, f"{where}, shape {shape.name!r}")
            fields = {**shape.__dict__, "position": pose.position, "rotation": pose.quaternion}
            self.shapes.append((here.link, link.name, Shape(**fields)))
        for frame in link.frames:
            pose = here.pose @ _pose(frame.position, frame.rotation, f"{where}, frame {frame.name!r}")
            self._add_frame(frame.name, Placed(here.link, pose))
            if link.name in self.ground:
                self.ground[frame.name] = Ground(frame.name, link.name)

    def _add_frame(self, name: str, placed: Placed) -> None:
        self.frames.append((name, placed.link, placed.pose))

    def _topology(self) -> Topology:
        topology = Topology(
            name=self.description.name,
            parent=tuple(m.parent for m in self.moving),
            kind=tuple(m.joint.kind for m in self.moving),
            link_names=tuple(m.name for m in self.moving),
            joint_names=tuple(m.joint.name for m in self.moving),
            excludes=tuple((a, b) for a, b in self.description.excludes),
            keyframes=_named_rows(self.description.keyframes),
            keyframe_velocities=_named_rows(self.description.keyframe_velocities),
            keyframe_controls=_named_rows(self.description.keyframe_controls),
            weightless_tips=self._has_weightless_tips(),
            timestep=_checked_timestep(self.description),
            integrator=self.description.integrator,
            self_collision=bool(self.description.self_collision),
            parents_collide=bool(self.description.parents_collide),
            ground=tuple(self.ground.values()),
            ground_mass=self.ground_mass,
        )
        _check_names(topology.joint_names, "joint")
        _check_names((*topology.link_names, *(name for name, _, _ in self.frames)), "link or frame")
        actuators = len(self.description.actuators)
        for what, rows, size in (
            ("", topology.keyframes, topology.nq),
            (": velocities", topology.keyframe_velocities, topology.nv),
            (": controls", topology.keyframe_controls, actuators),
        ):
            for name, values in rows:
                if name not in self.description.keyframes:
                    raise ValueError(f"keyframe {name!r}{what} are given, but no coordinates")
                rigid.finite_vector(values, size, f"keyframe {name!r}{what}")
        for pair in topology.excludes:
            for name in pair:
                if name not in self.placed:
                    raise ValueError(f"exclude {pair}: no link {name!r}")
        return topology

    def _has_weightless_tips(self) -> bool:
        carries = [rigid.is_traced(m.body) or m.body[0] > 0 or bool(np.any(m.body[2])) for m in self.moving]
        for link in reversed(range(len(self.moving))):
            if carries[link] and self.moving[link].parent >= 0:
                carries[self.moving[link].parent] = True
        return not all(carries)

    def _inertia(self) -> Inertia:
        return Inertia(
            mass=rigid.table([m.body[0] for m in self.moving], -1),
            com=rigid.table([m.body[1] for m in self.moving], -1, 3),
            moment=rigid.table([m.body[2] for m in self.moving], -1, 6),
        )

    def _frames(self) -> Frames:
        return Frames(
            position=rigid.table([pose.position for _, _, pose in self.frames], -1, 3),
            rotation=rigid.table([pose.quaternion for _, _, pose in self.frames], -1, 4),
            link=tuple(link for _, link, _ in self.frames),
            names=tuple(name for name, _, _ in self.frames),
        )


def _checked_timestep(description: Description) -> float | None:
    timestep = description.timestep
    if rigid.is_traced(timestep):
        raise ValueError(f"model {description.name!r}: timestep is part of the topology: it cannot be traced")
    if timestep is not None and not 0 < timestep < np.inf:
        raise ValueError(f"model {description.name!r}: timestep must be a positive number of seconds, got {timestep!r}")
    return None if timestep is None else float(timestep)


def _depth_first(links: Sequence[Link]) -> list[Link]:
    """Links with parents first and each branch in one piece, children in the order given."""
    names = {WORLD, *(link.name for link in links)}
    children: dict[str, list[Link]] = {}
    for link in links:
        if link.name == WORLD:
            raise ValueError("no link may be called 'world': it names the ground")
        if link.parent not in names:
            raise ValueError(f"link {link.name!r}: no parent {link.parent!r}; there are {', '.join(sorted(names))}")
        children.setdefault(link.parent, []).append(link)
    ordered, stack = [], children.get(WORLD, [])[::-1]
    while stack:
        link = stack.pop()
        ordered.append(link)
        stack.extend(children.pop(link.name, [])[::-1])
    if len(ordered) != len(links):
        lost = sorted({link.name for link in links} - {link.name for link in ordered})
        raise ValueError(f"links {', '.join(lost)} hang on each other in a ring, not on the world")
    return ordered


def _check_names(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name!r}: the name stands twice")
        seen.add(name)


def _pose(position, rotation, where: str) -> Pose:
    quaternion = rigid.finite_vector(rotation, 4, f"{where}: rotation (quaternion wxyz)")
    if not rigid.is_traced(quaternion) and not np.any(quaternion):
        raise ValueError(f"{where}: rotation (quaternion wxyz) must not be zero")
    return Pose(rigid.finite_vector(position, 3, f"{where}: position"), _unit(quaternion))


def _checked_shape(shape: Shape, where: str) -> Shape:
    pose = _pose(shape.position, shape.rotation, f"{where}, shape {shape.name!r}")
    return Shape(**{**shape.__dict__, "position": pose.position, "rotation": pose.quaternion})


def _unit(vector):
    """Of length 1, however small or large: squares of 1e-200 are zero and those of 1e200 infinite."""
    if rigid.is_traced(vector):
        return vector / jnp.linalg.norm(vector)
    if not 1e-100 < np.max(np.abs(vector)) < 1e100:
        vector = vector / np.max(np.abs(vector))
    return vector / np.linalg.norm(vector)


def _axis(joint: Joint) -> np.ndarray:
    if isinstance(joint.axis, str):
        if joint.axis not in NAMED_AXES:
            raise ValueError(f"joint {joint.name!r}: axis must be x, y, z or three numbers, got {joint.axis!r}")
        return np.array(NAMED_AXES[joint.axis])
    axis = rigid.finite_vector(joint.axis, 3, f"joint {joint.name!r}: axis")
    if not rigid.is_traced(axis) and not np.any(axis):
        raise ValueError(f"joint {joint.name!r}: axis must not be zero")
    return _unit(axis)


def _coordinates(joint: Joint, value, what: str) -> np.ndarray:
    """nq numbers of a joint; one number stands for all of a joint without quaternion."""
    size, where = COORDINATES[joint.kind], f"joint {joint.name!r}: {what}"
    if value is None:
        start = np.zeros(size)
        if joint.kind in ("ball", "free"):
            start[-4] = 1.0
        return start
    value = rigid.numbers(value)
    if value.ndim == 0 and joint.kind not in ("ball", "free"):
        value = rigid.arrays_for(value).broadcast_to(value, (size,))
    coordinates = rigid.finite_vector(value, size, where)
    if joint.kind in ("ball", "free") and not rigid.is_traced(coordinates) and not np.any(coordinates[-4:]):
        raise ValueError(f"{where}: the quaternion must not be zero")
    return coordinates


def _per_dof(joints: list[Joint], name: str, least: float | None, finite: bool = False) -> Any:
    """One number per degree of freedom, not below `least`."""
    parts = []
    for joint in joints:
        given, size, where = getattr(joint, name), FREEDOMS[joint.kind], f"joint {joint.name!r}: {name}"
        value = rigid.numbers(given)
        known = np.zeros(()) if rigid.is_traced(value) else value
        if value.shape not in ((), (size,)) or np.any(np.isnan(known)):
            raise ValueError(f"{where} must be one number or {size}, got {given!r}")
        if finite and not np.all(np.isfinite(known)):
            raise ValueError(f"{where} must be finite, got {given!r}")
        if least is not None and np.any(known < least):
            raise ValueError(f"{where} must not be below {least:g}, got {given!r}")
        parts.append(rigid.arrays_for(value).broadcast_to(value, (size,)))
    return _joined(parts)


def _joined(parts: list):
    return rigid.arrays_for(parts).concatenate(parts)


def _dofs_with(joints: list[Joint], names: tuple[str, ...], has: Callable[[Any], Any]) -> tuple[int, ...]:
    """Degrees of freedom for which one of the numbers says so; what is traced counts."""
    marks: list[bool] = []
    for joint in joints:
        values = [rigid.numbers(getattr(joint, name)) for name in names]
        found = [np.broadcast_to(rigid.is_traced(x) or has(x), (FREEDOMS[joint.kind],)) for x in values]
        marks += np.any(found, axis=0).tolist()
    return tuple(dof for dof, mark in enumerate(marks) if mark)


def _checked_upper(joints: list[Joint]) -> np.ndarray:
    lower, upper = _per_dof(joints, "lower", None), _per_dof(joints, "upper", None)
    if rigid.is_traced(lower, upper):
        return upper
    owners = [joint.name for joint in joints for _ in range(FREEDOMS[joint.kind])]
    for name, low, high in zip(owners, lower, upper, strict=True):
        if low > high:
            raise ValueError(f"joint {name!r}: lower limit {low:g} is above the upper limit {high:g}")
    return upper
