"""Between the samples of a piece: controls as they arrive, and states as late sensors see them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.model.joints import difference, retract
from knuckle.model.model import Model, State
from knuckle.sysid.shots import Shots


def drive(shot: Shots, lag, substeps: int) -> Float[Array, "step nu"]:
    """Controls of all steps as they arrive, `lag` seconds late.

    Linear ones are taken in the middle of each step; held ones that are late on average over it, so that the lag has a
    derivative.
    """
    if not shot.linear and not shot.history:
        return jnp.repeat(jnp.asarray(shot.control)[:-1], substeps, axis=0)
    return _arriving(shot, lag, np.arange((shot.samples - 1) * substeps), substeps, middle=0.5)


def drive_at_samples(shot: Shots, lag, substeps: int) -> Float[Array, "sample nu"]:
    """Controls at the samples; held ones as the step uses them that begins there."""
    if not shot.linear and not shot.history:
        return jnp.asarray(shot.control)
    return _arriving(shot, lag, substeps * np.arange(shot.samples), substeps, middle=0.0)


def _arriving(shot: Shots, lag, step: np.ndarray, substeps: int, middle: float) -> Float[Array, "step nu"]:
    control = jnp.asarray(shot.control)
    if shot.linear:
        at = _place(shot, (step + middle) / substeps, lag)
        return _between(control, jnp.clip(at, 0.0, len(control) - 1.0))
    begin, end = step / substeps, (step + 1) / substeps
    spans = jnp.ones(len(control) - 1) if shot.stamps is None else jnp.diff(jnp.asarray(shot.stamps))
    total = jnp.concatenate([0 * control[:1], jnp.cumsum(control[:-1] * spans[:, None], axis=0)])
    clock = jnp.concatenate([jnp.zeros(1), jnp.cumsum(spans)])[:, None]
    wide = _between(clock, shot.history + end) - _between(clock, shot.history + begin)
    return (_between(total, _place(shot, end, lag)) - _between(total, _place(shot, begin, lag))) / wide


def _place(shot: Shots, sample: np.ndarray, lag) -> Float[Array, " place"]:
    """Where among the rows of controls that is which comes to places between samples `lag` seconds late."""
    at = jnp.asarray(shot.history + sample)
    if shot.stamps is None:
        return at - lag / shot.period
    stamps = jnp.asarray(shot.stamps)
    return _index(stamps, _between(stamps[:, None], at)[:, 0] - lag) if shot.history else at


def _index(stamps: Float[Array, " row"], time: Float[Array, " place"]) -> Float[Array, " place"]:
    """Places of times among stamps; beyond them in steps of the first or last."""
    below = jnp.clip(jnp.sum(stamps[None] <= time[:, None], axis=1) - 1, 0, len(stamps) - 2)
    return below.astype(time.dtype) + (time - stamps[below]) / (stamps[below + 1] - stamps[below])


def _between(table: Float[Array, "row n"], at: Float[Array | np.ndarray, " place"]) -> Float[Array, "place n"]:
    """Values at places between rows; straight on beyond the ends."""
    at = jnp.asarray(at)
    below = jnp.clip(jnp.floor(at).astype(int), 0, len(table) - 2)
    share = (at - below.astype(at.dtype))[:, None]
    return (1 - share) * table[below] + share * table[below + 1]


def late(model: Model, states: State, qdd: Float[Array, "sample nv"] | None, shot: Shots, lag):
    """States and accelerations `lag` seconds earlier: cubic between samples (Hermite), along the manifold."""
    last, stamps = shot.samples - 1, shot.sample_stamps
    if stamps is None:
        at, spans = jnp.arange(last + 1).astype(states.q.dtype) - lag / shot.period, jnp.full(last, shot.period)
    else:
        stamps = jnp.asarray(stamps)
        at, spans = _index(stamps, stamps - lag), jnp.diff(stamps)
    at = jnp.clip(at, 0.0, float(last))
    below = jnp.minimum(jnp.floor(at).astype(int), last - 1)
    share = at - below.astype(at.dtype)

    def between(s, h, q, q_next, v, v_next):
        step = difference(model, q, q_next)
        moved = s**2 * (3 - 2 * s) * step + h * s * (1 - s) * ((1 - s) * v - s * v_next)
        speed = 6 * s * (1 - s) * step / h + (1 - s) * (1 - 3 * s) * v + s * (3 * s - 2) * v_next
        return jnp.asarray(retract(model, q, moved)), speed

    ends = [part[rows] for part in (states.q, states.qd) for rows in (below, below + 1)]
    q, qd = jax.vmap(between)(share, spans[below], *ends)
    return State(q, qd), None if qdd is None else _between(qdd, at)
