"""Friction of the joints as columns of a regression: viscous, Coulomb, and what cross-validation may add to it.

Friction is viscous qd + (coulomb + load |L| + stribeck exp(-(qd / v_s)^2)) z. There z is tanh(qd / w), or the state of
Dahl's model, which runs from -1 to 1 over a displacement `reach` after each reversal. L is the force that the joint
passes on to the links: rigid-body forces, rotor inertia and springs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

WIDTH = 0.01  # of the tanh, where nothing else is known [rad/s or m/s]
MOVES = 2.0  # speed of a joint that moves, over that below which it counts as stationary
COLUMNS = ("armature", "damping", "friction", "offset")  # of each joint in any case
LOAD, STRIBECK = "load friction", "Stribeck friction"
NEVER_NEGATIVE = ("armature", "damping", "friction", LOAD, STRIBECK)


@dataclass(frozen=True)
class JointFriction:
    """Which terms one joint has."""

    width: float = WIDTH  # of the tanh [rad/s or m/s]
    slow: float = WIDTH  # below this speed a joint counts as stationary [rad/s or m/s]
    reach: float | None = None  # of Dahl's model [rad or m]; None: tanh
    load: bool = False
    stribeck_speed: float | None = None  # [rad/s or m/s]

    def stretched(self, factor: float) -> JointFriction:
        """With the transition of z, in speed or in displacement, wider by a factor."""
        if self.reach is not None:
            return replace(self, reach=factor * self.reach)
        return replace(self, width=factor * self.width)

    @property
    def columns(self) -> tuple[str, ...]:
        load = (LOAD,) if self.load else ()
        return COLUMNS + load + ((STRIBECK,) if self.stribeck_speed is not None else ())

    @property
    def is_plain(self) -> bool:
        """Whether a `Model` can hold all of it."""
        return self.reach is None and not self.load and self.stribeck_speed is None


def joint_columns(
    friction: JointFriction, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, load: np.ndarray
) -> np.ndarray:
    """Columns of one joint over time, in the order of `friction.columns`. `load` is L [N m or N]."""
    z = sliding(friction, q, qd)
    parts = [qdd, qd, z, np.ones_like(qd)]
    if friction.load:
        parts.append(np.abs(load) * z)
    if friction.stribeck_speed is not None:
        parts.append(np.exp(-np.square(qd / friction.stribeck_speed)) * z)
    return np.stack(parts, axis=1)


def sliding(friction: JointFriction, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """z of one joint: which way it slides, from -1 to 1. Dahl's state is unknown until it first moves, and 0 there."""
    smooth = np.tanh(qd / friction.width)
    if friction.reach is None:
        return smooth
    moves = np.abs(qd) > MOVES * friction.slow
    first = int(np.argmax(moves)) if moves.any() else len(qd) - 1
    z = np.zeros_like(smooth)
    z[first:] = dahl_state(q[first:], smooth[first] * moves[first], friction.reach)
    return z


def dahl_state(q: np.ndarray, first: float, reach: float) -> np.ndarray:
    """Dahl's friction state along a displacement: dz = (sign(dq) - z) |dq| / reach, exact for each step (Dahl 1968)."""
    step = np.diff(q)
    kept, towards = np.exp(-np.abs(step) / reach).tolist(), np.sign(step).tolist()
    z, states = float(first), [float(first)]
    for keep, sign in zip(kept, towards, strict=True):
        z = sign + (z - sign) * keep
        states.append(z)
    return np.array(states)
