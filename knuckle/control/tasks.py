"""Built-in tasks: costs for a swing-up and for a reach, scaled by the robot."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from knuckle.control.costs import Cost, SummableCost, frame, quadratic, revolute_entries, squares
from knuckle.dynamics import potential_energy
from knuckle.model.model import Model, State
from knuckle.saturation import control_limits

MOST_JOINTS = 10  # turned by half a turn each way in the search for upright
WALL = 0.05  # of the range of a joint: where it begins to cost
FINAL = 100.0  # weight of the end over that of a second on the way


class Task(NamedTuple):
    """What a planner minimises, and where the robot is to be in the end."""

    running: Cost
    terminal: Cost
    goal: State | None  # of a swing-up
    periodic: bool


def extreme_pose(model: Model, highest: bool) -> np.ndarray:
    """Coordinates with the most, or the least, potential energy, of those where revolute joints turn by half a turn."""
    entries = revolute_entries(model)[1]
    if len(entries) == 0:
        raise ValueError(f"swing-up: {model.name!r} has no revolute joint; give --goal")
    if len(entries) > MOST_JOINTS:
        raise ValueError(
            f"swing-up: {model.name!r} has {len(entries)} revolute joints: give --goal, or --keyframe to start"
        )
    lower, upper = (np.asarray(x)[revolute_entries(model)[0]] for x in (model.lower, model.upper))
    sign, best, found = (1.0 if highest else -1.0), -np.inf, None
    for turns in itertools.product((0.0, np.pi), repeat=len(entries)):
        q = np.array(model.reference, float)
        q[entries] += turns
        if np.all((q[entries] >= lower) & (q[entries] <= upper)):
            energy = sign * float(potential_energy(model, jnp.asarray(q)))
            if energy > best + 1e-9:
                best, found = energy, q
    return np.array(model.reference, float) if found is None else found


def swing_up(model: Model, dt: float, goal: State) -> Task:
    """Angles by sine and cosine, so that the robot may come up either way round; stationary at the end."""
    effort = _effort_weight(model)
    on_the_way = quadratic(model, goal, q=0.1 * dt, qd=0.01 * dt, control=effort * dt, periodic=True)
    end = quadratic(model, goal, q=FINAL, qd=0.1 * FINAL, periodic=True)
    return Task(_with_walls(model, on_the_way, dt), end, goal, True)


def reach(model: Model, dt: float, name: str, target: np.ndarray) -> Task:
    """A frame or link at a place in the world, stationary at the end."""
    rest = quadratic(model, qd=0.01 * dt, control=0.1 * _effort_weight(model) * dt)
    on_the_way = frame(model, name, target, weight=10.0 * dt) + rest
    end = frame(model, name, target, weight=FINAL * 10) + quadratic(model, qd=0.01 * FINAL)
    return Task(_with_walls(model, on_the_way, dt), end, None, False)


def _effort_weight(model: Model) -> np.ndarray:
    """One over the square of each control's range: a whole range costs as much as a radian; 1e-3 without a range."""
    lower, upper = (np.asarray(x, float) for x in control_limits(model))
    width = np.where(np.isfinite(upper - lower), upper - lower, np.sqrt(1e3))
    return 1.0 / np.maximum(width, 1e-9) ** 2


def _with_walls(model: Model, cost: SummableCost, dt: float) -> Cost:
    """Joints with limits cost near their ends, in place of contact with them."""
    plain = [i for i, kind in enumerate(model.topology.kind) if kind in ("revolute", "prismatic")]
    v, q = (np.array([start[i] for i in plain], int) for start in (model.topology.v_start, model.topology.q_start))
    lower, upper = np.asarray(model.lower, float)[v], np.asarray(model.upper, float)[v]
    held = np.isfinite(lower) & np.isfinite(upper)
    if not held.any():
        return cost
    q, lower, upper = q[held], lower[held], upper[held]
    margin = WALL * (upper - lower)

    def beyond(time, state, control):
        at = state.q[q]
        return (jnp.maximum(at - (upper - margin), 0.0) + jnp.maximum((lower + margin) - at, 0.0)) / margin

    return cost + squares(beyond, 100.0 * dt)
