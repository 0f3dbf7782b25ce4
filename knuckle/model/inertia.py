"""Rigid bodies: poses, reading and merging inertia, and what no real body can have.

In plain NumPy, but for traced values, which go through `jax.numpy` and are not checked: they have no value yet.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Body = tuple[Any, Any, Any]  # mass, centre of mass, central moments

ROWS = np.array([0, 1, 2, 0, 0, 1])
COLUMNS = np.array([0, 1, 2, 1, 2, 2])


def is_traced(*values: Any) -> bool:
    """Whether a transformation of JAX stands for any of the numbers in these values."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def numbers(value: Any) -> Any:
    """A number, or nested sequences of numbers, as one array of floats: of NumPy, or of JAX if any is traced."""
    if not is_traced(value):
        return np.asarray(value, float)
    if isinstance(value, (tuple, list)):
        return jnp.stack([jnp.asarray(numbers(entry)) for entry in value])
    return jnp.asarray(value, float)


def table(rows: list, *shape: int) -> Any:
    """Rows of numbers as one array of a shape, also where there are none."""
    return numbers(list(rows)).reshape(shape)


def arrays_for(*values: Any):
    """The module of array functions that can take these values."""
    return jnp if is_traced(*values) else np


def moment_of(value, where: str) -> Any:
    """(xx, yy, zz, xy, xz, yz) of three principal moments, six numbers or a symmetric 3x3 matrix."""
    value = numbers(value)
    arrays = arrays_for(value)
    if value.shape == (3,):
        return arrays.concatenate([value, np.zeros(3)])
    if value.shape == (6,):
        return value
    if is_traced(value) and value.shape == (3, 3):
        return value[ROWS, COLUMNS]
    if value.shape == (3, 3) and np.allclose(value, value.T, rtol=1e-9, atol=1e-12 * np.abs(value).max()):
        return value[ROWS, COLUMNS]
    raise ValueError(f"{where}: inertia must be 3 moments, 6 numbers or a symmetric 3x3 matrix, got {value.tolist()}")


def matrix_of(moment) -> Any:
    """The symmetric 3x3 matrix of (xx, yy, zz, xy, xz, yz)."""
    xx, yy, zz, xy, xz, yz = moment
    return arrays_for(moment).array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def rotation_matrix(quaternion) -> Any:
    """Rotation matrix of a quaternion wxyz of any length but zero."""
    quaternion = numbers(quaternion)
    arrays = arrays_for(quaternion)
    w, x, y, z = quaternion / arrays.linalg.norm(quaternion)
    return arrays.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def quaternion_product(a, b) -> Any:
    """a b: the rotation b, then a; quaternions wxyz."""
    arrays = arrays_for(a, b)
    w = a[0] * b[0] - a[1:] @ b[1:]
    return arrays.array([w, *(a[0] * b[1:] + b[0] * a[1:] + arrays.cross(a[1:], b[1:]))])


def finite_vector(value, size: int, where: str) -> Any:
    """The value as `size` finite numbers."""
    array = numbers(value)
    if array.shape != (size,) or not (is_traced(array) or np.all(np.isfinite(array))):
        raise ValueError(f"{where} must be {size} finite numbers, got {value!r}")
    return array


def merge(a: Body, b: Body) -> Body:
    """Mass, centre of mass and central moments of two bodies welded together (parallel axes)."""
    mass = a[0] + b[0]
    if not is_traced(mass) and mass == 0:
        return 0.0, a[1], a[2] + b[2]
    com = (a[0] * a[1] + b[0] * b[1]) / mass
    moments = [moment + about_point(m, c - com) for m, c, moment in (a, b)]
    return mass, com, moments[0] + moments[1]


def about_point(mass, offset) -> Any:
    """Moments of a point mass at `offset`: m (r.r 1 - r r^T)."""
    return (mass * (offset @ offset * np.eye(3) - arrays_for(offset).outer(offset, offset)))[ROWS, COLUMNS]


def moved(body: Body, position, rotation) -> Body:
    """The same body seen from a frame in which its own frame stands at `position`, `rotation`."""
    R = rotation_matrix(rotation)
    mass, com, moment = body
    return mass, numbers(position) + R @ com, (R @ matrix_of(moment) @ R.T)[ROWS, COLUMNS]


def faults(mass, moment) -> list[str]:
    """The rules that this inertia breaks; empty for a real body, a rod, a plate, a point, or nothing at all."""
    if is_traced(mass, moment):
        return []
    if not np.all(np.isfinite([mass, *moment])):
        return [f"mass and inertia must be finite (mass {mass:g}, inertia {moment.tolist()})"]
    if mass < 0:
        return [f"mass must not be negative (it is {mass:g})"]
    principal = np.linalg.eigvalsh(matrix_of(moment))
    slack = 1e-9 * max(1e-300, np.abs(principal).max())
    found = []
    if principal[0] < -slack:
        found.append(f"inertia must be positive definite (smallest principal moment {principal[0]:.6g})")
    elif principal[2] > principal[0] + principal[1] + slack:
        listed = ", ".join(f"{p:.6g}" for p in principal)
        found.append(f"principal moments must obey the triangle inequality (they are {listed})")
    if mass == 0 and principal[2] > slack:
        found.append(f"a link without mass cannot have inertia (largest principal moment {principal[2]:.6g})")
    return found


def repaired(mass: float, moment: np.ndarray) -> np.ndarray:
    """The nearest central moments (Frobenius) of a mass distribution: second moments made non-negative."""
    matrix = matrix_of(np.where(np.isfinite(moment), moment, 0.0))
    if mass <= 0:
        return np.zeros(6)
    second = 0.5 * np.trace(matrix) * np.eye(3) - matrix
    values, vectors = np.linalg.eigh(second)
    second = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return (np.trace(second) * np.eye(3) - second)[ROWS, COLUMNS]


def describe_repair(mass: float, moment: np.ndarray) -> str:
    """What was wrong with an inertia, and what `repaired` makes of it."""
    before, after = (f"({', '.join(f'{m:.6g}' for m in moments)})" for moments in (moment, repaired(mass, moment)))
    return f"repaired: {'; '.join(faults(mass, moment))}: inertia {before} -> {after} (xx, yy, zz, xy, xz, yz)"
