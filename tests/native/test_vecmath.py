"""Every function of vecmath against mpmath (2 ulp), at special values against libm, and lane by lane to the bit."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir

from knuckle.native import vecmath

mp: Any = mpmath.mp
I64 = ir.IntType(64)
ULP_LIMIT = 2.0
COUNT = 1024
EDGES = np.array(
    [0.0, 1.0, 0.5, 2.0, 0.625, 5e-324, 2.0**-1022, 2.0**-1074 * 12345, 2.0**-30, 709.78, 745.1, 1e22, 1.79e308]
)


def _loop(module: ir.Module, name: str, element: ir.Type, lanes: int) -> None:
    """void kernel(T** pointers, i64 count): inputs first, then outputs; count is a multiple of lanes."""
    kind = element if lanes == 1 else ir.VectorType(element, lanes)
    function: Any = vecmath.define(module, name, kind)
    outputs = 2 if isinstance(function.ftype.return_type, ir.LiteralStructType) else 1
    pointers = [element.as_pointer()] * (len(function.args) + outputs)
    kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), [*pointers, I64]), "kernel")
    entry, body, done = (kernel.append_basic_block(label) for label in ("entry", "body", "done"))
    ir.IRBuilder(entry).branch(body)
    builder = ir.IRBuilder(body)
    index = builder.phi(I64)
    index.add_incoming(I64(0), entry)

    def address(array: Any) -> Any:
        return builder.bitcast(builder.gep(array, [index]), kind.as_pointer())

    inputs = kernel.args[: len(function.args)]
    values = [builder.load(address(array), align=element_bytes(element)) for array in inputs]
    result = builder.call(function, values)
    parts = [builder.extract_value(result, k) for k in range(2)] if outputs == 2 else [result]
    for array, part in zip(kernel.args[len(function.args) : -1], parts, strict=True):
        builder.store(part, address(array), align=element_bytes(element))
    following = builder.add(index, I64(lanes))
    index.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", following, kernel.args[-1]), body, done)
    ir.IRBuilder(done).ret_void()


def element_bytes(element: ir.Type) -> int:
    return 8 if isinstance(element, ir.DoubleType) else 4


@functools.cache
def kernel(name: str, lanes: int, dtype: str = "float64", oldest: bool = False):
    """A Python function of NumPy arrays that runs the compiled vecmath function `lanes` numbers at a time."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = ir.Module(name)
    _loop(module, name, ir.DoubleType() if dtype == "float64" else ir.FloatType(), lanes)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu="" if oldest else llvm.get_host_cpu_name(),
        features="" if oldest else llvm.get_host_cpu_features().flatten(),
        opt=1,
        reloc="pic",
        codemodel="small",
    )
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(parsed)).add_current_process()
    tracker = library.export_symbol("kernel").link(llvm.create_lljit_compiler(), f"{name}{lanes}{dtype}{oldest}")
    outputs = 2 if name in vecmath.PAIRS else 1
    inputs = 2 if name in vecmath.BINARY else 1
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (inputs + outputs), ctypes.c_int64)(tracker["kernel"])

    def run(*arrays: np.ndarray) -> Any:
        arrays = tuple(np.ascontiguousarray(array, dtype) for array in arrays)
        assert arrays[0].size % lanes == 0
        results = [np.empty_like(arrays[0]) for _ in range(outputs)]
        function(*(array.ctypes.data for array in (*arrays, *results)), arrays[0].size)
        return results[0] if outputs == 1 else results

    run.tracker = tracker  # type: ignore[attr-defined]
    run.function = function  # type: ignore[attr-defined]
    return run


def rng() -> np.random.Generator:
    return np.random.default_rng(20)


def any_magnitude(count: int = COUNT) -> np.ndarray:
    """Both signs, every exponent that a double has."""
    bits = rng().integers(0, 2**64, 2 * count, dtype=np.uint64).view(np.float64)
    return bits[np.isfinite(bits)][:count]


def middle(low: float, high: float) -> np.ndarray:
    return rng().uniform(low, high, COUNT)


def beside(values: np.ndarray) -> np.ndarray:
    """The values, their negatives and their neighbours."""
    both = np.concatenate([values, -values])
    return np.concatenate([both, np.nextafter(both, np.inf), np.nextafter(both, -np.inf)])


def near_multiples_of_half_pi() -> np.ndarray:
    """Doubles whose reduced argument is as small as it gets, and multiples of pi/2 rounded."""
    worst = np.array([6381956970095103.0 * 2.0**797, 5.31937264832654141671e255, 16367173 * 2.0**72, 2.0**30, 2.0**31])
    multiples = np.round(10.0 ** rng().uniform(0, 15, COUNT)) * (np.pi / 2)
    return np.concatenate([beside(worst), beside(multiples)])


SAMPLES = {
    "sin": [middle(-7, 7), near_multiples_of_half_pi()],
    "cos": [middle(-7, 7), near_multiples_of_half_pi()],
    "tan": [middle(-7, 7), near_multiples_of_half_pi()],
    "asin": [middle(-1, 1), 1 - 10.0 ** middle(-16, 0)],
    "acos": [middle(-1, 1), 1 - 10.0 ** middle(-16, 0)],
    "atan": [middle(-3, 3)],
    "exp": [middle(-1, 1), middle(-746, 710)],
    "exp2": [middle(-1, 1), middle(-1075, 1024)],
    "expm1": [middle(-1, 1), middle(-60, 710), 10.0 ** middle(-20, 0)],
    "sinh": [middle(-2, 2), middle(-711, 711), 10.0 ** middle(-20, 0)],
    "cosh": [middle(-2, 2), middle(-711, 711)],
    "tanh": [middle(-1, 1), middle(-25, 25)],
    "logistic": [middle(-5, 5), middle(-746, 50)],
    "log": [middle(0, 2), 1 + middle(-1e-3, 1e-3)],
    "log2": [middle(0, 2), 1 + middle(-1e-3, 1e-3), 2.0 ** np.arange(-1074, 1024)],
    "log1p": [middle(-1, 1), middle(-1, 5), 10.0 ** middle(-20, 0), 10.0 ** middle(-17, 0) - 1],
    "asinh": [middle(-2, 2), 10.0 ** middle(-20, 20)],
    "acosh": [middle(1, 3), 1 + 10.0 ** middle(-16, 20)],
    "atanh": [middle(-1, 1), 10.0 ** middle(-20, 0), 1 - 10.0 ** middle(-16, 0)],
    "erf": [middle(-2, 2), middle(-6, 6)],
    "erfc": [middle(-2, 2), middle(-6, 28)],
    "erf_inv": [middle(-1, 1), 10.0 ** middle(-20, 0), 1 - 10.0 ** middle(-16, 0)],
    "cbrt": [middle(-10, 10), np.arange(-50.0, 50.0) ** 3],
}
REFERENCE = {
    **{name: getattr(mp, name) for name in SAMPLES if hasattr(mp, name)},
    "exp2": lambda x: mp.power(2, x),
    "logistic": lambda x: 1 / (1 + mp.exp(-x)),
    "log2": lambda x: mp.log(x) / mp.log(2),
    "erfc": lambda x: mp.erfc(max(min(x, 100), -100)),  # beyond, it rounds to 0 or 2; mpmath overflows at 1e154
    "erf_inv": lambda x: erf_inv(x),
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "atan2": mp.atan2,
    "pow": mp.power,
}
LIBM = {
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "exp", "exp2", "expm1", "sinh", "cosh", "tanh")},
    **{name: getattr(np, name) for name in ("log", "log2", "log1p", "cbrt")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
    "logistic": scipy.special.expit,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erf_inv": lambda x: np.copysign(scipy.special.erfinv(x), x),
    "pow": np.float_power,
}
POSITIVE, UNIT = (0.0, np.inf), (-1.0, 1.0)
DOMAIN = {"log": POSITIVE, "log2": POSITIVE, "log1p": (-1.0, np.inf), "acosh": (1.0, np.inf)}
DOMAIN |= {"asin": UNIT, "acos": UNIT, "atanh": UNIT, "erf_inv": UNIT}
POLES = {"log": [0.0], "log2": [0.0], "log1p": [-1.0], "atanh": [1.0, -1.0], "erf_inv": [1.0, -1.0]}


def erf_inv(y: Any) -> Any:
    """Newton's method on log erfc, which mpmath's own does not follow close to 1."""
    size = abs(y)
    if size < mpmath.mpf(10) ** -30:
        return y * mp.sqrt(mp.pi) / 2
    start = mp.mpf(float(scipy.special.erfinv(float(size)))) if size < 0.9 else mp.sqrt(-mp.log((1 - size) * 2))
    return mp.sign(y) * mp.findroot(lambda x: mp.log(mp.erfc(x)) - mp.log(1 - size), start)


def samples_of(name: str) -> np.ndarray:
    values = np.concatenate([*SAMPLES[name], any_magnitude(), beside(EDGES)])
    low, high = DOMAIN.get(name, (-np.inf, np.inf))
    inside = (values >= low) & (values <= high) & np.isfinite(values)
    return values[inside & ~np.isin(values, POLES.get(name, []))]


def padded(values: np.ndarray, lanes: int = 16) -> np.ndarray:
    return np.concatenate([values, np.full(-values.size % lanes, 0.5)])


def ulp_error(got: float, exact: Any) -> float:
    """Distance in units in the last place of the exact value; an infinite result must be what it rounds to."""
    if np.isinf(got):
        return 0.0 if float(exact) == got else np.inf
    exponent = mp.frexp(exact)[1] if exact else -1074
    return float(abs(mpmath.mpf(got) - exact) / mpmath.mpf(2) ** max(int(exponent) - 53, -1074))


def worst_error(name: str, got: np.ndarray, *arguments: np.ndarray) -> tuple[float, tuple[float, ...]]:
    with mp.workprec(160):
        rows = zip(got.tolist(), *(values.tolist() for values in arguments), strict=True)
        return max((ulp_error(y, REFERENCE[name](*map(mpmath.mpf, x))), tuple(x)) for y, *x in rows)


@pytest.mark.parametrize("name", sorted(vecmath.UNARY))
def test_unary_functions_are_within_two_ulp(name):
    x = samples_of(name)
    got = kernel(name, 4)(padded(x))[: x.size]
    error, where = worst_error(name, got, x)
    assert error <= ULP_LIMIT, f"{name}{where} is off by {error} ulp"


@pytest.mark.parametrize("name", sorted(vecmath.UNARY))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_double_is_within_two_ulp(name, data):
    low, high = DOMAIN.get(name, (-np.inf, np.inf))
    numbers = st.floats(None if np.isinf(low) else low, None if np.isinf(high) else high, allow_infinity=False)
    x = np.array(data.draw(st.lists(numbers.filter(lambda v: v not in POLES.get(name, [])), min_size=8, max_size=8)))
    x = x[~np.isnan(x)]
    got = kernel(name, 4)(padded(x))[: x.size]
    error, where = worst_error(name, got, x) if x.size else (0.0, ())
    assert error <= ULP_LIMIT, f"{name}{where} is off by {error} ulp"


def pairs_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    edges = beside(EDGES)
    edges = edges[edges != 0]
    x = np.concatenate([middle(-3, 3), any_magnitude(), np.repeat(edges, edges.size)[::3]])
    y = np.concatenate([middle(-3, 3)[::-1], any_magnitude()[::-1], np.tile(edges, edges.size)[::3]])
    return (x, y) if name == "atan2" else powers(np.abs(x))


def powers(bases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exponents for positive bases so that results cover all magnitudes, and some that are plain numbers."""
    bases = np.concatenate([bases, 1 + middle(-1e-6, 1e-6), middle(0, 100)])
    with np.errstate(divide="ignore"):
        spread = rng().uniform(-746, 711, bases.size) / np.log(bases)
    plain = rng().choice([2.0, 3.0, -1.0, 0.5, -2.5, 1 / 3, 7.0, 1e-3], bases.size)
    exponents = np.where(np.isfinite(spread) & (rng().random(bases.size) < 0.7), spread, plain)
    return bases, exponents


@pytest.mark.parametrize("name", sorted(vecmath.BINARY))
def test_binary_functions_are_within_two_ulp(name):
    x, y = pairs_of(name)
    got = kernel(name, 4)(padded(x), padded(y))[: x.size]
    error, where = worst_error(name, got, x, y)
    assert error <= ULP_LIMIT, f"{name}{where} is off by {error} ulp"


def test_sincos_is_sin_and_cos():
    x = padded(samples_of("sin"))
    sine, cosine = kernel("sincos", 4)(x)
    np.testing.assert_array_equal(sine, kernel("sin", 4)(x))
    np.testing.assert_array_equal(cosine, kernel("cos", 4)(x))


SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e300, -1e300, 5e-324]
)


def same_value_and_sign(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """NaN, infinity and zero must agree exactly, sign included; other values in sign."""
    both_nan = np.isnan(got) & np.isnan(expected)
    exact = np.isinf(expected) | (expected == 0) | np.isinf(got) | (got == 0)
    return both_nan | ((np.signbit(got) == np.signbit(expected)) & np.where(exact, got == expected, ~np.isnan(got)))


@pytest.mark.parametrize("name", sorted({*vecmath.UNARY, *vecmath.BINARY}))
def test_special_values_are_those_of_libm(name):
    arguments = (
        (SPECIAL,) if name in vecmath.UNARY else (np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size))
    )
    with np.errstate(all="ignore"):
        expected = np.array(LIBM[name](*arguments), dtype=float)
    got = kernel(name, 4)(*arguments)
    fine = same_value_and_sign(got, expected)
    wrong = [(*(float(a[k]) for a in arguments), float(got[k]), float(expected[k])) for k in np.flatnonzero(~fine)]
    assert not wrong, f"{name}: (arguments, got, expected) = {wrong}"


@pytest.mark.parametrize("name", vecmath.NAMES)
def test_every_lane_count_gives_the_same_bits(name):
    if name in vecmath.BINARY:
        arguments = tuple(padded(values) for values in pairs_of(name))
    else:
        arguments = (padded(np.concatenate([samples_of(name if name in SAMPLES else "sin"), SPECIAL])),)
    scalar = np.asarray(kernel(name, 1)(*arguments)).view(np.int64)
    for lanes in (2, 4, 8, 16):
        np.testing.assert_array_equal(np.asarray(kernel(name, lanes)(*arguments)).view(np.int64), scalar)


@pytest.mark.parametrize("name", ["sincos", "exp", "log", "tanh", "erfc"])
def test_processors_without_fused_multiply_add_give_the_same_bits(name):
    x = padded(np.concatenate([samples_of(name if name in SAMPLES else "sin")[::5], SPECIAL]))
    fused, emulated = kernel(name, 4)(x), kernel(name, 4, oldest=True)(x)
    np.testing.assert_array_equal(np.asarray(emulated), np.asarray(fused))


@pytest.mark.parametrize("name", sorted(vecmath.UNARY))
@pytest.mark.parametrize("lanes", [1, 8])
def test_float32_is_the_rounded_double(name, lanes):
    x = padded(np.concatenate([SPECIAL[abs(SPECIAL) != 1e300], middle(-2, 2)]).astype(np.float32).astype(np.float64))
    with np.errstate(all="ignore"):
        expected = kernel(name, 1)(x).astype(np.float32)
    got = kernel(name, lanes, "float32")(x)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)


def test_the_script_reproduces_the_coefficients():
    script = Path(__file__).parents[2] / "scripts" / "native_polynomials.py"
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert printed == (Path(vecmath.__file__).parent / "coefficients.py").read_text()


def test_a_function_is_emitted_once_per_module():
    module = ir.Module()
    assert vecmath.define(module, "sin", ir.DoubleType()) is vecmath.define(module, "sin", ir.DoubleType())


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("gamma", ir.DoubleType(), "expected one of the functions"),
        ("sin", ir.IntType(64), "expected double, float or a vector"),
        ("sin", ir.VectorType(ir.DoubleType(), 3), "expected double, float or a vector"),
    ],
)
def test_what_is_not_there_is_refused_by_name(name, kind, message):
    with pytest.raises(ValueError, match=message):
        vecmath.define(ir.Module(), name, kind)
