"""One step with contacts and constraints: rows, their system, its solution, and the derivative of that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

from knuckle import spatial
from knuckle.contact.bounds import fastest, reach_of
from knuckle.contact.collide import Contacts, collide, has_long_tests
from knuckle.contact.constraints import (
    JointRows,
    Range,
    Tie,
    beyond_touching,
    equalities,
    joint_rows,
    limits,
    possible_rows,
    without_dry_friction,
)
from knuckle.contact.couple import couple
from knuckle.contact.implicit import at_solution
from knuckle.contact.laws import Between, Blocks, Bounded, Law
from knuckle.contact.nearest import Nearest, nearest
from knuckle.contact.numbers import check_count, check_range
from knuckle.contact.outcome import GIVES_WAY, Outcome
from knuckle.contact.pairs import contact_pairs
from knuckle.contact.planar import motion_plane, plane_of
from knuckle.contact.restitution import Blend, Blow, without_gain
from knuckle.contact.rows import (
    Jacobian,
    change_of_velocity,
    contact_frames,
    contact_jacobian,
    effective_inverse_mass,
    point_speeds,
    point_wrenches,
    world_axes,
)
from knuckle.contact.search import Solution
from knuckle.contact.system import System, Vec, block_scales, margin
from knuckle.contact.tapped import acts_on_impulses, change_of_slip, contacts_as_used, impulses_as_used
from knuckle.dynamics.aba import Factor, factor_mass_matrix, inverse_or_zero
from knuckle.dynamics.crba import joint_inertias
from knuckle.kinematics import Articulation, articulation
from knuckle.model.joints import retract
from knuckle.model.model import Model, State
from knuckle.taps import PLAIN, Taps
from knuckle.tree import rows

Time = float | Float[Array, ""]
Motion = Callable[[Model, Vec | None, Vec | None], tuple[Vec, Model]]
KEPT = "impulse"  # what reverse mode keeps of a step, so that no search is done again
AXES = 3  # of a contact: in a model that moves in a plane two are solved, but states and outcomes have all
MOST_COUPLED = 64  # contacts between moving bodies that are solved by default
HELD = 1e-8  # regularisation of limits, equalities and joint friction over the inverse of what they move


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

    def inverse_masses(self, heavy: Model) -> Float[Array, "row row"]:
        """A over the contacts, with derivative."""
        J = contact_jacobian(heavy, world_axes(heavy, self.body), self.contacts, self.frame, self.near)
        return effective_inverse_mass(heavy.topology.dofs, _factor(heavy, self.body), J.reshape(-1, heavy.nv))

    def speeds(self, model: Model, v: Vec) -> Float[Array, "contact axis"]:
        """Velocities of the contacts, with derivative."""
        return point_speeds(model, self.body, self.contacts, self.frame, v)

    def wrenches(self, model: Model, impulse: Float[Array, "near axis"]) -> Float[Array, "link 6"]:
        """Impulses of contacts as impulses on the links, with derivative."""
        everywhere = self.near.put_back(impulse, len(self.contacts))
        return point_wrenches(model, self.body, self.contacts, self.frame, everywhere)


def _factor(heavy: Model, body: Articulation) -> Factor:
    return factor_mass_matrix(heavy, body.axes, body.inertia)


def _with_derivative_of(value: Array, other: Array) -> Array:
    return jax.lax.stop_gradient(value) + (other - jax.lax.stop_gradient(other))


def in_all_axes(x: Float[Array, "contact axis"]) -> Float[Array, "contact 3"]:
    """With zeros across the plane of motion."""
    return jnp.pad(x, ((0, 0), (0, AXES - x.shape[1])))


def _all_finite(*values: Array) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(value)) for value in values]))


def _violation(scene: Scene, v: Vec, dt: Time) -> Float[Array, ""]:
    """Of the worst limit or equality after the step, to first order in dt [m or rad]."""
    held, ties = scene.limits, scene.ties
    moved, slid = (dt * spatial.apply(rows.J, v) for rows in (held, ties))
    past = jnp.concatenate([-(held.above + moved), moved - held.below, jnp.abs(ties.error + slid)])
    return jax.lax.stop_gradient(jnp.max(past, initial=0.0))


class Push(NamedTuple):
    """How the contacts that are solved push."""

    law: Law
    aim: Float[Array, "near axis"]  # velocity that the law counts from [m/s]
    moment: Callable[[Blocks], Blocks] | None = None  # impulses times when they act, after the step's start [N s^2]
    derivative_law: Law | None = None  # whose solution's derivative stands for that of `law`
    margin: Float[Array, " near"] | None = None  # to where the aim or the moment has a corner or a jump [m/s]
    rebound: Float[Array, "near axis"] | None = None  # the part of the aim that is cut where it would add energy
    reliable: Bool[Array, ""] | None = None  # whether the law itself could be computed

    def with_margin(self, other: Float[Array, ""]) -> Push:
        """With a margin of all contacts together beside those of each."""
        own = jnp.broadcast_to(other, self.aim.shape[:1]) if self.margin is None else jnp.minimum(self.margin, other)
        return self._replace(margin=own)


class ContactModel(eqx.Module):
    """A way to keep bodies apart and constraints held."""

    most_contacts: int | None = eqx.field(static=True, default=None, kw_only=True)  # that are solved: the nearest
    self_collision: bool = eqx.field(static=True, default=False, kw_only=True)
    friction_follows: ClassVar[bool] = False  # whether friction is a multiple of the normal force
    needs_matrix: ClassVar[bool] = False  # whether the solver works on A itself
    correction: float = eqx.field(default=0.2, kw_only=True)  # share of a limit's or equality's error undone in a step
    correction_speed: float = eqx.field(default=2.0, kw_only=True)  # at no more than this [m/s, rad/s]; overlaps too

    def __check_init__(self):
        check_range(self, ["correction"])
        check_range(self, ["correction_speed"], infinite=True)
        if self.most_contacts is not None:
            check_count(self, "most_contacts", 1)

    @property
    @abstractmethod
    def culls(self) -> bool:
        """Whether contacts out of reach have no part in a step: not so where laws are relaxed."""

    @abstractmethod
    def push(self, model: Model, heavy: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Push:
        """The law of the contacts."""

    @abstractmethod
    def softness(self, model: Model, scene: Scene) -> Float[Array, " near"]:
        """R of the contacts [1/kg]."""

    @abstractmethod
    def solve(self, system: System, start: Vec) -> Solution:
        """Impulses that obey the laws; without derivative."""

    def with_derivative(self, system: System, u: Vec, v: Vec, r: Vec) -> tuple[Vec, Vec]:
        """Impulses r and velocities v of the joints, given u and v with their derivatives at fixed r."""
        return at_solution(system.laws, u, v, r, *jax.lax.stop_gradient((system.coupling, system.R)))

    def contacts(self, model: Model, q: Float[Array | np.ndarray, " nq"]) -> Contacts:
        """The contact points at coordinates q."""
        return collide(model, jnp.asarray(q), contact_pairs(model, self_collision=self.self_collision))

    def begin(self, model: Model, state: State) -> State:
        """The state with impulses to start the first search from."""
        if state.impulse is not None:
            return state

        def size(q):
            scene = self.scene(model, articulation(model, q), q, joint_rows(model))
            return jnp.zeros(AXES * len(scene.contacts) + scene.joint_rows, q.dtype)

        shape = jax.eval_shape(size, state.q).shape
        return State(state.q, state.qd, jnp.zeros(shape, state.qd.dtype))

    def resolve(
        self,
        model: Model,
        motion: Motion,
        state: State,
        dt: Time,
        taps: Taps = PLAIN,
        present: JointRows | None = None,
    ) -> tuple[State, Outcome]:
        """The state after dt, and what contacts and constraints did.

        `motion(model, wrench, momentum)` is the velocity after the step if impulses act on links and joints and nothing
        touches, and the model whose mass matrix impulses meet. `present`: the joints that have rows, where that was
        found before the model was traced.
        """
        state = self.begin(model, state)
        present = joint_rows(model) if present is None else present
        q, qd = jnp.asarray(state.q), jnp.asarray(state.qd)
        smooth = without_dry_friction(model, present)
        v_free, heavy = motion(smooth, None, None)
        body = articulation(heavy, q)
        scene = self.scene(model, body, q, present, taps, self._reach(model, body, dt, qd, v_free, taps))
        slip = change_of_slip(model, scene, qd)
        push = self.push(model, heavy, scene, qd, v_free, dt)
        push = push if slip is None else push._replace(aim=push.aim - slip)
        joint_laws = self._joint_laws(model, scene, dt)
        coupling = couple(heavy, scene, as_matrix=self.needs_matrix)
        R = self._regularisation(model, heavy, scene)

        def solved(push: Push, law: Law, start: Vec) -> tuple[System, Solution, Vec, Vec, Vec]:
            """The system under a law, what was found, and r, u and v with their derivatives."""
            parts = R, self._velocities(model, scene, push, v_free), (law, *joint_laws)
            parts = jax.tree.map(lambda x: x.astype(v_free.dtype), parts)  # numbers of the contact model may be wider
            system = System.of(coupling, *parts)
            found = self.solve(system, start)
            r = checkpoint_name(jax.lax.stop_gradient(found.impulse), KEPT)
            contact, joint = r[: push.aim.size].reshape(push.aim.shape), r[push.aim.size :]
            on_joints = spatial.apply_transpose(scene.J_joint, joint) if joint.size else None
            v, _ = motion(smooth, scene.wrenches(model, contact), on_joints)
            u = self._velocities(model, scene, push, v) + R * r
            r, v = self.with_derivative(system, u, v, r)
            return system, found, r, u, v

        def answer(push: Push, start: Vec) -> tuple[System, Solution, Vec, Vec, Vec]:
            """What was found under the push's law, with the derivative that it asks for."""
            system, found, r, u, v = solved(push, push.law, start)
            if push.derivative_law is not None:
                _, _, soft_r, _, soft_v = solved(push, push.derivative_law, found.impulse)
                r, v = (_with_derivative_of(hard, soft) for hard, soft in ((r, soft_r), (v, soft_v)))
            return system, found, r, u, v

        system, found, r, u, v = answer(push, self._start(scene, state))
        if push.rebound is not None:
            unbounced = push._replace(aim=push.aim - push.rebound)
            _, other, plastic_r, _, plastic_v = answer(unbounced, found.impulse)
            r, v, to_cut = self._blended(model, scene, push, v_free, (r, v), (plastic_r, plastic_v))
            found, push = found.joined(other), push.with_margin(to_cut)
        r, v = self._as_used(model, heavy, q, scene, push, r, v, dt)
        moved = retract(model, q, dt * v - self._not_yet(model, heavy, q, scene, push, r))
        outcome = self._outcome(model, scene, push, found, system, r, u, v, R, dt, moved)
        rest = scene.to_layout(r[push.aim.size :])
        return State(moved, v, jnp.concatenate([outcome.impulse.reshape(-1), rest])), outcome

    def _reach(self, model: Model, body: Articulation, dt: Time, qd: Vec, v_free: Vec, taps: Taps):
        """How far apart shapes are whose test is left out [m]; None if all are tested."""
        pairs = contact_pairs(model, self_collision=self.self_collision)
        if not (self.culls and taps is PLAIN and has_long_tests(model.geometry, pairs)):
            return None
        return reach_of(model, body, dt, qd, v_free)

    def _as_used(self, model: Model, heavy: Model, q: Vec, scene: Scene, push: Push, r: Vec, v: Vec, dt: Time):
        """Impulses and velocities after networks have acted on the forces of the contacts."""
        if not acts_on_impulses(scene.taps):
            return r, v
        contact, rest = r[: push.aim.size].reshape(push.aim.shape), r[push.aim.size :]
        used = impulses_as_used(scene, contact, dt, friction_follows=self.friction_follows)
        v = v + change_of_velocity(heavy, q, scene.wrenches(model, used - contact))
        return jnp.concatenate([used.reshape(-1), rest]), v

    def _blended(self, model: Model, scene: Scene, push: Push, v_free: Vec, newton, plastic) -> Blend:
        """Impulses and velocities between Newton's and those of a plastic blow, without a gain of energy."""
        still = push._replace(aim=jnp.zeros_like(push.aim))
        hard, soft = (Blow(r, v, self._velocities(model, scene, still, v)) for r, v in (newton, plastic))
        return without_gain(hard, soft, self._velocities(model, scene, still, v_free))

    def scene(
        self, model: Model, body: Articulation, q: Vec, present: JointRows, taps: Taps = PLAIN, reach=None
    ) -> Scene:
        """Contacts and constraints at coordinates q; shapes farther apart than `reach` [m] may be passed over."""
        pairs = contact_pairs(model, self_collision=self.self_collision)
        plane = plane_of(model, pairs)
        axes = world_axes(model, body)
        contacts = contacts_as_used(collide(model, q, pairs, reach), taps)
        frame = contact_frames(contacts.normal, plane, motion_plane(model) if plane is None else None)
        near = nearest(contacts.gap, self._capacity(contacts))
        held, ties = limits(model, q, present), equalities(model, q, axes, plane)
        rubbing = np.array(present.rubbing, int)
        J_joint = jnp.concatenate([held.J, ties.J, jnp.asarray(np.eye(model.nv)[rubbing], q.dtype)])
        slots, every = (x.slots(model.topology, len(ties.lift)) for x in (present, possible_rows(model.topology)))
        joints = present, held, ties, rubbing, slots, len(every), J_joint
        return Scene(contacts, frame, near, *joints, body, plane, taps, reach)

    def _capacity(self, contacts: Contacts) -> int:
        """How many contacts are solved: by default all with what is fixed, whose cost is small, else MOST_COUPLED."""
        if self.most_contacts is not None:
            return self.most_contacts
        return len(contacts) if contacts.are_with_fixed and not self.needs_matrix else MOST_COUPLED

    def _velocities(self, model: Model, scene: Scene, push: Push, v: Vec) -> Vec:
        """Velocities of all rows that are solved, as their laws count them."""
        contact = scene.near.pick(scene.speeds(model, v)) - push.aim
        return jnp.concatenate([contact.reshape(-1), spatial.apply(scene.J_joint, v)])

    def _joint_laws(self, model: Model, scene: Scene, dt: Time) -> tuple[Law, ...]:
        """Laws of joint limits, equalities and joint friction."""
        most, share = self.correction_speed, self.correction
        above, below = ((share * x + (1 - share) * beyond_touching(x)) / dt for x in scene.limits[1:])
        above, below = jnp.maximum(above, -most), jnp.maximum(below, -most)
        back = jnp.clip(-self.correction * scene.ties.error / dt, -most, most)
        friction = jnp.maximum(rows(jnp.asarray(model.friction), scene.rubbing), 0.0)
        laws = Between(-above, below), Between(back, back, equal=True), Bounded(dt * friction)
        return tuple(law for law in laws if law.rows)

    def _regularisation(self, model: Model, heavy: Model, scene: Scene) -> Vec:
        """R of all rows [1/kg], with derivative; of joint rows a share of what they move if other joints are held."""
        soft = jnp.repeat(self.softness(model, scene), scene.frame.shape[1])
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

    def _start(self, scene: Scene, state: State) -> Vec:
        impulse = jnp.asarray(state.impulse)
        count, axes, _ = scene.frame.shape
        if len(impulse) != count * AXES + scene.joint_rows:
            raise ValueError(
                f"state.impulse has {len(impulse)} entries, which belong to other contacts or another contact model: "
                "start from State(q, qd) without it"
            )
        contact = scene.near.pick(impulse[: count * AXES].reshape(count, AXES)[:, :axes])
        joints = scene.to_solved(impulse[count * AXES :])
        return jnp.concatenate([contact.reshape(-1), joints])

    def _not_yet(
        self, model: Model, heavy: Model, q: Vec, scene: Scene, push: Push, r: Vec
    ) -> Array | np.ndarray | float:
        """Motion that impulses would have made before they act."""
        if push.moment is None:
            return 0.0
        moment = push.moment(r[: push.aim.size].reshape(push.aim.shape))
        return change_of_velocity(heavy, q, scene.wrenches(model, moment))

    def _outcome(
        self, model: Model, scene: Scene, push: Push, found: Solution, system: System, r, u, v, R, dt, moved
    ) -> Outcome:
        contact, *others = system.split(r)
        flat = jnp.concatenate([part.reshape(-1) for part in others]) if others else r[:0]
        ends = np.cumsum([len(scene.limits.J), len(scene.ties.J)])
        velocity = scene.speeds(model, v)
        sinking = scene.contacts.gap + dt * velocity[:, 0] < 0
        if push.reliable is not None:
            known = jnp.where(push.reliable, found.residual, jnp.inf)
            found = found._replace(converged=found.converged & push.reliable, residual=known)
        nearest_change = margin(system.laws, system.split(found.impulse), system.split(u), block_scales(system))
        if push.margin is not None:
            nearest_change = jnp.minimum(nearest_change, jnp.min(push.margin, initial=jnp.inf))
        slack = jnp.max(jnp.abs((R * r)[push.aim.size :]), initial=0.0)
        solved = found.converged & ~scene.near.any_left_out(sinking) & (slack <= GIVES_WAY)
        if scene.reach is not None:
            solved = solved & (2 * dt * fastest(model, scene.body, v) <= scene.reach)
        return Outcome(
            contacts=scene.contacts,
            frame=scene.full_frame,
            impulse=scene.near.put_back(in_all_axes(contact), len(scene.contacts)),
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
        )
