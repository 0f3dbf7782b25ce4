"""Recursions over trees against plain loops; chains as loops equal chains unrolled; a chain of 200 links."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knuckle import native
from knuckle import tree as trees
from knuckle.dynamics import aba, rnea
from knuckle.tree import Tree, inward, inward_sum, outward, outward_sum, rows, sum_rows
from tests.random_models import chain, quick_jit, random_model, random_state, stack

parents = st.lists(st.integers(0, 10**6), min_size=1, max_size=30).map(
    lambda raw: tuple(r % (i + 1) - 1 for i, r in enumerate(raw))
)
quick = settings(max_examples=20, deadline=None)


def loop_outward(parent, f, start, xs):
    values, root = [], 0
    for node, up in enumerate(parent):
        above = values[up] if up >= 0 else start[root]
        root += up < 0
        values.append(f(above, xs[node]))
    return np.array(values)


def loop_descendants(parent, xs):
    totals = np.array(xs)
    for node in reversed(range(len(parent))):
        if parent[node] >= 0:
            totals[parent[node]] += totals[node]
    return totals


@quick
@given(parents, st.integers(0, 1000))
def test_outward_and_inward_equal_plain_loops(parent, seed):
    rng = np.random.default_rng(seed)
    tree = Tree(parent)
    xs, start = rng.normal(size=(len(parent), 2)), rng.normal(size=(len(tree.roots), 2))
    f = lambda above, x: above * 0.5 + jnp.sin(above) * x  # noqa: E731
    expected = loop_outward(parent, f, start, xs)
    np.testing.assert_allclose(outward(tree, f, jnp.asarray(start), jnp.asarray(xs)), expected, atol=1e-14)
    np.testing.assert_allclose(inward_sum(tree, jnp.asarray(xs)), loop_descendants(parent, xs), atol=1e-13)
    sums = loop_outward(parent, lambda above, x: above + x, start, xs)
    np.testing.assert_allclose(outward_sum(tree, jnp.asarray(xs), jnp.asarray(start)), sums, atol=1e-13)


@quick
@given(parents)
def test_inward_gives_the_messages_of_each_root(parent):
    tree = Tree(parent)
    ones = jnp.ones((len(parent), 1))
    messages, depth_below = inward(tree, lambda below, x: (below + x, below), jnp.zeros(1), ones)
    sizes = loop_descendants(parent, np.ones((len(parent), 1)))
    np.testing.assert_array_equal(messages, sizes[tree.roots])
    np.testing.assert_array_equal(depth_below, sizes - 1)


@quick
@given(parents)
def test_facts_about_a_tree(parent):
    tree = Tree(parent)
    for node, up in enumerate(parent):
        line = [node]
        while parent[line[-1]] >= 0:
            line.append(parent[line[-1]])
        assert tree.depth[node] == len(line) - 1
        assert tree.roots[tree.root_of[node]] == line[-1]
        assert set(np.flatnonzero(tree.ancestors[:, node])) == set(line)
        assert up < node


@quick
@given(st.lists(st.integers(0, 5), min_size=0, max_size=12), st.integers(6, 9))
def test_rows_and_their_sums(index, count):
    index = np.array(index, int)
    x = np.arange(2.0 * count).reshape(count, 2)
    np.testing.assert_array_equal(rows(jnp.asarray(x), index), x[index])
    expected = np.zeros((count, 2))
    np.add.at(expected, index, x[index])
    np.testing.assert_array_equal(sum_rows(jnp.asarray(x[index]), index, count), expected)


FORESTS = {
    "chain": tuple(range(-1, 49)),
    "two long arms on a trunk": (-1, 0, *range(1, 50), 1, *range(51, 99)),
    "chain that forks at its end": (*range(-1, 59), 59, 59),
    "two chains side by side": (*range(-1, 44), -1, *range(45, 89)),
}


@pytest.mark.parametrize("name", FORESTS)
def test_long_runs_are_loops_and_give_what_unrolling_gives(name, monkeypatch):
    parent = FORESTS[name]
    assert all(up < node for node, up in enumerate(parent))
    assert any(len(run) > 1 for run in Tree(parent).runs), "this forest was meant to make a loop"
    rng = np.random.default_rng(0)
    xs = jnp.asarray(rng.normal(size=(len(parent), 3)))

    def both_ways(tree, xs):
        start = jnp.ones((len(tree.roots), 3))
        out = outward(tree, lambda above, x: jnp.cos(above) * x, start, xs)
        messages, values = inward(tree, lambda below, x: (jnp.sin(below) + x, below * x), jnp.zeros(3), xs)
        return out, messages, values

    def value_and_gradient(tree):
        gradient = jax.grad(lambda xs: sum(jnp.sum(jnp.sin(v)) for v in both_ways(tree, xs)))
        return quick_jit(lambda xs: (both_ways(tree, xs), gradient(xs)))(xs)

    looped, looped_gradient = value_and_gradient(Tree(parent))
    monkeypatch.setattr(trees, "LONGEST_UNROLL", 1000)
    unrolled = Tree(parent)
    assert all(len(run) == 1 for run in unrolled.runs)
    expected, expected_gradient = value_and_gradient(unrolled)
    for a, b in zip(looped, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(looped_gradient, expected_gradient, rtol=1e-10, atol=1e-13)


def test_a_chain_of_200_links_traces_small_differentiates_and_agrees_with_inverse_dynamics():
    rng = np.random.default_rng(1)
    skeleton = chain(("revolute",) * 200)
    models = [random_model(rng, skeleton) for _ in range(2)]
    model, state = stack(models), stack([random_state(rng, m) for m in models])
    tau = rng.normal(size=(2, 200))
    operations = len(jax.make_jaxpr(aba)(models[0], state.q[0], state.qd[0], tau[0]).jaxpr.eqns)
    assert operations < 1500, "a long chain must be a loop, not 200 copies of its links"

    @quick_jit
    @jax.vmap
    def forward_and_back(model, q, qd, tau):
        qdd = aba(model, q, qd, tau)
        gradient = jax.grad(lambda tau: jnp.sum(jnp.sin(aba(model, q, qd, tau))))(tau)
        return qdd, rnea(model, q, qd, qdd), gradient

    qdd, found, gradient = map(np.asarray, forward_and_back(model, state.q, state.qd, tau))
    # Backward error, relative to the largest force in the chain: a term of M qdd.
    terms = [np.abs(rnea(m, q, 0 * v, a)).max() for m, q, v, a in zip(models, state.q, state.qd, qdd, strict=True)]
    assert np.all(np.abs(found - tau) < 1e-9 * np.array(terms)[:, None])
    assert np.all(np.isfinite(gradient)) and np.all(np.any(gradient != 0, axis=1))


def test_rows_are_found_outside_x64_after_use_within_it():
    """A constant index of 64 bits that a program had used in x64 did not fit the programs outside it."""
    index = np.arange(500)[::-1].copy()

    def picked(a):
        return rows(jnp.sin(a), index)

    a = np.arange(500, dtype=np.float32)
    jax.jit(picked)(a)
    with jax.enable_x64(False):
        for way in (picked, jax.jit(picked), native.jit(picked)):
            np.testing.assert_allclose(way(a), np.sin(a)[::-1], rtol=1e-6)  # of single precision


@pytest.mark.parametrize("slots", [np.repeat(np.arange(60), 3), np.sort(np.random.default_rng(0).integers(0, 90, 150))])
def test_many_rows_are_added_by_slices_as_by_a_matrix(slots, monkeypatch):
    """In another order of the terms only; some slots of the second case have no row."""
    count, rng = int(slots.max()) + 1, np.random.default_rng(1)
    shuffled = rng.permutation(slots)
    values = {"a": jnp.asarray(rng.normal(size=(len(slots), 2, 3)))}
    for slot in (slots, shuffled):
        added = sum_rows(values, slot, count)["a"]
        assert "dot_general" not in str(jax.make_jaxpr(lambda x, slot=slot: sum_rows(x, slot, count))(values))
        with monkeypatch.context() as patch:
            patch.setattr(trees, "LARGEST_SELECTION", 10**9)
            np.testing.assert_allclose(added, sum_rows(values, slot, count)["a"], rtol=0, atol=1e-14)
