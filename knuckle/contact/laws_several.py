"""Contacts under several laws, one after the other, seen as one law: all of them are solved together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from knuckle.contact.laws import Blocks, Law, over_blocks


class Several(Law):
    """Laws of neighbouring groups of blocks, all of one size."""

    laws: tuple[Law, ...]

    @property
    def block(self):
        return self.laws[0].block

    @property
    def rows(self):
        return sum(law.rows for law in self.laws)

    def imbalance(self, r, u, scale):
        return self._each(lambda law: type(law).imbalance, r, u, scale)

    def slopes(self, r, u, scale):
        return self._each(lambda law: type(law).slopes, r, u, scale)

    def error(self, r, u, scale):
        return self._each(lambda law: type(law).error, r, u, scale)

    def margin(self, r, u, scale):
        return self._each(lambda law: type(law).margin, r, u, scale)

    def admissible(self, r):
        return self._each(lambda law: type(law).admissible, r)

    def _each(self, method: Callable[[Law], Callable[..., Any]], *arguments: Blocks) -> Any:
        """What each law gives for its own blocks."""
        parts, start = [], 0
        for law in self.laws:
            stop = start + law.rows // law.block
            parts.append(over_blocks(method(law), law, *(x[start:stop] for x in arguments)))
            start = stop
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *parts)


def in_one(laws: list[Law]) -> Law:
    """One law of all blocks."""
    return laws[0] if len(laws) == 1 else Several(tuple(laws))


def each_of(law: Law) -> tuple[Law, ...]:
    """The laws of the groups of blocks."""
    return law.laws if isinstance(law, Several) else (law,)
