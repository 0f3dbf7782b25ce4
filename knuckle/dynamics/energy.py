"""Energy and momentum of the whole mechanism."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.kinematics import articulation, link_velocities, poses
from knuckle.model.joints import difference
from knuckle.model.model import Model
from knuckle.tree import rows

Vec = Float[Array | np.ndarray, " n"]
Scalar = Float[Array, ""]


def kinetic_energy(model: Model, q: Vec, qd: Vec) -> Scalar:
    """Half v . I v over all links, and the rotors' (armature) [J]."""
    body = articulation(model, q)
    v = link_velocities(model, body.axes, qd)
    return 0.5 * (jnp.sum(v * spatial.apply(body.inertia, v)) + jnp.sum(model.armature * qd * qd))


def potential_energy(model: Model, q: Vec) -> Scalar:
    """Of gravity, zero at the world's origin, and of joint springs [J]."""
    R, p = poses(model, q)
    com = p + spatial.apply(R, jnp.asarray(model.inertia.com))
    weight = jnp.asarray(model.inertia.mass)[:, None] * jnp.asarray(model.gravity)[None, :]
    stretch = difference(model, jnp.asarray(model.rest), q)
    return 0.5 * jnp.sum(model.stiffness * stretch**2) - jnp.sum(weight * com)


def energy(model: Model, q: Vec, qd: Vec) -> Scalar:
    """Kinetic and potential energy together [J]."""
    return kinetic_energy(model, q, qd) + potential_energy(model, q)


def momentum(model: Model, q: Vec, qd: Vec) -> Float[Array, "6"]:
    """[angular; linear] momentum of all links about the world's origin, in world axes [kg m^2/s; kg m/s]."""
    body = articulation(model, q)
    h = spatial.apply(body.inertia, link_velocities(model, body.axes, qd))
    R, p = rows(body.root, model.topology.links.root_of)
    angular, linear = spatial.apply(R, h[:, :3]), spatial.apply(R, h[:, 3:])
    return jnp.concatenate([jnp.sum(angular + spatial.cross(p, linear), axis=0), jnp.sum(linear, axis=0)])
