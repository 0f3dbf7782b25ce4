"""Models as functions of design parameters: lengths of links, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.model.inertia import COLUMNS, ROWS, is_traced
from knuckle.model.model import Leaf, Model

Vector = Float[Array, "3"]
Direction = Float[Leaf, "3"] | Sequence[float]
STRAIGHT = 1e-6  # of the sine between a shape's axis and the direction, beyond which it stands askew
STRETCHED: dict[str, tuple[int, ...]] = {
    "capsule": (2,),
    "cylinder": (2,),
    "box": (0, 1, 2),
    "ellipsoid": (0, 1, 2),
}  # axes with a size
STRETCHED |= {"mesh": (0, 1, 2), "points": (0, 1, 2), "polygon": (0, 1)}
PLACE_OF_SIZE: dict[str, tuple[int, ...]] = {
    "capsule": (1,),
    "cylinder": (1,),
}  # elsewhere the size of axis k stands at k


def link_length(model: Model, link: str, along: str | Direction | None = None) -> Float[Array, ""]:
    """Length of a link [m]: from its origin to its only child's joint, or to the link or frame that `along` names."""
    return _span(model, link, along)[1]


def set_length(
    model: Model,
    link: str,
    length: float | Float[Array, ""],
    *,
    along: str | Direction | None = None,
    mass: Literal["keep", "scale"] = "keep",
) -> Model:
    """The model with a link stretched to a length [m]; differentiable by the length and by the model.

    Everything on the link moves by the same stretch x -> x + (s - 1) u (u . x): joints of its children, centre of mass,
    second moments of mass (Sigma -> F Sigma F), frames, geometries, points of equalities. Radii stay.

    Args:
        along: what the length goes to: the name of a child link or of a frame on the link, or a direction in the link's
            axes, in which case its extent is that of the farthest child or frame. By default the only child's joint,
            or the only frame of a link without children.
        mass: "keep" the mass of the link, or "scale" it with the length (constant density).

    Raises:
        ValueError: if the direction is not clear, or a geometry stands askew to it.
    """
    if mass not in ("keep", "scale"):
        raise ValueError(f"set_length: mass must be 'keep' or 'scale', got {mass!r}")
    if not is_traced(length) and not 0 < float(length) < np.inf:
        raise ValueError(f"set_length: the length of link {link!r} must be positive and finite, got {length}")
    u, before = _span(model, link, along)
    ratio = jnp.asarray(length, before.dtype) / before
    return _stretched(model, model.topology.link(link), u, ratio, mass)


def _span(model: Model, link: str, along) -> tuple[Vector, Float[Array, ""]]:
    """Unit vector along the link, and its length."""
    ends = _ends(model, link)
    if along is not None and not isinstance(along, str):
        u = spatial.normalize(jnp.asarray(along, float))
        if u.shape != (3,) or not ends:
            raise ValueError(
                f"set_length: link {link!r} needs a direction (3 numbers) and a child or frame that it has"
            )
        return u, jnp.max(jnp.stack([spatial.dot(u, end) for end in ends.values()]))
    if along is None:
        children = [name for name in ends if name in model.link_names]
        along = (children or list(ends))[0] if len(children or ends) == 1 else None
    if along not in ends:
        there = ", ".join(ends) or "none"
        raise ValueError(f"set_length: say along=... which end of link {link!r} is meant; there are {there}")
    end = ends[along]
    length = jnp.sqrt(spatial.dot(end, end))
    if not isinstance(length, Tracer) and not float(length) > 0:
        raise ValueError(f"set_length: {along!r} stands at the origin of link {link!r}, so no length is there")
    return end / length, length


def _ends(model: Model, link: str) -> dict[str, Vector]:
    """Where children and frames stand on a link, by name."""
    topology, number = model.topology, model.topology.link(link)
    ends = {
        topology.link_names[k]: jnp.asarray(model.position)[k] for k, up in enumerate(topology.parent) if up == number
    }
    frames = model.frames
    return ends | {
        name: jnp.asarray(frames.position)[k] for k, name in enumerate(frames.names) if frames.link[k] == number
    }


def _stretched(model: Model, link: int, u: Vector, ratio, mass: str) -> Model:
    F = jnp.eye(3, dtype=u.dtype) + (ratio - 1) * spatial.outer(u, u)
    topology, ties, geometry = model.topology, model.equalities, model.geometry

    def moved(points, owners) -> Array:
        points = jnp.asarray(points)
        own = np.array([owner == link for owner in owners], bool)[:, None]
        return jnp.where(own, points @ F, points) if len(points) else points

    held = tuple(kind != "mimic" for kind in ties.kind)
    sides = [[owner if on else -2 for owner, on in zip(side, held, strict=True)] for side in (ties.a, ties.b)]
    changes = {
        "position": moved(model.position, topology.parent),
        "anchor": moved(model.anchor, range(len(topology.parent))),
        "frames.position": moved(model.frames.position, model.frames.link),
        "geometry.position": moved(geometry.position, geometry.link),
        "geometry.size": _sizes(model, link, F, u),
        "equalities.position_a": moved(ties.position_a, sides[0]),
        "equalities.position_b": moved(ties.position_b, sides[1]),
        "inertia.com": moved(model.inertia.com, range(len(topology.parent))),
        "inertia.moment": _moments(model, link, F, ratio if mass == "scale" else 1.0),
    }
    if mass == "scale":
        changes["inertia.mass"] = jnp.asarray(model.inertia.mass).at[link].multiply(ratio)
    return eqx.tree_at(lambda m: [_at(m, path) for path in changes], model, list(changes.values()))


def _at(model: Model, path: str):
    for name in path.split("."):
        model = getattr(model, name)
    return model


def _moments(model: Model, link: int, F: Float[Array, "3 3"], factor) -> Float[Array, "link 6"]:
    """Moments from second moments Sigma = tr(I)/2 - I, which stretch as F Sigma F."""
    moment = jnp.asarray(model.inertia.moment)
    I = jnp.zeros((3, 3), moment.dtype).at[ROWS, COLUMNS].set(moment[link])
    I = I.at[COLUMNS, ROWS].set(moment[link])
    eye = jnp.eye(3, dtype=moment.dtype)
    sigma = factor * F @ (0.5 * jnp.trace(I) * eye - I) @ F
    return moment.at[link].set((jnp.trace(sigma) * eye - sigma)[ROWS, COLUMNS])


def _sizes(model: Model, link: int, F: Float[Array, "3 3"], u: Vector) -> Float[Array, "shape 3"]:
    """Half lengths and scales along the stretched direction; radii stay."""
    geometry = model.geometry
    size = jnp.asarray(geometry.size)
    for k in (k for k, owner in enumerate(geometry.link) if owner == link and geometry.kind[k] in STRETCHED):
        axes = STRETCHED[geometry.kind[k]]
        R = spatial.rotation_of_quaternion(jnp.asarray(geometry.rotation[k]))
        stretch = jnp.sqrt(jnp.sum((F @ R) ** 2, axis=0))  # of each of the shape's axes
        _check_straight(model, k, R, u, axes)
        for place, axis in zip(PLACE_OF_SIZE.get(geometry.kind[k], axes), axes, strict=True):
            size = size.at[k, place].multiply(stretch[axis])
    return size


def _check_straight(model: Model, k: int, R, u, axes: tuple[int, ...]) -> None:
    """Refuse a shape of which an axis is neither along nor across the direction; traced ones are not seen."""
    if is_traced(R, u):
        return
    cosines = np.abs(np.asarray(u) @ np.asarray(R)[:, list(axes)])
    if np.any((cosines > STRAIGHT) & (cosines < 1 - STRAIGHT)):
        name = model.geometry.names[k] or f"{model.geometry.kind[k]} {k}"
        raise ValueError(f"set_length: geometry {name!r} stands askew to the direction, so it cannot be stretched")
