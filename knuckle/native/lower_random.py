"""Rules for random keys and bits: a key is its array of words, with one more axis than JAX shows."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import numpy as np

from knuckle.native.lower import Lowering, rule
from knuckle.native.lower_derived import derived, lower_derived
from knuckle.native.values import Value, from_numpy


@rule("random_wrap", "random_unwrap")
def _same_words(b: Lowering, equation, key: Value):
    """A key is its array of words."""
    return key


@rule("random_bits", "random_split", "random_fold_in", "random_seed")
def _random(b: Lowering, equation, *values: Value):
    return lower_derived(b, equation.primitive, _with_implementation(equation), *values)


def _with_implementation(equation):
    """The equation with JAX's functions for its kind of key among the parameters."""
    avals = [v.aval for v in [*equation.inputs_vars(), *equation.outputs]]
    kinds = [a.dtype._impl for a in avals if hasattr(a.dtype, "_impl")]
    return replace(equation, params={**equation.params, "implementation": kinds[0]})


def _per_key(function, keys, rank: int = 1):
    for _ in range(keys.ndim - rank):
        function = jax.vmap(function)
    return function(keys)


@derived("random_bits")
def random_bits_words(params, keys):
    draw = params["implementation"].random_bits
    return _per_key(lambda key: draw(key, params["bit_width"], params["shape"]), keys)


@derived("random_split")
def random_split_words(params, keys):
    return _per_key(lambda key: params["implementation"].split(key, params["shape"]), keys)


@derived("random_fold_in")
def random_fold_in_words(params, keys, data):
    fold = params["implementation"].fold_in
    for _ in range(keys.ndim - 1):
        fold = jax.vmap(fold)
    return fold(keys, data)


@derived("random_seed")
def random_seed_words(params, seeds):
    return _per_key(params["implementation"].seed, seeds, rank=0)


@rule("iota_2x32_shape")
def _iota_of_words(b: Lowering, equation):
    """The numbers 0, 1, .. of all elements, as high and low words."""
    shape = equation.params["shape"]
    numbers = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    return [from_numpy(b, (numbers >> np.uint64(32)).astype(np.uint32)), from_numpy(b, numbers.astype(np.uint32))]
