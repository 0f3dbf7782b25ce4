"""The two sets of logs that are compared, each with its rows, Gram matrices and residuals when fitted by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from knuckle.dynamics.regressor import carried_columns
from knuckle.sysid.entries import single_joints
from knuckle.sysid.regression.design import Design, Layout, Stretch, make_stretch
from knuckle.sysid.regression.filters import WIDE
from knuckle.sysid.regression.grams import Grams, Rows, grams
from knuckle.sysid.regression.problem import Problem, Solved, huber, inefficiencies
from knuckle.sysid.regression.signals import Signals, smoothed_within
from knuckle.sysid.regressors import regressors

TURN = 1e-4  # [rad or m], of the differences that give the effect of a joint's zero
NO_EFFECT = 1e-6  # of the effort's root mean square per rad or m


@dataclass(frozen=True)
class Side:
    """One set of logs, fitted by itself: what its residuals are if any parameter may differ from the other set's."""

    signals: tuple[Signals, ...]
    problem: Problem
    solved: Solved
    spread: np.ndarray  # of each joint: standard deviation of a residual times the root of rows per independent row

    @property
    def theta(self) -> np.ndarray:
        return self.solved.theta

    @property
    def block_gram(self) -> Grams:
        return self.solved.grams

    def weights(self) -> list[np.ndarray]:
        """Robust weights of the rows."""
        return [huber(r.residuals(self.theta)) for r in self.solved.rows]

    def divided(self, seconds: float) -> Side:
        """The same rows in blocks of another length."""
        problem = replace(self.problem, design=self.problem.design.divided(seconds))
        rows = problem.rows(self.solved.layout, self.theta)
        found = grams(rows, problem.design.blocks, self.solved.layout.size, self.weights())
        return replace(self, problem=problem, solved=replace(self.solved, grams=found, rows=rows))

    def with_columns(self, columns: Sequence[np.ndarray]) -> Side:
        """With more columns behind those of the layout; of each joint (row, column)."""
        layout, more = self.solved.layout, columns[0].shape[1]
        if not more:
            return self
        extra = np.arange(layout.size, layout.size + more)
        rows = [
            Rows(np.append(r.columns, extra), np.column_stack([r.features, own]), r.effort, r.block)
            for r, own in zip(self.solved.rows, columns, strict=True)
        ]
        found = grams(rows, self.problem.design.blocks, layout.size + more, self.weights())
        return replace(self, solved=replace(self.solved, grams=found, rows=rows))


def make_side(signals: Sequence[Signals], problem: Problem, layout: Layout, cutoff: float, seconds: float) -> Side:
    """Fit a set of logs by itself, with the friction terms of `layout` and the prior and delay of `problem`."""
    model = layout.model
    stretches = [_while_moving(make_stretch(model, s, cutoff, layout.slow)) for s in signals]
    design = Design(model, stretches, seconds)
    own = replace(problem, design=design, inefficiency=None)
    solved = own.solve(layout)
    own = replace(own, inefficiency=inefficiencies(solved))
    solved = own.solve(layout, solved)
    return Side(tuple(signals), own, solved, solved.deviation * np.sqrt(inefficiencies(solved)))


def _while_moving(stretch: Stretch) -> Stretch:
    """Without rows of stationary joints: static friction there is any constant, which differs from log to log."""
    return replace(stretch, valid=stretch.valid & ~stretch.stationary)


def zero_columns(side: Side, theta: np.ndarray) -> tuple[tuple[int, ...], list[np.ndarray]]:
    """Change of the efforts by the zero of each joint's position sensor, linearised: joints, and columns by joint.

    Positions are measured, so that a zero that moved by d shows the robot at q + d. Joints whose zero changes no effort
    (the first one of an arm on a level floor) are left out.
    """
    layout, design = side.solved.layout, side.problem.design
    places = {dof: at for _, at, dof in single_joints(layout.model)}
    joints = [dof for dof in layout.joints if dof in places]
    slopes = [_slopes(side, k, theta, [(dof, places[dof]) for dof in joints]) for k in range(len(design.stretches))]
    columns = []
    for joint, dof in enumerate(layout.joints):
        kept = design.kept(layout, joint)
        columns.append(np.concatenate([s[keep, dof] for s, keep in zip(slopes, kept, strict=True)]))
    sizes = [np.sqrt(np.mean(np.square(r.effort))) for r in side.solved.rows]
    each = [np.sqrt(np.mean(c**2, axis=0)) / max(s, 1e-12) for c, s in zip(columns, sizes, strict=True)]
    found = np.max(each, axis=0) > NO_EFFECT
    return tuple(np.array(joints, int)[found].tolist()), [c[:, found] for c in columns]


def _slopes(side: Side, number: int, theta: np.ndarray, joints: Sequence[tuple[int, int]]) -> np.ndarray:
    """Derivatives of a stretch's filtered efforts by the zeros of joints (dof, coordinate): (time, dof, joint)."""
    model, signals, stretch = side.solved.layout.model, side.signals[number], side.problem.design.stretches[number]
    _, wide, qdd = smoothed_within(signals, WIDE * stretch.low_pass.cutoff)
    at = slice(None, None, round((stretch.time[1] - stretch.time[0]) * signals.rate))
    q, qd, qdd = wide.q[at], wide.qd[at], qdd[at]
    count = len(joints) + 1
    turned = np.tile(q, (count, 1)).reshape(count, *q.shape)
    for k, (_, coordinate) in enumerate(joints):
        turned[k + 1, :, coordinate] -= TURN  # where the robot is if the zero moved by TURN
    parts = regressors(model, turned.reshape(-1, q.shape[1]), np.tile(qd, (count, 1)), np.tile(qdd, (count, 1)))
    found = np.zeros((len(q), model.nv, len(joints)))
    for dof, (columns, part) in enumerate(zip(carried_columns(model), parts, strict=True)):
        force = (part @ theta[columns]).reshape(count, len(q))
        found[:, dof] = stretch.low_pass((force[1:] - force[0]).T / TURN)
    for k, (dof, _) in enumerate(joints):
        found[:, dof, k] -= float(np.asarray(model.stiffness)[dof])
    return found
