"""Native code as a JAX primitive: jit, grad, jvp and vmap around it stay native.

`native_call` carries a `Program`, a jaxpr with what is derived from it (linearised, transposed, over a batch), each
compiled when first lowered. Under `jax.jit` on a CPU it becomes one XLA FFI call of machine code; on other platforms
it is the jaxpr itself.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
            return (self._function or self.function())(*leaves)
        leaves = (*self.hoisted, *leaves)
        rows = None if self.batched is None else self._batch_size(leaves)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
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
                code = compile_cached(self.jaxpr, self.batched)
                self._function = runtime.Function(code, self.in_avals, self.out_avals, self.batched)
            return self._function

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
        with self._lock:
            if key not in self._derived:
                self._derived[key] = make()
            return self._derived[key]

    def over_batch(self, flags: tuple[bool, ...]) -> Program:
        """The program with a batch axis on the flagged inputs."""
        return self.derive(("batch", flags), lambda: Program(self.jaxpr, flags if any(flags) else None))

    def linearized(self, moving: tuple[bool, ...]) -> Linearized:
        return self.derive(("linearized", moving), lambda: linearize(self, moving))

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


@dataclass(frozen=True)
class Linearized:
    """A program cut in two: `primal` also returns what the linear map needs, `linear` takes that and tangents."""

    primal: Program
    linear: Program
    residuals: tuple[tuple[str, int], ...]  # each an input or an output of `primal`, by number
    nonzero_outputs: tuple[bool, ...]


def is_inexact(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def merge(flags: Sequence[bool], where_set: Sequence[Any], elsewhere: Sequence[Any]) -> list[Any]:
    """One list that takes from the first where the flag is set, else from the second."""
    yes, no = iter(where_set), iter(elsewhere)
    return [next(yes) if flag else next(no) for flag in flags]


def pick(flags: Sequence[bool], values: Sequence[Any], wanted: bool = True) -> list[Any]:
    return [value for flag, value in zip(flags, values, strict=True) if flag is wanted]


def linearize(program: Program, moving: tuple[bool, ...]) -> Linearized:
    """Cuts the program by `jax.linearize` with respect to the inputs that have tangents."""
    function = jaxpr_as_fun(program.jaxpr)
    inexact = tuple(is_inexact(aval) for aval in program.out_avals)
    structure: Any = None

    def primal(*arguments):
        def of_moving(*values):
            outputs = function(*merge(moving, values, pick(moving, arguments, False)))
            return pick(inexact, outputs), pick(inexact, outputs, False)

        outputs, linear_map, others = jax.linearize(of_moving, *pick(moving, arguments), has_aux=True)
        nonlocal structure
        residuals, structure = jax.tree.flatten(linear_map)
        return [*merge(inexact, outputs, others), *residuals]

    def linear(residuals, tangents):
        return jax.tree.unflatten(structure, residuals)(*tangents)

    primal_jaxpr = jax.make_jaxpr(primal)(*program.in_avals)
    residual_avals = primal_jaxpr.out_avals[len(inexact) :]
    linear_jaxpr = jax.make_jaxpr(linear)(residual_avals, pick(moving, program.in_avals))
    return _drop_needless_residuals(program, moving, inexact, primal_jaxpr, linear_jaxpr)


def _drop_needless_residuals(program, moving, inexact, primal: Any, linear: Any) -> Linearized:
    """Residuals that are inputs, outputs or constants of the primal program are not returned once more."""
    outputs = list(primal.jaxpr.outvars[: len(inexact)])
    inputs = list(primal.jaxpr.invars)
    constants = dict(zip(primal.jaxpr.constvars, primal.consts, strict=True))
    residual_inputs = linear.jaxpr.invars[: len(primal.jaxpr.outvars) - len(inexact)]
    sources, kept_inputs, constant_inputs, constant_values = [], [], [], []
    for variable, residual_input in zip(primal.jaxpr.outvars[len(inexact) :], residual_inputs, strict=True):
        if hasattr(variable, "val") or variable in constants:
            constant_inputs.append(residual_input)
            constant_values.append(variable.val if hasattr(variable, "val") else constants[variable])
            continue
        if variable not in inputs and variable not in outputs:
            outputs.append(variable)
        sources.append(("input", inputs.index(variable)) if variable in inputs else ("output", outputs.index(variable)))
        kept_inputs.append(residual_input)
    primal_jaxpr = _with_variables(primal, outvars=outputs)
    linear_jaxpr = _with_variables(
        linear,
        constvars=[*linear.jaxpr.constvars, *constant_inputs],
        invars=[*kept_inputs, *linear.jaxpr.invars[len(residual_inputs) :]],
        consts=[*linear.consts, *constant_values],
    )
    live = _depends_on(linear_jaxpr.jaxpr, linear_jaxpr.jaxpr.invars[len(kept_inputs) :])
    linear_jaxpr = _with_variables(linear_jaxpr, outvars=pick(live, linear_jaxpr.jaxpr.outvars))
    flags = None
    if program.batched is not None:
        by_source = [kind == "output" or program.batched[number] for kind, number in sources]
        flags = (*by_source, *pick(moving, program.batched))
    return Linearized(
        primal=Program(primal_jaxpr, program.batched),
        linear=Program(linear_jaxpr, flags if flags and any(flags) else None),
        residuals=tuple(sources),
        nonzero_outputs=tuple(merge(inexact, live, [False] * inexact.count(False))),
    )


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
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return program.function()(*arguments)
    return program.jitted(rows)(*arguments)


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
    cut = program.linearized(moving)
    everything = _bind(cut.primal, primals, rows)
    residuals = [primals[number] if kind == "input" else everything[number] for kind, number in cut.residuals]
    moved = _bind(cut.linear, [*residuals, *pick(moving, tangents)], rows)
    outputs = everything[: len(program.out_avals)]
    zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in pick(cut.nonzero_outputs, outputs, False)]
    return outputs, merge(cut.nonzero_outputs, moved, zeros)


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
