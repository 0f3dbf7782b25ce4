"""Arrays during lowering: `Scalars`, one value per element, or `Memory`, a strided view of a buffer.

Small arrays are scalars, so that moving elements about costs nothing and zeros vanish; large ones stay in memory and
are worked on by loops. `elementwise` decides between the two; `structure` says which large arrays are scalars too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from knuckle.native.algebra import Algebra
from knuckle.native.ir import INDEX, Contents, Loop, Node, code_of
from knuckle.native.structure import Nodes, has_structure, make_if_cheap

SCALAR_LIMIT = 1024  # elements; larger arrays live in memory
SPARSE_LIMIT = 65536  # elements; arrays of scalars may grow to this if most of their elements are constants
SPARSE_COUNT = 4096  # elements that are not constants, in such arrays
TABLE_LIMIT = 32  # constants; more than these are stored by a loop over a table
DENSE_LIMIT = 16  # elements; results of dense kernels stay in memory from this size on


@dataclass(frozen=True, eq=False)
class Scalars:
    """An array of scalar values: `data` is a numpy array of nodes."""

    data: Nodes
    dtype: str

    def __post_init__(self):
        """Undo what NumPy makes of an array without axes: its node when it is indexed, a nest when it is assigned."""
        if isinstance(self.data, Node):
            data = objects(())
            data[()] = self.data
            object.__setattr__(self, "data", data)
        elif not self.data.ndim and isinstance(self.data[()], np.ndarray):
            object.__setattr__(self, "data", self.data[()])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


@dataclass(frozen=True, eq=False)
class Memory:
    """A strided view (in elements) of what a buffer holds; `dense` marks results of dense kernels."""

    contents: Contents
    offset: Node
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dense: bool = False

    @property
    def dtype(self) -> str:
        return self.contents.buffer.dtype


Value = Scalars | Memory


def objects(shape: Sequence[int]) -> Nodes:
    return np.empty(tuple(shape), dtype=object)


def from_nodes(nodes, dtype: str) -> Scalars:
    """Scalars from a nested list, an object array or a single node."""
    return Scalars(nodes if isinstance(nodes, Node) else np.asarray(nodes, dtype=object), dtype)


def map_nodes(function: Callable[..., Node], *arrays: Nodes) -> Nodes:
    """`function` over object arrays of one shape (or rank 0)."""
    shape = max((a.shape for a in arrays), key=len)
    result = objects(shape)
    columns = [a.ravel() if a.shape == shape else np.broadcast_to(a, shape).ravel() for a in arrays]
    flat = result.reshape(-1)
    known: dict[tuple, Node] = {}
    for i, row in enumerate(zip(*columns, strict=True)):
        node = known.get(row)
        if node is None:
            node = known[row] = function(*row)
        flat[i] = node
    return flat.reshape(shape)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def whole(b: Algebra, contents: Contents, shape: Sequence[int], dense: bool = False) -> Memory:
    """All of a buffer as an array of that shape."""
    return Memory(contents, b.index(0), tuple(shape), row_major(shape), dense)


def from_numpy(b: Algebra, array) -> Value:
    array = np.asarray(array)
    dtype = code_of(array.dtype)
    variety = np.count_nonzero(array) if array.dtype.kind == "f" else 0
    if array.size > SCALAR_LIMIT and (array.size > SPARSE_LIMIT or variety > SCALAR_LIMIT):
        return whole(b, b.constant_table(array), array.shape)
    data = objects(array.shape)
    flat = data.reshape(-1)
    for i, element in enumerate(array.reshape(-1)):
        flat[i] = b.constant(element, dtype)
    return Scalars(flat.reshape(array.shape), dtype)


def constants_of(value: Value) -> np.ndarray | None:
    """The array as numpy if every element is known now."""
    if isinstance(value, Memory):
        data = value.contents.buffer.data
        if data is None or value.offset.op != "const":
            return None
        size = np.dtype(value.dtype).itemsize
        flat = data.reshape(-1)[int(value.offset.attr) :]
        return np.lib.stride_tricks.as_strided(flat, value.shape, [s * size for s in value.strides], writeable=False)
    flat = value.data.reshape(-1)
    if any(n.op != "const" for n in flat):
        return None
    return np.array([n.attr for n in flat], dtype=value.dtype).reshape(value.shape)


def offset_by(b: Algebra, base: Node, indices: Sequence[Node], strides: Sequence[int]) -> Node:
    for index, stride in zip(indices, strides, strict=True):
        if stride:
            base = b.add_(base, b.mul_(index, b.index(stride)))
    return base


def scalars(b: Algebra, value: Value) -> Scalars:
    """The array as scalar values, loaded from memory if need be."""
    if isinstance(value, Scalars):
        return value
    data = objects(value.shape)
    flat = data.reshape(-1)
    for i, place in enumerate(np.ndindex(*value.shape)):
        constant = sum(p * s for p, s in zip(place, value.strides, strict=True))
        flat[i] = b.load(value.contents, b.add_(value.offset, b.index(constant)))
    return Scalars(flat.reshape(value.shape), value.dtype)


def memory(b: Algebra, value: Value) -> Memory:
    """The array in memory, written there if it is made of scalars."""
    if isinstance(value, Memory):
        return value
    known = constants_of(value)
    if known is not None:
        if (
            known.size
            and (known.reshape(-1).view(f"u{known.itemsize}") == known.reshape(-1).view(f"u{known.itemsize}")[0]).all()
        ):
            table = b.constant_table(known.reshape(-1)[:1])
            return Memory(table, b.index(0), value.shape, (0,) * len(value.shape))
        return whole(b, b.constant_table(known), value.shape)
    own = _without_repeats(value.data) if value.data.size > DENSE_LIMIT else value.data
    contents = _stored(b, own, value.dtype)
    strides = (0 if n < m else s for n, m, s in zip(own.shape, value.shape, row_major(own.shape), strict=True))
    return Memory(contents, b.index(0), value.shape, tuple(strides))


def _stored(b: Algebra, data: Nodes, dtype: str) -> Contents:
    """A buffer that holds these values: written once where they are known, outside loops that do not change them."""
    nodes = list(data.reshape(-1))
    depth = b.home_depth(nodes)
    key = ("memory of", dtype, *[node.number for node in nodes])
    region = b.stack[depth]
    while region is not None:
        if key in region.table:
            return region.table[key]
        region = region.parent
    with b.at_depth(depth) as home:
        contents = home.table[key] = b.new_buffer(dtype, max(data.size, 1))
        _write_scalars(b, contents, b.index(0), Scalars(data, dtype))
    return contents


def _without_repeats(data: Nodes) -> Nodes:
    """The array cut to length one along every axis along which it is the same: what a broadcast made."""
    ids = np.array([id(node) for node in data.reshape(-1)]).reshape(data.shape)
    for axis in range(data.ndim):
        first = ids.take([0], axis)
        if (ids == first).all():
            ids, data = first, data.take([0], axis)
    return data


def _repeats_in_memory(b: Algebra, value: Value) -> Value:
    """A large array that repeats itself goes to memory once, to be copied by a loop; others stay what they are."""
    if isinstance(value, Memory) or value.data.size <= TABLE_LIMIT:
        return value
    return memory(b, value) if 2 * _without_repeats(value.data).size <= value.data.size else value


def contiguous(b: Algebra, value: Value) -> Memory:
    """The array in memory in row-major order, copied if it is not so."""
    value = memory(b, value)
    needed = row_major(value.shape)
    if all(n == 1 or s == t for n, s, t in zip(value.shape, value.strides, needed, strict=True)):
        return replace(value, strides=needed)
    contents = b.allocate(value.dtype, max(math.prod(value.shape), 1))
    write(b, contents, b.index(0), value)
    return whole(b, contents, value.shape, value.dense)


def for_loop(
    b: Algebra,
    count: int | Node,
    inits: Sequence[Node],
    body: Callable[[Node, list[Node]], Sequence[Node]],
    kind: str = "for",
) -> list[Node]:
    """A loop of a number of turns that is known, or found before it; the body maps counter and variables to the next.

    A number that is found must be the same for all lanes and for all elements of a batch.
    """
    if not isinstance(count, Node) or count.op == "const":
        turns = int(count.attr if isinstance(count, Node) else count)
        if turns <= 0:
            return list(inits)
        if turns == 1:
            return list(body(b.index(0), list(inits)))
        count = b.index(turns)
    region = b.enter("loop")
    counter = b.variable("counter", INDEX)
    phis = [b.variable("phi", n.dtype) for n in inits]
    nexts = list(body(counter, phis))
    b.leave()
    loop = Loop(kind, region, count, counter, None, None, phis, list(inits), nexts)
    loop.results = [b.variable("result", n.dtype) for n in inits]
    b.region.statements.append(loop)
    return list(loop.results)


def collapse(shape: Sequence[int], many: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Merge neighbouring axes that every stride pattern walks as one."""
    sizes: list[int] = []
    walks: list[list[int]] = [[] for _ in many]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        here = [s[axis] for s in many]
        if sizes and all(w[-1] == s * n for w, s in zip(walks, here, strict=True)):
            sizes[-1] *= n
            for w, s in zip(walks, here, strict=True):
                w[-1] = s
        else:
            sizes.append(n)
            for w, s in zip(walks, here, strict=True):
                w.append(s)
    return sizes, walks


def nest(
    b: Algebra, shape: Sequence[int], bases: list[Node], walks: list[list[int]], body: Callable[[list[Node]], None]
):
    """Loops over `shape`; `body` gets the bases moved along their strides. The innermost turns are independent."""
    if not shape:
        body(bases)
        return
    kind = "kernel" if len(shape) == 1 else "for"

    def turn(counter: Node, _):
        moved = [b.add_(base, b.mul_(counter, b.index(w[0]))) for base, w in zip(bases, walks, strict=True)]
        nest(b, shape[1:], moved, [w[1:] for w in walks], body)
        return []

    for_loop(b, shape[0], [], turn, kind)


def write(b: Algebra, contents: Contents, offset: Node, value: Value) -> None:
    """Copy an array to a buffer, row-major from `offset` on."""
    value = _repeats_in_memory(b, value)
    if isinstance(value, Scalars):
        _write_scalars(b, contents, offset, value)
        return
    if math.prod(value.shape) <= DENSE_LIMIT:
        write(b, contents, offset, scalars(b, value))
        return
    write_strided(b, Memory(contents, offset, value.shape, row_major(value.shape)), value)


def _write_scalars(b: Algebra, contents: Contents, offset: Node, value: Scalars) -> None:
    """One store per element; where there are many constants, they are copied from a table first."""
    nodes = value.data.reshape(-1)
    varying = [i for i, node in enumerate(nodes) if node.op != "const"]
    if len(nodes) - len(varying) > TABLE_LIMIT:
        zero = b.zero(value.dtype)
        known = Scalars(map_nodes(lambda node: node if node.op == "const" else zero, value.data), value.dtype)
        write(b, contents, offset, memory(b, known))
    else:
        varying = range(len(nodes))
    for i in varying:
        b.store(contents, b.add_(offset, b.index(i)), nodes[i])


def write_strided(b: Algebra, target: Memory, value: Value) -> None:
    """Copy an array over a view of the same shape."""
    value = _repeats_in_memory(b, value)
    if isinstance(value, Scalars):
        for place in np.ndindex(*value.shape):
            at = sum(p * s for p, s in zip(place, target.strides, strict=True))
            b.store(target.contents, b.add_(target.offset, b.index(at)), value.data[place])
        return
    shape, walks = collapse(value.shape, [value.strides, target.strides])

    def body(places: list[Node]) -> None:
        b.store(target.contents, places[1], b.load(value.contents, places[0]))

    nest(b, shape, [value.offset, target.offset], walks, body)


def stays_in_memory(operands: Sequence[Value], shape: Sequence[int]) -> bool:
    """Whether an elementwise result of that shape is better made by a loop."""
    size = math.prod(shape)
    if size > SCALAR_LIMIT:
        return not all(fits_scalars(v, size) for v in operands)
    dense = [v for v in operands if isinstance(v, Memory) and v.dense]
    return bool(dense) and size >= DENSE_LIMIT


def fits_scalars(value: Value, size: int) -> bool:
    """Whether an array of more than a few elements is still cheap as scalars: mostly constants."""
    if isinstance(value, Memory) or size > SPARSE_LIMIT:
        return False
    return value.data.size <= SCALAR_LIMIT or count_variables(value) <= SPARSE_COUNT


def count_variables(value: Scalars) -> int:
    return sum(node.op != "const" for node in value.data.reshape(-1))


def broadcast_strides(value: Memory, shape: Sequence[int]) -> list[int]:
    if len(value.shape) == len(shape):
        return [s if n == m else 0 for n, m, s in zip(value.shape, shape, value.strides, strict=True)]
    assert not value.shape, (value.shape, shape)
    return [0] * len(shape)


def elementwise(b: Algebra, function: Callable[..., Node], operands: Sequence[Value], shape, dtype: str) -> Value:
    """`function` of scalars over arrays of one shape (or rank 0): unrolled, or as a loop over memory."""
    shape = tuple(shape)
    if not stays_in_memory(operands, shape):
        data = [np.broadcast_to(scalars(b, v).data, shape) for v in operands]
        return Scalars(map_nodes(function, *data), dtype)
    few = _few_operations(b, function, operands, shape)
    if few is not None:
        return Scalars(few, dtype)
    uniform: dict[int, Node] = {i: scalars(b, v).data[()] for i, v in enumerate(operands) if not v.shape}
    for i, v in enumerate(operands):
        repeated = splat_of(b, v) if isinstance(v, Memory) else None
        if repeated is not None:
            uniform[i] = repeated
    arrays = {i: memory(b, v) for i, v in enumerate(operands) if i not in uniform}
    if not arrays:
        return broadcast_node(b, function(*[uniform[i] for i in range(len(operands))]), shape, dtype)
    result = whole(b, b.allocate(dtype, max(math.prod(shape), 1)), shape, dense=True)
    sizes, walks = collapse(shape, [broadcast_strides(m, shape) for m in arrays.values()] + [result.strides])

    def body(places: list[Node]) -> None:
        loaded = dict(uniform)
        for (i, m), place in zip(arrays.items(), places[:-1], strict=True):
            loaded[i] = b.load(m.contents, place)
        b.store(result.contents, places[-1], function(*[loaded[i] for i in range(len(operands))]))

    nest(b, sizes, [m.offset for m in arrays.values()] + [result.offset], walks, body)
    return result


def _few_operations(b: Algebra, function: Callable[..., Node], operands: Sequence[Value], shape) -> Nodes | None:
    """`function` over arrays as scalars, where most of it vanishes because of what one of them holds."""
    if not any(isinstance(v, Scalars) and v.shape and has_structure(v.data) for v in operands):
        return None

    def make() -> Nodes:
        return map_nodes(function, *[np.broadcast_to(scalars(b, v).data, shape) for v in operands])

    return make_if_cheap(b, math.prod(shape), make)


def splat_of(b: Algebra, value: Memory) -> Node | None:
    """The one element that a view repeats everywhere, if it is such a view."""
    if all(s == 0 or n == 1 for s, n in zip(value.strides, value.shape, strict=True)):
        return b.load(value.contents, value.offset)
    return None


def broadcast_node(b: Algebra, node: Node, shape: Sequence[int], dtype: str) -> Value:
    shape = tuple(shape)
    if math.prod(shape) > (SPARSE_LIMIT if node.op == "const" else SCALAR_LIMIT):
        one = memory(b, from_nodes(node, dtype))
        return Memory(one.contents, one.offset, shape, (0,) * len(shape), dense=True)
    data = objects(shape)
    data.fill(node)
    return Scalars(data, dtype)
