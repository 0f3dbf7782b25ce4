"""Loops of independent turns in scalar code, written over vectors of consecutive turns.

A `kernel` is written for several widths and once more for the remainder. A loop over `lanes` is long and written once,
as in a batch: arrays that live in its body only have a place for each lane, next to each other, and the last group of
turns overlaps the one before where their number is no multiple of the lanes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from knuckle.native.ir import Branch, Buffer, Call, Loop, Node, Program, Region, Store, walk
from knuckle.native.passes import varying_parts
from knuckle.native.residuals import outermost_lanes

KERNEL_LANES = (8, 4)  # a kernel runs over as many turns at once as it can, then over fewer


def is_vectorisable(kernel: Loop) -> bool:
    assert kernel.count is not None
    return (kernel.count.op != "const" or _count(kernel) >= KERNEL_LANES[-1]) and not any(
        isinstance(s, (Branch, Call)) or (isinstance(s, Loop) and s.kind == "while") for s in walk(kernel.body)
    )


def emit_kernel(emitter: Any, loop: Loop) -> None:
    """Turns of a kernel in groups of consecutive ones, then the rest one by one."""
    before = emitter.varying
    emitter.varying, *_ = varying_parts(loop.body, {_counter(loop)}, set())
    assert loop.count is not None
    if loop.count.op != "const":
        _emit_counted_kernel(emitter, loop, loop.count, before)
        return
    count, done = _count(loop), 0
    for lanes in KERNEL_LANES:
        grouped = (count - done) // lanes * lanes
        if grouped:
            emitter.lanes, emitter.in_kernel = lanes, True
            emitter.emit_for(loop, done, done + grouped, lanes)
            done += grouped
    emitter.lanes, emitter.varying, emitter.in_kernel = 1, before, False
    if done < count:
        emitter.emit_for(loop, done, count, 1)


def _emit_counted_kernel(emitter: Any, loop: Loop, count: Node, before: set[Node]) -> None:
    lanes, stop = KERNEL_LANES[0], emitter.scalar(count)
    whole = is_multiple(count, lanes)
    grouped = stop if whole else emitter.out.let(f"and i64 {stop}, {-lanes}")
    emitter.lanes, emitter.in_kernel = lanes, True
    emitter.emit_counted(loop, "0", grouped, lanes)
    emitter.lanes, emitter.varying, emitter.in_kernel = 1, before, False
    if not whole:
        emitter.emit_counted(loop, grouped, stop, 1)


def is_multiple(node: Node, of: int) -> bool:
    """Whether an index is a multiple of a number by the way it is made."""
    if node.op == "const":
        return int(node.attr) % of == 0
    if node.op == "mul":
        return any(is_multiple(a, of) for a in node.args)
    return node.op in ("add", "sub") and all(is_multiple(a, of) for a in node.args)


@dataclass(frozen=True)
class Lanes:
    """How a loop is spread over lanes: their number, the values that differ between them, and the arrays."""

    number: int
    varying: set[Node]
    buffers: set[Buffer]


def lanes_of(program: Program, widest: int) -> dict[Loop, Lanes]:
    """For each loop over lanes that is in no other."""
    loops = [loop for body in program.bodies() for loop in outermost_lanes(body)]
    accesses = _count_accesses(program.bodies())
    found: dict[Loop, Lanes] = {}
    for loop in loops:
        varying, stored, _ = varying_parts(loop.body, {_counter(loop)}, set())
        inside = _count_accesses([loop.body])
        private = {b for b in stored if b.kind == "workspace" and 0 < inside[b] == accesses[b]}
        found[loop] = Lanes(_width(_count(loop), widest), varying, private)
    return found


def emit_lanes(emitter: Any, loop: Loop, lanes: Lanes) -> None:
    before = emitter.lanes, emitter.varying, emitter.varying_buffers
    emitter.lanes, emitter.varying, emitter.varying_buffers = lanes.number, lanes.varying, lanes.buffers
    count = _count(loop)
    whole = -(-count // lanes.number) * lanes.number
    emitter.emit_for(loop, 0, whole, lanes.number, last=count - lanes.number)
    emitter.lanes, emitter.varying, emitter.varying_buffers = before


def _counter(loop: Loop) -> Node:
    assert loop.counter is not None
    return loop.counter


def _count(loop: Loop) -> int:
    assert loop.count is not None
    return int(loop.count.attr)


def _width(count: int, widest: int) -> int:
    while widest > count:
        widest //= 2
    return widest


def _count_accesses(regions: list[Region]) -> Counter[Buffer]:
    """How often statements of the regions store to or load from each buffer."""
    counts: Counter[Buffer] = Counter()
    for statement in (s for region in regions for s in walk(region)):
        if isinstance(statement, Store):
            counts[statement.buffer] += 1
        elif isinstance(statement, Node) and statement.op == "load":
            counts[statement.attr.buffer] += 1
    return counts
