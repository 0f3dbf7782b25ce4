"""From a Python function to a flat list of equations: trace, drop dead code, open calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import partial_eval
from jax.extend import core

from knuckle.native.outline import Outlining
from knuckle.native.parameters import harmless_set

PLACEMENT = ("in_shardings", "out_shardings", "in_layouts", "out_layouts", "ctx_mesh")
COMPILATION = ("donated_invars", "name", "keep_unused", "inline", "compiler_options_kvs")
OPENED = {  # primitives that only wrap a jaxpr: the parameter it is under, and those that do not matter
    "jit": ("jaxpr", harmless_set((*PLACEMENT, *COMPILATION))),
    "closed_call": ("call_jaxpr", frozenset()),
    "remat2": ("jaxpr", harmless_set(("prevent_cse", "differentiated", "policy"))),
    "custom_jvp_call": ("call_jaxpr", harmless_set(("jvp_jaxpr_fun", "num_consts", "symbolic_zeros"))),
    "custom_vjp_call": (
        "call_jaxpr",
        harmless_set(("fwd_jaxpr_thunk", "bwd", "num_consts", "out_trees", "symbolic_zeros")),
    ),
}


class UnsupportedPrimitive(NotImplementedError):
    """A primitive that native code does not cover; names it and the user's line."""


class UnsupportedValue(Exception):
    """Raised by a rule for a value of a parameter, or a dtype, that it does not cover; becomes UnsupportedPrimitive."""


@dataclass
class Equation:
    """One primitive application on flat variables (`Var`) or literals."""

    primitive: str
    inputs: list[Any]
    outputs: list[Any]
    params: dict[str, Any]
    sources: tuple = ()  # JAX's own equation and those of the calls around it, for messages

    @property
    def where(self) -> str | None:
        """The user's line, as far as JAX knows it: that of the equation, or of the innermost call around it."""
        return next(filter(None, map(source_line, self.sources)), None)

    def inputs_vars(self) -> list[Var]:
        return [v for v in self.inputs if isinstance(v, Var)]


class Var:
    """A variable of a flat program."""

    __slots__ = ("aval",)

    def __init__(self, aval):
        self.aval = aval


@dataclass
class Constant:
    """A literal or a value closed over, of the type that the program has for it (a Python number has no dtype)."""

    value: Any
    aval: Any

    def array(self) -> np.ndarray:
        if jnp.issubdtype(self.aval.dtype, jax.dtypes.prng_key):
            return np.asarray(jax.random.key_data(self.value))
        return np.asarray(self.value, dtype=self.aval.dtype)


@dataclass
class Flat:
    """A program without calls, but for those in `outlined_call`."""

    inputs: list[Var]
    equations: list[Equation]
    outputs: list[Any]

    def last_uses(self) -> dict[Var, int]:
        """For each variable the number of the last equation that reads it; outputs are read at the end."""
        uses: dict[Var, int] = {}
        for number, equation in enumerate(self.equations):
            uses.update({v: number for v in equation.inputs if isinstance(v, Var)})
        uses.update({v: len(self.equations) for v in self.outputs if isinstance(v, Var)})
        return uses


def source_line(equation) -> str | None:
    """The user's file and line that an equation came from, as far as JAX knows."""
    frames = equation.source_info.traceback.frames if equation.source_info.traceback is not None else []
    for frame in frames:
        path = frame.file_name
        if "/jax/" in path or "/equinox/" in path or "/knuckle/native/" in path or path.startswith("<"):
            continue
        return f"{path}:{frame.line_num} ({frame.function_name})"
    return None


def close(jaxpr, consts: Sequence = ()) -> core.ClosedJaxpr:
    return jaxpr if hasattr(jaxpr, "consts") else core.ClosedJaxpr(jaxpr, list(consts))


def without_dead_code(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return core.ClosedJaxpr(jaxpr, closed.consts)


def flatten(closed: core.ClosedJaxpr) -> Flat:
    """Open the calls of a jaxpr into one list of equations over fresh variables, but for long repeated ones."""
    inputs = [Var(v.aval) for v in closed.jaxpr.invars]
    equations: list[Equation] = []
    outputs = _inline(closed.jaxpr, closed.consts, inputs, equations, Outlining(closed.jaxpr, called_jaxpr))
    return _drop_unused(Flat(inputs, equations, outputs))


def called_jaxpr(equation) -> Any | None:
    """The jaxpr that an equation only wraps."""
    name = equation.primitive.name
    return close(equation.params[OPENED[name][0]]).jaxpr if name in OPENED else None


def _opened(equation) -> core.ClosedJaxpr:
    name, params = equation.primitive.name, equation.params
    where, harmless = OPENED[name]
    unknown = [p for p in params if p != where and p not in harmless]
    if unknown:
        raise UnsupportedPrimitive(
            f"native code does not know the parameter {unknown[0]}={params[unknown[0]]!r:.80} of '{name}', "
            f"used at {source_line(equation) or 'an unknown line'}; jax.jit will do"
        )
    return close(params[where])


def _inline(jaxpr, consts, arguments, equations: list[Equation], outlining: Outlining, calls: tuple = ()) -> list:
    """Append the equations of a jaxpr, those of calls opened; `calls` are the equations that led here."""
    names: dict = dict(zip(jaxpr.constvars, map(Constant, consts, [v.aval for v in jaxpr.constvars]), strict=True))
    names.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom):
        return Constant(atom.val, atom.aval) if isinstance(atom, core.Literal) else names[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in OPENED:
            inner = _opened(equation)
            if outlining.is_worth_it(inner.jaxpr):
                results = [Var(v.aval) for v in equation.outvars]
                equations.append(Equation("outlined_call", inputs, results, {"jaxpr": inner}, (equation, *calls)))
            else:
                results = _inline(inner.jaxpr, inner.consts, inputs, equations, outlining, (equation, *calls))
        elif name == "custom_linear_solve":
            results = _inline_linear_solve(equation, inputs, equations, outlining, calls)
        else:
            results = [Var(v.aval) for v in equation.outvars]
            equations.append(Equation(name, inputs, results, equation.params, (equation, *calls)))
        names.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _inline_linear_solve(equation, inputs, equations, outlining: Outlining, calls: tuple) -> list:
    lengths, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    before = lengths.matvec + lengths.vecmat
    constants = inputs[before : before + lengths.solve]
    right_side = inputs[before + lengths.solve + lengths.transpose_solve :]
    solve = close(jaxprs.solve)
    return _inline(solve.jaxpr, solve.consts, [*constants, *right_side], equations, outlining, (equation, *calls))


def _drop_unused(flat: Flat) -> Flat:
    needed = {v for v in flat.outputs if isinstance(v, Var)}
    kept = []
    for equation in reversed(flat.equations):
        if any(v in needed for v in equation.outputs) or _has_effects(equation):
            kept.append(equation)
            needed.update(v for v in equation.inputs if isinstance(v, Var))
    return Flat(flat.inputs, kept[::-1], flat.outputs)


def _has_effects(equation: Equation) -> bool:
    """Whether an equation does something besides computing, such as printing: it may not be dropped in silence."""
    return bool(equation.sources and equation.sources[0].effects)
