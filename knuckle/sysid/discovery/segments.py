"""Roll-outs of segments and their Jacobian by free numbers and initial states; initial states are eliminated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from knuckle.native import jacfwd, jit
from knuckle.native.runtime import available_cores
from knuckle.sysid.entries import weights_of_entries
from knuckle.sysid.saved import described, digest
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Shots

CHUNK = 8  # segments of one call: one compiled program serves any number of them
SEEN = 1 / 3  # of a segment: from which its initial state is estimated when the rest is predicted
SETTLING = 8  # iterations


class Linear(NamedTuple):
    """Weighed residuals of segments and their slopes; initial states in units of how well they are known."""

    residual: np.ndarray  # (segment, row)
    by_free: np.ndarray  # (segment, row, free number)
    by_start: np.ndarray  # (segment, row, 2 nv)


class Normal(NamedTuple):
    """Half the sum of squares of each segment as a quadratic of the free numbers, initial states at their best."""

    matrix: np.ndarray  # (segment, free, free)
    slope: np.ndarray  # (segment, free), where the free numbers are now
    start: np.ndarray  # (segment, 2 nv), the best change of initial states
    start_by_free: np.ndarray  # (segment, 2 nv, free)
    value: np.ndarray  # (segment,), half the sum of squares with initial states at their best, by the linearisation


class Segments:
    """Compiled roll-outs of a simulator over segments of equal shape."""

    def __init__(self, simulator: Simulator):
        self.simulator = simulator
        self._residual = jax.jit(lambda z, start, shot: simulator.residuals(z, start, shot)[0])  # traced once
        self._native = jit(self._chunk)

    def _chunk(self, z, starts, shots: Shots):
        def of_one(args):
            start, shot = args

            def residual(z, start):
                return self._residual(z, start, shot)

            return residual(z, start), *jacfwd(residual, (0, 1))(z, start)

        return jax.lax.map(of_one, (starts, shots))

    def __call__(self, z: np.ndarray, starts: np.ndarray, shots: Shots) -> Linear:
        """starts: changes of initial states in units of `known`, (segment, 2 nv)."""
        known = np.asarray(shots.known)
        changes = starts * known

        def chunk(first: int):
            rows = np.minimum(np.arange(first, first + CHUNK), shots.count - 1)
            with jax.enable_x64(True):
                part = self._native(z, changes[rows], jax.tree.map(lambda a: np.asarray(a)[rows], shots))
                return [np.asarray(a)[: shots.count - first] for a in part]

        with ThreadPoolExecutor(available_cores()) as pool:
            parts = list(pool.map(chunk, range(0, shots.count, CHUNK)))
        residual, by_free, by_start = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Linear(residual, by_free, by_start * known[:, None, :])


COMPILED: dict[str, Segments] = {}
MOST_COMPILED = 8


def compiled(simulator: Simulator) -> Segments:
    """Roll-outs of a simulator; those of an equal one that was used lately have their programs already."""
    parts = (simulator.model, simulator.contact, simulator.integrator, simulator.blueprint)
    names = [(p.name, p.scale, digest(p.start)) for p in simulator.parameters]
    own = sorted((key, id(function)) for key, function in simulator.observe.items())
    key = repr((*map(described, parts), names, own, simulator.substeps))
    found = COMPILED.pop(key, None) or Segments(simulator)
    COMPILED[key] = found
    while len(COMPILED) > MOST_COMPILED:
        COMPILED.pop(next(iter(COMPILED)))
    return found


def normal(linear: Linear, starts: np.ndarray) -> Normal:
    """Normal equations of each segment with its initial state eliminated (Schur complement)."""
    turned = linear.by_start.swapaxes(1, 2)
    own = turned @ linear.by_start + np.eye(starts.shape[1])
    right = (turned @ linear.residual[..., None])[..., 0] + starts
    mixed = turned @ linear.by_free
    solved = np.linalg.solve(own, np.concatenate([right[..., None], mixed], axis=2))
    start, start_by_free = -solved[..., 0], -solved[..., 1:]
    free = linear.by_free.swapaxes(1, 2)
    matrix = free @ linear.by_free + mixed.swapaxes(1, 2) @ start_by_free
    slope = (free @ linear.residual[..., None])[..., 0] + (mixed.swapaxes(1, 2) @ start[..., None])[..., 0]
    value = 0.5 * np.sum(linear.residual**2, axis=1) + 0.5 * np.sum(starts**2, axis=1)
    value = value + 0.5 * np.sum(right * start, axis=1)
    return Normal(matrix, slope, start, start_by_free, value)


def values(linear: Linear, starts: np.ndarray) -> np.ndarray:
    """Half the sum of squares of each segment; infinite where a roll-out diverged."""
    found = 0.5 * np.sum(linear.residual**2, axis=1) + 0.5 * np.sum(starts**2, axis=1)
    return np.where(np.isfinite(found), found, np.inf)


class Point(NamedTuple):
    """Free numbers, initial states, and what roll-outs from there give."""

    free: np.ndarray
    starts: np.ndarray
    linear: Linear


def descend(
    segments: Segments, shots: Shots, point: Point, columns: np.ndarray, precision: np.ndarray, iterations: int
) -> Point:
    """Gauss-Newton over some of the free numbers and all initial states, damped where it does not descend.

    precision: 1 / standard deviation^2 of each free number before the data, around zero.
    """
    columns, damping = np.asarray(columns, int), 0.0

    def total(at: Point) -> float:
        return float(values(at.linear, at.starts).sum() + 0.5 * np.sum(precision[columns] * at.free[columns] ** 2))

    best = total(point)
    for _ in range(iterations):
        found = normal(point.linear, point.starts)
        moved = _step(found, point.free, columns, precision, damping)
        starts = point.starts + found.start + found.start_by_free @ (moved - point.free)
        tried = Point(moved, starts, segments(moved, starts, shots))
        value = total(tried)
        if not value < best:
            damping = max(10 * damping, 1e-3)
            if damping > 1e3:
                break
            continue
        small = best - value < 1e-4 + 1e-7 * best
        point, best, damping = tried, value, damping / 10 if damping > 1e-6 else 0.0
        if small:
            break
    return point


def _step(found: Normal, free: np.ndarray, columns: np.ndarray, precision: np.ndarray, damping: float) -> np.ndarray:
    moved = free.copy()
    if len(columns):
        A = found.matrix.sum(axis=0)[np.ix_(columns, columns)] + np.diag(precision[columns])
        b = found.slope.sum(axis=0)[columns] + precision[columns] * free[columns]
        moved[columns] -= np.linalg.solve(A + damping * np.diag(np.diag(A)), b)
    return moved


def begin(segments: Segments, shots: Shots, free: np.ndarray) -> Point:
    """Initial states as measured."""
    starts = np.zeros((shots.count, np.asarray(shots.known).shape[1]))
    return Point(free, starts, segments(free, starts, shots))


def settle(segments: Segments, shots: Shots, free: np.ndarray, iterations: int = SETTLING) -> Point:
    """Initial states at their best, each segment by itself, free numbers held."""
    point = begin(segments, shots, free)
    share = np.ones(shots.count)
    for _ in range(iterations):
        found, now = normal(point.linear, point.starts), values(point.linear, point.starts)
        starts = point.starts + share[:, None] * np.nan_to_num(found.start)
        tried = Point(free, starts, segments(free, starts, shots))
        better = values(tried.linear, starts) <= now
        share = np.where(better, np.minimum(2 * share, 1.0), share / 4)
        gain = now - np.where(better, values(tried.linear, starts), now)
        point = _choose(better, tried, point)
        stuck = share.max() < 1 / 16 or better.all()
        if stuck and np.max(gain, initial=0.0) < 1e-3:
            break
    return point


def _choose(which: np.ndarray, a: Point, b: Point) -> Point:
    """Of each segment one of two."""

    def pick(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(which.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return Point(a.free, pick(a.starts, b.starts), Linear(*map(pick, a.linear, b.linear)))


def prediction_errors(segments: Segments, shots: Shots, free: np.ndarray) -> np.ndarray:
    """Mean square error over the noise of each segment's last two thirds, predicted from its first third."""
    known = max(int(SEEN * shots.samples), 2)
    early, late = _weighed(shots, lambda at: at < known), _weighed(shots, lambda at: at >= known)
    starts = settle(segments, early, free).starts
    residual = segments(free, starts, late).residual
    model = segments.simulator.model
    counts = sum(_count(model, key, np.asarray(w)) for key, w in late.weight.items())
    with np.errstate(all="ignore"):
        found = np.sum(np.where(np.isfinite(residual), residual, np.inf) ** 2, axis=1) / counts
    return np.where(counts > 0, found, np.nan)


def _weighed(shots: Shots, chosen) -> Shots:
    kept = chosen(np.arange(shots.samples))
    weight = {key: np.asarray(w) * kept[None, :, None] for key, w in shots.weight.items()}
    return eqx.tree_at(lambda s: s.weight, shots, weight)


def _count(model, key: str, weight: np.ndarray) -> np.ndarray:
    """Measured entries of differences of each segment."""
    entries = jax.vmap(lambda w: weights_of_entries(model, key, w))(jnp.asarray(weight))
    return np.count_nonzero(np.asarray(entries), axis=(1, 2))


def apart(shots: Shots) -> Shots:
    """Segments that are not tied to each other: each is a piece of evidence of its own."""
    return eqx.tree_at(lambda s: s.joined, shots, np.zeros_like(np.asarray(shots.joined)))
