"""Large loop variables: overwritten where they are if nobody else reads them, and never if somebody does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from knuckle import native
from knuckle.native.ir import Loop, sub_regions
from knuckle.native.lower import lower
from knuckle.native.passes import run_passes

N = 40  # a matrix of 1600 elements is in memory, as a loop variable too
A = np.random.default_rng(0).normal(size=(N, N))
V = np.random.default_rng(1).normal(size=80)
COUNT = np.int64(N)


def eliminate(a, count):
    """Rows of a buffer in two loops with bounds found at run time."""

    def below(k, a):
        return lax.fori_loop(k + 1, count, lambda i, a: a.at[i].add(-0.1 * a[i, k] * a[k]), a)

    return lax.fori_loop(0, count, below, a)


def initial_value_is_also_a_constant(a, count):
    a = jnp.sin(a)
    return lax.fori_loop(0, count, lambda i, m: m.at[i].set(0.5 * a[N - 1 - i] + m[0]), a)


def a_view_of_the_initial_value_is_constant(a, count):
    a = jnp.sin(a)
    last = a[-1]
    return lax.fori_loop(0, count, lambda i, m: m.at[i].add(last + a.T[0]), a)


def initial_value_is_scanned_too(a, count):
    a = jnp.sin(a)
    return lax.scan(lambda m, row: (m.at[0].add(row).at[N - 1].set(m[0]), m[1] + row), a, a[::-1])


def read_after_the_loop(a, count):
    a = jnp.sin(a)
    return lax.fori_loop(0, count, lambda i, m: m.at[i].mul(2.0), a), a + 1


def two_variables_from_one_array(a, count):
    a = jnp.sin(a)
    return lax.fori_loop(0, count, lambda i, m: (m[0].at[i].set(m[1][i - 1]), m[1].at[i].add(1.0)), (a, a))


def swapped_in_the_loop(a, count):
    return lax.fori_loop(0, count, lambda i, m: (m[1].at[i].add(m[0][0]), m[0]), (jnp.sin(a), jnp.cos(a)))


def inner_loop_starts_afresh_each_time(a, count):
    a = jnp.sin(a)

    def outer(k, total):
        inner = lax.fori_loop(0, k, lambda i, m: m.at[i].add(1.0), a)
        return total + jnp.sum(inner @ inner[k])

    return lax.fori_loop(0, count, outer, 0.0)


def outer_variable_read_after_the_inner_loop(a, count):
    def outer(k, m):
        inner = lax.fori_loop(0, count, lambda i, x: x.at[i].mul(0.9), m)
        return 0.5 * inner + 0.5 * m

    return lax.fori_loop(0, count, outer, jnp.sin(a))


def in_the_test_of_a_while(a, count):
    a = jnp.cos(a)
    return lax.while_loop(lambda s: s[1][0, 0] + a[0, 0] < 30, lambda s: (s[0] + 1, s[1].at[0].add(a[0] ** 2)), (0, a))


def in_a_branch(a, count):
    a = jnp.cos(a)

    def looped(m):
        return lax.fori_loop(0, count, lambda i, x: x.at[i].add(m[0]), m)

    return lax.cond(count > 3, looped, jnp.sin, a), a[0]


def stored_outside_read_inside(a, count):
    """Values of small arrays go to memory once, before the loops that read them."""
    table = jnp.sin(a[0]) * 2

    def body(i, m):
        return m.at[i].set(m[i] * table + table[i % N] + lax.cond(i % 2 == 0, lambda: table[i // 2], lambda: 0.0))

    return lax.fori_loop(0, count, body, jnp.cos(a)), lax.fori_loop(0, count, lambda i, s: s + table[i], 0.0)


PROGRAMS = (
    eliminate, initial_value_is_also_a_constant, a_view_of_the_initial_value_is_constant, initial_value_is_scanned_too,
    read_after_the_loop, two_variables_from_one_array, swapped_in_the_loop, inner_loop_starts_afresh_each_time,
    outer_variable_read_after_the_inner_loop, in_the_test_of_a_while, in_a_branch, stored_outside_read_inside,
)  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_values_are_those_of_jax(function):
    found, expected = native.jit(function)(A, COUNT), jax.jit(function)(A, COUNT)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12 * np.abs(theirs).max())


def test_over_a_batch_and_with_derivatives():
    functions = (eliminate, initial_value_is_also_a_constant, outer_variable_read_after_the_inner_loop)

    def together(a):
        return [function(a, N) for function in functions]

    stack = np.stack([A, A.T, 2 * A])
    alone = native.jit(together)
    for k, row in enumerate(zip(*native.vmap(together)(stack), strict=True)):
        assert all(np.array_equal(x, y) for x, y in zip(row, alone(stack[k]), strict=True))

    def loss(a):
        return sum(jnp.sum(x**2) for x in together(a)[1:])  # a bound that depends on a counter has no reverse mode

    expected = jax.jit(jax.grad(loss))(A)
    np.testing.assert_allclose(native.jit(jax.grad(loss))(A), expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def whole_copies(region, size, loops=0):
    """Loops over all elements of an array that are themselves in loops."""
    found = 0
    for statement in region.statements:
        for inner in sub_regions(statement):
            if isinstance(statement, Loop) and statement.kind == "kernel":
                found += loops > 0 and statement.count is not None and statement.count.attr == size
            else:
                found += whole_copies(inner, size, loops + isinstance(statement, Loop))
    return found


def test_nested_loops_do_not_copy_the_matrix():
    program, _ = lower(jax.make_jaxpr(eliminate)(A, COUNT))
    operations = run_passes(program)["order"]
    assert whole_copies(program.root, N * N) == 0  # one for each turn of the outer loop before
    assert operations < 100  # each row's update was written out


def test_a_vector_indexed_at_run_time_is_not_held_in_registers():
    def function(x, count):
        return lax.fori_loop(0, count, lambda i, x: x.at[i].set(x[i - 1] + 1), x)

    assert native.jit(function).compiled(V, COUNT).operations["order"] < 4 * len(V)  # 10 for each element before
    np.testing.assert_array_equal(native.jit(function)(V, COUNT), jax.jit(function)(V, COUNT))
