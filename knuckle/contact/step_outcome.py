"""What contacts and constraints did in a step, and whether it is solved."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.bounds import fastest
from knuckle.contact.constraints import lengths
from knuckle.contact.outcome import GIVES_WAY, Outcome
from knuckle.contact.push import Push
from knuckle.contact.rows import inverse_masses
from knuckle.contact.scene import Scene, Time, in_all_axes
from knuckle.contact.solver import Solution
from knuckle.contact.system import System, Vec, block_scales, margin
from knuckle.model.model import Model

SQUEEZED = 100.0  # [m/s]; an impulse that would speed a link up by more: it is held between what nothing moves


class Answer(NamedTuple):
    """The system of a step, what was found, and impulses, velocities of rows and of joints with their derivatives."""

    system: System
    found: Solution
    r: Vec
    u: Vec
    v: Vec


def outcome_of(model: Model, scene: Scene, push: Push, answer: Answer, R: Vec, dt: Time, moved) -> Outcome:
    """What contacts and constraints did in a step that ends at coordinates `moved`."""
    system, found, r, u, v = answer
    contact, *others = system.split(r)
    flat = jnp.concatenate([part.reshape(-1) for part in others]) if others else r[:0]
    ends = np.cumsum([len(scene.limits.J), len(scene.ties.J)])
    axes = scene.frame.shape[1]
    velocity = scene.speeds(model, v)[:, :axes]
    if push.reliable is not None:
        known = jnp.where(push.reliable, found.residual, jnp.inf)
        found = found._replace(converged=found.converged & push.reliable, residual=known)
    nearest_change = margin(system.laws, system.split(found.impulse), system.split(u), block_scales(system))
    if push.margin is not None:
        nearest_change = jnp.minimum(nearest_change, jnp.min(push.margin, initial=jnp.inf))
    slack = _slack(scene, R[push.aim.size :] * r[push.aim.size :])
    solved = found.converged & ~_leaves_out(model, scene, v, dt) & (slack <= GIVES_WAY)
    if scene.drift is not None or model.topology.prescribed:
        pressed = jnp.max(scene.near.pick(inverse_masses(model, scene.contacts)) * contact[:, 0], initial=0.0)
        solved = solved & (pressed <= SQUEEZED)
    if scene.reach is not None:
        solved = solved & (scene.movers * dt * fastest(model, scene.body, v) <= scene.reach)
    return Outcome(
        contacts=scene.contacts,
        frame=scene.full_frame,
        impulse=scene.near.put_back(in_all_axes(contact[:, :axes]), len(scene.contacts)),
        velocity=in_all_axes(velocity),
        limit=spatial.apply_transpose(scene.limits.J, flat[: ends[0]]),
        equality=spatial.apply(jnp.asarray(scene.ties.lift, r.dtype), flat[ends[0] : ends[1]]),
        friction=jnp.zeros(model.nv, r.dtype).at[scene.rubbing].set(flat[ends[1] :]),
        residual=found.residual,
        converged=solved & _all_finite(found.residual, r, v, moved),
        iterations=found.iterations,
        margin=nearest_change,
        slack=slack,
        violation=_violation(scene, v, dt),
        torque=scene.torque(contact[:, axes:]),
    )


def _leaves_out(model: Model, scene: Scene, v: Vec, dt: Time) -> Bool[Array, ""]:
    """Whether a contact that is not solved should have pushed."""

    def any_sinks() -> Bool[Array, ""]:
        return scene.near.any_left_out(scene.contacts.gap + dt * scene.speeds(model, v)[:, 0] < 0)

    most = scene.near.count(len(scene.contacts))
    if scene.near.index is None or scene.reach is None:
        return any_sinks()
    within = jnp.sum((scene.contacts.gap <= scene.reach).astype(jnp.int32))
    return jax.lax.cond(within > most, any_sinks, lambda: jnp.zeros((), bool))


def _violation(scene: Scene, v: Vec, dt: Time) -> Float[Array, ""]:
    """Of the worst limit or equality after the step, to first order in dt [m or rad]."""
    held, ties = scene.limits, scene.ties
    moved, slid = (dt * spatial.apply(rows.J, v) for rows in (held, ties))
    slid = slid if ties.drift is None else slid + dt * ties.drift
    past = jnp.concatenate([-(held.above + moved), moved - held.below, lengths(ties.error + slid, ties.vectors)])
    return jax.lax.stop_gradient(jnp.max(past, initial=0.0))


def _slack(scene: Scene, give: Vec) -> Float[Array, ""]:
    """The fastest that a limit, an equality or a joint with dry friction gives way [m/s or rad/s]."""
    start, stop = len(scene.limits.J), len(scene.limits.J) + len(scene.ties.J)
    ties = lengths(give[start:stop], scene.ties.vectors)
    return jnp.max(jnp.abs(jnp.concatenate([give[:start], ties, give[stop:]])), initial=0.0)


def _all_finite(*values: Array) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(value)) for value in values]))
