"""Programs of one primitive, drawn from the space of its parameters: for every rule of native code one generator.

A generator takes a `Draw` and gives a function and its arguments. Shapes have rank 0 to 3 and may be empty; dtypes are
all that native code has; floats include NaN, infinities, both zeros and ties.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import ad_util
from jax._src.lax import lax as internal
from jax._src.lax.linalg import geqrf_p
from jax._src.random.prng import iota_2x32_shape_p
from jax._src.random.threefry2x32 import threefry2x32_p
from jax.ad_checkpoint import checkpoint_name
from jax.lax import linalg

from knuckle import native

Program = tuple[Callable, tuple]
FLOATS = ("f8", "f4")
SIGNED = ("i1", "i2", "i4", "i8")
UNSIGNED = ("u1", "u2", "u4", "u8")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, "b1")
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e30, 1e-30])
GENERATORS: dict[str, Callable[[Draw], Program]] = {}


class Draw:
    """Random choices of one program. `specials` allows NaN, infinities and the like among the floats."""

    def __init__(self, seed: int, specials: bool = True):
        self.random = np.random.default_rng(seed)
        self.specials = specials

    def one(self, options):
        return options[int(self.random.integers(len(options)))]

    def number(self, low: int, high: int) -> int:
        """An integer from low to high, both possible."""
        return int(self.random.integers(low, high + 1))

    def flag(self, chance: float = 0.5) -> bool:
        return bool(self.random.random() < chance)

    def shape(self, least: int = 0, most: int = 3, empty: bool = True) -> tuple[int, ...]:
        rank = self.number(least, most)
        low = 0 if empty and self.flag(0.15) else 1
        large = self.flag(0.1) and rank  # lives in memory
        return tuple(self.number(low, 11 if large else 4) for _ in range(rank))

    def array(self, shape, dtype: str, low: float = -3, high: float = 3, specials: bool = True) -> np.ndarray:
        if dtype == "b1":
            return self.random.integers(0, 2, shape).astype(bool)
        if dtype[0] != "f":
            limits = np.iinfo(dtype)
            wide = self.flag(0.3)
            least, most = (limits.min, limits.max) if wide else (max(limits.min, -4), 4)
            return self.random.integers(least, most, shape, dtype=dtype, endpoint=True)
        values = np.asarray(self.random.uniform(low, high, shape))
        if self.flag(0.3):
            values = np.round(values)  # ties
        if self.specials and specials and self.flag(0.6):
            where = self.random.random(shape) < 0.4
            values = np.where(where, self.random.choice(SPECIAL, shape), values)
        return np.asarray(values, dtype)

    def floats(self, shape, low: float = -3, high: float = 3) -> np.ndarray:
        """Finite numbers of either precision."""
        return self.array(shape, self.one(FLOATS), low, high, specials=False)

    def axis(self, rank: int) -> int:
        return self.number(0, rank - 1)

    def axes(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted(self.random.permutation(rank)[: self.number(0, rank)].tolist()))

    def order(self, rank: int) -> tuple[int, ...]:
        return tuple(self.random.permutation(rank).tolist())


def program(*names: str):
    def register(function):
        for name in names:
            GENERATORS[name] = partial(function, name) if len(names) > 1 else function
        return function

    return register


# elementwise

REAL = {
    "sin": lax.sin, "cos": lax.cos, "tan": lax.tan, "exp": lax.exp, "exp2": lax.exp2, "expm1": lax.expm1,
    "log": lax.log,
    "log1p": lax.log1p, "tanh": lax.tanh, "sinh": lax.sinh, "cosh": lax.cosh, "asin": lax.asin, "acos": lax.acos,
    "atan": lax.atan, "asinh": lax.asinh, "acosh": lax.acosh, "atanh": lax.atanh, "cbrt": lax.cbrt, "erf": lax.erf,
    "erfc": lax.erfc, "erf_inv": lax.erf_inv, "logistic": lax.logistic, "sqrt": lax.sqrt, "rsqrt": lax.rsqrt,
    "floor": lax.floor, "ceil": lax.ceil, "is_finite": lax.is_finite, "lgamma": lax.lgamma, "digamma": lax.digamma,
    "bessel_i0e": lax.bessel_i0e,
    "bessel_i1e": lax.bessel_i1e,
}  # fmt: skip
WITH_ACCURACY = (
    "sin",
    "cos",
    "tan",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "cbrt",
    "logistic",
    "sqrt",
    "rsqrt",
)


@program(*REAL)
def _real(name, d):
    x = d.array(d.shape(), d.one(FLOATS))
    if name in WITH_ACCURACY and d.flag(0.3):
        return partial(REAL[name], accuracy=lax.AccuracyMode.HIGHEST), (x,)
    return REAL[name], (x,)


@program("neg", "abs", "sign", "square")
def _of_numbers(name, d):
    return getattr(lax, name), (d.array(d.shape(), d.one(FLOATS + SIGNED)),)


@program("not", "clz", "population_count")
def _of_bits(name, d):
    function = lax.bitwise_not if name == "not" else getattr(lax, name)
    return function, (d.array(d.shape(), d.one((*INTEGERS, "b1") if name == "not" else INTEGERS)),)


@program("integer_pow")
def _integer_pow(d):
    dtype = d.one(NUMBERS)
    exponent = d.number(-5 if dtype[0] == "f" else 0, 9)
    return lambda x: lax.integer_pow(x, exponent), (d.array(d.shape(), dtype),)


@program("round")
def _round(d):
    method = d.one(list(lax.RoundingMethod))
    return lambda x: lax.round(x, method), (np.concatenate([d.array((5,), d.one(FLOATS)), [0.5, 1.5, -2.5]]),)


@program("reduce_precision")
def _reduce_precision(d):
    bits = d.one([(11, 52), (8, 23), (5, 10)])
    return lambda x: lax.reduce_precision(x, *bits), (d.array(d.shape(), d.one(FLOATS)),)


@program("convert_element_type")
def _convert(d):
    target = np.dtype(d.one(ALL))
    return lambda x: lax.convert_element_type(x, target), (d.array(d.shape(), d.one(ALL)),)


@program("bitcast_convert_type")
def _bitcast(d):
    source = d.one(NUMBERS)
    target = np.dtype(d.one([t for t in NUMBERS if t[1] == source[1] and t[0] != source[0]] or NUMBERS))
    return lambda x: lax.bitcast_convert_type(x, target), (d.array(d.shape(), source),)


SAME = {"add": lax.add, "sub": lax.sub, "max": lax.max, "min": lax.min, "div": lax.div, "rem": lax.rem}


@program(*SAME)
def _arithmetic(name, d):
    shape, dtype = d.shape(), d.one((*NUMBERS, "b1") if name in ("max", "min") else NUMBERS)
    return SAME[name], (d.array(shape, dtype), d.array(shape, dtype))


@program("mul")
def _mul(d):
    shape, dtype = d.shape(), d.one(NUMBERS)
    wider = {"f4": np.float64, "i1": np.int16, "i4": np.int64, "u2": np.uint32}.get(dtype)
    out_dtype = wider if wider is not None and d.flag() else None
    return lambda x, y: internal.mul_p.bind(x, y, out_dtype=out_dtype and np.dtype(out_dtype)), (
        d.array(shape, dtype), d.array(shape, dtype),
    )  # fmt: skip


@program("add_any")
def _add_any(d):
    shape, dtype = d.shape(), d.one(FLOATS)
    return lambda x, y: ad_util.add_any_p.bind(x, y), (d.array(shape, dtype), d.array(shape, dtype))


@program("and", "or", "xor")
def _logic(name, d):
    shape, dtype = d.shape(), d.one((*INTEGERS, "b1"))
    return getattr(lax, "bitwise_" + name), (d.array(shape, dtype), d.array(shape, dtype))


@program("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shift(name, d):
    shape, dtype = d.shape(), d.one(INTEGERS)
    return getattr(lax, name), (d.array(shape, dtype), d.array(shape, dtype))


@program("atan2", "nextafter")
def _two_floats(name, d):
    shape, dtype = d.shape(), d.one(FLOATS)
    return getattr(lax, name), (d.array(shape, dtype), d.array(shape, dtype))


@program("pow")
def _pow(d):
    shape, dtype = d.shape(), d.one(FLOATS)
    return lax.pow, (d.array(shape, dtype), d.array(shape, d.one((dtype, dtype, "i4"))))


@program("eq", "ne", "lt", "le", "gt", "ge")
def _compare(name, d):
    shape, dtype = d.shape(), d.one(ALL)
    return getattr(lax, name), (d.array(shape, dtype), d.array(shape, dtype))


@program("lt_to", "le_to", "eq_to")
def _total_order(name, d):
    shape, dtype = d.shape(), d.one(ALL)
    bind = getattr(internal, name + "_p").bind
    return lambda x, y: bind(x, y), (d.array(shape, dtype), d.array(shape, dtype))


@program("clamp")
def _clamp(d):
    shape, dtype = d.shape(), d.one(NUMBERS)
    ends = [d.array(() if d.flag() else shape, dtype) for _ in range(2)]
    if ends[0].shape != ends[1].shape:
        ends[1] = d.array(ends[0].shape, dtype)
    return lax.clamp, (ends[0], d.array(shape, dtype), ends[1])


@program("select_n")
def _select_n(d):
    shape, dtype, count = d.shape(), d.one(ALL), d.number(1, 4)
    which_shape = () if d.flag(0.3) else shape
    kind = "i4" if count > 2 or d.flag() else "b1"
    which = d.random.integers(0, count, which_shape).astype(kind)
    return lax.select_n, (which, *[d.array(shape, dtype) for _ in range(count)])


@program("copy", "stop_gradient", "optimization_barrier", "name", "device_put", "sharding_constraint")
def _same(name, d):
    device = jax.devices()[0]
    function = {
        "copy": jnp.copy,
        "stop_gradient": lax.stop_gradient,
        "optimization_barrier": lax.optimization_barrier,
        "name": lambda x: checkpoint_name(x, "x"),
        "device_put": partial(jax.device_put, device=d.one([None, device])),
        "sharding_constraint": lambda x: lax.with_sharding_constraint(x, jax.sharding.SingleDeviceSharding(device)),
    }[name]
    return function, (d.array(d.shape(), d.one(ALL)),)


@program("igamma", "igammac", "igamma_grad_a")
def _gamma_functions(name, d):
    shape, dtype = d.shape(most=1), d.one(FLOATS)
    return getattr(lax, name), (d.array(shape, dtype, 0.1, 5, False), d.array(shape, dtype, 0.1, 8, False))


@program("regularized_incomplete_beta")
def _beta(d):
    shape, dtype = d.shape(most=1), d.one(FLOATS)
    a, b, x = (d.array(shape, dtype, 0.1, high, False) for high in (5, 5, 0.9))
    return lax.betainc, (a, b, x)


@program("zeta")
def _zeta(d):
    shape, dtype = d.shape(), d.one(FLOATS)
    return lax.zeta, (d.array(shape, dtype, 1.1, 9, False), d.array(shape, dtype, 0.1, 20, False))


@program("polygamma")
def _polygamma(d):
    shape, dtype = d.shape(), d.one(FLOATS)
    m = d.random.integers(0, 5, shape).astype(dtype)
    return lax.polygamma, (m, d.array(shape, dtype, 0.1, 20, False))


# moves


def _factors(d: Draw, size: int) -> tuple[int, ...]:
    """A random shape of that many elements."""
    if size == 0:
        return d.one([(0,), (3, 0), (0, 2, 1)])
    sizes = []
    while size > 1 and len(sizes) < 3:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        sizes.append(d.one(divisors))
        size //= sizes[-1]
    return tuple(sizes) + ((size,) if size > 1 or d.flag() else ())


@program("reshape")
def _reshape(d):
    x = d.array(d.shape(), d.one(ALL))
    sizes, order = _factors(d, x.size), d.order(x.ndim) if d.flag(0.7) else None
    return lambda x: lax.reshape(x, sizes, order), (x,)


@program("squeeze")
def _squeeze(d):
    shape = list(d.shape())
    for _ in range(d.number(1, 2)):
        shape.insert(d.number(0, len(shape)), 1)
    ones = [a for a, n in enumerate(shape) if n == 1]
    axes = tuple(a for a in ones if d.flag()) or (ones[0],)
    return lambda x: lax.squeeze(x, axes), (d.array(tuple(shape), d.one(ALL)),)


@program("broadcast_in_dim")
def _broadcast_in_dim(d):
    shape = d.shape()
    dims = d.axes(len(shape))
    x = d.array(tuple(1 if d.flag(0.3) else shape[a] for a in dims), d.one(ALL))
    return lambda x: lax.broadcast_in_dim(x, shape, dims), (x,)


@program("transpose")
def _transpose(d):
    shape = d.shape()
    order = d.order(len(shape))
    return lambda x: lax.transpose_p.bind(x, permutation=order), (d.array(shape, d.one(ALL)),)


@program("rev")
def _rev(d):
    shape = d.shape()
    axes = d.axes(len(shape))
    return lambda x: lax.rev(x, axes), (d.array(shape, d.one(ALL)),)


@program("slice")
def _slice(d):
    shape = d.shape(1)
    starts = [d.number(0, n) for n in shape]
    stops = [d.number(s, n) for s, n in zip(starts, shape, strict=True)]
    steps = None if d.flag() else [d.number(1, 3) for _ in shape]
    return lambda x: lax.slice(x, starts, stops, steps), (d.array(shape, d.one(ALL)),)


@program("split")
def _split(d):
    shape = d.shape(1)
    axis, sizes, left = d.axis(len(shape)), [], 0
    left = shape[axis]
    while left and len(sizes) < 3:
        sizes.append(d.number(0, left))
        left -= sizes[-1]
    sizes.append(left)
    return lambda x: lax.split(x, tuple(sizes), axis), (d.array(shape, d.one(ALL)),)


@program("concatenate")
def _concatenate(d):
    shape, dtype = d.shape(1), d.one(ALL)
    axis = d.axis(len(shape))
    parts = []
    for _ in range(d.number(1, 3)):
        sizes = list(shape)
        sizes[axis] = d.number(0, 4)
        parts.append(d.array(tuple(sizes), dtype))
    return lambda *parts: lax.concatenate(parts, axis), tuple(parts)


@program("stack")
def _stack(d):
    shape, dtype = d.shape(), d.one(ALL)
    axis, count = d.number(0, len(shape)), d.number(1, 3)
    return lambda *parts: internal.stack_p.bind(*parts, axis=axis), tuple(d.array(shape, dtype) for _ in range(count))


@program("unstack")
def _unstack(d):
    shape = d.shape(1, empty=False)
    axis = d.axis(len(shape))
    return lambda x: internal.unstack_p.bind(x, axis=axis), (d.array(shape, d.one(ALL)),)


@program("tile")
def _tile(d):
    shape = d.shape()
    repeats = tuple(d.number(0, 3) for _ in shape)
    return lambda x: internal.tile_p.bind(x, reps=repeats), (d.array(shape, d.one(ALL)),)


@program("pad")
def _pad(d):
    shape, dtype = d.shape(), d.one(ALL)
    config = []
    for n in shape:
        inner = d.number(0, 2)
        total = n + max(n - 1, 0) * inner
        low = d.number(-min(total, 2), 3)
        config.append((low, d.number(max(-2, -total - low), 3), inner))
    return lambda x, fill: lax.pad(x, fill, config), (d.array(shape, dtype), d.array((), dtype))


@program("iota")
def _iota(d):
    shape, dtype = d.shape(1), np.dtype(d.one(NUMBERS))
    axis = d.axis(len(shape))
    return lambda: lax.broadcasted_iota(dtype, shape, axis), ()


@program("empty", "empty2")
def _empty(name, d):
    """What is in it is not defined: only that it has a shape."""
    shape, dtype = d.shape(), np.dtype(d.one(ALL))
    if name == "empty2":
        where = jax.memory.Space.Device
        return lambda: internal.empty2_p.bind(dtype=dtype, memory_space=where) == 0, ()
    return lambda: internal.empty(shape, dtype) == internal.empty(shape, dtype), ()


@program("platform_index")
def _platform_index(d):
    choices = {"tpu": lambda x: x + 1, "cpu": lambda x: x * 2} if d.flag() else {"cuda": lambda x: x - 1}
    return lambda x: lax.platform_dependent(x, default=lambda x: x * 3, **choices), (d.floats((3,)),)


# places known at run time


@program("dynamic_slice")
def _dynamic_slice(d):
    shape = d.shape(1)
    sizes = [d.number(0, n) for n in shape]
    index = d.one(("i4", "i8"))
    starts = [d.array((), index) for _ in shape]
    return lambda x, *starts: lax.dynamic_slice(x, starts, sizes), (d.array(shape, d.one(ALL)), *starts)


@program("dynamic_update_slice")
def _dynamic_update_slice(d):
    shape, dtype = d.shape(1), d.one(ALL)
    sizes = tuple(d.number(0, n) for n in shape)
    starts = [d.array((), "i4") for _ in shape]
    return lambda x, u, *starts: lax.dynamic_update_slice(x, u, starts), (
        d.array(shape, dtype), d.array(sizes, dtype), *starts,
    )  # fmt: skip


def _windows(d: Draw):
    """An operand's shape, the shape of indices into it, sizes of windows, and how the axes of all belong together."""
    shape = d.shape(1, empty=False)
    rank = len(shape)
    batching = rank > 1 and d.flag(0.3)
    batch_axis = d.axis(rank) if batching else -1
    mapped = [a for a in d.order(rank) if a != batch_axis and d.flag(0.7)]
    sizes = [1 if a == batch_axis else d.number(0 if d.flag(0.1) else 1, n) for a, n in enumerate(shape)]
    collapsed = tuple(a for a in range(rank) if a != batch_axis and sizes[a] == 1 and d.flag())
    index_batch = d.shape(0, 2, empty=d.flag(0.2))
    if batching:
        index_batch = (shape[batch_axis], *index_batch[:1])
    window = [a for a in range(rank) if a != batch_axis and a not in collapsed]
    out_rank = len(index_batch) + len(window)
    offsets = tuple(sorted(d.random.permutation(out_rank)[: len(window)].tolist()))
    out_batch = iter(index_batch)
    out_window = iter(window)
    out_shape = tuple(sizes[next(out_window)] if p in offsets else next(out_batch) for p in range(out_rank))
    operand_batching = (batch_axis,) if batching else ()
    indices = d.random.integers(-1, max(shape) + 1, (*index_batch, len(mapped))).astype(d.one(("i4", "i8")))
    inside = np.array([shape[a] - sizes[a] for a in mapped], dtype=indices.dtype)
    return shape, indices, inside, sizes, collapsed, tuple(mapped), offsets, operand_batching, out_shape


MODES = [lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.PROMISE_IN_BOUNDS]


@program("gather")
def _gather(d):
    shape, indices, inside, sizes, collapsed, mapped, offsets, batching, _ = _windows(d)
    mode, dtype = d.one(MODES), d.one(ALL)
    if mode == lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        indices = np.clip(indices, 0, inside).astype(indices.dtype)
    numbers = lax.GatherDimensionNumbers(offsets, collapsed, mapped, batching, (0,) * len(batching))
    fill = d.one([None, 1]) if mode == lax.GatherScatterMode.FILL_OR_DROP else None
    function = partial(lax.gather, dimension_numbers=numbers, slice_sizes=sizes, mode=mode, fill_value=fill)
    return lambda x, i: function(x, i), (d.array(shape, dtype), indices)


SCATTERS = {
    "scatter": lax.scatter, "scatter-add": lax.scatter_add, "scatter-sub": lax.scatter_sub,
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min, "scatter-max": lax.scatter_max,
}  # fmt: skip


@program(*SCATTERS)
def _scatter(name, d):
    shape, indices, inside, _, collapsed, mapped, offsets, batching, out_shape = _windows(d)
    mode, dtype = d.one(MODES), d.one(NUMBERS)
    if name == "scatter" and indices.ndim > 1 and len(indices):  # which of two updates of one place wins is not defined
        indices = indices[:1] if not batching else indices
        out_shape = _cut(out_shape, offsets, batching, indices)
    if mode == lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        indices = np.clip(indices, 0, inside).astype(indices.dtype)
    numbers = lax.ScatterDimensionNumbers(offsets, collapsed, mapped, batching, (0,) * len(batching))
    arguments = (d.array(shape, dtype, specials=False), indices, d.array(out_shape, dtype, specials=False))
    if name == "scatter" and d.flag(0.4) and indices.size:
        first = indices.reshape(-1, indices.shape[-1])[:1].reshape((1,) * (indices.ndim - 1) + indices.shape[-1:])
        if not batching:
            shapes = tuple(n if p in offsets else 1 for p, n in enumerate(out_shape))
            update = lambda x: x * 2 + 1  # noqa: E731
            return lambda x, i: lax.scatter_apply(x, i, update, numbers, update_shape=shapes, mode=mode), (
                arguments[0], first,
            )  # fmt: skip
    return lambda x, i, u: SCATTERS[name](x, i, u, numbers, mode=mode), arguments


def _cut(out_shape, offsets, batching, indices):
    batch = iter(indices.shape[:-1])
    return tuple(n if p in offsets else next(batch) for p, n in enumerate(out_shape))


# reductions and sorting

REDUCERS = {"reduce_sum": jnp.sum, "reduce_prod": jnp.prod, "reduce_max": jnp.max, "reduce_min": jnp.min}


@program("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor")
def _reduce(name, d):
    kinds = {"and": (*INTEGERS, "b1"), "or": (*INTEGERS, "b1"), "xor": INTEGERS}.get(name[7:], NUMBERS)
    shape, dtype = d.shape(), d.one(kinds)
    axes = d.axes(len(shape))
    bind = getattr(internal, name + "_p").bind
    extra = {"out_sharding": None} if name == "reduce_sum" else {}
    return lambda x: bind(x, axes=axes, **extra), (d.array(shape, dtype),)


@program("argmax", "argmin")
def _arg_extreme(name, d):
    shape = d.shape(1, empty=False)
    axis, index = d.axis(len(shape)), np.dtype(d.one(("i4", "i8", "u1")))
    return lambda x: getattr(lax, name)(x, axis, index), (d.array(shape, d.one(ALL)),)


@program("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(name, d):
    shape, dtype = d.shape(1), d.one(FLOATS if name == "cumlogsumexp" else NUMBERS)
    axis, reverse = d.axis(len(shape)), d.flag()
    return lambda x: getattr(lax, name)(x, axis, reverse), (d.array(shape, dtype),)


@program("sort")
def _sort(d):
    shape = d.shape(1)
    if d.flag(0.1):
        shape = (d.number(49, 60),)  # insertion
    count = d.number(1, 3)
    keys, axis = d.number(1, count), d.axis(len(shape))
    operands = [d.array(shape, d.one(ALL)) for _ in range(count)]
    stable = count == 1 or d.flag(0.8)
    if not stable:  # the order of equal keys is then not defined
        operands = [np.argsort(d.random.random(shape), axis).astype("i4")] * count
    return lambda *xs: lax.sort(xs, dimension=axis, is_stable=stable, num_keys=keys), tuple(operands)


@program("top_k")
def _top_k(d):
    shape = d.shape(1, empty=False)
    axis = d.axis(len(shape))
    k = d.number(1, shape[axis])
    return lambda x: lax.top_k(x, k, axis=axis), (d.array(shape, d.one(NUMBERS)),)


@program("dot_general")
def _dot_general(d):
    batch, contracted, left, right = (
        [d.number(0 if d.flag(0.1) else 1, 5) for _ in range(d.number(0, 2))] for _ in range(4)
    )
    groups = [[("b", n) for n in batch], [("c", n) for n in contracted]]
    sides = []
    for free in (left, right):
        axes = [("b", i, n) for i, (_, n) in enumerate(groups[0])] + [("c", i, n) for i, (_, n) in enumerate(groups[1])]
        axes += [("f", i, n) for i, n in enumerate(free)]
        sides.append([axes[i] for i in d.order(len(axes))])

    def places(side, kind):
        found = {axis[1]: place for place, axis in enumerate(side) if axis[0] == kind}
        return tuple(found[i] for i in sorted(found))

    x_side, y_side = sides
    contracting, batching = ((places(x_side, kind), places(y_side, kind)) for kind in "cb")
    dtype = d.one(ALL)
    wider = {"f4": np.float64, "i1": np.int32, "i4": np.int64}.get(dtype)
    preferred = np.dtype(wider) if wider is not None and d.flag() else None
    precision = d.one([None, lax.Precision.HIGHEST, lax.Precision.DEFAULT])
    arguments = tuple(d.array(tuple(n for *_, n in side), dtype, specials=False) for side in sides)
    return lambda x, y: lax.dot_general(x, y, (contracting, batching), precision, preferred), arguments


@program("reduce")
def _generic_reduce(d):
    shape, dtype = d.shape(1), d.one(FLOATS)
    axes = d.axes(len(shape))
    return lambda x: lax.reduce(x, jnp.zeros((), x.dtype), lambda a, b: a + b + a * b / 8, axes), (
        d.array(shape, dtype, specials=False) * 0.3,
    )  # fmt: skip


# windows


def _window(d: Draw, shape):
    sizes = tuple(d.number(1, 3) for _ in shape)
    strides = tuple(d.number(1, 3) for _ in shape)
    base, dilation = (tuple(d.number(1, 2) for _ in shape) for _ in range(2))
    padding = tuple((d.number(0, 2), d.number(0, 2)) for _ in shape)
    return {
        "window_dimensions": sizes, "window_strides": strides, "padding": padding, "base_dilation": base,
        "window_dilation": dilation,
    }  # fmt: skip


@program("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def _reduce_window(name, d):
    shape, dtype = d.shape(1, 2), d.one(NUMBERS)
    how = _window(d, shape)
    x = d.array(shape, dtype)
    if name == "reduce_window":
        return lambda x: lax.reduce_window(x, jnp.ones((), x.dtype), lambda a, b: a * b, **how), (x,)
    least, most = (-np.inf, np.inf) if dtype[0] == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    combine, start = {
        "reduce_window_sum": (lax.add, 0), "reduce_window_max": (lax.max, least), "reduce_window_min": (lax.min, most),
    }[name]  # fmt: skip
    start = np.asarray(start, dtype)
    return lambda x: lax.reduce_window(x, start, combine, **how), (x,)


@program("select_and_scatter_add", "select_and_gather_add")
def _of_pooling(name, d):
    """They come from derivatives of pooling."""
    shape = d.shape(1, 2, empty=False)
    how, largest = _window(d, shape), d.flag()
    dtype = d.one(FLOATS)
    if name == "select_and_scatter_add":
        how["base_dilation"] = how["window_dilation"] = (1,) * len(shape)
    start, combine = (-np.inf, lax.max) if largest else (np.inf, lax.min)
    x = np.asarray(d.random.permutation(int(np.prod(shape))).reshape(shape), dtype)

    def pooled(x):
        return lax.reduce_window(x, np.asarray(start, dtype), combine, **how)

    if name == "select_and_gather_add":
        return lambda x, t: jax.jvp(pooled, (x,), (t,))[1], (x, d.array(shape, dtype, specials=False))
    out = jax.eval_shape(pooled, x).shape
    return lambda x, t: jax.vjp(pooled, x)[1](t)[0], (x, d.array(out, dtype, specials=False))


@program("conv_general_dilated")
def _convolution(d):
    space = d.number(0, 2)
    groups, batches = d.one([(1, 1), (2, 1), (1, 2)])
    inputs, outputs = d.number(1, 2), d.number(1, 2) * max(groups, batches)
    x_shape = [batches * d.number(1, 2), inputs * groups, *[d.number(1, 5) for _ in range(space)]]
    k_shape = [outputs, inputs, *[d.number(1, 3) for _ in range(space)]]
    specs = [d.order(space + 2) for _ in range(3)]
    dtype = d.one((*FLOATS, "i4", "i1"))
    arguments = []
    for shape, spec in zip((x_shape, k_shape), specs, strict=False):
        turned = [0] * len(shape)
        for place, axis in enumerate(spec):
            turned[axis] = shape[place]
        arguments.append(d.array(tuple(turned), dtype, specials=False))
    numbers = lax.ConvDimensionNumbers(*specs)
    preferred = {"f4": np.float64, "i1": np.int32}.get(dtype) if d.flag() else None
    how = {
        "window_strides": [d.number(1, 2) for _ in range(space)],
        "padding": [(d.number(-1 if n > 2 else 0, 2), d.number(0, 2)) for n in x_shape[2:]],
        "lhs_dilation": [d.number(1, 2) for _ in range(space)],
        "rhs_dilation": [d.number(1, 2) for _ in range(space)],
        "feature_group_count": groups,
        "batch_group_count": batches,
        "precision": d.one([None, lax.Precision.HIGHEST]),
        "preferred_element_type": preferred and np.dtype(preferred),
    }
    return lambda x, k: lax.conv_general_dilated(x, k, dimension_numbers=numbers, **how), tuple(arguments)


# linear algebra: results that are not unique are made so (absolute values, products)


def _matrices(d: Draw, m: int, n: int) -> np.ndarray:
    lead = d.one([(), (), (2,), (0,)])
    return d.array((*lead, m, n), d.one(FLOATS), specials=False)


def _t(x):
    return jnp.swapaxes(x, -1, -2)


@program("cholesky")
def _cholesky(d):
    n = d.one([0, 1, 2, 5, 5, 30])
    a = _matrices(d, n, n)
    positive = a @ np.swapaxes(a, -1, -2) + n * np.eye(n, dtype=a.dtype)
    if d.flag(0.4) and n:  # indefinite: far from singular, so that rounding cannot decide
        positive[..., n // 2, n // 2] = -1.0
    symmetrize = d.flag()
    return lambda a: linalg.cholesky(a, symmetrize_input=symmetrize), (positive,)


@program("triangular_solve")
def _triangular_solve(d):
    n, k = d.number(0 if d.flag(0.1) else 1, 5), d.number(1, 3)
    a = _matrices(d, n, n) + 6 * np.eye(n)
    a = a.astype(d.one(FLOATS))
    how = {name: d.flag() for name in ("left_side", "lower", "transpose_a", "unit_diagonal", "conjugate_a")}
    if how["unit_diagonal"]:
        a = a / 8
    shape = (*a.shape[:-2], n, k) if how["left_side"] else (*a.shape[:-2], k, n)
    return lambda a, b: linalg.triangular_solve(a, b, **how), (
        a.astype(a.dtype),
        d.array(shape, a.dtype.str[1:], specials=False),
    )


@program("lu", "lu_pivots_to_permutation")
def _lu(name, d):
    m, n = (d.one([1, 2, 4, 10]) for _ in range(2))
    return lambda a: linalg.lu(a), (_matrices(d, m, n),)


@program("eigh")
def _eigh(d):
    n, lower = d.number(0 if d.flag(0.1) else 1, 5), d.flag()

    def rebuilt(a):
        vectors, values = linalg.eigh(a, lower=lower, symmetrize_input=False)
        return values, (vectors * values[..., None, :]) @ _t(vectors)

    return rebuilt, (_matrices(d, n, n),)


@program("qr", "geqrf", "householder_product")
def _qr(name, d):
    m, n, full = d.number(1, 5), d.number(1, 5), d.flag()
    a = _matrices(d, m, n)
    if name == "qr":
        pivoting = d.flag(0.1)

        def factors(a):
            q, r, *_ = linalg.qr(a, full_matrices=full, pivoting=pivoting)
            return q @ r, jnp.abs(r[..., :1, :])

        return factors, (a,)

    def packed(a):
        factors, taus = geqrf_p.bind(a)
        return factors, taus, linalg.householder_product(factors[..., : min(m, n)], taus)

    return packed, (a,)


@program("svd")
def _svd(d):
    m, n, full, vectors = d.number(0 if d.flag(0.1) else 1, 5), d.number(1, 5), d.flag(), d.flag(0.8)
    subset = (0, min(m, n)) if d.flag(0.3) else None

    def rebuilt(a):
        found = linalg.svd(a, full_matrices=full, compute_uv=vectors, subset_by_index=subset)
        if not vectors:
            return found
        u, s, vt = found
        k = s.shape[-1]
        return s, (u[..., :k] * s[..., None, :]) @ vt[..., :k, :], _t(u) @ u, vt @ _t(vt)

    return rebuilt, (_matrices(d, m, n),)


# random numbers


def _keys(d: Draw):
    return d.array(d.one([(2,), (3, 2)]), "u4")


@program("random_bits", "random_split", "random_fold_in", "random_seed", "random_gamma")
def _random(name, d):
    shape, width = d.shape(most=2), d.one([8, 16, 32, 64])
    log_space = d.flag()

    def draw(words, seed, a):
        keys = jax.random.wrap_key_data(words)
        first = keys if keys.ndim == 0 else keys[0]
        if name == "random_bits":
            bits = lambda key: jax.random.bits(key, shape, np.dtype(f"uint{width}"))  # noqa: E731
            return jax.vmap(bits)(keys) if keys.ndim else bits(keys)
        if name == "random_split":
            return jax.random.key_data(jax.random.split(first, shape))
        if name == "random_fold_in":
            return jax.random.key_data(jax.random.fold_in(first, seed))
        if name == "random_seed":
            return jax.random.key_data(jax.random.key(seed))
        sample = jax.random.loggamma if log_space else jax.random.gamma
        return sample(first, a, dtype=a.dtype)

    return draw, (_keys(d), d.array((), "i4"), d.array((3,), d.one(FLOATS), 0.2, 4, False))


@program("random_wrap", "random_unwrap", "random_clone")
def _key_words(name, d):
    def words(x):
        keys = jax.random.wrap_key_data(x)
        return jax.random.key_data(jax.random.clone(keys) if name == "random_clone" else keys)

    return words, (_keys(d),)


@program("iota_2x32_shape")
def _iota_2x32(d):
    shape = d.shape(1)
    return lambda: iota_2x32_shape_p.bind(shape=shape), ()


@program("threefry2x32")
def _threefry(d):
    shape = d.shape()
    return lambda *words: threefry2x32_p.bind(*words), tuple(d.array(shape, "u4") for _ in range(4))


# control flow and calls


@program("scan")
def _scan(d):
    length, reverse, count = d.number(0, 12), d.flag(), d.number(0, 2)
    extra = d.floats((2,))
    xs = [d.array((length, *d.shape(most=1)), "f8", specials=False) for _ in range(count)]

    def body(carry, rows):
        total = carry[0] * 0.5 + sum(jnp.sum(r) for r in rows) + jnp.sum(extra)
        return (total, carry[1] + 1), (total, *rows)

    unroll = d.one([1, 2])
    return lambda x, *xs: lax.scan(body, (x, 0), xs, length, reverse, unroll), (d.array((), "f8", specials=False), *xs)


@program("while")
def _while(d):
    shape, bound, step = d.shape(most=1), d.array((), "f8", 0, 3, False), d.one([0.25, 0.5])
    start = d.array(shape, "f8", specials=False)

    def loop(start, bound):
        return lax.while_loop(lambda s: s[0] < bound, lambda s: (s[0] + step, jnp.cos(s[1]) + bound), (0.0, start))

    return (lambda s, b: jax.vmap(loop, (None, 0))(s, jnp.stack([b, b / 2]))) if d.flag(0.3) else loop, (start, bound)


@program("cond")
def _cond(d):
    count = d.number(1, 4)
    index = np.asarray(d.number(-1, count), "i4")
    branches = [lambda x, k=k: jnp.sin(x) * k if k % 2 else jnp.sort(x * k, axis=0) for k in range(count)]
    x = d.array(d.shape(1, 2), "f8", specials=False)
    if d.flag():
        return lambda i, x: lax.cond(i > 0, jnp.sin, lambda x: x + 1, x), (index, x)
    return lambda i, x: lax.switch(i, branches, x), (index, x)


@program("native_call")
def _native_call(d):
    inner = native.jit(lambda x: jnp.sin(x) * 2) if d.flag() else native.vmap(lambda x: jnp.sin(x) * 2)
    return lambda x: inner(x) + 1, (d.array((3, 2), "f8", specials=False),)


@program("native_lanes")
def _native_lanes(d):
    count, axes = d.number(1, 9), (0, None) if d.flag() else (0, 0)
    x = d.array((count, 3), "f8", specials=False)
    y = x[0] if axes[1] is None else x * 2
    return lambda x, y: native.lanes(lambda x, y: jnp.sin(x) * y + x.sum(), axes)(x, y), (x, y)


@program("outlined_call")
def _outlined_call(d):
    """Compiled once if it is long and repeated; the tests lower what counts as long."""
    n = d.number(2, 4)

    @jax.jit
    def long(x, y):
        for k in range(n):
            x = jnp.sin(x) * y + k
        return x, y * 2

    def repeated(x, y):
        for _ in range(3):
            x, y = long(x, y)
        return x, y

    return repeated, (d.array((n,), "f8", specials=False), d.array((n,), "f8", -0.1, 0.1, False))
