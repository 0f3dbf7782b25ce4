"""`regress`: a robot from measured motions and torques, by linear regression on inverse dynamics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.base_parameters import base_parameters, inertial
from knuckle.sysid.entries import dimensions, names_of, unit_at
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.checks import error_notes, scale_notes
from knuckle.sysid.regression.consistent import consistent_solution
from knuckle.sysid.regression.design import Design, Layout, forces_by_themselves, make_stretch
from knuckle.sysid.regression.filters import WIDE, choose_cutoff
from knuckle.sysid.regression.fitted import fitted_robot
from knuckle.sysid.regression.friction import MOVES, JointFriction
from knuckle.sysid.regression.held import coupled, held_names
from knuckle.sysid.regression.jackknife import block_length, directions, leave_one_out, unheld
from knuckle.sysid.regression.prior import metric, metric_centre, smallest_eigenvalues
from knuckle.sysid.regression.problem import Problem, Solved, inefficiencies
from knuckle.sysid.regression.quantities import Evidence, base_quantities, single_quantities, torque_errors
from knuckle.sysid.regression.result import Regression, joint_name
from knuckle.sysid.regression.selection import TERMS, find_delay, held_out_squares, select_terms, select_widths
from knuckle.sysid.regression.signals import Signals, prepare
from knuckle.sysid.regression.speeds import fastest_speeds, moving_joints, slow_speeds, velocity_noise

SELECTION_BLOCK = 1.0  # seconds of the blocks of cross-validation
LEAST_ROWS = 20  # of a joint
LEAST_SECONDS = 2.0
SWINGS = 0.5  # all forces of the description over gravity and inertia by themselves, of a joint that swings
NOISE_WIDTH = 0.8  # of the tanh over the noise of the velocity: the mean sign of a speed that noise hides
GROSS_DELAY = 0.015  # [s]: more than pre-sliding explains


def regress(
    model: Model,
    recordings: Recording | Sequence[Recording],
    *,
    held_out: Sequence[Recording] = (),
    gains: Mapping[str, float] | None = None,
    terms: Sequence[str] = TERMS,
    prior: float = 0.1,
    friction_speed: float | None = None,
    cutoff: float | None = None,
    delay: float | None = None,
    block: float | None = None,
) -> Regression:
    """Fit inertial parameters, rotor inertia and friction to measured joint torques: weighted linear least squares.

    Accelerations need not be measured. Features are built from wide-band signals; features and efforts pass the same
    zero-phase filter. Joints are weighted by their residuals, links are kept near the description by a prior on their
    pseudo-inertia and stay physically consistent.

    Args:
        recordings: with positions ("q"), if possible velocities ("qd"), and torques ("tau") or controls of motors.
        held_out: recordings on which torque errors are measured; by default by cross-validation over blocks.
        gains: N m/A or N/A by joint, if "tau" holds currents.
        terms: friction that cross-validation may add: "pre-sliding" (Dahl), "load", "stribeck".
        prior: weight of the geometric prior, in units of one independent sample.
        friction_speed: width of the tanh of Coulomb friction [rad/s or m/s]; by default of each joint the one by
            which held-out efforts are predicted best, not below the noise of its velocity.
        cutoff: of the filter [Hz]; by default where velocities sink into noise.
        delay: how late efforts are [s]; by default estimated.
        block: seconds of the blocks of the jackknife; by default from the autocorrelation of the residuals.
    """
    runs = [recordings] if isinstance(recordings, Recording) else list(recordings)
    _check(model, runs, terms, prior, friction_speed)
    with jax.enable_x64(True):
        signals = prepare(model, runs, gains)
        slow = slow_speeds(model, signals) if friction_speed is None else np.full(model.nv, float(friction_speed))
        moving = _moving(model, signals, slow)
        band = choose_cutoff(signals, moving) if cutoff is None else float(cutoff)
        design = Design(model, [make_stretch(model, s, band, slow) for s in signals], SELECTION_BLOCK)
        layout, notes = _layout(model, runs, design, signals, slow)
        notes += tuple(scale_notes(design, layout))
        described = np.asarray(inertial(model), float).reshape(-1, 10)
        centre = metric_centre(model, described)
        problem = Problem(design, described, metric(centre), prior, 0.0 if delay is None else float(delay))
        least = None if friction_speed is not None else NOISE_WIDTH * velocity_noise(signals, WIDE * band)
        problem, solved = _choose(problem, layout, terms, delay is None, least)
        return _result(model, problem, solved, centre, signals, held_out, gains, block, notes)


def refit(found: Regression, recordings: Sequence[Recording]) -> Regression:
    """The same regression to other recordings: friction terms, cut-off and delay as they are."""
    model, layout = found.described, found.layout
    with jax.enable_x64(True):
        signals = prepare(model, recordings, found.gains)
        design = Design(model, [make_stretch(model, s, found.cutoff, layout.slow) for s in signals], SELECTION_BLOCK)
        problem = replace(found.problem, design=design)
        described = np.asarray(inertial(model), float).reshape(-1, 10)
        centre = metric_centre(model, described)
        return _result(model, problem, problem.solve(layout), centre, signals, (), found.gains, None, ())


def _check(
    model: Model, runs: Sequence[Recording], terms: Sequence[str], prior: float, friction_speed: float | None
) -> None:
    rows, nothing_else = model.equalities, bool(coupled(model).all())
    active = [
        name
        for name, kind, on in zip(rows.names, rows.kind, rows.active, strict=True)
        if on and (kind != "mimic" or nothing_else)
    ]
    if active:
        raise ValueError(
            f"regress: {model.name} has equality constraints ({', '.join(active)}): their forces are not measured, so "
            "torques do not follow from the motion of a tree"
        )
    if not runs:
        raise ValueError("regress: at least one recording is needed")
    unknown = [t for t in terms if t not in TERMS]
    if unknown:
        raise ValueError(f"regress: terms must be among {', '.join(TERMS)}, got {unknown[0]!r}")
    if not (np.isfinite(prior) and prior > 0):
        raise ValueError(f"regress: prior must be positive, got {prior}")
    if friction_speed is not None and not (np.isfinite(friction_speed) and friction_speed > 0):
        raise ValueError(f"regress: friction_speed must be positive, got {friction_speed}")


def _moving(model: Model, signals: Sequence[Signals], slow: np.ndarray) -> np.ndarray:
    """Joints that are not stationary; ValueError if all are."""
    moving = moving_joints(signals, slow)
    if not moving.any():
        names, fastest = names_of(model, "qd"), fastest_speeds(signals)
        best = int(np.argmax(fastest))
        raise ValueError(
            f"regress: the robot is stationary: no joint moves faster than its noise or than {MOVES * slow[best]:.2g} "
            f"{unit_at('rad/s or m/s', dimensions(model, 'qd')[best])} ({names[best]} reaches {fastest[best]:.2g}). "
            "Dry friction holds it there, so torques determine nothing; record a motion"
        )
    return moving


def _layout(
    model: Model, runs: Sequence[Recording], design: Design, signals: Sequence[Signals], slow: np.ndarray
) -> tuple[Layout, tuple[str, ...]]:
    """Parameters of the joints that have rows, and notes about the others."""
    counts = np.sum([(s.valid & ~s.stationary)[:: s.every].sum(axis=0) for s in design.stretches], axis=0)
    names = names_of(model, "tau")
    frozen = _frozen(model, signals)
    swinging = frozen & _swinging(design, signals)
    frozen = frozen & ~swinging
    joints = tuple(int(j) for j in np.flatnonzero((counts >= LEAST_ROWS) & ~frozen))
    if not joints:
        raise ValueError(
            "regress: no joint has enough samples with measured effort that changes while it moves "
            f"(at least {LEAST_ROWS} independent ones below the cut-off are needed)"
        )
    seconds = float(_moving_seconds(design, slow)[list(joints)].max())
    if seconds < LEAST_SECONDS:
        raise ValueError(
            f"regress: {seconds:.2g} s of motion are too few: some joint must move for at least {LEAST_SECONDS:g} s, "
            "to tell parameters from noise and to judge the result"
        )
    ever = np.any([s.measured.any(axis=0) for s in signals], axis=0)
    notes = []
    tied, held = coupled(model), held_names(model, runs)
    silent = [names[j] for j in range(model.nv) if not ever[j] and not tied[j] and names[j] not in held]
    still = [names[j] for j in range(model.nv) if ever[j] and j not in joints and not frozen[j]]
    if frozen.any():
        constant = ", ".join(names[j] for j in np.flatnonzero(frozen))
        notes.append(
            f"the effort of {constant} is constant while the robot moves: it was not measured, and is left out"
        )
    if swinging.any():
        free = ", ".join(names[j] for j in np.flatnonzero(swinging))
        notes.append(f"the effort of {free} is 0 throughout, and the motion agrees with that: no motor acts there")
    if held:
        notes.append(
            f"nothing was measured at {', '.join(held)}: taken as stationary where the description has them; what they "
            "carry counts, their friction and rotor inertia stay as described"
        )
    moving = [names[j] for j in np.flatnonzero(tied) if names[j] not in held]
    if moving:
        notes.append(f"a mimic couples {', '.join(moving)}: its force is not measured, so efforts there are left out")
    if silent:
        notes.append(
            f"no effort was measured at {', '.join(silent)}: friction and rotor inertia there stay as described"
        )
    if still:
        notes.append(f"{', '.join(still)} hardly move: friction and rotor inertia there stay as described")
    known = [names[j] for j in joints if j not in model.actuators.entry_dof and _unmeasured(signals, j)]
    if known:
        notes.append(f"no actuator drives {', '.join(known)}: the effort there is taken as 0")
    return Layout(model, joints, tuple(JointFriction(float(slow[j]), float(slow[j])) for j in joints)), tuple(notes)


def _frozen(model: Model, signals: Sequence[Signals]) -> np.ndarray:
    """Driven degrees of freedom whose recorded effort never changes."""
    changes = np.any([np.ptp(s.effort, axis=0) > 0 for s in signals], axis=0)
    ever = np.any([s.measured.any(axis=0) for s in signals], axis=0)
    return ever & ~changes & np.isin(np.arange(model.nv), model.actuators.entry_dof)


def _swinging(design: Design, signals: Sequence[Signals]) -> np.ndarray:
    """Degrees of freedom with an effort of exactly 0 that move as if nothing drove them, while something drives others.

    By the description: gravity and inertia cancel to less than half of what they are by themselves. A joint that is
    held against gravity, and whose effort was not measured, is another matter.
    """
    zero = np.all([~np.any(s.effort, axis=0) for s in signals], axis=0)
    if zero.all():
        return zero & False
    pi = np.asarray(inertial(design.model), float)
    forces = [np.var(s.inertial[dof] @ pi[design.columns[dof]]) for s in design.stretches for dof in range(len(zero))]
    total = np.sqrt(np.mean(np.reshape(forces, (-1, len(zero))), axis=0))
    alone = np.sqrt(np.mean([forces_by_themselves(design, s, pi) ** 2 for s in design.stretches], axis=0))
    return zero & (total < SWINGS * alone)


def _moving_seconds(design: Design, slow: np.ndarray) -> np.ndarray:
    """How long each degree of freedom is faster than a twentieth of its highest speed, and not stationary."""
    speeds = [np.abs(s.low_pass(s.qd)) for s in design.stretches]
    least = np.maximum(0.05 * np.max([v.max(axis=0) for v in speeds], axis=0), MOVES * slow)
    steps = [s.time[1] - s.time[0] for s in design.stretches]
    return np.sum([dt * (v > least).sum(axis=0) for v, dt in zip(speeds, steps, strict=True)], axis=0)


def _unmeasured(signals: Sequence[Signals], dof: int) -> bool:
    return all(not np.any(s.effort[:, dof]) for s in signals)


def _choose(
    problem: Problem, layout: Layout, terms: Sequence[str], with_delay: bool, least: np.ndarray | None
) -> tuple[Problem, Solved]:
    """Weights, friction terms, delay. Pre-sliding and delay explain each other in part: pre-sliding comes first.

    least: smallest widths (dof,) of the tanh of Coulomb friction; None: widths stay as they are.
    """
    solved = problem.solve(layout)
    problem = replace(problem, inefficiency=inefficiencies(solved))
    solved = problem.solve(layout, solved)
    if with_delay:
        gross = find_delay(problem, solved)
        if abs(gross) > GROSS_DELAY:
            problem = replace(problem, delay=gross)
            problem = replace(problem, inefficiency=inefficiencies(problem.solve(layout)))
            solved = problem.solve(layout)
    if least is not None:
        solved = select_widths(problem, solved, least)
    solved = select_terms(problem, solved, [t for t in terms if t != "pre-sliding"])
    solved = select_terms(problem, solved, [t for t in terms if t == "pre-sliding"])
    if with_delay:
        delay = find_delay(problem, solved)
        if delay != problem.delay:
            problem = replace(problem, delay=delay)
            solved = problem.solve(solved.layout, solved)
    problem = replace(problem, inefficiency=inefficiencies(solved))
    return problem, problem.solve(solved.layout, solved)


def _result(
    model: Model,
    problem: Problem,
    solved: Solved,
    centre: np.ndarray,
    signals: Sequence[Signals],
    held_out: Sequence[Recording],
    gains: Mapping[str, float] | None,
    block: float | None,
    notes: tuple[str, ...],
) -> Regression:
    layout, theta = solved.layout, solved.theta
    size = layout.inertial
    held = held_out_squares(problem, solved).sum(axis=1) / np.maximum(solved.grams.count.sum(axis=1), 1e-300)
    consistent = bool(np.all(smallest_eigenvalues(theta[:size].reshape(-1, 10), centre) > 0))
    if not consistent:
        theta = consistent_solution(solved.solution.H, solved.solution.g, theta, centre, layout.lower)
    seconds = block_length(problem, solved, inefficiencies(solved)) if block is None else float(block)
    problem = replace(problem, design=problem.design.divided(seconds))
    divided = problem.of_rows(layout, problem.rows(layout, solved.theta), solved)
    divided = problem.with_transitions(divided)
    without = leave_one_out(problem, divided)
    change = _change_with_cutoff(model, problem, solved, signals)
    base = base_parameters(model, joints=layout.joints, rotors=layout.joints)
    evidence = Evidence(problem, divided, theta, without, unheld(problem, divided, without), change)
    fitted, blueprint = fitted_robot(model, layout, theta)
    found = Regression(
        model=fitted,
        blueprint=blueprint,
        base=base_quantities(model, base, evidence),
        parameters=single_quantities(model, evidence),
        errors=torque_errors(model, problem, layout, theta, held),
        cutoff=problem.design.stretches[0].low_pass.cutoff,
        delay=problem.delay,
        block=seconds,
        blocks=len(without),
        consistent=consistent,
        notes=notes,
        terms={joint_name(model, j): _terms(f) for j, f in zip(layout.joints, layout.friction, strict=True)},
        base_parameters=base,
        layout=layout,
        theta=theta,
        described=model,
        problem=problem,
        solved=divided,
        directions=directions(without, change),
        without=without,
        change=change,
        gains=None if gains is None else dict(gains),
    )
    if held_out:
        measured = found.torque_errors(list(held_out))
        errors = tuple(e._replace(held_out=measured[e.joint]) for e in found.errors)
        found = replace(found, errors=errors)
    return replace(found, notes=(*notes, *error_notes(found.errors)))


def _change_with_cutoff(model: Model, problem: Problem, solved: Solved, signals: Sequence[Signals]) -> np.ndarray:
    """Change of the parameters when the cut-off of the filter is halved."""
    layout = solved.layout
    half = problem.design.stretches[0].low_pass.cutoff / 2
    slower = Design(model, [make_stretch(model, s, half, layout.slow) for s in signals], SELECTION_BLOCK)
    other = replace(problem, design=slower)
    return other.of_rows(layout, other.rows(layout, solved.theta), None).theta - solved.theta


def _terms(friction: JointFriction) -> tuple[str, ...]:
    chosen = {
        "pre-sliding": friction.reach is not None,
        "load": friction.load,
        "stribeck": friction.stribeck_speed is not None,
    }
    return tuple(term for term, there in chosen.items() if there)
