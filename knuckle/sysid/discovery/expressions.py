"""Formulas in words: SymPy expressions of the terms of a `Formula`, with the units of their coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from sympy.printing.c import ccode
from sympy.printing.pycode import pycode

from knuckle.model.model import Model
from knuckle.neural.formula import EVERY, Formula, Term
from knuckle.sysid.discovery.library import FORCE
from knuckle.sysid.entries import dimensions, names_of, unit_at

DIGITS = 5


def input_symbols(model: Model, count: int) -> list[sympy.Symbol]:
    """Symbols of what a formula reads: coordinates, velocities, and forces of the actuators."""
    names = [f"q_{name}" for name in names_of(model, "q")] + [f"qd_{name}" for name in names_of(model, "qd")]
    names += [f"f_{name}" for name in names_of(model, "tau")]
    return [sympy.Symbol(name.replace(".", "_"), real=True) for name in names[:count]]


def basis(kind: str, x: list[Any], scales: list[Any]) -> Any:
    """The basis function of a term (`neural.formula.KINDS`) in SymPy."""
    if kind == "constant":
        return sympy.Integer(1)
    first = x[0]
    made = {
        "linear": lambda: first,
        "cubic": lambda: first**3,
        "quadratic drag": lambda: first * sympy.Abs(first),
        "coulomb": lambda: sympy.tanh(first / scales[0]),
        "stribeck": lambda: sympy.tanh(first / scales[0]) * sympy.exp(-((first / scales[1]) ** 2)),
        "dead zone": lambda: first - scales[0] * sympy.tanh(first / scales[0]),
        "sine": lambda: sympy.sin(scales[0] * first),
        "cosine": lambda: sympy.cos(scales[0] * first),
        "product": lambda: first * x[1],
        "coulomb times": lambda: first * sympy.tanh(x[1] / scales[0]),
        "coulomb times sine": lambda: sympy.sin(first) * sympy.tanh(x[1] / scales[0]),
        "coulomb times cosine": lambda: sympy.cos(first) * sympy.tanh(x[1] / scales[0]),
        "coulomb times load": lambda: sympy.Abs(first) * sympy.tanh(x[1] / scales[0]),
    }
    return made[kind]()


def expressions(model: Model, tap: str, formula: Formula, digits: int | None = DIGITS) -> dict[str, Any]:
    """What a formula adds to each entry of its tap, by name; entries that it does not change are left out."""
    symbols = input_symbols(model, formula.inputs)
    names = names_of(model, "tau") if tap == FORCE else None
    found: dict[str, Any] = {}
    for k, (kind, output, reads, _) in enumerate(formula.terms):
        scales = [sympy.Float(s, digits or 17) for s in plain_scales(formula, k)]
        scales = [sympy.Integer(int(s)) if kind in ("sine", "cosine") and s == int(s) else s for s in scales]
        value = sympy.Float(float(np.asarray(formula.coefficient)[k]), digits or 17)
        name = "every contact" if output == EVERY else names[output] if names else str(output)
        found[name] = found.get(name, 0) + value * basis(kind, [symbols[i] for i in reads], scales)
    return found


def plain_scales(formula: Formula, index: int) -> list[float]:
    """Scales of a term as numbers."""
    own = [float(s) for s in formula.terms[index][3]]
    if index in formula.shaped:
        own[-1] *= float(np.exp(np.asarray(formula.shape)[formula.shaped.index(index)]))
    return own


def as_text(expression: Any) -> str:
    return str(expression)


def as_latex(expression: Any) -> str:
    return sympy.latex(expression)


def as_python(expression: Any) -> str:
    return str(pycode(expression))


def as_c(expression: Any) -> str:
    return str(ccode(expression))


def coefficient_unit(model: Model, tap: str, term: Term) -> str:
    """The unit of a term's coefficient."""
    if tap != FORCE:
        return "" if not term.inputs else f"1/{_input_unit(model, term.inputs[0])}"
    force = unit_at("N m or N", dimensions(model, "tau")[term.output])
    units = [_input_unit(model, i) for i in term.inputs]
    powers = {"linear": 1, "cubic": 3, "quadratic drag": 2, "dead zone": 1, "coulomb times": 1, "product": 1}
    if term.kind == "coulomb times load":
        return ""
    if term.kind not in powers:
        return force
    if term.kind == "linear" and "/s" in units[0]:
        return f"{force} s/{units[0].removesuffix('/s')}"
    if term.kind == "product":
        return f"{force}/({units[0]} {units[1]})"
    power = powers[term.kind]
    return f"{force}/{units[0]}" if power == 1 else f"{force}/({units[0]})^{power}"


def _input_unit(model: Model, index: int) -> str:
    if index < model.nq:
        return {"angle": "rad", "length": "m"}.get(dimensions(model, "q")[index], "1")
    if index < model.nq + model.nv:
        return unit_at("rad/s or m/s", dimensions(model, "qd")[index - model.nq])
    return unit_at("N m or N", dimensions(model, "tau")[index - model.nq - model.nv])
