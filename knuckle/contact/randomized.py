"""Gradients of a function averaged over random offsets of its argument: for contact that is chaotic."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Estimate(NamedTuple):
    """Value and gradient of the averaged function, each with its standard error."""

    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    value_error: Float[Array, ""]
    gradient_error: Float[Array, " n"]


def randomized_gradient(
    function: Callable[[Float[Array, " n"]], Float[Array, ""]],
    x: Float[Array, " n"],
    *,
    width: float | Float[Array, ""],
    samples: int,
    key: Array,
) -> Estimate:
    """Value and gradient at x of the mean of function(x + width z), z normal, from pairs of opposite offsets.

    Needs values only (2 * samples of them), so it is right where the function jumps or its own gradient explodes; its
    error falls with sqrt(samples) and is told. (Smoothing by zeroth order: Nesterov and Spokoiny 2017.)
    """
    if samples < 2:
        raise ValueError(f"samples must be at least 2, so that there is an error to tell, got {samples}")
    x = jnp.asarray(x)
    offsets = jax.random.normal(key, (samples, *x.shape), x.dtype)

    def pair(z):
        ahead, behind = function(x + width * z), function(x - width * z)
        return 0.5 * (ahead + behind), (ahead - behind) / (2 * width) * z

    values, slopes = jax.vmap(pair)(offsets)
    error = 1 / jnp.sqrt(samples)
    return Estimate(
        value=jnp.mean(values),
        gradient=jnp.mean(slopes, axis=0),
        value_error=jnp.std(values, ddof=1) * error,
        gradient_error=jnp.std(slopes, axis=0, ddof=1) * error,
    )
