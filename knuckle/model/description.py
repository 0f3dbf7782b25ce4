"""What a mechanism is made of, in plain Python values: what importers produce and people write by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from knuckle.model.geometry import ContactPair, Shape
from knuckle.model.inertia import is_traced, moment_of, numbers
from knuckle.model.options import spelled_out

Vector = Sequence[float] | np.ndarray
JointKind = Literal["revolute", "prismatic", "planar", "ball", "free"]

WORLD = "world"
IDENTITY = (1.0, 0.0, 0.0, 0.0)
ORIGIN = (0.0, 0.0, 0.0)
NAMED_AXES = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}


@dataclass(frozen=True)
class Joint:
    """One joint of a link; a link with several moves by them in turn, as in MJCF. SI units.

    Per-coordinate numbers are one value for all degrees of freedom of the joint, or one each.
    """

    kind: JointKind
    name: str = ""
    axis: Vector | str = "z"  # of a revolute or prismatic joint, normal of a planar one; link frame
    anchor: Vector = ORIGIN  # point that a revolute or ball joint turns about; link frame
    reference: float | Vector | None = (
        None  # the default state; but for quaternions, links are at their placement there
    )
    lower: float | Vector = -math.inf
    upper: float | Vector = math.inf  # a ball joint's largest angle
    stiffness: float | Vector = 0.0
    rest: float | Vector | None = None  # coordinates at which the spring is relaxed; default: the reference
    damping: float | Vector = 0.0
    armature: float | Vector = 0.0
    friction: float | Vector = 0.0  # Coulomb friction, N m or N
    effort: float | Vector = math.inf  # largest force of all actuators together
    speed: float | Vector = math.inf  # largest speed that the maker states; kept, not enforced


@spelled_out(Joint, without=("kind",))
def revolute(axis: Vector | str = "z", **options: Any) -> Joint:
    """A hinge; without limits it is URDF's continuous joint."""
    return Joint("revolute", axis=axis, **options)


@spelled_out(Joint, without=("kind",))
def prismatic(axis: Vector | str = "x", **options: Any) -> Joint:
    """A slider along an axis."""
    return Joint("prismatic", axis=axis, **options)


@spelled_out(Joint, without=("kind", "axis"))
def planar(normal: Vector | str = "z", **options: Any) -> Joint:
    """Two translations in the plane across `normal`, then a turn about it."""
    return Joint("planar", axis=normal, **options)


@spelled_out(Joint, without=("kind", "axis"))
def ball(**options: Any) -> Joint:
    """Any rotation, as a quaternion wxyz."""
    return Joint("ball", **options)


@spelled_out(Joint, without=("kind", "axis"))
def free(**options: Any) -> Joint:
    """Any pose: position and quaternion wxyz."""
    return Joint("free", **options)


@dataclass(frozen=True)
class Frame:
    """A named pose on a link, such as a sensor or a fingertip."""

    name: str
    position: Vector = ORIGIN
    rotation: Vector = IDENTITY


@dataclass(frozen=True)
class Link:
    """A rigid body, how it hangs on its parent, and what is drawn and touched of it.

    Without joints it is welded to its parent: `build` merges it and keeps its name as a frame. `inertia` is about the
    centre of mass in the link's axes: three principal moments, (xx, yy, zz, xy, xz, yz), or a 3x3 matrix; left out, it
    is that of a uniform solid of the link's only shape, or of a point. `mocap` marks a body without joints on the world
    that is moved from outside, as in MJCF; `prescribed=` of `step` moves any body without joints on the world.
    """

    name: str
    parent: str = WORLD
    joints: Joint | Sequence[Joint] = ()
    position: Vector = ORIGIN  # of the link in its parent at the reference coordinates
    rotation: Vector = IDENTITY
    mass: float = 0.0
    com: Vector | None = None
    inertia: Vector | np.ndarray | None = None
    shapes: Shape | Sequence[Shape] = ()
    frames: Sequence[Frame] = ()
    mocap: bool = False

    def all_joints(self) -> tuple[Joint, ...]:
        return (self.joints,) if isinstance(self.joints, Joint) else tuple(self.joints)

    def all_shapes(self) -> tuple[Shape, ...]:
        return (self.shapes,) if isinstance(self.shapes, Shape) else tuple(self.shapes)

    def solid_shape(self) -> Shape | None:
        """The shape that stands for the body's mass where no inertia is given."""
        shapes = self.all_shapes()
        heavy = is_traced(self.mass) or self.mass > 0
        return shapes[0] if len(shapes) == 1 and heavy and shapes[0].has_volume else None

    def central_inertia(self) -> tuple[np.ndarray, np.ndarray]:
        """Centre of mass [m] and moments about it (xx, yy, zz, xy, xz, yz) [kg m^2], link axes."""
        solid = self.solid_shape()
        com = self.com if self.com is not None else (solid.position if solid is not None else ORIGIN)
        if self.inertia is not None:
            moment = moment_of(self.inertia, f"link {self.name!r}")
        else:
            moment = solid.moment(self.mass) if solid is not None else np.zeros(6)
        return numbers(com), moment


@dataclass(frozen=True)
class Actuator:
    """A force on a joint: gear (gain u + bias . (1, length, velocity)), clipped, as MuJoCo's affine actuators.

    Length and velocity are the joint's coordinates and speeds times the gear.
    """

    joint: str
    name: str = ""
    gear: float | Vector = 1.0  # one number per degree of freedom of the joint
    gain: float = 1.0
    bias: Vector = ORIGIN
    control_lower: float = -math.inf
    control_upper: float = math.inf
    force_lower: float = -math.inf
    force_upper: float = math.inf


@spelled_out(Actuator)
def motor(joint: str, gear: float | Vector = 1.0, **options: Any) -> Actuator:
    """The control is the force."""
    return Actuator(joint, gear=gear, **options)


@spelled_out(Actuator, without=("gain", "bias"))
def position_servo(joint: str, kp: float, kv: float = 0.0, **options: Any) -> Actuator:
    """Force kp (u - length) - kv velocity."""
    return Actuator(joint, gain=kp, bias=(0.0, -kp, -kv), **options)


@spelled_out(Actuator, without=("gain", "bias"))
def velocity_servo(joint: str, kv: float, **options: Any) -> Actuator:
    """Force kv (u - velocity)."""
    return Actuator(joint, gain=kv, bias=(0.0, 0.0, -kv), **options)


@dataclass(frozen=True)
class Connect:
    """Two points, one on each link, are held together (a ball joint that closes a loop)."""

    link_a: str
    link_b: str = WORLD
    point_a: Vector = ORIGIN
    point_b: Vector = ORIGIN
    name: str = ""
    active: bool = True


@dataclass(frozen=True)
class Weld:
    """Frame a on one link and frame b on the other are held equal."""

    link_a: str
    link_b: str = WORLD
    position_a: Vector = ORIGIN
    rotation_a: Vector = IDENTITY
    position_b: Vector = ORIGIN
    rotation_b: Vector = IDENTITY
    torque_scale: float = 1.0
    name: str = ""
    active: bool = True


@dataclass(frozen=True)
class Mimic:
    """Joint a follows joint b: q_a - ref_a = polynomial(q_b - ref_b), or is held at its constant if b is None."""

    joint_a: str
    joint_b: str | None = None
    polynomial: Vector = (0.0, 1.0, 0.0, 0.0, 0.0)
    name: str = ""
    active: bool = True


Equality = Connect | Weld | Mimic


@dataclass(frozen=True)
class Description:
    """A whole mechanism, before it becomes arrays. Parents may stand after their children."""

    links: Sequence[Link]
    name: str = "model"
    gravity: Vector = (0.0, 0.0, -9.81)
    world_shapes: Sequence[Shape] = ()
    world_frames: Sequence[Frame] = ()
    actuators: Sequence[Actuator] = ()
    equalities: Sequence[Equality] = ()
    excludes: Sequence[tuple[str, str]] = ()  # pairs of links that never collide
    keyframes: dict[str, Vector] = field(default_factory=dict)  # named coordinates q
    keyframe_velocities: dict[str, Vector] = field(default_factory=dict)  # qd of keyframes that move
    keyframe_controls: dict[str, Vector] = field(default_factory=dict)  # of keyframes that give one per actuator
    timestep: float | None = None  # that the file asks for [s]
    integrator: str | None = None  # that the file asks for, in MuJoCo's words
    pairs: Sequence[ContactPair] = ()  # with contact settings of their own
    self_collision: bool = False  # whether links of one tree touch each other by default
    parents_collide: bool = False  # whether a link and its parent touch, where links of one tree do
