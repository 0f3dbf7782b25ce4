"""Scales of a network's inputs and output from recorded values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.taps.augment import CONSTANT, PREVIOUS, Augment, Value
from knuckle.taps.catalogue import meaning_of

LEAST = 1e-9  # a deviation below this share of the mean size is that of a constant


def scaled(name: str, augment: Augment, values: Mapping[str, Any]) -> Augment:
    """The network with inputs of mean 0 and deviation 1 over the samples, and outputs in units of its quantity's size.

    An input that does not vary keeps its scale. Outputs in mode "scale" are relative and keep theirs.
    """
    needed = {name, *(i.removeprefix(PREVIOUS) for i in augment.inputs if not i.startswith(CONSTANT))}
    missing = sorted(needed - set(values))
    if missing:
        raise ValueError(f"scaled_to: values lack {', '.join(missing)}; there are {', '.join(sorted(values))}")
    x = _samples(name, augment, values)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    varies = deviation > LEAST * (1e-300 + jnp.abs(x).max(axis=0))
    scale = jnp.where(varies, deviation, jnp.ones_like(deviation))
    size = jnp.sqrt(jnp.mean(jnp.asarray(values[name]) ** 2))
    output = None if augment.mode == "scale" else jnp.where(size > 0, size, jnp.ones_like(size))
    fields = (jnp.where(varies, mean, jnp.zeros_like(mean)), scale, output)
    return eqx.tree_at(
        lambda a: (a.input_offset, a.input_scale, a.output_scale), augment, fields, is_leaf=lambda x: x is None
    )


def _samples(name: str, augment: Augment, values: Mapping[str, Any]) -> Float[Array, "sample input"]:
    """Each thing that the network would have read."""

    def axis(key: str) -> str | None:
        if key in ("q", "next/q"):
            return "dof" if np.shape(values["q"])[-1] == np.shape(values.get("qd", values["q"]))[-1] else None
        return meaning_of(key).axis

    def read(sample: dict[str, Array]):
        found = []
        for item in augment.inputs:
            key = item.removeprefix(PREVIOUS)
            constant = item.startswith(CONSTANT)
            array = augment.constants[int(item.removeprefix(CONSTANT))] if constant else sample[key]
            found.append(Value(array, None if constant else axis(key)))
        return augment.read(found, axis(name), sample[name].shape)

    used = {key: jnp.asarray(value) for key, value in values.items()}
    x = jax.vmap(read)(used)
    return x.reshape(-1, x.shape[-1])
