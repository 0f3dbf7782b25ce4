"""Formulas: terms have the values of their expressions, are refused if they cannot be, and survive a file and C."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from jax.test_util import check_grads

import knuckle as kn
from knuckle import native, neural, robots
from knuckle.neural.formula import EVERY, KINDS, Formula, Term
from knuckle.sysid.discovery.expressions import as_c, as_latex, as_python, coefficient_unit, expressions, input_symbols


def every_kind() -> Formula:
    """One term of each kind at a double pendulum's joints, with random coefficients and shapes."""
    rng = np.random.default_rng(0)
    terms = []
    for k, (kind, about) in enumerate(KINDS.items()):
        scales = tuple(rng.uniform(0.3, 2.0, about.scales)) if kind not in ("sine", "cosine") else (3.0,)
        terms.append(Term(kind, k % 2, (2, 3)[: about.inputs] if about.inputs < 2 else (0, 3), scales))
    made = Formula(terms, 4, 2, shapes=True)
    values = (jnp.asarray(rng.normal(size=len(terms))), jnp.asarray(0.3 * rng.normal(size=len(made.shaped))))
    return eqx.tree_at(lambda f: (f.coefficient, f.shape), made, values)


def test_expressions_have_the_values_of_the_network():
    """SymPy's evaluation to 17 digits against native arithmetic: rounding only."""
    model, formula = robots.load("double_pendulum"), every_kind()
    symbols = input_symbols(model, 4)
    found = expressions(model, "joint/force", formula, digits=None)
    assert list(found) == ["shoulder", "elbow"]
    for x in np.random.default_rng(1).normal(size=(5, 4)):
        at = dict(zip(symbols, x, strict=True))
        wanted = [float(found[name].subs(at).evalf()) for name in found]
        np.testing.assert_allclose(formula(x), wanted, rtol=1e-12, atol=1e-12)
    assert "tanh" in as_c(found["shoulder"]) + as_c(found["elbow"])
    assert as_latex(sympy.Symbol("x") ** 2) == "x^{2}" and "math" in as_python(sympy.tanh(sympy.Symbol("x")))


def test_a_formula_survives_a_file_and_c(tmp_path):
    model, formula = robots.load("double_pendulum"), every_kind()
    blueprint = kn.Blueprint({"joint/force": kn.Augment(formula, ("q", "qd"))})
    kn.save_hybrid(tmp_path / "m.knuckle", model, blueprint)
    back = kn.load_hybrid(tmp_path / "m.knuckle").blueprint
    x = np.array([0.3, -0.5, 1.2, -0.7])
    assert back is not None
    np.testing.assert_array_equal(back.augments["joint/force"][0].network(x), formula(x))
    assert neural.from_config(neural.to_config(formula)).terms == formula.terms
    native.export_c(lambda x: formula(x), (x,), tmp_path / "c", "law")
    assert "law" in next((tmp_path / "c").glob("*.c")).read_text()
    np.testing.assert_allclose(native.jit(formula)(x), formula(x), rtol=1e-12)


def test_gradients_are_those_of_differences():
    formula, x = every_kind(), jnp.asarray([0.3, -0.5, 1.2, -0.7])
    check_grads(formula, (x,), order=1, modes=("fwd", "rev"), rtol=1e-6)


def test_a_term_at_every_output_and_units():
    made = eqx.tree_at(lambda f: f.coefficient, Formula([("linear", EVERY, (1,))], 2, 3), jnp.asarray([2.0]))
    np.testing.assert_array_equal(made(np.array([0.0, 1.5])), [3.0, 3.0, 3.0])
    cart = robots.load("cartpole")
    units = [coefficient_unit(cart, "joint/force", Term("linear", k, (2 + k,))) for k in range(2)]
    assert units == ["N s/m", "N m s/rad"]
    assert coefficient_unit(cart, "joint/force", Term("quadratic drag", 0, (2,))) == "N/(m/s)^2"


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (("spline", 0), "no kind 'spline'"),
        (("linear", 0), "has 1 inputs"),
        (("linear", 0, (4,)), "must be below 4"),
        (("linear", 2, (0,)), "below 2"),
        (("coulomb", 0, (0,), (0.0,)), "must be positive"),
        (("coulomb", 0, (0,), (float("nan"),)), "must be positive"),
    ],
)
def test_wrong_terms_are_refused(term, words):
    with pytest.raises(ValueError, match=words):
        Formula([term], 4, 2)
