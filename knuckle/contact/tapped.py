"""Quantities of the contacts as a step uses them, after networks have acted on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.collide import Contacts
from knuckle.contact.touch import INACTIVE_GAP
from knuckle.model.model import Model
from knuckle.taps import Taps, of_rule

if TYPE_CHECKING:
    from knuckle.contact.scene import Scene

FARTHEST = 1.0  # networks see no more than this of a gap [m]: slots without a point have none
TANGENTS = 2  # that networks see, also where a plane of motion leaves one
FORCES = ("contact/normal_force", "contact/friction_force", "contact/impulse")


class ContactTaps(Taps):
    """Taps of all contacts, then of the contacts of each rule of `PerPair` by themselves."""

    def __init__(self, taps: Taps, contacts: Contacts):
        self.taps, self.contacts = taps, contacts

    def wanted(self, name):
        names = (name, *(of_rule(name, rule) for rule, _ in self.contacts.rules))
        asked = [self.taps.wanted(each) for each in names]  # all of them: what was asked is listed in messages
        return any(asked)

    def __call__(self, name, value, *, axis=None, tangent=None):
        value = self.taps(name, value, axis=axis, tangent=tangent)
        for rule, _ in self.contacts.rules:
            own, rows = of_rule(name, rule), self.contacts.rows_of(rule)
            if self.taps.wanted(own):
                value = value.at[rows].set(self.taps(own, value[rows]))
        return value


class RuleTaps(Taps):
    """Taps of the contacts of one rule of `PerPair`, whose quantities only that rule's model has."""

    def __init__(self, taps: Taps, rule: str):
        self.taps, self.rule = taps.taps if isinstance(taps, ContactTaps) else taps, rule

    def wanted(self, name):
        return self.taps.wanted(of_rule(name, self.rule))

    def __call__(self, name, value, *, axis=None, tangent=None):
        return self.taps(of_rule(name, self.rule), value, axis=axis, tangent=tangent)


def contacts_as_used(contacts: Contacts, taps: Taps) -> Contacts:
    """Contacts with depth and normal after networks; a slot without a point stays empty."""
    if taps.wanted("contact/depth"):
        depth = jnp.maximum(-contacts.gap, -FARTHEST)
        moved = contacts.gap - (taps("contact/depth", depth) - depth)
        gap = jnp.where(contacts.gap < INACTIVE_GAP, moved, contacts.gap)
        contacts = eqx.tree_at(lambda c: c.gap, contacts, gap)
    if taps.wanted("contact/normal"):
        plain = contacts.normal
        turned = plain + (spatial.normalize(taps("contact/normal", plain)) - spatial.normalize(plain))
        contacts = eqx.tree_at(lambda c: c.normal, contacts, turned)
    return contacts


def change_of_slip(model: Model, scene: Scene, qd) -> Float[Array, "near axis"] | None:
    """What networks add to the slip that the laws of contact see."""
    if not scene.taps.wanted("contact/slip"):
        return None
    slip = scene.speeds_before(model, qd)[:, 1:]
    both = jnp.pad(slip, ((0, 0), (0, TANGENTS - slip.shape[1])))
    change = scene.near.pick((scene.taps("contact/slip", both) - both)[:, : slip.shape[1]])
    return jnp.pad(change, ((0, 0), (1, 0)))


def acts_on_impulses(taps: Taps) -> bool:
    return any(map(taps.wanted, FORCES))


def impulses_as_used(
    scene: Scene, impulse: Float[Array, "near axis"], dt, *, friction_follows: bool | np.ndarray
) -> Float[Array, "near axis"]:
    """Impulses after networks, where a contact pushes; elsewhere they stay zero.

    Where friction is a multiple of the normal force it follows that force.
    """
    taps, near, axes = scene.taps, scene.near, impulse.shape[1]
    r = near.put_back(jnp.pad(impulse, ((0, 0), (0, 1 + TANGENTS - axes))), len(scene.contacts))
    pushes = r[:, 0] > 0
    push = taps("contact/normal_force", r[:, 0] / dt)
    friction = r[:, 1:] / dt
    if np.any(friction_follows):
        plain = jnp.where(pushes, r[:, 0], jnp.ones_like(r[:, 0])) / dt
        share = jnp.where(friction_follows, (push - r[:, 0] / dt) / plain, 0.0)
        friction = friction + share[:, None] * friction
    drag = taps("contact/friction_force", friction)
    change = dt * jnp.concatenate([(push - r[:, 0] / dt)[:, None], drag - r[:, 1:] / dt], axis=1)
    used = taps("contact/impulse", r + change)
    return near.pick(jnp.where(pushes[:, None], used, r))[:, :axes]
