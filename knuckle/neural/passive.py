"""Forces of joints that obey laws of energy whatever the weights: passive, dissipative, conservative.

They act on "joint/force" or "joint/passive_force" in mode "add" and read coordinates and velocities as they are: an
Augment that scales or bounds them would break the law, so these networks say `plain_values`. Networks inside them see
angles as they are (or as sine and cosine, `Coordinates.periodic`) and quaternions as rotation matrices.
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
from knuckle.neural.energy import Damping, Potential
from knuckle.neural.networks import checked_activation, checked_input, checked_sizes
from knuckle.neural.registry import Network, register

Vec = Float[Array | np.ndarray, " n"]
HIDDEN = (16, 16)


@register
class Passive(Network):
    """tau = -dV/dq - D(q, qd) qd, D = g L L^T, of inputs ("q", "qd"): it never gives more energy than it has taken.

    Args:
        coordinates: a model, `Coordinates`, or the number of coordinates where there are no quaternions.
        hidden: sizes of the hidden layers of V and of L.
        structure: of L: "full" (lower triangular) or "diagonal" (no coupling of joints).
    """

    stored: Potential
    lost: Damping
    coordinates: Coordinates = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    structure: str = eqx.field(static=True)

    def __init__(
        self,
        coordinates: Any,
        hidden: Sequence[int] = HIDDEN,
        activation: str = "tanh",
        structure: str = "full",
        *,
        key: PRNGKeyArray,
    ):
        self.coordinates, self.hidden, self.activation = _shape_of(self, coordinates, hidden, activation)
        for_stored, for_lost = jax.random.split(key)
        self.stored = Potential(self.coordinates, self.hidden, activation, for_stored)
        self.lost = Damping(self.coordinates, self.hidden, activation, structure, for_lost)
        self.structure = structure

    starts_at_zero = True
    plain_values = True

    def __call__(self, x: Vec) -> Vec:
        q, qd = _state(self, x)
        return self.stored.force(q) + self.lost.force(q, qd)

    def potential(self, x: Vec) -> Float[Array, ""]:
        """V [J] at the network's input, q and qd as one vector."""
        return self.stored(_state(self, x)[0])

    def damping_matrix(self, x: Vec) -> Float[Array, "nv nv"]:
        """D at the network's input, q and qd as one vector."""
        return self.lost.matrix(*_state(self, x))

    def dissipation(self, x: Vec) -> Float[Array, ""]:
        """-qd^T D qd [W], never positive."""
        return self.lost.power(*_state(self, x))


@register
class Dissipative(Network):
    """tau = -D(q, qd) qd, D = g L L^T, of inputs ("q", "qd"): it only takes energy. Arguments as `Passive`."""

    lost: Damping
    coordinates: Coordinates = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    structure: str = eqx.field(static=True)

    def __init__(
        self,
        coordinates: Any,
        hidden: Sequence[int] = HIDDEN,
        activation: str = "tanh",
        structure: str = "full",
        *,
        key: PRNGKeyArray,
    ):
        self.coordinates, self.hidden, self.activation = _shape_of(self, coordinates, hidden, activation)
        self.lost = Damping(self.coordinates, self.hidden, activation, structure, key)
        self.structure = structure

    starts_at_zero = True
    plain_values = True

    def __call__(self, x: Vec) -> Vec:
        return self.lost.force(*_state(self, x))

    def potential(self, x: Vec) -> Float[Array, ""]:
        """Nothing is stored: zero."""
        return jnp.zeros((), jnp.asarray(x).dtype)

    def damping_matrix(self, x: Vec) -> Float[Array, "nv nv"]:
        """D at the network's input, q and qd as one vector."""
        return self.lost.matrix(*_state(self, x))

    def dissipation(self, x: Vec) -> Float[Array, ""]:
        """-qd^T D qd [W], never positive."""
        return self.lost.power(*_state(self, x))


@register
class Conservative(Network):
    """tau = -dV/dq of the input "q": around any closed path it does no work. Arguments as `Passive`."""

    stored: Potential
    coordinates: Coordinates = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __init__(
        self, coordinates: Any, hidden: Sequence[int] = HIDDEN, activation: str = "tanh", *, key: PRNGKeyArray
    ):
        self.coordinates, self.hidden, self.activation = _shape_of(self, coordinates, hidden, activation)
        self.stored = Potential(self.coordinates, self.hidden, activation, key)

    starts_at_zero = True
    plain_values = True

    def __call__(self, x: Vec) -> Vec:
        return self.stored.force(checked_input(self, x, self.coordinates.nq))

    def potential(self, x: Vec) -> Float[Array, ""]:
        """V [J] at the network's input, q."""
        return self.stored(checked_input(self, x, self.coordinates.nq))


def _shape_of(network: Network, coordinates: Any, hidden: Sequence[int], activation: str):
    name = type(network).__name__
    sizes = checked_sizes(f"{name}: hidden", hidden, least=1)
    return Coordinates.of(coordinates), sizes, checked_activation(f"{name}: activation", activation)


def _state(network: Passive | Dissipative, x: Vec) -> tuple[Vec, Vec]:
    at = network.coordinates
    return at.split(checked_input(network, x, at.nq + at.nv))
