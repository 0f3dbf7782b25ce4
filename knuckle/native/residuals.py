"""What a loop over lanes needs from before it: kept in arrays, and read where it is used.

The linear map of a robot's step has thousands of such values. Left as they are, they would be held, spilled and passed
from function to function in every turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from knuckle.native.ir import (
    INDEX,
    Buffer,
    Contents,
    Loop,
    Node,
    Program,
    Region,
    Store,
    compounds,
    insert_after,
    replace_operands,
    sub_regions,
    walk,
)
from knuckle.native.llvm_split import is_input_element, outside_needs


def keep_residuals(program: Program) -> None:
    """Values from outside that loops over lanes use are stored when they are computed, and loaded in the loops."""
    for body in program.bodies():
        loops = list(outermost_lanes(body))
        needs = {loop: _needs(loop) for loop in loops}
        places = _places(program, (n for nodes in needs.values() for n in nodes))
        _store(places, program.root)
        for loop in loops:
            _load(loop, {n: places[n] for n in needs[loop]}, program.root)


def outermost_lanes(region: Region) -> Iterator[Loop]:
    """Loops over lanes that are in no other."""
    for statement in compounds(region):
        if isinstance(statement, Loop) and statement.kind == "lanes":
            yield statement
        else:
            for inner in sub_regions(statement):
                yield from outermost_lanes(inner)


def _needs(loop: Loop) -> list[Node]:
    return [n for n in dict.fromkeys(outside_needs(loop)) if not is_input_element(n)]


def _places(program: Program, nodes: Iterable[Node]) -> dict[Node, tuple[Buffer, int]]:
    """An array for each dtype, and a place in it for each value."""
    by_dtype: dict[str, list[Node]] = defaultdict(list)
    for node in dict.fromkeys(nodes):
        by_dtype[node.dtype].append(node)
    places: dict[Node, tuple[Buffer, int]] = {}
    for dtype, group in by_dtype.items():
        buffer = Buffer("workspace", dtype, len(group), kept=True)
        program.workspace.append(buffer)
        places.update({node: (buffer, k) for k, node in enumerate(group)})
    return places


def _store(places: dict[Node, tuple[Buffer, int]], root: Region) -> None:
    by_region: dict[Region, dict[Node, Store]] = defaultdict(dict)
    for node, (buffer, k) in places.items():
        by_region[node.region][node] = Store(Contents(buffer, node.region), _index(k, root), node)
    for region, stores in by_region.items():
        insert_after(region, stores)


def _load(loop: Loop, places: dict[Node, tuple[Buffer, int]], root: Region) -> None:
    contents = {buffer: Contents(buffer, loop.body) for buffer, _ in places.values()}
    loads = {
        node: Node("load", (_index(k, root),), contents[buffer], node.dtype, loop.body)
        for node, (buffer, k) in places.items()
    }
    for statement in walk(loop.body):
        replace_operands(statement, lambda n: loads.get(n, n))
    loop.body.statements = [*loads.values(), *loop.body.statements]


def _index(place: int, root: Region) -> Node:
    return Node("const", (), np.dtype(INDEX).type(place), INDEX, root)
