"""Long functions that are called several times are compiled once and called, and nothing else changes."""

import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native_customers import CUSTOMERS

from knuckle import native
from knuckle.native import compile_jaxpr, outline

SPARSE = np.random.default_rng(0).normal(size=(40, 40)) * (np.random.default_rng(1).random((40, 40)) < 0.4)
CC = shutil.which("cc")
X, P = np.linspace(0, 1, 40), np.linspace(-1, 1, 40)


@jax.jit
def layer(x, p):
    return jnp.sin(SPARSE @ x) * p + x**2 * 0.1, jnp.sum(x)


def layers(count):
    def function(x, p):
        total = 0.0
        for _ in range(count):
            x, more = layer(x * 0.1, p)
            total, p = total + more, p * 1.1
        return x, total

    return function


def gradient_of(function):
    return jax.grad(lambda x, p: function(x, p)[1] + jnp.sum(function(x, p)[0] ** 2), argnums=(0, 1))


def compiled(function, *arguments):
    return compile_jaxpr(jax.make_jaxpr(function)(*arguments))


def same(found, expected, tolerance=1e-12):
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = np.abs(theirs).max(initial=1e-300)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("function", [layers(8), gradient_of(layers(8))], ids=["value", "gradient"])
def test_repeated_calls_are_compiled_once_and_give_what_jax_gives(function):
    assert compiled(function, X, P).kinds["call"] >= 7
    same(native.jit(function)(X, P), jax.jit(function)(X, P))


def test_code_grows_by_the_call_only():
    short, long = (compiled(layers(n), X, P) for n in (8, 16))
    assert long.kinds["call"] == 2 * short.kinds["call"]
    assert long.operations["order"] < 2 * short.operations["order"] - 1000  # one more copy of the body has 1600
    assert len(long.object_code) < 1.4 * len(short.object_code)


def test_few_or_short_calls_are_opened():
    assert "call" not in compiled(layers(2), X, P).kinds
    assert "call" not in compiled(lambda x: sum(jnp.where(x > k, x, 0.0).sum() for k in range(20)), X).kinds


def test_what_is_known_of_arguments_folds_inside():
    """Half of the factors are zero, which halves the products in the function too."""
    half = np.where(np.arange(40) < 20, P, 0.0)

    @jax.jit
    def twice(x, p):
        return SPARSE @ (p * (SPARSE @ x))

    def repeated(p):
        def function(x):
            for _ in range(6):
                x = twice(x, p)
            return x

        return function

    full, folded = compiled(repeated(P), X), compiled(repeated(half), X)
    assert full.kinds["call"] == folded.kinds["call"] == 6
    assert folded.operations["order"] < 0.7 * full.operations["order"]
    same(native.jit(repeated(half))(X), jax.jit(repeated(half))(X))


def test_each_lane_has_the_bits_of_the_single_program():
    function = gradient_of(layers(5))
    rows = np.stack([X * k for k in np.linspace(0.5, 1, 11)])
    together = native.vmap(function, in_axes=(0, None))(rows, P)
    alone = native.jit(function)
    for k in range(11):
        one = alone(np.array(rows[k]), P)
        assert all(np.array_equal(a[k], b) for a, b in zip(together, one, strict=True))


@pytest.fixture
def everything_outlined(monkeypatch, tmp_path):
    """Every call that is not opened by JAX itself becomes a function, however short."""
    monkeypatch.setattr(outline, "SHORTEST", 0)
    monkeypatch.setattr(outline, "SAVED", -(10**9))
    monkeypatch.setenv("KNUCKLE_CACHE", str(tmp_path))  # not among the code that is kept
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", ["branches", "nested loops", "linear algebra", "lstm", "scattering"])
def test_programs_of_functions_only(everything_outlined, name):
    function, arguments = CUSTOMERS[name]
    arguments = jax.tree.map(np.asarray, arguments)
    same(native.jit(function)(*arguments), jax.jit(function)(*arguments), 1e-11)


def test_lanes_that_part_ways_call_functions_under_a_mask(everything_outlined):
    @jax.jit
    def inner(x, n):
        return jax.lax.fori_loop(0, 3, lambda i, y: y * 0.9 + jnp.sin(y), x) + n

    @jax.jit
    def advance(state):
        x, n = state
        return inner(x, n.astype(x.dtype)), n + 1

    def function(x):
        branch = jax.lax.cond(x > 1.5, lambda v: inner(v, 2.0), lambda v: inner(v, 1.0) * 2, x)
        return jax.lax.while_loop(lambda s: s[0] < 4, advance, (x, 0)), branch

    x = np.linspace(-1, 3, 11)
    (value, count), branch = native.vmap(function)(x)
    (expected, turns), expected_branch = jax.vmap(function)(x)
    np.testing.assert_array_equal(count, turns)
    assert len(set(np.asarray(turns).tolist())) > 1
    same((value, branch), (expected, expected_branch))


@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_exported_c_has_the_functions(tmp_path):
    function = layers(6)
    native.export_c(function, (X, P), tmp_path, name="layers")
    source = (tmp_path / "layers.c").read_text()
    assert source.count("static void function0(") == 2  # the prototype and the function
    assert source.count("    function0(") == 6
    options = ["-O1", "-std=c99", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([str(CC), *options, "layers.c", "example.c", "-o", "example", "-lm"], cwd=tmp_path, check=True)
    text = subprocess.run([tmp_path / "example"], capture_output=True, text=True, check=True).stdout
    found = np.array([float(line.split(" = ")[1]) for line in text.splitlines()])
    same(found, np.append(*jax.jit(function)(X, P)))
