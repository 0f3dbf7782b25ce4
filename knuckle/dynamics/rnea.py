"""Inverse dynamics: the recursive Newton-Euler algorithm (RBDA, Table 5.1), in each tree's root frame."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.kinematics import Articulation, articulation, link_velocities
from knuckle.model.model import Model
from knuckle.tree import inward_sum, outward_sum, rows, sum_rows

Vec = Float[Array | np.ndarray, " n"]
Wrench = Float[Array, "link 6"]


def rnea(model: Model, q: Vec, qd: Vec, qdd: Vec, wrench: Wrench | None = None) -> Vec:
    """Joint forces that make the accelerations qdd: M qdd + bias.

    `wrench` is what acts on each link from outside: [torque; force] in world axes about the link's origin [N m; N].
    """
    return inverse_dynamics(model, articulation(model, q), qd, qdd, wrench)


def bias_force(model: Model, q: Vec, qd: Vec, wrench: Wrench | None = None) -> Vec:
    """Coriolis, centrifugal and gravity forces, less external ones: the joint forces at zero acceleration."""
    return rnea(model, q, qd, jnp.zeros_like(qd), wrench)


def gravity_force(model: Model, q: Vec) -> Vec:
    """Joint forces that hold the mechanism still against gravity."""
    zero = jnp.zeros(model.nv, q.dtype)
    return rnea(model, q, zero, zero)


def inverse_dynamics(model: Model, body: Articulation, qd: Vec, qdd: Vec, wrench: Wrench | None) -> Vec:
    """`rnea` on axes and inertias that are known already."""
    topology, S, I = model.topology, body.axes, body.inertia
    v = link_velocities(model, S, qd)
    S_rate = spatial.cross_motion(carrier_velocities(model, v), S)
    joint = sum_rows(S * qdd[:, None] + S_rate * qd[:, None], topology.dof_link, len(topology.parent))
    a = outward_sum(topology.links, joint, _upward_acceleration(model, body))
    f = spatial.apply(I, a) + spatial.cross_force(v, spatial.apply(I, v))
    if wrench is not None:
        f = f - wrench_in_root(model, body, wrench)
    f = inward_sum(topology.links, f)
    return spatial.dot(S, rows(f, topology.dof_link)) + model.armature * qdd


def carrier_velocities(model: Model, v: Float[Array, "link 6"]) -> Float[Array, "dof 6"]:
    """Velocity of the link that each degree of freedom's axis is fixed in: its own, or its parent's."""
    topology = model.topology
    follows, links = topology.dof_follows_parent, topology.dof_link
    own = rows(v, links)
    if not follows.any():
        return own
    parents = np.array(topology.parent)[links]
    above = jnp.where((parents >= 0)[:, None], rows(v, np.maximum(parents, 0)), jnp.zeros_like(own))
    return jnp.where(follows[:, None], above, own)


def _upward_acceleration(model: Model, body: Articulation) -> Float[Array, "root 6"]:
    """Minus gravity, seen from each root: as if the world accelerated upwards."""
    R = body.root.rotation
    up = -spatial.apply_transpose(R, jnp.broadcast_to(jnp.asarray(model.gravity), (len(R), 3)))
    return jnp.concatenate([jnp.zeros_like(up), up], axis=1)


def wrench_in_root(model: Model, body: Articulation, wrench: Wrench) -> Wrench:
    """Wrenches about the links' origins in world axes, taken to their roots' frames."""
    R = rows(body.root.rotation, model.topology.links.root_of)
    torque, force = (spatial.apply_transpose(R, part) for part in (wrench[:, :3], wrench[:, 3:]))
    return jnp.concatenate([torque + spatial.cross(body.in_root.position, force), force], axis=1)
