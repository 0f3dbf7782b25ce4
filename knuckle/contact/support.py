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
    corners: Float[Array, "corner 3"]  # of the core, in the shape's frame
    smooth_half: Vec3  # half lengths of the smooth part
    radius: Float[Array, ""]

    @property
    def extent(self) -> Float[Array, ""]:
        """A length not much smaller than the shape without its ball [m]."""
        return jnp.max(jnp.abs(self.corners)) + jnp.max(self.smooth_half)

    @property
    def is_disc(self) -> Bool[Array, ""]:
        return (self.smooth_half[0] > 0) & (self.smooth_half[2] == 0)

    def label(self, direction: Vec3) -> Int[Array, ""]:
        """Which corner of the core lies furthest in a direction."""
        local = spatial.apply_transpose(self.rotation, direction)
        return jnp.argmax(spatial.dot(self.corners, local[None])).astype(jnp.int32)

    def label_beside(
        self, direction: Vec3, corner: Int[Array, ""], other: Int[Array, ""], slack: float
    ) -> Int[Array, ""]:
        """Of the corners that lie furthest in a direction, the one that stands out most from the line of two others."""
        reach = spatial.dot(self.corners, spatial.apply_transpose(self.rotation, direction)[None])
        arm = self.corners - self.corners[corner][None]
        along = spatial.normalize(self.corners[other] - self.corners[corner])
        across = arm - spatial.dot(arm, along[None])[:, None] * along[None]
        furthest = reach >= jnp.max(reach) - slack * jnp.max(jnp.abs(self.corners))
        squared = spatial.dot(across, across)
        return jnp.argmax(jnp.where(furthest, squared, -jnp.ones_like(squared))).astype(jnp.int32)

    def corner(self, label: Int[Array, ""]) -> Vec3:
        """A corner of the core, in the world."""
        return self.position + spatial.apply(self.rotation, self.corners[label])

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


def convex_shapes(geometry: Geometry, shapes: list[int], at: Poses) -> Convex:
    """Shapes of any convex kinds, one row each, with placements in the world."""
    size = rows(jnp.asarray(geometry.size), np.array(shapes))
    kinds = [geometry.kind[shape] for shape in shapes]
    corners = [_unit_corners(geometry, shape) for shape in shapes]
    count = max(len(c) for c in corners)
    table = np.stack([np.pad(c, ((0, count - len(c)), (0, 0)), mode="edge") for c in corners])
    return Convex(
        at.rotation,
        at.position,
        jnp.asarray(table, size.dtype) * _scaled(size, kinds, _CORE_SCALE)[:, None],
        _scaled(size, kinds, _SMOOTH_SCALE),
        size[:, 0] * jnp.asarray([kind in _HAS_RADIUS for kind in kinds], size.dtype),
    )


def _unit_corners(geometry: Geometry, shape: int) -> np.ndarray:
    kind = geometry.kind[shape]
    return corners_of(geometry, shape) if kind == "mesh" else _CORNERS[kind]


def _scaled(size: Float[Array, "shape 3"], kinds: Sequence[str], scales: dict[str, np.ndarray]) -> Array:
    matrices = np.stack([scales.get(kind, _NONE) for kind in kinds])
    return spatial.apply_transpose(jnp.asarray(matrices, size.dtype), size)
