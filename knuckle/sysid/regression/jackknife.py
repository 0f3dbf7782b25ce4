"""Standard errors by leaving out one block of time after the other (Quenouille, Tukey), which model error survives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.stats import t as student

from knuckle.sysid.regression.problem import Problem, Solved

SHORTEST, LONGEST = 0.2, 5.0  # seconds of a block
PER_CORRELATION = 3.0  # length of a block over the time between independent residuals
LEAST_BLOCKS = 15
TRANSITION = 0.5  # prior standard deviation of the logarithm of a width of friction's transition
FILTER_ERRORS = 2.0  # of the change with half the cut-off, in a half width


def block_length(problem: Problem, solved: Solved, inefficiency: np.ndarray) -> float:
    """Seconds: three times the longest time between independent residuals, 0.2 to 5 s, and at least 15 blocks."""
    stretches = problem.design.stretches
    row = np.median([s.every * (s.time[1] - s.time[0]) for s in stretches])
    total = sum(s.time[-1] - s.time[0] for s in stretches)
    wanted = PER_CORRELATION * float(np.max(inefficiency)) * row
    return float(max(min(np.clip(wanted, SHORTEST, LONGEST), total / LEAST_BLOCKS), 4 * row))


def leave_one_out(problem: Problem, solved: Solved) -> np.ndarray:
    """Parameters without each block that has rows, (block, parameter)."""
    grams, spread, penalty = solved.grams, solved.deviation, solved.penalty
    if problem.inefficiency is not None:
        spread = spread * np.sqrt(problem.inefficiency)
    if solved.nuisance is not None:
        grams, penalty = solved.nuisance, penalty.extended(solved.nuisance.size, 1 / TRANSITION**2)
    H, g = grams.normal(spread)
    found = []
    for b in np.flatnonzero(grams.count.sum(axis=0) > 0):
        H_b, g_b = grams.normal(spread, slice(b, b + 1))
        found.append(penalty.solve(H - H_b, g - g_b)[: solved.layout.size])
    return np.array(found)


def unheld(problem: Problem, solved: Solved, without: np.ndarray) -> np.ndarray:
    """The same, with each parameter that its lower bound holds taken from solutions without that one bound.

    At its bound a parameter shows no scatter between blocks, however little the data say about it.
    """
    lower, found = solved.layout.lower, without.copy()
    for k in np.flatnonzero(np.isfinite(lower) & np.any(without <= lower, axis=0)):
        lifted = np.where(np.arange(len(lower)) == k, -np.inf, lower)
        free = replace(solved, penalty=replace(solved.penalty, lower=lifted))
        found[:, k] = leave_one_out(problem, free)[:, k]
    return found


def all_unheld(problem: Problem, solved: Solved, without: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Parameters without each block, without the lower bounds that hold any of these columns: for combinations."""
    lower = solved.layout.lower
    held = [k for k in columns if np.isfinite(lower[k]) and np.any(without[:, k] <= lower[k])]
    if not held:
        return without
    lifted = np.where(np.isin(np.arange(len(lower)), held), -np.inf, lower)
    return leave_one_out(problem, replace(solved, penalty=replace(solved.penalty, lower=lifted)))


def standard_errors(values: np.ndarray) -> np.ndarray:
    """Of quantities (block, quantity), each without one block."""
    blocks = len(values)
    return np.sqrt((blocks - 1) / blocks * np.square(values - values.mean(axis=0)).sum(axis=0))


def directions(without: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Columns D with D D^T the covariance of the parameters: of the jackknife, and of the change with the cut-off."""
    blocks = len(without)
    return np.column_stack([np.sqrt((blocks - 1) / blocks) * (without - without.mean(axis=0)).T, change])


def effective_blocks(problem: Problem, solved: Solved, combinations: np.ndarray) -> np.ndarray:
    """How many blocks of equal information would know each combination (rows) as evenly: (sum w)^2 / sum w^2.

    w is the variance that one block contributes to the estimate. A swing in one second of a log that else stands still
    leaves one block, however many there are, and the scatter between blocks is then hardly known itself (Bell and
    McCaffrey 2002; Carter, Schnepel and Steigerwald 2017: effective number of clusters).
    """
    grams, spread = solved.grams, solved.deviation
    if problem.inefficiency is not None:
        spread = spread * np.sqrt(problem.inefficiency)
    x = _solved_for(solved, combinations)
    total, squares = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for b in range(grams.blocks):
        own = np.zeros(x.shape[1])
        for columns, gram, sd in zip(grams.columns, grams.gram, spread, strict=True):
            own += np.einsum("pc,pq,qc->c", x[columns], gram[b, :-1, :-1] / sd**2, x[columns])
        total, squares = total + own, squares + own**2
    return total**2 / np.maximum(squares, 1e-300)


def half_widths(
    values: np.ndarray, change: np.ndarray, level: float = 0.95, blocks: np.ndarray | None = None
) -> np.ndarray:
    """Half widths of intervals: Student's t times the standard error, and what the filter changes.

    blocks: effective number of each quantity, for the degrees of freedom; by default all.

    Errors of the regressor (noise of velocities, lags, unmodelled dynamics) bias estimates without any scatter between
    blocks, but the bias depends on the cut-off. `change` is that of the quantities when the cut-off is halved; it is a
    standard error of its own.
    """
    freedom = np.maximum((len(values) if blocks is None else blocks) - 1.0, 1.0)
    by_blocks = student.ppf(0.5 + level / 2, freedom) * standard_errors(values)
    return np.hypot(by_blocks, FILTER_ERRORS * np.abs(change))


def data_shares(solved: Solved, combinations: np.ndarray) -> np.ndarray:
    """Share of the information on each combination (rows) that is the data's, not the prior's: 0 to 1."""
    x = _solved_for(solved, combinations)
    prior = np.einsum("pc,pq,qc->c", x, solved.penalty.matrix, x)
    return 1 - np.clip(prior / np.maximum(np.einsum("pc,cp->c", x, combinations), 1e-300), 0.0, 1.0)


def _solved_for(solved: Solved, combinations: np.ndarray) -> np.ndarray:
    """H^-1 a of each combination a, (parameter, combination)."""
    scale = 1 / np.sqrt(np.diag(solved.solution.H))
    K = solved.solution.H * np.outer(scale, scale) + 1e-12 * np.eye(len(scale))
    return np.linalg.solve(K, (combinations * scale).T) * scale[:, None]
