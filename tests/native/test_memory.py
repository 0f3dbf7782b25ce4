"""Random programs on arrays in memory: in-place updates, views, loops and branches must not disturb each other."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knuckle import native

N = 36  # N * N is above the limit for scalars

OPERATIONS = {
    "add": lambda x, y, i: x + y,
    "product": lambda x, y, i: x @ y / N,
    "transpose": lambda x, y, i: x.T,
    "reverse": lambda x, y, i: x[::-1, ::2].repeat(2, 1),
    "roll": lambda x, y, i: jnp.roll(x, 3, 1),
    "set row": lambda x, y, i: x.at[i].set(y[:, 0]),
    "add column": lambda x, y, i: x.at[:, i].add(y[0]),
    "slice": lambda x, y, i: jax.lax.dynamic_update_slice(x, jax.lax.dynamic_slice(y, (i, 0), (5, 7)), (0, i)),
    "own slice": lambda x, y, i: jax.lax.dynamic_update_slice(x, x[1:6, 2:9], (i, i)),
    "scatter": lambda x, y, i: x.at[jnp.array([3, 3, 5]), jnp.array([1, 1, 2])].add(y[i, :3]),
    "gather": lambda x, y, i: x[jnp.arange(N)[::-1]] + y[i][None],
    "sums": lambda x, y, i: x - x.mean(0, keepdims=True) + y.sum(1, keepdims=True) / N,
    "tanh": lambda x, y, i: jnp.tanh(x) * 2,
    "cumulative": lambda x, y, i: jnp.cumsum(x, axis=1) / N,
    "where": lambda x, y, i: jnp.where(x > y, x, -y),
    "outer": lambda x, y, i: x + jnp.outer(x[0], y[:, i]) / N,
    "mask": lambda x, y, i: y - x * np.eye(N)[::-1],
    "repeat rows": lambda x, y, i: x + jnp.where(np.arange(N)[:, None] % 6 == 0, y[np.arange(N) // 6], 0.0),
    "place rows": lambda x, y, i: x + jnp.zeros_like(x).at[np.arange(0, N, 3)].add(y[i][None][np.zeros(12, int)]),
    "sparse product": lambda x, y, i: x + y[:, :3] @ np.eye(3, N, 5),
    "corner": lambda x, y, i: x.at[0, 0].set(y[i, i]),
}

steps = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 9), st.integers(0, 9), st.integers(0, N - 8)),
    min_size=1,
    max_size=5,
)
blocks = st.lists(
    st.tuples(st.sampled_from(["plain", "loop", "stack", "branch", "until"]), steps), min_size=1, max_size=3
)


def run(steps, x, y, shift=0):
    """The operations on earlier arrays by number; the last two arrays."""
    pool = [x, y]
    for name, first, second, place in steps:
        pool.append(OPERATIONS[name](pool[first % len(pool)], pool[second % len(pool)], place + shift))
    return pool[-1], pool[-2]


def function_of(program):
    def function(x, y):
        for kind, steps in program:
            if kind == "plain":
                x, y = run(steps, x, y)
            elif kind == "loop":
                x, y = jax.lax.fori_loop(0, 4, lambda i, s, steps=steps: run(steps, *s, shift=i), (x, y))
            elif kind == "stack":

                def body(s, i, steps=steps):
                    after = run(steps, *s, shift=i)
                    return after, (s[0][i], after[1].sum())

                (x, y), (rows, totals) = jax.lax.scan(body, (x, y), jnp.arange(4))
                x = x.at[:4].add(rows) + totals.sum() / N**2
            elif kind == "branch":
                x, y = jax.lax.cond(x[0, 0] > 0, lambda x, y, steps=steps: run(steps, x, y), lambda x, y: (y, x), x, y)
            else:
                x, y, _ = jax.lax.while_loop(
                    lambda s: s[2] < 3, lambda s, steps=steps: (*run(steps, s[0], s[1], s[2]), s[2] + 1), (x, y, 0)
                )
        return x, y

    return function


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(blocks, st.integers(0, 3))
def test_programs_on_memory(program, seed):
    x, y = np.random.default_rng(seed).normal(size=(2, N, N))
    function = function_of(program)
    expected = jax.jit(function)(x, y)
    single = native.jit(function)(x, y)
    for mine, theirs in zip(single, expected, strict=True):
        theirs = np.asarray(theirs)
        # sums of up to 36 products per step, at most 60 steps, of entries up to the largest
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-10 * max(1.0, np.abs(theirs).max()))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(blocks, st.integers(0, 3))
def test_programs_on_memory_in_lanes(program, seed):
    rows = np.random.default_rng(seed).normal(size=(2, 3, N, N))
    function = function_of(program)
    together = native.vmap(function)(*rows)
    alone = native.jit(function)
    for k in range(3):
        single = alone(np.array(rows[0, k]), np.array(rows[1, k]))
        assert all(np.array_equal(a[k], b) for a, b in zip(together, single, strict=True))


@jax.enable_x64(True)
def test_arrays_that_are_mostly_in_memory_are_joined_there():
    """Results of loops over lanes, with constants and a few scalars, in a loop whose carry they become."""
    x = np.linspace(-1.0, 1.0, 60).reshape(20, 3)

    def turn(x, k):
        size = k.astype(x.dtype)
        waves = native.lanes(lambda row: jnp.sin(row) + size)(x[:16])
        joined = jnp.concatenate([waves, np.ones((2, 3)), x[:2] * size, waves[:4]])  # 72 elements
        picked = jax.lax.dynamic_slice_in_dim(joined, 3 * k, 2, axis=0)
        return joined[4:] * 0.5 + joined[:20], picked.sum() + joined.max()

    def run(x):
        return jax.lax.scan(turn, x, jnp.arange(5))

    for found, wanted in zip(native.jit(run)(x), jax.jit(run)(x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-14)


@jax.enable_x64(True)
def test_the_first_of_equal_extremes_is_taken_and_a_nan_wins():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 4, size=(60, 11)).astype(float)
    rows[rng.random(rows.shape) < 0.05] = np.nan
    both = native.jit(lambda x: (jnp.argmax(x, axis=1), jnp.argmin(x, axis=1)))(rows)
    np.testing.assert_array_equal(both[0], np.argmax(rows, axis=1))
    np.testing.assert_array_equal(both[1], np.argmin(rows, axis=1))
