"""Rules for scan, while and cond: they stay loops and branches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from knuckle.native.ir import BOOL, Branch, Contents, Loop, Node, code_of
from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_index import is_whole
from knuckle.native.lower_shape import joined, reshaped
from knuckle.native.trace import Flat, Var, close, flatten, without_dead_code
from knuckle.native.values import (
    Memory,
    Scalars,
    Value,
    for_loop,
    map_nodes,
    memory,
    scalars,
    whole,
    write,
)

CARRY_LIMIT = 256  # elements of one loop variable that may be scalars
INDEXED_LIMIT = 64  # elements of one that is read or written at places found at run time
UNROLL_LIMIT = 256  # scalar operations; shorter scans are written out
INLINE_LIMIT = 24  # scalar operations; cheaper branches are both computed
HEAVY = {"scan", "while", "cond", "cholesky", "lu", "eigh", "triangular_solve", "sort", "outlined_call", "native_lanes"}


def flat_body(jaxpr) -> Flat:
    return flatten(close(jaxpr))


def weight(flat: Flat) -> int:
    """A rough count of scalar operations; anything with control flow inside is heavy."""
    total = 0
    for equation in flat.equations:
        if equation.primitive in HEAVY:
            return 10**9
        sizes = [v.aval.size for v in [*equation.outputs, *equation.inputs_vars()]]
        total += max(sizes, default=1) * (max(sizes) if equation.primitive == "dot_general" else 1)
    return total


@dataclass
class Carry:
    """One loop variable: scalars in registers, or a buffer."""

    shape: tuple[int, ...]
    dtype: str
    contents: Contents | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def make_carries(b: Lowering, inits: Sequence[Value], others: Sequence[Value], indexed: set[int]) -> list[Carry]:
    """Decide where each variable lives, and write the first value of those in memory.

    A first value that nobody reads afterwards is overwritten where it is: neither a variable outside nor one of the
    `others`, the arrays that the loop reads besides. Variables that are `indexed` at run time go to memory sooner.
    """
    carries = []
    for position, init in enumerate(inits):
        size = math.prod(init.shape)
        carry = Carry(tuple(init.shape), init.dtype, None)
        if size > (INDEXED_LIMIT if position in indexed else CARRY_LIMIT):
            rest = [*inits[:position], *inits[position + 1 :], *others]
            if isinstance(init, Memory) and is_whole(b, init) and b.may_overwrite(init) and not _meets(init, rest):
                carry.contents = b.rewritten(init.contents)
            else:
                carry.contents = b.allocate(init.dtype, size)
                write(b, carry.contents, b.index(0), init)
        carries.append(carry)
    return carries


def _meets(value: Memory, others: Sequence[Value]) -> bool:
    """Whether one of the others is in the same buffer."""
    return any(isinstance(v, Memory) and v.contents.buffer is value.contents.buffer for v in others)


def indexed_inputs(flat: Flat, first: int) -> set[int]:
    """Which inputs from `first` on, counted from there, are read or written at places found at run time."""
    numbers = {var: k for k, var in enumerate(flat.inputs[first:])}
    found: set[int] = set()
    for equation in flat.equations:
        operand = equation.inputs[0] if equation.inputs else None
        if isinstance(operand, Var) and operand in numbers and is_indexing(equation):
            found.add(numbers[operand])
    return found


def is_indexing(equation) -> bool:
    name = equation.primitive
    if name not in ("dynamic_slice", "dynamic_update_slice", "gather") and not name.startswith("scatter"):
        return False
    places = {"dynamic_slice": equation.inputs[1:], "dynamic_update_slice": equation.inputs[2:]}
    return any(isinstance(i, Var) for i in places.get(name, equation.inputs[1:2]))


def initial_nodes(b: Lowering, carries: Sequence[Carry], inits: Sequence[Value]) -> list[Node]:
    return [
        node
        for carry, init in zip(carries, inits, strict=True)
        if carry.contents is None
        for node in scalars(b, init).data.reshape(-1)
    ]


def carried_values(b: Lowering, carries: Sequence[Carry], nodes: Sequence[Node]) -> list[Value]:
    """The variables as arrays, from the loop's scalar variables and from memory as it is in this region."""
    values: list[Value] = []
    taken = 0
    for carry in carries:
        if carry.contents is None:
            data = np.empty(carry.size, dtype=object)
            data[:] = nodes[taken : taken + carry.size]
            taken += carry.size
            values.append(Scalars(data.reshape(carry.shape), carry.dtype))
        else:
            values.append(whole(b, b.rewritten(carry.contents), carry.shape, dense=True))
    return values


def store_carries(b: Lowering, carries: Sequence[Carry], results: Sequence[Value]) -> list[Node]:
    """Write back the variables in memory and give the next scalars of the others."""
    buffers = {carry.contents.buffer for carry in carries if carry.contents is not None}
    moved: list[tuple[Carry, Value]] = []
    for carry, value in zip(carries, results, strict=True):
        if carry.contents is None:
            continue
        if isinstance(value, Memory) and value.contents.buffer in buffers:
            if (
                value.contents.buffer is carry.contents.buffer
                and value.strides == whole(b, carry.contents, carry.shape).strides
            ):
                continue
            value = _copy(b, value)
        moved.append((carry, value))
    nodes = [
        node
        for carry, value in zip(carries, results, strict=True)
        if carry.contents is None
        for node in scalars(b, value).data.reshape(-1)
    ]
    for carry, value in moved:
        assert carry.contents is not None
        write(b, b.rewritten(carry.contents), b.index(0), value)
    return nodes


def _copy(b: Lowering, value: Memory) -> Memory:
    contents = b.allocate(value.dtype, math.prod(value.shape))
    write(b, contents, b.index(0), value)
    return whole(b, contents, value.shape, dense=True)


def row_of(b: Lowering, x: Value, index: Node) -> Value:
    """x[index] for an index within range."""
    if isinstance(x, Scalars) and index.op == "const":
        place = int(index.attr)
        return Scalars(x.data[place : place + 1].reshape(x.shape[1:]), x.dtype)
    x = memory(b, x)
    offset = b.add_(x.offset, b.mul_(index, b.index(x.strides[0])))
    dense = x.dense and math.prod(x.shape[1:]) > CARRY_LIMIT
    return replace(x, offset=offset, shape=x.shape[1:], strides=x.strides[1:], dense=dense)


@rule("scan", reads=("jaxpr", "length", "num_consts", "num_carry", "reverse"), harmless=("unroll",))
def _scan(b: Lowering, equation, *values: Value):
    p = equation.params
    consts, inits, xs = _split(values, p["num_consts"], p["num_carry"])
    flat, length = flat_body(p["jaxpr"]), p["length"]
    if length * weight(flat) <= UNROLL_LIMIT or length == 1:
        return _unrolled_scan(b, flat, length, p["reverse"], consts, inits, xs)
    carries = make_carries(b, inits, [*consts, *xs], indexed_inputs(flat, len(consts)))
    xs = [x if isinstance(x, Memory) else memory(b, x) for x in xs]
    stacks = [_stack_for(b, var) for var in equation.outputs[p["num_carry"] :]]
    owned = [c.contents.buffer for c in carries if c.contents is not None]

    def turn(counter: Node, nodes: list[Node]) -> list[Node]:
        place = b.sub_(b.index(length - 1), counter) if p["reverse"] else counter
        rows = [row_of(b, x, place) for x in xs]
        results = b.run(flat, [*consts, *carried_values(b, carries, nodes), *rows], owned)
        for contents, row in zip(stacks, results[len(carries) :], strict=True):
            offset = b.mul_(place, b.index(math.prod(row.shape)))
            write(b, replace(contents, region=b.region), offset, row)
        return store_carries(b, carries, results[: len(carries)])

    finals = for_loop(b, length, initial_nodes(b, carries, inits), turn)
    outputs = equation.outputs[p["num_carry"] :]
    stacked = [
        whole(b, b.rewritten(c), v.aval.shape, v.aval.size > CARRY_LIMIT) for c, v in zip(stacks, outputs, strict=True)
    ]
    return [*carried_values(b, carries, finals), *stacked]


def _stack_for(b: Lowering, var) -> Contents:
    """Where the rows of one stacked result go: straight into an output of the whole function if it is one."""
    if var in b.destinations:
        return b.destinations[var]
    return b.allocate(code_of(var.aval.dtype), max(var.aval.size, 1))


def _unrolled_scan(b: Lowering, flat: Flat, length: int, reverse: bool, consts, carry, xs):
    rows: list[list[Value]] = []
    carry = list(carry)
    order = range(length)[::-1] if reverse else range(length)
    for i in order:
        results = b.run(flat, [*consts, *carry, *[row_of(b, x, b.index(i)) for x in xs]])
        carry, row = results[: len(carry)], results[len(carry) :]
        rows.append(row)
    rows = rows[::-1] if reverse else rows
    stacked = []
    for position, var in enumerate(flat.outputs[len(carry) :]):
        parts = [row[position] for row in rows]
        if not parts:
            aval = var.aval
            stacked.append(Scalars(np.empty((0, *aval.shape), dtype=object), code_of(aval.dtype)))
            continue
        stacked.append(stack_rows(b, parts))
    return [*carry, *stacked]


def stack_rows(b: Lowering, parts: list[Value]) -> Value:
    lifted = [reshaped(b, part, (1, *part.shape)) for part in parts]
    return joined(b, lifted, 0, (len(parts), *parts[0].shape), parts[0].dtype)


def _split(values: Sequence[Value], first: int, second: int):
    return list(values[:first]), list(values[first : first + second]), list(values[first + second :])


@rule("while", reads=("cond_jaxpr", "cond_nconsts", "body_jaxpr", "body_nconsts"))
def _while(b: Lowering, equation, *values: Value):
    p = equation.params
    cond_consts, body_consts, inits = _split(values, p["cond_nconsts"], p["body_nconsts"])
    cond_jaxpr, body_jaxpr = p["cond_jaxpr"], p["body_jaxpr"]
    if cond_jaxpr.out_avals[0].shape:
        cond_jaxpr, body_jaxpr = _until_the_last(cond_jaxpr, body_jaxpr, len(cond_consts), len(body_consts))
        body_consts = [*cond_consts, *body_consts]
    test_flat, body_flat = flat_body(cond_jaxpr), flat_body(body_jaxpr)
    consts = [*cond_consts, *body_consts]
    carries = make_carries(b, inits, consts, indexed_inputs(body_flat, len(body_consts)))
    first = initial_nodes(b, carries, inits)
    cond = b.enter("cond")
    phis = [b.variable("phi", n.dtype) for n in first]
    (test,) = b.run(test_flat, [*cond_consts, *carried_values(b, carries, phis)])
    test_node = scalars(b, test).data[()]
    body = b.enter("loop")
    owned = [c.contents.buffer for c in carries if c.contents is not None]
    nexts = store_carries(b, carries, b.run(body_flat, [*body_consts, *carried_values(b, carries, phis)], owned))
    b.leave()
    b.leave()
    loop = Loop("while", body, None, None, cond, test_node, phis, first, nexts)
    loop.results = [b.variable("result", n.dtype) for n in first]
    b.region.statements.append(loop)
    return carried_values(b, carries, loop.results)


def _until_the_last(cond_jaxpr, body_jaxpr, cond_consts: int, body_consts: int):
    """A loop whose test is a whole array, as `jax.vmap` makes it: until all are done, each changing until it is."""
    test, advance = jaxpr_as_fun(cond_jaxpr), jaxpr_as_fun(body_jaxpr)
    consts = cond_consts + body_consts

    def any_left(*args):
        return jnp.any(test(*args)[0])

    def advance_unfinished(*args):
        old = args[consts:]
        (unfinished,) = test(*args[:cond_consts], *old)
        new = advance(*args[cond_consts:consts], *old)
        return [jax.lax.select(_spread(unfinished, n.shape), n, o) for n, o in zip(new, old, strict=True)]

    carried = body_jaxpr.in_avals[body_consts:]
    together = [*cond_jaxpr.in_avals[:cond_consts], *body_jaxpr.in_avals[:body_consts], *carried]
    return jax.make_jaxpr(any_left)(*cond_jaxpr.in_avals), jax.make_jaxpr(advance_unfinished)(*together)


def _spread(marks, shape: tuple[int, ...]):
    """Marks over the leading axes, repeated over the others."""
    return jax.lax.broadcast_in_dim(marks, shape, tuple(range(marks.ndim)))


@rule("cond", reads=("branches",), harmless=("branches_platforms",))
def _cond(b: Lowering, equation, index: Value, *operands: Value):
    flats = [flat_body(j) for j in equation.params["branches"]]
    selector = scalars(b, index).data[()]
    if selector.dtype == BOOL:
        selector = b.convert(selector, "i4")
    selector = b.min_(b.max_(selector, b.constant(0, selector.dtype)), b.constant(len(flats) - 1, selector.dtype))
    if selector.op == "const":
        return b.run(flats[int(selector.attr)], operands)
    if sum(weight(f) for f in flats) <= INLINE_LIMIT:
        return _both_branches(b, selector, flats, operands)
    shared = [_shared_buffer(b, var) for var in equation.outputs]
    branch = Branch(selector, [], [])
    for flat in flats:
        branch.regions.append(b.enter("branch"))
        results = b.run(flat, operands)
        row: list[Node] = []
        for contents, value in zip(shared, results, strict=True):
            if contents is None:
                row += list(scalars(b, value).data.reshape(-1))
            else:
                write(b, contents, b.index(0), value)
        branch.yields.append(row)
        b.leave()
    branch.results = [b.variable("result", n.dtype) for n in branch.yields[0]]
    b.region.statements.append(branch)
    carries = [Carry(v.aval.shape, code_of(v.aval.dtype), c) for v, c in zip(equation.outputs, shared, strict=True)]
    return carried_values(b, carries, branch.results)


def _shared_buffer(b: Lowering, var) -> Contents | None:
    return b.allocate(code_of(var.aval.dtype), var.aval.size) if var.aval.size > CARRY_LIMIT else None


def _both_branches(b: Lowering, selector: Node, flats: Sequence[Flat], operands: Sequence[Value]) -> list[Value]:
    chosen = [scalars(b, v) for v in b.run(flats[-1], operands)]
    for number in reversed(range(len(flats) - 1)):
        here = b.binary("eq", selector, b.constant(number, selector.dtype))
        mine = [scalars(b, v) for v in b.run(flats[number], operands)]
        chosen = [_select(b, here, one, other) for one, other in zip(mine, chosen, strict=True)]
    return list(chosen)


def _select(b: Lowering, test: Node, one: Scalars, other: Scalars) -> Scalars:
    return Scalars(map_nodes(lambda x, y: b.select(test, x, y), one.data, other.data), one.dtype)


@rule("native_call", reads=("program", "rows"))
def _native_call(b: Lowering, equation, *values: Value):
    """Native code inside native code is opened."""
    program, rows = equation.params["program"], equation.params["rows"]
    closed = program.jaxpr
    if rows is not None:
        avals = [jax.ShapeDtypeStruct(v.shape, np.dtype(v.dtype)) for v in values]
        closed = jax.make_jaxpr(program.evaluate)(*avals)
    return b.run(flatten(without_dead_code(closed)), values)
