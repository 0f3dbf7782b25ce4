"""Convex shapes of all kinds in one form: a core with corners, plus an ellipsoid, plus a ball; one shape at a time.

The furthest point of a shape in a direction is a corner of its core (a box's or mesh's own corners, a segment's ends, a
single point), plus that of its smooth part (an ellipsoid; for a cylinder a disc, a flat one), plus radius times the
direction. One form for all means that pairs of all kinds run together as one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.hulls import Corners, Scores, Table, corner, highest, tabulate
from knuckle.contact.touch import TINY_SQUARED
from knuckle.contact.vertices import corners_of
from knuckle.kinematics import Poses
from knuckle.model.geometry import Geometry
from knuckle.tree import rows

FLAT_SINE_SQUARED = 1e-12  # a disc seen within 1e-6 rad of its axis counts as a face, with no curvature

Vec3 = Float[Array, "3"]
Mat3 = Float[Array, "3 3"]

_POINT, _ENDS = np.zeros((1, 3)), np.array([[0.0, 0.0, -1.0], [0.0, 0.0, 1.0]])
_CORNERS = {
    "sphere": _POINT,
    "ellipsoid": _POINT,
    "capsule": _ENDS,
    "cylinder": _ENDS,
    "box": np.array(list(product((-1.0, 1.0), repeat=3))),
}
_NONE, _ALL = np.zeros((3, 3)), np.eye(3)
_LENGTH = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])  # size[1] scales z
_DISC = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])  # size[0] is the half length along x and y
_CORE_SCALE = {"sphere": _NONE, "ellipsoid": _NONE, "capsule": _LENGTH, "cylinder": _LENGTH, "box": _ALL, "mesh": _ALL}
_SMOOTH_SCALE = {"ellipsoid": _ALL, "cylinder": _DISC}
_HAS_RADIUS = ("sphere", "capsule")


class Convex(NamedTuple):
    """A convex shape in the world."""

    rotation: Mat3
    position: Vec3
    corners: Corners  # of the core
    scale: Vec3  # of these corners
    smooth_half: Vec3  # half lengths of the smooth part
    radius: Float[Array, ""]
    table: Table | None = None  # that holds the corners

    @property
    def extent(self) -> Float[Array, ""]:
        """A length not much smaller than the shape without its ball [m]."""
        return self.core_extent + jnp.max(self.smooth_half)

    @property
    def core_extent(self) -> Float[Array, ""]:
        """The largest coordinate of a corner [m]."""
        return jnp.max(jnp.abs(self.scale) * jnp.asarray(self.corners.furthest, self.scale.dtype))

    @property
    def middle(self) -> Vec3:
        """Of the bounding box along the shape's axes, in the world."""
        local = self.scale * jnp.asarray(self.corners.middle, self.scale.dtype)
        return self.position + spatial.apply(self.rotation, local)

    @property
    def half(self) -> Vec3:
        """Half lengths of that box, without the ball."""
        return 0.5 * jnp.abs(self.scale) * jnp.asarray(self.corners.span, self.scale.dtype) + self.smooth_half

    @property
    def is_disc(self) -> Bool[Array, ""]:
        return (self.smooth_half[0] > 0) & (self.smooth_half[2] == 0)

    def highest(self, scores: Scores) -> tuple[Int[Array, " score"], Float[Array, " score"]]:
        """Corners of the core that have the highest of some scores, functions of the corner in the shape's frame."""
        assert self.table is not None
        return highest(self.table, self.corners.blocks, lambda unscaled: scores(self.scale * unscaled))

    def label(self, direction: Vec3) -> Int[Array, ""]:
        """Which corner of the core lies furthest in a direction."""
        return self._furthest_corner(direction)[0]

    def _furthest_corner(self, direction: Vec3) -> tuple[Int[Array, ""], Float[Array, ""]]:
        local = spatial.apply_transpose(self.rotation, direction)
        (label,), (reach,) = self.highest(lambda x: [spatial.dot(x, local)])
        return label, reach

    def label_beside(
        self, direction: Vec3, corner: Int[Array, ""], other: Int[Array, ""], slack: float
    ) -> Int[Array, ""]:
        """Of the corners that lie furthest in a direction, the one that stands out most from the line of two others."""
        local = spatial.apply_transpose(self.rotation, direction)
        least = self._furthest_corner(direction)[1] - slack * self.core_extent
        start = self.local_corner(corner)
        along = spatial.normalize(self.local_corner(other) - start)

        def beside(x: Vec3) -> list[Float[Array, ""]]:
            arm = x - start
            across = arm - spatial.dot(arm, along) * along
            squared = spatial.dot(across, across)
            return [jnp.where(spatial.dot(x, local) >= least, squared, -jnp.ones_like(squared))]

        return self.highest(beside)[0][0]

    def local_corner(self, label: Int[Array, "*batch"]) -> Float[Array, "*batch 3"]:
        """Corners of the core in the shape's frame."""
        assert self.table is not None
        unscaled = corner(self.table, label)
        return jnp.broadcast_to(self.scale, unscaled.shape) * unscaled

    def corner(self, label: Int[Array, ""]) -> Vec3:
        """A corner of the core, in the world."""
        return self.position + spatial.apply(self.rotation, self.local_corner(label))

    def smooth(self, n: Vec3, flat_sine_squared: float = FLAT_SINE_SQUARED) -> tuple[Vec3, Mat3]:
        """Furthest point of the smooth part along a unit vector n, and its derivative by n.

        x = Q n/h with h = sqrt(n.Q n), Q = R D^2 R^T, and dx/dn = (Q - x x^T)/h. Of a disc seen along its axis, the
        middle.
        """
        scaled = self.rotation * self.smooth_half[None]
        local = spatial.apply_transpose(
            scaled, n
        )  # D R^T n: exact to rounding even where a disc is seen along its axis
        Q, Qn = spatial.compose(scaled, jnp.swapaxes(scaled, -1, -2)), spatial.apply(scaled, local)
        squared = spatial.dot(local, local)
        flat = squared <= flat_sine_squared * jnp.max(self.smooth_half) ** 2
        inverse = jax.lax.rsqrt(jnp.where(flat, jnp.ones_like(squared), squared))
        inverse = jnp.where(flat, jnp.zeros_like(squared), inverse)
        x = Qn * inverse
        return x, (Q - spatial.outer(x, x)) * inverse

    def furthest(self, direction: Vec3) -> tuple[Vec3, Int[Array, ""]]:
        """The furthest point without the ball, and the label of its corner."""
        label = self.label(direction)
        return self.corner(label) + self.smooth(direction, TINY_SQUARED)[0], label


def convex_shapes(geometry: Geometry, sides: Sequence[tuple[list[int], Poses]]) -> tuple[Table, tuple[Convex, ...]]:
    """A table of corners, and shapes of any convex kinds that stand in it: for each side of pairs one row per pair."""
    every = [shape for shapes, _ in sides for shape in shapes]
    blocks, corners = tabulate([_unit_corners(geometry, shape) for shape in every])
    start, found = 0, []
    with jax.ensure_compile_time_eval():
        size = jnp.asarray(geometry.size)
    for shapes, at in sides:
        stop = start + len(shapes)
        own = Corners(*(x[start:stop] for x in corners))
        with jax.ensure_compile_time_eval():
            own_size = rows(size, np.array(shapes))
        found.append(_convex_side(geometry, shapes, at, own_size, own))
        start = stop
    return jnp.asarray(blocks, size.dtype), tuple(found)


def _convex_side(geometry: Geometry, shapes: list[int], at: Poses, size: Array, corners: Corners) -> Convex:
    kinds = [geometry.kind[shape] for shape in shapes]
    corners = Corners(*(jnp.asarray(x, size.dtype if x.dtype.kind == "f" else x.dtype) for x in corners))
    with jax.ensure_compile_time_eval():
        radius = size[:, 0] * jnp.asarray([kind in _HAS_RADIUS for kind in kinds], size.dtype)
    scale, smooth = (_scaled(size, kinds, scales) for scales in (_CORE_SCALE, _SMOOTH_SCALE))
    return Convex(at.rotation, at.position, corners, scale, smooth, radius)


def _unit_corners(geometry: Geometry, shape: int) -> np.ndarray:
    kind = geometry.kind[shape]
    return corners_of(geometry, shape) if kind == "mesh" else _CORNERS[kind]


def _scaled(size: Float[Array, "shape 3"], kinds: Sequence[str], scales: dict[str, np.ndarray]) -> Array:
    matrices = np.stack([scales.get(kind, _NONE) for kind in kinds])
    with jax.ensure_compile_time_eval():
        return spatial.apply_transpose(jnp.asarray(matrices, size.dtype), size)
