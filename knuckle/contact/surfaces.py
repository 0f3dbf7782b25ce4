"""What the surfaces of two shapes have in common, by MuJoCo's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.model.geometry import Geometry
from knuckle.tree import rows


class Surfaces(NamedTuple):
    """Of pairs of shapes."""

    coefficients: Float[Array, "pair 3"]  # of sliding friction, and of torsional and rolling friction [m]
    margin: Float[Array, " pair"]  # distance at which they count as touching [m]
    condim: np.ndarray  # 1: without friction; 3: sliding; 4: and torsional; 6: and rolling

    @property
    def friction(self) -> Float[Array, " pair"]:
        """Of sliding."""
        return self.coefficients[:, 0]


def surfaces(geometry: Geometry, a: Sequence[int], b: Sequence[int]) -> Surfaces:
    """Friction and condim are those of the shape of higher priority, or the larger ones; margins add up.

    Pairs with settings of their own have those (MuJoCo's mj_contactParam).
    """
    with jax.ensure_compile_time_eval():
        ends = np.array(a, int), np.array(b, int)
        own, margin = jnp.asarray(geometry.friction), jnp.asarray(geometry.margin)
        (mu_a, mu_b), (dim_a, dim_b) = (
            [rows(own, end) for end in ends],
            [np.array(geometry.condim, int)[end] for end in ends],
        )
        friction, condim = jnp.maximum(mu_a, mu_b), np.maximum(dim_a, dim_b)
        priority = np.array(geometry.priority, int)
        ahead = priority[ends[0]] - priority[ends[1]]
        if np.any(ahead):
            first, second = (ahead > 0)[:, None], (ahead < 0)[:, None]
            friction = jnp.where(first, mu_a, jnp.where(second, mu_b, friction))
            condim = np.where(ahead > 0, dim_a, np.where(ahead < 0, dim_b, condim))
        margin = rows(margin, ends[0]) + rows(margin, ends[1])
        number = own_settings(geometry, a, b)
        if np.any(number >= 0):
            pairs, place = geometry.pairs, np.maximum(number, 0)
            friction = jnp.where((number >= 0)[:, None], rows(jnp.asarray(pairs.friction), place), friction)
            margin = jnp.where(number >= 0, rows(jnp.asarray(pairs.margin), place), margin)
            condim = np.where(number >= 0, np.array(pairs.condim, int)[place], condim)
        return Surfaces(friction, margin, condim)


def own_settings(geometry: Geometry, a: Sequence[int], b: Sequence[int]) -> np.ndarray:
    """The number of each pair among those with settings of their own, or -1."""
    ends = zip(geometry.pairs.a, geometry.pairs.b, strict=True)
    number = {frozenset(pair): k for k, pair in enumerate(ends)}
    return np.array([number.get(frozenset(pair), -1) for pair in zip(a, b, strict=True)], int)
