"""Rigid contact as the mixed complementarity problem of the 2018 paper, solved by an interior-point method.

As `Impulse`, but friction is a pyramid and the search follows the central path, on which it can stop: with `smoothing`
value and derivative, or the derivative alone, are those of the relaxed problem (End-to-End Differentiable Physics).
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact import interior
from knuckle.contact.coupling import joined
from knuckle.contact.impulse import Impulse, each_contact
from knuckle.contact.interior_problem import Problem, Split, join, split
from knuckle.contact.interior_pyramid import allowed, corners, to_mode_change
from knuckle.contact.laws import Between, Bounded, Coulomb, Law, slopes_by_jacobian
from knuckle.contact.numbers import check_count
from knuckle.contact.push import Push
from knuckle.contact.rows import effective_inverse_mass, inverse_masses
from knuckle.contact.scene import Scene, Time
from knuckle.contact.search import search
from knuckle.contact.solver import Solution
from knuckle.contact.system import Laws, System, Vec
from knuckle.dynamics.aba import factor_mass_matrix
from knuckle.model.model import Model

IDLE = 1e-13  # of a row's diagonal of A: what keeps the two sides of a limit from pushing against each other
PATIENCE = 3  # iterations of the search that takes over, over those of the interior point
FARTHEST = 1e3  # a gap closes no row that is this many times farther than anything moves
LEAST_WORK = 1e-6  # of the relaxation of a row: that of one that is farther still, as of a joint without a limit


class Polygon(Coulomb):
    """Coulomb's law with a regular polygon in place of the cone's circle."""

    directions: int = eqx.field(static=True, default=4)
    work: Float[Array, " row"] | None = None  # impulse * velocity where they are relaxed, of all rows of a system [J]

    def imbalance(self, r, u, scale):
        return scale[:, None] * r - _lawful(scale[:, None] * r - u, self.friction, self.directions)

    def slopes(self, r, u, scale):
        hard = Polygon(self.friction, self.tangents, self.directions)
        return slopes_by_jacobian(hard, r, u, scale)

    def error(self, r, u, scale):
        return self.imbalance(r, u, scale)

    def margin(self, r, u, scale):
        aim = _padded(scale[:, None] * r - u)
        room = self.friction * jnp.maximum(aim[:, 0], 0.0)
        tangent = jnp.where(self.friction > 0, to_mode_change(aim[:, 1:], room, self.directions), jnp.inf)
        return jnp.where(aim[:, 0] > 0, jnp.minimum(aim[:, 0], tangent), -aim[:, 0])


def _padded(x: Float[Array, "contact axis"]) -> Float[Array, "contact 3"]:
    return jnp.pad(x, ((0, 0), (0, 3 - x.shape[1])))


def _lawful(aim: Float[Array, "contact axis"], friction, directions: int) -> Float[Array, "contact axis"]:
    return allowed(_padded(aim), friction, directions)[:, : aim.shape[1]]


class InteriorPoint(Impulse):
    """Rigid contact with a friction pyramid of `directions` corners, by a primal-dual interior-point method.

    What that leaves unsolved (few stacks) goes to the search of `Impulse`, with iterations of its own.
    Limits and joint friction are relaxed too, over the mean of the contacts' `smoothing`.
    """

    directions: int = eqx.field(static=True, default=4)  # in a plane of motion, the line between two of them

    def __check_init__(self):
        check_count(self, "directions", 2)
        corners(self.directions)
        if self.solver != "newton":
            raise ValueError(f"InteriorPoint: has a solver of its own: leave solver out, got {self.solver!r}")

    @property
    def needs_matrix(self):
        return True

    def hard_law(self, friction: Float[Array, " near"], scene: Scene) -> Law:
        if scene.turning is not None:
            raise ValueError("InteriorPoint has no torsional and rolling friction (condim 4 and 6): use Impulse")
        tangents = scene.frame.shape[1] - 1
        line = tangents == 1 and self.smoothing is None  # the relaxed law depends on the number of corners
        return Polygon(friction, tangents, directions=2 if line else self.directions)

    def soft_law(self, model: Model, friction: Float[Array, " near"], scene: Scene) -> Law | None:
        return None  # the interior point method relaxes the law itself

    def push(self, model: Model, heavy: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Push:
        push = super().push(model, heavy, scene, qd, v_free, dt)
        if self.smoothing is None:
            return push
        work = self._work(model, heavy, scene)
        return push._replace(law=eqx.tree_at(lambda law: law.work, push.law, work, is_leaf=lambda x: x is None))

    def _work(self, model: Model, heavy: Model, scene: Scene) -> Vec:
        """(smoothing / 2)^2 over the inverse mass that each row meets, with derivative [J]."""
        width = jnp.asarray(self.smoothing, scene.frame.dtype)
        contact = scene.near.pick((each_contact(width, scene) / 2) ** 2 / inverse_masses(model, scene.contacts))
        factor = factor_mass_matrix(heavy, scene.body.axes, scene.body.inertia)
        A = effective_inverse_mass(heavy.topology.dofs, factor, scene.J_joint)
        moved = jnp.diagonal(A)
        joint = (jnp.mean(width) / 2) ** 2 / jnp.where(moved > 0, moved, 1.0)
        return jnp.concatenate([jnp.repeat(contact, scene.frame.shape[1]), joint])

    def solve(self, system: System, start: Vec) -> Solution:
        found = self._interior(jax.lax.stop_gradient(system), jax.lax.stop_gradient(start))
        if self.smoothing is not None and self.smooth == "both":
            return found
        most = PATIENCE * self.most_iterations
        last = search(system, found.impulse, tolerance=self.tolerance, most_iterations=most)
        relaxed_too = last.converged & found.converged
        solved = last.converged if self.smoothing is None else relaxed_too
        return last._replace(converged=solved, iterations=found.iterations + last.iterations)

    def with_derivative(self, system: System, u: Vec, v: Vec, r: Vec) -> tuple[Vec, Vec]:
        """The search's own rule for a problem whose b moves as u does at fixed r."""
        if not r.size:
            return r, v
        fixed = system._replace(coupling=jax.lax.stop_gradient(system.coupling), R=jax.lax.stop_gradient(system.R))
        moving = fixed._replace(b=fixed.split(u - spatial.apply(fixed.A, r)))
        impulse = self._interior(moving, r).impulse
        change = impulse - jax.lax.stop_gradient(impulse)
        return r + change, v + fixed.coupling.joint_velocity(fixed.split(change))

    def _interior(self, system: System, start: Vec) -> Solution:
        """The search on the system as a mixed complementarity problem."""
        if not start.size:
            return Solution.of_no_rows(start)
        lift = jnp.asarray(_lift(system.laws), start.dtype)
        problem, law = _as_problem(system, lift), _parts(system.laws).contact
        work = None if law.work is None else spatial.apply_transpose(jnp.abs(lift), law.work)
        near = _nearness(problem, work)
        found = interior.solve(
            problem._replace(b=near * problem.b),
            _split_limits(system.laws, start, lift),
            tolerance=self.tolerance,
            most_iterations=self.most_iterations,
            directions=law.directions,
            smooth_value=self.smooth == "both",
            work=None if work is None else work * jnp.maximum(near, LEAST_WORK),
        )
        return found._replace(impulse=spatial.apply(lift, found.impulse))


class _Parts(NamedTuple):
    """The laws of a system by what they are in the problem."""

    contact: Polygon
    limits: list[Between]
    ties: list[Between]
    dry: list[Bounded]

    @property
    def contacts(self) -> int:
        return self.contact.rows // self.contact.block

    @property
    def one_sided(self) -> slice:
        """The problem's rows of limits, two for each."""
        first = 3 * self.contacts
        return slice(first, first + sum(2 * law.rows for law in self.limits))


def _parts(laws: Laws) -> _Parts:
    contact = laws[0]
    assert isinstance(contact, Polygon)
    between = [law for law in laws if isinstance(law, Between)]
    return _Parts(
        contact,
        [law for law in between if not law.equal],
        [law for law in between if law.equal],
        [law for law in laws if isinstance(law, Bounded)],
    )


def _lift(laws: Laws) -> np.ndarray:
    """Rows of the system by rows of the problem: three per contact, limits as two one-sided rows."""
    contact, limits, ties, dry = parts = _parts(laws)
    blocks = [np.kron(np.eye(parts.contacts), np.eye(contact.block, 3))]
    blocks += [np.concatenate([np.eye(law.rows), -np.eye(law.rows)], axis=1) for law in limits]
    blocks += [np.eye(law.rows) for law in (*ties, *dry)]
    lift = np.zeros((sum(len(b) for b in blocks), sum(b.shape[1] for b in blocks)))
    at = np.zeros(2, int)
    for b in blocks:
        lift[at[0] : at[0] + b.shape[0], at[1] : at[1] + b.shape[1]] = b
        at += b.shape
    return lift


def _as_problem(system: System, lift: Array) -> Problem:
    contact, limits, ties, dry = parts = _parts(system.laws)
    A = spatial.compose(spatial.compose(lift.T, system.A), lift)
    offsets = [jnp.zeros(3 * parts.contacts, A.dtype), *(jnp.concatenate([law.lower, -law.upper]) for law in limits)]
    offsets += [*(law.lower for law in ties), *(jnp.zeros(law.rows, A.dtype) for law in dry)]
    b = spatial.apply_transpose(lift, joined(system.b)) - jnp.concatenate(offsets)
    return Problem(
        A=A + jnp.diag(_idle(A, parts)),
        b=b,
        friction=contact.friction,
        bound=dry[0].bound if dry else jnp.zeros(0, A.dtype),
        one_sided=jnp.zeros(parts.one_sided.stop - parts.one_sided.start, A.dtype),
    )


def _idle(A: Float[Array, "row row"], parts: _Parts) -> Vec:
    """What is added to the diagonal of A: for a planar contact's tangent that there is not, and for limits."""
    diagonal = jnp.diagonal(A)
    idle = jnp.zeros_like(diagonal).at[parts.one_sided].set(IDLE * diagonal[parts.one_sided])
    if parts.contact.block == 2:
        end = 3 * parts.contacts
        idle = idle.at[2:end:3].set(diagonal[0:end:3])
    return idle


def _nearness(problem: Problem, work: Vec | None) -> Vec:
    """What velocities are multiplied by: less than 1 in rows that nothing could close, which would set the scale.

    A contact's rows have one factor. The relaxed impulse of such a row is work over velocity: with the work multiplied
    too it stays as it is, but for the share 1 / FARTHEST.
    """
    rows = split(problem, problem.b)
    closing = -rows.contact[:, 0], -rows.one_sided
    speeds = [jnp.abs(x.reshape(-1)) for x in (rows.contact[:, 1:], rows.equal, rows.bounded)]
    if work is not None:
        speeds.append(jnp.sqrt(work * jnp.diagonal(problem.A)))  # half the width of the relaxation
    moving = jax.lax.stop_gradient(jnp.max(jnp.concatenate([*closing, *speeds]), initial=1e-3))

    def factor(b: Array) -> Array:
        far = b > FARTHEST * moving
        return jnp.where(far, FARTHEST * moving / jnp.where(far, b, 1.0), 1.0)

    contact = jnp.broadcast_to(factor(rows.contact[:, :1]), rows.contact.shape)
    return join(Split(contact, factor(rows.one_sided), jnp.ones_like(rows.equal), jnp.ones_like(rows.bounded)))


def _split_limits(laws: Laws, start: Vec, lift: Array) -> Vec:
    """Impulses of the problem's rows that give those of the system's: each limit by the side that pushes."""
    raised, at = spatial.apply_transpose(lift, start), _parts(laws).one_sided
    return raised.at[at].set(jnp.maximum(raised[at], 0.0))
