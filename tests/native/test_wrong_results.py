"""Results that were once wrong without a word, and programs that once failed to compile."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from differential import CC, check
from jax import lax

from knuckle import native

SPECIAL = np.array([np.nan, -0.0, 0.0, 1.0, -np.nan, np.inf, -np.inf, 1.0, 0.0, -0.0, -1.0, 2.0, np.nan])
random = np.random.default_rng(0)
MATRIX, VECTOR = random.normal(size=(4, 4)), random.normal(size=7)


@pytest.fixture(autouse=True)
def jax_numpy_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def same(function, *arguments, rtol=0.0):
    """Native code gives what JAX gives, with the sign of zeros where nothing is rounded."""
    found, expected = native.jit(function)(*arguments), jax.jit(function)(*arguments)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol)
        if not rtol and mine.dtype.kind == "f":
            number = ~np.isnan(mine)
            np.testing.assert_array_equal(np.signbit(mine)[number], np.signbit(theirs)[number])


def test_reshape_follows_the_order_of_its_axes():
    x = np.arange(6.0).reshape(2, 3)
    assert native.jit(lambda v: jnp.ravel(v, order="F"))(x).tolist() == [0, 3, 1, 4, 2, 5]
    assert native.vmap(lambda v: jnp.ravel(v, order="F"))(x[None])[0].tolist() == [0, 3, 1, 4, 2, 5]
    large = np.arange(2400.0).reshape(40, 60)  # lives in memory
    same(lambda v: lax.reshape(v, (60, 40), (1, 0)) + 0.0, large)


@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_reshape_follows_the_order_of_its_axes_in_exported_c():
    check("exported C", "reshape", lambda v: jnp.ravel(v, order="F"), (np.arange(6.0).reshape(2, 3),))


PRODUCTS = {"prod": lambda x: jnp.prod(x, axis=1), "reduce": lambda x: lax.reduce(x, 1.0, lax.mul, (1,))}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradient_of_a_product_along_an_axis(name):
    weights, x = np.array([1.0, 10.0]), np.arange(1.0, 7).reshape(2, 3)
    gradient = native.jit(jax.grad(lambda x: jnp.sum(weights * PRODUCTS[name](x))))(x)
    np.testing.assert_allclose(gradient, [[6, 3, 2], [300, 240, 200]], rtol=1e-15)


@pytest.mark.parametrize("size", [2, 20])  # written out, and as loops
def test_boolean_products(size):
    a, b = random.random((2, size, size)) < 0.4
    same(lambda a, b: (a @ b, jnp.dot(a, b[0]), jnp.einsum("ij,kj->ik", a, b)), a, b)
    found = native.jit(jnp.matmul)(np.array([[True, False], [True, True]]), np.array([[True, True], [True, False]]))
    assert found.tolist() == [[True, True], [True, True]]


@dataclass(frozen=True)
class Setting:
    scale: float


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True), (0.0, -0.0), ((1, 2), (1.0, 2)), (np.float32(0.1), float(np.float32(0.1))),
        (Setting(1), Setting(1.0)), (frozenset({1}), frozenset({1.0})), ((0.0,), (-0.0,)), (2, np.int8(2)),
    ],
)  # fmt: skip
def test_static_arguments_of_different_type_or_sign_have_versions_of_their_own(values):
    seen = []

    def function(x, setting):
        seen.append(setting)
        return x

    fast = native.jit(function, static_argnums=1)
    for value in (*values, *values):
        fast(np.ones(2), value)
    assert list(map(repr, seen)) == list(map(repr, values))  # each once


def test_static_argument_gives_the_dtype_of_its_type():
    fast = native.jit(lambda x, s: x * 0 + jnp.asarray(s), static_argnums=1)
    x = np.array(1)
    assert [fast(x, s).dtype.kind for s in (1, 1.0)] == ["i", "f"]


def test_top_k_orders_as_jax_does():
    same(lambda x: lax.top_k(x, 13), SPECIAL)
    same(lambda x: lax.top_k(x, 13), SPECIAL.astype(np.float32))
    same(lambda x: lax.top_k(x, 2, axis=0), np.array([[1, 2], [3, 2], [3, 1]]))


@pytest.mark.parametrize("repeats", [1, 5])  # exchanges, and insertion
def test_sorting_with_nan_ties_and_both_zeros(repeats):
    x = np.tile(SPECIAL, repeats)
    same(lambda x: (jnp.sort(x), jnp.argsort(x), jnp.sort(x, descending=True), jnp.argsort(x, descending=True)), x)
    same(lambda x: lax.sort((x, x[::-1], jnp.arange(x.size)), num_keys=2), x)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_partial_sorting_with_nan_ties_and_both_zeros(dtype):
    """This is where sorting differed: `partition` is a top_k of -x, so -NaN comes first and -0 before 0.

    Full sorts (sort, argsort, lexsort, lax.sort with one to three keys along any axis, unique, rankdata, quantiles) of
    all dtypes agreed with JAX before, but for stable=False: see the next test.
    """
    same(lambda x: [(jnp.partition(x, k), jnp.argpartition(x, k)) for k in (0, 6, 12)], SPECIAL.astype(dtype))
    x = np.tile(SPECIAL, 2).reshape(2, 13).T.astype(dtype)
    same(lambda x: (jnp.partition(x, 6, axis=0), jnp.argpartition(x, 6, axis=0)), x)


def test_sorting_that_need_not_be_stable_is_stable():
    """JAX gives ties in any order then, another one for 65 elements than for 13: here they keep theirs."""
    x = np.tile(SPECIAL, 5)
    operands = x, np.arange(x.size)
    found = native.jit(lambda *xs: lax.sort(xs, num_keys=1, is_stable=False))(*operands)
    expected = jax.jit(lambda *xs: lax.sort(xs, num_keys=1))(*operands)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_sorting_nothing():
    same(lambda x: (jnp.sort(x, axis=0), jnp.argsort(x, axis=1), jnp.sort(x.T, axis=0)), np.zeros((0, 3)))


@pytest.mark.parametrize("n", [3, 30, 70])  # written out, in memory, in loops
def test_cholesky_of_an_indefinite_matrix_is_nan_all_over(n):
    a = random.normal(size=(2, n, n))
    a = a @ a.transpose(0, 2, 1) + n * np.eye(n)
    a[1, n - 1, n - 1] = -1.0
    found, expected = (np.asarray(f(jnp.linalg.cholesky)(a)) for f in (native.jit, jax.jit))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(found[1][np.tril_indices(n)]).all() and np.isfinite(found[0]).all()


def test_solving_with_an_indefinite_matrix_is_nan_in_every_element():
    """The factor's zeros would let elements pass that do not depend on the column that fails."""

    def solve(scale, v):
        factor = jax.scipy.linalg.cho_factor(jnp.diag(jnp.array([1.0, 2.0, 1.0]) * scale), lower=True)
        return jax.scipy.linalg.cho_solve(factor, v)

    scale, v = np.array([1.0, 1.0, -1.0]), np.ones(3)
    assert np.isnan(native.jit(solve)(scale, v)).all() and np.isnan(jax.jit(solve)(scale, v)).all()
    same(solve, np.abs(scale), v, rtol=1e-15)


def test_power_of_special_values_known_when_compiling():
    """NumPy's power of scalars, which folded them, has NaN for -inf to the power of 1/2."""
    bases, exponents = (m.ravel() for m in np.meshgrid(SPECIAL, [0.5, -0.5, 0.0, np.nan, np.inf, -np.inf, 1.0, 3.0]))
    same(lax.pow, bases, exponents, rtol=5e-16)  # 2 units in the last place
    folded = native.jit(lambda: lax.pow(bases, exponents))()
    np.testing.assert_allclose(folded, jax.jit(lax.pow)(bases, exponents), rtol=5e-16)


def test_function_applied_in_place_of_an_update():
    same(lambda x: x.at[jnp.array([0, 3])].apply(jnp.square), VECTOR)


def test_product_in_a_wider_type():
    x = np.array([100, 100], np.int8)
    wide = jax.lax.mul_p.bind
    same(lambda x: wide(x, x, out_dtype=np.dtype(np.int16)), x)


def test_normal_numbers_of_single_precision_without_x64():
    with jax.enable_x64(False):
        words = np.array([0, 7], np.uint32)

        def draw(words):
            return jax.random.normal(words, (9,)), jax.scipy.special.erfinv(jnp.linspace(-1, 1, 9))

        found, expected = native.jit(draw)(words), jax.jit(draw)(words)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.dtype == np.float32
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)  # XLA's series has 1e-6


COVERED = {
    "singular values": (lambda a: jnp.linalg.svd(a, compute_uv=False), MATRIX[:, :3]),
    "pinv": (jnp.linalg.pinv, MATRIX[:, :3]),
    "least squares": (lambda a: jnp.linalg.lstsq(a, a[:, 0] ** 2)[0], MATRIX[:, :3]),
    "gradient of pinv": (jax.grad(lambda a: jnp.sum(jnp.sin(jnp.linalg.pinv(a)))), MATRIX[:3]),
    "gradient of svd": (jax.grad(lambda a: jnp.linalg.svd(a, compute_uv=False)[0]), MATRIX[:2]),
    "rank": (jnp.linalg.matrix_rank, MATRIX),
    "searchsorted": (lambda x: [jnp.searchsorted(jnp.sort(x), x, side=s) for s in ("left", "right")], VECTOR),
    "searchsorted by sorting": (lambda x: jnp.searchsorted(jnp.sort(x), x, method="sort"), VECTOR),
    "histogram": (lambda x: jnp.histogram(x, bins=4), VECTOR),
    "expm": (jax.scipy.linalg.expm, MATRIX[:2, :2]),
    "convolve": (lambda x: (jnp.convolve(x, x[:3]), jnp.correlate(x, x[:3], mode="same")), VECTOR),
    "gradient of convolve": (jax.grad(lambda x: jnp.sum(jnp.convolve(x, x[:3]) ** 2)), VECTOR),
    "pooling": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME"), MATRIX),
    "gradient of pooling": (
        jax.grad(lambda x: jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID") ** 2)), MATRIX,
    ),
    "digamma": (lambda x: (jax.scipy.special.digamma(x), jax.grad(lambda x: jnp.sum(jax.lax.lgamma(x)))(x)), VECTOR),
    "generic reduction": (lambda x: lax.reduce(x, 1.0, lambda a, b: a * b, (0,)), MATRIX),
}  # fmt: skip


@pytest.mark.parametrize("name", COVERED)
def test_programs_that_were_not_covered(name):
    function, argument = COVERED[name]
    # condition numbers up to 1e2, of results of some hundred rounded operations
    same(function, argument, rtol=1e-11)


def test_singular_vectors_of_a_matrix_without_full_rank():
    a = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0])
    u, s, vt = native.jit(jnp.linalg.svd)(a)
    np.testing.assert_allclose(u.T @ u, np.eye(4), atol=1e-14)
    np.testing.assert_allclose(vt @ vt.T, np.eye(3), atol=1e-14)
    np.testing.assert_allclose((u[:, :3] * s) @ vt, a, atol=1e-13)
    assert np.isnan(native.jit(lambda a: jnp.linalg.svd(a, compute_uv=False))(np.full((2, 2), np.nan))).all()


RANK_ZERO = {
    "pad": lambda x: lax.pad(x, 7.0, ()),
    "rev": lambda x: lax.rev(x, ()),
    "transpose": lambda x: lax.transpose(x, ()),
    "tile": lambda x: jnp.tile(x, ()),
    "slice": lambda x: lax.slice(x, (), ()),
    "dynamic update": lambda x: lax.dynamic_update_slice(x, x + 1, ()),
    "reduce": lambda x: lax.reduce(x, 0.0, lax.add, ()),
}


@pytest.mark.parametrize("name", RANK_ZERO)
def test_arrays_without_axes(name):
    same(RANK_ZERO[name], np.float64(3.0), rtol=0)
