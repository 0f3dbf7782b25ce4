"""Parameters of a model that are drawn anew for each episode: by ranges, or from the posterior of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.model.model import Model
from knuckle.sysid.free_parameters import FreeParameters, parameters

Range: TypeAlias = tuple[float, float]


class Randomisation(NamedTuple):
    """How free numbers of a model are drawn."""

    free: FreeParameters | None
    draw: Callable[[Any], Float[Array, " free"]]

    def drawn(self, key) -> Float[Array, " free"]:
        return jnp.zeros(0) if self.free is None else self.draw(key)

    def applied(self, model: Model, z: Float[Array, " free"]) -> Model:
        return model if self.free is None else self.free.apply(model, z)


def randomisation(model: Model, given: Mapping[str, Range] | Randomisation | None) -> Randomisation:
    """Of factors by pattern: {"*.mass": (0.8, 1.2)} multiplies each mass by its own number of that range.

    Factors are drawn evenly in their logarithm. They are for values whose free number stands alone: masses, gains,
    damping, friction, stiffness, armature. What is zero stays zero; a pattern that finds zeros only is refused.
    """
    if isinstance(given, Randomisation):
        return given
    if not given:
        return Randomisation(None, lambda key: jnp.zeros(0))
    free = parameters(model, list(given))
    ends = {name: _factors(pattern, given[pattern]) for pattern in given for name in parameters(model, pattern).names}
    for pattern in given:
        found = parameters(model, pattern)
        if not any(np.any(value) for value in found.values(found.start).values()):
            raise ValueError(f"randomise: all that {pattern!r} names is zero, so a factor changes nothing")
    low, high = (np.log([ends[name][side] for name in free.names]) for side in (0, 1))
    value, logarithmic, slope = _shapes(free)

    def drawn(key) -> Float[Array, " free"]:
        factor = jax.random.uniform(key, (free.size,), minval=low, maxval=high)
        return jnp.where(logarithmic, factor, (jnp.exp(factor) - 1) * value / slope)

    return Randomisation(free, drawn)


def from_posterior(free: FreeParameters, mean, covariance) -> Randomisation:
    """Free numbers from a normal distribution: what a fit says, with what it does not know."""
    mean, covariance = np.asarray(mean, float), np.asarray(covariance, float)
    if mean.shape != (free.size,) or covariance.shape != (free.size, free.size):
        wanted = f"{free.size} numbers and a {free.size} x {free.size} covariance"
        raise ValueError(f"randomise: expected {wanted}, got shapes {mean.shape} and {covariance.shape}")
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    if not np.isfinite(values).all() or values.min(initial=0.0) < -1e-9 * max(values.max(initial=0.0), 1e-300):
        raise ValueError("randomise: the covariance is not positive semidefinite")
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    return Randomisation(free, lambda key: jnp.asarray(mean) + factor @ jax.random.normal(key, (free.size,)))


def _factors(pattern: str, ends: Range) -> Range:
    low, high = map(float, ends)
    if not 0 < low <= high < np.inf:
        raise ValueError(f"randomise: {pattern!r} needs factors 0 < low <= high, got {low:g} and {high:g}")
    return low, high


def _shapes(free: FreeParameters) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each parameter its value, whether its free number is the logarithm of a factor, and else its slope."""

    def at(z: float) -> np.ndarray:
        return np.concatenate([np.ravel(value) for value in free.values(np.full(free.size, z)).values()])

    with jax.enable_x64(True):
        once, twice, thrice = at(0.0), at(0.7), at(1.4)
    logarithmic = np.isclose(twice, once * np.exp(0.7), rtol=1e-9, atol=0)
    linear = np.isclose(thrice - twice, twice - once, rtol=1e-9, atol=1e-300) & (twice != once)
    for name, value, known in zip(free.names, once, logarithmic | linear, strict=True):
        if value != 0 and not known:
            raise ValueError(f"randomise: {name} depends on more than one free number, so it has no factor")
    return once, logarithmic, np.where(linear, (twice - once) / 0.7, 1.0)
