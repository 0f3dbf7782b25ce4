"""Rules that only move elements about: free on scalars, views on memory where a view exists."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from knuckle.native.ir import code_of
from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_elementwise import result
from knuckle.native.structure import make_if_cheap
from knuckle.native.trace import UnsupportedValue
from knuckle.native.values import (
    SCALAR_LIMIT,
    Memory,
    Scalars,
    Value,
    broadcast_node,
    collapse,
    constants_of,
    contiguous,
    fits_scalars,
    from_numpy,
    memory,
    objects,
    row_major,
    scalars,
    whole,
    write_strided,
)


@rule("reshape", reads=("new_sizes", "dimensions"), harmless=("sharding",))
def _reshape(b: Lowering, equation, x: Value):
    order = equation.params["dimensions"]
    if order is not None:
        x = transposed(x, order)
    return reshaped(b, x, equation.params["new_sizes"])


def reshaped(b: Lowering, x: Value, shape) -> Value:
    shape = tuple(shape)
    if isinstance(x, Scalars):
        return Scalars(x.data.reshape(shape), x.dtype)
    kept = [(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n != 1]
    if [n for n, _ in kept] == [n for n in shape if n != 1]:
        steps = iter(s for _, s in kept)
        return replace(x, shape=shape, strides=tuple(next(steps) if n != 1 else 0 for n in shape))
    sizes, walks = collapse(x.shape, [x.strides])
    if len(sizes) <= 1:
        step = walks[0][0] if sizes else 0
        return replace(x, shape=shape, strides=tuple(s * step for s in row_major(shape)))
    flat = contiguous(b, x)
    return replace(flat, shape=shape, strides=row_major(shape))


@rule("squeeze", reads=("dimensions",))
def _squeeze(b: Lowering, equation, x: Value):
    dropped = [d % len(x.shape) for d in equation.params["dimensions"]]
    return reshaped(b, x, [n for axis, n in enumerate(x.shape) if axis not in dropped])


@rule("broadcast_in_dim", reads=("shape", "broadcast_dimensions"), harmless=("sharding",))
def _broadcast_in_dim(b: Lowering, equation, x: Value, *_):
    shape, dims = tuple(equation.params["shape"]), equation.params["broadcast_dimensions"]
    if isinstance(x, Scalars):
        if not x.shape:
            return broadcast_node(b, x.data[()], shape, x.dtype)
        if math.prod(shape) <= SCALAR_LIMIT or fits_scalars(x, math.prod(shape)):
            aligned = [1] * len(shape)
            for axis, n in zip(dims, x.shape, strict=True):
                aligned[axis] = n
            return Scalars(np.broadcast_to(x.data.reshape(aligned), shape), x.dtype)
        x = memory(b, x)
    strides = [0] * len(shape)
    for axis, n, s in zip(dims, x.shape, x.strides, strict=True):
        strides[axis] = s if n == shape[axis] else 0
    return replace(x, shape=shape, strides=tuple(strides))


@rule("transpose", reads=("permutation",))
def _transpose(b: Lowering, equation, x: Value):
    return transposed(x, equation.params["permutation"])


def transposed(x: Value, order) -> Value:
    if isinstance(x, Scalars):
        return Scalars(x.data.transpose(order), x.dtype)
    return replace(x, shape=tuple(x.shape[i] for i in order), strides=tuple(x.strides[i] for i in order))


@rule("rev", reads=("dimensions",))
def _rev(b: Lowering, equation, x: Value):
    axes = equation.params["dimensions"]
    if isinstance(x, Scalars):
        return Scalars(np.flip(x.data, axes), x.dtype)
    last = sum((x.shape[a] - 1) * x.strides[a] for a in axes)
    strides = tuple(-s if a in axes else s for a, s in enumerate(x.strides))
    return replace(x, offset=b.add_(x.offset, b.index(last)), strides=strides)


@rule("slice", reads=("start_indices", "limit_indices", "strides"))
def _slice(b: Lowering, equation, x: Value):
    p = equation.params
    return sliced(b, x, p["start_indices"], p["limit_indices"], p["strides"])


def sliced(b: Lowering, x: Value, starts, limits, steps=None) -> Value:
    steps = steps or (1,) * len(starts)
    if isinstance(x, Scalars):
        return Scalars(x.data[tuple(slice(*t) for t in zip(starts, limits, steps, strict=True))], x.dtype)
    shape = tuple(max(0, -(-(hi - lo) // st)) for lo, hi, st in zip(starts, limits, steps, strict=True))
    first = sum(lo * s for lo, s in zip(starts, x.strides, strict=True))
    strides = tuple(s * st for s, st in zip(x.strides, steps, strict=True))
    return replace(x, offset=b.add_(x.offset, b.index(first)), shape=shape, strides=strides)


@rule("split", reads=("sizes", "axis"))
def _split(b: Lowering, equation, x: Value):
    axis, pieces, start = equation.params["axis"], [], 0
    for size in equation.params["sizes"]:
        low, high = [0] * len(x.shape), list(x.shape)
        low[axis], high[axis] = start, start + size
        pieces.append(sliced(b, x, low, high))
        start += size
    return pieces


@rule("concatenate", reads=("dimension",))
def _concatenate(b: Lowering, equation, *parts: Value):
    return joined(b, parts, equation.params["dimension"], *result(equation))


def joined(b: Lowering, parts, axis: int, shape, dtype: str) -> Value:
    size = math.prod(shape)
    dense = size > SCALAR_LIMIT // 4 and any(isinstance(p, Memory) and p.dense for p in parts)
    copied = not dense and size <= SCALAR_LIMIT and _mostly_in_memory(b, parts, size)
    sparse = all(fits_scalars(p, size) for p in parts)
    if sparse or (size <= SCALAR_LIMIT and not dense and not copied):
        return Scalars(np.concatenate([scalars(b, p).data for p in parts], axis), dtype)
    if not copied and any(isinstance(p, Scalars) for p in parts):
        few = make_if_cheap(b, size, lambda: np.concatenate([scalars(b, p).data for p in parts], axis))
        if few is not None:
            return Scalars(few, dtype)
    target = whole(b, b.allocate(dtype, size), shape, dense=not copied or size > SCALAR_LIMIT // 8)
    start = 0
    for part in parts:
        low, high = [0] * len(shape), list(shape)
        low[axis], high[axis] = start, start + part.shape[axis]
        view = sliced(b, target, low, high)
        assert isinstance(view, Memory)
        write_strided(b, view, memory(b, part) if copied and constants_of(part) is not None else part)
        start += part.shape[axis]
    return target


def _mostly_in_memory(b: Lowering, parts, size: int) -> bool:
    """Whether parts are copied rather than read one by one: few of their elements are scalars that are not known."""
    if b.lanes_depth or size < SCALAR_LIMIT // 16 or not any(isinstance(p, Memory) for p in parts):
        return False
    apart = [p for p in parts if isinstance(p, Scalars)]
    return 3 * sum(p.data.size for p in apart if constants_of(p) is None) <= size


@rule("stack", reads=("axis",))
def _stack(b: Lowering, equation, *parts: Value):
    axis = equation.params["axis"]
    shape, dtype = result(equation)
    lifted = [reshaped(b, p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return joined(b, lifted, axis, shape, dtype)


@rule("unstack", reads=("axis",))
def _unstack(b: Lowering, equation, x: Value):
    axis, pieces = equation.params["axis"], []
    for i in range(x.shape[axis]):
        low, high = [0] * len(x.shape), list(x.shape)
        low[axis], high[axis] = i, i + 1
        pieces.append(reshaped(b, sliced(b, x, low, high), x.shape[:axis] + x.shape[axis + 1 :]))
    return pieces


@rule("tile", reads=("reps",))
def _tile(b: Lowering, equation, x: Value):
    repeats = equation.params["reps"]
    if isinstance(x, Scalars):
        return Scalars(np.tile(x.data, repeats), x.dtype)
    shape = tuple(n for pair in zip(repeats, x.shape, strict=True) for n in pair)
    strides = tuple(s for stride in x.strides for s in (0, stride))
    return reshaped(b, replace(x, shape=shape, strides=strides), result(equation)[0])


@rule("pad", reads=("padding_config",))
def _pad(b: Lowering, equation, x: Value, fill: Value):
    shape, dtype = result(equation)
    filler = scalars(b, fill).data[()]
    source, target = [], []
    for n, (low, high, interior) in zip(x.shape, equation.params["padding_config"], strict=True):
        places = [(i, low + i * (interior + 1)) for i in range(n)]
        total = low + high + n + max(n - 1, 0) * interior
        inside = [(i, j) for i, j in places if 0 <= j < total]
        source.append((inside[0][0], inside[-1][0] + 1) if inside else (0, 0))
        target.append((inside[0][1], inside[-1][1] + 1, interior + 1) if inside else (0, 0, 1))
    kept = sliced(b, x, [s for s, _ in source], [e for _, e in source])
    if math.prod(shape) <= SCALAR_LIMIT or fits_scalars(x, math.prod(shape)):
        data = objects(shape)
        data.fill(filler)
        data[tuple(slice(*t) for t in target)] = scalars(b, kept).data
        return Scalars(data, dtype)
    out = whole(b, b.allocate(dtype, math.prod(shape)), shape, dense=True)
    write_strided(b, out, broadcast_node(b, filler, shape, dtype))
    out = replace(out, contents=b.rewritten(out.contents))
    view = sliced(b, out, [t[0] for t in target], [t[1] for t in target], [t[2] for t in target])
    assert isinstance(view, Memory)
    if math.prod(kept.shape):
        write_strided(b, view, kept)
    return out


@rule("iota", reads=("shape", "dimension", "dtype"), harmless=("sharding",))
def _iota(b: Lowering, equation, *_):
    p = equation.params
    shape = tuple(p["shape"])
    line = np.arange(shape[p["dimension"]], dtype=code_of(p["dtype"]))
    aligned = [1] * len(shape)
    aligned[p["dimension"]] = -1
    return from_numpy(b, np.broadcast_to(line.reshape(aligned), shape))


@rule("empty2", "empty", harmless=("dtype", "memory_space", "out_sharding", "shape"))
def _empty(b: Lowering, equation, *_):
    """Large arrays are not written: JAX leaves their values open."""
    shape, dtype = result(equation)
    if math.prod(shape) > SCALAR_LIMIT:
        return whole(b, b.allocate(dtype, math.prod(shape)), shape)
    return broadcast_node(b, b.constant(0, dtype), shape, dtype)


@rule("platform_index", reads=("platforms",))
def _platform_index(b: Lowering, equation, *_):
    platforms = equation.params["platforms"]
    for number, names in enumerate(platforms):
        if names is None or "cpu" in names:
            return from_numpy(b, np.int32(number))
    raise UnsupportedValue(f"without a branch for the CPU among the platforms {platforms}")
