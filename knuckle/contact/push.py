"""How the contacts of a step push: what a contact model makes of a scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle.contact.laws import Blocks, Law


class Push(NamedTuple):
    """How the contacts that are solved push."""

    law: Law
    aim: Float[Array, "near axis"]  # velocity that the law counts from [m/s]
    moment: Callable[[Blocks], Blocks] | None = None  # impulses times when they act, after the step's start [N s^2]
    derivative_law: Law | None = None  # whose solution's derivative stands for that of `law`
    margin: Float[Array, " near"] | None = None  # to where the aim or the moment has a corner or a jump [m/s]
    rebound: Float[Array, "near axis"] | None = None  # the part of the aim that is cut where it would add energy
    reliable: Bool[Array, ""] | None = None  # whether the law itself could be computed
    cuts: np.ndarray | None = None  # of the solved contacts, those whose work the cut counts; None: all

    def with_margin(self, other: Float[Array, ""]) -> Push:
        """With a margin of all contacts together beside those of each."""
        own = jnp.broadcast_to(other, self.aim.shape[:1]) if self.margin is None else jnp.minimum(self.margin, other)
        return self._replace(margin=own)
