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
    parts: tuple[int, ...] = ()  # of `PerPair`: how many of them each rule has

    def count(self, contacts: int) -> int:
        """Of those that are solved."""
        return contacts if self.index is None else len(self.index)

    def pick(self, per_contact: Float[Array, "contact ..."]) -> Float[Array, "near ..."]:
        return per_contact if self.index is None else jnp.take(per_contact, self.index, axis=0, mode="clip")

    def pick_fixed(self, table: np.ndarray, dtype) -> Array | np.ndarray:
        """Rows of a constant table; if all contacts are solved, still a constant."""
        table = table.astype(dtype)
        return table if self.index is None else jnp.take(jnp.asarray(table), self.index, axis=0, mode="clip")

    def put_back(self, picked: Float[Array, "near axis"], count: int) -> Float[Array, "contact axis"]:
        if self.index is None:
            return picked
        return jnp.zeros((count, picked.shape[1]), picked.dtype).at[self.index].set(picked, mode="clip")

    def any_left_out(self, marks: Bool[Array, " contact"]) -> Bool[Array, ""]:
        """Whether a contact that was left out is marked."""
        return jnp.zeros((), bool) if self.index is None else jnp.any(marks.at[self.index].set(False))


def nearest(gap: Float[Array, " contact"], most: int, reach: Float[Array, ""] | None = None) -> Nearest:
    """All contacts, or `most`: those within `reach` [m] in their order, or, if they are more, the nearest."""
    if len(gap) <= most:
        return Nearest(None)
    gap = jax.lax.stop_gradient(gap)
    if reach is None:
        return Nearest(_smallest(gap, most))
    wanted = gap <= jax.lax.stop_gradient(reach)
    fits = jnp.sum(wanted.astype(jnp.int32)) <= most
    return Nearest(jax.lax.cond(fits, lambda: _wanted_first(wanted, most), lambda: _smallest(gap, most)))


def _smallest(gap: Float[Array, " contact"], most: int) -> Int[Array, " near"]:
    return jax.lax.top_k(-gap, most)[1].astype(jnp.int32)


def _wanted_first(wanted: Bool[Array, " contact"], most: int) -> Int[Array, " near"]:
    """Numbers of the entries that are wanted, then of others, no one twice."""
    marks = wanted.astype(jnp.int32)
    before, others = jnp.cumsum(marks), jnp.cumsum(1 - marks)
    place = jnp.where(wanted, before - 1, before[-1] + others - 1)
    number = jnp.arange(len(wanted), dtype=jnp.int32)
    return jnp.zeros(most, jnp.int32).at[place].set(number, mode="drop", unique_indices=True)
