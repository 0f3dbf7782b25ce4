"""Which networks act where: declared apart from the physics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from knuckle.taps.augment import CONSTANT, PREVIOUS, Augment
from knuckle.taps.catalogue import checked_name, meaning_of

Parts = Mapping[str, Augment | tuple[Augment, ...]]


class Blueprint(eqx.Module):
    """Names of taps with the networks that act there; an ordinary argument of `step` and `rollout`.

    A pytree of arrays: jit sees it and it trains. `a | b` has the networks of both; at the same tap they act in turn.
    """

    augments: dict[str, tuple[Augment, ...]]

    def __init__(self, augments: Parts = {}):  # noqa: B006 (not changed)
        parts = {name: part if isinstance(part, tuple) else (part,) for name, part in augments.items()}
        for name, networks in parts.items():
            checked_name(name, "Blueprint")
            if meaning_of(name).read_only:
                raise ValueError(f"Blueprint: {name} can be read, not changed")
            for network in networks:
                if not isinstance(network, Augment):
                    raise ValueError(f"Blueprint: {name!r} needs kn.Augment(network, inputs), got {network!r}")
        self.augments = parts

    def __or__(self, other: Blueprint) -> Blueprint:
        if not isinstance(other, Blueprint):
            return NotImplemented
        names = dict.fromkeys((*self.augments, *other.augments))
        return Blueprint({name: self.augments.get(name, ()) + other.augments.get(name, ()) for name in names})

    def __iter__(self) -> Iterator[tuple[str, int, Augment]]:
        """Each network with its tap and its place there."""
        for name, networks in self.augments.items():
            for place, network in enumerate(networks):
                yield name, place, network

    @property
    def weights(self) -> dict[str, Any]:
        """What is trained: arrays of the networks, and gains."""
        return {_key(name, place): (a.weights, a.gain) for name, place, a in self}

    def with_weights(self, weights: dict[str, Any]) -> Blueprint:
        """This blueprint with what was trained."""

        def replaced(name, place, augment):
            new = weights[_key(name, place)]
            return eqx.tree_at(lambda a: (a.weights, a.gain), augment, new, is_leaf=lambda x: x is None)

        parts = {name: [] for name in self.augments}
        for name, place, augment in self:
            parts[name].append(replaced(name, place, augment))
        return Blueprint({name: tuple(part) for name, part in parts.items()})

    def scaled_to(self, values: Mapping[str, Any]) -> Blueprint:
        """The networks' inputs shifted and scaled to mean 0 and deviation 1 over recorded values (`kn.tap_values`).

        `values`: for each tap that is read, an array of samples.
        """
        from knuckle.taps.scaling import scaled

        def suited(name, augment):
            return augment if getattr(augment.network, "plain_values", False) else scaled(name, augment, values)

        return Blueprint({name: tuple(suited(name, a) for a in networks) for name, networks in self.augments.items()})

    def first_memory(self, values: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a first step remembers: zeros for quantities of the step before, recurrent states as they begin.

        `values()` gives every quantity of a step; only its shapes are asked for.
        """
        remembered = {i for _, _, a in self for i in a.inputs if i.startswith(PREVIOUS)}
        recurrent = [(name, place, a) for name, place, a in self if a.is_recurrent]
        if not remembered and not recurrent:
            return {}
        shapes = jax.eval_shape(values)
        memory = {}
        for item in sorted(remembered):
            name = item.removeprefix(PREVIOUS)
            if name not in shapes:
                raise ValueError(f"blueprint: this step has no {name}; it has {', '.join(sorted(shapes))}")
            memory[item] = jnp.zeros(shapes[name].shape, shapes[name].dtype)
        for name, place, augment in recurrent:
            rows = shapes[name].shape[0] if augment.rows is None else len(augment.rows)
            memory[state_key(name, place)] = augment.initial_state(rows)
        return memory

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return sum(int(jnp.size(leaf)) for leaf in jax.tree.leaves(self.weights))

    def __repr__(self) -> str:
        rows = [("tap", "mode", "share", "network", "numbers", "inputs")]
        for name, _, augment in self:
            count = sum(int(jnp.size(leaf)) for leaf in jax.tree.leaves((augment.weights, augment.gain)))
            inputs = ", ".join("number" if i.startswith(CONSTANT) else i for i in augment.inputs)
            rows.append((name, augment.mode, augment.share, type(augment.network).__name__, str(count), inputs))
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(["Blueprint", *lines]) if self.augments else "Blueprint (empty)"


def state_key(name: str, place: int) -> str:
    """Under which a recurrent network's state is remembered."""
    return f"state {_key(name, place)}"


def _key(name: str, place: int) -> str:
    return f"{name}#{place}" if place else name
