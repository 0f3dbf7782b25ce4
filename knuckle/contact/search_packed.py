"""The search of `search` where few of many contacts can push: those are packed together, and loops run over them only.

Contacts that open fast in free motion are left out. They have no impulse, so what is found solves the whole problem if
none of them closes; if one does, the search is done again with all. Newton's iterates are those of the whole problem.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial
from knuckle.contact.coupling import Rows, inverse_and_stiffness, joined
from knuckle.contact.laws import Blocks, Coulomb, Law, Pyramid, Scale, over_blocks
from knuckle.contact.packed_space import GROUP, Moved, PackedSpace, has_packed_space, packed_space
from knuckle.contact.progress import Choice, Progress, choose, first_progress, rounding_of
from knuckle.contact.system import LEAST_SOFTNESS, System, Vec, plus

FEWEST = 16  # contacts that are worth packing
LEAST_SLOTS = 40  # native code keeps arrays of this size in memory
MANY_SLOTS = 48  # from which on marks of contacts are lists
LEAST_LIST = 264  # and lists of this length, where loops write their entries one by one
SAFETY, LEAST_SPEED = 2.0, 0.1  # contacts are left out that open faster than this [m/s] and SAFETY times what closes


class Contact(NamedTuple):
    """What the search has to know of a contact."""

    law: Law
    X: Float[Array, "side axis width"]
    R: Float[Array, " axis"]
    b: Float[Array, " axis"]
    own: Float[Array, " axis"]  # velocity per impulse of each row
    scale: Float[Array, ""]  # and their mean


class Kept(NamedTuple):
    """Impulses and velocities of rows: of the last iterate, of the centre of the easier problem, and the best."""

    r: Any
    u: Any
    center: Any
    center_u: Any
    best: Any

    def after(self, choice: Choice, r, u) -> Kept:
        """Where a step led to r and u."""
        where = jnp.where
        return Kept(
            r=where(choice.failed, self.center, r),
            u=where(choice.failed, self.center_u, u),
            center=where(choice.solved, r, self.center),
            center_u=where(choice.solved, u, self.center_u),
            best=where(choice.better, r, self.best),
        )


class Listed(NamedTuple):
    """Contacts by number, in the first of many slots."""

    number: Int[Array, " slot"]
    used: Int[Array, ""]

    @property
    def groups(self) -> Int[Array, ""]:
        return (self.used + GROUP - 1) // GROUP

    def only(self, marks: Bool[Array, " slot"]) -> Listed:
        """Those that are marked."""

        def turn(slot, at: Listed) -> Listed:
            number = jax.lax.dynamic_update_slice_in_dim(at.number, self.number[slot][None], at.used, axis=0)
            return Listed(number, at.used + marks[slot].astype(jnp.int32))

        none = jnp.zeros_like(self.number), jnp.zeros((), jnp.int32)
        return jax.lax.fori_loop(0, self.used, turn, Listed(*none))


class Packed(NamedTuple):
    """The contacts that can push, in slots; the last group may have empty ones."""

    used: Int[Array, ""]
    groups: Int[Array, ""]
    number: Int[Array, " slot"]  # of the contact in each slot
    fields: Float[Array, "field slot"]


class Measured(NamedTuple):
    """Largest residuals, in the problem itself and in the easier one, and what rounding leaves of impulses [m/s]."""

    error: Any
    near_error: Any
    rounding: Any


class Tried(NamedTuple):
    """The best impulses of a search among some of the contacts."""

    among: Bool[Array, " slot"]
    impulse: Vec
    error: Float[Array, ""]
    rounding: Float[Array, ""]
    iterations: Int[Array, ""]
    again: Bool[Array, ""]
    change: Float[Array, " dof"]  # of the joints' velocities


class _State(NamedTuple):
    contact: Float[Array, "kept axis slot"]
    joint: tuple[Kept, ...]
    progress: Progress
    carrier: Float[Array, "row width"]  # velocities of carriers by the best impulses
    change: Float[Array, " dof"]  # and of the joints


def can_pack(system: System) -> bool:
    """Whether contacts that are far apart have no part in the solution, and there are enough to leave some out."""
    packable = has_packed_space(system.coupling) and type(system.laws[0]) in (Coulomb, Pyramid)
    return packable and len(system.b[0]) >= FEWEST


def search_packed(system: System, start: Vec, *, tolerance: float, most_iterations: int) -> Tried:
    """The best impulses that are found; see `search`."""
    problem = _Problem(system, packed_space(system.coupling), start, tolerance, most_iterations)
    possible = problem.in_reach()
    opening, pushed = problem.at_start(possible)  # zero in slots that are not used
    closing = over_blocks(lambda opening: jnp.maximum(-opening, 0.0), opening)
    fast = SAFETY * jnp.max(closing) + LEAST_SPEED
    near = over_blocks(lambda opening, pushed: ~(opening > fast) | (pushed != 0), opening, pushed)

    def attempt(last: Tried) -> Tried:
        impulse, found = problem.solve(possible.only(last.among))

        def closes(among, change, opening):
            return ~among & (change + opening < -tolerance)

        again = jnp.any(over_blocks(closes, last.among, problem.opening(possible, found.carrier), opening))
        among = over_blocks(lambda among: among | again, last.among)
        progress = found.progress
        iterations = last.iterations + progress.total
        return Tried(among, impulse, progress.error, progress.rounding, iterations, again, found.change)

    zero, still = jnp.zeros((), start.dtype), jnp.zeros(problem.space.nv, start.dtype)
    first = Tried(near, jnp.zeros_like(start), zero, zero, jnp.zeros((), jnp.int32), zero == 0, still)
    return jax.lax.while_loop(lambda tried: tried.again, attempt, first)


class _Problem:
    """A system in the form that loops over packed contacts need."""

    def __init__(self, system: System, space: PackedSpace, start: Vec, tolerance: float, most_iterations: int):
        self.system, self.space = system, space
        self.tolerance, self.most_iterations = tolerance, most_iterations
        self.contact_start, *joint_start = system.split(start)
        self.joint_start = tuple(joint_start)
        self.laws, self.R, self.b = system.laws[1:], system.R[1:], system.b[1:]
        self.count, self.axes = self.contact_start.shape
        self.slots = max(-(-self.count // GROUP) * GROUP, LEAST_SLOTS)
        self.marked = self.slots if self.slots < MANY_SLOTS else max(self.slots, LEAST_LIST)
        self.carrier = None if system.free is None else space.carriers_at(system.free.velocity)
        self.scales = [jnp.mean(part, axis=1) for part in plus(space.joint_own(), self.R)]
        shapes = jax.eval_shape(self._contact, jnp.zeros((), jnp.int32))
        flat, self.unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
        self.width = flat.size

    # packed contacts

    def _contact(self, number: Int[Array, ""]) -> Contact:
        R, row, X = _row(self.system.R[0], number), _row(self.space.row_of, number), self.space.X_of(number)
        if self.system.free is None or self.carrier is None:
            b = _row(self.system.b[0], number)
        else:
            b = _velocity(X, row, self.carrier) - _row(self.system.free.aim, number)
        own = self.space.own(X, row)
        law = jax.tree.map(lambda x: _row(x, number), self.system.laws[0])
        return Contact(law, X, R, b, own + R, jnp.mean(own + R))

    def in_reach(self) -> Listed:
        """The contacts that may push."""
        numbers = np.arange(max(self.slots, LEAST_LIST), dtype=np.int32)
        every = Listed(jnp.asarray(numbers), jnp.asarray(self.count, jnp.int32))
        within = None if self.system.free is None else self.system.free.within
        return every if within is None else every.only(within)

    @property
    def _all_may_push(self) -> bool:
        return self.system.free is None or self.system.free.within is None

    def opening(self, possible: Listed, carrier: Float[Array, "row width"]) -> Float[Array, " slot"]:
        """Normal velocities of contacts at velocities of the carriers."""
        moving = self.space.moving(carrier)
        if self._all_may_push:
            return self._padded(self.space.opening(moving))
        return self._of_listed(possible, lambda number: (self.space.opening_at(moving, number),))[0]

    def at_start(self, possible: Listed) -> tuple[Float[Array, " slot"], Float[Array, " slot"]]:
        """How fast contacts open in free motion, and marks of those that pushed in the last step: not zero."""
        free = self.system.free
        if self._all_may_push:
            own = self.system.b[0][:, 0]
            if free is not None and self.carrier is not None:
                own = self.space.opening(self.space.moving(self.carrier)) - free.aim[:, 0]
            return self._padded(own), self._padded(jnp.any(self.contact_start != 0, axis=1).astype(own.dtype))
        assert free is not None and self.carrier is not None
        moving = self.space.moving(self.carrier)

        def of_one(number):
            own = self.space.opening_at(moving, number) - _row(free.aim, number)[0]
            return own, jnp.any(_row(self.contact_start, number) != 0).astype(own.dtype)

        opening, pushed = self._of_listed(possible, of_one)
        return opening, pushed

    def _padded(self, per_contact: Array) -> Array:
        return jnp.pad(per_contact, (0, self.marked - self.count))

    def _of_listed(self, listed: Listed, function: Callable) -> list[Float[Array, " slot"]]:
        """Numbers for each of some contacts; zero where there is none."""
        results = len(jax.eval_shape(function, jax.ShapeDtypeStruct((), jnp.int32)))

        def turn(group, filled):
            found = _lanes(function)(_cut(listed.number, group))
            return [_put(x, part, group) for x, part in zip(filled, found, strict=True)]

        blank = jnp.zeros(len(listed.number), self.space.dtype)
        return [x[: self.marked] for x in jax.lax.fori_loop(0, listed.groups, turn, [blank] * results)]

    def pack(self, listed: Listed) -> tuple[Packed, Float[Array, "kept axis slot"]]:
        """The contacts among which is searched, and what is kept of them at the start."""
        number, used = listed

        number = number[: self.slots]

        def one(number, is_used):
            contact = self._contact(number)
            idle = contact._replace(X=jnp.zeros_like(contact.X), **_ones(contact, "R", "b", "own", "scale"))
            contact = jax.tree.map(lambda x, y: jnp.where(is_used, x, y), contact, idle)
            r, zero = _row(self.contact_start, number), jnp.zeros_like(contact.b)
            return ravel_pytree(contact)[0], jnp.stack([jnp.where(is_used, r, zero), zero, zero, contact.b, zero])

        def turn(group, filled):
            is_used = group * GROUP + np.arange(GROUP, dtype=np.int32) < used
            return jax.tree.map(lambda x, part: _put(x, part, group), filled, _lanes(one)(_cut(number, group), is_used))

        dtype = self.contact_start.dtype
        empty = _blank(self.width, self.slots, dtype=dtype), _blank(5, self.axes, self.slots, dtype=dtype)
        fields, kept = jax.lax.fori_loop(0, listed.groups, turn, empty)
        return Packed(used, listed.groups, number, fields), kept

    def _over(self, packed: Packed, function: Callable, arrays: tuple, kept=(), highest=(), sums=(), add=None) -> tuple:
        """`function(contact, rows of its links, *arrays)` of each contact: what is kept, maxima, and sums by link."""

        def one(number, fields, *arrays):
            row = _row(self.space.row_of, number)
            return row, function(self.unravel(fields), row, *arrays)

        def turn(group, filled):
            row, values = _lanes(one)(*(_cut(x, group) for x in (packed.number, packed.fields, *arrays)))
            put = jax.tree.map(lambda x, part: _put(x, part, group), filled[0], values[0])
            most = jax.tree.map(jnp.maximum, filled[1], values[1])
            return put, most, add(filled[2], row, values[2]) if add else ()

        kept, highest, sums = jax.lax.fori_loop(0, packed.groups, turn, (kept, highest, sums))
        return kept, jax.tree.map(jnp.max, highest), sums

    def _forces(self, packed: Packed, function: Callable, arrays: tuple, kept=()) -> tuple:
        """`_over` of a function that gives the forces of contacts on their carriers."""
        space = self.space
        kept, _, sums = self._over(packed, function, arrays, kept, sums=space.no_force(), add=space.add_force)
        return kept, space.force(sums)

    # the search

    def solve(self, listed: Listed) -> tuple[Vec, _State]:
        packed, kept = self.pack(listed)
        plan = self.space.plan(packed.number, packed.used)
        found = jax.lax.while_loop(
            lambda at: at.progress.is_unfinished(self.tolerance, self.most_iterations),
            lambda at: self._advance(packed, plan, at),
            self._first(packed, kept),
        )
        return joined((self._unpacked(packed, found.contact[4]), *(own.best for own in found.joint))), found

    def _unpacked(self, packed: Packed, of_slots: Float[Array, "axis slot"]) -> Blocks:
        """What slots have, by contact; zero for contacts that have none."""

        def turn(slot, filled):
            own = jax.lax.dynamic_slice_in_dim(of_slots, slot, 1, axis=1)
            return jax.lax.dynamic_update_slice_in_dim(filled, own.T, packed.number[slot], axis=0)

        rows = max(self.count, -(-LEAST_LIST // self.axes))
        return jax.lax.fori_loop(0, packed.used, turn, jnp.zeros((rows, self.axes), of_slots.dtype))[: self.count]

    def _first(self, packed: Packed, kept: Float[Array, "kept axis slot"]) -> _State:
        """Newton steps begin at the start; if they fail, easier problems begin at rest."""
        zero = [jnp.zeros_like(part) for part in self.joint_start]
        joint = tuple(Kept(r, r, z, b, z) for r, z, b in zip(self.joint_start, zero, self.b, strict=True))

        def pushes(at: Contact, _, r):
            return (), (), _forces_at(at.X, r)

        r = kept[0]
        _, force = self._forces(packed, pushes, (r,))
        moved = self.space.response(force, self.joint_start)
        u, joint_u, found = self._measure(packed, kept, r, joint, self.joint_start, moved, jnp.zeros((), r.dtype))
        at_rest = self._error_at_rest(packed, zero)
        usable = found.error <= at_rest  # false for NaN
        progress = first_progress(jnp.where(usable, found.error, at_rest), jnp.where(usable, found.rounding, 0.0))
        no = jnp.zeros((), bool)
        first = _State(kept, joint, progress, jnp.zeros_like(moved.carrier), jnp.zeros_like(moved.v))
        return self._keep(packed, first, Choice(usable, no, no), progress, (r, u), (self.joint_start, joint_u), moved)

    def _advance(self, packed: Packed, plan, at: _State) -> _State:
        """One Newton step on the problem with A + rho D, whose velocities are u + rho D (r - center)."""
        rho, space = at.progress.rho, self.space

        def spring(contact: Contact, _, kept):
            r, u, center, R, scale = (x[None] for x in (*kept[:3], contact.R, contact.scale))
            K, g = (x[0] for x in _spring(_alone(contact.law), r, u, center, R, scale, rho))
            return jnp.concatenate([K.reshape(-1), g]), (), space.part(contact.X, K, g)

        rows = zip(self.laws, at.joint, self.R, self.scales, strict=True)
        own = [
            over_blocks(partial(_spring, rho=rho), law, kept.r, kept.u, kept.center, R, scale)
            for law, kept, R, scale in rows
        ]
        equations, sums = space.equations(plan, tuple(K[:, :, 0] for K, _ in own))
        blank = _blank(self.axes * (self.axes + 1), self.slots, dtype=rho.dtype)
        add = partial(space.add, equations)
        springs, _, sums = self._over(packed, spring, (at.contact,), blank, (), sums, add)
        step = space.solve(equations, sums, tuple(g for _, g in own))

        def moves(contact: Contact, row, kept, spring):
            K, g = spring[: -self.axes].reshape(self.axes, self.axes), spring[-self.axes :]
            r = kept[0] + (g - spatial.apply(K, _velocity(contact.X, row, step.carrier)))
            return r, (), _forces_at(contact.X, r)

        blank = _blank(self.axes, self.slots, dtype=rho.dtype)
        r, force = self._forces(packed, moves, (at.contact, springs), blank)
        joint_r = tuple(
            kept.r + (g - K[:, :, 0] * dv) for kept, (K, g), dv in zip(at.joint, own, step.joints, strict=True)
        )
        moved = space.response(force, joint_r)
        u, joint_u, found = self._measure(packed, at.contact, r, at.joint, joint_r, moved, rho)
        choice, progress = choose(at.progress, *found, self.tolerance)
        return self._keep(packed, at, choice, progress, (r, u), (joint_r, joint_u), moved)

    def _measure(self, packed: Packed, kept, r, joint: tuple[Kept, ...], joint_r: Rows, moved: Moved, rho):
        """Velocities of the rows at impulses r, which cause this motion, and the largest residuals."""

        def measure(contact: Contact, row, kept, r):
            u = _velocity(contact.X, row, moved.carrier) + contact.R * r + contact.b
            errors = _errors(
                _alone(contact.law), r[None], u[None], kept[2][None], contact.own[None], contact.scale[None], rho
            )
            return u, Measured(*(jnp.max(x) for x in errors)), ()

        blank, none = _blank(self.axes, self.slots, dtype=rho.dtype), Measured(*[jnp.zeros(GROUP, rho.dtype)] * 3)
        u, found, _ = self._over(packed, measure, (kept, r), blank, none)
        joint_u, parts = [], [found]
        rows = zip(self.laws, joint, joint_r, self.R, self.b, self.scales, moved.joints, strict=True)
        for law, own, own_r, R, b, scale, v in rows:

            def of_blocks(law, r, center, R, b, scale, v):
                u = v + R * r + b
                return u, _errors(law, r, u, center, scale[:, None], scale, rho)

            own_u, errors = over_blocks(of_blocks, law, own_r, own.center, R, b, scale, v)
            joint_u.append(own_u)
            parts.append(Measured(*(jnp.max(x) for x in errors)))
        return u, tuple(joint_u), Measured(*(jnp.max(jnp.stack(x)) for x in zip(*parts, strict=True)))

    def _error_at_rest(self, packed: Packed, zero: list[Blocks]) -> Float[Array, ""]:
        """The residual without impulses."""

        def measure(contact: Contact, _):
            rows = (x[None] for x in (jnp.zeros_like(contact.b), contact.b, contact.scale))
            return (), jnp.max(jnp.abs(_alone(contact.law).error(*rows))), ()

        _, found, _ = self._over(packed, measure, (), (), jnp.zeros(GROUP, self.space.dtype))
        own = zip(self.laws, zero, self.b, self.scales, strict=True)
        errors = [jnp.max(jnp.abs(over_blocks(type(law).error, law, *at))) for law, *at in own]
        return jnp.max(jnp.stack([found, *errors]))

    def _keep(self, packed: Packed, at: _State, choice: Choice, progress: Progress, contact, joint, moved: Moved):
        """The state after a step that led to these impulses and velocities."""
        r, u = contact

        def one(kept, r, u):
            return jnp.stack(Kept(*kept).after(choice, r, u))

        def turn(group, kept):
            return _put(kept, _lanes(one)(*(_cut(x, group) for x in (kept, r, u))), group)

        return _State(
            jax.lax.fori_loop(0, packed.groups, turn, at.contact),
            tuple(own.after(choice, *new) for own, *new in zip(at.joint, *joint, strict=True)),
            progress,
            jnp.where(choice.better, moved.carrier, at.carrier),
            jnp.where(choice.better, moved.v, at.change),
        )


def _spring(law: Law, r: Blocks, u: Blocks, center: Blocks, R: Blocks, scale: Scale, rho: Float[Array, ""]):
    """K and g of rows in a Newton step on the problem with A + rho D (see `coupling`)."""
    heavier, near_scale = rho * scale[:, None], (1 + rho) * scale
    u = u + heavier * (r - center)
    softness = jnp.maximum(R + heavier, LEAST_SOFTNESS * near_scale[:, None])
    inverse, K = inverse_and_stiffness(*law.slopes(r, u, near_scale), softness)
    return K, spatial.apply(inverse, -law.imbalance(r, u, near_scale))


def _errors(
    law: Law, r: Blocks, u: Blocks, center: Blocks, own: Blocks, scale: Scale, rho: Float[Array, ""]
) -> Measured:
    near = u + rho * scale[:, None] * (r - center)
    parts = law.error(r, u, scale), law.error(r, near, (1 + rho) * scale), rounding_of(own * r, scale[:, None] * r)
    return Measured(*(jnp.max(jnp.abs(x), axis=1) for x in parts))


def _velocity(X: Float[Array, "side axis width"], row: Int[Array, " side"], carrier: Float[Array, "row width"]):
    return spatial.apply(X, jnp.stack([_row(carrier, row[side]) for side in range(len(X))])).sum(axis=0)


def _forces_at(X: Float[Array, "side axis width"], r: Float[Array, " axis"]) -> Float[Array, "side width"]:
    return spatial.apply_transpose(X, jnp.broadcast_to(r, (len(X), *r.shape)))


def _blank(*shape: int, dtype) -> Array:
    """An array of which loops write the groups that are used, and nothing reads others."""
    return jax.lax.empty(shape, dtype)


def _alone(law: Law) -> Law:
    return jax.tree.map(lambda x: x[None], law)


def _ones(contact: Contact, *names: str) -> dict[str, Array]:
    return {name: jnp.ones_like(getattr(contact, name)) for name in names}


def _row(table: Float[Array, "row ..."], number: Int[Array, ""]) -> Array:
    return jnp.take(table, number, axis=0, mode="clip")


def _lanes(function: Callable) -> Callable:
    """Over the last axis of arrays; results have it first."""
    from knuckle.native import lanes  # slow to import

    return lanes(function, in_axes=-1)


def _cut(x: Float[Array, "... slot"], group: Int[Array, ""]) -> Float[Array, "... lane"]:
    return jax.lax.dynamic_slice_in_dim(x, GROUP * group, GROUP, axis=x.ndim - 1)


def _put(
    x: Float[Array, "... slot"], part: Float[Array, "lane ..."], group: Int[Array, ""]
) -> Float[Array, "... slot"]:
    return jax.lax.dynamic_update_slice_in_dim(x, jnp.moveaxis(part, 0, -1), GROUP * group, axis=x.ndim - 1)
