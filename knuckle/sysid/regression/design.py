"""The design of a regression: filtered features and efforts of all joints, for any choice of friction terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.interpolate import make_interp_spline
from scipy.ndimage import binary_dilation, binary_opening

from knuckle.dynamics.regressor import ENTRIES, carried_columns
from knuckle.model.model import Model
from knuckle.sysid.base_parameters import ENTRIES as ENTRY_NAMES
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.entries import names_of
from knuckle.sysid.regression.filters import WIDE, Filter
from knuckle.sysid.regression.friction import MOVES, NEVER_NEGATIVE, WIDTH, JointFriction, joint_columns
from knuckle.sysid.regression.grams import Rows
from knuckle.sysid.regression.networks import network_forces
from knuckle.sysid.regression.signals import Signals, smoothed_within
from knuckle.sysid.regressors import regressors
from knuckle.taps import Blueprint

PASSIVE = 0.3  # effort over the forces of the description, below which a joint hardly was driven
SAMPLES = 200  # of a stretch, at which gravity is compared with the other forces
STEP = 0.05  # of the logarithm of a width, for its derivative
STATIONARY = 0.3  # seconds below its slow speed after which a joint counts as stationary


@dataclass(frozen=True)
class Stretch:
    """Signals of one stretch at the working rate, and the inertial features of each joint through the filter."""

    name: str
    time: np.ndarray
    coordinates: np.ndarray  # (time, nq)
    q: np.ndarray  # displacement of each degree of freedom since the beginning
    qd: np.ndarray
    qdd: np.ndarray
    spring: np.ndarray  # forces of springs, as the description has them
    low_pass: Filter
    inertial: tuple[np.ndarray, ...]  # of each degree of freedom (time, its columns), filtered
    effort: np.ndarray  # filtered
    valid: np.ndarray  # (time, dof): rows that count
    stationary: np.ndarray  # (time, dof): rows that count only with a model of pre-sliding
    every: int  # of the samples, rows are taken

    @cached_property
    def _effort_spline(self):
        return make_interp_spline(self.time, self.effort, k=3)

    def effort_after(self, delay: float) -> np.ndarray:
        """The effort that was recorded `delay` seconds after the motion."""
        if delay == 0:
            return self.effort
        return self._effort_spline(np.clip(self.time + delay, self.time[0], self.time[-1]))

    def load(self, dof: int, columns: np.ndarray, pi: np.ndarray, armature: float) -> np.ndarray:
        """The force that a joint passes on to the links, below the cut-off: rigid-body, rotor and spring forces."""
        return self.inertial[dof] @ pi[columns] + self.low_pass(armature * self.qdd[:, dof]) + self.spring[:, dof]


def make_stretch(model: Model, signals: Signals, cutoff: float, slow: np.ndarray) -> Stretch:
    """Features from signals of five times the band of the filter, then features and efforts through the same filter.

    slow: speeds (dof,) below which joints count as stationary.
    """
    signals, wide, qdd = smoothed_within(signals, WIDE * cutoff)
    skip = max(int(signals.rate / (2 * WIDE * cutoff)), 1)
    low_pass = Filter(cutoff, signals.rate)
    effort = low_pass(signals.effort - _spring(model, wide))[::skip]
    at = slice(None, None, skip)
    time, q, qd, qdd = wide.time[at], wide.q[at], wide.qd[at], qdd[at]
    slower = Filter(cutoff, signals.rate / skip)
    counts, stationary = counted_samples(signals, wide, cutoff, slow, skip)
    features = tuple(slower(part) for part in regressors(model, q, qd, qdd))
    every = max(int(signals.rate / skip / (4 * cutoff)), 1)
    return Stretch(
        signals.name, time, q, displacements(time, qd), qd, qdd, _spring(model, wide)[at], slower, features,
        effort, counts, stationary, every,
    )  # fmt: skip


def counted_samples(
    signals: Signals, wide: Signals, cutoff: float, slow: np.ndarray, skip: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of every `skip`-th sample (time, dof): measured beyond the filter's transients, and stationary."""
    low_pass, at = Filter(cutoff, signals.rate), slice(None, None, skip)
    edge = max(low_pass.edge, 1)
    counts = signals.measured & signals.known[:, None]
    missing = _longer_than(~counts, edge // 4)
    counts = ~_grown(missing, edge)
    counts[:edge] = counts[-edge:] = False
    stationary = _stationary(np.abs(low_pass(wide.qd))[at], slow, signals.rate / skip)
    moved = np.maximum.accumulate(np.abs(wide.qd[at]) > MOVES * slow, axis=0)
    return counts[at] & ~(stationary & ~moved), stationary


def _spring(model: Model, signals: Signals) -> np.ndarray:
    """Forces against which joints move in the springs that the description has; 0 for joints with quaternions."""
    stiffness = np.asarray(model.stiffness)
    force = np.zeros_like(signals.qd)
    for kind, q, v in zip(model.topology.kind, model.topology.q_start, model.topology.v_start, strict=True):
        if kind in ("revolute", "prismatic"):
            force[:, v] = stiffness[v] * (signals.q[:, q] - np.asarray(model.rest)[q])
    return force


def displacements(time: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """Integrals of velocities: measured ones are 0 in a stationary joint, where positions flicker by a digit."""
    steps = 0.5 * (qd[1:] + qd[:-1]) * np.diff(time)[:, None]
    return np.concatenate([np.zeros((1, qd.shape[1])), np.cumsum(steps, axis=0)])


def _longer_than(mask: np.ndarray, samples: int) -> np.ndarray:
    """Runs of more samples than that: what is missing for less is interpolated well below the cut-off."""
    if samples < 1 or not mask.any():
        return mask
    return np.stack([binary_opening(m, np.ones(samples + 1)) if m.any() else m for m in mask.T], axis=1)


def _grown(mask: np.ndarray, by: int) -> np.ndarray:
    if by <= 0 or not mask.any():
        return mask
    return np.stack([binary_dilation(m, iterations=by) if m.any() else m for m in mask.T], axis=1)


def _stationary(speed: np.ndarray, slow: np.ndarray, rate: float) -> np.ndarray:
    """Whether a joint stands still for longer than `STATIONARY`: dry friction is undetermined there."""
    length = max(round(STATIONARY * rate), 2)
    return np.stack([binary_opening(s, np.ones(length)) if s.any() else s for s in (speed < slow).T], axis=1)


@dataclass(frozen=True)
class Layout:
    """Where each parameter of the regression stands: inertial ones of all links, then those of each joint."""

    model: Model
    joints: tuple[int, ...]  # degrees of freedom with measured efforts
    friction: tuple[JointFriction, ...]  # of each of these
    networks: Blueprint | None = field(default=None, compare=False)  # forces at the joints beside these parameters

    @cached_property
    def inertial(self) -> int:
        return ENTRIES * len(self.model.link_names)

    @cached_property
    def starts(self) -> np.ndarray:
        return self.inertial + np.cumsum([0, *(len(f.columns) for f in self.friction)])

    @property
    def size(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def slow(self) -> np.ndarray:
        """Speeds (dof,) below which joints count as stationary."""
        speeds = np.full(self.model.nv, WIDTH)
        speeds[list(self.joints)] = [f.slow for f in self.friction]
        return speeds

    @cached_property
    def names(self) -> tuple[str, ...]:
        links = tuple(f"{link}.{entry}" for link in self.model.link_names for entry in ENTRY_NAMES)
        dofs = names_of(self.model, "tau")
        own = ((j, f) for j, f in zip(self.joints, self.friction, strict=True))
        return links + tuple(f"{dofs[j]}.{column}" for j, f in own for column in f.columns)

    def columns(self, joint: int) -> np.ndarray:
        """Parameters of the rows of one joint (by its place among `joints`)."""
        own = np.arange(self.starts[joint], self.starts[joint + 1])
        return np.concatenate([carried_columns(self.model)[self.joints[joint]], own])

    def at(self, joint: int, column: str) -> int:
        """Where a column of one joint stands."""
        return int(self.starts[joint]) + self.friction[joint].columns.index(column)

    def value(self, theta: np.ndarray, joint: int, column: str) -> float:
        """A parameter of one joint; 0 if it has no such term."""
        return float(theta[self.at(joint, column)]) if column in self.friction[joint].columns else 0.0

    @cached_property
    def lower(self) -> np.ndarray:
        lower = np.full(self.size, -np.inf)
        for k, name in enumerate(self.names[self.inertial :]):
            if name.rpartition(".")[2] in NEVER_NEGATIVE:
                lower[self.inertial + k] = 0.0
        return lower

    def moved(self, theta: np.ndarray, other: Layout) -> np.ndarray:
        """Parameters of this layout in another's places; what is new there is 0."""
        places = {name: k for k, name in enumerate(self.names)}
        return np.array([theta[places[name]] if name in places else 0.0 for name in other.names])


def forces_by_themselves(design: Design, stretch: Stretch, pi: np.ndarray) -> np.ndarray:
    """Root mean square of gravity and of inertial forces at each degree of freedom, as if they did not cancel."""
    some = np.unique(np.linspace(0, len(stretch.time) - 1, SAMPLES).astype(int))
    still = np.zeros((len(some), design.model.nv))
    gravity = regressors(design.model, stretch.coordinates[some], still, still)
    found = np.zeros(design.model.nv)
    for dof, columns in enumerate(design.columns):
        weight = gravity[dof] @ pi[columns]
        rest = stretch.inertial[dof][some] @ pi[columns] - weight
        found[dof] = np.var(weight) + np.var(rest)
    return np.sqrt(found)


class Design:
    """Stretches of all recordings and the blocks of time that they are divided into."""

    def __init__(self, model: Model, stretches: Sequence[Stretch], seconds: float, all_rows: bool = False):
        self.model, self.stretches, self.seconds, self.all_rows = model, tuple(stretches), seconds, all_rows
        self.columns = carried_columns(model)
        self._forces: tuple[Blueprint, list[np.ndarray]] | None = None  # of the networks that were last asked for
        self.block = self._blocks(seconds)
        self.blocks = 1 + max(int(b.max()) for b in self.block)

    @cached_property
    def passive(self) -> np.ndarray:
        """Degrees of freedom whose effort is small beside the forces that the description needs along the motion."""
        pi = np.asarray(inertial(self.model), float)
        needed = np.mean([forces_by_themselves(self, s, pi) ** 2 for s in self.stretches], axis=0)
        return np.mean([np.mean(s.effort**2, axis=0) for s in self.stretches], axis=0) < PASSIVE**2 * needed

    def _blocks(self, seconds: float) -> list[np.ndarray]:
        """The number of the block of each sample; a last one of less than half the length joins the one before."""
        found, first = [], 0
        for stretch in self.stretches:
            since = stretch.time - stretch.time[0]
            own = max(round(since[-1] / seconds), 1)
            found.append(first + np.minimum((since / since[-1] * own).astype(int), own - 1))
            first += own
        return found

    def divided(self, seconds: float) -> Design:
        """In blocks of another length."""
        return Design(self.model, self.stretches, seconds, self.all_rows)

    def with_all_rows(self) -> Design:
        """With rows of stationary joints, which otherwise count only for joints with a model of pre-sliding."""
        return Design(self.model, self.stretches, self.seconds, all_rows=True)

    def features(self, stretch: Stretch, layout: Layout, joint: int, theta: np.ndarray | None) -> np.ndarray:
        """Filtered features of one joint over a stretch, (time, its columns); `theta` gives the load."""
        dof, friction = layout.joints[joint], layout.friction[joint]
        load = np.zeros(len(stretch.time))
        if friction.load and theta is not None:
            armature = layout.value(theta, joint, "armature")
            load = stretch.load(dof, self.columns[dof], theta[: layout.inertial], armature)
        own = joint_columns(friction, stretch.q[:, dof], stretch.qd[:, dof], stretch.qdd[:, dof], load)
        constant = friction.columns.index("offset")
        filtered = stretch.low_pass(own)
        filtered[:, constant] = 1.0
        return np.concatenate([stretch.inertial[dof], filtered], axis=1)

    def rows(self, layout: Layout, joint: int, delay: float = 0.0, theta: np.ndarray | None = None) -> Rows:
        """The rows of one joint of all stretches."""
        parts = []
        for stretch, block, keep in zip(self.stretches, self.block, self.kept(layout, joint), strict=True):
            parts.append((self.features(stretch, layout, joint, theta)[keep], block[keep]))
        features, block = (np.concatenate(x) for x in zip(*parts, strict=True))
        return Rows(layout.columns(joint), features, self.efforts(layout, joint, delay), block)

    def transition_slopes(self, layout: Layout, joint: int, theta: np.ndarray) -> np.ndarray:
        """Derivative of the efforts of one joint's rows by the logarithm of the width of its friction's transition."""
        columns, kept, found = layout.columns(joint), self.kept(layout, joint), []
        for stretch, keep in zip(self.stretches, kept, strict=True):
            ends = []
            for step in (STEP, -STEP):
                friction = list(layout.friction)
                friction[joint] = friction[joint].stretched(np.exp(step))
                other = replace(layout, friction=tuple(friction))
                ends.append(self.features(stretch, other, joint, theta)[keep] @ theta[columns])
            found.append((ends[0] - ends[1]) / (2 * STEP))
        return np.concatenate(found)

    def efforts(self, layout: Layout, joint: int, delay: float) -> np.ndarray:
        """The efforts of the rows of one joint, with the forces of networks, which act as actuators do."""
        dof, found = layout.joints[joint], []
        forces = self.network_forces(layout)
        for k, keep in enumerate(self.kept(layout, joint)):
            effort = self.stretches[k].effort_after(delay)[keep, dof]
            found.append(effort if forces is None else effort + forces[k][keep, dof])
        return np.concatenate(found)

    def network_forces(self, layout: Layout) -> list[np.ndarray] | None:
        """Filtered forces of the networks of each stretch (time, dof); None if there are no networks."""
        if layout.networks is None:
            return None
        if self._forces is None or self._forces[0] is not layout.networks:
            made = [s.low_pass(network_forces(layout.networks, s.coordinates, s.qd)) for s in self.stretches]
            self._forces = (layout.networks, made)
        return self._forces[1]

    def kept(self, layout: Layout, joint: int) -> list[np.ndarray]:
        """Samples of each stretch that are rows of a joint."""
        dof, found = layout.joints[joint], []
        for stretch in self.stretches:
            keep = np.zeros(len(stretch.time), bool)
            keep[:: stretch.every] = True
            keep &= stretch.valid[:, dof]
            if layout.friction[joint].reach is None and not self.all_rows:
                keep &= ~stretch.stationary[:, dof]
            found.append(keep)
        return found
