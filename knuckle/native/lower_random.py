"""Rules for random keys and bits: a key is its array of words, with one more axis than JAX shows."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.random.core import _gamma_impl
from jax.random import wrap_key_data

from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_derived import derived, lower_derived
from knuckle.native.values import Value, from_numpy


@rule("random_wrap", "random_unwrap", "random_clone", harmless=("impl",))
def _same_words(b: Lowering, equation, key: Value):
    """A key is its array of words."""
    return key


def _kind(equation):
    """JAX's functions for the kind of key of an equation."""
    avals = [v.aval for v in [*equation.inputs, *equation.outputs]]
    return next(a.dtype._impl for a in avals if hasattr(a.dtype, "_impl"))


def _per_key(function, keys, rank: int = 1):
    for _ in range(keys.ndim - rank):
        function = jax.vmap(function)
    return function(keys)


@rule("random_bits", reads=("bit_width", "shape"))
def _random_bits(b: Lowering, equation, keys: Value):
    draw, width, shape = _kind(equation).random_bits, equation.params["bit_width"], equation.params["shape"]
    return lower_derived(b, lambda _, keys: _per_key(lambda key: draw(key, width, shape), keys), {}, keys)


@rule("random_split", reads=("shape",))
def _random_split(b: Lowering, equation, keys: Value):
    split, shape = _kind(equation).split, equation.params["shape"]
    return lower_derived(b, lambda _, keys: _per_key(lambda key: split(key, shape), keys), {}, keys)


@rule("random_fold_in")
def _random_fold_in(b: Lowering, equation, keys: Value, data: Value):
    fold = _kind(equation).fold_in
    for _ in range(len(keys.shape) - 1):
        fold = jax.vmap(fold)
    return lower_derived(b, lambda _, keys, data: fold(keys, data), {}, keys, data)


@rule("random_seed", harmless=("impl",))
def _random_seed(b: Lowering, equation, seeds: Value):
    seed = _kind(equation).seed
    return lower_derived(b, lambda _, seeds: _per_key(seed, seeds, rank=0), {}, seeds)


@rule("random_gamma", reads=("log_space",))
def _random_gamma(b: Lowering, equation, keys: Value, a: Value):
    kind, log_space = _kind(equation), equation.params["log_space"]

    def draw(_, words, a):
        return _gamma_impl(wrap_key_data(words, impl=kind.name), a, log_space=log_space, use_vmap=True)

    return lower_derived(b, draw, {}, keys, a)


@derived("threefry2x32")
def threefry(params, *words):
    """The Threefry 2x32 hash with 20 rounds (Salmon et al., 2011)."""
    key_1, key_2, x_1, x_2 = words
    shape = jnp.broadcast_shapes(*[w.shape for w in words])
    key_1, key_2, x_1, x_2 = (jnp.broadcast_to(w, shape) for w in (key_1, key_2, x_1, x_2))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = (key_1, key_2, key_1 ^ key_2 ^ np.uint32(0x1BD11BDA))
    x_1, x_2 = x_1 + keys[0], x_2 + keys[1]
    for group in range(5):
        for r in rotations[group % 2]:
            x_1 = x_1 + x_2
            x_2 = (x_2 << np.uint32(r)) | (x_2 >> np.uint32(32 - r))
            x_2 = x_1 ^ x_2
        x_1 = x_1 + keys[(group + 1) % 3]
        x_2 = x_2 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return [x_1, x_2]


@rule("iota_2x32_shape", reads=("shape",))
def _iota_of_words(b: Lowering, equation):
    """The numbers 0, 1, .. of all elements, as high and low words."""
    shape = equation.params["shape"]
    numbers = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    return [from_numpy(b, (numbers >> np.uint64(32)).astype(np.uint32)), from_numpy(b, numbers.astype(np.uint32))]
