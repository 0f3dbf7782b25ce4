"""`native.vmap`: axes, threads, remainders, divergent control flow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle import native

ROWS = np.random.default_rng(1).normal(size=(37, 3))


def iterations(x):
    """A loop whose length depends on the element, with a branch inside."""

    def body(state):
        value, count = state
        value = jax.lax.cond(value > 4.0, lambda v: v / 3.0 + jnp.sin(v), lambda v: v * 0.9 - 0.1, value)
        return value, count + 1

    return jax.lax.while_loop(lambda s: (s[0] > 0.0) & (s[1] < 100), body, (jnp.sum(x**2), 0))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 37])
def test_every_batch_size(count):
    found = native.vmap(iterations)(ROWS[:count])
    expected = jax.vmap(iterations)(ROWS[:count])
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12, atol=1e-12)


def test_batches_of_all_sizes_are_traced_once():
    traced = []

    @native.vmap
    def function(x):
        traced.append(x.shape)
        return jnp.sum(x) ** 2

    for rows in (ROWS[:3], ROWS[:8], ROWS[:3]):
        np.testing.assert_allclose(function(rows), rows.sum(axis=1) ** 2, rtol=1e-12)
    assert traced == [(3,)]
    function(ROWS[:3, :2])
    assert traced == [(3,), (2,)]


def test_an_empty_batch():
    assert native.vmap(lambda x: x * 2)(ROWS[:0]).shape == (0, 3)


@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_threads_do_not_change_a_bit(threads):
    rows = np.random.default_rng(2).normal(size=(1000, 3))
    function = native.vmap(iterations, threads=threads)
    first = function(rows)
    again = function(rows)
    alone = native.vmap(iterations, threads=1)(rows)
    for a, b, c in zip(first, again, alone, strict=True):
        assert np.array_equal(a, b) and np.array_equal(a, c)


def test_axes_as_in_jax():
    def function(scale, x, y):
        return scale["a"] * x, x @ y

    columns = np.asarray(ROWS.T)
    arguments = ({"a": np.array(2.0)}, ROWS, columns)
    found = native.vmap(function, in_axes=(None, 0, 1))(*arguments)
    expected = jax.vmap(function, in_axes=(None, 0, 1))(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), found, expected)
    nested = native.vmap(lambda p, x: p["a"] + p["b"] * x, in_axes=({"a": 0, "b": None}, 0))
    assert np.allclose(nested({"a": np.arange(37.0), "b": np.array(2.0)}, ROWS[:, 0]), np.arange(37) + 2 * ROWS[:, 0])


def test_results_that_no_batched_argument_enters_are_repeated():
    found = native.vmap(lambda p, x: (p * 2, x))(np.ones((4, 2)), np.ones(4))
    assert found[0].shape == (4, 2)
    constant = native.vmap(lambda p, x: p * 2, in_axes=(None, 0))(np.arange(2.0), np.ones(4))
    assert constant.tolist() == [[0, 2]] * 4


def test_jax_arrays_and_gradients_inside():
    gradient = native.vmap(jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2)))
    found = gradient(jnp.asarray(ROWS))
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, np.sin(2 * ROWS), rtol=1e-12, atol=1e-14)


def test_under_jit():
    found = jax.jit(lambda x: native.vmap(lambda r: jnp.cumsum(r))(x).sum())(ROWS)
    np.testing.assert_allclose(found, np.cumsum(ROWS, 1).sum(), rtol=1e-12)


def test_an_inactive_lane_cannot_hang_the_others():
    def halvings(x):
        def inner(v):
            return jax.lax.while_loop(lambda u: u > 1.0, lambda u: u / 2, v)

        return jax.lax.while_loop(lambda s: s[1] < s[0], lambda s: (inner(s[0]), s[1] + 1), (x, 0.0))[1]

    rows = np.array([8.0, np.inf, 3.0, -1.0, np.nan])[[0, 2, 3, 4, 0]]  # inf would not end alone either
    np.testing.assert_array_equal(native.vmap(halvings)(rows), jax.vmap(halvings)(rows))


def test_writes_under_a_mask_stay_in_their_lane():
    def function(x, n):
        def body(state):
            memory, k = state
            return memory.at[k].set(memory[k] * 2 + k), k + 1

        return jax.lax.while_loop(lambda s: s[1] < n, body, (jnp.outer(x, jnp.ones(500)).ravel(), 0))[0]

    counts = np.array([0, 1, 400, 1499, 3, 7, 9, 800, 2])
    x = np.random.default_rng(3).normal(size=(9, 3))
    np.testing.assert_array_equal(native.vmap(function)(x, counts), jax.vmap(function)(x, counts))


@pytest.mark.parametrize(
    ("axes", "arguments", "message"),
    [
        ((0, 0), (ROWS,), "expected in_axes for 1 arguments, got 2"),
        (None, (ROWS,), "at least one batched argument"),
        (0, (2.0,), "expected a batch axis"),
        (0, (ROWS, ROWS[:5]), "one batch size"),
    ],
)
def test_bad_batches_say_what_is_wrong(axes, arguments, message):
    with pytest.raises(ValueError, match=message):
        native.vmap(lambda *a: a[0], in_axes=axes)(*arguments)


def long_search(x):
    """A loop that ends at run time, with a body of thousands of operations."""

    def body(state):
        value, count = state
        for k in range(60):
            value = jnp.sin(value + 0.01 * k) * (1 + 0.1 * jnp.roll(value, 1)) + 0.3
        return value, count + 1

    return jax.lax.while_loop(lambda s: (jnp.sum(s[0]) > 0.5 * s[1]) & (s[1] < 50), body, (jnp.tile(x, 8), 0))


def test_long_loops_run_element_by_element():
    """Lanes would wait for each other; the bits are those of a single call, and results of no batch are repeated."""
    many = native.vmap(lambda x, flag, shared: (*long_search(x), ~flag, shared), in_axes=(0, 0, None), threads=2)
    arguments = ROWS, ROWS[:, 0] > 0, np.arange(3, dtype=np.int32)
    assert many.compiled(*arguments).lanes == 1 and native.vmap(iterations).compiled(ROWS).lanes > 1
    value, count, flags, shared = many(*arguments)
    single = native.jit(long_search)
    for row, found, turns in zip(ROWS, value, count, strict=True):
        expected = single(row)
        np.testing.assert_array_equal(found, expected[0])
        assert turns == expected[1]
    assert len(set(count.tolist())) > 1
    np.testing.assert_array_equal(flags, ~arguments[1])
    assert shared.shape == (37, 3) and np.array_equal(shared[5], arguments[2])
    assert many(*(x[:0] for x in arguments[:2]), arguments[2])[0].shape == (0, 24)
    traced = jax.jit(many)(*map(jnp.asarray, arguments))
    np.testing.assert_array_equal(traced[0], value)
