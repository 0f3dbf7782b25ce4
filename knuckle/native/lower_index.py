"""Rules that read or write at computed places: dynamic slices, gather, scatter.

Known indices cost nothing on scalars. Indices known only at run time read memory; small scalar arrays are written there
first, or, up to eight elements, chosen among by selects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jax.lax import GatherScatterMode

from knuckle.native.ir import INDEX, Node
from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_elementwise import result
from knuckle.native.lower_shape import sliced
from knuckle.native.structure import make_if_cheap
from knuckle.native.trace import UnsupportedValue, close, flatten
from knuckle.native.values import (
    DENSE_LIMIT,
    SCALAR_LIMIT,
    Memory,
    Nodes,
    Scalars,
    Value,
    constants_of,
    fits_scalars,
    from_nodes,
    map_nodes,
    memory,
    nest,
    objects,
    row_major,
    scalars,
    whole,
    write,
    write_strided,
)

SELECT_LIMIT = 8  # elements of a scalar array that are chosen among by selects
SCATTERS = {"scatter": None, "scatter-add": "add", "scatter-sub": "sub", "scatter-mul": "mul", "scatter-min": "min",
            "scatter-max": "max"}  # fmt: skip
Combination = Callable[[Node, Node], Node]  # of an old element and an update
PROMISES = ("indices_are_sorted", "unique_indices")


def _starts(b: Lowering, indices: Sequence[Value], shape, sizes) -> list[Node]:
    """Start indices, moved into range as JAX does."""
    return [b.clamp_index(scalars(b, i).data[()], n - s) for i, n, s in zip(indices, shape, sizes, strict=True)]


@rule("dynamic_slice", reads=("slice_sizes",))
def _dynamic_slice(b: Lowering, equation, x: Value, *indices: Value):
    sizes = equation.params["slice_sizes"]
    starts = _starts(b, indices, x.shape[: len(indices)], sizes[: len(indices)])
    starts += [b.index(0)] * (len(sizes) - len(starts))  # the words of random keys
    if all(s.op == "const" for s in starts):
        low = [int(s.attr) for s in starts]
        return sliced(b, x, low, [lo + n for lo, n in zip(low, sizes, strict=True)])
    if isinstance(x, Scalars) and x.data.size <= SELECT_LIMIT:
        return _selected_slice(b, x, starts, sizes)
    x = memory(b, x)
    offset = x.offset
    for start, stride in zip(starts, x.strides, strict=True):
        offset = b.add_(offset, b.mul_(start, b.index(stride)))
    return replace(x, offset=offset, shape=tuple(sizes))


def _selected_slice(b: Lowering, x: Scalars, starts: list[Node], sizes) -> Scalars:
    data = x.data
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        options = [np.take(data, range(i, i + size), axis) for i in range(data.shape[axis] - size + 1)]
        chosen = options[-1]
        for i in reversed(range(len(options) - 1)):
            here = b.binary("eq", start, b.index(i))
            chosen = map_nodes(lambda p, q, here=here: b.select(here, p, q), options[i], chosen)
        data = chosen
    return Scalars(data, x.dtype)


@rule("dynamic_update_slice")
def _dynamic_update_slice(b: Lowering, equation, x: Value, update: Value, *indices: Value):
    starts = _starts(b, indices, x.shape, update.shape)
    if isinstance(x, Scalars) and math.prod(update.shape) <= SCALAR_LIMIT:
        if all(s.op == "const" for s in starts):
            data = x.data.copy()
            places = [slice(int(s.attr), int(s.attr) + n) for s, n in zip(starts, update.shape, strict=True)]
            data[tuple(places)] = scalars(b, update).data
            return Scalars(data, x.dtype)
        if x.data.size <= SCALAR_LIMIT // 16 and math.prod(update.shape) <= SELECT_LIMIT:
            return _selected_update(b, x, scalars(b, update), starts)
    target = writable(b, x)
    offset = target.offset
    for start, stride in zip(starts, target.strides, strict=True):
        offset = b.add_(offset, b.mul_(start, b.index(stride)))
    write_strided(b, Memory(target.contents, offset, update.shape, target.strides), _apart(b, update, target))
    return replace(target, contents=b.rewritten(target.contents))


def _apart(b: Lowering, update: Value, target: Memory) -> Value:
    """The update, copied away if it lies in the buffer that is about to be written."""
    if isinstance(update, Memory) and update.contents.buffer is target.contents.buffer:
        contents = b.allocate(update.dtype, math.prod(update.shape))
        write(b, contents, b.index(0), update)
        return whole(b, contents, update.shape)
    return update


def _selected_update(b: Lowering, x: Scalars, update: Scalars, starts: list[Node]) -> Scalars:
    data = objects(x.shape)
    for place in np.ndindex(*x.shape):
        value = x.data[place]
        for inner in np.ndindex(*update.shape):
            here = [b.binary("eq", s, b.index(p - i)) for s, p, i in zip(starts, place, inner, strict=True)]
            test = here[0]
            for one in here[1:]:
                test = b.and_(test, one)
            value = b.select(test, update.data[inner], value)
        data[place] = value
    return Scalars(data, x.dtype)


def writable(b: Lowering, x: Value) -> Memory:
    """The array in a row-major buffer that may be written: its own if nobody else reads it, otherwise a copy."""
    if isinstance(x, Memory) and b.may_overwrite(x) and is_whole(b, x):
        return replace(x, contents=b.rewritten(x.contents))
    contents = b.allocate(x.dtype, max(math.prod(x.shape), 1))
    write(b, contents, b.index(0), x)
    return whole(b, b.rewritten(contents), x.shape, isinstance(x, Memory) and x.dense)


def is_whole(b: Lowering, x: Memory) -> bool:
    """Whether a view is all of its buffer, in order."""
    in_order = x.strides == row_major(x.shape) and x.offset is b.index(0)
    return in_order and math.prod(x.shape) == x.contents.buffer.size


class Windows:
    """Where each element of a gather's result (or a scatter's updates) lies in the operand."""

    def __init__(self, shape, window_dims, collapsed, index_map, operand_batching, indices_batching, window_sizes):
        self.window_dims, self.index_map = tuple(window_dims), tuple(index_map)
        self.operand_batching, self.indices_batching = tuple(operand_batching), tuple(indices_batching)
        self.batch_dims = [d for d in range(len(shape)) if d not in self.window_dims]
        self.shape = tuple(shape)
        kept = [d for d in range(len(window_sizes)) if d not in (*collapsed, *operand_batching)]
        self.window_to_operand = dict(zip(self.window_dims, kept, strict=True))
        self.window_sizes = tuple(window_sizes)

    def rows(self):
        """All places among the batch axes of the result: rows of the index array."""
        return np.ndindex(*[self.shape[d] for d in self.batch_dims])

    def start(self, b: Lowering, indices: Nodes, row: tuple[int, ...]) -> list[Node]:
        rank = len(self.window_sizes)
        start = [b.index(0)] * rank
        for position, axis in enumerate(self.index_map):
            start[axis] = b.convert(indices[(*row, position)], INDEX)
        for axis, batch_axis in zip(self.operand_batching, self.indices_batching, strict=True):
            start[axis] = b.index(row[batch_axis])
        return start

    def in_range(self, b: Lowering, start: list[Node], operand_shape) -> Node:
        test = b.constant(True, "b1")
        for node, n, size in zip(start, operand_shape, self.window_sizes, strict=True):
            test = b.and_(test, b.binary("le", b.index(0), node))
            test = b.and_(test, b.binary("le", node, b.index(n - size)))
        return test

    def clamped(self, b: Lowering, start: list[Node], operand_shape) -> list[Node]:
        return [b.clamp_index(s, n - w) for s, n, w in zip(start, operand_shape, self.window_sizes, strict=True)]

    def window_places(self):
        """Pairs of a place within the window axes of the result and the offset it means in the operand."""
        for place in np.ndindex(*[self.shape[d] for d in self.window_dims]):
            offset = [0] * len(self.window_sizes)
            for d, p in zip(self.window_dims, place, strict=True):
                offset[self.window_to_operand[d]] = p
            yield place, offset

    def join(self, row: tuple[int, ...], place: tuple[int, ...]) -> tuple[int, ...]:
        full = [0] * len(self.shape)
        for d, p in zip(self.batch_dims, row, strict=True):
            full[d] = p
        for d, p in zip(self.window_dims, place, strict=True):
            full[d] = p
        return tuple(full)


@rule("gather", reads=("dimension_numbers", "slice_sizes", "mode", "fill_value"), harmless=PROMISES)
def _gather(b: Lowering, equation, x: Value, indices: Value):
    p, (shape, dtype) = equation.params, result(equation)
    d = p["dimension_numbers"]
    windows = Windows(
        shape, d.offset_dims, d.collapsed_slice_dims, d.start_index_map, d.operand_batching_dims,
        d.start_indices_batching_dims, p["slice_sizes"],
    )  # fmt: skip
    fill = _fill_value(b, p, dtype) if _mode(p["mode"]) == GatherScatterMode.FILL_OR_DROP else None

    def unrolled() -> Nodes:
        return _gather_scalars(b, windows, x, indices, fill)

    size, known = math.prod(shape), constants_of(indices) is not None
    if size <= SCALAR_LIMIT or (known and fits_scalars(x, size)):
        return Scalars(unrolled(), dtype)
    few = make_if_cheap(b, size, unrolled) if known else None
    if few is not None:
        return Scalars(few, dtype)
    return _gather_memory(b, windows, x, memory(b, indices), fill, dtype)


def _gather_scalars(b: Lowering, w: Windows, x: Value, indices: Value, fill: Node | None) -> Nodes:
    out, places = objects(w.shape), scalars(b, indices).data
    for row in w.rows():
        start = w.start(b, places, row)
        inside = w.in_range(b, start, x.shape) if fill is not None else b.constant(True, "b1")
        start = w.clamped(b, start, x.shape)
        for place, offset in w.window_places():
            at = [b.add_(s, b.index(o)) for s, o in zip(start, offset, strict=True)]
            value = element(b, x, at)
            out[w.join(row, place)] = value if fill is None else b.select(inside, value, fill)
    return out


def _fill_value(b: Lowering, params, dtype: str) -> Node:
    value = params["fill_value"]
    if value is None:
        value = (
            np.nan
            if dtype[0] == "f"
            else False
            if dtype == "b1"
            else (np.iinfo(dtype).max if dtype[0] == "u" else np.iinfo(dtype).min)
        )
    return b.constant(value, dtype)


def element(b: Lowering, x: Value, at: Sequence[Node]) -> Node:
    """x[at] for indices within range."""
    if isinstance(x, Scalars):
        if all(i.op == "const" for i in at):
            return x.data[tuple(int(i.attr) for i in at)]
        if x.data.size <= SELECT_LIMIT:
            return _selected_slice(b, x, list(at), [1] * x.data.ndim).data.reshape(-1)[0]
        x = memory(b, x)
    offset = x.offset
    for index, stride in zip(at, x.strides, strict=True):
        offset = b.add_(offset, b.mul_(index, b.index(stride)))
    return b.load(x.contents, offset)


def _gather_memory(b: Lowering, w: Windows, x: Value, indices: Memory, fill: Node | None, dtype: str) -> Memory:
    """Loops over the rows of the index array and, inside, over the window."""
    x = memory(b, x)
    out = whole(b, b.allocate(dtype, math.prod(w.shape)), w.shape, dense=True)
    rows = [w.shape[d] for d in w.batch_dims]
    window = [w.shape[d] for d in w.window_dims]

    def row(places: list[Node]) -> None:
        start = [b.index(0)] * len(x.shape)
        for position, axis in enumerate(w.index_map):
            place = b.add_(places[1], b.index(position * indices.strides[-1]))
            start[axis] = b.convert(b.load(indices.contents, place), INDEX)
        for k, axis in enumerate(w.operand_batching):
            start[axis] = places[2 + k]
        inside = w.in_range(b, start, x.shape) if fill is not None else None
        base = x.offset
        for s, stride in zip(w.clamped(b, start, x.shape), x.strides, strict=True):
            base = b.add_(base, b.mul_(s, b.index(stride)))

        def one(inner: list[Node]) -> None:
            value = b.load(x.contents, inner[0])
            if inside is not None and fill is not None:
                value = b.select(inside, value, fill)
            b.store(out.contents, inner[1], value)

        walk_x = [x.strides[w.window_to_operand[d]] for d in w.window_dims]
        nest(b, window, [base, places[0]], [walk_x, [out.strides[d] for d in w.window_dims]], one)

    batching = [[1 if i == axis else 0 for i in range(len(rows))] for axis in w.indices_batching]
    walks = [[out.strides[d] for d in w.batch_dims], list(indices.strides[:-1]), *batching]
    nest(b, rows, [out.offset, indices.offset, *[b.index(0)] * len(batching)], walks, row)
    return out


@rule(*SCATTERS, reads=("dimension_numbers", "mode", "update_jaxpr", "update_consts"), harmless=PROMISES)
def _scatter(b: Lowering, equation, x: Value, indices: Value, updates: Value):
    p = equation.params
    combine = _combination(b, SCATTERS[equation.primitive], p["update_jaxpr"], p["update_consts"])
    d = p["dimension_numbers"]
    clip = _mode(p["mode"]) == GatherScatterMode.CLIP
    kept = [a for a in range(len(x.shape)) if a not in (*d.inserted_window_dims, *d.operand_batching_dims)]
    sizes = [1] * len(x.shape)
    for axis, dim in zip(kept, d.update_window_dims, strict=True):
        sizes[axis] = updates.shape[dim]
    windows = Windows(
        updates.shape, d.update_window_dims, d.inserted_window_dims, d.scatter_dims_to_operand_dims,
        d.operand_batching_dims, d.scatter_indices_batching_dims, sizes,
    )  # fmt: skip
    sparse = fits_scalars(updates, math.prod(x.shape)) and constants_of(indices) is not None
    rows_in_memory = isinstance(updates, Memory) and isinstance(x, Memory) and math.prod(sizes) >= DENSE_LIMIT
    large = math.prod(updates.shape) > SCALAR_LIMIT and not sparse
    if large and isinstance(x, Scalars) and constants_of(indices) is not None:
        few = make_if_cheap(b, 2 * math.prod(updates.shape), lambda: scalars(b, updates).data)  # one load for each
        if few is not None:
            updates, large = Scalars(few, updates.dtype), False
    if rows_in_memory or large:
        return _scatter_memory(b, windows, x, memory(b, indices), memory(b, updates), combine, clip)
    return _scatter_scalars(b, windows, x, scalars(b, indices).data, scalars(b, updates).data, combine, clip)


def _scatter_scalars(b: Lowering, w: Windows, x: Value, indices, updates, combine: Combination, clip: bool) -> Value:
    known = isinstance(x, Scalars) and all(n.op == "const" for n in indices.reshape(-1))
    if known or (isinstance(x, Scalars) and x.data.size * updates.size <= 64):
        data = scalars(b, x).data.copy()
        for row in w.rows():
            start = w.start(b, indices, row)
            inside = b.constant(True, "b1") if clip else w.in_range(b, start, x.shape)
            start = w.clamped(b, start, x.shape)
            for place, offset in w.window_places():
                at = [b.add_(s, b.index(o)) for s, o in zip(start, offset, strict=True)]
                _update_scalars(b, data, at, inside, updates[w.join(row, place)], combine)
        return Scalars(data, x.dtype)
    target = writable(b, x)
    for row in w.rows():
        start = w.start(b, indices, row)
        inside = b.constant(True, "b1") if clip else w.in_range(b, start, x.shape)
        start = w.clamped(b, start, x.shape)
        for place, offset in w.window_places():
            at = [b.add_(s, b.index(o)) for s, o in zip(start, offset, strict=True)]
            target = _update_memory(b, target, at, inside, updates[w.join(row, place)], combine)
    return target


def _combination(b: Lowering, op: str | None, update_jaxpr, update_consts) -> Combination:
    """How an old element and an update make the new one; `scatter` may come with a function of its own."""
    if op is not None:
        return lambda old, new: b.binary(op, old, new)
    if update_jaxpr is None:
        return lambda old, new: new
    flat = flatten(close(update_jaxpr, update_consts))

    def by_function(old: Node, new: Node) -> Node:
        (value,) = b.run(flat, [from_nodes(old, old.dtype), from_nodes(new, new.dtype)])
        return scalars(b, value).data[()]

    return by_function


def _mode(mode) -> GatherScatterMode:
    """How indices out of range are taken; a promise that there are none needs nothing."""
    known = (GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)
    mode = GatherScatterMode.from_any(mode)
    if mode not in known:
        raise UnsupportedValue(f"with mode={mode}")
    return mode


def _update_scalars(b: Lowering, data: Nodes, at: list[Node], inside: Node, value: Node, combine: Combination) -> None:
    if all(i.op == "const" for i in at):
        place = tuple(int(i.attr) for i in at)
        data[place] = b.select(inside, combine(data[place], value), data[place])
        return
    for place in np.ndindex(*data.shape):
        here = inside
        for index, p in zip(at, place, strict=True):
            here = b.and_(here, b.binary("eq", index, b.index(p)))
        data[place] = b.select(here, combine(data[place], value), data[place])


def _update_memory(
    b: Lowering, target: Memory, at: list[Node], inside: Node, value: Node, combine: Combination
) -> Memory:
    place = target.offset
    for index, stride in zip(at, target.strides, strict=True):
        place = b.add_(place, b.mul_(index, b.index(stride)))
    old = b.load(target.contents, place)
    b.store(target.contents, place, b.select(inside, combine(old, value), old))
    return replace(target, contents=b.rewritten(target.contents))


def _scatter_memory(
    b: Lowering, w: Windows, x: Value, indices: Memory, updates: Memory, combine: Combination, clip: bool
) -> Memory:
    """Rows of the index array one after the other: two of them may meet in one place."""
    target = writable(b, x)
    updates, indices = (memory(b, _apart(b, part, target)) for part in (updates, indices))
    rows = [w.shape[d] for d in w.batch_dims]
    window = [w.shape[d] for d in w.window_dims]

    def row(places: list[Node]) -> None:
        here = b.rewritten(target.contents)
        start = [b.index(0)] * len(target.shape)
        for position, axis in enumerate(w.index_map):
            place = b.add_(places[1], b.index(position * indices.strides[-1]))
            start[axis] = b.convert(b.load(indices.contents, place), INDEX)
        for k, axis in enumerate(w.operand_batching):
            start[axis] = places[2 + k]
        inside = b.constant(True, "b1") if clip else w.in_range(b, start, target.shape)
        base = target.offset
        for s, stride in zip(w.clamped(b, start, target.shape), target.strides, strict=True):
            base = b.add_(base, b.mul_(s, b.index(stride)))

        def one(inner: list[Node]) -> None:
            old = b.load(b.rewritten(here), inner[0])
            new = combine(old, b.load(updates.contents, inner[1]))
            b.store(here, inner[0], b.select(inside, new, old))

        walk_x = [target.strides[w.window_to_operand[d]] for d in w.window_dims]
        nest(b, window, [base, places[0]], [walk_x, [updates.strides[d] for d in w.window_dims]], one)

    batching = [[1 if i == axis else 0 for i in range(len(rows))] for axis in w.indices_batching]
    walks = [[updates.strides[d] for d in w.batch_dims], list(indices.strides[:-1]), *batching]
    nest_in_order(b, rows, [updates.offset, indices.offset, *[b.index(0)] * len(batching)], walks, row)
    return replace(target, contents=b.rewritten(target.contents))


def nest_in_order(b: Lowering, shape, bases: list[Node], walks: list[list[int]], body) -> None:
    """Loops over `shape` whose turns run one after the other."""
    from knuckle.native.values import for_loop

    if not shape:
        body(bases)
        return

    def turn(counter: Node, _) -> list[Node]:
        moved = [b.add_(base, b.mul_(counter, b.index(w[0]))) for base, w in zip(bases, walks, strict=True)]
        nest_in_order(b, shape[1:], moved, [w[1:] for w in walks], body)
        return []

    for_loop(b, shape[0], [], turn)
