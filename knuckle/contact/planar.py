"""Whether a model moves in a plane: there, contacts have one tangent instead of two, and points two directions."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.pairs import Pair
from knuckle.kinematics import poses
from knuckle.model.inertia import quaternion_product, rotation_matrix
from knuckle.model.joints import plane_axes
from knuckle.model.model import Equalities, Model

SAME_HEIGHT = 1e-9  # [m; rad of directions that equalities hold parallel]
ALONG, ACROSS = 1 - 1e-9, 1e-5  # of the cosine to the normal: as near to 1 and to 0 as 4.5e-5 and 1e-5 rad


def plane_of(model: Model, pairs: tuple[Pair, ...]) -> np.ndarray | None:
    """The unit normal of the plane in which all links move and all contact normals lie; None if that is not known.

    Known for pairs with a plane that stands upright on it, of polygons in it, and of spheres at one height over it, and
    where equalities hold across the plane by themselves (if not, their rows say by how much they cannot hold).
    """
    geometry, ties = model.geometry, model.equalities
    placed = (model.position, model.rotation, model.axis, model.anchor, geometry.position, geometry.rotation)
    held = (ties.position_a, ties.position_b, ties.rotation_a, ties.rotation_b)
    if any(isinstance(x, Tracer) for x in (*placed, *held, model.reference)):
        return None
    normal = motion_normal(model)
    if normal is None:
        return None
    with jax.ensure_compile_time_eval():
        world = poses(model, jnp.asarray(model.reference))
        R, p = np.asarray(world.rotation), np.asarray(world.position)
    R, p = np.concatenate([R, np.eye(3)[None]]), np.concatenate([p, np.zeros((1, 3))])
    links = np.array(geometry.link, int)
    axis = np.array([rotation_matrix(_unit(np.asarray(r, float)))[:, 2] for r in geometry.rotation]).reshape(-1, 3)
    upright = np.einsum("sij,sj,i->s", R[links], axis, normal)
    height = (p[links] + np.einsum("sij,sj->si", R[links], np.asarray(geometry.position, float))) @ normal

    def in_plane(pair: Pair) -> bool:
        kinds = geometry.kind[pair.a], geometry.kind[pair.b]
        if "plane" in kinds:
            return abs(upright[(pair.a, pair.b)[kinds.index("plane")]]) < ACROSS
        if "polygon" in kinds:
            return abs(upright[(pair.a, pair.b)[kinds.index("polygon")]]) > ALONG
        return kinds == ("sphere", "sphere") and abs(height[pair.a] - height[pair.b]) < SAME_HEIGHT

    held = _hold_across(ties, R, p, normal)
    return normal if held and all(in_plane(pair) for pair in pairs) else None


def _hold_across(ties: Equalities, R: np.ndarray, p: np.ndarray, normal: np.ndarray) -> bool:
    """Whether points stand at one height over the plane, and welded frames turn about its normal only."""

    def frame(side: str, k: int) -> tuple[np.ndarray, np.ndarray]:
        link = getattr(ties, side)[k]
        own = rotation_matrix(_unit(np.asarray(getattr(ties, f"rotation_{side}")[k], float)))
        height = (p[link] + R[link] @ np.asarray(getattr(ties, f"position_{side}")[k], float)) @ normal
        return own.T @ R[link].T @ normal, height

    for k in (k for k, on in enumerate(ties.active) if on and ties.kind[k] != "mimic"):
        (normal_a, height_a), (normal_b, height_b) = frame("a", k), frame("b", k)
        tilted = ties.kind[k] == "weld" and np.linalg.norm(normal_a - normal_b) > SAME_HEIGHT
        if tilted or abs(height_a - height_b) > SAME_HEIGHT:
            return False
    return True


class MotionPlane(NamedTuple):
    """The unit normal of the plane in which all links move, if that holds."""

    normal: Float[Array, "3"]
    holds: Bool[Array, ""]


def motion_plane(model: Model) -> MotionPlane | None:
    """`motion_normal` of values that may be traced; None if a model of these joints cannot move in a plane."""
    kinds, parents = model.topology.kind, model.topology.parent
    turns = np.array([kind in ("planar", "revolute") for kind in kinds])
    if not turns.any() or not set(kinds) <= {"planar", "revolute", "prismatic"}:
        return None
    own = spatial.rotation_of_quaternion(jnp.asarray(model.rotation))
    R: list[Array] = []
    for link, parent in enumerate(parents):
        R.append(spatial.compose(R[parent], own[link]) if parent >= 0 else own[link])
    axes = spatial.apply(jnp.stack(R), spatial.normalize(jnp.asarray(model.axis)))
    normal = axes[int(np.argmax(turns))]
    cosines = jnp.abs(spatial.apply(axes, normal))
    return MotionPlane(normal, jnp.all(jnp.where(turns, cosines > ALONG, cosines < ACROSS)))


class Directions(NamedTuple):
    """Unit vectors along which points, and about which bodies, are held, and which of them nothing moves along."""

    along: Float[Array | np.ndarray, "axis 3"]
    around: Float[Array | np.ndarray, "axis 3"]
    still_along: Bool[Array, " axis"] | None = None
    still_around: Bool[Array, " axis"] | None = None


def held_directions(plane: Float[np.ndarray, "3"] | None, motion: MotionPlane | None) -> Directions:
    """Those in a plane of motion that is known; all where it is traced; the world's if there is none."""
    if plane is not None:
        with jax.ensure_compile_time_eval():
            return Directions(np.stack([np.asarray(x) for x in plane_axes(jnp.asarray(plane))]), plane[None])
    if motion is None:
        return Directions(np.eye(3), np.eye(3))
    normal = motion.normal
    all_axes = jnp.where(motion.holds, jnp.stack([*plane_axes(normal), normal]), jnp.eye(3, dtype=normal.dtype))
    still = np.array([False, False, True])
    return Directions(all_axes, all_axes, motion.holds & still, motion.holds & ~still)


def zero_across(
    still: Bool[Array, " axis"] | None, J: Float[Array, "axis dof"], error: Float[Array, " axis"]
) -> tuple[Float[Array, "axis dof"], Float[Array, " axis"]]:
    """Rows that nothing moves, and their errors up to SAME_HEIGHT, as zeros: rounding over R would be their impulse."""
    if still is None:
        return J, error
    return jnp.where(still[:, None], 0.0, J), jnp.where(still & (jnp.abs(error) <= SAME_HEIGHT), 0.0, error)


def motion_normal(model: Model) -> np.ndarray | None:
    """The unit normal, in the world, of the plane in which all links move; None if there is no such plane.

    Planar and revolute joints turn about the normal, prismatic ones slide across it. Needs the model's own numbers, so
    not under a transformation that traces them.
    """
    rotations: list[np.ndarray] = []
    for link, parent in enumerate(model.topology.parent):
        own = np.asarray(model.rotation[link], float)
        rotations.append(quaternion_product(rotations[parent], own) if parent >= 0 else own)
    axes = [
        _unit(rotation_matrix(r / np.linalg.norm(r)) @ np.asarray(a, float))
        for r, a in zip(rotations, model.axis, strict=True)
    ]
    kinds = model.topology.kind
    turning = [axis for axis, kind in zip(axes, kinds, strict=True) if kind in ("planar", "revolute")]
    if not turning or not set(kinds) <= {"planar", "revolute", "prismatic"}:
        return None
    cosines = np.abs([axis @ turning[0] for axis in axes])
    slides = np.array([kind == "prismatic" for kind in kinds])
    return turning[0] if np.all(np.where(slides, cosines < ACROSS, cosines > ALONG)) else None


def _unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)
