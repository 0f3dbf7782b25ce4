"""Parts of physically constrained networks: a potential, and a damping that takes energy whatever its weights."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from knuckle.neural.coordinates import Coordinates
from knuckle.neural.networks import MLP
from knuckle.neural.registry import as_type_of

Vec = Float[Array | np.ndarray, " n"]
Structure = Literal["full", "diagonal"]


class Potential(eqx.Module):
    """V(q) [J], zero at the start, and its force -G(q)^T dV/dq, which is taken in the tangent space of q."""

    network: MLP
    coordinates: Coordinates = eqx.field(static=True)

    def __init__(self, coordinates: Coordinates, hidden: tuple[int, ...], activation: str, key: PRNGKeyArray):
        self.coordinates = coordinates
        self.network = MLP((coordinates.features, *hidden, 1), activation, key=key)

    def __call__(self, q: Vec) -> Float[Array, ""]:
        return self.network(self.coordinates.seen(q))[0]

    def force(self, q: Vec) -> Vec:
        return -self.coordinates.pulled(q, jax.grad(self)(q))


class Damping(eqx.Module):
    """D(q, qd) = g L L^T with a gain g >= 0 that is zero at the start, where L is the identity.

    g is the size of a number of either sign with slope 1 at zero: neither zero nor a wrong sign stops its training.
    """

    network: MLP
    gain: Float[Array, ""]
    coordinates: Coordinates = eqx.field(static=True)
    structure: Structure = eqx.field(static=True)

    def __init__(self, coordinates: Coordinates, hidden, activation: str, structure: str, key: PRNGKeyArray):
        if structure not in ("full", "diagonal"):
            raise ValueError(f"structure must be 'full' or 'diagonal', got {structure!r}")
        n = coordinates.nv
        entries = n if structure == "diagonal" else n * (n + 1) // 2
        self.coordinates, self.structure = coordinates, structure
        self.network = MLP((coordinates.features + n, *hidden, entries), activation, key=key)
        self.gain = jnp.zeros(())

    def matrix(self, q: Vec, qd: Vec) -> Float[Array, "nv nv"]:
        L = self._factor(q, qd)
        square = jnp.diag(L * L) if self.structure == "diagonal" else L @ L.T
        return positive(as_type_of(q, self.gain)) * square

    def force(self, q: Vec, qd: Vec) -> Vec:
        L, gain = self._factor(q, qd), positive(as_type_of(q, self.gain))
        return -(gain * (L * L * qd)) if self.structure == "diagonal" else -(gain * (L @ (L.T @ qd)))

    def power(self, q: Vec, qd: Vec) -> Float[Array, ""]:
        """-qd^T D qd = -g |L^T qd|^2 [W]: minus a sum of squares, never positive however it is rounded."""
        L = self._factor(q, qd)
        along = L * qd if self.structure == "diagonal" else L.T @ qd
        return -(positive(as_type_of(q, self.gain)) * jnp.sum(along * along))

    def _factor(self, q: Vec, qd: Vec) -> Float[Array, "..."]:
        """L: lower triangular, or its diagonal."""
        entries = self.network(jnp.concatenate([self.coordinates.seen(q), qd]))
        n = self.coordinates.nv
        if self.structure == "diagonal":
            return 1 + entries
        with_zero = jnp.concatenate([entries, jnp.zeros(1, entries.dtype)])
        place = np.full((n, n), len(entries))
        place[np.tril_indices(n)] = np.arange(len(entries))
        return jnp.eye(n, dtype=entries.dtype) + with_zero[place]


def positive(gain: Float[Array, ""]) -> Float[Array, ""]:
    """|gain|, with slope 1 at zero."""
    return jnp.where(gain >= 0, gain, -gain)
