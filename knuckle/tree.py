"""Recursions over a tree, written once: outward (parents first) and inward (children first).

Nodes of the same depth are processed together, so a quadruped takes a handful of steps; long runs of equal levels
(chains) become a loop, and so do the nodes of a wide level (many bodies). Nothing else in the package decides how a
recursion is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDEST_UNROLL = 9  # nodes of a level; more are, in native code, one loop over SIMD lanes
LARGEST_SELECTION = 8192  # elements of a matrix of ones and zeros; more are slices that are added
MOST_SLICES = 8
LONGEST_UNROLL = 40  # levels; beyond, a run of equal levels is a scan
Rows = Any  # a pytree of arrays with one row per node


@dataclass(frozen=True)
class Tree:
    """A forest given by each node's parent (-1: none); parents stand before their children."""

    parent: tuple[int, ...]

    @cached_property
    def depth(self) -> np.ndarray:
        depth = np.zeros(len(self.parent), int)
        for node, parent in enumerate(self.parent):
            depth[node] = depth[parent] + 1 if parent >= 0 else 0
        return depth

    @cached_property
    def levels(self) -> tuple[np.ndarray, ...]:
        """Nodes of each depth."""
        return tuple(np.flatnonzero(self.depth == d) for d in range(self.depth.max(initial=-1) + 1))

    @cached_property
    def slots(self) -> tuple[np.ndarray, ...]:
        """For each level, where its nodes' parents stand in the level above; for the roots, their own number."""
        parents = np.array(self.parent, int)
        above = [np.searchsorted(up, parents[nodes]) for up, nodes in zip(self.levels, self.levels[1:], strict=False)]
        return (np.arange(len(self.roots)), *above)

    @cached_property
    def roots(self) -> np.ndarray:
        return np.flatnonzero(np.array(self.parent, int) < 0)

    @cached_property
    def root_of(self) -> np.ndarray:
        """For each node, the number of its root among the roots."""
        number = np.zeros(len(self.parent), int)
        number[self.roots] = np.arange(len(self.roots))
        for node, parent in enumerate(self.parent):
            number[node] = number[parent] if parent >= 0 else number[node]
        return number

    @cached_property
    def ancestors(self) -> np.ndarray:
        """Matrix: column j marks node j and its ancestors."""
        marks = np.eye(len(self.parent), dtype=bool)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                marks[:, node] |= marks[:, parent]
        return marks

    @cached_property
    def runs(self) -> tuple[range, ...]:
        """Depths in groups: a group's levels are equally wide and each node has exactly one child in the next."""
        groups: list[range] = []
        for d, slots in enumerate(self.slots):
            if groups and _is_identity(slots, len(self.levels[d - 1])):
                groups[-1] = range(groups[-1].start, d + 1)
            else:
                groups.append(range(d, d + 1))
        return tuple(piece for group in groups for piece in _short_or_long(group))

    @cached_property
    def order(self) -> np.ndarray:
        """Where each node stands in the levels laid end to end."""
        return np.argsort(np.concatenate([*self.levels, np.zeros(0, int)]), kind="stable")


def _is_identity(index: np.ndarray, size: int) -> bool:
    return len(index) == size and bool(np.all(index == np.arange(size)))


def _short_or_long(group: range) -> list[range]:
    if len(group) <= LONGEST_UNROLL:
        return [range(d, d + 1) for d in group]
    return [range(group.start, group.start + 1), range(group.start + 1, group.stop)]


def rows(x: Rows, index: np.ndarray) -> Rows:
    """The rows of every array that a constant index names; a view where that is possible."""
    return jax.tree.map(lambda a: _rows_of(a, index), x)


def _rows_of(a: jax.Array, index: np.ndarray) -> jax.Array:
    if _is_identity(index, a.shape[0]):
        return jnp.asarray(a)
    steps = np.unique(np.diff(index))
    if len(index) == 1 or (len(steps) == 1 and steps[0] > 0):
        return jax.lax.slice_in_dim(a, int(index[0]), int(index[-1]) + 1, int(steps[0]) if len(steps) else 1)
    # 32 bits and a new array: JAX keeps the type of a constant array by its identity, also when x64 is turned off later
    return jnp.take(a, index.astype(np.int32), axis=0, mode="clip")


def sum_rows(x: Rows, slot: np.ndarray, count: int) -> Rows:
    """Rows added up into `count` new rows; row i goes to slot[i]."""
    if _is_identity(slot, count):
        return x
    if count * len(slot) > LARGEST_SELECTION and np.bincount(slot).max() <= MOST_SLICES:
        return jax.tree.map(lambda a: _added_slices(a, slot, count), x)
    select = (slot[None, :] == np.arange(count)[:, None]).astype(float)
    return jax.tree.map(lambda a: _weighted_rows(select, a), x)


def _added_slices(a: jax.Array, slot: np.ndarray, count: int) -> jax.Array:
    """The first rows of all slots, plus their second ones, and so on."""
    order, sizes = np.argsort(slot, kind="stable"), np.bincount(slot, minlength=count)
    first, total = np.cumsum(sizes) - sizes, None
    padded = a if sizes.min() == sizes.max() else jnp.concatenate([a, jnp.zeros_like(a[:1])])
    for rank in range(sizes.max()):
        own = rank < sizes
        index = np.where(own, order[np.where(own, first + rank, 0)], len(slot))
        part = rows(padded, index)
        total = part if total is None else total + part
    assert total is not None
    return total


def add_rows(a: jax.Array, slot: np.ndarray, count: int) -> jax.Array:
    """`sum_rows` row by row, for arrays that native code keeps in memory, where products with zeros cost time."""
    totals: list[Any] = [None] * count
    for row, place in enumerate(slot):
        totals[place] = a[row] if totals[place] is None else totals[place] + a[row]
    return jnp.stack([jnp.zeros(a.shape[1:], a.dtype) if total is None else total for total in totals])


def _weighted_rows(select: np.ndarray, a: jax.Array) -> jax.Array:
    weights = jnp.asarray(select, a.dtype)
    return jax.lax.dot_general(weights, a, (((1,), (0,)), ((), ())), precision=jax.lax.Precision.HIGHEST)


def _stack_levels(tree: Tree, values: list[Rows]) -> Rows:
    joined = values[0] if len(values) == 1 else jax.tree.map(lambda *level: jnp.concatenate(level), *values)
    depth, width = len(tree.levels), len(tree.roots)
    chains = np.arange(depth * width).reshape(depth, width).T.reshape(-1)
    if len(tree.order) == len(chains) and np.all(tree.order == chains):  # of equal length, each after the other
        return jax.tree.map(
            lambda a: jnp.swapaxes(a.reshape(depth, width, *a.shape[1:]), 0, 1).reshape(a.shape), joined
        )
    return rows(joined, tree.order)


def _run_rows(tree: Tree, xs: Rows, run: range) -> Rows:
    """Rows of a run of levels, with a leading axis over the levels."""
    nodes = np.concatenate([tree.levels[d] for d in run])
    return jax.tree.map(lambda a: a.reshape(len(run), -1, *a.shape[1:]), rows(xs, nodes))


def _flat_rows(stacked: Rows) -> Rows:
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), stacked)


def _over_level(f: Callable[[Rows, Rows], Any], above: Rows, xs: Rows) -> Any:
    """f of the nodes of a level."""
    if len(jax.tree.leaves(xs)[0]) <= WIDEST_UNROLL:
        return f(above, xs)

    from knuckle.native import lanes  # slow to import

    def of_one(*node):
        return jax.tree.map(lambda x: x[0], f(*jax.tree.map(lambda x: x[None], node)))

    return lanes(of_one)(above, xs)


def outward(tree: Tree, f: Callable[[Rows, Rows], Rows], start: Rows, xs: Rows) -> Rows:
    """value_i = f(value_parent(i), x_i) for all nodes, parents first; `start` has one row per root."""
    above, values = start, []
    for run in tree.runs:
        if len(run) == 1:
            (d,) = run
            above = _over_level(f, rows(above, tree.slots[d]), rows(xs, tree.levels[d]))
            values.append(above)
        else:
            above, stacked = jax.lax.scan(lambda up, x: (f(up, x),) * 2, above, _run_rows(tree, xs, run))
            values.append(_flat_rows(stacked))
    return _stack_levels(tree, values)


def inward(tree: Tree, f: Callable[[Rows, Rows], tuple[Rows, Rows]], zero: Rows, xs: Rows) -> tuple[Rows, Rows]:
    """message_i, value_i = f(sum of the children's messages, x_i), children first; also the roots' messages."""
    total, values = _repeat(zero, len(tree.levels[-1])), []
    for run in reversed(tree.runs):
        if len(run) == 1:
            (d,) = run
            message, value = _over_level(f, total, rows(xs, tree.levels[d]))
        else:
            message, stacked = jax.lax.scan(f, total, _run_rows(tree, xs, run), reverse=True)
            value = _flat_rows(stacked)
        values.append(value)
        above = len(tree.levels[run.start - 1]) if run.start else len(tree.roots)
        total = sum_rows(message, tree.slots[run.start], above)
    return total, _stack_levels(tree, values[::-1])


def _repeat(zero: Rows, count: int) -> Rows:
    return jax.tree.map(lambda a: jnp.zeros((count, *a.shape), a.dtype), zero)


def outward_sum(tree: Tree, xs: Rows, start: Rows) -> Rows:
    """Each node's own value plus those of all its ancestors and its root's start."""
    return outward(tree, lambda above, x: jax.tree.map(jnp.add, above, x), start, xs)


def inward_sum(tree: Tree, xs: Rows) -> Rows:
    """Each node's own value plus those of all its descendants."""

    def add(total, x):
        total = jax.tree.map(jnp.add, total, x)
        return total, total

    zero = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), xs)
    return inward(tree, add, zero, xs)[1]
