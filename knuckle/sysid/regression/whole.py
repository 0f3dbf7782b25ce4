"""A robot as one vector: one compiled program then simulates any robot of the same structure."""

from __future__ import annotations

from operator import attrgetter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from knuckle.model.model import Model
from knuckle.neural.joint_friction import JointFriction
from knuckle.sysid.families import Family
from knuckle.sysid.parameters import Parameter, Parameters
from knuckle.taps import Blueprint

ARRAYS = (
    *("inertia.mass", "inertia.com", "inertia.moment"),
    *("armature", "damping", "friction", "friction_speed", "actuators.bias"),
)


def whole_parameters(model: Model) -> Parameters:
    """Every array that a torque regression changes, free as a whole; 0 is the model itself. No prior, no bounds."""
    made, at = [], 0
    for name in ARRAYS:
        start = np.array(attrgetter(name)(model), float)
        family = Family("world", attrgetter(name), "", "any", np.inf, 1.0)
        free = slice(at, at + start.size)
        unbounded = np.full(start.size, np.inf)
        bounds = -unbounded, unbounded, unbounded, np.zeros(start.size)
        made.append(Parameter(name, family, ..., start, 1.0, free, *bounds, ("",) * start.size))
        at = free.stop
    return Parameters(p for p in made if p.start.size)


def whole_numbers(parameters: Parameters, model: Model, blueprint: Blueprint | None) -> np.ndarray:
    """The vector of a robot: its arrays less those of the described one, then what the law of friction holds."""
    parts = [np.ravel(np.asarray(p.family.find(model), float) - p.start) for p in parameters]
    weights = [] if blueprint is None else [np.asarray(ravel_pytree(blueprint.weights)[0])]
    return np.concatenate([*parts, *weights])


def without_effect(blueprint: Blueprint | None, laws: bool = True) -> Blueprint | None:
    """The same networks, all weights 0, and laws of friction without friction: what a description has beside it.

    laws: whether those of friction lose their effect too.
    """
    if blueprint is None:
        return None

    def silent(part):
        law, _ = part
        if not isinstance(law, JointFriction):
            return jax.tree.map(jnp.zeros_like, part)
        zero = jnp.zeros_like(law.coulomb)
        none = eqx.tree_at(lambda m: (m.coulomb, m.load, m.stribeck, m.constant), law, (zero,) * 4)
        return (none, None) if laws else part

    return blueprint.with_weights({key: silent(part) for key, part in blueprint.weights.items()})
