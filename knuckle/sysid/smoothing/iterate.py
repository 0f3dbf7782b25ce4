"""Gauss-Newton on whole trajectories: linearise a robot about them, smooth, move, until nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.ndimage import minimum_filter1d, uniform_filter1d

from knuckle.sysid.smoothing.likelihood import Block, Noise
from knuckle.sysid.smoothing.linear import Estimates, smooth_linear
from knuckle.sysid.smoothing.problem import Problem
from knuckle.sysid.smoothing.system import Nominal, RobotSystem, Run

LEAST_ITERATIONS = 8
STILL = 1e-4  # change in standard deviations at which the trajectory has converged
RESTLESS, FEW = 0.1, 0.02  # change in standard deviations, and share of stamps at which dry friction may cause more
HALF = 0.5  # of the fall of the changes that a step promises
GROWS, LEAST_STEP = 1.5, 1 / 64  # of the share of a step that is taken
NEIGHBOURS = 0.05  # seconds to either side of a stamp that take steps as short
JITTER = 1e-8  # relative, that each step adds to what networks remember, against singular covariances
MOST_ROWS = 1500  # that noise is estimated from
PARTS = 5  # of a long recording, from which these are taken


class Iteration(NamedTuple):
    """Trajectories, how many steps led there, and what the last one changed, in standard deviations."""

    nominal: list[Nominal]
    count: int = 0
    change: float = np.inf  # the largest
    restless: float = 1.0  # share of stamps that moved by more than `RESTLESS`

    @property
    def converged(self) -> bool:
        return self.change < STILL or self.restless < FEW


def iterate(problem: Problem, nominal: list[Nominal], noise: Noise, most: int) -> Iteration:
    """Gauss-Newton on the trajectories of all runs.

    Friction that remembers where it reversed has kinks where a joint reverses. States there go to and fro with full
    steps. Each stamp therefore has its own share of a step, which halves where changes do not shrink and its
    neighbours share. States that still go to and fro are no reason to go on if all others have converged.
    """
    shares, before = [np.ones(len(n.q)) for n in nominal], [np.full(len(n.q), np.inf) for n in nominal]
    at = Iteration(nominal)
    for count in range(1, most + 1):
        moves = [smooth_linear(linearise(problem, k, part).linear(noise)) for k, part in enumerate(at.nominal)]
        sizes = [_sizes(found, problem.system) for found in moves]
        change = float(max(own.max() for own in sizes))
        if not np.isfinite(change):
            raise ValueError("smooth: the estimate is not finite: is the noise that was given far too small?")
        shares = [_share(*parts) for parts in zip(shares, sizes, before, problem.runs, strict=True)]
        before, nominal = sizes, []
        for part, found, run, share in zip(at.nominal, moves, problem.runs, shares, strict=True):
            nominal.append(problem.system.remembered(problem.system.moved(part, share[:, None] * found.mean), run))
        at = Iteration(nominal, count, change, float(np.mean(np.concatenate(sizes) > RESTLESS)))
        if change < STILL or (count >= LEAST_ITERATIONS and at.converged):
            break
    return at


def _share(share: np.ndarray, size: np.ndarray, before: np.ndarray, run: Run) -> np.ndarray:
    """The share of a step that each stamp takes, by its share, and by its change now and before."""
    stuck = (size > (1 - HALF * share) * before) & (size > RESTLESS)  # of a smooth problem 1 - share remains
    own = np.where(stuck, np.maximum(share / 2, LEAST_STEP), np.minimum(GROWS * share, 1.0))
    if len(own) < 3:
        return own
    width = 2 * round(NEIGHBOURS / float(np.median(np.diff(run.time)))) + 1
    return uniform_filter1d(minimum_filter1d(own, width), width)


def _sizes(found: Estimates, system: RobotSystem) -> np.ndarray:
    """The largest change of a coordinate or velocity at each time, in standard deviations."""
    moving = slice(0, 2 * system.model.nv)
    deviation = np.sqrt(np.einsum("kii->ki", found.covariance)[:, moving])
    return np.max(np.abs(found.mean[:, moving]) / np.maximum(deviation, 1e-300), axis=1)


def linearise(problem: Problem, k: int, nominal: Nominal) -> Block:
    """A run, linearised about a trajectory."""
    system, run, (q, qd, known) = problem.system, problem.runs[k], problem.starts[k]
    nv, size = system.model.nv, system.size
    defects, slopes = np.zeros((0, size - nv)), np.zeros((0, size - nv, size))
    if len(run.time) > 1:
        defects, slopes = system.steps(nominal, run)
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
