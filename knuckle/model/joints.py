"""What each kind of joint does: its motion, its axes, and steps on its manifold.

All joints of a kind are treated together. The state is MuJoCo's: a quaternion is wxyz, a ball joint's velocity is that
of the child in its own frame, a free joint has linear velocity in the parent and angular velocity in the child.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.model.model import Model
from knuckle.model.topology import Topology
from knuckle.tree import rows

Vec = Float[Array | np.ndarray, " n"]
Pose = tuple[Float[Array, "link 3 3"], Float[Array, "link 3"]]  # rotation, position


def plane_axes(normal: Float[Array, "*batch 3"]) -> tuple[Float[Array, "*batch 3"], Float[Array, "*batch 3"]]:
    """Two unit vectors across a unit normal, right-handed; x and y for z (Duff et al. 2017)."""
    x, y, z = normal[..., 0], normal[..., 1], normal[..., 2]
    sign = jnp.where(z < 0, -jnp.ones_like(z), jnp.ones_like(z))
    a = -1 / (sign + z)
    b = x * y * a
    first = jnp.stack([1 + sign * x * x * a, sign * b, -sign * x], axis=-1)
    second = jnp.stack([b, sign + y * y * a, -y], axis=-1)
    return first, second


def _gather_by_kind(topology: Topology, parts: dict, index) -> Array:
    """Arrays computed per kind, put in order; `index(kind)` says where a kind's rows belong."""
    present = [k for k in parts if len(topology.of_kind(k))]
    order = np.argsort(np.concatenate([np.ravel(index(k)) for k in present]))
    joined = jnp.concatenate([parts[k] for k in present]) if len(present) > 1 else parts[present[0]]
    return rows(joined, order)


def joint_poses(model: Model, q: Vec) -> Pose:
    """Pose of each link in its joint's frame."""
    topology = model.topology
    rotation, position = {}, {}
    for kind in dict.fromkeys(topology.kind):
        links = topology.of_kind(kind)
        at = rows(q, np.ravel(topology.q_index(kind))).reshape(len(links), -1)
        moved = at - rows(model.reference, np.ravel(topology.q_index(kind))).reshape(at.shape)
        axis, anchor = rows(model.axis, links), rows(model.anchor, links)
        rotation[kind], position[kind] = _POSES[kind](at, moved, axis, anchor)
    return tuple(_gather_by_kind(topology, parts, topology.of_kind) for parts in (rotation, position))  # type: ignore[return-value]


def _identity(count: int, like: Array) -> Array:
    return jnp.broadcast_to(jnp.eye(3, dtype=like.dtype), (count, 3, 3))


def _revolute_pose(at, moved, axis, anchor):
    R = spatial.rotation_about(spatial.normalize(axis), moved[:, 0])
    return R, anchor - spatial.apply(R, anchor)


def _prismatic_pose(at, moved, axis, anchor):
    return _identity(len(at), at), spatial.normalize(axis) * moved


def _planar_pose(at, moved, axis, anchor):
    normal = spatial.normalize(axis)
    first, second = plane_axes(normal)
    return spatial.rotation_about(normal, moved[:, 2]), first * moved[:, :1] + second * moved[:, 1:2]


def _ball_pose(at, moved, axis, anchor):
    R = spatial.rotation_of_quaternion(at)
    return R, anchor - spatial.apply(R, anchor)


def _free_pose(at, moved, axis, anchor):
    return spatial.rotation_of_quaternion(at[:, 3:]), at[:, :3]


_POSES = {
    "revolute": _revolute_pose,
    "prismatic": _prismatic_pose,
    "planar": _planar_pose,
    "ball": _ball_pose,
    "free": _free_pose,
}


def motion_axes(model: Model, R_joint: Float[Array, "link 3 3"]) -> Float[Array, "dof 6"]:
    """Motion [angular; linear] of each link, in its own frame, per unit speed of each degree of freedom."""
    topology = model.topology
    parts = {}
    for kind in dict.fromkeys(topology.kind):
        links = topology.of_kind(kind)
        R, axis, anchor = rows(R_joint, links), rows(model.axis, links), rows(model.anchor, links)
        angular, linear = _AXES[kind](R, axis, anchor)
        parts[kind] = jnp.concatenate([angular, linear], axis=-1).reshape(-1, 6)
    return _gather_by_kind(topology, parts, topology.v_index)


def _revolute_axes(R, axis, anchor):
    axis = spatial.normalize(axis)
    return axis[:, None], spatial.cross(anchor, axis)[:, None]


def _prismatic_axes(R, axis, anchor):
    axis = spatial.normalize(axis)[:, None]
    return jnp.zeros_like(axis), axis


def _planar_axes(R, axis, anchor):
    normal = spatial.normalize(axis)
    along = [spatial.apply_transpose(R, direction) for direction in plane_axes(normal)]
    zero = jnp.zeros_like(normal)
    return jnp.stack([zero, zero, normal], axis=1), jnp.stack([*along, zero], axis=1)


def _ball_axes(R, axis, anchor):
    turn = _identity(len(R), R)
    return turn, jnp.swapaxes(spatial.skew(anchor), 1, 2)  # row k: anchor x e_k


def _free_axes(R, axis, anchor):
    turn, zero = _identity(len(R), R), jnp.zeros_like(R)
    return jnp.concatenate([zero, turn], axis=1), jnp.concatenate([R, zero], axis=1)  # row k of R: R^T e_k


_AXES = {
    "revolute": _revolute_axes,
    "prismatic": _prismatic_axes,
    "planar": _planar_axes,
    "ball": _ball_axes,
    "free": _free_axes,
}


# Steps on the manifold of coordinates


def retract(model: Model, q: Vec, step: Vec) -> Vec:
    """The coordinates reached from q along a tangent vector of nv entries (quaternions stay of unit length)."""
    return _on_manifold(model.topology, q, step, _retract_plain, _retract_quaternion, "v_index", "q_index")


def difference(model: Model, start: Vec, end: Vec) -> Vec:
    """The tangent vector of nv entries that leads from `start` to `end`: retract(start, difference) = end."""
    return _on_manifold(model.topology, start, end, _difference_plain, _difference_quaternion, "q_index", "v_index")


def _retract_plain(q, step):
    return q + step


def _retract_quaternion(quaternion, step):
    return spatial.normalize(spatial.quaternion_product(quaternion, spatial.quaternion_exp(step)))


def _difference_plain(start, end):
    return end - start


def _difference_quaternion(start, end):
    start, end = spatial.normalize(start), spatial.normalize(end)
    return spatial.quaternion_log(spatial.quaternion_product(spatial.quaternion_conjugate(start), end))


def _on_manifold(topology: Topology, left: Vec, right: Vec, plain, quaternion, right_in: str, result_in: str) -> Vec:
    """A binary operation on coordinates: `plain` on vectors, `quaternion` on the rotations of ball and free joints.

    `right_in` and `result_in` name the index, q_index or v_index, of the right operand and of the result.
    """
    if not set(topology.kind) & {"ball", "free"}:
        return plain(left, right)
    parts, places = [], []
    for kind in dict.fromkeys(topology.kind):
        at = topology.q_index(kind)
        by, to = getattr(topology, right_in)(kind), getattr(topology, result_in)(kind)
        plain_part = {"ball": 0, "free": 3}.get(kind, at.shape[1])
        if plain_part:
            pick = np.ravel(at[:, :plain_part]), np.ravel(by[:, :plain_part])
            parts.append(plain(rows(left, pick[0]), rows(right, pick[1])))
            places.append(np.ravel(to[:, :plain_part]))
        if plain_part < at.shape[1]:
            turn = rows(left, np.ravel(at[:, plain_part:])).reshape(-1, 4)
            other = rows(right, np.ravel(by[:, plain_part:])).reshape(len(at), -1)
            parts.append(quaternion(turn, other).reshape(-1))
            places.append(np.ravel(to[:, plain_part:]))
    return rows(jnp.concatenate(parts), np.argsort(np.concatenate(places)))


def tangent_rate(model: Model, step: Vec, qd: Vec) -> Vec:
    """d/dt of the tangent vector u of q = retract(q0, u) that moves at speed qd (dexp^-1, to third order in u)."""
    topology = model.topology
    index = [topology.v_index(kind)[:, -3:] for kind in ("ball", "free") if len(topology.of_kind(kind))]
    if not index:
        return qd
    turning = np.concatenate(index)
    flat = np.ravel(turning)
    u, w = rows(step, flat).reshape(-1, 3), rows(qd, flat).reshape(-1, 3)
    uw = spatial.cross(u, w)
    correction = 0.5 * uw + spatial.cross(u, uw) / 12
    scatter = np.zeros((topology.nv, len(flat)))
    scatter[flat, np.arange(len(flat))] = 1.0
    return qd + jnp.asarray(scatter, qd.dtype) @ correction.reshape(-1)


def neutral(topology: Topology) -> np.ndarray:
    """Coordinates zero, quaternions identity."""
    q = np.zeros(topology.nq)
    for kind in ("ball", "free"):
        q[topology.q_index(kind)[:, -4]] = 1.0
    return q
