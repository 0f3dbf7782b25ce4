"""The rows of a step: which there are, how they move, and what their impulses do to the links."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.collide import Contacts
from knuckle.contact.constraints import JointRows, Range, Tie
from knuckle.contact.drift import Drift
from knuckle.contact.laws import over_blocks
from knuckle.contact.nearest import Nearest
from knuckle.contact.rows import (
    Jacobian,
    WorldAxes,
    contact_jacobian,
    effective_inverse_mass,
    picked_sides,
    picked_speeds,
    picked_wrenches,
    point_speeds,
    point_wrenches,
    world_axes,
)
from knuckle.contact.system import Vec
from knuckle.contact.turning import (
    contact_dimensions,
    sliding_with_turning,
    turning_axes,
    turning_jacobian,
    turning_rows,
    turning_speeds,
    turning_wrenches,
)
from knuckle.dynamics.aba import factor_mass_matrix
from knuckle.kinematics import Articulation
from knuckle.model.model import Model
from knuckle.taps import PLAIN, Taps
from knuckle.tree import rows

Time = float | Float[Array, ""]
AXES = 3  # of a contact: in a model that moves in a plane two are solved, but states and outcomes have all


class Scene(NamedTuple):
    """The rows of a step: contacts, then limits, equalities and joint friction."""

    contacts: Contacts
    frame: Float[Array, "contact axis 3"]
    near: Nearest
    present: JointRows
    limits: Range
    ties: Tie
    rubbing: np.ndarray  # degrees of freedom with a row of dry friction
    slots: np.ndarray  # where the joints' rows stand among all that the topology can have
    joint_rows: int  # how many it can have
    J_joint: Jacobian  # of limits, equalities and joint friction
    body: Articulation
    plane: np.ndarray | None  # the normal of the plane in which the model is known to move
    taps: Taps = PLAIN
    reach: Float[Array, ""] | None = None  # shapes farther apart may have been passed over [m]
    movers: int = 2  # how many of two shapes may move
    sliding: Float[Array, " contact"] | None = None  # coefficients of friction as used
    turning: Float[Array, "contact turn 3"] | None = None  # axes of torsional and rolling friction, times lengths [m]
    drift: Drift | None = None  # velocity of the contacts by bodies that follow paths
    picked_frame: Float[Array, "near axis 3"] | None = None  # of contacts that were picked at run time

    @property
    def contact_rows(self) -> int:
        """Rows of a contact: normal and tangents, then those of turning."""
        return self.frame.shape[1] + (0 if self.turning is None else self.turning.shape[1])

    def with_friction(self, model: Model, friction: Float[Array, " contact"]) -> Scene:
        """With coefficients of sliding friction, and the axes of turning that have friction."""
        condim, planar = contact_dimensions(model.geometry, self.contacts), self.plane is not None
        sliding = sliding_with_turning(condim, friction)
        if not turning_rows(condim, planar):
            return self._replace(sliding=sliding)
        axes = turning_axes(model.geometry, self.contacts, condim, self.full_frame, sliding, planar)
        return self._replace(sliding=sliding, turning=axes)

    def state_axes(self, model: Model) -> int:
        """Impulses of a contact in a state: along all axes and about them, whether or not a plane is known."""
        return AXES + turning_rows(contact_dimensions(model.geometry, self.contacts), planar=False)

    def to_state(self, model: Model, impulse: Float[Array, "near axis"]) -> Float[Array, "contact axis"]:
        """Impulses of the contacts as a state keeps them."""
        everywhere = self.near.put_back(impulse, len(self.contacts))
        along, about = everywhere[:, : self.frame.shape[1]], everywhere[:, self.frame.shape[1] :]
        left_out = self.state_axes(model) - AXES - about.shape[1]
        return jnp.concatenate([in_all_axes(along), jnp.pad(about, ((0, 0), (left_out, 0)))], axis=1)

    def of_state(self, model: Model, impulse: Float[Array, " entry"]) -> Float[Array, "near axis"]:
        """The inverse of `to_state`."""
        each = impulse.reshape(len(self.contacts), self.state_axes(model))
        about = self.contact_rows - self.frame.shape[1]
        kept = each[:, : self.frame.shape[1]], each[:, each.shape[1] - about :]
        return self.near.pick(kept[0] if not about else jnp.concatenate(kept, axis=1))

    @property
    def within(self) -> Bool[Array, " near"] | None:
        """Which of the contacts that are solved are in reach; None if that is not known."""
        if self.reach is None:
            return None
        reach = self.reach
        return over_blocks(lambda gap: gap <= reach, self.near.pick(self.contacts.gap))

    @property
    def friction(self) -> Float[Array, " contact"]:
        """Coefficients of sliding friction as used."""
        assert self.sliding is not None
        return self.sliding

    @property
    def near_frame(self) -> Float[Array, "near axis 3"]:
        """Axes of the contacts that are solved."""
        return self.near.pick(self.frame) if self.picked_frame is None else self.picked_frame

    @property
    def full_frame(self) -> Float[Array, "contact 3 3"]:
        """All axes of the contacts, the one across a plane of motion too."""
        if self.plane is None:
            return self.frame
        across = jnp.broadcast_to(jnp.asarray(self.plane, self.frame.dtype), self.contacts.normal.shape)
        return jnp.concatenate([self.frame, across[:, None]], axis=1)

    def to_layout(self, r: Vec) -> Float[Array, " joint_row"]:
        """Impulses of the joints' rows that are solved, among all that the topology can have."""
        start, stop = len(self.limits.J), len(self.limits.J) + len(self.ties.J)
        ties = spatial.apply(jnp.asarray(self.ties.lift, r.dtype), r[start:stop])
        return jnp.zeros(self.joint_rows, r.dtype).at[self.slots].set(jnp.concatenate([r[:start], ties, r[stop:]]))

    def to_solved(self, impulse: Float[Array, " joint_row"]) -> Vec:
        """The inverse of `to_layout`."""
        own, start = rows(impulse, self.slots), len(self.limits.J)
        stop = start + len(self.ties.lift)
        ties = spatial.apply_transpose(jnp.asarray(self.ties.lift, impulse.dtype), own[start:stop])
        return jnp.concatenate([own[:start], ties, own[stop:]])

    def torque(self, impulse: Float[Array, "near turn"]) -> Float[Array, "contact 3"] | None:
        """Angular impulses of torsional and rolling friction, world axes; None if there are none."""
        if self.turning is None:
            return None
        return spatial.apply_transpose(self.turning, self.near.put_back(impulse, len(self.contacts)))

    def inverse_masses(self, heavy: Model) -> Float[Array, "row row"]:
        """A over the contacts, with derivative."""
        J = self.jacobian(heavy, world_axes(heavy, self.body))
        factor = factor_mass_matrix(heavy, self.body.axes, self.body.inertia)
        return effective_inverse_mass(heavy.topology.dofs, factor, J.reshape(-1, heavy.nv))

    def speeds(self, model: Model, v: Vec) -> Float[Array, "contact axis"]:
        """Velocities of the contacts in this step, with derivative."""
        own = self._own_speeds(model, v)
        return own if self.drift is None else own + self.drift.during(self.turning)

    def speeds_before(self, model: Model, qd: Vec) -> Float[Array, "contact axis"]:
        """Velocities of the contacts as the step before left them, with derivative."""
        own = self._own_speeds(model, qd)
        return own if self.drift is None else own + self.drift.before(self.turning)

    def _own_speeds(self, model: Model, v: Vec) -> Float[Array, "contact axis"]:
        """Velocities of the contacts by those of the joints."""
        along = point_speeds(model, self.body, self.contacts, self.frame, v)
        if self.turning is None:
            return along
        return jnp.concatenate([along, turning_speeds(model, self.body, self.contacts, self.turning, v)], axis=1)

    def jacobian(self, model: Model, axes: WorldAxes) -> Float[Array, "near axis dof"]:
        """Velocities of the contacts that are solved per joint speed."""
        J = contact_jacobian(model, axes, self.contacts, self.near_frame, self.near)
        if self.turning is None:
            return J
        turned = turning_jacobian(model, axes, self.contacts, self.turning, self.near)
        return jnp.concatenate([J, turned], axis=1)

    def near_speeds(self, model: Model, v: Vec) -> Float[Array, "near axis"]:
        """Velocities of the contacts that are solved, with derivative."""
        if self.near.index is None or self.turning is not None or self.drift is not None:
            return self.near.pick(self.speeds(model, v))
        sides = picked_sides(model, self.contacts, self.near)
        return picked_speeds(model, self.body, sides, self.near.pick(self.contacts.point), self.near_frame, v)

    def wrenches(self, model: Model, impulse: Float[Array, "near axis"]) -> Float[Array, "link 6"]:
        """Impulses of contacts as impulses on the links, with derivative."""
        axes = self.frame.shape[1]
        if self.near.index is not None and self.turning is None:
            sides, point = picked_sides(model, self.contacts, self.near), self.near.pick(self.contacts.point)
            return picked_wrenches(model, self.body, sides, point, self.near_frame, impulse)
        everywhere = self.near.put_back(impulse, len(self.contacts))
        if self.turning is None:
            return point_wrenches(model, self.body, self.contacts, self.frame, everywhere)
        pushed = point_wrenches(model, self.body, self.contacts, self.frame, everywhere[:, :axes])
        return pushed + turning_wrenches(model, self.body, self.contacts, self.turning, everywhere[:, axes:])


def in_all_axes(x: Float[Array, "contact axis"]) -> Float[Array, "contact 3"]:
    """With zeros across the plane of motion."""
    return x if x.shape[1] == AXES else jnp.pad(x, ((0, 0), (0, AXES - x.shape[1])))
