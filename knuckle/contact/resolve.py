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
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.bounds import movers_of, reach_of
from knuckle.contact.collide import Contacts, collide, has_long_tests
from knuckle.contact.constraints import (
    JointRows,
    equalities,
    joint_rows,
    limits,
    possible_rows,
    without_dry_friction,
)
from knuckle.contact.couple import couple
from knuckle.contact.coupling import Coupling, joined, layout_of, split
from knuckle.contact.drift import contact_drift
from knuckle.contact.implicit import at_solution, known
from knuckle.contact.joint_laws import joint_laws, regularisation
from knuckle.contact.laws import Blocks, Law
from knuckle.contact.nearest import Nearest, nearest
from knuckle.contact.numbers import check_count, check_range
from knuckle.contact.outcome import Outcome
from knuckle.contact.pairs import Pair, contact_pairs
from knuckle.contact.planar import held_directions, motion_plane, plane_of
from knuckle.contact.push import Push
from knuckle.contact.restitution import Blow, without_gain
from knuckle.contact.rows import change_of_velocity, contact_frames, world_axes
from knuckle.contact.scene import AXES, Scene, Time
from knuckle.contact.solver import Solution
from knuckle.contact.step_outcome import Answer, outcome_of
from knuckle.contact.system import Free, System, Vec
from knuckle.contact.tapped import acts_on_impulses, change_of_slip, contacts_as_used, impulses_as_used
from knuckle.kinematics import Articulation, articulation
from knuckle.model.joints import retract
from knuckle.model.model import Model, State
from knuckle.prescribed import BodyMotion
from knuckle.taps import PLAIN, Taps

Motion = Callable[[Model, Vec | None, Vec | None], tuple[Vec, Model]]
KEPT = "impulse"  # what reverse mode keeps of a step, so that no search is done again
MOST_COUPLED = 64  # contacts that are solved by default in one tree of moving bodies
MOST_FIXED = 128  # and if all of them are with what is fixed, whose cost is small
MORE_COUPLED = 8  # for each further tree


class Problem(NamedTuple):
    """What the answers of one step share, whatever the law of its contacts."""

    model: Model
    smooth: Model  # without dry friction of joints
    motion: Motion
    scene: Scene
    joint_laws: tuple[Law, ...]
    coupling: Coupling
    R: Vec  # regularisation [1/kg]
    v_free: Vec  # velocities of the joints if nothing touches
    plain: bool  # no network acts in the step

    def system(self, push: Push, law: Law) -> System:
        """The rows under this law."""
        prescribed = self.scene.drift is not None or self.model.topology.prescribed
        free = None if prescribed else Free(self.v_free, push.aim, self.scene.within)
        laws, (contact_b, joint_b) = (law, *self.joint_laws), self.velocities(push, self.v_free)
        b = contact_b, *split(layout_of(self.joint_laws), joint_b)
        parts = split(layout_of(laws), self.R), b, laws, free
        return System(self.coupling, *as_wide_as(self.v_free, parts))  # numbers of the contact model may be wider

    def motion_with(self, push: Push, r: Vec) -> Vec:
        """Velocities of the joints after impulses r, with derivative."""
        contact, joint = r[: push.aim.size].reshape(push.aim.shape), r[push.aim.size :]
        on_joints = spatial.apply_transpose(self.scene.J_joint, joint) if joint.size else None
        return self.motion(self.smooth, self.scene.wrenches(self.model, contact), on_joints)[0]

    def velocities(self, push: Push, v: Vec) -> tuple[Blocks, Vec]:
        """Velocities of the rows that are solved, as their laws count them: of contacts, and of all others."""
        scene = self.scene
        contact = scene.near_speeds(self.model, v) - push.aim
        joints = spatial.apply(scene.J_joint, v)
        if scene.ties.drift is not None:
            joints = joints + jnp.pad(scene.ties.drift, (len(scene.limits.J), len(scene.rubbing)))
        return contact, joints


def _with_derivative_of(value: Array, other: Array) -> Array:
    return jax.lax.stop_gradient(value) + (other - jax.lax.stop_gradient(other))


def as_wide_as(like: Array, numbers):
    """With the type of `like`; marks and numbers of contacts stay what they are."""
    return jax.tree.map(lambda x: x.astype(like.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, numbers)


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
        laws = joint_laws(model, scene, dt, self.correction, self.correction_speed)
        coupling = couple(heavy, scene, as_matrix=self.needs_matrix)
        R = regularisation(self.softness(model, scene), heavy, scene)
        problem = Problem(model, smooth, motion, scene, laws, coupling, R, v_free, taps is PLAIN)

        answer = self._answer(problem, push, self._start(model, scene, state))
        if push.rebound is not None:
            answer, push = self._without_gain(problem, push, answer)
        r, v = self._as_used(model, heavy, q, scene, push, answer.r, answer.v, dt)
        moved = retract(model, q, dt * v - self._not_yet(model, heavy, q, scene, push, r))
        outcome = outcome_of(model, scene, push, answer._replace(r=r, v=v), R, dt, moved)
        rest, kept = scene.to_layout(r[push.aim.size :]), outcome.impulse
        if scene.state_axes(model) > AXES:
            kept = scene.to_state(model, r[: push.aim.size].reshape(push.aim.shape))
        return State(moved, v, jnp.concatenate([kept.reshape(-1), rest])), outcome

    def _answer(self, problem: Problem, push: Push, start: Vec) -> Answer:
        """What is found under the push's law, with the derivative that it asks for."""
        answer = self._solved(problem, push, push.law, start)
        if push.derivative_law is None:
            return answer
        soft = self._solved(problem, push, push.derivative_law, answer.found.impulse)
        return answer._replace(r=_with_derivative_of(answer.r, soft.r), v=_with_derivative_of(answer.v, soft.v))

    def _solved(self, problem: Problem, push: Push, law: Law, start: Vec) -> Answer:
        """What is found under a law, with its derivative."""
        system = problem.system(push, law)
        found = self.solve(system, start)
        r = checkpoint_name(jax.lax.stop_gradient(found.impulse), KEPT)
        v = problem.motion_with(push, r)
        if found.change is not None and problem.plain:
            v = known(jax.lax.stop_gradient(problem.v_free + found.change), v)
        u = joined(problem.velocities(push, v)) + problem.R * r
        r, v = self.with_derivative(system, u, v, r)
        return Answer(system, found, r, u, v)

    def _without_gain(self, problem: Problem, push: Push, answer: Answer) -> tuple[Answer, Push]:
        """An answer between Newton's and that of a plastic blow, without a gain of energy."""
        assert push.rebound is not None
        unbounced = push._replace(aim=push.aim - push.rebound)
        plastic = self._answer(problem, unbounced, answer.found.impulse)
        still = push._replace(aim=jnp.zeros_like(push.aim))
        hard, soft = (Blow(at.r, at.v, joined(problem.velocities(still, at.v))) for at in (answer, plastic))
        counted = None
        if push.cuts is not None:
            joints = np.ones(len(problem.scene.J_joint), bool)
            counted = np.concatenate([np.repeat(push.cuts, push.aim.shape[1]), joints])
        r, v, to_cut = without_gain(hard, soft, joined(problem.velocities(still, problem.v_free)), counted)
        found = answer.found.joined(plastic.found)
        return answer._replace(found=found, r=r, v=v), push.with_margin(to_cut)

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
