"""What is drawn: discs, capsules and convex polygons in a plane, by their signed distances."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Leaf = Array | np.ndarray
Plane = Float[Array, "height width"]  # one number per pixel
Number = float | Float[Leaf, ""]
Color = Number | Float[Leaf, " channel"]


class Disc(eqx.Module):
    """A filled circle."""

    center: Float[Leaf, "2"]  # [m]
    radius: Number  # [m]
    color: Color = 1.0  # grey, or one number per channel

    def distance(self, x: Plane, y: Plane) -> Plane:
        """Of points from the edge, negative inside [m]."""
        return _length(x - self.center[0], y - self.center[1]) - self.radius


class Capsule(eqx.Module):
    """A segment of a line with a radius: a rod with round ends."""

    start: Float[Leaf, "2"]  # [m]
    end: Float[Leaf, "2"]  # [m]
    radius: Number  # [m]
    color: Color = 1.0

    def distance(self, x: Plane, y: Plane) -> Plane:
        """Of points from the edge, negative inside [m]; a capsule without length is a disc."""
        start, along = jnp.asarray(self.start), jnp.asarray(self.end) - jnp.asarray(self.start)
        x, y = x - start[0], y - start[1]
        square = jnp.sum(along * along)
        share = jnp.clip((x * along[0] + y * along[1]) / jnp.where(square > 0, square, 1.0), 0.0, 1.0)
        return _length(x - share * along[0], y - share * along[1]) - self.radius


class Polygon(eqx.Module):
    """A filled convex polygon, corners counter-clockwise."""

    corners: Float[Leaf, "corner 2"]  # [m]
    color: Color = 1.0

    def distance(self, x: Plane, y: Plane) -> Plane:
        """Of points from the nearest line through an edge, negative inside [m]: too small beyond a corner."""
        corners = jnp.asarray(self.corners)
        edge = jnp.roll(corners, -1, axis=0) - corners
        out_x, out_y = edge[:, 1] / _length(edge[:, 0], edge[:, 1]), -edge[:, 0] / _length(edge[:, 0], edge[:, 1])
        farthest = jnp.full_like(x, -jnp.inf)
        for k in range(len(corners)):
            farthest = jnp.maximum(farthest, (x - corners[k, 0]) * out_x[k] + (y - corners[k, 1]) * out_y[k])
        return farthest


Item = Disc | Capsule | Polygon


def _length(x: Array, y: Array) -> Array:
    """With a derivative of zero where the length is zero."""
    square = x * x + y * y
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
