"""The tangent space of states: where derivatives, gains and quadratic models of planning live."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.model.joints import difference, retract
from knuckle.model.model import Model, State


class Space(NamedTuple):
    """Changes of a state: nv of q (three per quaternion), nv of qd, then what networks keep from step to step.

    Impulses of contact are where the next search starts; they are no part of the state.
    """

    model: Model

    def move(self, state: State, change: Float[Array, " n"]) -> State:
        nv = self.model.nv
        q, qd = retract(self.model, state.q, change[:nv]), state.qd + change[nv : 2 * nv]
        return State(q, qd, state.impulse, _moved(state.memory, change[2 * nv :]))

    def between(self, start: State, end: State) -> Float[Array, " n"]:
        """The change that leads from one state to another: move(start, change) = end."""
        kept = [jnp.ravel(b - a) for a, b in zip(_real(start.memory), _real(end.memory), strict=True)]
        return jnp.concatenate([difference(self.model, start.q, end.q), end.qd - start.qd, *kept])

    def size(self, state: State) -> int:
        return 2 * self.model.nv + sum(leaf.size for leaf in _real(state.memory))


def _is_real(leaf) -> bool:
    return jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.inexact)


def _real(memory) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves(memory) if _is_real(leaf)]


def _moved(memory, change: Float[Array, " n"]):
    leaves, tree = jax.tree.flatten(memory)
    moved, start = [], 0
    for leaf in leaves:
        if _is_real(leaf):
            moved.append(leaf + change[start : start + leaf.size].reshape(leaf.shape))
            start += leaf.size
        else:
            moved.append(leaf)
    return jax.tree.unflatten(tree, moved)
