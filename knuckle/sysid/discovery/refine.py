"""The chosen effects alone, refitted in the simulator: coefficients, widths and parameters with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.stats import t as student

from knuckle.neural.formula import Formula, Term
from knuckle.sysid.discovery.expressions import coefficient_unit, input_symbols
from knuckle.sysid.discovery.library import Candidate, Library
from knuckle.sysid.discovery.segments import Point, Segments, compiled, descend, normal, settle
from knuckle.sysid.discovery.setting import Setting
from knuckle.sysid.entries import names_of
from knuckle.sysid.parameters import Parameters, choose
from knuckle.sysid.shots import Shots
from knuckle.taps import Augment, Blueprint

ITERATIONS = 30
SHAPE_SPREAD = 1.0  # standard deviation of the logarithm of a width or speed before the data
LEVEL = 0.95


class Coefficient(NamedTuple):
    """A number of the formula, or a parameter of the model."""

    name: str
    value: float
    lower: float
    upper: float
    unit: str


class Refined(NamedTuple):
    """The chosen effects at their best."""

    segments: Segments
    point: Point
    blueprint: Blueprint | None
    parameters: Parameters
    coefficients: tuple[Coefficient, ...]
    noise: float  # residual standard deviation over the noise that was assumed


def refine(setting: Setting, library: Library, chosen: Sequence[Candidate], first: np.ndarray, shots: Shots) -> Refined:
    """Gauss-Newton over the chosen effects from the values `first` of all free numbers of the library."""
    blueprint, parameters, start, terms = _parts(setting, library, chosen, first)
    simulator = setting.simulator(shots, parameters, blueprint)
    segments = compiled(simulator)
    precision = np.concatenate([1 / parameters.deviation**2, np.zeros(simulator.size - parameters.size)])
    shaped = [k for k, (_, _, what) in enumerate(terms) if what == "shape"]
    precision[[parameters.size + k for k in shaped]] = 1 / SHAPE_SPREAD**2
    point = settle(segments, shots, start)
    point = descend(segments, shots, point, np.arange(simulator.size), precision, ITERATIONS)
    covariance, noise, freedom = _covariance(point, shots, precision)
    used = None if blueprint is None else simulator.networks(jnp.asarray(point.free[parameters.size :]))
    rows = _of_parameters(parameters, point.free, covariance, freedom)
    rows += _of_terms(
        setting, terms, point.free[parameters.size :], covariance[parameters.size :, parameters.size :], freedom
    )
    return Refined(segments, point, used, parameters, tuple(rows), noise)


def _parts(setting: Setting, library: Library, chosen: Sequence[Candidate], first: np.ndarray):
    """Blueprint and parameters of the chosen effects, their first values, and what each weight is."""
    columns = sorted({c for candidate in chosen for c in candidate.columns} | set(library.always.tolist()))
    names = [p.name for p in library.parameters if set(range(p.free.start, p.free.stop)) & set(columns)]
    parameters = choose(setting.model, names, setting.contact) if names else Parameters()
    start = [first[p.free] for p in library.parameters if p.name in names]
    augments = {}
    for tap, (augment,) in library.blueprint.augments.items():
        own = [(c, library.terms[c][1]) for c in columns if c in library.terms and library.terms[c][0] == tap]
        if own:
            whole = augment.network
            formula = Formula([term for _, term in own], whole.inputs, whole.outputs, shapes=True)
            formula = eqx.tree_at(lambda f: f.coefficient, formula, jnp.asarray(first[[c for c, _ in own]]))
            augments[tap] = Augment(formula, augment.inputs)
    if not augments:
        return None, parameters, np.concatenate([*start, np.zeros(0)]), []
    blueprint = Blueprint(augments)
    weights = np.asarray(ravel_pytree(blueprint.weights)[0], float)
    return blueprint, parameters, np.concatenate([*start, weights]), _weights(blueprint)


def _weights(blueprint: Blueprint) -> list[tuple[str, Term, str]]:
    """Tap, term and "coefficient" or "shape" of each weight, in their order."""
    flat, unravel = ravel_pytree(blueprint.weights)
    found: list = [None] * len(flat)
    numbers = unravel(jnp.arange(len(flat), dtype=float))
    for tap, (augment,) in blueprint.augments.items():
        own = next(value for key, value in numbers.items() if key.partition(" ")[0] == tap)[0]
        network: Formula = augment.network  # type: ignore[assignment]
        for k, number in enumerate(np.asarray(own.coefficient)):
            found[int(number)] = (tap, Term(*network.terms[k]), "coefficient")
        for k, number in zip(network.shaped, np.asarray(own.shape), strict=True):
            found[int(number)] = (tap, Term(*network.terms[k]), "shape")
    return found


def _covariance(point: Point, shots: Shots, precision: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Covariance of the free numbers, residual standard deviation, and degrees of freedom of the intervals.

    The larger of two: that of independent noise, and one that lets residuals of a segment correlate (Liang and Zeger
    1986).
    """
    found = normal(point.linear, point.starts)
    matrix = found.matrix.sum(axis=0)
    regular = matrix + np.diag(precision + 1e-12 * np.maximum(np.diag(matrix), 1e-300))
    rows = np.count_nonzero(np.any(point.linear.by_start != 0, axis=2) | (point.linear.residual != 0))
    taken = found.start.size + len(matrix)
    variance = 2 * found.value.sum() / max(rows - taken, 1)
    inverse = np.linalg.inv(regular)
    plain = inverse * max(float(variance), 1e-12)
    clusters = len(found.slope)
    if clusters < len(matrix) + 8:
        return plain, float(np.sqrt(variance)), np.inf
    spread = found.slope - found.slope.mean(axis=0)
    robust = inverse @ (spread.T @ spread) @ inverse * clusters / (clusters - len(matrix))
    scale = np.sqrt(np.maximum(np.diag(robust) / np.maximum(np.diag(plain), 1e-300), 1.0))
    freedom = np.inf if (scale < 1.2).all() else float(clusters - len(matrix))
    return plain * scale[:, None] * scale, float(np.sqrt(variance)), freedom


def _of_parameters(
    parameters: Parameters, free: np.ndarray, covariance: np.ndarray, freedom: float
) -> list[Coefficient]:
    if not parameters:
        return []
    z = free[: parameters.size]
    value, slope = (np.asarray(a) for a in parameters.values_and_slopes(z))
    own = covariance[: parameters.size, : parameters.size]
    deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slope, own, slope), 0.0)) * _quantile(freedom)
    units = [unit for p in parameters for unit in p.units]
    rows = zip(parameters.entries, value, deviation, units, strict=True)
    return [Coefficient(name, float(v), float(v - d), float(v + d), unit) for name, v, d, unit in rows]


def _quantile(freedom: float) -> float:
    return float(student.ppf(0.5 + LEVEL / 2, freedom)) if np.isfinite(freedom) else 1.959964


def _of_terms(
    setting: Setting, terms, weights: np.ndarray, covariance: np.ndarray, freedom: float
) -> list[Coefficient]:
    names, found = names_of(setting.model, "tau"), []
    for k, (tap, term, what) in enumerate(terms):
        wide = _quantile(freedom) * float(np.sqrt(max(covariance[k, k], 0.0)))
        place = names[term.output] if tap == "joint/force" else "contact"
        if what == "shape":
            low, value, high = (term.scales[-1] * float(np.exp(weights[k] + d)) for d in (-wide, 0.0, wide))
            found.append(Coefficient(f"{place}: width of {term.kind}", value, low, high, ""))
            continue
        value = float(weights[k])
        unit = coefficient_unit(setting.model, tap, term)
        found.append(Coefficient(f"{place}: {term.kind}{_of(setting, term)}", value, value - wide, value + wide, unit))
    return found


def _of(setting: Setting, term: Term) -> str:
    if not term.inputs:
        return ""
    order = f" x {term.scales[0]:g}" if term.kind in ("sine", "cosine") and term.scales[0] != 1 else ""
    symbols = input_symbols(setting.model, setting.model.nq + 2 * setting.model.nv)
    return " of " + ", ".join(str(symbols[i]) for i in term.inputs) + order
