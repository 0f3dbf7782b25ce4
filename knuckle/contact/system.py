"""Rows coupled through the masses, u = A r + b, under the laws that they obey, and how far an answer is from them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.laws import Blocks, Law, Scale

Vec = Float[Array, " row"]
Square = Float[Array, "row row"]
Laws = tuple[Law, ...]


class System(NamedTuple):
    """u = A r + b and the laws of its rows, in order. A holds the regularisation R, b what velocities aim at."""

    A: Square
    b: Vec
    laws: Laws


def blocks(laws: Laws, x: Vec) -> list[Blocks]:
    """A vector over the rows, law by law."""
    parts, start = [], 0
    for law in laws:
        parts.append(x[start : start + law.rows].reshape(law.rows // law.block, law.block))
        start += law.rows
    return parts


def joined(parts: list[Blocks]) -> Vec:
    return jnp.concatenate([part.reshape(-1) for part in parts])


def velocity(system: System, r: Vec) -> Vec:
    return spatial.apply(system.A, r) + system.b


def block_scales(A: Square, laws: Laws) -> list[Scale]:
    """Velocity per impulse of each block [1/kg]: the mean of its diagonal entries of A."""
    return [jnp.mean(part, axis=1) for part in blocks(laws, jnp.diagonal(A))]


def over_rows(laws: Laws, scales: list[Scale]) -> Vec:
    return joined([jnp.repeat(scale, law.block) for law, scale in zip(laws, scales, strict=True)])


def imbalance(laws: Laws, r: Vec, u: Vec, scales: list[Scale]) -> Vec:
    """Zero at the solution [m/s]."""
    parts = zip(laws, blocks(laws, r), blocks(laws, u), scales, strict=True)
    return joined([law.imbalance(*at) for law, *at in parts])


def residual(laws: Laws, r: Vec, u: Vec, scales: list[Scale]) -> Float[Array, ""]:
    """The largest error of any law [m/s]; NaN where there is one."""
    parts = zip(laws, blocks(laws, r), blocks(laws, u), scales, strict=True)
    return jnp.max(jnp.abs(joined([law.error(*at) for law, *at in parts])), initial=0.0)


def margin(laws: Laws, r: Vec, u: Vec, scales: list[Scale]) -> Float[Array, ""]:
    """Distance to the nearest change of mode [m/s]: near zero the derivative is one-sided."""
    parts = zip(laws, blocks(laws, r), blocks(laws, u), scales, strict=True)
    return jnp.min(jnp.concatenate([law.margin(*at) for law, *at in parts]), initial=jnp.inf)


def slope(A: Square, laws: Laws, r: Vec, u: Vec, scales: list[Scale]) -> Square:
    """Generalised derivative of the imbalance by r, where u = A r + b."""
    strips, start = [], 0
    for law, *at in zip(laws, blocks(laws, r), blocks(laws, u), scales, strict=True):
        by_impulse, by_velocity = law.slopes(*at)
        strip = A[start : start + law.rows].reshape(law.rows // law.block, law.block, len(A))
        coupled = spatial.compose(by_velocity, strip).reshape(law.rows, len(A))
        before, after = start, len(A) - start - law.rows
        strips.append(coupled + jnp.pad(_block_diagonal(by_impulse), ((0, 0), (before, after))))
        start += law.rows
    return jnp.concatenate(strips)


def _block_diagonal(parts: Float[Array, "block row row"]) -> Square:
    count, size, _ = parts.shape
    eye = jnp.eye(count, dtype=parts.dtype)
    return (parts[:, :, None, :] * eye[:, None, :, None]).reshape(count * size, count * size)
