"""Passes over a program: dead code, shared reciprocals, sine with cosine, fused multiply-add, workspace layout."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from knuckle.native.ir import (
    Branch,
    Buffer,
    Call,
    Function,
    Loop,
    Node,
    Program,
    Region,
    Store,
    compounds,
    insert_after,
    is_float,
    operands,
    replace_operands,
    sub_regions,
    walk,
)
from knuckle.native.residuals import keep_residuals
from knuckle.native.schedule import order_statements

ALIGNMENT = 64  # bytes


def count_operations(program: Program) -> Counter:
    """How many operations of each kind the program holds (each loop body once)."""
    names = Counter()
    for statement in program.statements():
        names[statement.op if isinstance(statement, Node) else type(statement).__name__.lower()] += 1
    return names


def run_passes(program: Program) -> dict[str, int]:
    """All passes in order; the number of operations after each."""
    after = {"lowered": _size(program)}
    for name, one_pass in PASSES.items():
        one_pass(program)
        after[name] = _size(program)
    return after


def _size(program: Program) -> int:
    return sum(len(region.statements) for region in program.regions())


def remove_dead_code(program: Program) -> None:
    """Keep what the outputs depend on: stores to outputs, what they read, and the loops around them."""
    owner: dict[Region, Loop | Branch] = {}
    defined_by: dict[Node, tuple[Loop | Branch, int]] = {}
    stores: dict[Buffer, list[tuple[Store, Region]]] = defaultdict(list)
    calls: dict[Region, list[tuple[Call, Region]]] = defaultdict(list)
    for body in program.bodies():
        _collect(body, owner, defined_by, stores, calls)
    live: set = set()
    work: list = []

    def need(item) -> None:
        if item not in live:
            live.add(item)
            work.append(item)

    def need_buffer(buffer: Buffer) -> None:
        for store, region in stores[buffer] if buffer not in live else ():
            live.add(store)
            need(store.index)
            need(store.value)
            need_region(region)
        live.add(buffer)

    def need_region(region: Region | None) -> None:
        while region is not None and region in owner:
            statement = owner[region]
            if statement not in live:
                live.add(statement)
                for value in _control(statement):
                    need(value)
            region = region.parent
        for call, place in calls.get(region, ()) if region is not None else ():
            if call not in live:
                live.add(call)
                need_region(place)

    for buffer in program.outputs:
        need_buffer(buffer)
    while work:
        node = work.pop()
        for argument in node.args:
            need(argument)
        need_region(node.region)
        if node.op == "load":
            need_buffer(node.attr.buffer)
        elif node in defined_by:
            statement, position = defined_by[node]
            need_region(next(iter(sub_regions(statement))))
            for value in _sources(statement, position):
                need(value)
    for body in program.bodies():
        _sweep(body, live)
    program.functions = [f for f in program.functions if any(call in live for call, _ in calls[f.body])]
    program.workspace = [b for b in program.workspace if stores[b] and b in live]


def _collect(region: Region, owner, defined_by, stores, calls) -> None:
    for statement in region.statements:
        if isinstance(statement, Store):
            stores[statement.buffer].append((statement, region))
        elif isinstance(statement, Call):
            calls[statement.function.body].append((statement, region))
        elif isinstance(statement, (Loop, Branch)):
            for position, node in enumerate(statement.results):
                defined_by[node] = (statement, position)
            if isinstance(statement, Loop):
                for position, node in enumerate(statement.phis):
                    defined_by[node] = (statement, position)
            for inner in sub_regions(statement):
                owner[inner] = statement
                _collect(inner, owner, defined_by, stores, calls)


def _control(statement: Loop | Branch) -> list[Node]:
    if isinstance(statement, Branch):
        return [statement.selector]
    return [n for n in (statement.count, statement.test) if n is not None]


def _sources(statement: Loop | Branch, position: int) -> list[Node]:
    if isinstance(statement, Loop):
        return [
            statement.inits[position],
            statement.nexts[position],
            statement.phis[position],
            statement.results[position],
        ]
    return [row[position] for row in statement.yields]


def _sweep(region: Region, live: set) -> None:
    region.statements = [s for s in region.statements if s in live]
    for statement in compounds(region):
        if isinstance(statement, Loop):
            keep = [n in live for n in statement.phis]
            for name in ("phis", "inits", "nexts", "results"):
                setattr(statement, name, [n for n, k in zip(getattr(statement, name), keep, strict=True) if k])
        else:
            keep = [n in live for n in statement.results]
            statement.yields = [[n for n, k in zip(row, keep, strict=True) if k] for row in statement.yields]
            statement.results = [n for n in statement.results if n in live]
        for inner in sub_regions(statement):
            _sweep(inner, live)


def share_reciprocals(program: Program) -> None:
    """Several divisions by one value, or one inside a loop the value comes from outside of, become products.

    a * (1 / b) is within 1.5 units in the last place where a / b is within 0.5.
    """
    groups: dict[Node, list[Node]] = defaultdict(list)
    for statement in program.statements():
        if isinstance(statement, Node) and statement.op == "div" and is_float(statement.dtype):
            groups[statement.args[1]].append(statement)
    reciprocals: dict[Node, Node] = {}
    for denominator, divisions in groups.items():
        if denominator.op == "const":
            continue
        if len(divisions) < 2 and not _crosses_loop(denominator.region, divisions[0].region):
            continue
        one = Node("const", (), np.dtype(denominator.dtype).type(1), denominator.dtype, program.root)
        reciprocal = Node("div", (one, denominator), None, denominator.dtype, denominator.region)
        reciprocals[denominator] = reciprocal
        for division in divisions:
            numerator = division.args[0]
            division.op, division.args = "mul", (numerator, reciprocal)
            if numerator.op == "const" and numerator.attr == 1:
                division.op, division.args = "same", (reciprocal,)
    by_region: dict[Region, dict[Node, Node]] = defaultdict(dict)
    for denominator, reciprocal in reciprocals.items():
        by_region[denominator.region][denominator] = reciprocal
    for region, new in by_region.items():
        insert_after(region, new)


def _crosses_loop(outer: Region, inner: Region | None) -> bool:
    while inner is not None and inner is not outer:
        if inner.kind == "loop":
            return True
        inner = inner.parent
    return False


def remove_copies(program: Program) -> None:
    """Replace every use of a `same` node by what it stands for."""

    def source(node: Node) -> Node:
        while node.op == "same":
            node = node.args[0]
        return node

    for statement in program.statements():
        replace_operands(statement, source)


def pair_sine_cosine(program: Program) -> None:
    """sin x and cos x of one region become the two halves of one sincos."""
    for region in program.regions():
        halves: dict[Node, dict[str, Node]] = defaultdict(dict)
        for statement in region.statements:
            if isinstance(statement, Node) and statement.op in ("sin", "cos"):
                halves[statement.args[0]][statement.op] = statement
        pairs = {a: h for a, h in halves.items() if len(h) == 2}
        if not pairs:
            continue
        rewritten = []
        for statement in region.statements:
            angle = statement.args[0] if isinstance(statement, Node) and statement.op in ("sin", "cos") else None
            if isinstance(statement, Node) and statement.op in ("first", "second"):
                continue
            if angle is None or angle not in pairs:
                rewritten.append(statement)
                continue
            both = Node("sincos", (angle,), None, angle.dtype, region)
            sine, cosine = pairs[angle]["sin"], pairs[angle]["cos"]
            sine.op, sine.args, cosine.op, cosine.args = "first", (both,), "second", (both,)
            rewritten += [both, sine, cosine]
        region.statements = rewritten


def fuse_multiply_add(program: Program) -> None:
    """a * b + c in one rounding, where the product is needed for nothing else; attr = (negate product, negate c)."""
    uses: dict[Node, list] = defaultdict(list)
    for statement in program.statements():
        for operand in operands(statement):
            uses[operand].append(statement)

    def fusable(product: Node, region: Region) -> bool:
        users = uses[product]
        return product.op == "mul" and product.region is region and len(users) == 1

    for region in program.regions():
        for node in region.statements:
            if not isinstance(node, Node) or node.op not in ("add", "sub") or not is_float(node.dtype):
                continue
            a, c = node.args
            negative = node.op == "sub"
            if fusable(a, region) and a is not c:
                node.op, node.args, node.attr = "fma", (*a.args, c), (False, negative)
            elif fusable(c, region) and a is not c:
                node.op, node.args, node.attr = "fma", (*c.args, a), (negative, False)


def lay_out_workspace(program: Program, lanes: int = 1, varying: set[Buffer] | None = None) -> int:
    """Give each workspace buffer its place, reusing what is no longer needed; the number of bytes in all."""
    varying = varying or set()
    spans = _live_spans(program)
    taken: list[Buffer] = []
    total = 0
    for buffer in sorted((b for b in program.workspace if b in spans), key=lambda b: spans[b][0]):
        start = spans[buffer][0]
        taken = [b for b in taken if spans[b][1] >= start]
        total = max(total, _place(buffer, taken, lanes, varying))
        taken.append(buffer)
    return total


def buffer_bytes(buffer: Buffer, lanes: int, varying: set[Buffer]) -> int:
    size = buffer.size * buffer.itemsize * (lanes if buffer in varying else 1)
    return -(-size // ALIGNMENT) * ALIGNMENT


def _place(buffer: Buffer, taken: list[Buffer], lanes: int, varying: set[Buffer]) -> int:
    size, at = buffer_bytes(buffer, lanes, varying), 0
    for other in sorted(taken, key=lambda b: b.offset):
        if at + size <= other.offset:
            break
        at = max(at, other.offset + buffer_bytes(other, lanes, varying))
    buffer.offset = at
    return at + size


def _live_spans(program: Program) -> dict[Buffer, tuple[int, int]]:
    """First and last position at which each workspace buffer is touched; a loop counts as a whole."""
    spans: dict[Buffer, tuple[int, int]] = {}
    used_by_call = {}
    for function in program.functions:
        used_by_call[function] = _buffers_of(function.body, used_by_call)
    clock = 0

    def touch(buffer: Buffer, low: int, high: int) -> None:
        if buffer.kind == "workspace":
            old = spans.get(buffer, (low, high))
            spans[buffer] = (min(old[0], low), max(old[1], high))

    def visit(region: Region) -> set[Buffer]:
        nonlocal clock
        touched: set[Buffer] = set()
        for statement in region.statements:
            start = clock
            clock += 1
            inside: set[Buffer] = set()
            if isinstance(statement, Store):
                inside.add(statement.buffer)
            elif isinstance(statement, Node) and statement.op == "load":
                inside.add(statement.attr.buffer)
            elif isinstance(statement, Call):
                inside = used_by_call[statement.function]
            for inner in sub_regions(statement):
                inside |= visit(inner)
            for buffer in inside:
                touch(buffer, start, clock)
            touched |= inside
        return touched

    visit(program.root)
    return spans


def _buffers_of(region: Region, used_by_call: dict[Function, set[Buffer]]) -> set[Buffer]:
    """The buffers that a function reads or writes, itself or in functions it calls."""
    used: set[Buffer] = set()
    for statement in walk(region):
        if isinstance(statement, Store):
            used.add(statement.buffer)
        elif isinstance(statement, Node) and statement.op == "load":
            used.add(statement.attr.buffer)
        elif isinstance(statement, Call):
            used |= used_by_call[statement.function]
    return used


def varying_parts(
    root: Region, nodes: set[Node], buffers: set[Buffer], functions: Sequence[Function] = ()
) -> tuple[set[Node], set[Buffer], set[Function]]:
    """Which values and buffers differ between the elements of a batch, by iteration to a fixed point.

    Also which functions are called where elements take different ways.
    """
    masked: set[Function] = set()

    def visit(region: Region, divergent: bool) -> bool:
        changed = False

        def mark(group: set, item) -> None:
            nonlocal changed
            if item not in group:
                group.add(item)
                changed = True

        for s in region.statements:
            if isinstance(s, Node):
                source = s.op == "load" and s.attr.buffer in buffers
                if s not in nodes and (source or any(a in nodes for a in s.args)):
                    mark(nodes, s)
            elif isinstance(s, Store):
                if divergent or s.value in nodes or s.index in nodes:
                    mark(buffers, s.buffer)
            elif isinstance(s, Loop):
                apart = divergent or (s.test is not None and s.test in nodes)
                for phi, init, after, out in zip(s.phis, s.inits, s.nexts, s.results, strict=True):
                    if apart or init in nodes or after in nodes or phi in nodes:
                        mark(nodes, phi)
                        mark(nodes, out)
                for inner in sub_regions(s):
                    changed |= visit(inner, apart)
            elif isinstance(s, Call):
                if divergent:
                    mark(masked, s.function)
            else:
                apart = divergent or s.selector in nodes
                for inner in s.regions:
                    changed |= visit(inner, apart)
                for position, out in enumerate(s.results):
                    if apart or any(row[position] in nodes for row in s.yields):
                        mark(nodes, out)
        return changed

    changed = True
    while changed:
        changed = visit(root, False)
        for function in functions:
            changed |= visit(function.body, function in masked)
    return nodes, buffers, masked


PASSES = {
    "dead code": remove_dead_code,
    "reciprocals": share_reciprocals,
    "copies": remove_copies,
    "sine with cosine": pair_sine_cosine,
    "fused multiply-add": fuse_multiply_add,
    "dead code again": remove_dead_code,
    "residuals": keep_residuals,
    "order": order_statements,
}
