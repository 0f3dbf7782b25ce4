"""The regressor of inverse dynamics: joint forces are linear in the inertial parameters of the links."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.dynamics.rnea import carrier_velocities
from knuckle.kinematics import articulation, link_velocities
from knuckle.model.model import Model
from knuckle.tree import outward_sum, sum_rows

Vec = Float[Array | np.ndarray, " n"]
ENTRIES = 10  # per link: mass, first moment x y z, second moments xx yy zz xy xz yz about the link's origin


def regressor(model: Model, q: Vec, qd: Vec, qdd: Vec) -> Float[Array, "dof ten_links"]:
    """Y with rnea(q, qd, qdd) = Y inertial(model) + armature qdd (Atkeson, An, Hollerbach 1986).

    Velocities and accelerations are those of `rnea`; each link's wrench is written as a 6 x 10 matrix in its own frame,
    then projected on the axes of the joints that carry it.
    """
    topology = model.topology
    body = articulation(model, q)
    v = link_velocities(model, body.axes, qd)
    S_rate = spatial.cross_motion(carrier_velocities(model, v), body.axes)
    joint = sum_rows(body.axes * qdd[:, None] + S_rate * qd[:, None], topology.dof_link, len(topology.parent))
    R_root = body.root.rotation
    up = -spatial.apply_transpose(R_root, jnp.broadcast_to(jnp.asarray(model.gravity), (len(R_root), 3)))
    a = outward_sum(topology.links, joint, jnp.concatenate([jnp.zeros_like(up), up], axis=1))
    R, p = body.in_root
    wrench = _link_regressor(_in_link(R, p, v), _in_link(R, p, a))  # (link, 6, 10) in link frames
    links = len(topology.parent)
    axes = _in_link(  # (link, dof, 6): the axis of each degree of freedom as each link sees it
        R[:, None], p[:, None], jnp.broadcast_to(body.axes, (links, *body.axes.shape))
    )
    carried = jnp.asarray(_carried(model), v.dtype)  # (dof, link)
    return (jnp.einsum("ljs,lse->jle", axes, wrench) * carried[:, :, None]).reshape(model.nv, -1)


def _in_link(R, p, motion):
    """Spatial motion of the root's frame in the frame at p with rotation R."""
    angular, linear = motion[..., :3], motion[..., 3:]
    linear = linear + spatial.cross(angular, jnp.broadcast_to(p, angular.shape))
    R = jnp.broadcast_to(R, (*angular.shape[:-1], 3, 3))
    return jnp.concatenate([spatial.apply_transpose(R, angular), spatial.apply_transpose(R, linear)], axis=-1)


def _link_regressor(v, a) -> Float[Array, "link 6 10"]:
    """Wrench [torque; force] of each link about its origin, by (m, h, I): f = m a + alpha x h + w x (w x h), ..."""
    w, alpha = v[:, :3], a[:, :3]
    acceleration = a[:, 3:] + spatial.cross(w, v[:, 3:])  # of the origin, less gravity
    turning = spatial.skew(alpha) + spatial.compose(spatial.skew(w), spatial.skew(w))
    second = _second_moments(alpha) + spatial.compose(spatial.skew(w), _second_moments(w))
    zero = jnp.zeros((len(v), 3, 1), v.dtype)
    torque = jnp.concatenate([zero, -spatial.skew(acceleration), second], axis=2)
    force = jnp.concatenate([acceleration[:, :, None], turning, jnp.zeros((len(v), 3, 6), v.dtype)], axis=2)
    return jnp.concatenate([torque, force], axis=1)


def _second_moments(w) -> Float[Array, "link 3 6"]:
    """The matrix L(w) with I w = L(w) (xx, yy, zz, xy, xz, yz)."""
    x, y, z = w[:, 0], w[:, 1], w[:, 2]
    o = jnp.zeros_like(x)
    rows = ((x, o, o, y, z, o), (o, y, o, x, o, z), (o, o, z, o, x, y))
    return jnp.stack([jnp.stack(row, axis=1) for row in rows], axis=1)


def _carried(model: Model) -> np.ndarray:
    """Whether each degree of freedom (row) carries each link."""
    topology = model.topology
    carried = np.zeros((model.nv, len(topology.parent)), bool)
    for link in range(len(topology.parent)):
        above = link
        while above >= 0:
            carried[topology.dof_link == above, link] = True
            above = topology.parent[above]
    return carried


def carried_columns(model: Model) -> list[np.ndarray]:
    """Inertial parameters on which the force of each degree of freedom depends."""
    return [np.flatnonzero(np.repeat(row, ENTRIES)) for row in _carried(model)]
