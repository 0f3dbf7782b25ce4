"""`native.lanes` and `native.jacfwd`: vmap and jacfwd everywhere, a loop over SIMD lanes in native code."""

import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle import native
from knuckle.native import compile_jaxpr
from tests.random_models import quick_jit

CC = shutil.which("cc")
X = np.linspace(0.1, 1.0, 6)
WEIGHTS = np.random.default_rng(0).normal(size=(20, 20)) / 5


def agree(found, expected, tolerance=1e-12):
    """To 1e-12 of the largest entry: what cancels in a sum is lost on both sides."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        theirs = np.asarray(theirs)
        assert np.shape(mine) == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * max(1.0, np.abs(theirs).max(initial=0)))


def solved(x, p):
    """A linear solution whose matrix and right side move."""
    return jnp.linalg.solve(jnp.outer(jnp.sin(x), p) + 3 * jnp.eye(6), x**2) + jnp.cos(p) * x


def coupled(x, p):
    return jnp.sin(jnp.sum(x * p) * x) * p


def controlled(x):
    """A scan, a search that has no derivative, a branch and an array in memory."""

    def turn(c, _):
        c = jnp.sin(c) * 0.9 + jnp.roll(c, 1) * x[:5]
        return c, jnp.sum(c)

    def search(c):
        start = (jax.lax.stop_gradient(c) ** 2, 0)
        return jax.lax.while_loop(lambda s: jnp.sum(s[0]) < 5.0, lambda s: (s[0] * 1.3 + 0.1, s[1] + 1), start)[0]

    c, sums = jax.lax.scan(turn, x[:5], None, length=20)
    wide = jnp.tanh(WEIGHTS @ jnp.tile(c, 4))
    chosen = jax.lax.cond(c[0] > 0.3, lambda c: jnp.tanh(c) * jnp.sum(c), lambda c: c, c)
    return {"searched": c * search(c), "sums": sums, "wide": wide, "chosen": chosen}


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 7, 8, 9, 12, 18])
def test_any_number_of_lanes(count):
    rows = np.random.default_rng(count).normal(size=(count, 6))
    function = native.lanes(lambda row, x: {"all": jnp.sin(row) * x, "one": jnp.sum(row * x)}, in_axes=(0, None))
    agree(native.jit(function)(rows, X), jax.vmap(lambda r: {"all": jnp.sin(r) * X, "one": jnp.sum(r * X)})(rows))


def test_axes_are_those_of_vmap():
    matrix = np.random.default_rng(0).normal(size=(6, 9))

    def both(row, pair):
        return row[0] * pair["a"] + pair["b"], row

    axes = (1, {"a": None, "b": 0})
    pair = {"a": X, "b": np.arange(9.0)}
    agree(native.jit(native.lanes(both, axes))(matrix, pair), jax.vmap(both, axes)(matrix, pair))


def test_bad_axes_are_refused():
    with pytest.raises(ValueError, match="expected in_axes for 1 arguments, got 2"):
        native.lanes(jnp.sin, (0, 0))(X)
    with pytest.raises(ValueError, match="expected one size of the batch axes, got no axis"):
        native.lanes(jnp.sin, None)(X)
    with pytest.raises(ValueError, match=r"expected one size of the batch axes, got \[3, 6\]"):
        native.lanes(jnp.add)(X, X[:3])
    with pytest.raises(TypeError, match="expected argument 0 to be of real numbers, got dtype int"):
        native.jacfwd(jnp.sin)(np.arange(3))


@pytest.mark.parametrize("around", [native.jit, quick_jit], ids=["native", "jit"])
def test_jacobian_is_that_of_jax(around):
    agree(around(native.jacfwd(solved, (0, 1)))(X, X + 1), quick_jit(jax.jacfwd(solved, (0, 1)))(X, X + 1))
    x = np.linspace(0.1, 1, 11)
    agree(around(native.jacfwd(controlled))(x), quick_jit(jax.jacfwd(controlled))(x))


def test_jacobian_without_compilation():
    agree(native.jacfwd(coupled, (0, 1))(X, X + 1), jax.jacfwd(coupled, (0, 1))(X, X + 1))


def test_jacobian_of_trees():
    tree = {"a": X, "b": np.ones((2, 3))}

    def function(scale, tree):
        return {"y": scale * tree["a"][:3] @ tree["b"].T, "z": tree["b"] ** 2}

    for numbers in (1, (1, 0)):
        expected = quick_jit(jax.jacfwd(function, numbers))(2.0, tree)
        agree(native.jit(native.jacfwd(function, numbers))(2.0, tree), expected)


def test_linear_maps_keep_what_they_need(short_pieces):
    """What `jax.linearize` stores is read in the loop: more values than registers, in pieces of code."""

    def jacobian(x):
        return native.lanes(jax.linearize(deep, x)[1])(jnp.eye(20))

    def deep(x):
        for _ in range(12):
            x = jnp.sin(WEIGHTS @ x) + 0.1 * x * jnp.roll(x, 1)
        return x

    x = np.linspace(-1, 1, 20)
    fast = native.jit(jacobian)
    agree(fast(x), quick_jit(jax.jacfwd(deep))(x).T)
    assert fast.compiled(x).operations["order"] < 20_000  # each column apart would be 20 times 4,800 and more


def test_lanes_that_go_different_ways():
    """Each lane has its own number of turns, branch, and place in an array."""

    def function(x, table):
        turns = jax.lax.while_loop(lambda s: s[0] < 3.0, lambda s: (s[0] * 1.1 + x[0], s[1] + 1), (x[1], 0))[1]
        chosen = jax.lax.cond(x[0] > 0.5, lambda x: jnp.sum(jnp.tanh(x) ** 3) * x, lambda x: x - 1, x)
        return turns, chosen, jnp.asarray(table)[turns % 40], jnp.sort(x)

    rows, table = np.random.default_rng(0).uniform(size=(11, 20)), np.random.default_rng(1).normal(size=40)
    expected = quick_jit(jax.vmap(function, (0, None)))(rows, table)
    agree(native.jit(native.lanes(function, (0, None)))(rows, table), expected)


def test_lanes_in_lanes_in_a_scan():
    def total(x):
        def row(a):
            return jnp.sum(native.lanes(lambda c: jnp.sin(a * c) * x[0])(x))

        def turn(carry, _):
            return carry + jnp.sum(native.lanes(row)(x * carry)), None

        return jax.lax.scan(turn, 0.1, None, length=30)[0]

    agree(native.jit(total)(X), quick_jit(total)(X))


def test_each_element_of_a_batch_has_its_jacobian():
    batch = np.random.default_rng(0).normal(size=(5, 11))
    expected = quick_jit(jax.vmap(jax.jacfwd(controlled)))(batch)
    agree(native.vmap(native.jacfwd(controlled))(batch), expected)
    agree(quick_jit(jax.vmap(native.jacfwd(controlled)))(batch), expected)


def test_derivatives_of_a_jacobian():
    def size(jacobian):
        return lambda x, p: jnp.sum(jacobian(coupled)(x, p) ** 2)

    fast, plain = size(native.jacfwd), size(jax.jacfwd)
    expected = quick_jit(jax.grad(plain, (0, 1)))(X, X + 1)
    for compiled in (native.jit, quick_jit):
        agree(compiled(jax.grad(fast, (0, 1)))(X, X + 1), expected)
    agree(native.jit(jax.hessian(fast))(X, X + 1), quick_jit(jax.hessian(plain))(X, X + 1))


def test_it_is_written_once():
    """The program does not grow with the number of columns."""

    def network(x):
        return jnp.tanh(WEIGHTS @ jnp.tanh(WEIGHTS @ jnp.tile(x[:5], 4)))

    sizes = {}
    for columns in (8, 64):
        directions = np.random.default_rng(0).normal(size=(columns, 5))
        pushed = native.lanes(lambda d: jax.jvp(network, (X[:5],), (d,))[1])
        sizes[columns] = compile_jaxpr(jax.make_jaxpr(pushed)(directions)).operations["order"]
    assert sizes[64] <= 1.05 * sizes[8]


@pytest.mark.skipif(CC is None, reason="needs a C compiler")
def test_exported_c_runs_the_loop(tmp_path):
    native.export_c(native.jacfwd(solved), (X, X + 1), tmp_path, name="jacobian")
    subprocess.run(
        [str(CC), "-std=c99", "-O1", *map(str, tmp_path.glob("*.c")), "-lm", "-o", str(tmp_path / "run")], check=True
    )
    printed = subprocess.run([str(tmp_path / "run")], check=True, capture_output=True, text=True).stdout
    values = [float(line.split("=")[1]) for line in printed.splitlines()]
    agree(np.array(values).reshape(6, 6), quick_jit(jax.jacfwd(solved))(X, X + 1))


def test_derivatives_are_loops_over_lanes_too():
    """Forward and reverse mode, of rows and of what all lanes share, beside an output that is not a real number."""
    rng = np.random.default_rng(4)
    rows, shared, weights = (jnp.asarray(rng.normal(size=shape)) for shape in ((11, 3), (3,), (11,)))

    def one(row, x):
        return jnp.sum(jnp.sin(row * x)) * row[0], jnp.argmax(row)

    def total(over, rows, x):
        value, place = over(one, (0, None))(rows, x)
        return jnp.sum(weights * value * (1.0 + place.astype(value.dtype)))

    for transform in (jax.grad, jax.jacfwd, lambda f, argnums: jax.jacfwd(jax.grad(f, argnums), argnums)):
        for argnums in (0, 1):
            ours = transform(lambda *a: total(native.lanes, *a), argnums=argnums)
            wanted = transform(lambda *a: total(jax.vmap, *a), argnums=argnums)(rows, shared)
            for run in (jax.jit(ours), native.jit(ours)):
                agree(run(rows, shared), wanted)
    text = str(jax.make_jaxpr(jax.grad(lambda *a: total(native.lanes, *a)))(rows, shared))
    assert text.count("native_lanes[") >= 2


def test_types_are_those_of_vmap():
    """A number without a type of its own takes that of what it meets, after lanes too."""
    x = jnp.ones(9, jnp.float32)
    assert (native.lanes(lambda v: jnp.where(v > 0, 1.0, 0.0))(x) * x).dtype == jnp.float32
