"""The order of straight-line code: results one by one, the cheapest to finish next, so that few values are live.

JAX's order is breadth first (all elements of an array, then the next array), which keeps whole arrays alive.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from knuckle.native.ir import Node, Program, Region, Store, operands

SHORTEST = 200  # statements; shorter runs stay as they are
TOGETHER = 1024  # results among which the next one is chosen; the time to choose grows with their number


def order_statements(program: Program) -> None:
    """Reorder each long run of values and stores between loops and branches."""
    runs = [_runs(region) for region in program.regions()]
    outside = _used_across_runs(itertools.chain.from_iterable(runs))
    for region, parts in zip(program.regions(), runs, strict=True):
        region.statements = list(itertools.chain.from_iterable(_ordered(run, outside) for run in parts))


def _runs(region: Region) -> list[list]:
    """The statements of a region: values and stores in runs as long as can be, anything else alone."""
    parts: list[list] = []
    for plain, group in itertools.groupby(region.statements, lambda s: isinstance(s, (Node, Store))):
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
    if len(run) < SHORTEST or not _free_to_move(run):
        return run
    members = {s for s in run if isinstance(s, Node)}
    roots = [s for s in run if isinstance(s, Store) or s in outside]
    return _by_cost(run, members, roots)


def _free_to_move(run: list) -> bool:
    """Whether loads and stores of the run cannot meet."""
    stored = [s for s in run if isinstance(s, Store)]
    loaded = {s.attr.buffer for s in run if isinstance(s, Node) and s.op == "load"}
    if any(s.buffer in loaded for s in stored):
        return False
    places = Counter((s.buffer, s.index) for s in stored)
    moving = Counter(s.buffer for s in stored if s.index.op != "const")
    several = Counter(s.buffer for s in stored)
    return max(places.values(), default=1) == 1 and not any(several[buffer] > 1 for buffer in moving)


def _by_cost(run: list, members: set[Node], roots: list) -> list:
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
        needed = sorted(_still_needed(group, members, done), key=place.__getitem__)
        ordered += _group_by_cost(needed, members, group, done, halves)
    return ordered


def _still_needed(roots: list, members: set[Node], done: set) -> set:
    """What the roots depend on, themselves included, as far as it is not done."""
    found = {root for root in roots if root not in done}
    work = list(found)
    while work:
        for n in operands(work.pop()):
            if n in members and n not in done and n not in found:
                found.add(n)
                work.append(n)
    return found


def _group_by_cost(needed: list, members: set[Node], roots: list, done: set, halves: dict[Node, list[Node]]) -> list:
    wanted_by: dict = {}
    for number, root in enumerate(roots):
        wanted_by[root] = wanted_by.get(root, 0) | (1 << number)
    for statement in reversed(needed):
        mask = wanted_by.get(statement, 0)
        for n in operands(statement):
            if n in members:
                wanted_by[n] = wanted_by.get(n, 0) | mask
    width = -(-len(roots) // 8)
    remaining = np.zeros(width * 8, dtype=np.int64)
    for statement in needed:
        remaining += _bits(wanted_by.get(statement, 0), width)
    remaining[len(roots) :] = np.iinfo(np.int64).max
    ordered: list = []
    for _ in roots:
        number = int(np.argmin(remaining))
        remaining[number] = np.iinfo(np.int64).max // 2
        for statement in _depth_first(roots[number], members, done, halves):
            ordered.append(statement)
            remaining -= _bits(wanted_by.get(statement, 0), width)
    return ordered


def _bits(mask: int, width: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(mask.to_bytes(width, "little"), np.uint8), bitorder="little")


def _depth_first(root, members: set[Node], done: set, halves: dict[Node, list[Node]]):
    """What `root` still needs, operands first, then `root`."""
    if root in done:
        return
    stack = [(root, iter(operands(root)))]
    done.add(root)
    while stack:
        statement, rest = stack[-1]
        for n in rest:
            if n in members and n not in done:
                done.add(n)
                stack.append((n, iter(n.args)))
                break
        else:
            stack.pop()
            yield statement
            for half in halves.get(statement, ()):
                if half not in done:
                    done.add(half)
                    yield half
