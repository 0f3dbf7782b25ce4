"""Recordings that contradict each other: what explains one of them predicts another worse than the description does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import equinox as eqx
import numpy as np

from knuckle.optim import LeastSquares, LevenbergMarquardt
from knuckle.sysid.findings import listed
from knuckle.sysid.held_out import HeldOut
from knuckle.sysid.many import MANY
from knuckle.sysid.noise_kinds import overall
from knuckle.sysid.objective import Objective
from knuckle.sysid.selection import FEWEST, spread_out, subset
from knuckle.sysid.shots import Shots

if TYPE_CHECKING:
    from knuckle.sysid.recording import Recording
    from knuckle.sysid.task import Found, Task

OWN_GAIN = 0.5  # share of a recording's squares that parameters of its own would take away, from which on it is tested
MOST = 6  # recordings that are compared
WORSE, BEYOND_DESCRIPTION, BEYOND_NOISE = 3.0, 1.2, 3.0  # times: own parameters, the description, and the noise
FITTING = LevenbergMarquardt(max_iterations=30, value_tolerance=1e-4)
SETTLING = LevenbergMarquardt(max_iterations=10, value_tolerance=1e-4)


def find_contradictions(task: Task, found: Found, held_out: HeldOut | None) -> list[str]:
    """In words with numbers, recordings that contradict the others; only tested where the fit shows signs of it.

    Signs are a held-out error that the fit did not make smaller, and recordings that parameters of their own would
    explain far better. Then each recording is fitted alone, and predicts each other one.
    """
    recordings = [*found.train, *found.test]
    useless = held_out is not None and not held_out.helped(overall(task.model, found.noise))
    if len(recordings) < 2 or found.objective.fixed_starts or found.objective.size > MANY:
        return []
    if not (useless or max(_own_gains(found), default=0.0) > OWN_GAIN):
        return []
    task.search.progress("comparing recordings with each other")
    chosen = _most_telling(recordings, len(found.train))
    deadline = task.search.deadline.share(1.0)
    deadline.left_out = []  # a few segments suffice here, which need no word
    part = task._replace(search=replace(task.search, deadline=deadline))
    shots, _ = part.pieces(chosen, found.noise_before)
    present = np.unique(np.asarray(shots.run)).astype(int)  # there may be no time for segments of all of them
    if len(present) < 2:
        return []
    chosen, alone = [chosen[k] for k in present], [_alone(found.objective, shots, k) for k in present]
    points = [objective.first[: objective.size] for objective in alone[:1]]
    for objective in alone:
        points.append(FITTING(objective.problem(), objective.first).x[: objective.size])
    errors = np.array([[_misfit(objective, z) for objective in alone] for z in points])
    return _in_words([r.name or f"number {k}" for k, r in enumerate(chosen)], errors[0], errors[1:])


def _most_telling(recordings: Sequence[Recording], train: int) -> list[Recording]:
    """At most so many recordings, seen and not seen ones by turns, the longest first."""
    parts = [sorted(part, key=len, reverse=True) for part in (recordings[:train], recordings[train:])]
    ranked = [r for pair in zip(*(part + [None] * len(recordings) for part in parts), strict=False) for r in pair]
    return [r for r in ranked if r is not None][:MOST]


def _own_gains(found: Found) -> list[float]:
    """For each recording that was fitted, the share of its squares that parameters of its own would take away.

    By the linearisation at the solution.
    """
    objective, run = found.objective, np.asarray(found.objective.shots.run)
    if len(set(run)) < 2:
        return []
    residuals, jacobian = objective(found.result.x)
    data, ties, alone, own = jacobian.split(residuals)
    gains = []
    for number in sorted(set(run)):
        kept = run == number
        names = ("by_shared", "by_own", "tie_by_shared", "tie_by_own", "tie_by_next", "own_alone")
        part = replace(jacobian, **{name: getattr(jacobian, name)[kept] for name in names})
        rows = np.concatenate([data[kept].reshape(-1), ties[kept].reshape(-1), alone, own[kept].reshape(-1)])
        reduced = part.normal().reduced(part.transposed(rows))
        if reduced is None or not np.isfinite(reduced.matrix).all():
            continue
        gain = reduced.slope @ np.linalg.lstsq(reduced.matrix, reduced.slope, rcond=None)[0]
        gains.append(float(gain / max(np.sum(data[kept] ** 2), 1e-300)))
    return gains


def _alone(objective: Objective, shots: Shots, number: int) -> Objective:
    """The same problem for some segments of one recording, as many for all, so that one program serves."""
    rows = np.flatnonzero(np.asarray(shots.run) == number)
    part = spread_out(subset(shots, rows), FEWEST)
    filled = subset(part, np.minimum(np.arange(FEWEST), part.count - 1))
    counts = (np.arange(FEWEST) < part.count)[:, None, None]
    weight = {key: np.asarray(w) * counts for key, w in filled.weight.items()}
    return objective.on(eqx.tree_at(lambda s: s.weight, filled, weight))


def _misfit(objective: Objective, z: np.ndarray) -> float:
    """Root mean square of the residuals over the noise, with initial states where they fit best."""
    x = np.concatenate([z, np.zeros(objective.start_size)])

    def by_starts(starts: np.ndarray):
        residuals, jacobian = objective(np.concatenate([z, starts]))
        return residuals, jacobian.of_own()

    if objective.start_size:
        found = SETTLING(LeastSquares(by_starts, objective.start_size), x[objective.size :])
        x = np.concatenate([z, found.x])
    rows, _ = objective(x)
    data = rows[: objective.shots.count * objective.data_size]
    measured = sum(np.count_nonzero(np.asarray(w)) for w in objective.shots.weight.values())
    size = float(np.sqrt(np.sum(data**2) / max(measured, 1)))
    return size if np.isfinite(size) else np.inf


def _in_words(names: Sequence[str], description: np.ndarray, errors: np.ndarray) -> list[str]:
    """errors: of what was fitted to the recording of a row, on that of a column, over the noise."""
    own = np.diag(errors)
    bad = (errors > WORSE * own) & (errors > BEYOND_DESCRIPTION * description) & (errors > BEYOND_NOISE)
    against = bad | bad.T
    count, found = against.sum(axis=1), []
    odd = [
        k for k in range(len(names)) if 2 * count[k] > len(names) - 1 and np.sum(count >= count[k]) <= len(names) / 2
    ]
    pairs = [(i, j) for i in range(len(names)) for j in range(i) if against[i, j] and not {i, j} & set(odd)]
    for k in odd:
        others = [j for j in range(len(names)) if against[k, j] and j not in odd]
        against_all = listed([names[j] for j in others])
        found.append(f"recording {names[k]} contradicts {against_all}: {_numbers(names, errors, k, others)}")
    for i, j in pairs:
        found.append(f"recordings {names[i]} and {names[j]} contradict each other: {_numbers(names, errors, i, [j])}")
    return found


def _numbers(names: Sequence[str], errors: np.ndarray, k: int, others: Sequence[int]) -> str:
    j = max(others, key=lambda j: max(errors[k, j] / errors[j, j], errors[j, k] / errors[k, k]))
    source, target = (k, j) if errors[k, j] / errors[j, j] > errors[j, k] / errors[k, k] else (j, k)
    return (
        f"what is fitted to {names[source]} alone leaves {errors[source, target]:.3g} x noise in {names[target]}, and "
        f"its own parameters leave {errors[target, target]:.3g}; another robot or payload, another sign or unit?"
    )
