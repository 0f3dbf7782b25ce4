"""Rigid contact: impulses at velocity level over all bodies together (NeuralSim III), with the time of impact resolved.

Laws: Signorini, Coulomb on the true cone, Newton's restitution. Where a contact bounces within a step, its impulse acts
from the moment of impact, so positions, and gradients through the bounce, are those of the motion.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact import newton
from knuckle.contact.collide import Contacts, collide
from knuckle.contact.pairs import contact_pairs
from knuckle.contact.problem import Problem, margin
from knuckle.contact.rows import contact_jacobian, effective_inverse_mass, response, world_axes
from knuckle.dynamics.aba import factor_mass_matrix
from knuckle.kinematics import articulation
from knuckle.model.joints import retract
from knuckle.model.model import Model, State

PerContact = float | Float[Array, " contact"]


class Outcome(NamedTuple):
    """What the contacts of one step did."""

    contacts: Contacts
    impulse: Float[Array, "contact 3"]  # normal and two tangents [N s]
    residual: Float[Array, ""]  # of the solution [m/s]
    converged: Bool[Array, ""]
    iterations: Int[Array, ""]
    margin: Float[Array, ""]  # to the nearest change of mode [m/s]; near zero the gradient is one-sided


class Nearest(NamedTuple):
    """The contacts that are solved: all, or those with the smallest gaps."""

    index: Int[Array, " near"] | None

    def pick(self, per_contact: Float[Array, "contact ..."]) -> Float[Array, "near ..."]:
        return per_contact if self.index is None else per_contact[self.index]

    def put_back(self, picked: Float[Array, "near 3"], count: int) -> Float[Array, "contact 3"]:
        return picked if self.index is None else jnp.zeros((count, 3), picked.dtype).at[self.index].set(picked)

    def any_left_out(self, marks: Bool[Array, " contact"]) -> Bool[Array, ""]:
        """Whether a contact that was left out is marked."""
        return jnp.any(marks & False) if self.index is None else jnp.any(marks.at[self.index].set(False))


def nearest(gap: Float[Array, " contact"], most: int) -> Nearest:
    return Nearest(None) if len(gap) <= most else Nearest(jax.lax.top_k(-jax.lax.stop_gradient(gap), most)[1])


class Impulse(eqx.Module):
    """Rigid contact by impulses; numbers are one for all contacts, or one each.

    `alpha` and `beta` [1/s] are Baumgarte's: overlap phi is made to obey phi'' + 2 alpha phi' + beta^2 phi = 0.
    """

    restitution: PerContact = 0.0
    friction: PerContact | None = None  # None: from the shapes
    alpha: PerContact = 200.0
    beta: PerContact = 200.0
    mixing: PerContact = 1e-6  # R (CFM) over the mean diagonal of the contact's block of A
    tolerance: float = eqx.field(static=True, default=1e-8)  # residual [m/s]
    most_iterations: int = eqx.field(static=True, default=600)
    most_contacts: int = eqx.field(static=True, default=64)  # solved together: those with the smallest gaps
    time_of_impact: bool = eqx.field(static=True, default=True)
    self_collision: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        for name in ("restitution", "friction", "alpha", "beta", "mixing"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Tracer) and not np.all(np.asarray(value) >= 0):
                raise ValueError(f"Impulse: {name} must not be negative, got {value}")

    def begin(self, model: Model, state: State) -> State:
        """The state with impulses to start the first search from."""
        return State(state.q, state.qd, self._start(model, state).reshape(-1))

    def _start(self, model: Model, state: State) -> Float[Array, "contact 3"]:
        if state.impulse is not None:
            return jnp.asarray(state.impulse).reshape(-1, 3)
        contacts = jax.eval_shape(lambda q: self.contacts(model, q), state.q)
        return jnp.zeros((len(contacts), 3), state.qd.dtype)

    def contacts(self, model: Model, q: Float[Array | np.ndarray, " nq"]) -> Contacts:
        return collide(model, jnp.asarray(q), contact_pairs(model, self_collision=self.self_collision))

    def resolve(
        self, model: Model, heavy: Model, state: State, v_free: Float[Array, " nv"], dt: float | Float[Array, ""]
    ) -> tuple[State, Outcome]:
        """The state after dt, of bodies that would move at v_free if they did not touch, and what the contacts did.

        `heavy` is the model whose mass matrix impulses meet.
        """
        contacts = self.contacts(model, state.q)
        body = articulation(heavy, state.q)
        factor = factor_mass_matrix(heavy, body.axes, body.inertia)
        J = contact_jacobian(model, world_axes(model, body), contacts)
        target, weight = self._targets(contacts, J[:, 0], state.qd, v_free, dt)
        near = nearest(contacts.gap, self.most_contacts)
        problem, flat = self._problem(model, factor, J, v_free, target, contacts, near)
        start = near.pick(self._start(model, state)).reshape(-1)
        solved = newton.solve(problem, start, tolerance=self.tolerance, most_iterations=self.most_iterations)
        impulse = solved.impulse.reshape(-1, 3)
        dofs = model.topology.dofs
        qd = v_free + response(dofs, factor, flat, solved.impulse)
        delayed = (impulse * near.pick(weight)[:, None]).reshape(-1)
        q = retract(model, state.q, dt * v_free + response(dofs, factor, flat, delayed))
        missed = near.any_left_out(spatial.apply(J[:, 0], qd) < target)
        outcome = Outcome(
            contacts=contacts,
            impulse=near.put_back(impulse, len(contacts)),
            residual=solved.residual,
            converged=solved.converged & ~missed,
            iterations=solved.iterations,
            margin=margin(problem, solved.impulse),
        )
        return State(q, qd, outcome.impulse.reshape(-1)), outcome

    def _targets(self, contacts: Contacts, J_normal, qd, v_free, dt) -> tuple[Array, Array]:
        """Least normal velocity after the step, and for how long its impulse moves the bodies."""
        gap = contacts.gap
        erp = dt * self.beta**2 / jnp.maximum(dt * self.beta**2 + 2 * self.alpha, 1e-300)
        kept_apart = -jnp.where(gap < 0, erp * gap, gap) / dt
        if not self.time_of_impact:
            before = spatial.apply(J_normal, qd)
            return jnp.maximum(kept_apart, -self.restitution * before), jnp.full_like(gap, dt)
        u = spatial.apply(J_normal, v_free)
        a = (u - spatial.apply(J_normal, qd)) / dt
        hit = gap + dt * u < 0
        approach = jnp.where(hit & (u < 0), -u, jnp.ones_like(u))
        moment = jnp.clip(gap / approach, 0.0, dt)
        left = dt - moment
        rebound = -self.restitution * (u - left * a) + left * a
        bounce = hit & (u < 0) & (rebound > 0)
        return jnp.where(bounce, rebound, kept_apart), jnp.where(bounce, left, jnp.full_like(gap, dt))

    def _problem(self, model, factor, J, v_free, target, contacts: Contacts, near: Nearest) -> tuple[Problem, Array]:
        """The impulse problem of the nearest contacts, and the rows of their Jacobian."""
        J = near.pick(J)
        count = len(J)
        flat = J.reshape(-1, model.nv)
        A = effective_inverse_mass(model.topology.dofs, factor, flat)
        block = jnp.mean(jnp.diagonal(A).reshape(count, 3), axis=1)
        mixing = near.pick(self._each(self.mixing, contacts)) * block
        u_free = spatial.apply(flat, v_free).reshape(count, 3)
        b = u_free - jnp.pad(near.pick(target)[:, None], ((0, 0), (0, 2)))
        friction = contacts.friction if self.friction is None else self._each(self.friction, contacts)
        none = jnp.zeros(0, A.dtype)
        return Problem(A + jnp.diag(jnp.repeat(mixing, 3)), b.reshape(-1), near.pick(friction), none, none), flat

    def _each(self, value: PerContact, contacts: Contacts) -> Float[Array, " contact"]:
        return jnp.broadcast_to(jnp.asarray(value, contacts.gap.dtype), (len(contacts),))
