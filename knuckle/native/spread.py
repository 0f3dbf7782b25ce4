"""`lanes` and `jacfwd`: a loop over SIMD lanes in native code; elsewhere they are `jax.vmap` and `jax.jacfwd`.

`native_lanes` carries the jaxpr of one element. Native code has that jaxpr once, over vectors of elements; what does
not depend on the element is computed once, before. Its derivatives are loops over lanes too; under `jax.vmap` and
`jax.jit` it is `jax.vmap` of the jaxpr.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.flatten_util import ravel_pytree
from jax.interpreters import ad, batching, mlir

from knuckle.native.api import moved, prefix_leaves, row_of, traced
from knuckle.native.ffi import hoist_tracers, merge, pick

lanes_p = Primitive("native_lanes")
lanes_p.multiple_results = True


def lanes(function: Callable, in_axes: Any = 0) -> Callable:
    """`jax.vmap(function, in_axes)`, which `native.jit` writes once, as a loop over SIMD lanes; results' axis first."""

    def over_lanes(*args: Any) -> Any:
        axes = in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        if len(axes) != len(args):
            raise ValueError(f"native.lanes: expected in_axes for {len(args)} arguments, got {len(axes)}: {in_axes}")
        leaves, tree = jax.tree.flatten((args, {}))
        places = [p for axis, argument in zip(axes, args, strict=True) for p in prefix_leaves(axis, argument)]
        leaves = [moved(leaf, axis) for leaf, axis in zip(leaves, places, strict=True)]
        flags = [axis is not None for axis in places]
        single = [row_of(x, k) if flag else x for k, (x, flag) in enumerate(zip(leaves, flags, strict=True))]
        sizes = {leaf.shape[0] for leaf in pick(flags, leaves)}
        if len(sizes) != 1:
            raise ValueError(f"native.lanes: expected one size of the batch axes, got {sorted(sizes) or 'no axis'}")
        closed, out_tree = traced(function, tree, single)
        closed, hoisted = hoist_tracers(closed)
        flags = (*(False for _ in hoisted), *flags)
        results = lanes_p.bind(*hoisted, *leaves, jaxpr=closed, flags=flags, count=sizes.pop())
        return jax.tree.unflatten(out_tree, results)

    return over_lanes


def jacfwd(function: Callable, argnums: int | Sequence[int] = 0) -> Callable:
    """`jax.jacfwd(function, argnums)` over lanes, with a loop for each argument: zeros of the others vanish in it.

    It goes through the function once for every 8 columns. Where that is dear beside its tangents (a search, say),
    `lanes` of the second result of `jax.linearize` goes through it once and keeps what the tangents need.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def jacobian(*args: Any) -> Any:
        parts = [_of_argument(function, args, number) for number in numbers]
        if isinstance(argnums, int):
            return parts[0]
        outer = jax.tree.structure(jax.eval_shape(function, *args))
        leaves = zip(*[outer.flatten_up_to(part) for part in parts], strict=True)
        return jax.tree.unflatten(outer, list(leaves))

    return jacobian


def _of_argument(function: Callable, args: tuple, number: int) -> Any:
    """Derivatives by one argument: for each leaf of the result the tree of the argument."""
    flat, unravel = ravel_pytree(args[number])
    if not jnp.issubdtype(flat.dtype, jnp.inexact):
        raise TypeError(f"native.jacfwd: expected argument {number} to be of real numbers, got dtype {flat.dtype}")

    def of_flat(x):
        return function(*args[:number], unravel(x), *args[number + 1 :])

    columns = lanes(lambda direction: jax.jvp(of_flat, (flat,), (direction,))[1])(jnp.eye(flat.size, dtype=flat.dtype))
    return jax.tree.map(lambda column: _by_leaves(column, args[number]), columns)


def _by_leaves(columns: Any, argument: Any) -> Any:
    """Columns (first axis) as a tree of arrays of the argument's shapes, behind those of the result."""
    leaves, tree = jax.tree.flatten(argument)
    parts, start = [], 0
    for leaf in leaves:
        shape, size = jnp.shape(leaf), jnp.size(leaf)
        part = jnp.moveaxis(columns[start : start + size], 0, -1)
        parts.append(part.reshape(*part.shape[:-1], *shape))
        start += size
    return jax.tree.unflatten(tree, parts)


def evaluate(*arguments: Any, jaxpr: ClosedJaxpr, flags: tuple[bool, ...], count: int) -> list[Any]:
    """The same by JAX's own means."""
    axes = tuple(0 if flag else None for flag in flags)
    return jax.vmap(jaxpr_as_fun(jaxpr), in_axes=axes, axis_size=count)(*arguments)


@lanes_p.def_abstract_eval
def _abstract_eval(*avals: Any, jaxpr: ClosedJaxpr, flags: tuple[bool, ...], count: int):
    return [ShapedArray((count, *aval.shape), aval.dtype, weak_type=aval.weak_type) for aval in jaxpr.out_avals]


def _jvp(primals, tangents, *, jaxpr: ClosedJaxpr, flags: tuple[bool, ...], count: int):
    """Two loops: of the values, and of their tangents, which computes what it needs of the values again."""
    moving = [type(t) is not ad.Zero for t in tangents]
    results = lanes_p.bind(*primals, jaxpr=jaxpr, flags=flags, count=count)

    def of_one(*row):
        values, directions = row[: len(moving)], row[len(moving) :]

        def of_moving(*changed):
            return jaxpr_as_fun(jaxpr)(*merge(moving, changed, pick(moving, values, False)))

        return pick(smooth, jax.jvp(of_moving, tuple(pick(moving, values)), tuple(directions))[1])

    smooth = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in jaxpr.out_avals]
    ways = [ad.instantiate_zeros(t) for t in pick(moving, tangents)]
    changes = _over_lanes(of_one, [*primals, *ways], (*flags, *pick(moving, flags)), count)
    still = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in pick(smooth, results, False)]
    return results, merge(smooth, changes, still)


def _transpose(cotangents, *arguments, jaxpr: ClosedJaxpr, flags: tuple[bool, ...], count: int):
    """One loop; cotangents of what all lanes share are summed."""
    linear = [ad.is_undefined_primal(x) for x in arguments]
    fixed, unknown = pick(linear, arguments, False), pick(linear, arguments)
    shapes = [_row_shape(x.aval, flag) for x, flag in zip(unknown, pick(linear, flags), strict=True)]

    def of_one(*row):
        values, ways = row[: len(fixed)], row[len(fixed) :]

        def of_linear(*free):
            return jaxpr_as_fun(jaxpr)(*merge(linear, free, values))

        return list(jax.linear_transpose(of_linear, *shapes)(list(ways)))

    given = [ad.instantiate_zeros(c) for c in cotangents]
    found = _over_lanes(of_one, [*fixed, *given], (*pick(linear, flags, False), *(True for _ in given)), count)
    summed = [x if flag else x.sum(axis=0) for x, flag in zip(found, pick(linear, flags), strict=True)]
    return merge(linear, summed, [None] * len(fixed))


def _over_lanes(of_one: Callable, arguments: list, flags: Sequence[bool], count: int) -> list[Any]:
    rows = [_row_shape(jax.typeof(x), flag) for x, flag in zip(arguments, flags, strict=True)]
    closed = jax.make_jaxpr(of_one)(*rows)
    return lanes_p.bind(*arguments, jaxpr=closed, flags=tuple(flags), count=count)


def _row_shape(aval: Any, flag: bool) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape[1:] if flag else aval.shape, aval.dtype)


def _batch(arguments, axes, **params):
    results = jax.vmap(lambda *values: evaluate(*values, **params), in_axes=tuple(axes))(*arguments)
    return results, [0] * len(results)


lanes_p.def_impl(evaluate)
ad.primitive_jvps[lanes_p] = _jvp
ad.primitive_transposes[lanes_p] = _transpose
batching.primitive_batchers[lanes_p] = _batch
mlir.register_lowering(lanes_p, mlir.lower_fun(evaluate, multiple_results=True))
