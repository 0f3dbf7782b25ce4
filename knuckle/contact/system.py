"""Rows coupled through the masses, u = (A + R) r + b, under their laws, and how far an answer is from them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from knuckle.contact.coupling import Coupling, Rows, RowSpace, Square, Vec, joined, layout_of, plus, split, times
from knuckle.contact.laws import Law, Scale, Slopes, over_blocks

Laws = tuple[Law, ...]
LEAST_SOFTNESS = 1e-12  # R over the velocity per impulse of a row that Newton's step counts with at least


class Free(NamedTuple):
    """Where b of the contacts comes from: their velocities at velocities of the joints, less what they aim at."""

    velocity: Float[Array, " dof"]
    aim: Float[Array, "contact axis"]
    within: Bool[Array, " contact"] | None  # of contacts that are in reach; None: all may be


class System(NamedTuple):
    """u = (A + R) r + b and the laws of its rows: R is the regularisation, b what velocities aim at."""

    coupling: Coupling
    R: Rows
    b: Rows
    laws: Laws
    free: Free | None = None

    @staticmethod
    def of(coupling: Coupling, R: Vec, b: Vec, laws: Laws) -> System:
        return System(coupling, split(layout_of(laws), R), split(layout_of(laws), b), laws)

    def renewed(self) -> System:
        """With b of the contacts computed here, for branches that are seldom taken."""
        if self.free is None:
            return self
        coupling = self.coupling.held()
        contact = coupling.contact_velocity(self.free.velocity) - self.free.aim
        return self._replace(coupling=coupling, b=(contact, *self.b[1:]))

    @staticmethod
    def of_matrix(A: Square, b: Vec, laws: Laws) -> System:
        """With A as a matrix that holds the regularisation."""
        return System.of(RowSpace(A, layout_of(laws)), jnp.zeros_like(b), b, laws)

    @property
    def A(self) -> Square:
        """With the regularisation."""
        assert isinstance(self.coupling, RowSpace)
        return self.coupling.A + jnp.diag(joined(self.R))

    def split(self, x: Vec) -> Rows:
        return split(layout_of(self.laws), x)


def velocity(system: System, r: Rows) -> Rows:
    return plus(plus(system.coupling.velocity(r), times(system.R, r)), system.b)


def row_scales(system: System) -> Rows:
    """Velocity per impulse of each row [1/kg]: the diagonal of A + R."""
    return plus(system.coupling.diagonal(), system.R)


def block_scales(system: System) -> list[Scale]:
    """Velocity per impulse of each block [1/kg]: the mean of its rows'."""
    return [jnp.mean(part, axis=1) for part in row_scales(system)]


def over_rows(laws: Laws, scales: list[Scale]) -> Rows:
    """What blocks have, for each of their rows."""
    return tuple(
        jnp.broadcast_to(scale[:, None], (len(scale), law.block)) for law, scale in zip(laws, scales, strict=True)
    )


def imbalance(laws: Laws, r: Rows, u: Rows, scales: list[Scale]) -> Rows:
    """Zero at the solution [m/s]."""
    parts = zip(laws, r, u, scales, strict=True)
    return tuple(over_blocks(type(law).imbalance, law, *at) for law, *at in parts)


def residual(laws: Laws, r: Rows, u: Rows, scales: list[Scale]) -> Float[Array, ""]:
    """The largest error of any law [m/s]; NaN where there is one."""
    return largest(tuple(over_blocks(type(law).error, law, *at) for law, *at in zip(laws, r, u, scales, strict=True)))


def largest(x: Rows) -> Float[Array, ""]:
    """The largest size of any entry; NaN where there is one."""
    return jnp.max(jnp.stack([jnp.max(jnp.abs(part), initial=0.0) for part in x]))


def margin(laws: Laws, r: Rows, u: Rows, scales: list[Scale]) -> Float[Array, ""]:
    """Distance to the nearest change of mode [m/s]: near zero the derivative is one-sided."""
    parts = zip(laws, r, u, scales, strict=True)
    return jnp.min(jnp.concatenate([over_blocks(type(law).margin, law, *at) for law, *at in parts]), initial=jnp.inf)


def slopes(laws: Laws, r: Rows, u: Rows, scales: list[Scale]) -> list[Slopes]:
    """Generalised derivatives of the imbalance by r and by u, law by law."""
    parts = zip(laws, r, u, scales, strict=True)
    return [over_blocks(type(law).slopes, law, *at) for law, *at in parts]


def newton_step(system: System, r: Rows, u: Rows, scales: list[Scale]) -> Rows:
    """The change of r that makes the linearised imbalance vanish."""
    off = jax.tree.map(jnp.negative, imbalance(system.laws, r, u, scales))
    return system.coupling.solve(slopes(system.laws, r, u, scales), _positive_R(system, scales), off)


def refined_solution(system: System, at: list[Slopes], scales: list[Scale], rhs: Rows) -> tuple[Rows, Vec]:
    """dr with (F_r + F_u (A + R)) dr = rhs, and the velocities of the joints that it causes."""
    return system.coupling.refined(at, _positive_R(system, scales), system.R, rhs)


def _positive_R(system: System, scales: list[Scale]) -> Rows:
    return jax.tree.map(lambda R, scale: jnp.maximum(R, LEAST_SOFTNESS * scale[:, None]), system.R, tuple(scales))
