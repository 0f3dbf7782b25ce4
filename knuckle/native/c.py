"""C99 source of a program: no allocation, no global state, memory for intermediate arrays from the caller."""

from __future__ import annotations

import math
from dataclasses import dataclass

from knuckle.native.c_ops import COperations, c_type, constant_text
from knuckle.native.ir import Branch, Buffer, Call, Loop, Node, Program, Region, Store
from knuckle.native.llvm_split import Piece, Weights, cut, defined_by
from knuckle.native.passes import lay_out_workspace

SLOT_BYTES = 8
REGION_LIMIT = 5000  # operations; longer regions are cut: C compilers take longer than LLVM alone


@dataclass(frozen=True)
class Argument:
    """An input or output of the C function."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    comment: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class CWriter:
    """Writes one program as C functions."""

    def __init__(self, program: Program, name: str, inputs: list[Argument], outputs: list[Argument]):
        self.program, self.name, self.inputs, self.outputs = program, name, inputs, outputs
        self.operations = COperations()
        self.lines: list[str] = []
        self.functions: list[str] = []
        self.weights = Weights()
        self.depth = 1
        self.names: dict[Node, str] = {}
        self.slot_top = self.slot_most = lay_out_workspace(program)
        self.used_buffers: set[Buffer] = set()

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def text(self, node: Node) -> str:
        return constant_text(node.attr, node.dtype) if node.op == "const" else self.names[node]

    def buffer_name(self, buffer: Buffer) -> str:
        if buffer.kind == "constant":
            return f"table{buffer.number}"
        return (self.inputs if buffer.kind == "input" else self.outputs)[buffer.number].name

    def read(self, buffer: Buffer, index: str) -> str:
        self.used_buffers.add(buffer)
        if buffer.kind != "workspace":
            text = f"{self.buffer_name(buffer)}[{index}]"
            return f"{text} != 0" if buffer.dtype == "b1" else text
        return self.read_bytes(buffer.dtype, f"{buffer.offset} + {buffer.itemsize} * ({index})")

    def write(self, buffer: Buffer, index: str, value: str) -> None:
        self.used_buffers.add(buffer)
        if buffer.kind != "workspace":
            self.line(f"{self.buffer_name(buffer)}[{index}] = {value};")
        else:
            self.write_bytes(buffer.dtype, f"{buffer.offset} + {buffer.itemsize} * ({index})", value)

    def read_bytes(self, code: str, place: str) -> str:
        kind = c_type(code)
        self.operations.helpers[f"get_{code}"] = (
            f"static {kind} get_{code}(const unsigned char *from)\n{{\n    {kind} x;\n    memcpy(&x, from, sizeof x);\n"
            "    return x;\n}"
        )
        return f"get_{code}(workspace + {place})"

    def write_bytes(self, code: str, place: str, value: str) -> None:
        kind = c_type(code)
        self.operations.helpers[f"put_{code}"] = (
            f"static void put_{code}(unsigned char *to, {kind} x)\n{{\n    memcpy(to, &x, sizeof x);\n}}"
        )
        self.line(f"put_{code}(workspace + {place}, {value});")

    def define(self, node: Node, expression: str) -> None:
        self.names[node] = f"v{node.number}"
        self.line(f"const {c_type(node.dtype)} v{node.number} = {expression};")

    # statements

    def region(self, region: Region, escapes: list[Node]) -> None:
        if self.weights.region(region) > REGION_LIMIT and len(region.statements) > 1:
            self.pieces(region, escapes)
            return
        for statement in region.statements:
            self.statement(statement)

    def statement(self, statement) -> None:
        if isinstance(statement, Node):
            self.node(statement)
        elif isinstance(statement, Store):
            self.write(statement.buffer, self.text(statement.index), self.text(statement.value))
        elif isinstance(statement, Branch):
            self.branch(statement)
        elif isinstance(statement, Call):
            self.line(f"function{statement.function.number}({self.arguments()});")
        else:
            self.loop(statement)

    def node(self, node: Node) -> None:
        if node.op == "load":
            self.define(node, self.read(node.attr.buffer, self.text(node.args[0])))
        elif node.op == "sincos":
            self.names[node] = self.text(node.args[0])
        else:
            self.define(node, self.operations.expression(node, [self.text(a) for a in node.args]))

    def loop(self, loop: Loop) -> None:
        for phi, init in zip(loop.phis, loop.inits, strict=True):
            self.names[phi] = f"p{phi.number}"
            self.line(f"{c_type(phi.dtype)} p{phi.number} = {self.text(init)};")
        if loop.kind == "while":
            assert loop.cond is not None and loop.test is not None
            self.line("for (;;) {")
            self.depth += 1
            self.region(loop.cond, [loop.test, *loop.nexts])
            self.line(f"if (!({self.text(loop.test)}))")
            self.line("    break;")
        else:
            assert loop.count is not None and loop.counter is not None
            name = self.names[loop.counter] = f"i{loop.counter.number}"
            self.line(f"for (int64_t {name} = 0; {name} < {self.text(loop.count)}; {name}++) {{")
            self.depth += 1
        self.region(loop.body, loop.nexts)
        self.advance(loop)
        self.depth -= 1
        self.line("}")
        for result, phi in zip(loop.results, loop.phis, strict=True):
            self.names[result] = self.names[phi]

    def advance(self, loop: Loop) -> None:
        """All variables take their next values at once."""
        held: dict[Node, str] = {}
        for phi, after in zip(loop.phis, loop.nexts, strict=True):
            if after in loop.phis and after is not phi:
                held[phi] = f"h{phi.number}"
                self.line(f"const {c_type(phi.dtype)} h{phi.number} = {self.text(after)};")
        for phi, after in zip(loop.phis, loop.nexts, strict=True):
            if after is not phi:
                self.line(f"{self.names[phi]} = {held.get(phi) or self.text(after)};")

    def branch(self, branch: Branch) -> None:
        for result in branch.results:
            self.names[result] = f"r{result.number}"
            self.line(f"{c_type(result.dtype)} r{result.number};")
        self.line(f"switch ({self.text(branch.selector)}) {{")
        for number, (region, row) in enumerate(zip(branch.regions, branch.yields, strict=True)):
            self.line("default: {" if number == len(branch.regions) - 1 else f"case {number}: {{")
            self.depth += 1
            self.region(region, row)
            for result, node in zip(branch.results, row, strict=True):
                self.line(f"{self.names[result]} = {self.text(node)};")
            self.line("break;")
            self.depth -= 1
            self.line("}")
        self.line("}")

    # functions

    def parameters(self) -> str:
        return ", ".join(
            [f"const {_memory_type(a)} *{a.name}" for a in self.inputs]
            + [f"{_memory_type(a)} *{a.name}" for a in self.outputs]
            + ["unsigned char *workspace"]
        )

    def pieces(self, region: Region, escapes: list[Node]) -> None:
        """A long region as calls of functions; values between them pass through the workspace."""
        parts = cut(region, escapes, self.weights)
        own = {n for part in parts for n in part.defines}
        needed = {n for part in parts for n in part.needs} | {n for n in escapes if n in own}
        places = {n: self.slot_top + SLOT_BYTES * k for k, n in enumerate(sorted(needed, key=lambda n: n.number))}
        before = self.slot_top
        self.slot_top += SLOT_BYTES * len(places)
        self.slot_most = max(self.slot_most, self.slot_top)
        for n in places:
            if n not in own:
                self.write_bytes(n.dtype, str(places[n]), self.text(n))
        for part in parts:
            self.piece(part, places)
        for n in escapes:
            if n in own:
                self.define(n, self.read_bytes(n.dtype, str(places[n])))
        self.slot_top = before

    def piece(self, part: Piece, places: dict[Node, int]) -> None:
        outside = (self.lines, self.names, self.depth)
        self.lines, self.names, self.depth = [], {}, 1
        for n in part.needs:
            self.define(n, self.read_bytes(n.dtype, str(places[n])))
        for statement in part.statements:
            self.statement(statement)
            for n in defined_by(statement):
                if n in places:
                    self.write_bytes(n.dtype, str(places[n]), self.text(n))
        name = f"piece{len(self.functions)}"
        self.finish(f"static void {name}({self.parameters()})")
        self.lines, self.names, self.depth = outside
        self.line(f"{name}({self.arguments()});")

    def arguments(self) -> str:
        return ", ".join([a.name for a in [*self.inputs, *self.outputs]] + ["workspace"])

    def outlined(self) -> list[str]:
        """Functions that are called from several places, each with slots of its own; their prototypes."""
        prototypes = []
        for function in reversed(self.program.functions):
            self.lines, self.names, self.depth = [], {}, 1
            self.slot_top = self.slot_most
            self.region(function.body, [])
            prototypes.append(f"static void function{function.number}({self.parameters()})")
            self.finish(prototypes[-1])
        return [f"{prototype};" for prototype in prototypes]

    def finish(self, header: str) -> None:
        body = "\n".join(self.lines)
        unused = [f"    (void){n};" for n in [a.name for a in [*self.inputs, *self.outputs]] + ["workspace"]]
        self.functions.append("\n".join([header, "{", *unused, body, "}"]))

    def source(self) -> str:
        """The whole C file."""
        self.region(self.program.root, [])
        self.finish(f"void {self.name}({self.parameters()})")
        prototypes = self.outlined()
        tables = [self.table(b) for b in self.program.constants if b in self.used_buffers]
        head = [f'#include "{self.name}.h"', "", "#include <math.h>", "#include <stdbool.h>", "#include <string.h>"]
        return (
            "\n".join([*head, "", *tables, *self.operations.helpers.values(), "", *prototypes, *self.functions]) + "\n"
        )

    @staticmethod
    def table(buffer: Buffer) -> str:
        assert buffer.data is not None
        code = "u1" if buffer.dtype == "b1" else buffer.dtype
        rows = ", ".join(constant_text(x, code) for x in buffer.data.reshape(-1))
        return f"static const {c_type(code)} table{buffer.number}[{buffer.size}] = {{{rows}}};"


def _memory_type(argument: Argument) -> str:
    return "uint8_t" if argument.dtype == "b1" else c_type(argument.dtype)


memory_type = _memory_type
