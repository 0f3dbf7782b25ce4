"""Convolutions, reductions over windows and generic reductions, in terms of padding, strided slices and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_derived import derived, lower_derived
from knuckle.native.lower_elementwise import result
from knuckle.native.lower_reduce import check_precision
from knuckle.native.trace import UnsupportedValue, close
from knuckle.native.values import Value

SHAPE = ("window_dimensions", "window_strides", "padding")
DILATED = (*SHAPE, "base_dilation", "window_dilation")
CONVOLUTION = (
    "window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers", "feature_group_count",
    "batch_group_count", "precision",
)  # fmt: skip


class Window:
    """Where a window lies: its sizes, strides and dilations along each axis of an array, and how that is padded."""

    def __init__(self, shape: Sequence[int], sizes, strides, padding, base_dilation=None, window_dilation=None):
        ones = (1,) * len(shape)
        self.shape, self.sizes, self.strides, self.padding = tuple(shape), sizes, strides, tuple(padding)
        self.base, self.dilation = base_dilation or ones, window_dilation or ones
        spread = [n + max(n - 1, 0) * (d - 1) for n, d in zip(self.shape, self.base, strict=True)]
        self.padded = tuple(n + low + high for n, (low, high) in zip(spread, self.padding, strict=True))
        reach = [(w - 1) * d + 1 for w, d in zip(sizes, self.dilation, strict=True)]
        room = zip(self.padded, reach, strides, strict=True)
        self.places = tuple((n - r) // s + 1 if n >= r else 0 for n, r, s in room)

    def pad(self, x, fill):
        config = [(low, high, d - 1) for (low, high), d in zip(self.padding, self.base, strict=True)]
        return lax.pad(x, jnp.asarray(fill, x.dtype), config)

    def offsets(self):
        """Each element of the window, as its offset from the window's start."""
        for place in np.ndindex(*self.sizes):
            yield [p * d for p, d in zip(place, self.dilation, strict=True)]

    def slices(self, padded):
        """For each element of the window the array of its values over all places of the window."""
        for offset in self.offsets():
            stops = [o + (n - 1) * s + 1 for o, n, s in zip(offset, self.places, self.strides, strict=True)]
            yield lax.slice(padded, offset, stops, self.strides)

    def put_back(self, values, offset):
        """An array of the padded shape with `values` where the element at `offset` of each window lies."""
        ends = zip(self.padded, offset, self.places, self.strides, strict=True)
        config = [(o, n - o - (count - 1) * s - 1, s - 1) for n, o, count, s in ends]
        return lax.pad(values, jnp.zeros((), values.dtype), config)

    def crop(self, padded):
        """What `pad` padded."""
        back = [(-low, -high, 0) for low, high in self.padding]
        return lax.pad(padded, jnp.zeros((), padded.dtype), back)


def _window(params, shape) -> Window:
    return Window(shape, *[params[name] for name in DILATED])


def _largest(dtype):
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else (False if dtype == np.bool_ else jnp.iinfo(dtype).min)


def _smallest(dtype):
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else (True if dtype == np.bool_ else jnp.iinfo(dtype).max)


def _fold(window: Window, x, fill, combine: Callable):
    if 0 in window.places:
        return jnp.full(window.places, fill, x.dtype)
    total = None
    for part in window.slices(window.pad(x, fill)):
        total = part if total is None else combine(total, part)
    return jnp.full(window.places, fill, x.dtype) if total is None else total


@derived("reduce_window_sum", reads=DILATED)
def reduce_window_sum(params, x):
    return _fold(_window(params, x.shape), x, 0, lax.add)


@derived("reduce_window_max", reads=DILATED)
def reduce_window_max(params, x):
    return _fold(_window(params, x.shape), x, _largest(x.dtype), lax.max)


@derived("reduce_window_min", reads=DILATED)
def reduce_window_min(params, x):
    return _fold(_window(params, x.shape), x, _smallest(x.dtype), lax.min)


def _over_elements(jaxpr, consts, rank: int) -> Callable:
    """A jaxpr of scalars as a function of arrays of that rank."""
    function = jaxpr_as_fun(close(jaxpr, consts))
    for _ in range(rank):
        function = jax.vmap(function)
    return function


def _halves(values):
    return values[: len(values) // 2], values[len(values) // 2 :]


@derived("reduce_window", reads=(*DILATED, "jaxpr", "consts"))
def reduce_window(params, *values):
    operands, starts = _halves(values)
    window = _window(params, operands[0].shape)
    combine = _over_elements(params["jaxpr"], params["consts"], operands[0].ndim)
    totals = [jnp.broadcast_to(start, window.places) for start in starts]
    if 0 in window.places:
        return totals
    columns = [window.slices(window.pad(x, start)) for x, start in zip(operands, starts, strict=True)]
    for parts in zip(*columns, strict=True):
        totals = combine(*totals, *parts)
    return totals


@derived("reduce", reads=("jaxpr", "dimensions"), harmless=("computation",))
def reduce(params, *values):
    """One element after the other along the reduced axes."""
    operands, totals = _halves(values)
    axes = [d % operands[0].ndim for d in params["dimensions"]]
    kept = [a for a in range(operands[0].ndim) if a not in axes]
    shape = [operands[0].shape[a] for a in kept]
    rows = [jnp.transpose(x, (*axes, *kept)).reshape(-1, *shape) for x in operands]
    combine = _over_elements(params["jaxpr"].jaxpr, params["jaxpr"].consts, len(kept))
    totals = [jnp.broadcast_to(t, shape) for t in totals]

    def step(totals, row):
        return tuple(combine(*totals, *row)), None

    return list(lax.scan(step, tuple(totals), tuple(rows))[0])


def _chosen(window: Window, x, fill, prefers: Callable):
    """For each place of the window the number of the element that `prefers` keeps."""
    parts = list(window.slices(window.pad(x, fill)))
    best, number = parts[0], jnp.zeros(window.places, jnp.int32)
    for k, value in enumerate(parts[1:], 1):
        keep = prefers(best, value)
        best, number = jnp.where(keep, best, value), jnp.where(keep, number, k)
    return number


@derived("select_and_scatter_add", reads=(*SHAPE, "select_prim"))
def select_and_scatter_add(params, source, x):
    """As JAX has it on the CPU: padding counts as the value that the selection likes least."""
    window = Window(x.shape, *[params[name] for name in SHAPE])
    select = params["select_prim"]
    if select.name not in ("ge", "le"):
        raise UnsupportedValue(f"with select_prim={select}")
    if 0 in window.places or 0 in x.shape:
        return jnp.zeros(x.shape, source.dtype)
    fill = _largest(x.dtype) if select.name == "ge" else _smallest(x.dtype)
    number, total = _chosen(window, x, fill, select.bind), jnp.zeros(window.padded, source.dtype)
    for k, offset in enumerate(window.offsets()):
        total = total + window.put_back(jnp.where(number == k, source, jnp.zeros_like(source)), offset)
    return window.crop(total)


@derived("select_and_gather_add", reads=(*DILATED, "select_prim"))
def select_and_gather_add(params, tangents, x):
    """The tangent at the element that each window selects: a reduction of pairs, as JAX has it on the CPU."""
    select = params["select_prim"]
    window = _window(params, x.shape)
    best = jnp.full(window.places, -jnp.inf if select.name == "ge" else jnp.inf, x.dtype)
    chosen = jnp.zeros(window.places, tangents.dtype)
    if 0 in window.places:
        return chosen
    fill = -jnp.inf if select.name == "ge" else jnp.inf
    pairs = zip(window.slices(window.pad(x, fill)), window.slices(window.pad(tangents, 0)), strict=True)
    for value, tangent in pairs:
        which = select.bind(best, value)
        best, chosen = jnp.where(which, best, value), jnp.where(which, chosen, tangent)
    return chosen


@rule("conv_general_dilated", reads=CONVOLUTION, harmless=("preferred_element_type", "out_sharding"))
def _convolution(b: Lowering, equation, x: Value, kernel: Value):
    p = equation.params
    check_precision(p["precision"])
    dtype = np.dtype(result(equation)[1])
    return lower_derived(b, lambda p, x, k: convolution(p, x.astype(dtype), k.astype(dtype)), p, x, kernel)


def convolution(params, x, kernel):
    """All elements under the kernel at each of its places, times the kernel, group by group."""
    numbers = params["dimension_numbers"]
    x, kernel = jnp.transpose(x, numbers.lhs_spec), jnp.transpose(kernel, numbers.rhs_spec)
    batch, features, *space = x.shape
    outputs, inputs, *sizes = kernel.shape
    dilation = params["lhs_dilation"], params["rhs_dilation"]
    window = Window(space, sizes, params["window_strides"], params["padding"], *dilation)
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    taps, places = math.prod(sizes), math.prod(window.places)
    if 0 in (batch, features, outputs, taps, places):
        out = jnp.zeros((batch // batches, outputs, *window.places), x.dtype)
        return _in_order(out, numbers.out_spec)
    lines = jnp.reshape(x, (batch * features, *space))
    with_lines = Window(
        lines.shape, (1, *sizes), (1, *window.strides), ((0, 0), *window.padding), (1, *window.base),
        (1, *window.dilation),
    )  # fmt: skip
    patches = jnp.stack(list(with_lines.slices(with_lines.pad(lines, 0))), axis=1)
    split = max(groups, batches)
    patches = patches.reshape(batches, batch // batches, groups, features // groups, taps, places)
    patches = jnp.moveaxis(patches, 2, 1).reshape(split, batch // batches, features // groups, taps, places)
    weights = kernel.reshape(split, outputs // split, inputs, taps)
    out = jnp.einsum("gnctp,goct->ngop", patches, weights)
    return _in_order(out.reshape(batch // batches, outputs, *window.places), numbers.out_spec)


def _in_order(out, spec):
    return jnp.transpose(out, np.argsort(spec).tolist())
