"""Limits, equalities and dry friction of joints as rows of a step: their laws, and the regularisation of all rows."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.constraints import beyond_touching, lengths
from knuckle.contact.laws import Between, Bounded, Law
from knuckle.contact.scene import Scene, Time
from knuckle.contact.system import Vec
from knuckle.dynamics.aba import inverse_or_zero
from knuckle.dynamics.crba import joint_inertias
from knuckle.model.model import Model
from knuckle.tree import rows

HELD = 1e-8  # regularisation of limits, equalities and joint friction over the inverse of what they move


def joint_laws(model: Model, scene: Scene, dt: Time, share: float, most: float) -> tuple[Law, ...]:
    """Laws of limits, equalities and dry friction; a `share` of errors is undone in a step, at `most` [m/s, rad/s]."""
    above, below = ((share * x + (1 - share) * beyond_touching(x)) / dt for x in scene.limits[1:])
    above, below = jnp.maximum(above, -most), jnp.maximum(below, -most)
    back = -share * scene.ties.error / dt
    speed = lengths(back, scene.ties.vectors)
    back = jnp.where(speed > most, most / jnp.where(speed > most, speed, 1.0), 1.0) * back
    friction = jnp.maximum(rows(jnp.asarray(model.friction), scene.rubbing), 0.0)
    laws = Between(-above, below), Between(back, back, equal=True), Bounded(dt * friction)
    return tuple(law for law in laws if law.rows)


def regularisation(softness: Float[Array, " near"], heavy: Model, scene: Scene) -> Vec:
    """R of all rows [1/kg], with derivative; of joint rows a share of what they move if other joints are held."""
    soft = jnp.repeat(softness, scene.contact_rows)
    if not len(scene.J_joint):
        return soft
    diagonal = spatial.apply(scene.J_joint**2, inverse_or_zero(joint_inertias(heavy, scene.body)))
    start = len(scene.limits.J)
    parts = [diagonal[:start]]
    for size, full in zip(scene.ties.block, scene.ties.full_block, strict=True):
        parts.append(jnp.full((size,), jnp.sum(diagonal[start : start + size]) / full))
        start += size
    R = jnp.concatenate([*parts, diagonal[start:]])
    return jnp.concatenate([soft, HELD * jnp.where(R > 0, R, 1.0)])  # 1: a row that moves nothing is not singular
