"""From a Python function to a flat list of equations: trace, drop dead code, open calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax._src.interpreters import partial_eval
from jax.extend import core

from knuckle.native.outline import Outlining

OPENED = {  # primitives that only wrap a jaxpr, and the parameter it is under
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "jaxpr",
}


class UnsupportedPrimitive(NotImplementedError):
    """A primitive that native code does not cover; names it and the user's line."""


@dataclass
class Equation:
    """One primitive application on flat variables (`Var`) or literals."""

    primitive: str
    inputs: list[Any]
    outputs: list[Any]
    params: dict[str, Any]
    source: Any = None  # JAX's own equation, for messages

    @property
    def where(self) -> str:
        return "an unknown line" if self.source is None else source_line(self.source)

    def inputs_vars(self) -> list[Var]:
        return [v for v in self.inputs if isinstance(v, Var)]


class Var:
    """A variable of a flat program."""

    __slots__ = ("aval",)

    def __init__(self, aval):
        self.aval = aval


@dataclass
class Constant:
    """A literal or a value closed over."""

    value: Any


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


def source_line(equation) -> str:
    """The user's file and line that an equation came from, as far as JAX knows."""
    frames = equation.source_info.traceback.frames if equation.source_info.traceback is not None else []
    for frame in frames:
        path = frame.file_name
        if "/jax/" in path or "/equinox/" in path or "/knuckle/native/" in path or path.startswith("<"):
            continue
        return f"{path}:{frame.line_num} ({frame.function_name})"
    return "an unknown line"


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
    return close(equation.params[OPENED[name]]).jaxpr if name in OPENED else None


def _inline(jaxpr, consts, arguments, equations: list[Equation], outlining: Outlining) -> list:
    names: dict = dict(zip(jaxpr.constvars, [Constant(c) for c in consts], strict=True))
    names.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom):
        return Constant(atom.val) if isinstance(atom, core.Literal) else names[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in OPENED:
            inner = close(equation.params[OPENED[name]])
            if outlining.is_worth_it(inner.jaxpr):
                results = [Var(v.aval) for v in equation.outvars]
                equations.append(Equation("outlined_call", inputs, results, {"jaxpr": inner}, equation))
            else:
                results = _inline(inner.jaxpr, inner.consts, inputs, equations, outlining)
        elif name == "custom_linear_solve":
            results = _inline_linear_solve(equation.params, inputs, equations, outlining)
        else:
            results = [Var(v.aval) for v in equation.outvars]
            equations.append(Equation(name, inputs, results, equation.params, equation))
        names.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _inline_linear_solve(params, inputs, equations, outlining: Outlining) -> list:
    lengths, jaxprs = params["const_lengths"], params["jaxprs"]
    before = lengths.matvec + lengths.vecmat
    constants = inputs[before : before + lengths.solve]
    right_side = inputs[before + lengths.solve + lengths.transpose_solve :]
    solve = close(jaxprs.solve)
    return _inline(solve.jaxpr, solve.consts, [*constants, *right_side], equations, outlining)


def _drop_unused(flat: Flat) -> Flat:
    needed = {v for v in flat.outputs if isinstance(v, Var)}
    kept = []
    for equation in reversed(flat.equations):
        if any(v in needed for v in equation.outputs):
            kept.append(equation)
            needed.update(v for v in equation.inputs if isinstance(v, Var))
    return Flat(flat.inputs, kept[::-1], flat.outputs)
