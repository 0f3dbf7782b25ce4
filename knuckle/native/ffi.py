"""Native code as a JAX primitive: jit, grad, jvp and vmap around it stay native.

`native_call` carries a `Program`, a jaxpr with what is derived from it (tangent map, transpose, over a batch), each
compiled when first lowered. Under `jax.jit` on a CPU it becomes one XLA FFI call of machine code; on other platforms
it is the jaxpr itself.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from knuckle.native import runtime
from knuckle.native.cache import compile_cached
from knuckle.native.compile import Compiled
from knuckle.native.trampoline import trampoline_object

TARGET = "knuckle_native_call"
STACK_BYTES = 16384  # workspaces up to here cost least on the stack of the calling thread
HOST_TYPES = {np.ndarray, bool, int, float, *(np.dtype(code).type for code in "?bhilqBHILQefd")}


class Program:
    """A closed jaxpr to run natively; `batched` says which inputs have a leading batch axis (then all outputs have).

    `Program(jax.make_jaxpr(f)(*leaves))(*leaves)` takes and returns flat leaves, tracers too; keep it for each
    signature of f. `function().code` is what the compiler made. Constants of the jaxpr that are tracers (of a
    transformation around) become further inputs; such a program must not outlive the transformation.
    """

    def __init__(self, jaxpr: ClosedJaxpr, batched: tuple[bool, ...] | None = None):
        jaxpr, self.hoisted = hoist_tracers(jaxpr)
        self.jaxpr = jaxpr
        self.batched = None if batched is None else (*(False for _ in self.hoisted), *batched)
        self.in_avals = [ShapedArray(aval.shape, aval.dtype) for aval in jaxpr.in_avals]
        self.out_avals = [ShapedArray(aval.shape, aval.dtype) for aval in jaxpr.out_avals]
        self._function: runtime.Function | None = None
        self._derived: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def __call__(self, *leaves: Any) -> list[Any]:
        """The flat results: computed at once for NumPy arrays and Python numbers, else through JAX."""
        if HOST_TYPES.issuperset(map(type, leaves)) and not self.hoisted:
            return (self._function or self.function()).call(*leaves)
        leaves = (*self.hoisted, *leaves)
        rows = None if self.batched is None else self._batch_size(leaves)
        for leaf in leaves:
            if isinstance(leaf, Tracer):
                return native_call_p.bind(*leaves, program=self, rows=rows)
        return _call_now(*leaves, program=self, rows=rows)

    def jitted(self, rows: int | None) -> Callable[..., list[Any]]:
        """The call as a compiled JAX function, which dispatches faster than a primitive alone."""
        return self.derive(("jitted", rows), lambda: jax.jit(partial(native_call_p.bind, program=self, rows=rows)))

    def _batch_size(self, leaves: Sequence[Any]) -> int:
        sizes = {np.shape(leaf)[0] for leaf, flag in zip(leaves, self.batched or (), strict=True) if flag}
        if len(sizes) != 1:
            raise ValueError(f"expected one batch size for all batched arguments, got {sorted(sizes)}")
        return sizes.pop()

    def function(self) -> runtime.Function:
        """The machine code, made on first use."""
        with self._lock:
            if self._function is None:
                self._function = self._load(compile_cached(self.jaxpr, self.batched))
            return self._function

    def _load(self, code: Compiled) -> runtime.Function:
        try:
            return runtime.Function(code, self.in_avals, self.out_avals, self.batched)
        except RuntimeError:  # what was kept does not link
            code = compile_cached(self.jaxpr, self.batched, fresh=True)
            return runtime.Function(code, self.in_avals, self.out_avals, self.batched)

    def evaluate(self, *leaves: Any) -> list[Any]:
        """The same by JAX's own means."""
        function = jaxpr_as_fun(self.jaxpr)
        if self.batched is None:
            return function(*leaves)
        axis_size = self._batch_size(leaves)
        axes = tuple(0 if flag else None for flag in self.batched)
        return jax.vmap(function, in_axes=axes, axis_size=axis_size)(*leaves)

    def flags(self) -> tuple[bool, ...]:
        return self.batched or (False,) * len(self.in_avals)

    def derive(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once for each key."""
        if key in self._derived:
            return self._derived[key]
        with self._lock:
            if key not in self._derived:
                self._derived[key] = make()
            return self._derived[key]

    def over_batch(self, flags: tuple[bool, ...]) -> Program:
        """The program with a batch axis on the flagged inputs."""
        return self.derive(("batch", flags), lambda: Program(self.jaxpr, flags if any(flags) else None))

    def tangent_map(self, moving: tuple[bool, ...]) -> tuple[Program, tuple[bool, ...]]:
        return self.derive(("tangent map", moving), lambda: differentiate(self, moving))

    def transposed(self, unknown: tuple[bool, ...], nonzero: tuple[bool, ...]) -> Program:
        return self.derive(("transposed", unknown, nonzero), lambda: transpose(self, unknown, nonzero))


def hoist_tracers(closed: Any) -> tuple[Any, list[Any]]:
    """The closed jaxpr with the constants that are tracers as its first inputs, and those tracers."""
    flags = [isinstance(value, Tracer) for value in closed.consts]
    if not any(flags):
        return closed, []
    hoisted = _with_variables(
        closed,
        constvars=pick(flags, closed.jaxpr.constvars, False),
        invars=[*pick(flags, closed.jaxpr.constvars), *closed.jaxpr.invars],
        consts=pick(flags, closed.consts, False),
    )
    return hoisted, pick(flags, closed.consts)


def is_inexact(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def merge(flags: Sequence[bool], where_set: Sequence[Any], elsewhere: Sequence[Any]) -> list[Any]:
    """One list that takes from the first where the flag is set, else from the second."""
    yes, no = iter(where_set), iter(elsewhere)
    return [next(yes) if flag else next(no) for flag in flags]


def pick(flags: Sequence[bool], values: Sequence[Any], wanted: bool = True) -> list[Any]:
    return [value for flag, value in zip(flags, values, strict=True) if flag is wanted]


def differentiate(program: Program, moving: tuple[bool, ...]) -> tuple[Program, tuple[bool, ...]]:
    """The tangent map: from all inputs and the tangents of the moving ones to the tangents of outputs that can move.

    It computes again what it needs of the primal values. Stored instead, they would lose what the compiler knows
    of them (constants, structural zeros): three times the operations for a quadruped's gradient.
    """
    function = jaxpr_as_fun(program.jaxpr)
    inexact = tuple(is_inexact(aval) for aval in program.out_avals)

    def tangents_out(arguments, tangents):
        def of_moving(*values):
            return pick(inexact, function(*merge(moving, values, pick(moving, arguments, False))))

        return jax.jvp(of_moving, tuple(pick(moving, arguments)), tuple(tangents))[1]

    closed: Any = jax.make_jaxpr(tangents_out)(program.in_avals, pick(moving, program.in_avals))
    live = _depends_on(closed.jaxpr, closed.jaxpr.invars[len(program.in_avals) :])
    closed = _with_variables(closed, outvars=pick(live, closed.jaxpr.outvars))
    flags = None if program.batched is None else (*program.batched, *pick(moving, program.batched))
    return Program(closed, flags), tuple(merge(inexact, live, [False] * inexact.count(False)))


def _with_variables(closed: Any, consts: Sequence[Any] | None = None, **variables: Sequence[Any]) -> Any:
    jaxpr = closed.jaxpr.replace(**variables, debug_info=closed.jaxpr.debug_info.with_unknown_names())
    return ClosedJaxpr(jaxpr, closed.consts if consts is None else consts)


def _depends_on(jaxpr: Any, variables: Sequence[Any]) -> list[bool]:
    """For each output of the jaxpr, whether it depends on one of the variables."""
    reached = set(variables)
    for equation in jaxpr.eqns:
        if any(not hasattr(v, "val") and v in reached for v in equation.invars):
            reached.update(equation.outvars)
    return [not hasattr(v, "val") and v in reached for v in jaxpr.outvars]


def transpose(program: Program, unknown: tuple[bool, ...], nonzero: tuple[bool, ...]) -> Program:
    """From the known inputs and the non-zero output cotangents to the cotangents of the unknown (linear) inputs."""
    function = jaxpr_as_fun(program.jaxpr)

    def backward(known, cotangents):
        def of_unknown(*values):
            return pick(nonzero, function(*merge(unknown, values, known)))

        return jax.linear_transpose(of_unknown, *pick(unknown, program.in_avals))(cotangents)

    known_avals = pick(unknown, program.in_avals, False)
    jaxpr = jax.make_jaxpr(backward)(known_avals, pick(nonzero, program.out_avals))
    if program.batched is None:
        return Program(jaxpr)
    return Program(jaxpr, (*pick(unknown, program.batched, False), *(True for flag in nonzero if flag)))


native_call_p = Primitive("native_call")
native_call_p.multiple_results = True


@native_call_p.def_impl
def _call_now(*arguments: Any, program: Program, rows: int | None):
    large = rows is not None and all(map(_in_host_memory, arguments)) and program.function().spreads(rows)
    if large or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        results = program.function()(*map(_plain, arguments))  # over several threads, where XLA would give it one
        return [jnp.asarray(result) for result in results]
    return program.jitted(rows)(*arguments)


def _plain(value: Any) -> Any:
    """The value without JAX's own wrappers for literals."""
    return value if type(value) in HOST_TYPES or isinstance(value, jax.Array) else np.asarray(value, value.dtype)


def _in_host_memory(value: Any) -> bool:
    return not isinstance(value, jax.Array) or all(device.platform == "cpu" for device in value.devices())


def _bind(program: Program, arguments: Sequence[Any], rows: int | None) -> list[Any]:
    """Calls the program; over a batch, results that no batched argument enters are repeated."""
    if rows is None or program.batched is not None:
        return native_call_p.bind(*arguments, program=program, rows=rows)
    results = native_call_p.bind(*arguments, program=program, rows=None)
    return [jnp.broadcast_to(result, (rows, *result.shape)) for result in results]


@native_call_p.def_abstract_eval
def _abstract_eval(*avals: Any, program: Program, rows: int | None):
    for position, (aval, expected, flag) in enumerate(zip(avals, program.in_avals, program.flags(), strict=True)):
        shape = (rows, *expected.shape) if flag else expected.shape
        if aval.shape != shape or aval.dtype != expected.dtype:
            wanted = ShapedArray(shape, expected.dtype)
            raise TypeError(f"argument {position}: expected {wanted.str_short()}, got {aval.str_short()}")
    return [ShapedArray(aval.shape if rows is None else (rows, *aval.shape), aval.dtype) for aval in program.out_avals]


def _jvp(primals, tangents, *, program: Program, rows: int | None):
    moving = tuple(type(t) is not ad.Zero and t.dtype != jax.dtypes.float0 for t in tangents)
    tangent_map, can_move = program.tangent_map(moving)
    outputs = _bind(program, primals, rows)
    moved = _bind(tangent_map, [*primals, *pick(moving, tangents)], rows)
    zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in pick(can_move, outputs, False)]
    return outputs, merge(can_move, moved, zeros)


def _transpose(cotangents, *arguments, program: Program, rows: int | None):
    unknown = tuple(ad.is_undefined_primal(argument) for argument in arguments)
    nonzero = tuple(type(cotangent) is not ad.Zero for cotangent in cotangents)
    if not any(nonzero):
        return [None] * len(arguments)
    backward = program.transposed(unknown, nonzero)
    results = _bind(backward, [*pick(unknown, arguments, False), *pick(nonzero, cotangents)], rows)
    if rows is not None:
        flags = pick(unknown, program.flags())
        results = [result if flag else result.sum(0) for result, flag in zip(results, flags, strict=True)]
    return merge(unknown, results, [None] * unknown.count(False))


def _batch(arguments, dimensions, *, program: Program, rows: int | None):
    new = tuple(dimension is not None for dimension in dimensions)
    arguments = [jnp.moveaxis(x, d, 0) if flag else x for x, d, flag in zip(arguments, dimensions, new, strict=True)]
    size = next(x.shape[0] for x in pick(new, arguments))
    if rows is None:
        results = _bind(program.over_batch(new), arguments, size)
        return results, [0] * len(results)
    either = tuple(a or b for a, b in zip(new, program.flags(), strict=True))
    flat = []
    for x, is_new, is_either, aval in zip(arguments, new, either, program.in_avals, strict=True):
        if is_either:
            x = x.reshape(size if is_new else 1, x.size // aval.size // (size if is_new else 1), *aval.shape)
            x = jnp.broadcast_to(x, (size, rows, *aval.shape)).reshape(size * rows, *aval.shape)
        flat.append(x)
    results = _bind(program.over_batch(either), flat, size * rows)
    return [x.reshape(size, rows, *x.shape[1:]) for x in results], [0] * len(results)


@cache
def _register() -> None:
    """Makes the trampoline known to XLA, once."""
    address = runtime.load(trampoline_object(), "trampoline")
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler), platform="cpu")


def _lower_for_cpu(ctx: Any, *operands: Any, program: Program, rows: int | None):
    """One custom call; a small workspace is on the stack, a large one a further result: no two threads share it."""
    function = program.function()
    _register()
    size = function.code.workspace_bytes
    attributes = {"address": np.int64(function.address), "rows": np.int64(-1 if rows is None else rows)}
    lower = jax.ffi.ffi_lowering(TARGET)
    if size <= STACK_BYTES and ctx.avals_out:
        return lower(ctx, *operands, **attributes, stack=np.int64(max(size, 1)))
    workspace = ShapedArray((size + runtime.ALIGNMENT,), np.dtype(np.uint8))
    inner = ctx.replace(avals_out=[*ctx.avals_out, workspace])
    return lower(inner, *operands, **attributes, stack=np.int64(0))[:-1]


def _run_as_jax(*arguments: Any, program: Program, rows: int | None):
    return program.evaluate(*arguments)


ad.primitive_jvps[native_call_p] = _jvp
ad.primitive_transposes[native_call_p] = _transpose
batching.primitive_batchers[native_call_p] = _batch
mlir.register_lowering(native_call_p, mlir.lower_fun(_run_as_jax, multiple_results=True))
mlir.register_lowering(native_call_p, _lower_for_cpu, platform="cpu")
