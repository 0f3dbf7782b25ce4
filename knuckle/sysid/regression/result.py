"""What a regression found: the fitted robot, torque errors, and parameters with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import numpy as np

from knuckle.dynamics.regressor import carried_columns
from knuckle.model.model import Model
from knuckle.sysid.base_parameters import BaseParameters
from knuckle.sysid.entries import dimensions, names_of
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.design import PASSIVE, Design, Layout, displacements, make_stretch
from knuckle.sysid.regression.fitted import fitted_robot
from knuckle.sysid.regression.friction import LOAD, joint_columns
from knuckle.sysid.regression.networks import network_forces
from knuckle.sysid.regression.problem import Problem, Solved
from knuckle.sysid.regression.signals import prepare
from knuckle.sysid.regressors import regressors
from knuckle.taps import Blueprint

LONGEST_STEP = 0.002  # [s]
STABLE = 1.0  # step times the fastest decay of a joint's speed; RK4 is stable up to 2.78


class Quantity(NamedTuple):
    """A parameter or a combination of parameters with its 95 % interval."""

    name: str
    value: float
    lower: float  # NaN where the data do not determine it
    upper: float
    unit: str
    share: float  # of the information that is the data's: what has less than half of it rests on the prior
    described: float  # what the description says

    @property
    def verdict(self) -> str:
        if self.share >= 0.9:
            return "determined"
        return "rests on the prior" if self.share < 0.5 else "partly determined"

    @property
    def deviation(self) -> float:
        """Half of the interval's width."""
        return (self.upper - self.lower) / 2

    def shifted(self, by: float) -> Quantity:
        """The same with another value."""
        return self._replace(value=self.value + by, lower=self.lower + by, upper=self.upper + by)


class TorqueError(NamedTuple):
    """Root mean square of the residual torque of one joint, in its unit, below the cut-off."""

    joint: str
    unit: str
    described: float  # of the model as it was given: of a regression on training data, of a roll-out on held-out data
    training: float
    held_out: float  # of a regression by cross-validation, or of held-out recordings; NaN: none were held out
    effort: float  # root mean square of the effort itself about its mean
    forces: float = 0.0  # that of gravity and inertia by themselves; the effort of a joint that swings is far smaller

    @property
    def size(self) -> float:
        """What an error is compared with: the effort, or the forces that cancel in a joint which is not driven."""
        return max(self.effort, PASSIVE * self.forces, 1e-12)


@dataclass(frozen=True)
class Regression:
    """A robot fitted to measured torques.

    `model` and `blueprint` are the fitted simulator; `blueprint` is None if the model holds all of it. `base` lists
    the combinations of inertial parameters that forces depend on, `parameters` every parameter, `errors` the torque
    errors by joint. `notes` say what was left out or changed.
    """

    model: Model
    blueprint: Blueprint | None
    base: tuple[Quantity, ...]
    parameters: tuple[Quantity, ...]
    errors: tuple[TorqueError, ...]
    cutoff: float  # of the filter [Hz]
    delay: float  # how late efforts are [s]
    block: float  # seconds of the blocks of the jackknife
    blocks: int
    consistent: bool  # whether the linear solution was physically consistent by itself
    notes: tuple[str, ...]
    terms: dict[str, tuple[str, ...]]  # friction terms by joint that cross-validation chose
    base_parameters: BaseParameters
    layout: Layout
    theta: np.ndarray
    described: Model
    problem: Problem
    solved: Solved
    directions: np.ndarray  # (parameter, direction): times its transpose the covariance of `theta`
    without: np.ndarray  # parameters without each block of the jackknife, (block, parameter)
    change: np.ndarray  # of the parameters when the cut-off is halved
    refined: bool = False  # whether roll-outs moved it within that covariance

    def __getitem__(self, name: str) -> Quantity:
        for found in (*self.base, *self.parameters):
            if found.name == name:
                return found
        raise KeyError(f"no quantity {name!r}; there are {', '.join(q.name for q in self.parameters)}")

    def inverse_dynamics(
        self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, time: np.ndarray | None = None
    ) -> np.ndarray:
        """Efforts (time, dof) that a motion needs, in time order: friction may remember. NaN: joints without effort.

        With `time` [s], pre-sliding follows the integral of the velocity, as in the fit: measured positions of a
        stationary joint flicker by a digit.
        """
        q, qd, qdd = (np.atleast_2d(np.asarray(x, float)) for x in (q, qd, qdd))
        inertial, layout, theta = self.layout.inertial, self.layout, self.theta
        forces = np.full(qd.shape, np.nan)
        columns, features = carried_columns(self.model), regressors(self.model, q, qd, qdd)
        topology = self.model.topology
        for joint, (dof, terms) in enumerate(zip(layout.joints, layout.friction, strict=True)):
            link = topology.dof_link[dof]
            at = int(topology.q_start[link]) + dof - int(topology.v_start[link])
            stretch = q[:, min(at, q.shape[1] - 1)]
            single = topology.kind[link] in ("revolute", "prismatic")
            spring = float(np.asarray(self.model.stiffness)[dof]) * (stretch - np.asarray(self.model.rest)[at]) * single
            rigid = features[dof] @ theta[:inertial][columns[dof]]
            load = rigid + theta[layout.at(joint, "armature")] * qdd[:, dof] + spring
            moved = stretch if time is None else displacements(np.asarray(time, float), qd[:, dof : dof + 1])[:, 0]
            own = joint_columns(terms, moved, qd[:, dof], qdd[:, dof], load)
            forces[:, dof] = rigid + spring + own @ theta[layout.starts[joint] : layout.starts[joint + 1]]
        return forces if layout.networks is None else forces - network_forces(layout.networks, q, qd)

    def predict(self, target, control=None, **options):
        """A roll-out from a state, or a function of the model, with intervals: see `sysid.prediction.predict`."""
        from knuckle.sysid.prediction import predict

        return predict(self, target, control, **options)

    def plain_model(self) -> Model:
        """The model with all friction as Coulomb friction at the mean load, for files that have no place for more."""
        friction = np.array(self.model.friction, float)
        for joint, (dof, terms) in enumerate(zip(self.layout.joints, self.layout.friction, strict=True)):
            if not terms.is_plain:
                friction[dof] = self.theta[self.layout.at(joint, "friction")]
            if terms.load:
                friction[dof] += self.theta[self.layout.at(joint, LOAD)] * self._mean_load(joint)
        return eqx.tree_at(lambda m: m.friction, self.model, friction)

    def _mean_load(self, joint: int) -> float:
        dof, columns = self.layout.joints[joint], carried_columns(self.model)
        armature = self.layout.value(self.theta, joint, "armature")
        loads = [
            s.load(dof, columns[dof], self.theta[: self.layout.inertial], armature)
            for s in self.problem.design.stretches
        ]
        return float(np.mean(np.abs(np.concatenate(loads))))

    def moved(self, theta: np.ndarray) -> Regression:
        """The same with other parameters; intervals keep their widths."""
        model, blueprint = fitted_robot(self.described, self.layout, theta)
        by = theta - self.theta
        rotors = [self.layout.at(j, "armature") for j in range(len(self.layout.joints))]
        of_base = self.base_parameters.matrix @ by[[*range(self.layout.inertial), *rotors]]
        training = np.sqrt(mean_squares(self.problem.design, self.layout, theta, self.delay))
        return replace(
            self,
            model=model,
            blueprint=blueprint,
            theta=theta,
            base=tuple(q.shifted(d) for q, d in zip(self.base, of_base, strict=True)),
            parameters=tuple(
                moved._replace(lower=max(moved.lower, low))
                for moved, low in zip(map(Quantity.shifted, self.parameters, by), self.layout.lower, strict=True)
            ),
            errors=tuple(e._replace(training=float(t)) for e, t in zip(self.errors, training, strict=True)),
        )

    @property
    def step(self) -> float:
        """A step with which RK4 integrates friction stably [s]: by the fastest decay of a joint's speed."""
        decay = np.array(self.model.damping, float)
        for joint, (dof, friction) in enumerate(zip(self.layout.joints, self.layout.friction, strict=True)):
            decay[dof] += self.theta[self.layout.at(joint, "friction")] / friction.width
        fastest = float(np.max(decay / np.maximum(self._inertias(), 1e-9), initial=0.0))
        return min(LONGEST_STEP, STABLE / max(fastest, 1e-9))

    def _inertias(self) -> np.ndarray:
        """The diagonal of the mass matrix at the reference: forces of unit accelerations less those without."""
        nv, pi = self.described.nv, self.theta[: self.layout.inertial]
        q, qdd = np.tile(np.asarray(self.described.reference, float), (nv + 1, 1)), np.eye(nv + 1, nv, k=-1)
        parts = zip(
            regressors(self.described, q, np.zeros((nv + 1, nv)), qdd), carried_columns(self.described), strict=True
        )
        forces = np.stack([part @ pi[columns] for part, columns in parts], axis=1)
        return np.diag(forces[1:] - forces[0]) + np.asarray(self.model.armature)

    def torque_errors(self, recordings: Recording | Sequence[Recording]) -> dict[str, float]:
        """Root mean square of measured less predicted torque of each joint below the cut-off, on any recordings."""
        runs = [recordings] if isinstance(recordings, Recording) else list(recordings)
        squares = held_out_squares(self, prepare(self.described, runs, self.gains))
        return dict(zip((e.joint for e in self.errors), np.sqrt(squares).tolist(), strict=True))

    gains: dict[str, float] | None = None

    def __str__(self) -> str:
        from knuckle.sysid.regression.tables import text

        return text(self)

    __repr__ = __str__


def held_out_squares(found: Regression, signals) -> np.ndarray:
    """Mean squared residual of each joint on other signals, through the same filter."""
    layout = found.layout
    design = Design(
        found.described, [make_stretch(found.described, s, found.cutoff, layout.slow) for s in signals], 1.0
    )
    return mean_squares(design, layout, found.theta, found.delay)


def mean_squares(design: Design, layout: Layout, theta: np.ndarray, delay: float) -> np.ndarray:
    found = []
    for joint in range(len(layout.joints)):
        residuals = design.rows(layout, joint, delay, theta).residuals(theta)
        found.append(np.mean(np.square(residuals)) if len(residuals) else np.nan)
    return np.array(found)


def unit_of(model: Model, dof: int) -> str:
    return "N" if dimensions(model, "tau")[dof] == "length" else "N m"


def joint_name(model: Model, dof: int) -> str:
    return names_of(model, "tau")[dof]
