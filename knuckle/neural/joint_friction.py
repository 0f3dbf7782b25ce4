"""A parametric friction law of joints with what a model cannot hold: load dependence, Stribeck's curve, pre-sliding."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from knuckle.neural.networks import checked_input
from knuckle.neural.registry import Network, as_type_of, register

Vec = Float[Array | np.ndarray, " n"]


@register
class JointFriction(Network):
    """-(coulomb + load |L| + stribeck exp(-(qd / stribeck_speed)^2)) z + constant, at "joint/force" in mode "add".

    Inputs are ("q", "qd", "joint/force"). L is the force that a joint passes on to the links, all forces at the joint
    less this friction. z is tanh(qd / speed), or for joints with reach > 0 the state of Dahl's model: after a reversal
    it runs to 1 or -1 over the displacement `reach`. The state begins as tanh(qd / speed).

    Args:
        coordinates: entries of q that belong to single joints (revolute, prismatic).
        freedoms: their entries of qd. nq, nv: how many entries q and qd have.
        pre_sliding: of each of these joints, whether z is Dahl's state.
    """

    coulomb: Float[Array, " joint"]  # [N m or N]
    load: Float[Array, " joint"]  # friction per unit of load
    stribeck: Float[Array, " joint"]  # [N m or N]
    stribeck_speed: Float[Array, " joint"]  # [rad/s or m/s]
    speed: Float[Array, " joint"]  # width of the tanh [rad/s or m/s]
    reach: Float[Array, " joint"]  # [rad or m]
    constant: Float[Array, " joint"]  # [N m or N]
    coordinates: tuple[int, ...] = eqx.field(static=True)
    freedoms: tuple[int, ...] = eqx.field(static=True)
    nq: int = eqx.field(static=True)
    nv: int = eqx.field(static=True)
    pre_sliding: tuple[bool, ...] = eqx.field(static=True)

    def __init__(
        self,
        coordinates: Sequence[int],
        freedoms: Sequence[int],
        nq: int,
        nv: int,
        pre_sliding: Sequence[bool],
        *,
        key: PRNGKeyArray | None = None,
    ):
        self.coordinates, self.freedoms = tuple(map(int, coordinates)), tuple(map(int, freedoms))
        self.nq, self.nv, self.pre_sliding = int(nq), int(nv), tuple(map(bool, pre_sliding))
        count = len(self.freedoms)
        if not len(self.coordinates) == count == len(self.pre_sliding):
            raise ValueError("JointFriction: coordinates, freedoms and pre_sliding must have one entry per joint")
        if any(not 0 <= k < self.nq for k in self.coordinates) or any(not 0 <= k < self.nv for k in self.freedoms):
            raise ValueError(f"JointFriction: coordinates and freedoms must be below nq={nq} and nv={nv}")
        self.coulomb = self.load = self.stribeck = self.constant = jnp.zeros(count)
        self.stribeck_speed = self.speed = self.reach = jnp.ones(count)

    starts_at_zero = True
    plain_values = True

    def initial_state(self) -> tuple[Array, Array, Array]:
        """Coordinates and z of the last step, and whether there was one."""
        zero = jnp.zeros(len(self.freedoms), self.coulomb.dtype)
        return zero, zero, jnp.zeros((), self.coulomb.dtype)

    def __call__(self, x: Vec, state) -> tuple[Vec, tuple[Array, Array, Array]]:
        x = checked_input(self, x, self.nq + 2 * self.nv)
        law, before = as_type_of(x, (self, state))
        q = x[np.array(self.coordinates, int)]
        qd = x[self.nq + np.array(self.freedoms, int)]
        force = x[self.nq + self.nv + np.array(self.freedoms, int)]
        z = law._sliding(q, qd, before)
        dry = law.coulomb + law.stribeck * jnp.exp(-jnp.square(qd / law.stribeck_speed))
        push = force + law.constant - dry * z
        passed_on = jnp.abs(push) / (1 + law.load * z * jnp.sign(push))  # |L| of L = push - load |L| z
        friction = law.constant - (dry + law.load * passed_on) * z
        after = (q.astype(state[0].dtype), z.astype(state[1].dtype), jnp.ones((), state[2].dtype))
        return jnp.zeros(self.nv, x.dtype).at[np.array(self.freedoms, int)].set(friction), after

    def _sliding(self, q: Vec, qd: Vec, before) -> Vec:
        smooth = jnp.tanh(qd / self.speed)
        if not any(self.pre_sliding):
            return smooth
        q_before, z_before, begun = before
        step = q - q_before
        towards = jnp.sign(step)
        dahl = towards + (z_before - towards) * jnp.exp(-jnp.abs(step) / self.reach)
        return jnp.where(np.array(self.pre_sliding) & (begun > 0), dahl, smooth)
