"""The shapes of a model as items in a plane."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import kinematics, spatial
from knuckle.model.model import Model
from knuckle.render.items import Capsule, Disc, Item, Polygon

SIDE = ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0))  # right and up of the picture, in the world: seen along y
DRAWN = ("sphere", "capsule", "box", "cylinder", "polygon")


def model_items(
    model: Model,
    q: Float[Array | np.ndarray, " nq"],
    *,
    right: tuple[float, float, float] = SIDE[0],
    up: tuple[float, float, float] = SIDE[1],
    colors: str = "rgb",
) -> list[Item]:
    """Shapes of a planar model at coordinates q, in the order of the model, seen along the normal of right and up.

    Spheres are discs; boxes and cylinders are rectangles, but cylinders along the line of sight are discs.
    Planes are left out. Boxes must have an axis along the line of sight.

    Args:
        colors: "rgb" as the shapes have them, or "grey", their mean.

    Raises:
        ValueError: names a shape that has no outline here.
    """
    if colors not in ("rgb", "grey"):
        raise ValueError(f"model_items: colors must be 'rgb' or 'grey', got {colors!r}")
    geometry = model.geometry
    world = kinematics.poses(model, jnp.asarray(q))
    axes = jnp.asarray(np.stack([right, up]), world.position.dtype)
    found: list[Item] = []
    for k, kind in enumerate(geometry.kind):
        if kind == "plane":
            continue
        if kind not in DRAWN:
            raise ValueError(f"model_items: shape {geometry.names[k] or k!r} is a {kind}; drawn are {', '.join(DRAWN)}")
        link = geometry.link[k]
        R_link = jnp.eye(3, dtype=axes.dtype) if link < 0 else world.rotation[link]
        p_link = jnp.zeros(3, axes.dtype) if link < 0 else world.position[link]
        R = R_link @ spatial.rotation_of_quaternion(jnp.asarray(geometry.rotation[k]))
        p = p_link + R_link @ jnp.asarray(geometry.position[k])
        rgb = np.array(geometry.rgba[k][:3])
        found.append(_outline(model, k, axes @ R, axes @ p, rgb if colors == "rgb" else float(rgb.mean())))
    return found


def _outline(model: Model, k: int, flat: Float[Array, "2 3"], center: Float[Array, "2"], color) -> Item:
    """A shape whose axes and centre are given in the picture."""
    kind, size = model.geometry.kind[k], jnp.asarray(model.geometry.size)[k]
    if kind == "sphere":
        return Disc(center, size[0], color)
    if kind == "capsule":
        return Capsule(center - size[1] * flat[:, 2], center + size[1] * flat[:, 2], size[0], color)
    if kind == "polygon":
        mesh = model.geometry.mesh[k]
        assert mesh is not None
        corners = jnp.asarray(mesh.vertices[:, :2], flat.dtype) * size[None, :2]
        return Polygon(center[None] + corners @ flat[:, :2].T, color)
    sight = _line_of_sight(model, k, flat)
    if kind == "cylinder":
        if sight == 2:
            return Disc(center, size[0], color)
        along = flat[:, 2]
        return _rectangle(center, size[0] * jnp.stack([along[1], -along[0]]), size[1] * along, color)
    first, second = ((1, 2), (2, 0), (0, 1))[sight]
    return _rectangle(center, size[first] * flat[:, first], size[second] * flat[:, second], color)


def _line_of_sight(model: Model, k: int, flat: Float[Array, "2 3"]) -> int:
    """Which axis of a shape points at the viewer: the same for all coordinates of a planar model."""
    from knuckle.model.inertia import is_traced, rotation_matrix

    geometry = model.geometry
    if not is_traced(flat):
        return int(np.argmin(np.sum(np.asarray(flat) ** 2, axis=0)))
    if is_traced(geometry.rotation, model.rotation, model.axis):
        raise ValueError("model_items: boxes and cylinders need a model whose rotations are plain numbers")
    link, R = geometry.link[k], rotation_matrix(np.asarray(geometry.rotation[k]))
    while link >= 0:
        R = rotation_matrix(np.asarray(model.rotation[link])) @ R
        link = model.topology.parent[link]
    return int(np.argmax(np.abs(_normal(model) @ R)))


def _normal(model: Model) -> np.ndarray:
    """Of the plane in which a model moves, or y."""
    from knuckle.contact.planar import motion_normal

    found = motion_normal(model)
    return np.array([0.0, 1.0, 0.0]) if found is None else found


def _rectangle(center, half_a, half_b, color) -> Polygon:
    """Corners counter-clockwise, whichever way the two sides stand."""
    turned = half_a[0] * half_b[1] - half_a[1] * half_b[0]
    half_b = jnp.where(turned < 0, -half_b, half_b)
    corners = [center - half_a - half_b, center + half_a - half_b, center + half_a + half_b, center - half_a + half_b]
    return Polygon(jnp.stack(corners), color)
