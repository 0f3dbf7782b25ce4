"""Gauss-Newton on whole trajectories: linearise a robot about them, smooth, move, until nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.ndimage import maximum_filter1d

from knuckle.sysid.smoothing.likelihood import Block, Noise
from knuckle.sysid.smoothing.linear import Estimates, smooth_linear
from knuckle.sysid.smoothing.problem import Problem
from knuckle.sysid.smoothing.system import Nominal, RobotSystem, Run

LEAST_ITERATIONS = 8
STILL = 1e-4  # change in standard deviations at which the trajectory has converged
RESTLESS, FEW = 0.1, 0.02  # change in standard deviations, and share of stamps at which dry friction may cause more
HALF = 0.5  # of the fall of the changes that a step promises
GROWS, LEAST_STEP = 1.5, 1 / 8  # of the share of a step that is taken
NEIGHBOURS = 0.05  # seconds to either side of a stamp whose slopes are taken alike
JITTER = 1e-8  # relative, that each step adds to what networks remember, against singular covariances
MOST_ROWS = 1500  # that noise is estimated from
PARTS = 5  # of a long recording, from which these are taken


class Blur(NamedTuple):
    """Steps of a run whose slopes are taken across the uncertainty of the state, and that uncertainty."""

    steps: np.ndarray  # (row,) bool
    deviation: np.ndarray  # (row, size)


class Iteration(NamedTuple):
    """Trajectories, how many steps led there, and what the last one changed, in standard deviations."""

    nominal: list[Nominal]
    blurs: list[Blur | None]
    count: int = 0
    change: float = np.inf  # the largest
    restless: float = 1.0  # share of stamps that moved by more than `RESTLESS`

    @property
    def converged(self) -> bool:
        return self.change < STILL or self.restless < FEW


def iterate(problem: Problem, nominal: list[Nominal], noise: Noise, most: int) -> Iteration:
    """Gauss-Newton on the trajectories of all runs.

    Friction that remembers where it reversed has kinks where a joint reverses. If one lies within the uncertainty of
    the state, Jacobians to either side differ and steps go to and fro for ever. From the eighth step on, slopes of such
    stamps are therefore those across one standard deviation. A step is taken whole if changes shrink, else in part.
    """
    at, share, before = Iteration(nominal, [None] * len(nominal)), 1.0, np.inf
    for count in range(1, most + 1):
        blocks = [linearise(problem, k, part, at.blurs[k]) for k, part in enumerate(at.nominal)]
        moves = [smooth_linear(block.linear(noise)) for block in blocks]
        sizes = [_sizes(found, problem.system) for found in moves]
        change, usual = float(max(own.max() for own in sizes)), float(np.sqrt(np.mean(np.concatenate(sizes) ** 2)))
        if not np.isfinite(change):
            raise ValueError("smooth: the estimate is not finite: is the noise that was given far too small?")
        if count > LEAST_ITERATIONS:
            grows = usual > (1 - HALF * share) * before  # of a smooth problem 1 - share remains
            share = max(share / 2, LEAST_STEP) if grows else min(GROWS * share, 1.0)
        before, nominal, blurs = usual, [], at.blurs
        for part, found, run in zip(at.nominal, moves, problem.runs, strict=True):
            nominal.append(problem.system.remembered(problem.system.moved(part, share * found.mean), run))
        if count >= LEAST_ITERATIONS:
            blurs = [_blur(*parts) for parts in zip(blurs, sizes, moves, problem.runs, strict=True)]
        at = Iteration(nominal, blurs, count, change, float(np.mean(np.concatenate(sizes) > RESTLESS)))
        if change < STILL or (count >= LEAST_ITERATIONS and at.converged):
            break
    return at


def _blur(blur: Blur | None, size: np.ndarray, found: Estimates, run: Run) -> Blur | None:
    """Steps at stamps that did not settle, or did not before, and their neighbours."""
    restless = size > RESTLESS
    if not restless.any() and blur is None:
        return None
    width = 2 * round(NEIGHBOURS / float(np.median(np.diff(run.time)))) + 1 if len(size) > 2 else 1
    steps = maximum_filter1d(restless.astype(int), width) > 0
    deviation = np.sqrt(np.maximum(np.einsum("kii->ki", found.covariance), 0.0))
    return Blur(steps if blur is None else steps | blur.steps, deviation)


def _sizes(found: Estimates, system: RobotSystem) -> np.ndarray:
    """The largest change of a coordinate or velocity at each time, in standard deviations."""
    moving = slice(0, 2 * system.model.nv)
    deviation = np.sqrt(np.einsum("kii->ki", found.covariance)[:, moving])
    return np.max(np.abs(found.mean[:, moving]) / np.maximum(deviation, 1e-300), axis=1)


def linearise(problem: Problem, k: int, nominal: Nominal, blur: Blur | None = None) -> Block:
    """A run, linearised about a trajectory."""
    system, run, (q, qd, known) = problem.system, problem.runs[k], problem.starts[k]
    nv, size = system.model.nv, system.size
    defects, slopes = np.zeros((0, size - nv)), np.zeros((0, size - nv, size))
    if len(run.time) > 1:
        defects, slopes = system.steps(nominal, run)
        steps = np.flatnonzero(blur.steps[:-1]) if blur is not None else np.zeros(0, int)
        if blur is not None and len(steps):
            slopes = slopes.copy()
            slopes[steps] = system.secants(nominal, run, steps, blur.deviation)
    r, H = system.measurements(nominal, run)
    for what, array in (("simulation", slopes), ("measurement", H)):
        broken = ~np.isfinite(array).all(axis=(1, 2))
        if broken.any():
            at = run.time[int(np.argmax(broken))]
            raise ValueError(f"smooth: the {what} from the state at {at:.6g} s is not finite: is the step too long?")
    A = np.concatenate([slopes, np.zeros((len(slopes), nv, size))], axis=1)
    remembered = len(system.first_memory)
    jitter = np.concatenate([np.zeros(2 * nv), JITTER * (1 + np.abs(nominal.memory).max(axis=0))])
    mean = np.concatenate([system.apart(nominal.q[:1], q[None])[0], qd - nominal.qd[0], np.zeros(remembered)])
    deviation = np.concatenate([known, np.zeros(remembered)])
    valid = np.concatenate([run.valid[key] for key in sorted(run.valid)], axis=1)
    return Block(np.diff(run.time), A, defects, jitter, H, r, valid, nominal.effort, mean, deviation)


def blocks_for_noise(problem: Problem, k: int, nominal: Nominal) -> list[Block]:
    """What noise is estimated from: a run, or parts of a long one."""
    whole, rows = linearise(problem, k, nominal), len(nominal.q)
    most = max(MOST_ROWS * rows // problem.rows, 2)
    if rows <= most:
        return [whole]
    length = most // PARTS
    return [_cut(whole, a, a + length) for a in np.linspace(0, rows - length, PARTS).astype(int)]


def _cut(block: Block, a: int, b: int) -> Block:
    """Rows a to b of a block; before them nothing is known."""
    part = replace(
        block, spans=block.spans[a : b - 1], A=block.A[a : b - 1], c=block.c[a : b - 1], H=block.H[a:b], r=block.r[a:b],
        valid=block.valid[a:b], error=block.error[a:b],
    )  # fmt: skip
    return part if a == 0 else replace(part, mean=np.zeros_like(block.mean))
