"""How many versions `native.jit` compiles: one for Python and NumPy numbers, few for patterns of zeros."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import native
from knuckle.native import ffi, sparsity

CLOSE = 1e-12  # 200 steps of rounding


@pytest.fixture
def compilations(monkeypatch):
    """Counts the programs that are compiled or read from the cache."""
    made, original = [], ffi.compile_cached
    monkeypatch.setattr(ffi, "compile_cached", lambda *args: made.append(args) or original(*args))
    return made


def scaled(x, scale):
    return jnp.sin(x * scale) + scale**2 + jnp.where(scale > 0, x, 1.0) + jnp.linalg.norm(x * scale)


def test_python_and_numpy_numbers_share_one_version(compilations):
    function = native.jit(scaled)
    x = np.arange(3.0)
    results = [function(x, s) for s in (2.0, np.float64(2.0), np.array(2.0))]
    assert len(compilations) == 1
    for result in results:
        np.testing.assert_allclose(result, scaled(x, 2.0), rtol=1e-15)
    counted = native.jit(lambda x, n: x * n)
    for n in (3, np.int64(3)):
        np.testing.assert_array_equal(counted(np.arange(4), n), np.arange(4) * 3)
    assert len(compilations) == 2


def test_a_number_whose_type_changes_the_dtypes_has_a_version_of_its_own(compilations):
    x = np.arange(3, dtype=np.float32)
    with jax.numpy_dtype_promotion("standard"):
        function = native.jit(scaled)
        for scale in (2.0, np.float64(2.0)):
            assert function(x, scale).dtype == jax.jit(scaled)(x, scale).dtype
        assert len(compilations) == 2
        inside = native.jit(lambda x, s: (x * s).astype(np.float64))  # the same dtype in the end, other rounding before
        third = 1 / 3
        for scale in (third, np.float64(third)):
            expected = (x.astype(np.float32) * np.asarray(scale, np.float32 if scale is third else np.float64)).astype(
                np.float64
            )
            np.testing.assert_array_equal(inside(x, scale), expected)


def pendulum() -> kn.Model:
    links = [
        kn.Link(
            name, parent=parent, joints=kn.revolute("y", name=f"{name} joint"), position=(0, 0, height), mass=1.0,
            com=(0, 0, -0.5), inertia=(0.1, 0.1, 0.01),
        )
        for name, parent, height in (("upper", "world", 0.0), ("lower", "upper", -1.0))
    ]  # fmt: skip
    return kn.build(links)


def roll(model, state):
    return kn.rollout(model, state, dt=1e-3, steps=200)


def kinematic(model, state):
    return model.inertia, model.position, model.rotation, model.axis, model.anchor, model.gravity, model.friction


def test_a_model_as_an_argument_costs_hardly_more_than_one_closed_over():
    model = pendulum()
    state = model.state(np.array([0.3, 0.2]))
    folded = native.jit(lambda s: roll(model, s)).compiled(state).operations["order"]
    free = native.jit(roll).compiled(model, state).operations["order"]
    known = native.jit(roll, sparse=kinematic).compiled(model, state).operations["order"]
    # what is before the loop and not in the folded program (reading the parameters) is counted too
    assert known <= 2.5 * folded < 0.25 * free


def test_a_native_rollout_of_a_model_is_nearly_as_short_as_of_one_closed_over(monkeypatch):
    """It had ten times the operations: what depends on the model alone was done in each step."""
    compiled, original = [], ffi.compile_cached
    monkeypatch.setattr(ffi, "compile_cached", lambda *args: compiled.append(original(*args)) or compiled[-1])
    model = pendulum()
    state = model.state(np.array([0.3, 0.2]))
    end = kn.rollout(model, state, dt=1e-3, steps=201, native=True).q[-1]
    folded = native.jit(lambda s: kn.rollout(model, s, dt=1e-3, steps=201))
    np.testing.assert_allclose(end, folded(state).q[-1], atol=CLOSE)
    free, known = (code.operations["order"] for code in compiled)
    assert free <= 2.5 * known


def test_zeros_that_change_are_seen(compilations):
    function = native.jit(lambda a, x: jnp.sum(a[:, None] * x / (1 + a @ a)), sparse=lambda a, x: a)
    x = np.linspace(-1, 2, 12).reshape(4, 3)
    for a in np.array([[0, 1, 0, 2], [0, 3, 0, 2], [1, 0, 0, 2], [1, 1, 1, 1], [0, 1, 0, 5.0]]):
        expected = np.sum(a[:, None] * x / (1 + a @ a))
        for given in (a, jnp.asarray(a), np.concatenate([a, a])[4:], np.repeat(a, 2)[::2]):
            np.testing.assert_allclose(function(given, x), expected, rtol=1e-14)
    assert len(compilations) == 3


def test_negative_zero_and_nan_are_no_zeros():
    function = native.jit(lambda a: 1 / a, sparse=lambda a: a)
    with np.errstate(divide="ignore"):
        for a in np.array([[0.0, 1.0], [-0.0, 1.0], [np.nan, 0.0]]):
            np.testing.assert_array_equal(function(a), 1 / a)


def test_patterns_beyond_a_few_share_one_version(compilations):
    function = native.jit(lambda a: a * (a + 1), sparse=lambda a: a)
    for place in range(3 * sparsity.MOST_PATTERNS):
        a = np.ones(20)
        a[place] = 0
        np.testing.assert_array_equal(function(a), a * (a + 1))
    assert len(compilations) == sparsity.MOST_PATTERNS + 1


def test_derivatives_by_values_that_are_zero_are_not_lost():
    function = native.jit(lambda a, x: jnp.sum(a * x), sparse=lambda a, x: a)
    a, x = np.array([0.0, 1.0]), np.array([3.0, 4.0])
    np.testing.assert_array_equal(jax.grad(function)(a, x), x)
    np.testing.assert_array_equal(jax.grad(function, argnums=1)(a, x), a)
    np.testing.assert_array_equal(jax.vmap(function, in_axes=(0, None))(np.stack([a, a + 1]), x), [4, 11])
    np.testing.assert_array_equal(jax.jit(function)(a, x), 4)


def test_a_rollout_sees_friction_and_axes_that_appear_and_vanish():
    model = pendulum()
    state = model.state(np.array([0.3, 0.2]))
    tilted = np.array([[0, 1, 0], [0.6, 0.8, 0]])
    rough = [eqx.tree_at(lambda m: m.friction, model, np.array([f, 0.0])) for f in (0.3, 0.0, 0.1)]
    for case in (model, *rough, eqx.tree_at(lambda m: m.axis, model, tilted), model):
        fast = kn.rollout(case, state, dt=1e-3, steps=200, native=True)
        np.testing.assert_allclose(fast.q, kn.rollout(case, state, dt=1e-3, steps=200).q, atol=CLOSE)


def test_options_of_jax_that_change_a_program_have_versions_of_their_own():
    """The first version was used whatever JAX's options said later, in the search for a version and on quick calls."""
    words = np.array([0, 5], np.uint32)

    def draw(key):
        return jax.random.uniform(key, (5,))

    fast = native.jit(draw)
    for partitionable in (True, False, True, False):
        with jax.threefry_partitionable(partitionable):
            np.testing.assert_array_equal(fast(words), jax.jit(draw)(words))
    mixed = native.jit(lambda a, b: a + b)
    single, double = np.ones(2, np.float32), np.ones(2)
    with jax.numpy_dtype_promotion("standard"):
        assert mixed(single, double).dtype == np.float64
    with pytest.raises(Exception, match="promotion"):
        mixed(single, double)
