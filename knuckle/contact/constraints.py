"""Rows of joint limits, of equalities (connect, weld, mimic) and of dry friction in the joints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.contact.laws import length, unit
from knuckle.contact.planar import Directions, zero_across
from knuckle.contact.rows import Jacobian, WorldAxes, moved_by, point_velocities
from knuckle.kinematics import Poses, poses
from knuckle.model.joints import difference, neutral
from knuckle.model.model import Equalities, Model
from knuckle.model.topology import Topology
from knuckle.prescribed import BodyMotion
from knuckle.tree import rows

Vec = Float[Array | np.ndarray, " n"]
TOUCHING, CORNER = 2e-6, 4e-7  # [m or rad]; nearer than this, gaps close as gently as overlaps open
FAR = 1e9  # [m or rad]; where there is no limit


class Range(NamedTuple):
    """Rows that stay within limits: how far each stands above its lower and below its upper one [m or rad]."""

    J: Jacobian
    above: Float[Array, " row"]
    below: Float[Array, " row"]


class Tie(NamedTuple):
    """Rows that are held: their velocity per joint speed, and by how much they are off [m or rad]."""

    J: Jacobian
    error: Float[Array, " row"]
    block: tuple[int, ...]  # number of rows of each equality
    full_block: tuple[int, ...]  # and in space: in a plane some are left out
    vectors: tuple[int, ...]  # number of rows of each vector: of a point, of a turn, of a mimic
    lift: Float[Array | np.ndarray, "full row"]  # impulses of the rows in space, in world axes, by those of these rows
    drift: Float[Array, " row"] | None = None  # velocity that bodies on prescribed paths add [m/s or rad/s]


class JointRows(NamedTuple):
    """Which joints have rows: static, so that it can be found from a model's values before they are traced."""

    limited: tuple[int, ...]  # degrees of freedom of revolute, prismatic and planar joints
    balls: tuple[int, ...]  # links of ball joints
    rubbing: tuple[int, ...]  # degrees of freedom with dry friction

    def slots(self, topology: Topology, ties: int) -> np.ndarray:
        """Where these rows, with those of the equalities between them, stand among all that there can be."""
        every = possible_rows(topology)
        ends = np.cumsum([0, len(every.limited), len(every.balls), ties])
        parts = (np.searchsorted(all_of, own) for all_of, own in zip(every, self, strict=True))
        limited, balls, rubbing = (np.asarray(part, int) for part in parts)
        return np.concatenate([limited, ends[1] + balls, ends[2] + np.arange(ties), ends[3] + rubbing])


def possible_rows(topology: Topology) -> JointRows:
    """Rows of all joints that can have a limit (all but free ones) and of all degrees of freedom, which can rub."""
    balls, quaternion = topology.of_kind("ball"), [topology.v_index(kind) for kind in ("ball", "free")]
    limited = np.setdiff1d(np.arange(topology.nv), np.concatenate([np.ravel(x) for x in quaternion]))
    return JointRows(*(tuple(int(i) for i in x) for x in (limited, balls, np.arange(topology.nv))))


def joint_rows(model: Model) -> JointRows:
    """The rows that a model's values ask for; of traced values, every row that there can be.

    A row without a limit, or without friction, has no impulse: it costs time and changes nothing. Joints that follow a
    path have no rows: the path decides.
    """
    every = possible_rows(model.topology)
    limited, balls, rubbing = every
    if not (isinstance(model.lower, Tracer) or isinstance(model.upper, Tracer)):
        has_limit = (np.asarray(model.lower) != -np.inf) | (np.asarray(model.upper) != np.inf)  # NaN is no absence
        start, stop = model.topology.v_start, model.topology.v_stop
        limited = tuple(dof for dof in every.limited if has_limit[dof])
        balls = tuple(link for link in every.balls if has_limit[start[link] : stop[link]].any())
    if not isinstance(model.friction, Tracer):
        rubbing = tuple(int(dof) for dof in np.flatnonzero(np.asarray(model.friction) > 0))
    held, start = set(model.topology.prescribed), model.topology.v_start
    if held:
        limited, rubbing = (tuple(dof for dof in own if dof not in held) for own in (limited, rubbing))
        balls = tuple(link for link in balls if int(start[link]) not in held)
    return JointRows(limited, balls, rubbing)


def limits(model: Model, q: Vec, present: JointRows) -> Range:
    """One row per limited degree of freedom; one per limited ball joint, its angle from the neutral pose."""
    topology, single = model.topology, np.array(present.limited, int)
    moved = difference(model, jnp.asarray(neutral(topology), q.dtype), q)
    eye = np.eye(model.nv, dtype=q.dtype)
    at, lower, upper = (rows(jnp.asarray(x), single) for x in (moved, model.lower, model.upper))
    if not present.balls:
        return _range(jnp.asarray(eye[single]), at - lower, upper - at)
    index = topology.v_start[np.array(present.balls, int)][:, None] + np.arange(3)
    turn = rows(moved, np.ravel(index)).reshape(-1, 3)
    angle = length(turn)
    axis = jnp.where(angle[:, None] > 0, unit(turn), jnp.asarray([[1.0, 0.0, 0.0]], q.dtype))
    around = jnp.sum(axis[:, :, None] * eye[index], axis=1)
    most = rows(jnp.asarray(model.upper), index[:, 0])
    return _range(
        J=jnp.concatenate([eye[single], around]),
        above=jnp.concatenate([at - lower, jnp.full_like(angle, FAR)]),
        below=jnp.concatenate([upper - at, most - angle]),
    )


def _range(J: Jacobian, above: Array, below: Array) -> Range:
    return Range(J, jnp.minimum(above, FAR), jnp.minimum(below, FAR))


def beyond_touching(gap: Float[Array, " row"]) -> Float[Array, " row"]:
    """The part of a gap beyond TOUCHING, with a round corner: what rests, at a gap of zero, is not at a kink."""
    far, start = (x + jnp.sqrt(x * x + CORNER**2) for x in (gap - TOUCHING, -TOUCHING + jnp.zeros_like(gap)))
    return 0.5 * (far - start)


def without_dry_friction(model: Model, present: JointRows) -> Model:
    """The model whose smooth friction is left out where rows stand for it."""
    if not present.rubbing:
        return model
    friction = jnp.asarray(model.friction)
    has_row = np.isin(np.arange(model.nv), present.rubbing)
    return eqx.tree_at(lambda m: m.friction, model, jnp.where(has_row & (friction > 0), 0.0, friction))


def equalities(model: Model, q: Vec, axes: WorldAxes, directions: Directions, moving: BodyMotion | None = None) -> Tie:
    """Rows of the active equalities; in a model that moves in a plane, those in the plane."""
    ties = model.equalities
    active = [k for k, on in enumerate(ties.active) if on]
    parts, world = [], None
    if any(ties.kind[k] != "mimic" for k in active):
        world = _with_ground(poses(model, q))
        parts += [_hold(model, world, axes, k, directions) for k in active if ties.kind[k] != "mimic"]
    parts += [_follow(model, q, k) for k in active if ties.kind[k] == "mimic"]
    if not parts:
        return Tie(jnp.zeros((0, model.nv), q.dtype), jnp.zeros(0, q.dtype), (), (), (), np.zeros((0, 0)))
    lifts = [_lifts(kind, directions) for kind in _in_row_order(ties.kind[k] for k in active)]
    vectors = [lift for own in lifts for lift in own]
    return Tie(
        J=jnp.concatenate([J for J, _ in parts]),
        error=jnp.concatenate([error for _, error in parts]),
        block=tuple(len(J) for J, _ in parts),
        full_block=tuple(sum(len(lift) for lift in own) for own in lifts),
        vectors=tuple(lift.shape[1] for lift in vectors),
        lift=_block_diagonal(*vectors),
        drift=None if moving is None else _drift(model, world, active, moving),
    )


def _drift(model: Model, world: Poses | None, active: list[int], moving: BodyMotion) -> Float[Array, " row"]:
    """Velocity of side a against side b, in world axes, of what prescribed bodies move; zero of mimics."""
    parts = []
    for k in (k for k in active if model.equalities.kind[k] != "mimic"):
        assert world is not None
        turn = jnp.zeros(3, world.position.dtype)
        move = turn
        for side, number, sign in (("a", moving.side_body[0][k], 1.0), ("b", moving.side_body[1][k], -1.0)):
            if number >= 0:
                point = _frame(model.equalities, world, side, k).position
                move = move + sign * moving.point_velocity(np.array([number]), point[None])[0]
                turn = turn + sign * moving.velocity[number, :3]
        parts.append(move)
        if model.equalities.kind[k] == "weld":
            parts.append(model.equalities.torque_scale[k] * turn)
    followers = sum(model.equalities.kind[k] == "mimic" for k in active)
    return jnp.concatenate([*parts, jnp.zeros(followers, moving.velocity.dtype)])


def _in_row_order(kinds: Iterable[str]) -> list[str]:
    """Points and frames first, then joints that follow others."""
    return sorted(kinds, key=lambda kind: kind == "mimic")


def _lifts(kind: str, directions: Directions) -> list[Array | np.ndarray]:
    """For each vector of an equality, columns: the directions of its rows, in world axes."""
    along, around = directions.along.T, directions.around.T
    return {"mimic": [np.eye(1)], "connect": [along], "weld": [along, around]}[kind]


def _block_diagonal(*blocks: Array | np.ndarray) -> Array | np.ndarray:
    columns, start, wide = [], 0, sum(block.shape[1] for block in blocks)
    arrays = np if all(isinstance(block, np.ndarray) for block in blocks) else jnp
    for block in blocks:
        columns.append(arrays.pad(block, ((0, 0), (start, wide - start - block.shape[1]))))
        start += block.shape[1]
    return arrays.concatenate(columns)


def lengths(x: Float[Array, " row"], vectors: tuple[int, ...]) -> Float[Array, " row"]:
    """For each row the length of its vector: the same in all axes."""
    ends = np.cumsum(vectors)
    parts = [x[stop - size : stop] for size, stop in zip(vectors, ends, strict=True)]
    return jnp.concatenate([jnp.broadcast_to(length(part), part.shape) for part in parts]) if parts else x


def _with_ground(world: Poses) -> Poses:
    dtype = world.position.dtype
    ground = Poses(jnp.eye(3, dtype=dtype)[None], jnp.zeros((1, 3), dtype))
    return Poses(*(jnp.concatenate(pair) for pair in zip(world, ground, strict=True)))


def _hold(model: Model, world: Poses, axes: WorldAxes, k: int, held: Directions) -> tuple[Jacobian, Array]:
    """Two points (connect), or two frames (weld), held together: a's velocity against b's along directions."""
    ties = model.equalities
    a, b = _frame(ties, world, "a", k), _frame(ties, world, "b", k)
    along, around = (jnp.asarray(x, a.position.dtype) for x in (held.along, held.around))
    moves = [moved_by(model, (link[k],)) for link in (ties.a, ties.b)]
    velocity = point_velocities(axes, moves[0], a.position[None]) - point_velocities(axes, moves[1], b.position[None])
    apart = a.position - b.position
    J, error = spatial.apply(along[None], velocity[0]).T, spatial.apply(along, apart)
    J, error = zero_across(held.still_along, J, error)
    if ties.kind[k] == "connect":
        return J, error
    turning = (moves[0] - moves[1])[0][:, None] * axes.angular
    turned, off = spatial.apply(around[None], turning).T, spatial.apply(around, _turn_between(b.rotation, a.rotation))
    turned, off = zero_across(held.still_around, turned, off)
    scale = ties.torque_scale[k]
    return jnp.concatenate([J, scale * turned]), jnp.concatenate([error, scale * off])


def _frame(ties: Equalities, world: Poses, side: str, k: int) -> Poses:
    """Pose in the world of side a or b of equality k."""
    link = getattr(ties, side)[k] % len(world.position)
    R, p = world.rotation[link], world.position[link]
    local = spatial.rotation_of_quaternion(jnp.asarray(getattr(ties, f"rotation_{side}")[k]))
    return Poses(spatial.compose(R, local), p + spatial.apply(R, jnp.asarray(getattr(ties, f"position_{side}")[k])))


def _turn_between(R_b: Float[Array, "3 3"], R_a: Float[Array, "3 3"]) -> Float[Array, "3"]:
    """Axis times sine of the turn from b to a, world axes; past a right angle, the axis."""
    R = spatial.compose(R_a, R_b.T)
    sine = 0.5 * jnp.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    return jnp.where(jnp.trace(R) < 1, unit(sine), sine)


def _follow(model: Model, q: Vec, k: int) -> tuple[Jacobian, Array]:
    """Joint a - ref = polynomial(joint b - ref)."""
    ties, topology = model.equalities, model.topology
    a, b = ties.a[k], ties.b[k]
    coefficients = jnp.asarray(ties.polynomial[k])
    here = _deflection(model, q, a)
    J = np.zeros((1, model.nv))
    J[0, topology.v_start[a]] = 1.0
    if b < 0:
        return jnp.asarray(J, q.dtype), (here - coefficients[0])[None]
    x = _deflection(model, q, b)
    wanted = sum((coefficients[n] * x**n for n in range(1, 5)), start=coefficients[0])
    rate = sum((n * coefficients[n] * x ** (n - 1) for n in range(2, 5)), start=coefficients[1])
    leader = np.zeros((1, model.nv))
    leader[0, topology.v_start[b]] = 1.0
    return jnp.asarray(J, q.dtype) - rate * jnp.asarray(leader, q.dtype), (here - wanted)[None]


def _deflection(model: Model, q: Vec, link: int) -> Array:
    at = model.topology.q_start[link]
    return jnp.asarray(q)[at] - model.reference[at]
