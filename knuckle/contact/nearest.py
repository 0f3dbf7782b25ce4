"""Which of many possible contacts are solved together."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Nearest(NamedTuple):
    """The contacts that are solved: all, or those with the smallest gaps."""

    index: Int[Array, " near"] | None

    def count(self, contacts: int) -> int:
        """Of those that are solved."""
        return contacts if self.index is None else len(self.index)

    def pick(self, per_contact: Float[Array, "contact ..."]) -> Float[Array, "near ..."]:
        return per_contact if self.index is None else per_contact[self.index]

    def pick_fixed(self, table: np.ndarray, dtype) -> Array | np.ndarray:
        """Rows of a constant table; if all contacts are solved, still a constant."""
        table = table.astype(dtype)
        return table if self.index is None else jnp.asarray(table)[self.index]

    def put_back(self, picked: Float[Array, "near axis"], count: int) -> Float[Array, "contact axis"]:
        if self.index is None:
            return picked
        return jnp.zeros((count, picked.shape[1]), picked.dtype).at[self.index].set(picked)

    def any_left_out(self, marks: Bool[Array, " contact"]) -> Bool[Array, ""]:
        """Whether a contact that was left out is marked."""
        return jnp.zeros((), bool) if self.index is None else jnp.any(marks.at[self.index].set(False))


def nearest(gap: Float[Array, " contact"], most: int) -> Nearest:
    return Nearest(None) if len(gap) <= most else Nearest(jax.lax.top_k(-jax.lax.stop_gradient(gap), most)[1])
