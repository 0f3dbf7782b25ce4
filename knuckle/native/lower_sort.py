"""Rules for sorting: exchanges between neighbours for short lists, insertion for longer ones."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from knuckle.native.ir import Node, is_float
from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_derived import derived, lower_derived
from knuckle.native.values import SCALAR_LIMIT, Scalars, Value, objects, scalars

EXCHANGE_LIMIT = 48  # elements; longer lists are sorted by insertion


def _precedes(b: Lowering, x: tuple[Node, ...], y: tuple[Node, ...], keys: int) -> Node:
    """Whether row x comes strictly before row y; NaN after everything, as in JAX."""
    before = b.constant(False, "b1")
    tied = b.constant(True, "b1")
    for p, q in zip(x[:keys], y[:keys], strict=True):
        less, same = b.binary("lt", p, q), b.binary("eq", p, q)
        if is_float(p.dtype):
            p_number, q_nan = b.binary("eq", p, p), b.binary("ne", q, q)
            less = b.or_(less, b.and_(p_number, q_nan))
            same = b.or_(same, b.and_(b.unary("not", p_number), q_nan))
        before = b.or_(before, b.and_(tied, less))
        tied = b.and_(tied, same)
    return before


def sorted_rows(b: Lowering, rows: list[tuple[Node, ...]], keys: int) -> list[tuple[Node, ...]]:
    """Stable sort by odd-even transposition: n rounds of exchanges between neighbours."""
    rows = list(rows)
    for turn in range(len(rows)):
        for i in range(turn % 2, len(rows) - 1, 2):
            swap = _precedes(b, rows[i + 1], rows[i], keys)
            low = tuple(b.select(swap, q, p) for p, q in zip(rows[i], rows[i + 1], strict=True))
            high = tuple(b.select(swap, p, q) for p, q in zip(rows[i], rows[i + 1], strict=True))
            rows[i], rows[i + 1] = low, high
    return rows


@rule("sort", reads=("dimension", "num_keys"), harmless=("is_stable",))
def _sort(b: Lowering, equation, *operands: Value):
    axis, keys = equation.params["dimension"], equation.params["num_keys"]
    length = operands[0].shape[axis]
    if 0 in operands[0].shape:
        return list(operands)
    if length > EXCHANGE_LIMIT or operands[0].shape[axis] * int(np.prod(operands[0].shape)) > 16 * SCALAR_LIMIT:
        return lower_derived(b, sort_insertion, equation.params, *operands)
    lines = [np.moveaxis(scalars(b, v).data, axis, -1) for v in operands]
    outs = [objects(line.shape) for line in lines]
    for place in np.ndindex(*lines[0].shape[:-1]):
        rows = sorted_rows(b, list(zip(*[line[place] for line in lines], strict=True)), keys)
        for out, column in zip(outs, zip(*rows, strict=True), strict=True):
            for i, node in enumerate(column):
                out[(*place, i)] = node
    return [Scalars(np.moveaxis(out, -1, axis), v.dtype) for out, v in zip(outs, operands, strict=True)]


def sort_insertion(params, *operands):
    """Stable insertion of each row among those before it."""
    axis, keys = params["dimension"], params["num_keys"]
    moved = [jnp.moveaxis(x, axis, -1) for x in operands]
    shape = moved[0].shape
    flat = [x.reshape(-1, shape[-1]) for x in moved]

    def precedes(x, y):
        before, tied = jnp.asarray(False), jnp.asarray(True)
        for p, q in zip(x[:keys], y[:keys], strict=True):
            less, same = p < q, p == q
            if jnp.issubdtype(p.dtype, jnp.floating):
                less = less | ((p == p) & (q != q))
                same = same | ((p != p) & (q != q))
            before, tied = before | (tied & less), tied & same
        return before

    def insert(i, rows):
        item = [r[i] for r in rows]

        def unsettled(state):
            j, rows = state
            return (j > 0) & precedes(item, [r[jnp.maximum(j - 1, 0)] for r in rows])

        def shift(state):
            j, rows = state
            return j - 1, [r.at[j].set(r[j - 1]) for r in rows]

        j, rows = lax.while_loop(unsettled, shift, (i, rows))
        return [r.at[j].set(x) for r, x in zip(rows, item, strict=True)]

    def one(rows):
        return lax.fori_loop(1, shape[-1], lambda i, r: insert(i, r), list(rows))

    results = lax.map(one, flat)
    return [jnp.moveaxis(r.reshape(shape), -1, axis) for r in results]


@derived("top_k", reads=("k", "axis"))
def top_k_by_sort(params, x):
    k, axis = params["k"], params["axis"] % x.ndim
    x = jnp.moveaxis(x, axis, -1)
    places = jnp.broadcast_to(jnp.arange(x.shape[-1], dtype=jnp.int32), x.shape)
    _, order, values = lax.sort([_descending(x), places, x], dimension=-1, num_keys=1, is_stable=True)
    return [jnp.moveaxis(values[..., :k], -1, axis), jnp.moveaxis(order[..., :k], -1, axis)]


def _descending(x):
    """A key that puts the largest first, in the total order of floats: NaN, infinity, .., 0, -0, .."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return ~x
    bits = lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")
    return ~jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)
