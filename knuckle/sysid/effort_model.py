"""How well a description explains measured forces, whatever friction, rotor inertia and scale the joints have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import equinox as eqx
import jax
import numpy as np
from scipy.optimize import nnls

from knuckle.dynamics import rnea
from knuckle.model.model import Model

LEAST_UNEXPLAINED = 0.01  # share of a force's variance: below, no description is better than another
SLOW = 0.05  # width of the tanh of dry friction over the root mean square of the speed
GENTLE = 0.01  # and at least that [rad/s or m/s]
LOAD, OFF = 0.2, 0.1  # share of the robot's mass, and [m]


@dataclass(frozen=True)
class Motions:
    """Positions with their derivatives (row, dof), and forces on the joints that are driven (row, joint)."""

    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    forces: np.ndarray
    dofs: tuple[int, ...]  # of the driven joints

    def reversed_motion(self, dof: int) -> Motions:
        sign = np.where(np.arange(self.q.shape[1]) == dof, -1.0, 1.0)
        return replace(self, q=sign * self.q, qd=sign * self.qd, qdd=sign * self.qdd)

    def turned(self, dof: int, by: float) -> Motions:
        """With the zero of a joint elsewhere [rad]."""
        q = self.q.copy()
        q[:, dof] += by
        return replace(self, q=q)

    def exchanged_motion(self, a: int, b: int) -> Motions:
        order = np.arange(self.q.shape[1])
        order[[a, b]] = b, a
        return replace(self, q=self.q[:, order], qd=self.qd[:, order], qdd=self.qdd[:, order])

    def exchanged_forces(self, a: int, b: int) -> Motions:
        forces, i, j = self.forces.copy(), self.dofs.index(a), self.dofs.index(b)
        forces[:, [i, j]] = forces[:, [j, i]]
        return replace(self, forces=forces)

    def reversed_force(self, dof: int) -> Motions:
        return replace(self, forces=self.forces * np.where(np.array(self.dofs) == dof, -1.0, 1.0))


@dataclass(frozen=True)
class Explained:
    """Of each driven joint: share of the force's variance that is unexplained, and the scale of rigid-body forces."""

    unexplained: np.ndarray
    scale: np.ndarray  # measured over described
    as_described: np.ndarray  # share that is unexplained if that scale is 1; NaN if it was not asked for
    rigid_share: np.ndarray  # spread of the scaled rigid-body force over that of the measured one

    @property
    def score(self) -> float:
        """Sum of the logarithms of what is unexplained; less is better."""
        return float(np.sum(np.log(np.maximum(self.unexplained, LEAST_UNEXPLAINED))))


def explain(model: Model, motions: Motions) -> Explained:
    """Regress each measured force on the described rigid-body force, friction and rotor inertia, none negative."""
    return explain_many(model, [motions], described=True)[0]


def explain_many(model: Model, cases: Sequence[Motions], described: bool = False) -> list[Explained]:
    """The same for several motions of as many rows; `described`: with the described scale too."""
    rows = len(cases[0].q)
    stacked = [np.concatenate([getattr(c, key) for c in cases]) for key in ("q", "qd", "qdd")]
    with jax.enable_x64(True):
        rigid = np.asarray(rigid_forces()(model, *stacked))
    parts = rigid.reshape(len(cases), rows, -1)
    return [_explained(case, part, described) for case, part in zip(cases, parts, strict=True)]


def _explained(case: Motions, rigid: np.ndarray, described: bool) -> Explained:
    found = [_joint(case, k, dof, rigid[:, dof], described) for k, dof in enumerate(case.dofs)]
    return Explained(*(np.array(x) for x in zip(*found, strict=True)))


def _joint(case: Motions, k: int, dof: int, rigid: np.ndarray, described: bool) -> tuple[float, float, float, float]:
    force, qd = case.forces[:, k], case.qd[:, dof]
    size = np.std(force)
    if not size > 0:
        return 1.0, 1.0, 1.0, 0.0
    width = max(SLOW * float(np.sqrt(np.mean(qd**2))), GENTLE)
    own = [case.qdd[:, dof], qd, np.tanh(qd / width), np.ones(len(qd)), -np.ones(len(qd))]
    share, weights = _share(np.stack([rigid, *own], axis=1), force)
    other = _share(np.stack(own, axis=1), force - rigid, float(size))[0] if described else np.nan
    return share, weights[0], other, weights[0] * float(np.std(rigid)) / float(size)


def _share(columns: np.ndarray, force: np.ndarray, size: float | None = None) -> tuple[float, np.ndarray]:
    """Share of the variance that non-negative multiples of the columns leave, and these multiples."""
    norm = np.maximum(np.sqrt(np.mean(columns**2, axis=0)), 1e-12)
    size = float(np.std(force)) if size is None else size
    weights, rest = nnls(columns / norm, force / size)
    return float(rest**2 / len(force)), size * weights / norm


def payload_effect(model: Model, motions: Motions) -> np.ndarray:
    """By which factor a payload that the description lacks would make forces larger, at least 1, of driven joints.

    The payload is a fifth of the robot's mass, 0.1 m off the centres of mass of the last links.
    """
    leaves = np.array([i not in model.topology.parent for i in range(len(model.link_names))])
    mass, com = np.asarray(model.inertia.mass), np.asarray(model.inertia.com)
    load = np.where(leaves, LOAD * mass.sum() / leaves.sum(), 0.0)
    moved = com + OFF * np.where(mass + load > 0, load / np.maximum(mass + load, 1e-12), 0.0)[:, None]
    loaded = eqx.tree_at(lambda m: (m.inertia.mass, m.inertia.com), model, (mass + load, moved))
    at = (motions.q, motions.qd, motions.qdd)
    with jax.enable_x64(True):
        sizes = [np.std(np.asarray(rigid_forces()(m, *at))[:, list(motions.dofs)], axis=0) for m in (model, loaded)]
    return np.maximum(sizes[1] / np.maximum(sizes[0], 1e-12), 1.0)


@cache
def rigid_forces():
    """Joint forces of many motions, as native code made once a mechanism."""
    from knuckle import native

    return native.vmap(rnea, (None, 0, 0, 0))
