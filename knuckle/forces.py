"""Forces at the joints: what actuators make of the control, springs, damping and friction."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.dynamics import aba
from knuckle.model.joints import difference, neutral
from knuckle.model.model import Model
from knuckle.prescribed import JointMotion
from knuckle.taps import PLAIN, Taps
from knuckle.tree import rows, sum_rows

Vec = Float[Array | np.ndarray, " n"]


def actuator_force(model: Model, q: Vec, qd: Vec, control: Vec) -> Vec:
    """Joint forces of all actuators at a control, clipped to the actuators' and the joints' limits."""
    if model.nu == 0:
        return jnp.zeros_like(qd)
    actuators = model.actuators
    force = jnp.clip(_force_at(model, q, qd, control), actuators.force_lower, actuators.force_upper)
    return jnp.clip(_to_joints(model, actuators.gear, force), -model.effort, model.effort)


def _force_at(model: Model, q: Vec, qd: Vec, control: Vec) -> Vec:
    """Forces of the actuators at a control within its limits."""
    actuators = model.actuators
    return force_without_limits(model, q, qd, jnp.clip(control, actuators.control_lower, actuators.control_upper))


def force_without_limits(model: Model, q: Vec, qd: Vec, control: Vec) -> Vec:
    """Forces of the actuators as if neither they nor their controls had limits."""
    actuators = model.actuators
    bias = jnp.asarray(actuators.bias)
    length, velocity = _along_actuators(model, _displacement(model, q)), _along_actuators(model, qd)
    return actuators.gain * control + bias[:, 0] + bias[:, 1] * length + bias[:, 2] * velocity


def _along_actuators(model: Model, joint: Vec) -> Vec:
    actuators = model.actuators
    picked = actuators.gear * rows(joint, np.array(actuators.entry_dof, int))
    return sum_rows(picked, np.array(actuators.entry_actuator, int), model.nu)


def _to_joints(model: Model, gear: Vec, force: Vec) -> Vec:
    actuators = model.actuators
    spread = gear * rows(force, np.array(actuators.entry_actuator, int))
    return sum_rows(spread, np.array(actuators.entry_dof, int), model.nv)


def _displacement(model: Model, q: Vec) -> Vec:
    """Coordinates as a tangent vector from zero; a free joint has no length (as in MuJoCo)."""
    topology = model.topology
    moved = difference(model, jnp.asarray(neutral(topology), q.dtype), q)
    is_free = np.isin(np.arange(model.nv), topology.v_index("free"))
    return jnp.where(is_free, jnp.zeros_like(moved), moved) if is_free.any() else moved


def passive_force(model: Model, q: Vec, qd: Vec) -> Vec:
    """Springs, damping and smooth Coulomb friction, friction tanh(qd / friction_speed), of the joints."""
    stretch = difference(model, jnp.asarray(model.rest), q)
    return -model.stiffness * stretch - model.damping * qd - model.friction * jnp.tanh(qd / model.friction_speed)


def stiffness_and_damping(model: Model, q: Vec, qd: Vec, control: Vec) -> tuple[Vec, Vec]:
    """How joint forces weaken with position and with velocity: springs, damping, servo gains, friction over speed.

    Friction counts as the damping that gives the same force at this speed; servos at their force limit or their joint's
    effort count nothing, nor do gains that push away. A gain of zero, a motor's, has the slope of a servo's that pulls.
    """
    x = qd / model.friction_speed
    flat = jnp.abs(x) < 1e-4
    slope = jnp.where(flat, 1 - x * x / 3, jnp.tanh(x) / jnp.where(flat, jnp.ones_like(x), x))
    stiffness = jnp.asarray(model.stiffness)
    damping = model.damping + model.friction / model.friction_speed * slope
    if model.nu == 0:
        return stiffness, damping
    actuators = model.actuators
    force = _force_at(model, q, qd, control)
    able = (actuators.force_lower < force) & (force < actuators.force_upper)
    total = _to_joints(model, actuators.gear, jnp.clip(force, actuators.force_lower, actuators.force_upper))
    position, velocity = (
        _to_joints(model, actuators.gear**2, jnp.where(able, -actuators.bias[:, k], jnp.zeros_like(force)))
        for k in (1, 2)
    )
    unable, zero = jnp.abs(total) >= model.effort, jnp.zeros_like(total)
    servo_stiffness, servo_damping = (jnp.where(unable | (x < 0), zero, x) for x in (position, velocity))
    return stiffness + servo_stiffness, damping + servo_damping


class Loads(eqx.Module):
    """What acts on a mechanism during a step: the control, wrenches on its links (see `rnea`), forces on its joints.

    Forces pass the taps of the step; impulses of contact, which are added later, do not.
    """

    control: Float[Array, " nu"]
    wrench: Float[Array, "link 6"] | None = None
    force: Float[Array, " nv"] | None = None
    taps: Taps = eqx.field(static=True, default=PLAIN)
    joints: JointMotion | None = None  # that follow paths
    prescribed: Float[Array, " nv"] | None = None  # their accelerations over the step

    def with_impulses(self, wrench, momentum, dt) -> Loads:
        """These loads and impulses on links and joints, spread over dt."""
        if wrench is None and momentum is None:
            return self
        loads = _sum(self.wrench, wrench, dt), _sum(self.force, momentum, dt), self.taps.again()
        return Loads(self.control, *loads, self.joints, self.prescribed)

    def at_stage(self, number: int, q: Vec, qd: Vec) -> tuple[Loads, Vec, Vec]:
        """These loads, q and qd with prescribed joints at the start (0), the middle (1) or the end (2) of the step."""
        if self.joints is None:
            return self, q, qd
        q, qd, qdd = self.joints.at_stage(number, q, qd)
        return Loads(self.control, self.wrench, self.force, self.taps, self.joints, qdd), q, qd

    def joint_force(self, model: Model, q: Vec, qd: Vec) -> Vec:
        actuator = self.taps("actuator/force", actuator_force(model, q, qd, self.control))
        passive = self.taps("joint/passive_force", passive_force(model, q, qd))
        force = self.taps("joint/force", actuator + passive)
        return force if self.force is None else force + self.force

    def acceleration(self, model: Model, q: Vec, qd: Vec) -> Vec:
        qdd = aba(model, q, qd, self.joint_force(model, q, qd), self.wrench, self.prescribed)
        return self._kept(model, self.taps.shifted("joint/acceleration", qdd))

    def _kept(self, model: Model, qdd: Vec) -> Vec:
        """Accelerations after networks, which do not act on joints that follow paths."""
        return qdd if self.prescribed is None else jnp.where(model.topology.is_prescribed, self.prescribed, qdd)

    def implicit_acceleration(self, model: Model, q: Vec, qd: Vec, dt) -> tuple[Vec, Model]:
        """Mean acceleration over dt with springs, damping and servos taken at its end (linearly implicit).

        (M + dt D + dt^2 K) qdd = force - bias - dt K qd: diagonal terms, so they stand where armature does. Also
        returns the model with that armature. Networks that only take energy count with a diagonal that exceeds their D.
        """
        stiffness, damping = stiffness_and_damping(model, q, qd, self.control)
        force = self.joint_force(model, q, qd)
        learned = self.taps.damping()
        damping = damping if learned is None else damping + learned
        heavier = eqx.tree_at(lambda m: m.armature, model, model.armature + dt * damping + dt**2 * stiffness)
        qdd = aba(heavier, q, qd, force - dt * stiffness * qd, self.wrench, self.prescribed)
        return self._kept(model, self.taps.shifted("joint/acceleration", qdd)), heavier


def _sum(load, impulse, dt):
    if impulse is None:
        return load
    return impulse / dt if load is None else load + impulse / dt
