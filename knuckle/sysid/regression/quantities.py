"""Parameters with intervals and torque errors by joint, from a solution and its jackknife."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.base_parameters import BaseParameters, inertial
from knuckle.sysid.regression.design import Layout, forces_by_themselves
from knuckle.sysid.regression.friction import JointFriction
from knuckle.sysid.regression.jackknife import all_unheld, data_shares, effective_blocks, half_widths
from knuckle.sysid.regression.problem import Problem, Solved
from knuckle.sysid.regression.result import Quantity, TorqueError, joint_name, mean_squares, unit_of
from knuckle.sysid.regression.units import unit_of_parameter

LEAST_SHARE = 0.5  # of the information: below, a quantity rests on the prior and has no interval


class Evidence(NamedTuple):
    """A solution, the parameters taken from it, those without each block, and their change with the filter."""

    problem: Problem
    solved: Solved
    theta: np.ndarray
    without: np.ndarray
    unheld: np.ndarray  # the same of single parameters, not held by bounds
    change: np.ndarray


def single_quantities(model: Model, evidence: Evidence) -> tuple[Quantity, ...]:
    """Every single parameter."""
    layout = evidence.solved.layout
    units = [unit_of_parameter(model, layout, k) for k in range(layout.size)]
    evidence = evidence._replace(without=evidence.unheld)
    found = _quantities(model, evidence, layout.names, np.eye(layout.size), units)
    return tuple(q._replace(lower=max(q.lower, low)) for q, low in zip(found, layout.lower, strict=True))


def base_quantities(model: Model, base: BaseParameters, evidence: Evidence) -> tuple[Quantity, ...]:
    """Combinations of inertial parameters and rotor inertias that forces depend on."""
    layout = evidence.solved.layout
    rotors = [layout.at(j, "armature") for j in range(len(layout.joints))]
    places = [*range(layout.inertial), *rotors]
    combinations = np.zeros((len(base), layout.size))
    combinations[:, places] = base.matrix
    free = all_unheld(evidence.problem, evidence.solved, evidence.without, np.array(rotors))
    evidence = evidence._replace(without=free)
    units = [unit_of_parameter(model, layout, places[k]) for k in base.leading]
    return _quantities(model, evidence, base.words()[: len(base)], combinations, units)


def _quantities(
    model: Model, evidence: Evidence, names: Sequence[str], combinations: np.ndarray, units: Sequence[str]
) -> tuple[Quantity, ...]:
    problem, solved, theta, without, _, change = evidence
    values = combinations @ theta
    blocks = effective_blocks(problem, solved, combinations)
    half = half_widths(without @ combinations.T, combinations @ change, blocks=blocks)
    shares = data_shares(solved, combinations)
    half = np.where((shares >= LEAST_SHARE) & np.isfinite(half), half, np.nan)
    described = combinations @ described_parameters(model, solved.layout)
    columns = (values, values - half, values + half, shares, described)
    return tuple(
        Quantity(name, value, lower, upper, unit, share, before)
        for name, unit, (value, lower, upper, share, before) in zip(
            names, units, np.transpose(columns).tolist(), strict=True
        )
    )


def described_parameters(model: Model, layout: Layout) -> np.ndarray:
    """Parameters as the description has them."""
    theta = np.concatenate([np.asarray(inertial(model), float), np.zeros(layout.size - layout.inertial)])
    for joint, dof in enumerate(layout.joints):
        for column in ("armature", "damping", "friction"):
            theta[layout.at(joint, column)] = float(np.asarray(getattr(model, column))[dof])
    return theta


def torque_errors(
    model: Model, problem: Problem, layout: Layout, theta: np.ndarray, held_out: np.ndarray
) -> tuple[TorqueError, ...]:
    """Root mean squares by joint; `held_out`: mean squares by cross-validation."""
    design = problem.design
    training = np.sqrt(mean_squares(design, layout, theta, problem.delay))
    plain = replace(layout, friction=tuple(JointFriction(f.width, f.slow) for f in layout.friction))
    before = np.sqrt(mean_squares(design, plain, described_parameters(model, plain), problem.delay))
    spread = [design.efforts(plain, k, problem.delay).std() for k in range(len(layout.joints))]
    parts = [forces_by_themselves(design, s, theta[: layout.inertial]) ** 2 for s in design.stretches]
    forces = np.sqrt(np.mean(parts, axis=0))[list(layout.joints)]
    rows = zip(before, training, np.sqrt(held_out), spread, forces, strict=True)
    return tuple(
        TorqueError(joint_name(model, dof), unit_of(model, dof), *map(float, row))
        for dof, row in zip(layout.joints, rows, strict=True)
    )
