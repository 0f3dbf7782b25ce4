"""`jit` and `vmap`: native code as a drop-in for JAX's own, on the CPU and for functions of small static shapes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.config import trace_context  # the options of JAX that change what is traced, as in the key of jax.jit

from knuckle.native.compile import Compiled
from knuckle.native.ffi import Program
from knuckle.native.fingerprint import program_key
from knuckle.native.lower import COVERED, is_covered
from knuckle.native.sparsity import MOST_PATTERNS, Zeros, chosen_leaves, with_zeros, zero_pattern, zeros_of

NUMBERS = (bool, int, float)


def leaf_key(leaf: Any) -> tuple:
    """What of a leaf the compiled code depends on."""
    return (type(leaf),) if type(leaf) in NUMBERS else (leaf.shape, leaf.dtype)


def static_key(value: Any) -> Any:
    """A static argument as part of a key: values of different types differ (1, 1.0, True), and so do 0.0 and -0.0."""
    if isinstance(value, (float, complex, np.generic)):
        return type(value), np.asarray(value).tobytes()
    if isinstance(value, tuple):
        return type(value), tuple(map(static_key, value))
    if isinstance(value, frozenset):
        return type(value), frozenset(map(static_key, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.compare]
        return type(value), value, tuple(static_key(getattr(value, name)) for name in fields)
    return type(value), value


def check_leaves(arguments: Any) -> None:
    """An error for the first leaf that is not an array or a number."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        where = _where(path)
        if not isinstance(leaf, (np.ndarray, np.generic, jax.Array, *NUMBERS)):
            raise TypeError(f"native: expected an array or a number at {where}, got {type(leaf).__name__} {leaf!r:.60}")
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and not is_covered(dtype):
            raise TypeError(f"native: expected {COVERED} at {where}, got dtype {dtype}")


def _where(path) -> str:
    """A leaf of (args, kwargs) in the words of the caller."""
    inner = jax.tree_util.keystr(path[2:])
    position = path[1].idx if hasattr(path[1], "idx") else repr(path[1].key)
    return f"argument {position}{inner}"


def traced(function: Callable, tree: Any, leaves: Sequence[Any], zeros: Zeros | None = None) -> tuple[Any, Any]:
    """The jaxpr of `function` on flat leaves of (args, kwargs), and the tree of its result."""
    out_tree = None

    def flat(*values):
        nonlocal out_tree
        args, kwargs = jax.tree.unflatten(tree, with_zeros(values, zeros or {}))
        result, out_tree = jax.tree.flatten(function(*args, **kwargs))
        return result

    return jax.make_jaxpr(flat)(*leaves), out_tree


class Native:
    """A function that compiles itself for each structure, shape and dtype of its arguments."""

    def __init__(
        self,
        function: Callable,
        static_argnums: Sequence[int] = (),
        static_argnames: Sequence[str] = (),
        sparse: Callable | None = None,
    ):
        self.function = function
        self._static_numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        self._static_names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self._sparse = sparse
        self._chosen: dict[Any, tuple[int, ...]] = {}  # leaves whose zeros are compiled in, by tree
        self._patterns: dict[Any, set] = {}  # of zeros, by the rest of the key
        self._versions: dict[Any, tuple[Program, Any]] = {}
        self._programs: dict[str, Program] = {}  # by content
        self._quick: Callable[..., Any] | None = None  # for the plain arrays of the last version that took only such
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._quick is None or kwargs:
            return self._call(args, kwargs)
        return self._quick(*args)

    def _call(self, args: tuple, kwargs: dict) -> Any:
        program, out_tree, leaves = self._version(args, kwargs)
        return jax.tree.unflatten(out_tree, program(*leaves))

    def _make_quick(self, program: Program, tree: Any, out_tree: Any, leaves: Sequence[Any]) -> None:
        """Where arguments and results are arrays without structure, skip the search for the version on later calls."""
        form = _form(out_tree)
        flat_arguments = tree == jax.tree.structure(((0,) * len(leaves), {}))
        if form and flat_arguments and all(type(leaf) is np.ndarray for leaf in leaves):
            condition = trace_context, trace_context()
            self._quick = program.function().builtin(lambda *args: self._call(args, {}), form, condition)

    def compiled(self, *args: Any, **kwargs: Any) -> Compiled:
        """The machine code for these arguments; see its `report()`."""
        code = self._version(args, kwargs)[0].function().code
        assert isinstance(code, Compiled)
        return code

    def flat(self, *args: Any) -> tuple[Callable[..., list[Any]], Any]:
        """For arguments of exactly this structure, shape and dtype: a function of their flat leaves to flat results.

        Also the tree of the results. The function checks little, so that a call costs microseconds; options of JAX are
        those of now.
        """
        program, out_tree, _ = self._version(args, {})
        return program, out_tree

    def _version(self, args: tuple, kwargs: dict) -> tuple[Program, Any, list[Any]]:
        function, static = self.function, ()
        if self._static_numbers or self._static_names:
            function, args, kwargs, static = self._bind_static(args, kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        try:
            key: tuple = (tree, static, trace_context(), *map(leaf_key, leaves))
            pattern = () if self._sparse is None else self._zero_pattern(key, tree, leaves)
            found = self._versions.get((key, pattern))
        except (AttributeError, TypeError):
            check_leaves((args, kwargs))
            raise
        if found is None:
            check_leaves((args, kwargs))
            zeros = zeros_of(leaves, self._chosen[tree]) if pattern else {}
            found = self._specialise(function, tree, leaves, zeros)
            if not found[0].hoisted:
                self._versions[key, pattern] = found  # a program around tracers is good for this call only
                if not static and self._sparse is None:
                    self._make_quick(found[0], tree, found[1], leaves)
        return (*found, leaves)

    def _specialise(self, function: Callable, tree: Any, leaves: Sequence[Any], zeros: Zeros) -> tuple[Program, Any]:
        closed, out_tree = traced(function, tree, leaves, zeros)
        return self._shared(Program(closed)), out_tree

    def _shared(self, program: Program) -> Program:
        """An equal program of another version: Python and NumPy numbers share one if all dtypes are the same."""
        content = None if program.hoisted else program_key(program.jaxpr, batch=program.batched)
        return program if content is None else self._programs.setdefault(content, program)

    def _zero_pattern(self, key: tuple, tree: Any, leaves: Sequence[Any]) -> tuple:
        """Which elements of the chosen leaves are zero; () if code for no zeros is to be used."""
        assert self._sparse is not None
        if tree not in self._chosen:
            self._chosen[tree] = chosen_leaves(self._sparse, tree)
        pattern = zero_pattern(leaves, self._chosen[tree])
        known = self._patterns.setdefault(key, set())
        if pattern not in known:
            if len(known) >= MOST_PATTERNS:
                return ()
            known.add(pattern)
        return pattern

    @functools.cached_property
    def _names(self) -> list[str]:
        return list(inspect.signature(self.function).parameters)

    def _bind_static(self, args: tuple, kwargs: dict) -> tuple[Callable, tuple, dict, tuple]:
        """The function with its static arguments filled in, the other arguments, and a key for the static ones."""
        names = self._names
        wanted = {names[n] for n in self._static_numbers} | set(self._static_names)
        fixed = {i: a for i, a in enumerate(args) if i < len(names) and names[i] in wanted}
        fixed_by_name = {k: v for k, v in kwargs.items() if k in wanted}

        def bound(*rest, **others):
            following = iter(rest)
            full = [fixed[i] if i in fixed else next(following) for i in range(len(rest) + len(fixed))]
            return self.function(*full, **others, **fixed_by_name)

        free = tuple(a for i, a in enumerate(args) if i not in fixed)
        by_name = sorted(fixed_by_name.items())
        key = (
            tuple((i, static_key(a)) for i, a in sorted(fixed.items())),
            tuple((k, static_key(v)) for k, v in by_name),
        )
        hash(key)
        return bound, free, {k: v for k, v in kwargs.items() if k not in fixed_by_name}, key


def _form(out_tree: Any) -> str | None:
    """How results without structure come: the leaf itself, a tuple or a list of leaves; None for anything else."""
    leaves = (0,) * out_tree.num_leaves
    forms = {"leaf": 0, "tuple": leaves, "list": list(leaves)}
    return next((name for name, example in forms.items() if jax.tree.structure(example) == out_tree), None)


class NativeBatch(Native):
    """A function over a batch: SIMD lanes times threads."""

    def __init__(self, function: Callable, in_axes: Any, threads: int | None):
        super().__init__(function)
        self._in_axes, self._threads = in_axes, threads
        self._rows: dict[Any, tuple[Program, Any]] = {}  # programs serve batches of any size

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = self._with_leading_axes(args)
        return super().__call__(*args, **kwargs)

    def compiled(self, *args: Any, **kwargs: Any) -> Compiled:
        return super().compiled(*self._with_leading_axes(args), **kwargs)

    def flat(self, *args: Any) -> tuple[Callable[..., list[Any]], Any]:
        if any(axis not in (0, None) for axis in self._axes(args)):
            raise ValueError("native.vmap: flat leaves need their batch axis in front")
        return super().flat(*args)

    def _axes(self, args: tuple, kwargs: dict | None = None) -> list[int | None]:
        """The batch axis of every leaf; keyword arguments are batched along their first axis, as in JAX."""
        axes = self._in_axes if isinstance(self._in_axes, (tuple, list)) else (self._in_axes,) * len(args)
        if len(axes) != len(args):
            raise ValueError(
                f"native.vmap: expected in_axes for {len(args)} arguments, got {len(axes)}: {self._in_axes}"
            )
        flat: list[int | None] = []
        for axis, argument in zip(axes, args, strict=True):
            flat += prefix_leaves(axis, argument)
        return flat + [0] * len(jax.tree.leaves(kwargs or {}))

    def _with_leading_axes(self, args: tuple) -> tuple:
        axes = self._axes(args)
        if all(axis in (0, None) for axis in axes):
            return args
        leaves, tree = jax.tree.flatten(args)
        leaves = [moved(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)]
        return jax.tree.unflatten(tree, leaves)

    def _specialise(self, function: Callable, tree: Any, leaves: Sequence[Any], zeros: Zeros) -> tuple[Program, Any]:
        args, kwargs = jax.tree.unflatten(tree, leaves)
        flags = tuple(axis is not None for axis in self._axes(args, kwargs))
        if not any(flags):
            raise ValueError("native.vmap: expected at least one batched argument, got in_axes None for all")
        single = [
            row_of(leaf, number) if flag else leaf
            for number, (leaf, flag) in enumerate(zip(leaves, flags, strict=True))
        ]
        key = (tree, flags, trace_context(), *map(leaf_key, single))
        if key in self._rows:
            return self._rows[key]
        closed, out_tree = traced(function, tree, single)
        program = self._shared(Program(closed, flags))
        program.function().threads = self._threads
        if not program.hoisted:
            self._rows[key] = program, out_tree
        return program, out_tree


def prefix_leaves(axis: Any, argument: Any) -> list[int | None]:
    """One axis per leaf from a prefix tree of axes, in which None stands for no batch axis."""
    if axis is None or isinstance(axis, int):
        return [axis] * len(jax.tree.leaves(argument))
    spread = jax.tree.map(lambda a, part: [a] * len(jax.tree.leaves(part)), axis, argument, is_leaf=lambda a: a is None)
    return [a for part in jax.tree.leaves(spread, is_leaf=lambda x: isinstance(x, list)) for a in part]


def moved(leaf: Any, axis: int | None) -> Any:
    if axis in (0, None):
        return leaf
    return np.moveaxis(leaf, axis, 0) if isinstance(leaf, np.ndarray) else jnp.moveaxis(leaf, axis, 0)


def row_of(leaf: Any, number: int) -> jax.ShapeDtypeStruct:
    if np.ndim(leaf) == 0:
        raise ValueError(
            f"native.vmap: expected a batch axis on leaf {number} of the arguments, got a scalar {leaf!r:.60}"
        )
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def jit(
    function: Callable,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    sparse: Callable | None = None,
) -> Native:
    """`function` as native code, compiled once for each structure, shape and dtype of its arguments.

    Takes and returns pytrees of NumPy arrays (then NumPy comes back) or JAX arrays; works under and around `jax.jit`,
    `jax.grad`, `jax.jvp` and `jax.vmap`. Values that `function` closes over are constants and fold away.

    `sparse(*args, **kwargs)` returns those of the arguments (without static ones) whose zeros are compiled in: the
    robot's axes and placements, for example. Other values of them stay free. Up to 4 patterns of zeros have code of
    their own; beyond, they share code that knows no zeros.
    """
    return Native(function, static_argnums, static_argnames, sparse)  # type: ignore[arg-type]


def vmap(function: Callable, in_axes: Any = 0, *, threads: int | None = None) -> NativeBatch:
    """`function` over a batch as native code: one batch element per SIMD lane, lanes times threads.

    `in_axes` is as in `jax.vmap`; results have the batch axis first. `threads` defaults to all cores. Each element has
    the same bits as `jit(function)` gives it alone. Where a long loop ends at run time, elements run one by one
    (`llvm_batch`): lanes would wait for each other.
    """
    return NativeBatch(function, in_axes, threads)
