"""Links that push each other at run time: M + J^T K J as blocks of 6 x 6 between links, eliminated link by link.

A link that touches others is left after its children; among those that can be left, the one with the fewest neighbours
is next (minimum degree: Tinney and Walker 1967). Its joint is solved for, which couples its neighbours and its parent.
Without contacts between links that is the articulated-body algorithm; of free bodies, a sparse block factorisation.
Islands of links that do not touch each other stay apart, and links that nothing touches have no part in it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from knuckle import spatial

SIZE = 6  # rows of a block: a spatial vector, or the degrees of freedom of a joint and some that are idle
Number = Int[Array, ""]
Blocks = Float[Array, "pair 6 6"]


class Plan(NamedTuple):
    """The order in which links are left, and those to which each is coupled then."""

    order: Int[Array, " link"]
    count: Number  # of links that are left at all
    neighbours: Int[Array, " pair"]  # those of the first link, then of the next
    degree: Int[Array, " link"]


class Joints(NamedTuple):
    """The joints of the links."""

    S: Float[Array, "link 6 6"]  # columns: their axes in their root's frame, zero where there are fewer than six
    inertia: Float[Array, "link 6 6"]  # of the link itself, in its root's frame
    armature: Float[Array, "link 6"]  # 1 where there is no axis
    parent: Int[Array, " link"] | None  # len(parent): the world; None: of all of them


class Solved(NamedTuple):
    """Velocities of links, with a row for the world, and of the axes of their joints."""

    link: Float[Array, "link+1 6"]
    joint: Float[Array, "link 6"]


class _Graph(NamedTuple):
    """Links that are coupled, each with a list of its neighbours; the world has a row too."""

    coupled: Bool[Array, " pair"]
    neighbours: Int[Array, " pair"]
    length: Int[Array, " link+1"]  # of the list, in which some may have been left since
    degree: Int[Array, " link+1"]  # neighbours that have not
    waits: Int[Array, " link+1"]  # children that are not left yet; links that are left or not wanted wait for ever
    order: Int[Array, " link"]


def _connected(graph: _Graph, i: Number, j: Number) -> _Graph:
    count = len(graph.order)
    new = (~_at(graph.coupled, place(i, j, count)) & (i != j) & (i < count) & (j < count)).astype(jnp.int32)
    coupled = _put(_put(graph.coupled, place(i, j, count), True), place(j, i, count), True)
    neighbours = _put(graph.neighbours, place(i, _at(graph.length, i), count), j)
    neighbours = _put(neighbours, place(j, _at(graph.length, j), count), i)
    length, degree = (_add(_add(x, i, new), j, new) for x in (graph.length, graph.degree))
    return graph._replace(coupled=coupled, neighbours=neighbours, length=length, degree=degree)


def plan(sides: Int[Array, "contact 2"], used: Number, parent: tuple[int, ...], *, all_links: bool = False) -> Plan:
    """For the first `used` contacts; side len(parent) is the world. `all_links`: even those that are not touched."""
    count = len(parent)
    moving = np.array([count if up < 0 else up for up in parent], np.int32)
    has_parents = bool(np.any(moving < count))

    def mark(k: Number, state):
        graph, touched = state
        a, b = _at(sides, k)
        return _connected(graph, a, b), _put(_put(touched, a, True), b, True)

    zero, pairs = jnp.zeros(count + 1, jnp.int32), (count + 1) ** 2
    graph = _Graph(jnp.zeros(pairs, bool), jnp.zeros(pairs, jnp.int32), zero, zero, zero, zero[:-1])
    graph, touched = jax.lax.fori_loop(0, used, mark, (graph, jnp.zeros(count + 1, bool)))
    wanted = jnp.ones(count, bool) if all_links else touched[:count]
    children = zero
    if has_parents:
        for link in reversed(range(count)):
            if moving[link] < count and not all_links:
                wanted = wanted.at[moving[link]].set(wanted[moving[link]] | wanted[link])
        children = zero.at[moving].add(wanted.astype(jnp.int32))
    for_ever = jnp.asarray(2 * count, jnp.int32)
    graph = graph._replace(waits=children + jnp.where(jnp.append(wanted, False), 0, for_ever))
    total = jnp.sum(wanted.astype(jnp.int32))

    def leave(k: Number, graph: _Graph) -> _Graph:
        i = jnp.argmin(graph.degree[:count] + count * graph.waits[:count]).astype(jnp.int32)
        up = _at(jnp.asarray(moving), i)

        def keep(a: Number, state):
            """Neighbours that have not been left stand first in the list."""
            neighbours, degree, found = state
            j = _at(neighbours, place(i, a, count))
            one = (_at(graph.waits, j) < for_ever).astype(jnp.int32)
            return _put(neighbours, place(i, found, count), j), _add(degree, j, -one), found + one

        def couple(a: Number, graph: _Graph) -> _Graph:
            j = _at(graph.neighbours, place(i, a, count))

            def one(b: Number, graph: _Graph) -> _Graph:
                return _connected(graph, j, _at(graph.neighbours, place(i, b, count)))

            graph = jax.lax.fori_loop(0, a, one, graph)
            return _connected(graph, j, up) if has_parents else graph

        first = graph.neighbours, graph.degree, jnp.zeros((), jnp.int32)
        neighbours, degree, found = jax.lax.fori_loop(0, _at(graph.length, i), keep, first)
        waits = _put(graph.waits, i, for_ever)
        graph = graph._replace(
            neighbours=neighbours,
            degree=degree,
            length=_put(graph.length, i, found),
            waits=_add(waits, up, jnp.asarray(-1, jnp.int32)) if has_parents else waits,
            order=_put(graph.order, k, i),
        )
        return jax.lax.fori_loop(0, found, couple, graph)

    graph = jax.lax.fori_loop(0, total, leave, graph)
    return Plan(graph.order, total, graph.neighbours, graph.length)


def empty_blocks(plan: Plan, joints: Joints) -> Blocks:
    """The links' own inertias, and zero where the plan has blocks; others are not set."""
    n = len(joints.S)
    blocks = jax.lax.empty(((n + 1) * (n + 1), SIZE, SIZE), joints.S.dtype)
    zero = jnp.zeros((SIZE, SIZE), joints.S.dtype)

    def clear(k: Number, blocks: Blocks) -> Blocks:
        i = _at(plan.order, k)

        def pair(a: Number, blocks: Blocks) -> Blocks:
            j = _at(plan.neighbours, place(i, a, n))
            return _put(_put(blocks, place(i, j, n), zero), place(j, i, n), zero)

        blocks = _put(blocks, place(i, i, n), _at(joints.inertia, i))
        return jax.lax.fori_loop(0, _at(plan.degree, i), pair, blocks)

    return jax.lax.fori_loop(0, plan.count, clear, blocks)


def place(i, j, links: int):
    """Where the block of two links is; the world stands after the last."""
    return i * (links + 1) + j


def _at(table: Array, number: Number) -> Array:
    """A row; native code loads it where it stands in the program, so that the table may be written afterwards."""
    return jnp.take(table, number, axis=0, mode="clip")


def _put(table: Array, number: Number, row) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(table, jnp.asarray(row, table.dtype)[None], number, axis=0)


def _add(table: Array, number: Number, row: Array) -> Array:
    return _put(table, number, _at(table, number) + row)


class _Factors(NamedTuple):
    """After some links are left; their blocks with neighbours hold the factors."""

    blocks: Blocks
    force: Float[Array, "link+1 6"]
    factor: Float[Array, "link 6 6"]
    right: Float[Array, "link 6"]


def eliminate(
    plan: Plan, joints: Joints, blocks: Blocks, force: Float[Array, "link+1 6"], joint_force: Float[Array, "link 6"]
) -> Solved:
    """The velocities that impulses on links and on axes of joints cause."""
    n = len(joints.S)
    compose, apply, transposed = spatial.compose, spatial.apply, spatial.apply_transpose

    def leave(k: Number, now: _Factors) -> _Factors:
        i = _at(plan.order, k)
        S, own, degree = _at(joints.S, i), _at(now.blocks, place(i, i, n)), _at(plan.degree, i)
        along = compose(own, S)
        factor = _factored(compose(S.T, along) + jnp.diag(_at(joints.armature, i)))
        right = _left(factor, (transposed(S, _at(now.force, i)) + _at(joint_force, i))[:, None])[:, 0]
        up = None if joints.parent is None else _at(joints.parent, i)
        L_own, Q_own = _right(along, factor), _left(factor, compose(S.T, own))

        def divide(a: Number, now: _Factors) -> _Factors:
            j = _at(plan.neighbours, place(i, a, n))
            to, fro = _at(now.blocks, place(j, i, n)), _at(now.blocks, place(i, j, n))
            L, Q = _right(compose(to, S), factor), _left(factor, compose(S.T, fro))
            blocks = _put(_put(now.blocks, place(j, i, n), L), place(i, j, n), Q)
            if up is not None:
                blocks = _add(blocks, place(j, up, n), to - compose(L, Q_own))
                blocks = _add(blocks, place(up, j, n), fro - compose(L_own, Q))
            return now._replace(blocks=blocks, force=_add(now.force, j, -apply(L, right)))

        def couple(a: Number, blocks: Blocks) -> Blocks:
            j = _at(plan.neighbours, place(i, a, n))
            L = _at(blocks, place(j, i, n))

            def one(b: Number, blocks: Blocks) -> Blocks:
                k = _at(plan.neighbours, place(i, b, n))
                return _add(blocks, place(j, k, n), -compose(L, _at(blocks, place(i, k, n))))

            return jax.lax.fori_loop(0, degree, one, blocks)

        now = jax.lax.fori_loop(0, degree, divide, now)
        now = now._replace(blocks=jax.lax.fori_loop(0, degree, couple, now.blocks))
        if up is not None:
            blocks = _put(_add(now.blocks, place(up, up, n), own - compose(L_own, Q_own)), place(i, i, n), Q_own)
            now = now._replace(blocks=blocks, force=_add(now.force, up, _at(now.force, i) - apply(L_own, right)))
        return now._replace(factor=_put(now.factor, i, factor), right=_put(now.right, i, right))

    def back(k: Number, moved: Solved) -> Solved:
        i = _at(plan.order, plan.count - 1 - k)

        def less(a: Number, x: Float[Array, " 6"]) -> Float[Array, " 6"]:
            j = _at(plan.neighbours, place(i, a, n))
            return x - apply(_at(last.blocks, place(i, j, n)), _at(moved.link, j))

        x = jax.lax.fori_loop(0, _at(plan.degree, i), less, _at(last.right, i))
        carried = jnp.zeros_like(x)
        if joints.parent is not None:
            carried = _at(moved.link, _at(joints.parent, i))
            x = x - apply(_at(last.blocks, place(i, i, n)), carried)
        x = _back(_at(last.factor, i), x)
        return Solved(_put(moved.link, i, carried + apply(_at(joints.S, i), x)), _put(moved.joint, i, x))

    dtype = force.dtype
    first = _Factors(blocks, force, jax.lax.empty((n, SIZE, SIZE), dtype), jax.lax.empty((n, SIZE), dtype))
    last = jax.lax.fori_loop(0, plan.count, leave, first)
    still = Solved(jnp.zeros((n + 1, SIZE), dtype), jnp.zeros((n, SIZE), dtype))
    return jax.lax.fori_loop(0, plan.count, back, still)


def _factored(G: Float[Array, "6 6"]) -> Float[Array, "6 6"]:
    """L below the diagonal, U above it, and 1/D on it, G = L D U but for the scale of U's rows.

    No rows change places, as in the articulated-body algorithm; what moves nothing stays.
    """
    for p in range(SIZE):
        pivot = G[p, p]
        scale = jnp.where(pivot != 0, 1 / jnp.where(pivot != 0, pivot, 1.0), 0.0)
        below, after = _mark(p + 1, SIZE, G.dtype), _mark(p + 1, SIZE, G.dtype)
        column = G[:, p] * below * scale
        G = G - spatial.outer(column, G[p] * after) + spatial.outer(column - G[:, p] * below, _mark(p, p + 1, G.dtype))
        G = G.at[p, p].set(scale)
    return G


def _mark(start: int, stop: int, dtype) -> Float[Array, "6"]:
    return jnp.asarray((np.arange(SIZE) >= start) & (np.arange(SIZE) < stop), dtype)


def _left(factor: Float[Array, "6 6"], B: Float[Array, "6 n"]) -> Float[Array, "6 n"]:
    """L^-1 B."""
    for p in range(SIZE):
        B = B - spatial.outer(factor[:, p] * _mark(p + 1, SIZE, B.dtype), B[p])
    return B


def _right(B: Float[Array, "n 6"], factor: Float[Array, "6 6"]) -> Float[Array, "n 6"]:
    """B U^-1."""
    for p in range(SIZE):
        scaled = B[:, p] * factor[p, p]
        B = B - spatial.outer(scaled, factor[p] * _mark(p + 1, SIZE, B.dtype))
        B = B.at[:, p].set(scaled)
    return B


def _back(factor: Float[Array, "6 6"], y: Float[Array, "6"]) -> Float[Array, "6"]:
    """U^-1 y."""
    for p in reversed(range(SIZE)):
        x = y[p] * factor[p, p]
        y = (y - factor[:, p] * _mark(0, p, y.dtype) * x).at[p].set(x)
    return y
