"""Large arrays of which most operations vanish are scalars; dense ones stay in memory, and trials are bounded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import native
from knuckle.dynamics import aba, rnea
from knuckle.native import structure
from knuckle.native.algebra import Algebra
from knuckle.native.lower import lower
from knuckle.native.passes import run_passes
from knuckle.native.values import SCALAR_LIMIT

LINKS, EACH = 24, 6  # each of so many matrices is used so many times
OWNER = np.repeat(np.arange(LINKS), EACH)
FIRST = np.arange(LINKS * EACH) % EACH == 0
MATRICES = np.random.default_rng(0).normal(size=(LINKS, 3, 3))
VECTORS = np.random.default_rng(1).normal(size=(LINKS * EACH, 3))


def repeated_rows(x, y):
    """As articulated inertias are: rows taken several times, of which all but one are zero."""
    spread = jnp.where(FIRST[:, None, None], jnp.tanh(x)[OWNER], 0.0)
    return (spread * y[:, None]).sum(-1)


def padded_rows(x, y):
    return jnp.zeros((EACH * LINKS, 3, 3)).at[EACH * np.arange(LINKS)].set(jnp.tanh(x)) * y[:, None]


def joined_rows(x, y):
    return jnp.concatenate([jnp.tanh(x), jnp.zeros(((EACH - 1) * LINKS, 3, 3))]) * y[:, None]


def identities(x, y):
    return jnp.broadcast_to(jnp.eye(3), (LINKS, 3, 3)) @ x + y[:LINKS, None]


PROGRAMS = {f.__name__: f for f in (repeated_rows, padded_rows, joined_rows, identities)}


def operations(function, *arguments):
    program, _ = lower(jax.make_jaxpr(function)(*arguments))
    return list(run_passes(program).values())[-1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_structured_arrays_have_the_results_of_jax(name):
    expected = jax.jit(PROGRAMS[name])(MATRICES, VECTORS)
    found = native.jit(PROGRAMS[name])(MATRICES, VECTORS)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)  # sums of three terms, each rounded


def test_lanes_of_a_batch_have_the_same_bits():
    rows = native.vmap(repeated_rows)(np.stack([MATRICES, -MATRICES]), np.stack([VECTORS, VECTORS]))
    np.testing.assert_array_equal(rows[0], native.jit(repeated_rows)(MATRICES, VECTORS))


def test_rows_that_are_zero_cost_nothing():
    """The sum has 3 products for each of 3 * LINKS elements that are not zero, beside loads and stores of all."""
    assert FIRST.size * 9 > SCALAR_LIMIT
    stores = LINKS * EACH * 3
    assert operations(lambda x, y: repeated_rows(x, y) * 1.0, MATRICES, VECTORS) < stores + LINKS * 9 * 5


def test_dense_arrays_stay_loops():
    weights = np.random.default_rng(2).normal(size=(50, 50))

    def dense(x):
        return jnp.tanh(x * weights + jnp.pad(x, 1)[1:-1, 1:-1]) - x[::-1] * np.triu(weights)

    assert operations(dense, weights) < 300


def test_all_trials_of_a_program_are_bounded(monkeypatch):
    """A mesh gathers each node for several triangles, again and again: not all of that may be written out."""
    corners, weights = np.random.default_rng(3).integers(0, 300, 1800), np.linspace(0, 1, 1800)

    def relaxed(x):
        for _ in range(8):
            x = x + 0.1 * jnp.cos(jnp.sin(x)[corners] * weights).reshape(300, 6).sum(1)
        return x

    bound = 4000
    monkeypatch.setattr(structure, "TRIALS_LIMIT", bound)
    x = np.linspace(0, 1, 300)
    counted = operations(relaxed, x)
    monkeypatch.setattr(structure, "TRIAL_LIMIT", 0)
    assert counted < operations(relaxed, x) + 2 * bound
    np.testing.assert_allclose(
        native.jit(relaxed)(x), jax.jit(relaxed)(x), rtol=1e-12
    )  # eight contractions, each rounded


def test_a_trial_that_is_given_up_leaves_no_limit():
    b = Algebra()
    x, y = b.variable("phi", "f8"), b.variable("phi", "f8")

    def powers(count):
        value = x
        for _ in range(count):
            value = b.mul_(value, y)
        return value

    assert b.within(3, lambda: powers(4)) is None
    assert b.within(3, lambda: b.within(10, lambda: powers(7))) is None
    found = powers(9)
    assert b.within(0, lambda: powers(9)) is found


def test_forces_of_many_free_bodies_are_recovered_from_their_accelerations():
    links = [kn.Link(f"body{k}", joints=kn.free(), mass=1.0 + k, inertia=(0.1, 0.2, 0.25)) for k in range(12)]
    model = kn.build(links)
    assert model.nv * 36 > SCALAR_LIMIT
    rng = np.random.default_rng(4)
    q = np.array(model.reference) + 0.3 * rng.normal(size=model.nq)
    qd, force = rng.normal(size=(2, model.nv))
    found = native.jit(lambda q, qd, force: rnea(model, q, qd, aba(model, q, qd, force)))(q, qd, force)
    np.testing.assert_allclose(found, force, rtol=0, atol=1e-10)  # inertias of 0.1 to 13, rounded
