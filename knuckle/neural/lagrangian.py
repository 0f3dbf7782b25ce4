"""What a Lagrangian leaves out: a learned part of it, as forces that keep a learned energy.

Added to L0, a learned L1(q, qd) = 1/2 qd^T dM(q) qd + a(q) qd - V(q) gives the force
tau = -(d/dt p + w x p - G^T dL1/dq), p = dL1/dqd (Hamel's equations: w x p for velocities in body axes, q' = G qd), and
1/2 qd^T dM qd + V then changes by exactly what tau takes from the mechanism.

Without dM this needs no acceleration: forces of a potential, and forces across the motion like those of a magnetic
field, that do no work. They are well posed in any explicit step. With dM, d/dt p holds dM qdd: the acceleration that
the force itself changes. Taking that of the step before is a fixed-point iteration in time: it converges to the right
motion as the step shrinks if the eigenvalues of M^-1 dM are below 1; if one is above, its error grows from step to
step. So dM is bounded: dM = b g L L^T / (1 + g |L|^2) has eigenvalues in [0, b) whatever the weights, and a
`mass_bound` b less than the smallest eigenvalue of the mass matrix (`kn.dynamics.crba`) makes the iteration converge
for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from knuckle.neural.coordinates import Coordinates
from knuckle.neural.energy import positive
from knuckle.neural.networks import MLP, checked_activation, checked_input, checked_sizes
from knuckle.neural.registry import Network, as_type_of, register

Vec = Float[Array | np.ndarray, " n"]


@register
class Lagrangian(Network):
    """The force of a learned part of the Lagrangian, for "joint/force" of inputs ("q", "qd").

    With dM there is a third input, `previous("joint/acceleration")`.

    Args:
        coordinates: a model, `Coordinates`, or the number of coordinates where there are no quaternions.
        mass_bound: largest eigenvalue that dM may have [kg m^2 or kg]; None: no dM, and no acceleration as input.
        magnetic: whether there is a term a(q) qd: forces across the motion that do no work.
    """

    potential_and_field: MLP  # V and a of the coordinates
    added_mass: MLP | None  # L of the coordinates
    gain: Float[Array, ""] | None  # of dM; zero at the start
    coordinates: Coordinates = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    mass_bound: float | None = eqx.field(static=True)
    magnetic: bool = eqx.field(static=True)

    def __init__(
        self,
        coordinates: Any,
        hidden: Sequence[int] = (16, 16),
        activation: str = "tanh",
        mass_bound: float | None = None,
        magnetic: bool = True,
        *,
        key: PRNGKeyArray,
    ):
        at = Coordinates.of(coordinates)
        if mass_bound is not None and not mass_bound > 0:
            raise ValueError(f"Lagrangian: mass_bound must be positive, or None, got {mass_bound}")
        self.coordinates, self.hidden = at, checked_sizes("Lagrangian: hidden", hidden, least=1)
        self.activation = checked_activation("Lagrangian: activation", activation)
        self.mass_bound, self.magnetic = None if mass_bound is None else float(mass_bound), bool(magnetic)
        first, second = jax.random.split(key)
        self.potential_and_field = MLP((at.features, *self.hidden, 1 + at.nv * self.magnetic), activation, key=first)
        self.added_mass, self.gain = None, None
        if mass_bound is not None:
            self.added_mass = MLP((at.features, *self.hidden, at.nv**2), activation, zero_last=False, key=second)
            self.gain = jnp.zeros(())

    starts_at_zero = True
    plain_values = True

    def __call__(self, x: Vec) -> Vec:
        """-(d/dt p + w x p - G^T dL1/dq)."""
        at, (q, qd, qdd) = self.coordinates, self._split(x)
        slope = jax.grad(self._lagrangian)
        momentum, momentum_rate = jax.jvp(jax.grad(self._lagrangian, 1), (q, qd), (at.rate(q, qd), qdd))
        return at.pulled(q, slope(q, qd)) - momentum_rate - at.turning(qd, momentum)

    def potential(self, x: Vec) -> Float[Array, ""]:
        """V [J] at the network's input."""
        return self._potential_and_field(self._split(x)[0])[0]

    def energy(self, x: Vec) -> Float[Array, ""]:
        """1/2 qd^T dM qd + V [J] at the network's input."""
        q, qd, _ = self._split(x)
        return 0.5 * jnp.dot(qd, self.mass_matrix(q) @ qd) + self._potential_and_field(q)[0]

    def mass_matrix(self, q: Vec) -> Float[Array, "nv nv"]:
        """dM(q): symmetric, eigenvalues in [0, mass_bound)."""
        n = self.coordinates.nv
        if self.added_mass is None or self.mass_bound is None:
            return jnp.zeros((n, n), q.dtype)
        L = self.added_mass(self.coordinates.seen(q)).reshape(n, n)
        gain = positive(as_type_of(q, self.gain))
        return self.mass_bound * gain / (1 + gain * jnp.sum(L * L)) * (L @ L.T)

    def _lagrangian(self, q: Vec, qd: Vec) -> Float[Array, ""]:
        both = self._potential_and_field(q)
        across = jnp.dot(both[1:], qd) if self.magnetic else jnp.zeros((), q.dtype)
        return 0.5 * jnp.dot(qd, self.mass_matrix(q) @ qd) + across - both[0]

    def _potential_and_field(self, q: Vec) -> Vec:
        return self.potential_and_field(self.coordinates.seen(q))

    def _split(self, x: Vec) -> tuple[Vec, Vec, Vec]:
        at = self.coordinates
        size = at.nq + at.nv * (1 if self.mass_bound is None else 2)
        q, rest = at.split(checked_input(self, x, size))
        return q, rest[: at.nv], rest[at.nv :] if self.mass_bound is not None else jnp.zeros_like(rest)
