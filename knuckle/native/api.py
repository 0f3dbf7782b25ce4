"""`jit`: a drop-in for `jax.jit` on the CPU, for functions of small static shapes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from knuckle.native.compile import Compiled, compile_jaxpr
from knuckle.native.runtime import Function

ARRAY_LIKE = (np.ndarray, np.generic, jax.Array, bool, int, float)


@dataclass(frozen=True)
class Specialised:
    """A function compiled for one structure of arguments: call it with flat leaves."""

    compiled: Compiled
    run: Function
    out_tree: Any
    closed_jaxpr: Any


def leaf_key(leaf: Any) -> tuple:
    """What of a leaf the compiled code depends on."""
    if isinstance(leaf, (bool, int, float)) and not isinstance(leaf, np.generic):
        return (type(leaf),)
    return (leaf.shape, leaf.dtype)


def check_leaves(leaves: Sequence[tuple[Any, Any]]) -> None:
    for path, leaf in leaves:
        if not isinstance(leaf, ARRAY_LIKE):
            where = jax.tree_util.keystr(path)
            raise TypeError(f"native: expected an array or a number at arguments{where}, got {type(leaf).__name__} {leaf!r:.60}")
        if hasattr(leaf, "dtype") and np.dtype(leaf.dtype).kind not in "fiub":
            where = jax.tree_util.keystr(path)
            raise TypeError(f"native: expected floats, integers or booleans at arguments{where}, got dtype {leaf.dtype}")


def specialise(function: Callable, tree: Any, leaves: Sequence[Any]) -> Specialised:
    """Trace and compile `function` for arguments of this structure, shapes and dtypes."""
    args, kwargs = jax.tree.unflatten(tree, range(len(leaves)))
    check_leaves(jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, list(leaves)))[0])
    del args, kwargs
    out_tree = None

    def flat(*values):
        nonlocal out_tree
        call_args, call_kwargs = jax.tree.unflatten(tree, values)
        result, out_tree = jax.tree.flatten(function(*call_args, **call_kwargs))
        return result

    closed = jax.make_jaxpr(flat)(*leaves)
    compiled = compile_jaxpr(closed)
    return Specialised(compiled, Function(compiled, compiled.in_avals, compiled.out_avals), out_tree, closed)


class Jitted:
    """A function that compiles itself to native code for each structure, shape and dtype of its arguments."""

    def __init__(self, function: Callable, static_argnums: Sequence[int] = (), static_argnames: Sequence[str] = ()):
        self.function = function
        self._static_numbers = tuple(static_argnums)
        self._static_names = tuple(static_argnames)
        self._versions: dict[Any, Specialised] = {}
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        version, leaves = self._version(args, kwargs)
        return jax.tree.unflatten(version.out_tree, version.run(*leaves))

    def compiled(self, *args: Any, **kwargs: Any) -> Compiled:
        """The machine code for these arguments, with its `report()`."""
        return self._version(args, kwargs)[0].compiled

    def _version(self, args: tuple, kwargs: dict) -> tuple[Specialised, list[Any]]:
        function, static = self.function, ()
        if self._static_numbers or self._static_names:
            function, args, kwargs, static = self._bind_static(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        try:
            key = (tree, static, jax.config.jax_enable_x64, *[leaf_key(leaf) for leaf in leaves])  # type: ignore[attr-defined]
            found = self._versions.get(key)
        except (AttributeError, TypeError):
            check_leaves(jax.tree_util.tree_flatten_with_path((args, kwargs))[0])
            raise
        if found is None:
            found = self._versions[key] = specialise(function, tree, leaves)
        return found, leaves

    def _bind_static(self, args: tuple, kwargs: dict) -> tuple[Callable, tuple, dict, tuple]:
        names = list(inspect.signature(self.function).parameters)
        numbers = {n % max(len(args), 1) for n in self._static_numbers}
        numbers |= {names.index(name) for name in self._static_names if name in names and names.index(name) < len(args)}
        static_args = {i: args[i] for i in numbers if i < len(args)}
        static_kwargs = {k: v for k, v in kwargs.items() if k in self._static_names}
        free = tuple(a for i, a in enumerate(args) if i not in static_args)

        def bound(*rest, **others):
            following = iter(rest)
            count = len(rest) + len(static_args)
            full = [static_args[i] if i in static_args else next(following) for i in range(count)]
            return self.function(*full, **others, **static_kwargs)

        key = (tuple(sorted(static_args.items())), tuple(sorted(static_kwargs.items())))
        return bound, free, {k: v for k, v in kwargs.items() if k not in static_kwargs}, key


def jit(function: Callable, *, static_argnums: Sequence[int] = (), static_argnames: Sequence[str] = ()) -> Jitted:
    """Compile `function` to native code when it is called, once for each structure, shape and dtype of its arguments."""
    return Jitted(function, static_argnums, static_argnames)
