"""The fitted robot: what a `Model` can hold there, and the rest as a law of friction in a blueprint."""

from __future__ import annotations

import functools
import operator

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from knuckle.model.model import Model
from knuckle.neural.joint_friction import JointFriction as FrictionLaw
from knuckle.sysid.base_parameters import COLUMNS, ROWS
from knuckle.sysid.regression.design import Layout
from knuckle.sysid.regression.friction import LOAD, STRIBECK
from knuckle.taps import Augment, Blueprint


def with_inertial(model: Model, pi: np.ndarray) -> Model:
    """The model with inertial parameters (link, 10) about the links' origins."""
    mass, first, second = pi[:, 0], pi[:, 1:4], pi[:, 4:]
    com = np.where(mass[:, None] > 0, first / np.where(mass > 0, mass, 1.0)[:, None], np.asarray(model.inertia.com))
    away = np.sum(com**2, axis=1)[:, None, None] * np.eye(3) - com[:, :, None] * com[:, None, :]
    moment = second - mass[:, None] * away[:, ROWS, COLUMNS]
    return eqx.tree_at(lambda m: (m.inertia.mass, m.inertia.com, m.inertia.moment), model, (mass, com, moment))


def fitted_robot(model: Model, layout: Layout, theta: np.ndarray) -> tuple[Model, Blueprint | None]:
    """The model with fitted parameters, and a blueprint of the friction that has no place there and of networks."""
    found = with_inertial(model, theta[: layout.inertial].reshape(-1, 10))
    armature, damping, friction, speed = (
        np.array(x, float) for x in (model.armature, model.damping, model.friction, model.friction_speed)
    )
    bias, law = np.array(model.actuators.bias, float), _Law(model)
    for joint, (dof, terms) in enumerate(zip(layout.joints, layout.friction, strict=True)):

        def value(column: str, joint: int = joint) -> float:
            return layout.value(theta, joint, column)

        armature[dof], damping[dof], speed[dof] = value("armature"), value("damping"), terms.width
        friction[dof] = value("friction") if terms.is_plain else 0.0
        motor = own_motor(model, dof)
        constant = -value("offset")
        if motor is not None:
            bias[motor[0], 0] += constant / motor[1]
            constant = 0.0
        if not terms.is_plain or constant:
            law.add(dof, terms, value, constant)
    found = eqx.tree_at(
        lambda m: (m.armature, m.damping, m.friction, m.friction_speed, m.actuators.bias),
        found,
        (armature, damping, friction, speed, bias),
    )
    parts = [part for part in (law.blueprint(), layout.networks) if part is not None]
    return found, functools.reduce(operator.or_, parts) if parts else None


def own_motor(model: Model, dof: int) -> tuple[int, float] | None:
    """The one motor that drives a degree of freedom and nothing else, and its gear."""
    acts = model.actuators
    entries = [k for k, d in enumerate(acts.entry_dof) if d == dof]
    if len(entries) != 1:
        return None
    motor, gear = acts.entry_actuator[entries[0]], float(np.asarray(acts.gear)[entries[0]])
    alone = sum(a == motor for a in acts.entry_actuator) == 1
    return (motor, gear) if alone and gear and not np.asarray(acts.bias)[motor, 1:].any() else None


class _Law:
    """Joints whose friction goes into the blueprint."""

    def __init__(self, model: Model):
        self.model, self.rows = model, []

    def add(self, dof: int, terms, value, constant: float) -> None:
        link = int(self.model.topology.dof_link[dof])
        coordinate = int(self.model.topology.q_start[link]) + dof - int(self.model.topology.v_start[link])
        coulomb = 0.0 if terms.is_plain else value("friction")
        stribeck_speed = 1.0 if terms.stribeck_speed is None else terms.stribeck_speed
        reach = 1.0 if terms.reach is None else terms.reach
        numbers = (coulomb, value(LOAD), value(STRIBECK), stribeck_speed, terms.width, reach, constant)
        self.rows.append((coordinate, dof, terms.reach is not None, numbers))

    def blueprint(self) -> Blueprint | None:
        if not self.rows:
            return None
        coordinates, dofs, sliding, numbers = zip(*self.rows, strict=True)
        law = FrictionLaw(coordinates, dofs, self.model.nq, self.model.nv, sliding)
        columns = tuple(jnp.asarray(np.array(c)) for c in zip(*numbers, strict=True))
        law = eqx.tree_at(
            lambda m: (m.coulomb, m.load, m.stribeck, m.stribeck_speed, m.speed, m.reach, m.constant), law, columns
        )
        return Blueprint({"joint/force": Augment(law, ("q", "qd", "joint/force"))})
