"""How states and models print: values in short, and whether values can be those of a model at all."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

MOST_VALUES = 12  # that are printed one by one
LARGEST = 5


def brief(value: Any) -> str:
    """Few values as they are; of many, or of traced ones, dtype and shape."""
    if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, Tracer) and np.size(value) <= MOST_VALUES:
        with np.printoptions(precision=4, suppress=True):
            return np.array2string(np.asarray(value), separator=" ", max_line_width=200)
    dtype = getattr(value, "dtype", type(value).__name__)
    return f"{dtype}[{','.join(map(str, getattr(value, 'shape', ())))}]"


def impossible_field(model: Any) -> str | None:
    """What of these values no model can have, such as a negative mass or a quaternion of zeros; None if all can be.

    A gradient by a model is a pytree of the same class; this is how it is told apart when it prints.
    """
    leaves = jax.tree.leaves(model)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return None
    if any(not isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves) or model.rotation is None:
        return "not all are arrays"
    one = {"rotation": np.asarray(model.rotation), "axis": np.asarray(model.axis)}
    for name, rows in one.items():
        if rows.ndim == 2 and not np.all(np.any(rows != 0, axis=1)):
            return f"{name} has a row of zeros"
    if np.any(np.asarray(model.inertia.mass) < 0):
        return "a mass is negative"
    if np.any(np.asarray(model.friction_speed) <= 0):
        return "friction_speed is not positive"
    return None


AXES = {  # of arrays of one model
    "inertia.mass": 1, "inertia.com": 2, "inertia.moment": 2, "position": 2, "rotation": 2, "axis": 2, "anchor": 2,
    "reference": 1, "rest": 1, "stiffness": 1, "damping": 1, "armature": 1, "friction": 1, "friction_speed": 1,
    "lower": 1, "upper": 1, "effort": 1, "speed": 1, "gravity": 1, "actuators.gear": 1, "actuators.gain": 1,
    "actuators.bias": 2, "geometry.position": 2, "geometry.rotation": 2, "geometry.size": 2, "geometry.friction": 2,
}  # fmt: skip
READ = {path: attrgetter(path) for path in AXES}


def check_single(model: Any) -> None:
    """Raise ValueError that names the first leaf with a batch axis, where one model is expected."""
    for path, axes in AXES.items():
        leaf = READ[path](model)
        if getattr(leaf, "ndim", axes) != axes:
            raise ValueError(
                f"expected one model, but model.{path} has shape {tuple(leaf.shape)}: a batch of models goes through "
                "kn.native.vmap or jax.vmap (kn.batch has the in_axes)"
            )


def largest(tree: Any) -> list[str]:
    """The entries of a pytree of arrays that are largest in size, each with its place."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if not isinstance(leaf, (np.ndarray, jax.Array)) or not np.size(leaf):
            continue
        values = np.asarray(leaf, float)
        for at in np.argsort(-np.abs(values), axis=None)[:LARGEST]:
            place = ",".join(map(str, np.unravel_index(at, values.shape)))
            name = jax.tree_util.keystr(path).lstrip(".")
            found.append((abs(values.flat[at]), f"{name}[{place}]={values.flat[at]:.3g}"))
    found.sort(key=lambda item: -item[0] if np.isfinite(item[0]) else -np.inf)
    return [text for size, text in found[:LARGEST] if size != 0]
