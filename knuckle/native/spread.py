"""`lanes` and `jacfwd`: a loop over SIMD lanes in native code; elsewhere they are `jax.vmap` and `jax.jacfwd`.

`native_lanes` carries the jaxpr of one element. Native code has that jaxpr once, over vectors of elements; what does
not depend on the element is computed once, before. JAX's own transformations see `jax.vmap` of the jaxpr.
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
    return [ShapedArray((count, *aval.shape), aval.dtype) for aval in jaxpr.out_avals]


def _jvp(primals, tangents, **params):
    moving = [type(t) is not ad.Zero for t in tangents]
    fixed = pick(moving, primals, False)

    def of_moving(*values):
        return evaluate(*merge(moving, values, fixed), **params)

    return jax.jvp(of_moving, tuple(pick(moving, primals)), tuple(pick(moving, tangents)))


def _batch(arguments, axes, **params):
    results = jax.vmap(lambda *values: evaluate(*values, **params), in_axes=tuple(axes))(*arguments)
    return results, [0] * len(results)


lanes_p.def_impl(evaluate)
ad.primitive_jvps[lanes_p] = _jvp
batching.primitive_batchers[lanes_p] = _batch
mlir.register_lowering(lanes_p, mlir.lower_fun(evaluate, multiple_results=True))
