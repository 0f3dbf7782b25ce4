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
from jaxtyping import Array, Float

from knuckle.contact.system import Vec

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


def without_gain(newton: Blow, plastic: Blow, free_speed: Vec) -> Blend:
    """The blow between a plastic one and Newton's that rebounds the most without a gain of kinetic energy."""
    if not newton.impulse.size:
        return Blend(newton.impulse, newton.v, jnp.asarray(jnp.inf, newton.v.dtype))
    change = newton.impulse - plastic.impulse
    work = _work(plastic, free_speed)
    room = jnp.maximum(work, 0.0) - work
    linear, square = jnp.sum(change * plastic.speed), jnp.sum(change * (newton.speed - plastic.speed))
    excess = linear + 0.5 * square - room
    scale = jnp.sum(jnp.abs(newton.impulse * free_speed)) + jnp.sum(jnp.abs(newton.impulse * newton.speed))
    decided = jnp.abs(excess) > ROUNDING * scale
    gains = decided & (excess > 0)
    share = jnp.where(gains, _root(linear, square, room, gains), jnp.ones_like(excess))
    size = jnp.sum(jnp.abs(change))
    to_cut = jnp.where(decided, jnp.abs(excess) / jnp.where(decided, size, jnp.ones_like(size)), jnp.inf)
    return Blend(
        plastic.impulse + share * change,
        plastic.v + share * (newton.v - plastic.v),
        jax.lax.stop_gradient(to_cut),
    )


def _work(blow: Blow, free_speed: Vec) -> Float[Array, ""]:
    """Kinetic energy that impulses add [J]: their work at the mean of the velocities before and after."""
    return 0.5 * jnp.sum(blow.impulse * (free_speed + blow.speed))


def _root(linear, square, room, gains) -> Float[Array, ""]:
    """The s > 0 with linear s + square s^2 / 2 = room >= 0, in the form that does not cancel."""
    inside = linear * linear + 2 * square * room
    root = jnp.sqrt(jnp.where(gains & (inside > 0), inside, jnp.ones_like(inside)))
    root = jnp.where(inside > 0, root, jnp.zeros_like(root))
    rising = linear > 0
    over = jnp.where(rising, linear + root, square)
    safe = jnp.where(gains & (over > 0), over, jnp.ones_like(over))
    return jnp.clip(jnp.where(rising, 2 * room, root - linear) / safe, 0.0, 1.0)
