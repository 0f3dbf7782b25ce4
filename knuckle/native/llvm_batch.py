"""A batch whose elements run one after the other, each by the code for one.

Lanes of a batch wait for the slowest of them wherever elements take different ways, and arrays are as many times larger
as there are lanes. Where a loop that ends at run time is long, one after the other is faster.
"""

from __future__ import annotations

from typing import Any

from knuckle.native.ir import Buffer, Loop, Program, walk
from knuckle.native.passes import varying_parts

POINTER_BYTES = 8
LONGEST_LOOP = 5000  # operations of a loop that ends at run time, which lanes of a batch may share


def runs_one_by_one(program: Program, batched: set[Buffer]) -> bool:
    """Whether elements of a batch take ways of different lengths through long code."""
    varying, *_ = varying_parts(program.root, set(), set(batched), program.functions)
    loops = (s for s in program.statements() if isinstance(s, Loop) and s.test in varying)
    return any(sum(1 for _ in walk(loop.body)) > LONGEST_LOOP for loop in loops)


def one_by_one(symbol: str, program: Program, batched: set[Buffer], emitter: Any) -> str:
    """A function over a batch that calls the one for an element; places of its arrays lie behind its workspace."""
    tables = emitter.workspace_bytes
    buffers = [*program.inputs, *program.outputs]
    emitter.workspace_bytes += POINTER_BYTES * len(buffers)
    start, turn = [], []
    for number, buffer in enumerate(buffers):
        table, place = ("%inputs", number) if buffer.kind == "input" else ("%outputs", number - len(program.inputs))
        start += [
            f"  %from{number} = getelementptr ptr, ptr {table}, i64 {place}",
            f"  %base{number} = load ptr, ptr %from{number}",
            f"  %to{number} = getelementptr i8, ptr %workspace, i64 {tables + POINTER_BYTES * number}",
        ]
        stride = buffer.size * buffer.itemsize if buffer in batched else 0
        turn += [
            f"  %moved{number} = mul i64 %element, {stride}",
            f"  %at{number} = getelementptr i8, ptr %base{number}, i64 %moved{number}",
            f"  store ptr %at{number}, ptr %to{number}",
        ]
    own = tables + POINTER_BYTES * len(program.inputs)
    return "\n".join(
        [
            f"define void @{symbol}(ptr %inputs, ptr %outputs, ptr %workspace, i64 %start, i64 %stop) nounwind {{",
            "entry:",
            *start,
            f"  %own_inputs = getelementptr i8, ptr %workspace, i64 {tables}",
            f"  %own_outputs = getelementptr i8, ptr %workspace, i64 {own}",
            "  %some = icmp slt i64 %start, %stop",
            "  br i1 %some, label %loop, label %end",
            "loop:",
            "  %element = phi i64 [%start, %entry], [%following, %loop]",
            *turn,
            f"  call void @{emitter.symbol}(ptr %own_inputs, ptr %own_outputs, ptr %workspace)",
            "  %following = add i64 %element, 1",
            "  %more = icmp slt i64 %following, %stop",
            "  br i1 %more, label %loop, label %end",
            "end:",
            "  ret void",
            "}",
        ]
    )
