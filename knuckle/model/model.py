"""The model of a mechanism: arrays are differentiable parameters, static fields are topology."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.model.geometry import Geometry
from knuckle.model.printed import brief, impossible_field, largest
from knuckle.model.topology import Topology, _find

Leaf = Array | np.ndarray


class Inertia(eqx.Module):
    """Mass, centre of mass and central moments of each link, in link axes."""

    mass: Float[Leaf, " link"]  # [kg]
    com: Float[Leaf, "link 3"]  # [m]
    moment: Float[Leaf, "link 6"]  # xx, yy, zz, xy, xz, yz about the centre of mass [kg m^2]


class Frames(eqx.Module):
    """Named poses on links: sites, sensors, and links that were welded to another."""

    position: Float[Leaf, "frame 3"]
    rotation: Float[Leaf, "frame 4"]
    link: tuple[int, ...] = eqx.field(static=True)  # -1 is the world
    names: tuple[str, ...] = eqx.field(static=True)


class Actuators(eqx.Module):
    """Affine actuators: force = clip(gain u + bias . (1, length, velocity)), carried to the joints by the gear."""

    gear: Float[Leaf, " entry"]
    gain: Float[Leaf, " actuator"]
    bias: Float[Leaf, "actuator 3"]
    control_lower: Float[Leaf, " actuator"]
    control_upper: Float[Leaf, " actuator"]
    force_lower: Float[Leaf, " actuator"]
    force_upper: Float[Leaf, " actuator"]
    entry_actuator: tuple[int, ...] = eqx.field(static=True)  # actuator of each gear entry
    entry_dof: tuple[int, ...] = eqx.field(static=True)  # degree of freedom of each gear entry
    names: tuple[str, ...] = eqx.field(static=True)

    def holding(self, moved: np.ndarray) -> Float[Leaf, " actuator"]:
        """The control at which position servos pull to where joints stand; zero for other actuators."""
        arrays = jnp if any(isinstance(x, jax.Array) for x in (self.gear, self.gain, self.bias)) else np
        sums = (np.array(self.entry_actuator, int) == np.arange(len(self.names))[:, None]).astype(self.gear.dtype)
        length = sums @ (self.gear * moved[list(self.entry_dof)].astype(self.gear.dtype))
        able = self.gain != 0
        return arrays.where(able, -self.bias[:, 1] * length / arrays.where(able, self.gain, 1.0), 0.0)


class Equalities(eqx.Module):
    """Constraints that hold two points, two frames or two joint positions equal."""

    position_a: Float[Leaf, "equality 3"]
    rotation_a: Float[Leaf, "equality 4"]
    position_b: Float[Leaf, "equality 3"]
    rotation_b: Float[Leaf, "equality 4"]
    polynomial: Float[Leaf, "equality 5"]  # of a mimic
    torque_scale: Float[Leaf, " equality"]  # of a weld [m]
    kind: tuple[str, ...] = eqx.field(static=True)  # connect, weld, mimic
    a: tuple[int, ...] = eqx.field(static=True)  # link (connect, weld; -1 is the world) or joint (mimic)
    b: tuple[int, ...] = eqx.field(static=True)  # as a; -1 of a mimic: none
    active: tuple[bool, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    body_a: tuple[str, ...] = eqx.field(static=True, default=())  # the mocap body, or one on it, of each side; else ""
    body_b: tuple[str, ...] = eqx.field(static=True, default=())


class State(eqx.Module):
    """What persists from step to step: MuJoCo's qpos and qvel.

    A free joint has position and quaternion wxyz; linear velocity in the world, angular in the body.
    """

    q: Float[Leaf, "*time nq"]
    qd: Float[Leaf, "*time nv"]
    impulse: Float[Leaf, "*time row"] | None = None  # of the last step's contacts, where the next search starts
    memory: dict[str, Any] | None = None  # what networks keep: recurrent states, quantities of the last step
    control: Float[Leaf, "*time nu"] | None = None  # what acts where a step is given no control; None: zero

    def __repr__(self) -> str:
        parts = [f"q={brief(self.q)}", f"qd={brief(self.qd)}"]
        if self.control is not None and np.size(self.control):
            parts.append(f"control={brief(self.control)}")
        if self.impulse is not None:
            parts.append(f"impulse of {np.shape(self.impulse)[-1]} rows")
        if self.memory is not None:
            parts.append(f"memory of {', '.join(self.memory) or 'nothing'}")
        return f"State({', '.join(parts)})"


class Model(eqx.Module):
    """A tree of rigid links: arrays are parameters, static fields are topology. SI units."""

    inertia: Inertia
    position: Float[Leaf, "link 3"]  # of the joint's frame in the parent link
    rotation: Float[Leaf, "link 4"]  # quaternion wxyz, any length but zero
    axis: Float[Leaf, "link 3"]  # joint axis (planar: normal), link frame, any length but zero
    anchor: Float[Leaf, "link 3"]  # point that a revolute or ball joint turns about, link frame
    reference: Float[Leaf, " nq"]  # the default state; joints without quaternion stand at their placement there
    rest: Float[Leaf, " nq"]  # coordinates at which springs are relaxed
    stiffness: Float[Leaf, " nv"]  # [N m/rad or N/m]
    damping: Float[Leaf, " nv"]  # [N m s/rad or N s/m]
    armature: Float[Leaf, " nv"]  # rotor inertia seen at the joint [kg m^2 or kg]
    friction: Float[Leaf, " nv"]  # Coulomb friction of the joint [N m or N]
    friction_speed: Float[Leaf, " nv"]  # speed at which tanh friction has 76 % of its force [rad/s or m/s]
    lower: Float[Leaf, " nv"]
    upper: Float[Leaf, " nv"]  # a ball joint's largest angle stands in all three entries
    effort: Float[Leaf, " nv"]  # largest force of all actuators of a joint together
    speed: Float[Leaf, " nv"]  # largest speed that the maker states; not enforced
    gravity: Float[Leaf, "3"]  # [m/s^2]
    actuators: Actuators
    frames: Frames
    geometry: Geometry
    equalities: Equalities
    topology: Topology = eqx.field(static=True)

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def nq(self) -> int:
        return self.topology.nq

    @property
    def nv(self) -> int:
        return self.topology.nv

    @property
    def nu(self) -> int:
        return len(self.actuators.names)

    @property
    def timestep(self) -> float | None:
        """The time step that the model's file asks for [s], for commands; `step` and `rollout` take dt."""
        return self.topology.timestep

    @property
    def integrator(self) -> str | None:
        """The integrator that the model's file asks for, in MuJoCo's words; see `knuckle.integrate.nearest_to`."""
        return self.topology.integrator

    @property
    def mass(self):
        """Total mass of the links that move and of what is welded to the world [kg]."""
        return self.inertia.mass.sum() + self.topology.ground_mass

    @property
    def link_names(self) -> tuple[str, ...]:
        return self.topology.link_names

    @property
    def joint_names(self) -> tuple[str, ...]:
        return self.topology.joint_names

    @property
    def keyframes(self) -> dict[str, np.ndarray]:
        return {name: np.array(q) for name, q in self.topology.keyframes}

    def state(self, q: Leaf | str | None = None, qd: Leaf | None = None) -> State:
        """A state; by default the reference coordinates, stationary. `q` may name a keyframe.

        A keyframe's state also has its velocities and its control (MuJoCo's mj_resetDataKeyframe). If the keyframe
        gives no control, position servos hold its pose and other actuators rest (MuJoCo: all controls are zero).
        """
        control = None
        if isinstance(q, str):
            name, topology = q, self.topology
            _find(name, tuple(self.keyframes), "keyframe")
            q = self.keyframes[name]
            control = dict(topology.keyframe_controls).get(name)
            control = self.holding_control(q) if control is None else np.array(control)
            qd = np.array(dict(topology.keyframe_velocities).get(name, np.zeros(self.nv))) if qd is None else qd
        q = self.reference if q is None else q
        qd = np.zeros(self.nv) if qd is None else qd
        return State(_checked(q, self.nq, "q"), _checked(qd, self.nv, "qd"), control=control)

    def holding_control(self, q: np.ndarray) -> Float[Leaf, " nu"]:
        """The control at which position servos hold coordinates q; zero for other actuators."""
        return self.actuators.holding(self.topology.displacement(q))

    def __repr__(self) -> str:
        sizes = f"{len(self.link_names)} links, nq={self.nq}, nv={self.nv}, nu={self.nu}"
        odd = impossible_field(self)
        if odd is not None:
            return f"Model-shaped values of {self.name!r} ({odd}: a derivative?); largest: {', '.join(largest(self))}"
        return f"Model({self.name!r}: {sizes}, {len(self.geometry)} shapes, {len(self.frames.names)} frames)"


def _checked(value, size: int, name: str):
    value = value if hasattr(value, "shape") else np.asarray(value, float)
    if value.ndim == 0 or value.shape[-1] != size:
        raise ValueError(f"{name} must have {size} entries in its last axis, got shape {tuple(value.shape)}")
    return value
