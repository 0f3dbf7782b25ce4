"""The order of straight-line code: results one by one, the cheapest to finish next, so that few values are live.

JAX's order is breadth first (all elements of an array, then the next array), which keeps whole arrays alive.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from knuckle.native.ir import Buffer, Node, Program, Region, Store, operands

SHORTEST = 200  # statements; shorter runs stay as they are
ENTANGLED = 50  # accesses to memory, per statement, that must keep their order; runs with more stay as they are
TOGETHER = 1024  # results among which the next one is chosen; the time to choose grows with their number

Before = dict[Any, list]  # for each statement of a run those that must precede it


def order_statements(program: Program) -> None:
    """Reorder each long run of values and stores between loops and branches."""
    runs = [_runs(region) for region in program.regions()]
    outside = _used_across_runs(itertools.chain.from_iterable(runs))
    for region, parts in zip(program.regions(), runs, strict=True):
        region.statements = list(itertools.chain.from_iterable(_ordered(run, outside) for run in parts))


def _runs(region: Region) -> list[list]:
    """The statements of a region: values and stores in runs as long as can be, anything else alone."""
    parts: list[list] = []
    for plain, group in itertools.groupby(region.statements, lambda s: type(s) is Node or type(s) is Store):
        run = list(group)
        parts += [run] if plain else [[statement] for statement in run]
    return parts


def _used_across_runs(runs: Iterable[list]) -> set[Node]:
    """Values that loops and branches read, or that are read in another run than their own."""
    used: set[Node] = set()
    for run in runs:
        own = {s for s in run if isinstance(s, Node)}
        used.update(n for s in run for n in operands(s) if n not in own)
    return used


def _ordered(run: list, outside: set[Node]) -> list:
    before = _what_comes_before(run) if len(run) >= SHORTEST else None
    if before is None:
        return run
    roots = [s for s in run if isinstance(s, Store) or s in outside]
    return _by_cost(run, before, roots)


def _what_comes_before(run: list) -> Before | None:
    """For each statement those of the run that it needs; None if accesses to memory are too entangled to say."""
    members = {s for s in run if isinstance(s, Node)}
    accesses: dict[Buffer, _Accesses] = defaultdict(_Accesses)
    before: Before = {}
    entangled = 0
    for statement in run:
        before[statement] = [n for n in operands(statement) if n in members]
        if isinstance(statement, Store):
            earlier = accesses[statement.buffer].add(statement, statement.index, writes=True)
        elif statement.op == "load":
            earlier = accesses[statement.attr.buffer].add(statement, statement.args[0], writes=False)
        else:
            continue
        before[statement] += earlier
        entangled += len(earlier)
        if entangled > ENTANGLED * len(run):
            return None
    return before


class _Accesses:
    """Loads and stores of one array, each by what its index is besides a known distance."""

    def __init__(self):
        self._writes: dict[Node | None, dict[int, list]] = defaultdict(lambda: defaultdict(list))
        self._reads: dict[Node | None, dict[int, list]] = defaultdict(lambda: defaultdict(list))

    def add(self, statement, index: Node, writes: bool) -> list:
        """Those before that may be of the same element, where one of the two writes."""
        base, distance = _base_and_distance(index)
        met = _meeting(self._writes, base, distance) + (_meeting(self._reads, base, distance) if writes else [])
        (self._writes if writes else self._reads)[base][distance].append(statement)
        return met


def _meeting(accesses: dict[Node | None, dict[int, list]], base: Node | None, distance: int) -> list:
    met: list = []
    for other, by_distance in accesses.items():
        if other is base:
            met += by_distance.get(distance, [])
        else:
            met += itertools.chain.from_iterable(by_distance.values())
    return met


def _base_and_distance(index: Node) -> tuple[Node | None, int]:
    """An index as something unknown plus a known distance."""
    if index.op == "const":
        return None, int(index.attr)
    if index.op == "add" and index.args[0].op == "const":
        return index.args[1], int(index.args[0].attr)
    return index, 0


def _by_cost(run: list, before: Before, roots: list) -> list:
    """Depth first from the root that needs the fewest values still to be computed, again and again."""
    place = {statement: number for number, statement in enumerate(run)}
    halves: dict[Node, list[Node]] = defaultdict(list)  # a pair stays together: it must not be cut apart
    for statement in run:
        if isinstance(statement, Node) and statement.op in ("first", "second"):
            halves[statement.args[0]].append(statement)
    done: set = set()
    ordered: list = []
    for start in range(0, len(roots), TOGETHER):
        group = roots[start : start + TOGETHER]
        needed = sorted(_still_needed(group, before, done), key=place.__getitem__)
        ordered += _group_by_cost(needed, before, group, done, halves)
    return ordered


def _still_needed(roots: list, before: Before, done: set) -> set:
    """What the roots depend on, themselves included, as far as it is not done."""
    found = {root for root in roots if root not in done}
    work = list(found)
    while work:
        for s in before[work.pop()]:
            if s not in done and s not in found:
                found.add(s)
                work.append(s)
    return found


def _group_by_cost(needed: list, before: Before, roots: list, done: set, halves: dict[Node, list[Node]]) -> list:
    wanted_by: dict = {}
    for number, root in enumerate(roots):
        wanted_by[root] = wanted_by.get(root, 0) | (1 << number)
    for statement in reversed(needed):
        mask = wanted_by.get(statement, 0)
        for s in before[statement]:
            wanted_by[s] = wanted_by.get(s, 0) | mask
    width = -(-len(roots) // 8)
    remaining = np.zeros(width * 8, dtype=np.int64)
    for statement in needed:
        remaining += _bits(wanted_by.get(statement, 0), width)
    remaining[len(roots) :] = np.iinfo(np.int64).max
    ordered: list = []
    for _ in roots:
        number = int(np.argmin(remaining))
        remaining[number] = np.iinfo(np.int64).max // 2
        for statement in _depth_first(roots[number], before, done, halves):
            ordered.append(statement)
            remaining -= _bits(wanted_by.get(statement, 0), width)
    return ordered


def _bits(mask: int, width: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(mask.to_bytes(width, "little"), np.uint8), bitorder="little")


def _depth_first(root, before: Before, done: set, halves: dict[Node, list[Node]]):
    """What `root` still needs, operands first, then `root`."""
    if root in done:
        return
    stack = [(root, iter(before[root]))]
    done.add(root)
    while stack:
        statement, rest = stack[-1]
        for s in rest:
            if s not in done:
                done.add(s)
                stack.append((s, iter(before[s])))
                break
        else:
            stack.pop()
            yield statement
            for half in halves.get(statement, ()):
                if half not in done:
                    done.add(half)
                    yield half
