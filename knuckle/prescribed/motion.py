"""What follows paths in a step: bodies on the world, and joints."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.model.model import Model, State
from knuckle.model.topology import COORDINATES
from knuckle.prescribed.names import Paths
from knuckle.prescribed.path import AnyPath, velocity_at, velocity_between
from knuckle.tree import rows

Vec = Float[Array, " n"]


class BodyMotion(eqx.Module):
    """How bodies on the world move in a step.

    Velocities are displacements over a step divided by its length, as those of a free body are: [angular; linear] of
    the body's origin, world axes.
    """

    pose: Float[Array, "body 7"]  # at the start of the step
    before: Float[Array, "body 6"]  # velocity over the step before
    velocity: Float[Array, "body 6"]  # over this step
    frame: tuple[int, ...] = eqx.field(static=True)  # of the model, which says where each body was described
    frame_body: tuple[int, ...] = eqx.field(static=True)  # the body of each frame of the model; -1: none of these
    shape_body: tuple[int, ...] = eqx.field(static=True)  # of each shape
    side_body: tuple[tuple[int, ...], tuple[int, ...]] = eqx.field(static=True)  # of sides a and b of each equality

    def point_velocity(self, body: np.ndarray, point: Float[Array, "point 3"], *, before: bool = False) -> Array:
        """Velocities of points that stand on bodies, given by number [m/s]."""
        moving, pose = rows((self.before if before else self.velocity, self.pose), body)
        return moving[:, 3:] + spatial.cross(moving[:, :3], point - pose[:, :3])

    def angular_velocity(self, body: np.ndarray, *, before: bool = False) -> Array:
        """Of bodies given by number [rad/s]."""
        return rows(self.before if before else self.velocity, body)[:, :3]


class Stages(NamedTuple):
    """Coordinates, velocities and accelerations at the start, the middle and the end of a step.

    Accelerations are those of the parabola through the three velocities: their mean over the step (Simpson's rule) is
    the change of velocity, also where the acceleration of a path jumps between samples.
    """

    q: Float[Array, "3 coordinate"]
    qd: Float[Array, "3 freedom"]
    qdd: Float[Array, "3 freedom"]


class JointMotion(eqx.Module):
    """How joints that follow paths move in a step."""

    q: Float[Array, " coordinate"]  # at its start
    qd: Float[Array, " freedom"]  # over the step before
    end: Float[Array, " coordinate"]
    velocity: Float[Array, " freedom"]  # over this step: leads from the start to the end
    stages: Stages | None
    q_index: tuple[int, ...] = eqx.field(static=True)  # among all coordinates
    v_index: tuple[int, ...] = eqx.field(static=True)

    def start(self, state: State) -> State:
        """The state with these joints where their paths start."""
        qd = self.qd if self.stages is None else self.stages.qd[0]
        return self._put(state, self.q, qd)

    def finish(self, state: State) -> State:
        """The state with these joints where their paths end."""
        qd = self.velocity if self.stages is None else self.stages.qd[2]
        return self._put(state, self.end, qd)

    def acceleration(self, nv: int, dt) -> Vec:
        """Of all degrees of freedom, zero where no path is given."""
        return self._put_v(jnp.zeros(nv, self.qd.dtype), (self.velocity - self.qd) / dt)

    def at_stage(self, number: int, q, qd) -> tuple[Vec, Vec, Vec]:
        """Coordinates and velocities of all joints, and accelerations of these, at a stage."""
        assert self.stages is not None
        at_q, at_qd, at_qdd = (x[number] for x in self.stages)
        return self._put_q(q, at_q), self._put_v(qd, at_qd), self._put_v(jnp.zeros_like(qd), at_qdd)

    def _put(self, state: State, q: Vec, qd: Vec) -> State:
        return State(self._put_q(state.q, q), self._put_v(state.qd, qd), state.impulse, state.memory, state.control)

    def _put_q(self, q, own: Vec) -> Vec:
        return jnp.asarray(q).at[np.array(self.q_index, np.int32)].set(own)

    def _put_v(self, v, own: Vec) -> Vec:
        return jnp.asarray(v).at[np.array(self.v_index, np.int32)].set(own)


class Motion(eqx.Module):
    """All that follows paths in a step."""

    bodies: BodyMotion | None
    joints: JointMotion | None


def motion_over(model: Model, paths: Paths, time, dt, dtype, *, smooth: bool = False) -> Motion | None:
    """The motion of a step from `time` to `time + dt` [s]; `smooth`: derivatives of the paths at its stages too."""
    if not paths:
        return None
    t, dt = jnp.asarray(time, dtype), jnp.asarray(dt, dtype)
    joints = {name: path for name, path in paths.items() if name in model.joint_names}
    bodies = {name: path for name, path in paths.items() if name not in joints}
    return Motion(
        _body_motion(model, bodies, t, dt) if bodies else None,
        _joint_motion(model, joints, t, dt, smooth) if joints else None,
    )


def _body_motion(model: Model, paths: Paths, t, dt) -> BodyMotion:
    frame = [model.frames.names.index(name) for name in paths]
    last, now, then = (
        jnp.stack([_pose(model, k, path(at).astype(t.dtype)) for k, path in zip(frame, paths.values(), strict=True)])
        for at in (t - dt, t, t + dt)
    )
    number = {member: k for k, name in enumerate(paths) for member in model.topology.standing_on(name)}
    ties = model.equalities

    def numbers(names: tuple[str, ...], links: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number.get(name, -1) if link < 0 else -1 for name, link in zip(names, links, strict=True))

    return BodyMotion(
        pose=now,
        before=_twist(last, now, dt),
        velocity=_twist(now, then, dt),
        frame=tuple(frame),
        frame_body=numbers(model.frames.names, model.frames.link),
        shape_body=numbers(model.geometry.body, model.geometry.link),
        side_body=(numbers(ties.body_a, ties.a), numbers(ties.body_b, ties.b)),
    )


def _pose(model: Model, frame: int, value: Vec) -> Float[Array, "7"]:
    """Position and quaternion; a path of positions leaves the rotation as described."""
    if len(value) == 7:
        return value
    return jnp.concatenate([value, jnp.asarray(model.frames.rotation[frame], value.dtype)])


def _twist(start: Float[Array, "body 7"], end: Float[Array, "body 7"], dt) -> Float[Array, "body 6"]:
    """Mean velocity [angular; linear], world axes, of bodies that go from poses to others in dt."""
    moved = velocity_between(start, end, dt)
    R = spatial.rotation_of_quaternion(start[:, 3:])
    return jnp.concatenate([spatial.apply(R, moved[:, 3:]), moved[:, :3]], axis=1)


def _joint_motion(model: Model, paths: Paths, t, dt, smooth: bool) -> JointMotion:
    topology = model.topology
    order = sorted(paths, key=topology.joint)
    links = [topology.joint(name) for name in order]
    last, now, then = ([paths[name](at).astype(t.dtype) for name in order] for at in (t - dt, t, t + dt))
    q_index = [topology.q_start[k] + i for k in links for i in range(COORDINATES[topology.kind[k]])]
    v_index = [i for k in links for i in range(topology.v_start[k], topology.v_stop[k])]
    return JointMotion(
        q=jnp.concatenate(now),
        qd=jnp.concatenate([velocity_between(a, b, dt) for a, b in zip(last, now, strict=True)]),
        end=jnp.concatenate(then),
        velocity=jnp.concatenate([velocity_between(a, b, dt) for a, b in zip(now, then, strict=True)]),
        stages=_stages({name: paths[name] for name in order}, t, dt) if smooth else None,
        q_index=tuple(int(i) for i in q_index),
        v_index=tuple(int(i) for i in v_index),
    )


def _stages(paths: dict[str, AnyPath], t, dt) -> Stages:
    for name, path in paths.items():
        if not path.is_smooth:
            raise ValueError(
                f"prescribed {name!r}: RK4 needs a path of continuous velocity: a function, or "
                "Path(..., interpolation='cubic', beyond='refuse'); other integrators take any path"
            )
    moments = t, t + dt / 2, t + dt
    q = jnp.stack([jnp.concatenate([path(at).astype(t.dtype) for path in paths.values()]) for at in moments])
    qd = jnp.stack(
        [jnp.concatenate([velocity_at(path, at).astype(t.dtype) for path in paths.values()]) for at in moments]
    )
    slopes = jnp.asarray([[-3.0, 4.0, -1.0], [-1.0, 0.0, 1.0], [1.0, -4.0, 3.0]], t.dtype)
    return Stages(q, qd, spatial.compose(slopes, qd) / dt)


# Bodies at their poses


def placed(model: Model, bodies: BodyMotion | None) -> Model:
    """The model with frames, shapes and sides of equalities of prescribed bodies where the step starts."""
    if bodies is None:
        return model
    described = rows((jnp.asarray(model.frames.position), jnp.asarray(model.frames.rotation)), np.array(bodies.frame))
    owners = bodies.frame_body, bodies.shape_body, *bodies.side_body
    for find, numbers in zip(_POSES, owners, strict=True):
        index = np.flatnonzero(np.array(numbers, int) >= 0)
        if len(index):
            moved = _moved(bodies.pose, described, np.array(numbers, int)[index], index, *map(jnp.asarray, find(model)))
            model = eqx.tree_at(find, model, moved)
    return model


_POSES = (
    lambda m: (m.frames.position, m.frames.rotation),
    lambda m: (m.geometry.position, m.geometry.rotation),
    lambda m: (m.equalities.position_a, m.equalities.rotation_a),
    lambda m: (m.equalities.position_b, m.equalities.rotation_b),
)


def _moved(pose, described, body: np.ndarray, index: np.ndarray, position, rotation) -> tuple[Array, Array]:
    """Rows of poses in the world, moved with their bodies; exactly as they were if bodies stand as described."""
    (p_old, q_old), now = rows(described, body), rows(pose, body).astype(position.dtype)
    p, q = rows((position, rotation), index)
    turn = spatial.quaternion_product(now[:, 3:], spatial.quaternion_conjugate(q_old))
    arm = p - p_old
    turned = spatial.apply(spatial.rotation_of_quaternion(turn), arm) - arm
    p_new = p + ((now[:, :3] - p_old) + turned)
    q_new = spatial.quaternion_product(turn, q)
    return position.at[index].set(p_new), rotation.at[index].set(q_new)
