"""Velocities that bodies on prescribed paths add to contacts."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.collide import Contacts
from knuckle.prescribed import BodyMotion
from knuckle.tree import rows, sum_rows


class Drift(NamedTuple):
    """Velocity of a's point against b's, and how a turns against b, by prescribed motion alone; world axes."""

    frame: Float[Array, "contact axis 3"]
    point_before: Float[Array, "contact 3"]  # over the step before [m/s]
    spin_before: Float[Array, "contact 3"]  # [rad/s]
    point: Float[Array, "contact 3"]  # over this step
    spin: Float[Array, "contact 3"]

    def before(self, turning: Float[Array, "contact turn 3"] | None) -> Float[Array, "contact axis"]:
        """Over the step before, along the axes of each contact's frame and about those of turning [m/s]."""
        return self._along(self.point_before, self.spin_before, turning)

    def during(self, turning: Float[Array, "contact turn 3"] | None) -> Float[Array, "contact axis"]:
        """Over this step."""
        return self._along(self.point, self.spin, turning)

    def _along(self, point, spin, turning) -> Float[Array, "contact axis"]:
        along = spatial.apply(self.frame, point)
        return along if turning is None else jnp.concatenate([along, spatial.apply(turning, spin)], axis=1)

    def picked(self, own: slice) -> Drift:
        """Of some of the contacts."""
        return Drift(*(x[own] for x in self))


def contact_drift(contacts: Contacts, frame: Float[Array, "contact axis 3"], moving: BodyMotion) -> Drift:
    """Of contacts with shapes of bodies on the world that follow paths."""
    shapes = zip(contacts.shape_a, contacts.shape_b, strict=True)
    sides = [(k, pair[i], 1.0 - 2.0 * i) for k, pair in enumerate(shapes) for i in (0, 1)]
    sides = [(k, moving.shape_body[shape], sign) for k, shape, sign in sides if moving.shape_body[shape] >= 0]
    if not sides:
        return Drift(frame, *(jnp.zeros((len(contacts), 3), frame.dtype),) * 4)
    contact, body, sign = (np.array(column) for column in zip(*sides, strict=True))
    point = rows(contacts.point, contact)

    def of_contacts(velocity: Float[Array, "side 3"]) -> Float[Array, "contact 3"]:
        return sum_rows(jnp.asarray(sign, frame.dtype)[:, None] * velocity, contact, len(contacts))

    parts = []
    for before in (True, False):
        parts += [moving.point_velocity(body, point, before=before), moving.angular_velocity(body, before=before)]
    return Drift(frame, *map(of_contacts, parts))
