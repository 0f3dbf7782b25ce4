"""Spatial vectors [angular; linear], rotations and quaternions wxyz (Featherstone, RBDA, chapter 2).

Leading axes are batch axes everywhere. Cross products are contractions with constant tensors: few operations to trace,
and the zeros vanish in native code.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

AnyArray = Array | np.ndarray
Vec3 = Float[Array, "*batch 3"]
Vec6 = Float[Array, "*batch 6"]
Mat3 = Float[Array, "*batch 3 3"]
Mat6 = Float[Array, "*batch 6 6"]
Quat = Float[Array, "*batch 4"]

SMALL_ANGLE_SQUARED = 1e-4  # below it, series whose next term is under 1e-16


def _levi_civita() -> np.ndarray:
    tensor = np.zeros((3, 3, 3))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        tensor[i, j, k], tensor[i, k, j] = 1.0, -1.0
    return tensor


def _motion_cross_tensor() -> np.ndarray:
    tensor = np.zeros((6, 6, 6))  # result, left, right
    tensor[:3, :3, :3] = tensor[3:, :3, 3:] = tensor[3:, 3:, :3] = _levi_civita()
    return tensor


SKEW = -_levi_civita()  # skew(v)[i, j] = SKEW[k, i, j] v[k]
MOTION_CROSS = _motion_cross_tensor().transpose(1, 0, 2)  # crm(v)[i, j] = MOTION_CROSS[k, i, j] v[k]


def contract(vector: Float[Array, "*batch n"], tensor: np.ndarray) -> Float[Array, "*batch i j"]:
    """Sum over k of vector[k] tensor[k, i, j]."""
    flat = jnp.asarray(tensor.reshape(tensor.shape[0], -1), vector.dtype)
    product = jax.lax.dot_general(
        vector, flat, (((vector.ndim - 1,), (0,)), ((), ())), precision=jax.lax.Precision.HIGHEST
    )
    return product.reshape(*vector.shape[:-1], *tensor.shape[1:])


def apply(matrix: Float[Array, "*batch i j"], vector: Float[AnyArray, "*batch j"]) -> Float[Array, "*batch i"]:
    """Matrix times vector."""
    return jnp.sum(matrix * vector[..., None, :], axis=-1)


def apply_transpose(
    matrix: Float[Array, "*batch i j"], vector: Float[AnyArray, "*batch i"]
) -> Float[Array, "*batch j"]:
    """Transposed matrix times vector."""
    return jnp.sum(matrix * vector[..., :, None], axis=-2)


def compose(left: Float[Array, "*batch i j"], right: Float[Array, "*batch j k"]) -> Float[Array, "*batch i k"]:
    """Matrix times matrix."""
    return jnp.sum(left[..., :, :, None] * right[..., None, :, :], axis=-2)


def dot(a: Float[Array, "*batch n"], b: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    return jnp.sum(a * b, axis=-1)


def outer(a: Float[Array, "*batch i"], b: Float[Array, "*batch j"]) -> Float[Array, "*batch i j"]:
    return a[..., :, None] * b[..., None, :]


def skew(v: Vec3) -> Mat3:
    """The matrix of v x."""
    return contract(v, SKEW)


def cross(a: Vec3, b: Vec3) -> Vec3:
    return apply(skew(a), b)


def cross_motion(v: Vec6, m: Vec6) -> Vec6:
    """v x m of a motion vector (RBDA 2.31)."""
    return apply(contract(v, MOTION_CROSS), m)


def cross_force(v: Vec6, f: Vec6) -> Vec6:
    """v x* f of a force vector (RBDA 2.32): minus the transpose of v x."""
    return -apply_transpose(contract(v, MOTION_CROSS), f)


def normalize(v: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
    """The unit vector; zero stays zero, with a zero gradient."""
    squared = dot(v, v)[..., None]
    empty = squared == 0
    return jnp.where(empty, jnp.zeros_like(v), v * jax.lax.rsqrt(jnp.where(empty, jnp.ones_like(squared), squared)))


# Rotations


def _quaternion_tensors() -> np.ndarray:
    """Q[a, b, i, j] with R = 1 + 2/|q|^2 sum_ab q_a q_b Q_ab."""
    tensor = np.zeros((4, 4, 3, 3))
    eye, levi = np.eye(3), _levi_civita()
    for a in range(3):
        tensor[0, a + 1] = -levi[:, :, a]  # w [v]x, with [v]x_ij = -levi_ijk v_k
        for b in range(3):  # [v]x [v]x = v v^T - |v|^2 1
            tensor[a + 1, b + 1] += np.outer(eye[a], eye[b]) - (a == b) * eye
    return tensor


_QUATERNION = _quaternion_tensors().reshape(16, 3, 3)


def rotation_of_quaternion(q: Quat) -> Mat3:
    """Rotation matrix of a quaternion of any length but zero; no square root, so smooth in q."""
    scale = 2 / dot(q, q)
    products = outer(q, q).reshape(*q.shape[:-1], 16)
    identity = jnp.broadcast_to(jnp.eye(3, dtype=q.dtype), (*q.shape[:-1], 3, 3))
    return identity + scale[..., None, None] * contract(products, _QUATERNION)


def rotation_about(axis: Vec3, angle: Float[Array, "*batch"]) -> Mat3:
    """Rotation matrix about a unit axis (Rodrigues)."""
    cosine, sine = jnp.cos(angle)[..., None, None], jnp.sin(angle)[..., None, None]
    identity = jnp.broadcast_to(jnp.eye(3, dtype=axis.dtype), (*axis.shape[:-1], 3, 3))
    return cosine * identity + sine * skew(axis) + (1 - cosine) * outer(axis, axis)


def _product_tensor() -> np.ndarray:
    tensor = np.zeros((4, 4, 4))  # left, result, right
    tensor[0] = np.eye(4)
    for i in range(3):
        tensor[i + 1, 0, i + 1] = -1.0
        tensor[i + 1, i + 1, 0] = 1.0
        tensor[i + 1, 1:, 1:] = SKEW[i]
    return tensor


_PRODUCT = _product_tensor()


def quaternion_product(a: Quat, b: Quat) -> Quat:
    """a b: the rotation b, then a."""
    return apply(contract(a, _PRODUCT), b)


def quaternion_conjugate(q: Quat) -> Quat:
    return jnp.concatenate([q[..., :1], -q[..., 1:]], axis=-1)


def _products_tensor() -> np.ndarray:
    """P[i, j, a, b] with 4 q_a q_b = (a == b) + sum_ij R_ij P_ijab for the unit quaternion q of R."""
    tensor, eye, levi = np.zeros((3, 3, 4, 4)), np.eye(3), _levi_civita()
    tensor[:, :, 0, 0] = eye
    for a in range(3):
        tensor[:, :, 0, a + 1] = tensor[:, :, a + 1, 0] = -levi[:, :, a]
        for b in range(3):
            tensor[:, :, a + 1, b + 1] = np.outer(eye[a], eye[b]) + np.outer(eye[b], eye[a]) - (a == b) * eye
    return tensor


_PRODUCTS = _products_tensor().reshape(9, 4, 4)


def quaternion_of_rotation(R: Mat3) -> Quat:
    """Unit quaternion of a rotation matrix, from the row of q q^T with the largest entry (Shepperd 1978)."""
    products = jnp.eye(4, dtype=R.dtype) + contract(R.reshape(*R.shape[:-2], 9), _PRODUCTS)
    largest = jnp.argmax(jnp.diagonal(products, axis1=-2, axis2=-1), axis=-1)
    return normalize(jnp.take_along_axis(products, largest[..., None, None], axis=-2)[..., 0, :])


def quaternion_exp(u: Vec3) -> Quat:
    """Unit quaternion of a rotation vector [rad]; smooth at zero."""
    squared = dot(u, u)
    small = squared < SMALL_ANGLE_SQUARED
    angle = jnp.sqrt(jnp.where(small, jnp.ones_like(squared), squared))
    cosine = jnp.where(small, 1 - squared / 8 + squared**2 / 384, jnp.cos(angle / 2))
    sine_over_angle = jnp.where(small, 0.5 - squared / 48 + squared**2 / 3840, jnp.sin(angle / 2) / angle)
    return jnp.concatenate([cosine[..., None], sine_over_angle[..., None] * u], axis=-1)


def quaternion_log(q: Quat) -> Vec3:
    """Rotation vector [rad] of a unit quaternion, at most pi long; smooth at the identity."""
    w, v = q[..., 0], q[..., 1:]
    squared = dot(v, v)
    small = squared < 1e-2 * SMALL_ANGLE_SQUARED
    sign = jnp.where(w < 0, -jnp.ones_like(w), jnp.ones_like(w))
    length = jnp.sqrt(jnp.where(small, jnp.ones_like(squared), squared))
    w_safe = jnp.where(small, w, jnp.ones_like(w))
    ratio = squared / w_safe**2
    series = 2 / w_safe * (1 - ratio / 3 + ratio**2 / 5)
    closed = sign * 2 * jnp.arctan2(length, jnp.abs(w)) / length
    return jnp.where(small, series, closed)[..., None] * v


# Inertia


def _moment_tensor() -> np.ndarray:
    """Symmetric 3x3 matrix of (xx, yy, zz, xy, xz, yz)."""
    tensor = np.zeros((6, 3, 3))
    for k, (i, j) in enumerate(((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))):
        tensor[k, i, j] = tensor[k, j, i] = 1.0
    return tensor


MOMENT = _moment_tensor()


def _inertia_tensor() -> np.ndarray:
    """6x6 matrix of (mass, first moment, moments about the origin), RBDA 2.63."""
    tensor = np.zeros((10, 6, 6))
    tensor[0, 3:, 3:] = np.eye(3)
    for k in range(3):
        tensor[k + 1, :3, 3:], tensor[k + 1, 3:, :3] = SKEW[k], -SKEW[k]
    tensor[4:, :3, :3] = MOMENT
    return tensor


INERTIA = _inertia_tensor()


def upper_of(matrix: Mat3) -> Vec6:
    """(xx, yy, zz, xy, xz, yz) of a symmetric matrix."""
    flat = matrix.reshape(*matrix.shape[:-2], 9)
    return jnp.stack([flat[..., k] for k in (0, 4, 8, 1, 2, 5)], axis=-1)


def inertia_matrix(mass: Float[Array, "*batch"], com: Vec3, moment: Vec6, R: Mat3, p: Vec3) -> Mat6:
    """Spatial inertia, in the frame where the body stands at (R, p), of central moments in body axes."""
    c = p + apply(R, com)
    rotated = upper_of(compose(compose(R, contract(moment, MOMENT)), jnp.swapaxes(R, -1, -2)))
    identity = jnp.broadcast_to(jnp.eye(3, dtype=c.dtype), R.shape)
    shift = upper_of(dot(c, c)[..., None, None] * identity - outer(c, c))
    first = mass[..., None] * c
    return contract(jnp.concatenate([mass[..., None], first, rotated + mass[..., None] * shift], axis=-1), INERTIA)
