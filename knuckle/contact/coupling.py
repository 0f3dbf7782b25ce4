"""How impulses on rows move the rows, u = A r with A = J M^-1 J^T, and Newton's step through that.

Newton's step solves (F_r + F_u (A + R)) dr = rhs: F_r and F_u are the slopes of the laws, block by block, and R is the
regularisation. In the space of the rows that is one dense matrix. With G = F_r + F_u R and K = G^-1 F_u it is, in the
space of the joints, (M + J^T K J) dv = J^T G^-1 rhs and dr = G^-1 rhs - K J dv: the number of rows hardly matters.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.laws import Blocks, Law, Slopes, over_blocks
from knuckle.contact.rows import Jacobian, effective_inverse_mass, response
from knuckle.dynamics.aba import Factor
from knuckle.tree import Tree

Vec = Float[Array, " row"]
Rows = tuple[Blocks, ...]  # a number for each row, law by law
Square = Float[Array, "row row"]
Layout = tuple[tuple[int, int], ...]  # how many blocks each law has, and of how many rows


def layout_of(laws: tuple[Law, ...]) -> Layout:
    return tuple((law.rows // law.block, law.block) for law in laws)


def split(layout: Layout, x: Vec) -> Rows:
    """A vector over all rows, law by law."""
    parts, start = [], 0
    for count, block in layout:
        parts.append(x[start : start + count * block].reshape(count, block))
        start += count * block
    return tuple(parts)


def joined(parts: Rows) -> Vec:
    return jnp.concatenate([part.reshape(-1) for part in parts])


def plus(a: Rows, b: Rows) -> Rows:
    return jax.tree.map(jnp.add, a, b)


def times(a: Rows, b: Rows) -> Rows:
    return jax.tree.map(jnp.multiply, a, b)


class Coupling(eqx.Module):
    """The operator A of a step's rows."""

    @abstractmethod
    def velocity(self, r: Rows) -> Rows:
        """A r."""

    @abstractmethod
    def diagonal(self) -> Rows:
        """Of A: the velocity of each row per impulse on it [1/kg]."""

    @abstractmethod
    def joint_velocity(self, r: Rows) -> Float[Array, " dof"]:
        """M^-1 J^T r."""

    def held(self) -> Coupling:
        """The same for repeated use: what is computed where it is needed is computed once."""
        return self

    @abstractmethod
    def contact_velocity(self, v: Float[Array, " dof"]) -> Blocks:
        """Velocities of the contacts at velocities of the joints."""

    @abstractmethod
    def solve(self, slopes: list[Slopes], R: Rows, rhs: Rows) -> Rows:
        """dr with (F_r + F_u (A + R)) dr = rhs, for R > 0."""

    def refined(self, slopes: list[Slopes], positive_R: Rows, R: Rows, rhs: Rows) -> tuple[Rows, Float[Array, " dof"]]:
        """dr and M^-1 J^T dr; stiff rows cost digits in the space of the joints, so with one refinement."""
        dr = self.solve(slopes, positive_R, rhs)
        moved = plus(self.velocity(dr), times(R, dr))
        off = tuple(
            wanted - spatial.apply(F_r, x) - spatial.apply(F_u, y)
            for (F_r, F_u), wanted, x, y in zip(slopes, rhs, dr, moved, strict=True)
        )
        dr = plus(dr, self.solve(slopes, positive_R, off))
        return dr, self.joint_velocity(dr)


class RowSpace(Coupling):
    """A as a matrix: for few rows."""

    A: Square
    layout: Layout = eqx.field(static=True)
    J: Jacobian | None = None
    factor: Factor | None = None
    dofs: Tree | None = eqx.field(static=True, default=None)

    @staticmethod
    def of(layout: Layout, dofs: Tree, factor: Factor, J: Jacobian) -> RowSpace:
        return RowSpace(effective_inverse_mass(dofs, factor, J), layout, J, factor, dofs)

    def velocity(self, r):
        return split(self.layout, spatial.apply(self.A, joined(r)))

    def diagonal(self):
        return split(self.layout, jnp.diagonal(self.A))

    def contact_velocity(self, v):
        assert self.J is not None
        return split(self.layout, spatial.apply(self.J, v))[0]

    def joint_velocity(self, r):
        assert self.dofs is not None and self.factor is not None and self.J is not None
        return response(self.dofs, self.factor, self.J, joined(r))

    def solve(self, slopes, R, rhs):
        S = slope_matrix(self.A + jnp.diag(joined(R)), slopes)
        return split(self.layout, jnp.linalg.solve(S, joined(rhs)))

    def refined(self, slopes, positive_R, R, rhs):
        dr = self.solve(slopes, positive_R, rhs)
        return dr, self.joint_velocity(dr)


def slope_matrix(A: Square, slopes: list[Slopes]) -> Square:
    """F_r + F_u A."""
    strips, start = [], 0
    for by_impulse, by_velocity in slopes:
        count, block, _ = by_impulse.shape
        rows = count * block
        strip = A[start : start + rows].reshape(count, block, len(A))
        coupled = spatial.compose(by_velocity, strip).reshape(rows, len(A))
        before, after = start, len(A) - start - rows
        strips.append(coupled + jnp.pad(_block_diagonal(by_impulse), ((0, 0), (before, after))))
        start += rows
    return jnp.concatenate(strips)


def _block_diagonal(parts: Float[Array, "block row row"]) -> Square:
    count, size, _ = parts.shape
    eye = jnp.eye(count, dtype=parts.dtype)
    return (parts[:, :, None, :] * eye[:, None, :, None]).reshape(count * size, count * size)


class Spring(NamedTuple):
    """Rows of one law in a Newton step, seen from the joints: they push back by K per velocity, and with g."""

    K: Float[Array, "block row row"]
    g: Blocks

    def impulse(self, velocity: Blocks) -> Blocks:
        return over_blocks(_impulse, self.K, self.g, velocity)


def _impulse(K: Float[Array, "block row row"], g: Blocks, velocity: Blocks) -> Blocks:
    return g - spatial.apply(K, velocity)


def springs(slopes: list[Slopes], R: Rows, rhs: Rows) -> list[Spring]:
    """K = G^-1 F_u and g = G^-1 rhs of each law, G = F_r + F_u R."""
    found = []
    for (by_impulse, by_velocity), own_R, own_rhs in zip(slopes, R, rhs, strict=True):
        inverse, K = over_blocks(inverse_and_stiffness, by_impulse, by_velocity, own_R)
        found.append(Spring(K, over_blocks(spatial.apply, inverse, own_rhs)))  # apart from K: linear in rhs
    return found


def inverse_and_stiffness(by_impulse, by_velocity, R: Blocks):
    """G^-1 and K."""
    inverse = small_inverse(by_impulse + by_velocity * R[:, None, :])
    return inverse, spatial.compose(inverse, by_velocity)


def small_inverse(G: Float[Array, "block row row"]) -> Float[Array, "block row row"]:
    """Inverse of matrices of one to three rows by cofactors; of up to six, by blocks of three."""
    size = G.shape[1]
    if size == 1:
        return 1 / G
    if size == 2:
        a, b, c, d = (G[:, i, j] for i in range(2) for j in range(2))
        adjugate = jnp.stack([jnp.stack([d, -b], axis=1), jnp.stack([-c, a], axis=1)], axis=1)
        return adjugate / (a * d - b * c)[:, None, None]
    if size > 3:
        return _inverse_by_blocks(G)
    x, y, z = G[:, 0], G[:, 1], G[:, 2]
    columns = spatial.cross(y, z), spatial.cross(z, x), spatial.cross(x, y)
    return jnp.stack(columns, axis=2) / spatial.dot(x, columns[0])[:, None, None]


def _inverse_by_blocks(G: Float[Array, "block row row"]) -> Float[Array, "block row row"]:
    """By the Schur complement of the first three rows: of contacts, the normal and tangents, which can be inverted."""
    P, Q, S, T = G[:, :3, :3], G[:, :3, 3:], G[:, 3:, :3], G[:, 3:, 3:]
    first = small_inverse(P)
    above = spatial.compose(first, Q)
    last = small_inverse(T - spatial.compose(S, above))
    below = -spatial.compose(last, spatial.compose(S, first))
    corner = first - spatial.compose(above, below)
    right = -spatial.compose(above, last)
    return jnp.concatenate([jnp.concatenate([corner, right], axis=2), jnp.concatenate([below, last], axis=2)], axis=1)
