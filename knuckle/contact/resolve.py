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
from knuckle.contact.bounds import fastest, movers_of, reach_of
from knuckle.contact.collide import Contacts, collide, has_long_tests
from knuckle.contact.constraints import (
    JointRows,
    Range,
    Tie,
    beyond_touching,
    equalities,
    joint_rows,
    lengths,
    limits,
    possible_rows,
    without_dry_friction,
)
from knuckle.contact.couple import couple
from knuckle.contact.coupling import joined, layout_of, split
from knuckle.contact.drift import Drift, contact_drift
from knuckle.contact.implicit import at_solution, known
from knuckle.contact.laws import Between, Blocks, Bounded, Law, over_blocks
from knuckle.contact.nearest import Nearest, nearest
from knuckle.contact.numbers import check_count, check_range
from knuckle.contact.outcome import GIVES_WAY, Outcome
from knuckle.contact.pairs import Pair, contact_pairs
from knuckle.contact.planar import held_directions, motion_plane, plane_of
from knuckle.contact.restitution import Blend, Blow, without_gain
from knuckle.contact.rows import (
    Jacobian,
    WorldAxes,
    change_of_velocity,
    contact_frames,
    contact_jacobian,
    effective_inverse_mass,
    inverse_masses,
    picked_sides,
    picked_speeds,
    picked_wrenches,
    point_speeds,
    point_wrenches,
    world_axes,
)
from knuckle.contact.solver import Solution
from knuckle.contact.system import Free, System, Vec, block_scales, margin
from knuckle.contact.tapped import acts_on_impulses, change_of_slip, contacts_as_used, impulses_as_used
from knuckle.contact.turning import (
    contact_dimensions,
    sliding_with_turning,
    turning_axes,
    turning_jacobian,
    turning_rows,
    turning_speeds,
    turning_wrenches,
)
from knuckle.dynamics.aba import Factor, factor_mass_matrix, inverse_or_zero
from knuckle.dynamics.crba import joint_inertias
from knuckle.kinematics import Articulation, articulation
from knuckle.model.joints import retract
from knuckle.model.model import Model, State
from knuckle.prescribed import BodyMotion
from knuckle.taps import PLAIN, Taps
from knuckle.tree import rows

Time = float | Float[Array, ""]
Motion = Callable[[Model, Vec | None, Vec | None], tuple[Vec, Model]]
KEPT = "impulse"  # what reverse mode keeps of a step, so that no search is done again
AXES = 3  # of a contact: in a model that moves in a plane two are solved, but states and outcomes have all
MOST_COUPLED = 64  # contacts that are solved by default in one tree of moving bodies
MOST_FIXED = 128  # and if all of them are with what is fixed, whose cost is small
MORE_COUPLED = 8  # for each further tree
SQUEEZED = 100.0  # [m/s]; an impulse that would speed a link up by more: it is held between what nothing moves
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
        return effective_inverse_mass(heavy.topology.dofs, _factor(heavy, self.body), J.reshape(-1, heavy.nv))

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


def _factor(heavy: Model, body: Articulation) -> Factor:
    return factor_mass_matrix(heavy, body.axes, body.inertia)


def _with_derivative_of(value: Array, other: Array) -> Array:
    return jax.lax.stop_gradient(value) + (other - jax.lax.stop_gradient(other))


def as_wide_as(like: Array, numbers):
    """With the type of `like`; marks and numbers of contacts stay what they are."""
    return jax.tree.map(lambda x: x.astype(like.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, numbers)


def in_all_axes(x: Float[Array, "contact axis"]) -> Float[Array, "contact 3"]:
    """With zeros across the plane of motion."""
    return x if x.shape[1] == AXES else jnp.pad(x, ((0, 0), (0, AXES - x.shape[1])))


def _all_finite(*values: Array) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(value)) for value in values]))


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


class Push(NamedTuple):
    """How the contacts that are solved push."""

    law: Law
    aim: Float[Array, "near axis"]  # velocity that the law counts from [m/s]
    moment: Callable[[Blocks], Blocks] | None = None  # impulses times when they act, after the step's start [N s^2]
    derivative_law: Law | None = None  # whose solution's derivative stands for that of `law`
    margin: Float[Array, " near"] | None = None  # to where the aim or the moment has a corner or a jump [m/s]
    rebound: Float[Array, "near axis"] | None = None  # the part of the aim that is cut where it would add energy
    reliable: Bool[Array, ""] | None = None  # whether the law itself could be computed
    cuts: np.ndarray | None = None  # of the solved contacts, those whose work the cut counts; None: all

    def with_margin(self, other: Float[Array, ""]) -> Push:
        """With a margin of all contacts together beside those of each."""
        own = jnp.broadcast_to(other, self.aim.shape[:1]) if self.margin is None else jnp.minimum(self.margin, other)
        return self._replace(margin=own)


class ContactModel(eqx.Module):
    """A way to keep bodies apart and constraints held."""

    most_contacts: int | None = eqx.field(static=True, default=None, kw_only=True)  # that are solved: the nearest
    self_collision: bool | None = eqx.field(static=True, default=False, kw_only=True)  # None: as the model's file says
    friction_follows: ClassVar[bool] = False  # whether friction is a multiple of the normal force
    correction: float = eqx.field(default=0.2, kw_only=True)  # share of a limit's or equality's error undone in a step
    correction_speed: float = eqx.field(default=2.0, kw_only=True)  # at no more than this [m/s, rad/s]

    def __check_init__(self):
        check_range(self, ["correction"])
        check_range(self, ["correction_speed"], infinite=True)
        if self.most_contacts is not None:
            check_count(self, "most_contacts", 1)

    @property
    def needs_matrix(self) -> bool:
        """Whether the solver works on A itself."""
        return False

    @property
    @abstractmethod
    def culls(self) -> bool:
        """Whether contacts out of reach have no part in a step: not so where laws are relaxed."""

    @abstractmethod
    def sliding_friction(self, scene: Scene) -> Float[Array, " contact"]:
        """Coefficients of sliding friction, before networks act on them."""

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
        return at_solution(system.laws, u, v, r, *jax.lax.stop_gradient((system.coupling.held(), system.R)))

    def contacts(self, model: Model, q: Float[Array | np.ndarray, " nq"]) -> Contacts:
        """The contact points at coordinates q."""
        return self.arranged(model, collide(model, jnp.asarray(q), self.pairs(model)))

    def pairs(self, model: Model) -> tuple[Pair, ...]:
        """The pairs of shapes that are tested."""
        return contact_pairs(model, self_collision=self.self_collision)

    def arranged(self, model: Model, contacts: Contacts) -> Contacts:
        """Contacts in the order in which they are solved."""
        return contacts

    def by_rule(self, model: Model) -> dict[str, tuple[ContactModel, tuple[Pair, ...]]]:
        """Contact models and the pairs that they hold for, by the name of their rule; "": one for all."""
        return {"": (self, self.pairs(model))}

    def nearest_of(self, model: Model, contacts: Contacts, reach: Float[Array, ""] | None) -> Nearest:
        """The contacts that are solved; those with gaps beyond `reach` [m] need not be."""
        return nearest(contacts.gap, self._capacity(model, contacts), reach)

    def follows_normal(self, contacts: Contacts) -> bool | np.ndarray:
        """Of which contacts friction is a multiple of the normal force."""
        return self.friction_follows

    def open_taps(self, contacts: Contacts, taps: Taps) -> Taps:
        """Taps of the contacts."""
        return taps

    def begin(self, model: Model, state: State) -> State:
        """The state with impulses to start the first search from."""
        if state.impulse is not None:
            return state

        def size(q):
            scene = self.scene(model, articulation(model, q), q, joint_rows(model))
            return jnp.zeros(scene.state_axes(model) * len(scene.contacts) + scene.joint_rows, q.dtype)

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
        moving: BodyMotion | None = None,
    ) -> tuple[State, Outcome]:
        """The state after dt, and what contacts and constraints did.

        `motion(model, wrench, momentum)` is the velocity after the step if impulses act on links and joints and nothing
        touches, and the model whose mass matrix impulses meet. `present`: the joints that have rows, where that was
        found before the model was traced. `moving`: bodies on the world that follow paths; the model has them where the
        step starts.
        """
        state = self.begin(model, state)
        present = joint_rows(model) if present is None else present
        q, qd = jnp.asarray(state.q), jnp.asarray(state.qd)
        smooth = without_dry_friction(model, present)
        v_free, heavy = motion(smooth, None, None)
        body = articulation(heavy, q)
        reach = self._reach(model, body, dt, qd, v_free, taps, moving)
        scene = self.scene(model, body, q, present, taps, reach, moving)
        slip = change_of_slip(model, scene, qd)
        scene = scene.with_friction(model, scene.taps("contact/friction", self.sliding_friction(scene)))
        push = self.push(model, heavy, scene, qd, v_free, dt)
        push = push if slip is None else push._replace(aim=push.aim.at[:, : slip.shape[1]].add(-slip))
        joint_laws = self._joint_laws(model, scene, dt)
        coupling = couple(heavy, scene, as_matrix=self.needs_matrix)
        R = self._regularisation(model, heavy, scene)

        def solved(push: Push, law: Law, start: Vec) -> tuple[System, Solution, Vec, Vec, Vec]:
            """The system under a law, what was found, and r, u and v with their derivatives."""
            prescribed = scene.drift is not None or model.topology.prescribed
            free = None if prescribed else Free(v_free, push.aim, scene.within)
            laws, (contact_b, joint_b) = (law, *joint_laws), self._velocities(model, scene, push, v_free)
            b = contact_b, *split(layout_of(joint_laws), joint_b)
            parts = split(layout_of(laws), R), b, laws, free
            system = System(coupling, *as_wide_as(v_free, parts))  # numbers of the contact model may be wider
            found = self.solve(system, start)
            r = checkpoint_name(jax.lax.stop_gradient(found.impulse), KEPT)
            contact, joint = r[: push.aim.size].reshape(push.aim.shape), r[push.aim.size :]
            on_joints = spatial.apply_transpose(scene.J_joint, joint) if joint.size else None
            v, _ = motion(smooth, scene.wrenches(model, contact), on_joints)
            if found.change is not None and taps is PLAIN:
                v = known(jax.lax.stop_gradient(v_free + found.change), v)
            u = joined(self._velocities(model, scene, push, v)) + R * r
            r, v = self.with_derivative(system, u, v, r)
            return system, found, r, u, v

        def answer(push: Push, start: Vec) -> tuple[System, Solution, Vec, Vec, Vec]:
            """What was found under the push's law, with the derivative that it asks for."""
            system, found, r, u, v = solved(push, push.law, start)
            if push.derivative_law is not None:
                _, _, soft_r, _, soft_v = solved(push, push.derivative_law, found.impulse)
                r, v = (_with_derivative_of(hard, soft) for hard, soft in ((r, soft_r), (v, soft_v)))
            return system, found, r, u, v

        system, found, r, u, v = answer(push, self._start(model, scene, state))
        if push.rebound is not None:
            unbounced = push._replace(aim=push.aim - push.rebound)
            _, other, plastic_r, _, plastic_v = answer(unbounced, found.impulse)
            r, v, to_cut = self._blended(model, scene, push, v_free, (r, v), (plastic_r, plastic_v))
            found, push = found.joined(other), push.with_margin(to_cut)
        r, v = self._as_used(model, heavy, q, scene, push, r, v, dt)
        moved = retract(model, q, dt * v - self._not_yet(model, heavy, q, scene, push, r))
        outcome = self._outcome(model, scene, push, found, system, r, u, v, R, dt, moved)
        rest, kept = scene.to_layout(r[push.aim.size :]), outcome.impulse
        if scene.state_axes(model) > AXES:
            kept = scene.to_state(model, r[: push.aim.size].reshape(push.aim.shape))
        return State(moved, v, jnp.concatenate([kept.reshape(-1), rest])), outcome

    def _reach(self, model: Model, body: Articulation, dt: Time, qd: Vec, v_free: Vec, taps: Taps, moving=None):
        """How far apart shapes are whose test is left out [m]; None if all are tested."""
        by_rule = self.by_rule(model).values()
        chooses = any(own.most_contacts is not None or len(pairs) > MOST_COUPLED for own, pairs in by_rule)
        worthwhile = chooses or has_long_tests(model.geometry, self.pairs(model))
        if not (self.culls and taps is PLAIN and worthwhile):
            return None
        movers = movers_of(model, self.pairs(model), moving)
        return reach_of(model, body, dt, qd, v_free, moving=moving, movers=movers)

    def _as_used(self, model: Model, heavy: Model, q: Vec, scene: Scene, push: Push, r: Vec, v: Vec, dt: Time):
        """Impulses and velocities after networks have acted on the forces of the contacts."""
        if not acts_on_impulses(scene.taps):
            return r, v
        contact, rest = r[: push.aim.size].reshape(push.aim.shape), r[push.aim.size :]
        axes = scene.frame.shape[1]
        used = impulses_as_used(scene, contact[:, :axes], dt, friction_follows=self.follows_normal(scene.contacts))
        used = used if scene.turning is None else jnp.concatenate([used, contact[:, axes:]], axis=1)
        v = v + change_of_velocity(heavy, q, scene.wrenches(model, used - contact))
        return jnp.concatenate([used.reshape(-1), rest]), v

    def _blended(self, model: Model, scene: Scene, push: Push, v_free: Vec, newton, plastic) -> Blend:
        """Impulses and velocities between Newton's and those of a plastic blow, without a gain of energy."""
        still = push._replace(aim=jnp.zeros_like(push.aim))
        hard, soft = (Blow(r, v, joined(self._velocities(model, scene, still, v))) for r, v in (newton, plastic))
        counted = None
        if push.cuts is not None:
            joints = np.ones(len(scene.J_joint), bool)
            counted = np.concatenate([np.repeat(push.cuts, push.aim.shape[1]), joints])
        return without_gain(hard, soft, joined(self._velocities(model, scene, still, v_free)), counted)

    def scene(
        self,
        model: Model,
        body: Articulation,
        q: Vec,
        present: JointRows,
        taps: Taps = PLAIN,
        reach=None,
        moving: BodyMotion | None = None,
    ) -> Scene:
        """Contacts and constraints at coordinates q; shapes farther apart than `reach` [m] may be passed over."""
        pairs = self.pairs(model)
        plane = plane_of(model, pairs) if moving is None else None  # a path may leave the plane
        motion = motion_plane(model) if plane is None else None
        axes = world_axes(model, body)
        contacts = self.arranged(model, collide(model, q, pairs, reach))
        taps = self.open_taps(contacts, taps)
        contacts = contacts_as_used(contacts, taps)
        vary = not contacts.are_with_planes(model.geometry)
        frame = contact_frames(contacts.normal, plane, motion, vary)
        near = self.nearest_of(model, contacts, reach)
        picked = None if near.index is None else contact_frames(near.pick(contacts.normal), plane, motion, vary)
        directions = held_directions(plane, motion if moving is None else None)
        held, ties = limits(model, q, present), equalities(model, q, axes, directions, moving)
        rubbing = np.array(present.rubbing, int)
        J_joint = jnp.concatenate([held.J, ties.J, jnp.asarray(np.eye(model.nv)[rubbing], q.dtype)])
        slots, every = (x.slots(model.topology, len(ties.lift)) for x in (present, possible_rows(model.topology)))
        joints = present, held, ties, rubbing, slots, len(every), J_joint
        drift = None if moving is None else contact_drift(contacts, frame, moving)
        movers = movers_of(model, pairs, moving)
        return Scene(contacts, frame, near, *joints, body, plane, taps, reach, movers, drift=drift, picked_frame=picked)

    def _capacity(self, model: Model, contacts: Contacts) -> int:
        """How many contacts are solved."""
        if self.most_contacts is not None:
            return self.most_contacts
        trees = len(model.topology.links.roots)
        if contacts.are_with_fixed and not self.needs_matrix:
            return MOST_FIXED * trees
        return MOST_COUPLED + MORE_COUPLED * (trees - 1)

    def _velocities(self, model: Model, scene: Scene, push: Push, v: Vec) -> tuple[Blocks, Vec]:
        """Velocities of the rows that are solved, as their laws count them: of contacts, and of all others."""
        contact = scene.near_speeds(model, v) - push.aim
        joints = spatial.apply(scene.J_joint, v)
        if scene.ties.drift is not None:
            joints = joints + jnp.pad(scene.ties.drift, (len(scene.limits.J), len(scene.rubbing)))
        return contact, joints

    def _joint_laws(self, model: Model, scene: Scene, dt: Time) -> tuple[Law, ...]:
        """Laws of joint limits, equalities and joint friction."""
        most, share = self.correction_speed, self.correction
        above, below = ((share * x + (1 - share) * beyond_touching(x)) / dt for x in scene.limits[1:])
        above, below = jnp.maximum(above, -most), jnp.maximum(below, -most)
        back = -self.correction * scene.ties.error / dt
        speed = lengths(back, scene.ties.vectors)
        back = jnp.where(speed > most, most / jnp.where(speed > most, speed, 1.0), 1.0) * back
        friction = jnp.maximum(rows(jnp.asarray(model.friction), scene.rubbing), 0.0)
        laws = Between(-above, below), Between(back, back, equal=True), Bounded(dt * friction)
        return tuple(law for law in laws if law.rows)

    def _regularisation(self, model: Model, heavy: Model, scene: Scene) -> Vec:
        """R of all rows [1/kg], with derivative; of joint rows a share of what they move if other joints are held."""
        soft = jnp.repeat(self.softness(model, scene), scene.contact_rows)
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

    def _start(self, model: Model, scene: Scene, state: State) -> Vec:
        impulse = jnp.asarray(state.impulse)
        count, each = len(scene.contacts), scene.state_axes(model)
        if len(impulse) != count * each + scene.joint_rows:
            raise ValueError(
                f"state.impulse has {len(impulse)} entries, which belong to other contacts or another contact model: "
                "start from State(q, qd) without it"
            )
        contact = scene.of_state(model, impulse[: count * each])
        joints = scene.to_solved(impulse[count * each :])
        return jnp.concatenate([contact.reshape(-1), joints])

    def _not_yet(
        self, model: Model, heavy: Model, q: Vec, scene: Scene, push: Push, r: Vec
    ) -> Array | np.ndarray | float:
        """Motion that impulses would have made before they act."""
        if push.moment is None:
            return 0.0
        moment = push.moment(r[: push.aim.size].reshape(push.aim.shape))
        return change_of_velocity(heavy, q, scene.wrenches(model, moment))

    def _leaves_out(self, model: Model, scene: Scene, v: Vec, dt: Time) -> Bool[Array, ""]:
        """Whether a contact that is not solved should have pushed."""

        def any_sinks() -> Bool[Array, ""]:
            return scene.near.any_left_out(scene.contacts.gap + dt * scene.speeds(model, v)[:, 0] < 0)

        most = scene.near.count(len(scene.contacts))
        if scene.near.index is None or scene.reach is None:
            return any_sinks()
        within = jnp.sum((scene.contacts.gap <= scene.reach).astype(jnp.int32))
        return jax.lax.cond(within > most, any_sinks, lambda: jnp.zeros((), bool))

    def _outcome(
        self, model: Model, scene: Scene, push: Push, found: Solution, system: System, r, u, v, R, dt, moved
    ) -> Outcome:
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
        solved = found.converged & ~self._leaves_out(model, scene, v, dt) & (slack <= GIVES_WAY)
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
