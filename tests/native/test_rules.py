"""Every rule of native code beside JAX, over the parameters of its primitive; and that no parameter is ignored."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from differential import CC, Difference, Seen, Undefined, check, check_program, compare
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from random_programs import random_program
from rule_programs import GENERATORS, Draw

from knuckle import native
from knuckle.native import lower, outline
from knuckle.native.lower import RULES, rule
from knuckle.native.parameters import HARMLESS

lower.add_rules()
OURS = set(GENERATORS)
# long programs, or of JAX's own Python: one draw each
SLOW = {"igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta", "random_gamma", "polygamma", "svd", "eigh"}
MODES = ["constants", "gradient inside", "gradient around", "batch", "lanes", "exported C"]
SEEN = Seen()


@pytest.fixture(autouse=True)
def jax_numpy_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(autouse=True)
def short_functions_are_outlined(request, monkeypatch):
    if "outlined_call" in str(getattr(request.node, "callspec", "")):
        monkeypatch.setattr(outline, "SHORTEST", 5)
        monkeypatch.setattr(outline, "SAVED", 5)


def ways(name: str) -> list[tuple[str, int]]:
    """Values of every draw, and one other way, by the place of the rule in the alphabet."""
    number = sorted(OURS).index(name)
    draws = [number] if name in SLOW else [number, number + 500]
    other = MODES[number % len(MODES)]
    return [("values", seed) for seed in draws] + ([(other, number)] if name not in SLOW else [])


@pytest.mark.parametrize("name", sorted(OURS))
def test_rule_agrees_with_jax(name):
    for mode, seed in ways(name):
        if mode == "exported C" and CC is None:
            continue
        function, arguments = GENERATORS[name](Draw(seed, specials=not mode.startswith("gradient")))
        if mode == "values":
            SEEN.note(function, arguments)
        try:
            check(mode, name, function, arguments)
        except Undefined:
            pass  # JAX has no derivative there
        except native.UnsupportedPrimitive as error:
            assert "jax.jit will do" in str(error) and ".py:" in str(error)


def test_every_rule_has_a_generator():
    assert set(RULES) - {"cube"} == OURS  # the documentation has an example that adds a rule


def test_every_parameter_that_a_rule_reads_is_one_of_its_primitive():
    """Over some draws of every rule; parameters of calls that native code makes itself are not in jaxprs."""
    own = {"outlined_call"}
    seen = Seen()
    for name in sorted(OURS - own):
        for seed in range(4):
            seen.note(*GENERATORS[name](Draw(seed)))
    families = {}
    for name in OURS - own:
        families.setdefault(RULES[name].function, set()).update(seen.values[name])
    for name in OURS - own:
        undeclared = set(seen.values[name]) - RULES[name].reads - RULES[name].harmless
        assert not undeclared, (name, undeclared)
        assert RULES[name].reads <= families[RULES[name].function], name
        assert RULES[name].harmless <= set(HARMLESS)


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_agree_with_jax(seed):
    function, arguments = random_program(seed)
    for mode in ("values", ["gradient inside", "batch", "lanes"][seed % 3]):
        with contextlib.suppress(Undefined):
            check_program(mode, function, arguments)


def test_the_comparison_sees_a_wrong_bit():
    with pytest.raises(Difference):
        compare("zeros", np.zeros(2), -np.zeros(2), "bits")
    with pytest.raises(Difference):
        compare("rounding", np.ones(2), np.ones(2) * (1 + 1e-11))
    with pytest.raises(Difference):
        compare("dtype", np.ones(2), np.ones(2, np.float32))


# structure: parameters


def primitive_with(name, **params):
    made = Primitive(name)
    made.def_abstract_eval(lambda x, **_: ShapedArray(x.shape, x.dtype))
    return lambda x: made.bind(x, **params)


@pytest.fixture
def own_rules():
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


def test_parameter_that_no_rule_reads_is_refused(own_rules):
    @rule("scaled", reads=("scale",))
    def _(b, equation, x):
        equation.params["scale"]
        return x

    native.jit(primitive_with("scaled", scale=2))(np.ones(2))
    with pytest.raises(native.UnsupportedPrimitive, match=r"'scaled' with the parameter offset=3.*test_rules\.py:\d+"):
        native.jit(primitive_with("scaled", scale=2, offset=3))(np.ones(2))


def test_rule_may_not_read_what_it_does_not_declare(own_rules):
    @rule("sly")
    def _(b, equation, x):
        return equation.params["scale"]

    with pytest.raises(native.UnsupportedPrimitive, match="scale"):
        native.jit(primitive_with("sly", scale=2))(np.ones(2))


def test_harmless_parameters_need_a_reason():
    with pytest.raises(ValueError, match="no reason"):
        rule("odd", harmless=("colour",))(None)


def test_result_of_another_shape_or_dtype_is_refused(own_rules):
    @rule("flat")
    def _(b, equation, x):
        return lower.from_numpy(b, np.zeros(3))

    with pytest.raises(native.UnsupportedPrimitive, match=r"for which its rule made \[\(\(3,\), 'f8'\)\]"):
        native.jit(primitive_with("flat"))(np.ones(2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.reduce_precision(x, 5, 10),
        lambda x: lax.linalg.qr(x, pivoting=True)[1],
        lambda x: jnp.dot(x, x, precision=lax.DotAlgorithmPreset.F32_F32_F32),
        lambda x: lax.bitcast_convert_type(x, jnp.float32),
    ],
)
def test_values_of_parameters_that_are_not_covered_are_refused(function):
    with pytest.raises(native.UnsupportedPrimitive, match=r"test_rules\.py:\d+.*jax\.jit will do"):
        native.jit(function)(np.eye(3))


def test_complex_numbers_are_refused_with_the_users_line():
    with pytest.raises(native.UnsupportedPrimitive, match=r"fft.*test_rules\.py:\d+.*jax\.jit will do"):
        native.jit(lambda x: jnp.abs(jnp.fft.rfft(x)))(np.ones(4))


def test_printing_is_refused_instead_of_left_out():
    def noisy(x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises(native.UnsupportedPrimitive, match=r"debug_print.*test_rules\.py:\d+"):
        native.jit(noisy)(np.ones(2))
