"""Costs of a plan: plain functions of time, state and control, and helpers for the usual ones on the manifold.

A running cost is called as cost(time, state, control), a terminal cost as cost(time, state). The helpers serve as both:
without a control their control term is left out. Those that are sums of squares have a Gauss-Newton Hessian, which
needs no second derivatives and is never indefinite.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.kinematics import frame_pose
from knuckle.model.joints import difference, retract
from knuckle.model.model import Leaf, Model, State

Cost = Callable[..., Any]
Weight = float | Leaf | Sequence[float] | None


class SummableCost(eqx.Module):
    """A cost that can be added to others: `a + b`, where b may be a plain function."""

    @abstractmethod
    def __call__(self, time, state: State, control=None) -> Float[Array, ""]:
        """The value."""

    def __add__(self, other: Cost) -> SumOfCosts:
        return SumOfCosts((*parts_of(self), *parts_of(other)))

    def __radd__(self, other: Cost) -> SumOfCosts:
        return SumOfCosts((*parts_of(other), *parts_of(self)))


class SumOfCosts(SummableCost):
    """Several costs together."""

    parts: tuple[Cost, ...]

    def __call__(self, time, state: State, control=None):
        return sum(call(part, time, state, control) for part in self.parts)


class SquaredCost(SummableCost):
    """Half the sum of squared residuals."""

    @abstractmethod
    def residual(self, time, state: State, control=None) -> Float[Array, " n"]:
        """What is squared, weights included."""

    def __call__(self, time, state: State, control=None):
        residual = self.residual(time, state, control)
        return 0.5 * (residual @ residual)


def parts_of(cost: Cost) -> tuple[Cost, ...]:
    if not callable(cost):
        raise ValueError(f"a cost must be a function of time, state and control, got {cost!r}")
    return cost.parts if isinstance(cost, SumOfCosts) else (cost,)


def call(cost: Cost, time, state: State, control=None):
    """A cost with a control, or a terminal one without."""
    return cost(time, state) if control is None else cost(time, state, control)


class ResidualCost(SquaredCost):
    """Half the sum of squares of any function of time, state and control."""

    function: Cost
    scale: Float[Leaf, ""] | Float[Leaf, " n"]

    def residual(self, time, state, control=None):
        return self.scale * jnp.ravel(call(self.function, time, state, control))


def squares(function: Cost, weight: float | Leaf = 1.0) -> ResidualCost:
    """Half of weight |function(time, state, control)|^2, or of function(time, state) in a terminal cost."""
    if not callable(function):
        raise ValueError(f"squares: expected a function of time, state and control, got {function!r}")
    scale = np.asarray(weight, float)
    return ResidualCost(function, _scale("weight", weight, scale.size) if scale.ndim else np.sqrt(_positive(scale)))


class QuadraticCost(SquaredCost):
    """Weighted squared distances from a state and from a control; of quaternions by the rotation vector between."""

    model: Model
    goal: State
    goal_control: Float[Leaf, " nu"]
    scale_q: Float[Leaf, " nv"]  # square roots of the weights
    scale_qd: Float[Leaf, " nv"]
    scale_control: Float[Leaf, " nu"]
    periodic: bool = eqx.field(static=True)

    def residual(self, time, state, control=None):
        goal = jnp.asarray(self.goal.q)
        parts = [self.scale_qd * (state.qd - self.goal.qd)]
        away = self.scale_q * difference(self.model, goal, state.q)
        if self.periodic:
            v, q = revolute_entries(self.model)
            rest = np.setdiff1d(np.arange(self.model.nv), v)
            scale, at, to = jnp.asarray(self.scale_q)[v], state.q[q], goal[q]
            parts += [away[rest], scale * (jnp.sin(at) - jnp.sin(to)), scale * (jnp.cos(at) - jnp.cos(to))]
        else:
            parts.append(away)
        return jnp.concatenate(parts + _effort(self.scale_control, control, self.goal_control))


def quadratic(
    model: Model,
    goal: State | None = None,
    *,
    q: Weight = None,
    qd: Weight = None,
    control: Weight = None,
    goal_control: Leaf | None = None,
    periodic: bool = False,
) -> QuadraticCost:
    """Half of q |q - goal|^2 + qd |qd - goal|^2 + control |u - goal_control|^2, with a weight per entry or one for all.

    Distances of q are those of `kn.difference`: nv entries, with rotation vectors for quaternions. If `periodic`,
    angles of revolute joints count by sine and cosine, 2 - 2 cos(q - goal) in place of the square, so that whole turns
    cost nothing (swing-up). `goal` is by default the model's reference, stationary.
    """
    goal = model.state() if goal is None else goal
    u = np.zeros(model.nu) if goal_control is None else _vector("goal_control", goal_control, model.nu)
    goal = State(_vector("goal.q", goal.q, model.nq), _vector("goal.qd", goal.qd, model.nv))
    return QuadraticCost(model, goal, u, *_scales(model, q, qd, control), periodic)


def revolute_entries(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Entries of velocities and of coordinates that belong to revolute joints."""
    topology = model.topology
    return np.asarray(topology.v_index("revolute"), int).ravel(), np.asarray(topology.q_index("revolute"), int).ravel()


class TrackingCost(SquaredCost):
    """Weighted squared distances from a reference that moves; between its samples along the joints, linearly."""

    model: Model
    time: Float[Leaf, " sample"]
    q: Float[Leaf, "sample nq"]
    qd: Float[Leaf, "sample nv"]
    control: Float[Leaf, "sample nu"]
    scale_q: Float[Leaf, " nv"]
    scale_qd: Float[Leaf, " nv"]
    scale_control: Float[Leaf, " nu"]

    def reference(self, time) -> tuple[State, Float[Array, " nu"]]:
        """State and control at a time; before the first and after the last sample those."""
        times = jnp.asarray(self.time)
        after = jnp.clip(jnp.searchsorted(times, time, side="right"), 1, len(times) - 1)
        q, qd, u = (jnp.asarray(x) for x in (self.q, self.qd, self.control))
        share = jnp.clip((time - times[after - 1]) / (times[after] - times[after - 1]), 0.0, 1.0)
        way = difference(self.model, q[after - 1], q[after])
        between = retract(self.model, q[after - 1], share * way)
        return State(between, qd[after - 1] + share * (qd[after] - qd[after - 1])), u[after - 1]

    def residual(self, time, state, control=None):
        goal, goal_control = self.reference(time)
        parts = [
            self.scale_q * difference(self.model, goal.q, state.q),
            self.scale_qd * (state.qd - goal.qd),
        ]
        return jnp.concatenate(parts + _effort(self.scale_control, control, goal_control))


def tracking(
    model: Model, reference: Any, *, q: Weight = None, qd: Weight = None, control: Weight = None
) -> TrackingCost:
    """As `quadratic`, with a goal that moves: a `kn.Trajectory`, or anything with time, q, qd and control over time."""
    time = np.asarray(reference.time, float)
    if time.ndim != 1 or len(time) < 2 or not np.all(np.diff(time) > 0):
        raise ValueError(f"tracking: the reference needs at least two samples of growing time, got shape {time.shape}")
    rows = {name: _table(name, getattr(reference, name), len(time), size) for name, size in _sizes(model)}
    scales = dict(zip(("scale_q", "scale_qd", "scale_control"), _scales(model, q, qd, control), strict=True))
    return TrackingCost(model=model, time=time, **rows, **scales)


class FrameCost(SquaredCost):
    """Weighted squared distance of a frame or link from a pose in the world."""

    model: Model
    position: Float[Leaf, "3"]
    rotation: Float[Leaf, "4"]
    scale_position: Float[Leaf, "3"]
    scale_rotation: Float[Leaf, "3"]
    name: str = eqx.field(static=True)
    turned: bool = eqx.field(static=True)

    def residual(self, time, state, control=None):
        pose = frame_pose(self.model, state.q, self.name)
        off = self.scale_position * (pose.position - self.position)
        if not self.turned:
            return off
        goal = spatial.quaternion_conjugate(spatial.normalize(jnp.asarray(self.rotation)))
        turn = spatial.quaternion_log(spatial.quaternion_product(goal, spatial.quaternion_of_rotation(pose.rotation)))
        return jnp.concatenate([off, self.scale_rotation * turn])


def frame(
    model: Model,
    name: str,
    position: Leaf | None = None,
    *,
    rotation: Leaf | None = None,
    weight: Weight = 1.0,
    rotation_weight: Weight = 1.0,
) -> FrameCost:
    """Half of weight |p - position|^2 [m] + rotation_weight |angle|^2 [rad] of a frame or link, in the world.

    `rotation` is a quaternion w, x, y, z; without it, or without a position, that part is left out.
    """
    known = (*model.link_names, *model.frames.names)
    if name not in known:
        raise ValueError(f"frame: no link or frame {name!r}; there are {', '.join(known)}")
    if position is None and rotation is None:
        raise ValueError(f"frame {name!r}: expected a position, a rotation or both")
    p = np.zeros(3) if position is None else _vector("position", position, 3)
    r = np.array([1.0, 0, 0, 0]) if rotation is None else _vector("rotation", rotation, 4)
    if not np.linalg.norm(np.asarray(r)) > 0:
        raise ValueError(f"frame {name!r}: the rotation must be a quaternion that is not zero")
    scale = _scale("weight", None if position is None else weight, 3)
    turned = rotation is not None
    return FrameCost(model, p, r, scale, _scale("rotation_weight", rotation_weight, 3), name, turned)


def _effort(scale, control, goal) -> list[Array]:
    return [] if control is None else [scale * (control - goal)]


def _sizes(model: Model) -> tuple[tuple[str, int], ...]:
    return ("q", model.nq), ("qd", model.nv), ("control", model.nu)


def _scales(model: Model, q: Weight, qd: Weight, control: Weight) -> tuple[Leaf, Leaf, Leaf]:
    return _scale("q", q, model.nv), _scale("qd", qd, model.nv), _scale("control", control, model.nu)


def _scale(name: str, weight: Weight, size: int) -> Leaf:
    """Square roots of weights, one per entry; None is zero."""
    if weight is None:
        return np.zeros(size)
    weight = _positive(np.asarray(weight, float), name)
    if weight.shape not in ((), (size,)):
        raise ValueError(f"the weight {name} must be one number or {size}, got shape {weight.shape}")
    return np.broadcast_to(np.sqrt(weight), (size,)).copy()


def _positive(weight: np.ndarray, name: str = "weight") -> np.ndarray:
    if not np.all((weight >= 0) & (weight < np.inf)):
        raise ValueError(f"the weight {name} must be finite and not negative, got {weight}")
    return weight


def _vector(name: str, given: Leaf, size: int) -> Leaf:
    array = given if hasattr(given, "shape") else np.asarray(given, float)
    if array.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {array.shape}")
    if isinstance(array, np.ndarray) and not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite, got {array}")
    return array


def _table(name: str, given: Leaf, rows: int, size: int) -> np.ndarray:
    table = np.asarray(given, float)
    if table.shape != (rows, size):
        raise ValueError(f"tracking: {name} of the reference must have shape ({rows}, {size}), got {table.shape}")
    return table
