"""Restitution that adds no energy: as much of Newton's rebound as friction and the other contacts leave room for.

Newton's law can gain energy where friction is strong and bodies are hit off their centre (Kane and Levinson 1985). The
passive law takes impulses r(s) = r_0 + s (r_1 - r_0) between a plastic blow and that of Newton, with the largest s in
[0, 1] at which they add no kinetic energy to what bodies would have without them, r.u + r.A r / 2 <= 0, or no more than
the plastic blow, which may undo overlap. Cones and non-penetration are convex, so r(s) keeps to them; s = 1 where
Newton's law is safe.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle.contact.system import Vec

Counted = Bool[np.ndarray, " row"]

ROUNDING = 1e-7  # of the work done: below it an impact that keeps its energy (e = 1) counts as safe


class Blow(NamedTuple):
    """Impulses, the joints' velocity after them, and that of the rows, all with derivatives."""

    impulse: Vec
    v: Vec
    speed: Vec


class Blend(NamedTuple):
    impulse: Vec
    v: Vec
    margin: Float[Array, ""]  # to where the rebound begins or ends to be cut [m/s]


def without_gain(newton: Blow, plastic: Blow, free_speed: Vec, counted: Counted | None = None) -> Blend:
    """The blow between a plastic one and Newton's that rebounds the most without a gain of kinetic energy.

    `counted`: the rows whose work must not add energy; None: all.
    """
    if not newton.impulse.size:
        return Blend(newton.impulse, newton.v, jnp.asarray(jnp.inf, newton.v.dtype))
    counts = jnp.ones_like(newton.impulse) if counted is None else jnp.asarray(counted, newton.impulse.dtype)
    hard, soft = counts * newton.impulse, counts * plastic.impulse
    change, faster = hard - soft, newton.speed - plastic.speed
    work = 0.5 * jnp.sum(soft * (free_speed + plastic.speed))  # kinetic energy that impulses add [J]
    room = jnp.maximum(work, 0.0) - work
    linear = 0.5 * jnp.sum(change * (free_speed + plastic.speed) + soft * faster)
    square = jnp.sum(change * faster)
    excess = linear + 0.5 * square - room
    scale = jnp.sum(jnp.abs(hard * free_speed)) + jnp.sum(jnp.abs(hard * newton.speed))
    decided = jnp.abs(excess) > ROUNDING * scale
    gains = decided & (excess > 0)
    share = jnp.where(gains, _root(linear, square, room, gains), jnp.ones_like(excess))
    size = jnp.sum(jnp.abs(change))
    to_cut = jnp.where(decided, jnp.abs(excess) / jnp.where(decided, size, jnp.ones_like(size)), jnp.inf)
    return Blend(
        plastic.impulse + share * (newton.impulse - plastic.impulse),
        plastic.v + share * (newton.v - plastic.v),
        jax.lax.stop_gradient(to_cut),
    )


def _root(linear, square, room, gains) -> Float[Array, ""]:
    """The s > 0 with linear s + square s^2 / 2 = room >= 0, in the form that does not cancel."""
    inside = linear * linear + 2 * square * room
    root = jnp.sqrt(jnp.where(gains & (inside > 0), inside, jnp.ones_like(inside)))
    root = jnp.where(inside > 0, root, jnp.zeros_like(root))
    rising = linear > 0
    over = jnp.where(rising, linear + root, square)
    safe = jnp.where(gains & (over > 0), over, jnp.ones_like(over))
    return jnp.clip(jnp.where(rising, 2 * room, root - linear) / safe, 0.0, 1.0)
