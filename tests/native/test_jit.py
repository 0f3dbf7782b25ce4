"""`native.jit` as a drop-in for `jax.jit`: pytrees, dtypes, static arguments, transformations, errors."""

import os
import random

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle import native

CLOSE = 1e-13  # a few roundings of numbers of size one


class Spring(eqx.Module):
    stiffness: jax.Array
    damping: jax.Array
    name: str = eqx.field(static=True)


def force(spring, state, *, scale=1.0):
    q, qd = state
    return {"force": -spring.stiffness * q * scale - spring.damping * qd, "energy": (spring.stiffness * q**2).sum() / 2}


SPRING = Spring(jnp.array([1.0, 2.0]), jnp.array([0.1, 0.2]), "leg")
STATE = (np.array([0.3, -0.4]), np.array([1.0, 2.0]))
fast_force = native.jit(force)


def same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=CLOSE, atol=CLOSE), found, expected)
    assert jax.tree.structure(found) == jax.tree.structure(expected)


def test_pytrees_and_keywords():
    same(fast_force(SPRING, STATE, scale=2.0), force(SPRING, STATE, scale=2.0))


def test_numpy_comes_back_for_numpy_and_jax_for_jax():
    double = native.jit(lambda x: 2 * x)
    assert type(double(np.ones(2))) is np.ndarray
    assert isinstance(double(jnp.ones(2)), jax.Array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_])
def test_dtypes_are_those_of_jax(dtype):
    x = np.array([0, 1, 1], dtype)

    def function(x):
        return x, x == x[::-1], jnp.where(x > x[0], x, x[::-1])

    for mine, theirs in zip(native.jit(function)(x), jax.jit(function)(x), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


def test_recompiles_for_new_shapes_and_dtypes():
    total = native.jit(lambda x: x.sum())
    assert total(np.ones(3)) == 3 and total(np.ones(5)) == 5 and total(np.ones(3, np.float32)).dtype == np.float32


def test_static_arguments():
    def power(x, n, sign="plus"):
        return x**n if sign == "plus" else -(x**n)

    by_number = native.jit(power, static_argnums=1, static_argnames="sign")
    assert by_number(np.array(2.0), 3) == 8
    assert by_number(np.array(2.0), 4, sign="minus") == -16
    assert native.jit(power, static_argnames=("n", "sign"))(np.array(3.0), n=2) == 9


def test_results_without_arguments_and_arguments_without_use():
    assert native.jit(lambda: jnp.arange(3.0))().tolist() == [0, 1, 2]
    assert native.jit(lambda x, y: y)(np.ones(2), np.zeros(1)).tolist() == [0]
    assert native.jit(lambda x: ())(np.ones(2)) == ()
    assert native.jit(lambda x: (x, x, None))(np.ones(1))[1].tolist() == [1]
    assert native.jit(lambda x: x.sum(0))(np.ones((0, 2))).tolist() == [0, 0]


def energy(q):
    return fast_force(SPRING, (q, STATE[1]))["energy"]


def plain_energy(q):
    return force(SPRING, (q, STATE[1]))["energy"]


@pytest.mark.parametrize("transform", [jax.grad, jax.hessian, jax.jit, jax.jacfwd, lambda f: jax.jit(jax.grad(f))])
def test_transformations_around_it(transform):
    same(transform(energy)(jnp.asarray(STATE[0])), transform(plain_energy)(jnp.asarray(STATE[0])))


def test_vmap_around_it():
    rows = jnp.linspace(0, 1, 14).reshape(7, 2)
    same(jax.vmap(jax.grad(energy))(rows), jax.vmap(jax.grad(plain_energy))(rows))


def test_values_of_a_transformation_that_the_function_closes_over():
    def loss(k):
        return native.jit(lambda q: k * q**2)(2.0)

    assert jax.grad(loss)(3.0) == 4.0
    assert jax.grad(loss)(5.0) == 4.0

    keep = {}

    def through_one_object(k):
        keep["k"] = k
        return shared(2.0)

    shared = native.jit(lambda q: keep["k"] * q**2)
    assert jax.grad(through_one_object)(3.0) == 4.0
    assert jax.vmap(through_one_object)(jnp.arange(3.0)).tolist() == [0, 4, 8]


def test_native_inside_native():
    inner = native.jit(lambda x: jnp.sin(x) * 2)
    outer = native.jit(lambda x: inner(x) + jax.vmap(inner)(x).sum())
    same(outer(np.ones(3)), 2 * np.sin(np.ones(3)) + 6 * np.sin(1.0))


def test_single_precision_without_x64():
    with jax.enable_x64(False):
        assert native.jit(lambda x: x * 2)(np.ones(2)).dtype == np.float32
    assert native.jit(lambda x: x * 2)(np.ones(2)).dtype == np.float64


def test_report_lists_passes_phases_and_sizes():
    text = fast_force.compiled(SPRING, STATE).report()
    for word in ("equations", "dead code", "fused multiply-add", "LLVM", "workspace bytes"):
        assert word in text


@pytest.mark.parametrize("bad", ["text", object(), 1j, np.array(["a"]), np.array([1j]), None, jax.random.key(0)])
def test_bad_leaves_are_errors_that_say_where(bad):
    with pytest.raises((TypeError, AttributeError, ValueError)):
        fast_force(SPRING, (bad, STATE[1]))


def test_the_message_names_argument_and_type():
    with pytest.raises(TypeError, match=r"argument 1\[0\], got str 'text'"):
        fast_force(SPRING, ("text", STATE[1]))
    with pytest.raises(TypeError, match=r"argument 'x', got list|argument 'x'"):
        native.jit(lambda x: x)(x=object())


def random_leaf(source: random.Random):
    makers = [
        lambda: np.full(source.choice([(), (1,), (2,), (3,), (2, 2), (0,)]), source.choice([0.5, np.nan, -np.inf])),
        lambda: np.ones(2, source.choice(["f4", "f2", "i4", "u1", "?", "c16", "U3", "O", "M8[s]", ">f8"])),
        lambda: source.choice([None, "x", 1, 2.5, True, 3j, [], [1.0, 2.0], {}, object(), 10**40, b"", jnp.ones(2)]),
        lambda: np.ones(4)[::2],
        lambda: np.asfortranarray(np.ones((2, 2))),
    ]
    return source.choice(makers)()


def test_random_bad_calls_give_errors_or_what_jax_gives():
    """KNUCKLE_FUZZ sets how many calls; the release run makes 100,000."""
    source = random.Random(3)
    function = native.jit(lambda q, qd: {"x": q * 2 + qd, "y": q.sum()})
    calls = int(os.environ.get("KNUCKLE_FUZZ", "800"))
    good = 0
    for _ in range(calls):
        q, qd = random_leaf(source), random_leaf(source)
        if source.random() < 0.5:
            qd = STATE[1]
        try:
            found = function(q, qd)
        except (TypeError, ValueError, AttributeError, OverflowError):
            continue
        expected = {"x": jnp.asarray(q) * 2 + jnp.asarray(qd), "y": jnp.asarray(q).sum()}
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2 if b.dtype == np.float16 else 1e-6), found, expected
        )
        good += 1
    assert good > calls / 100


def test_random_bad_calls_to_a_batch_give_errors_or_what_jax_gives():
    source = random.Random(4)
    function = native.vmap(lambda q, qd: {"x": q * 2 + qd, "y": q.sum()}, threads=1)
    plain = jax.vmap(lambda q, qd: {"x": q * 2 + qd, "y": q.sum()})
    calls = int(os.environ.get("KNUCKLE_FUZZ", "800")) // 2
    good = 0
    for _ in range(calls):
        arguments = [random_leaf(source) for _ in range(source.choice([1, 2, 2, 2, 2, 3]))]
        if len(arguments) > 1 and source.random() < 0.5:
            arguments[1] = np.ones((2, 1))
        try:
            found = function(*arguments)
        except (TypeError, ValueError, AttributeError, OverflowError):
            continue
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, plain(*arguments))
        good += 1
    assert good > calls / 100


def test_a_loop_under_vmap_runs_each_element_until_it_is_done():
    def root(x):
        unfinished = lambda s: jnp.abs(s[0] ** 2 - x) > 1e-12 * x  # noqa: E731
        return jax.lax.while_loop(unfinished, lambda s: (0.5 * (s[0] + x / s[0]), s[1] + 1), (x, 0))

    x = np.array([2.0, 100.0, 1e6])
    value, rounds = native.jit(jax.vmap(root))(x)
    np.testing.assert_allclose(value, np.sqrt(x), rtol=1e-12)
    np.testing.assert_array_equal(rounds, jax.jit(jax.vmap(root))(x)[1])
    assert len(set(rounds)) == 3
