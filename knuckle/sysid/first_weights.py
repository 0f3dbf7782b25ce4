"""First weights of networks: a fit that came to a bad place begins from others; the most probable end stays."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from knuckle.optim import Result
from knuckle.sysid.colour import left_of
from knuckle.sysid.jumps import SURE, beginning_anew
from knuckle.sysid.left import not_noise
from knuckle.sysid.noise import log_evidence
from knuckle.sysid.objective import Objective
from knuckle.sysid.shots import Shots
from knuckle.taps import Blueprint


class End(NamedTuple):
    """Where a search came to, with the noise and the ties that go with it."""

    last: Result
    noise: dict[str, float]
    shots: Shots
    continuity: float
    probability: float  # logarithm, up to a constant


def end(objective: Objective, last: Result, noise: dict[str, float]) -> End:
    counts = {key: np.count_nonzero(np.asarray(weight)) for key, weight in objective.shots.weight.items()}
    spread = sum(count * np.log(noise[key]) for key, count in counts.items() if count)
    return End(last, noise, objective.shots, objective.continuity, log_evidence(objective, last.x) - float(spread))


def holds(objective: Objective, x: np.ndarray) -> bool:
    """Whether the model carries on from piece to piece, and what it leaves is noise."""
    left = left_of(objective, x).values()
    return all(not_noise(part) is None for part in left) and beginning_anew(objective, x) < SURE


def untrained(objective: Objective) -> bool:
    """Whether a network begins without effect, with arrays of zeros: trained weights are not drawn anew."""
    blueprint = objective.simulator.blueprint
    return blueprint is not None and any(blank(weights) for weights in blueprint.weights.values())


def is_new(blueprint: Blueprint, tap: str) -> bool:
    """Whether a network at this tap was not trained yet."""
    return any(blank((augment.weights, augment.gain)) for augment in blueprint.augments[tap])


def blank(weights) -> bool:
    """Whether weights have an array of zeros, as those of a network that begins without effect."""
    return any(not np.any(w) for w in jax.tree.leaves(weights))


def redrawn(objective: Objective, x: np.ndarray, seed: tuple[int, int]) -> np.ndarray:
    """A start with the first weights of untrained networks drawn anew: each array spread as it was, zeros as they were.

    A network that was trained before, beside one that was not, stays as it is.
    """
    rng, simulator = np.random.default_rng(seed), objective.simulator
    assert simulator.blueprint is not None

    def anew(w):
        return np.mean(w) + np.std(w) * rng.standard_normal(w.shape)

    weights = sorted(simulator.blueprint.weights.items())
    drawn = {key: jax.tree.map(anew, part) if blank(part) else part for key, part in weights}
    return np.concatenate([x[: simulator.physical], ravel_pytree(drawn)[0], x[simulator.size :]])
