"""The intermediate form: hash-consed scalar values in nested regions, with loops, branches and flat buffers.

A value (`Node`) is placed in the outermost region where all its operands exist, so loop-invariant code leaves
loops as it is built; it never leaves the branch of a conditional. Loads remember which `Contents` of a buffer they
read, so a buffer may be overwritten without confusing earlier values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")
INDEX = "i8"  # the dtype of loop counters and offsets (numpy's code for 64-bit signed)
BOOL = "b1"


def code_of(dtype) -> str:
    """The short code of a dtype: numpy's kind and byte count, such as f8, i4, b1."""
    return np.dtype(dtype).str[1:]


def is_float(code: str) -> bool:
    return code[0] == "f"


class Node:
    """One scalar value: an operation on other values, or a constant, loop variable or result."""

    __slots__ = ("args", "attr", "dtype", "number", "op", "region")
    _numbers = itertools.count()

    def __init__(self, op: str, args: tuple, attr, dtype: str, region: Region):
        self.op, self.args, self.attr, self.dtype, self.region = op, args, attr, dtype, region
        self.number = next(Node._numbers)

    def __repr__(self) -> str:
        inside = ", ".join(f"%{a.number}" for a in self.args)
        return f"%{self.number}:{self.dtype} = {self.op}({inside})" + (
            f" [{self.attr}]" if self.attr is not None else ""
        )


@dataclass(eq=False)
class Buffer:
    """A flat array in memory: kind is input, output, workspace or constant; size counts elements."""

    kind: str
    dtype: str
    size: int
    number: int = 0  # position among the inputs or outputs
    data: np.ndarray | None = None  # of a constant
    offset: int = -1  # bytes into the workspace, once allocated
    kept: bool = False  # written before all its reads: an element may be read again instead of being passed on

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize


@dataclass(eq=False)
class Contents:
    """What a buffer holds from one writing to the next; loads may not move above `region`."""

    buffer: Buffer
    region: Region


class Region:
    """A list of statements that run in order: nodes, stores, loops, branches."""

    __slots__ = ("depth", "kind", "parent", "statements", "table")

    def __init__(self, parent: Region | None, kind: str):
        self.parent, self.kind = parent, kind
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.statements: list = []
        self.table: dict = {}


@dataclass(eq=False)
class Store:
    """buffer[index] = value."""

    contents: Contents
    index: Node
    value: Node

    @property
    def buffer(self) -> Buffer:
        return self.contents.buffer


@dataclass(eq=False)
class Loop:
    """A loop: `for` runs `count` times (a value from outside, perhaps zero), `while` as long as `test` holds.

    A `kernel` and `lanes` are a `for` of independent turns: the first is short and written for several widths, the
    other long and written once.
    """

    kind: str
    body: Region
    count: Node | None = None
    counter: Node | None = None
    cond: Region | None = None
    test: Node | None = None
    phis: list[Node] = field(default_factory=list)
    inits: list[Node] = field(default_factory=list)
    nexts: list[Node] = field(default_factory=list)
    results: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Branch:
    """A conditional: region number `selector` runs (already within range) and yields its row of `yields`."""

    selector: Node
    regions: list[Region]
    yields: list[list[Node]]
    results: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Function:
    """Statements that are written once and called from several places; arguments and results are in buffers."""

    number: int
    body: Region


@dataclass(eq=False)
class Call:
    """Runs a function on what its buffers hold now."""

    function: Function


Statement = Node | Store | Loop | Branch | Call


@dataclass(eq=False)
class Program:
    """A whole function: its statements, its buffers, and functions of its own (each before those that call it)."""

    root: Region
    inputs: list[Buffer]
    outputs: list[Buffer]
    workspace: list[Buffer]
    constants: list[Buffer]
    functions: list[Function] = field(default_factory=list)

    def bodies(self) -> list[Region]:
        """The outermost regions: that of the program, and one for each function."""
        return [self.root, *[f.body for f in self.functions]]

    def regions(self) -> Iterator[Region]:
        for body in self.bodies():
            yield from regions_within(body)

    def statements(self) -> Iterator[Statement]:
        for body in self.bodies():
            yield from walk(body)


class TooManyValues(Exception):
    """More values would be made than are allowed: see `Builder.within`."""


class Builder:
    """Builds a `Program`, sharing equal values and placing each in the outermost region it may live in."""

    def __init__(self):
        self.root = Region(None, "root")
        self.stack = [self.root]
        self.barrier = 0  # depth of the innermost branch being built
        self.inputs: list[Buffer] = []
        self.outputs: list[Buffer] = []
        self.workspace: list[Buffer] = []
        self.constants: dict = {}
        self.functions: list[Function] = []
        self.made = 0  # values asked for, before sharing
        self.created = 0  # values that were new
        self.tried = 0  # values asked for in trials of `within`
        self.allowance: float = math.inf  # how many there may be
        self._indices: dict[int, Node] = {}
        self._zeros: dict[str, Node] = {}

    @property
    def region(self) -> Region:
        return self.stack[-1]

    def node(self, op: str, args: tuple, dtype: str, attr=None, depth: int = 0) -> Node:
        """The value of `op` on `args`: an equal one that is in sight, or a new one."""
        self.made += 1
        home = self.stack[self.home_depth(args, depth)]
        key = (op, dtype, attr, *[a.number for a in args])
        region = home
        while region is not None:
            found = region.table.get(key)
            if found is not None:
                return found
            region = region.parent
        self.created += 1
        if self.created > self.allowance:
            raise TooManyValues
        node = Node(op, args, attr, dtype, home)
        home.table[key] = node
        home.statements.append(node)
        return node

    def home_depth(self, args: Iterable[Node], depth: int = 0) -> int:
        """The depth of the outermost region in which something made of these values may live."""
        for argument in args:
            if argument.region.depth > depth:
                depth = argument.region.depth
        stack = self.stack
        if depth < self.barrier:
            depth = self.barrier
        return depth + 1 if stack[depth].kind == "cond" and len(stack) - 1 > depth else depth

    @contextmanager
    def at_depth(self, depth: int) -> Iterator[Region]:
        """Build in a region further out, behind what it holds so far: before the loops that are being built inside."""
        outside = self.stack, self.barrier
        self.stack = self.stack[: depth + 1]
        try:
            yield self.region
        finally:
            self.stack, self.barrier = outside

    def within(self, count: int, make: Callable[[], Result]) -> Result | None:
        """What `make` gives if that takes at most so many new values, else None; it may make values only, no stores."""
        outside, start = self.allowance, self.created
        self.allowance = min(outside, start + count)
        try:
            return make()
        except TooManyValues:
            self.created = start
            return None
        finally:
            self.allowance = outside

    def constant(self, value, dtype: str) -> Node:
        """The constant `value`; two are the same if their bits are."""
        array = np.asarray(value).astype(dtype)
        key = ("const", dtype, array.tobytes())
        found = self.root.table.get(key)
        if found is None:
            found = self.root.table[key] = Node("const", (), array[()], dtype, self.root)
        return found

    def index(self, value: int) -> Node:
        found = self._indices.get(value)
        if found is None:
            found = self._indices[value] = self.constant(value, INDEX)
        return found

    def zero(self, dtype: str) -> Node:
        found = self._zeros.get(dtype)
        if found is None:
            found = self._zeros[dtype] = self.constant(0, dtype)
        return found

    def load(self, contents: Contents, index: Node) -> Node:
        """contents[index]; a constant table read at a constant place folds."""
        buffer = contents.buffer
        if buffer.data is not None and index.op == "const":
            return self.constant(buffer.data.flat[int(index.attr)], buffer.dtype)
        return self.node("load", (index,), buffer.dtype, contents, contents.region.depth)

    def store(self, contents: Contents, index: Node, value: Node) -> None:
        assert value.dtype == contents.buffer.dtype, (value, contents.buffer)
        self.region.statements.append(Store(contents, index, value))

    def new_buffer(self, dtype: str, size: int) -> Contents:
        """A new workspace buffer, written in the present region once and for all."""
        buffer = Buffer("workspace", dtype, size)
        self.workspace.append(buffer)
        return Contents(buffer, self.region)

    def allocate(self, dtype: str, size: int) -> Contents:
        """A new workspace buffer, written in the present region, that may be overwritten later."""
        return self.new_buffer(dtype, size)

    def rewritten(self, contents: Contents) -> Contents:
        """The same buffer after it has been overwritten in the present region."""
        return Contents(contents.buffer, self.region)

    def constant_table(self, array: np.ndarray) -> Contents:
        array = np.ascontiguousarray(array)
        key = (array.dtype.str, array.tobytes())
        if key not in self.constants:
            buffer = Buffer("constant", code_of(array.dtype), array.size, len(self.constants), array)
            self.constants[key] = Contents(buffer, self.root)
        return self.constants[key]

    def variable(self, op: str, dtype: str, region: Region | None = None) -> Node:
        """A loop variable, counter or result: defined by a loop or branch, not by a statement of its own."""
        return Node(op, (), None, dtype, region or self.region)

    def enter(self, kind: str) -> Region:
        region = Region(self.region, kind)
        self.stack.append(region)
        if kind == "branch":
            self.barrier = region.depth
        return region

    def leave(self) -> None:
        self.stack.pop()
        self.barrier = max((r.depth for r in self.stack if r.kind == "branch"), default=0)

    def begin_function(self) -> tuple[list[Region], int]:
        """Build a function from here on: nothing comes into it but through buffers. For `end_function` to go back."""
        outside = self.stack, self.barrier
        self.stack, self.barrier = [Region(None, "function")], 0
        return outside

    def end_function(self, outside: tuple[list[Region], int]) -> Function:
        function = Function(len(self.functions), self.region)
        self.functions.append(function)
        self.stack, self.barrier = outside
        return function

    def finish(self) -> Program:
        constants = [contents.buffer for contents in self.constants.values()]
        return Program(self.root, self.inputs, self.outputs, self.workspace, constants, self.functions)


def sub_regions(statement: Statement) -> list[Region]:
    if isinstance(statement, Loop):
        return [statement.body] if statement.cond is None else [statement.cond, statement.body]
    return statement.regions if isinstance(statement, Branch) else []


def compounds(region: Region) -> list[Loop | Branch]:
    """The loops and branches of a region, those in nested regions apart."""
    return [s for s in region.statements if type(s) is Loop or type(s) is Branch]


def walk(region: Region) -> Iterator[Statement]:
    """All statements of a region, those of nested regions after the one that holds them."""
    for statement in region.statements:
        yield statement
        if type(statement) is Loop or type(statement) is Branch:
            for inner in sub_regions(statement):
                yield from walk(inner)


def regions_within(region: Region) -> Iterator[Region]:
    """A region and all that are nested in it."""
    yield region
    for statement in compounds(region):
        for inner in sub_regions(statement):
            yield from regions_within(inner)


def operands(statement: Statement) -> list[Node]:
    """The values that a statement itself reads or yields, nested statements apart."""
    if isinstance(statement, Node):
        return list(statement.args)
    if isinstance(statement, Store):
        return [statement.index, statement.value]
    if isinstance(statement, Loop):
        ends = [n for n in (statement.count, statement.test) if n is not None]
        return ends + statement.inits + statement.nexts
    if isinstance(statement, Call):
        return []
    return [statement.selector, *itertools.chain.from_iterable(statement.yields)]


def replace_operands(statement: Statement, other: Callable[[Node], Node]) -> None:
    """Put other values in the place of those that `operands` lists."""
    if isinstance(statement, Node):
        statement.args = tuple(other(a) for a in statement.args)
    elif isinstance(statement, Store):
        statement.index, statement.value = other(statement.index), other(statement.value)
    elif isinstance(statement, Loop):
        statement.count = statement.count and other(statement.count)
        statement.test = statement.test and other(statement.test)
        statement.inits = [other(n) for n in statement.inits]
        statement.nexts = [other(n) for n in statement.nexts]
    elif isinstance(statement, Branch):
        statement.selector = other(statement.selector)
        statement.yields = [[other(n) for n in row] for row in statement.yields]


def insert_after(region: Region, new: Mapping[Node, Statement]) -> None:
    """Put each new statement behind the value it follows; loop variables come before all statements of their region."""
    left = dict(new)
    statements = []
    for statement in region.statements:
        statements.append(statement)
        defined = statement.results if isinstance(statement, (Loop, Branch)) else [statement]
        statements += [left.pop(node) for node in defined if node in left]
    region.statements = [*left.values(), *statements]
