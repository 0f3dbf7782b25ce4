"""Plain networks from a vector to a vector: layers, one weight, polynomials, and one network for each of many rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from knuckle.neural.registry import Network, as_type_of, register


def partly_linear(x: Float[Array, " unit"]) -> Float[Array, " unit"]:
    """The first unit of a layer as it is, tanh of the others: what is linear is learned at once."""
    return jnp.concatenate([x[:1], jnp.tanh(x[1:])])


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "identity": lambda x: x,
    "partly linear": partly_linear,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "softplus": jax.nn.softplus,
    "tanh": jnp.tanh,
}
POSITIVE_AT_ZERO = ("sigmoid", "softplus")
MOST_TERMS = 100_000


@register
class MLP(Network):
    """Layers of weights, biases and an activation: sizes (4, 16, 2) has 4 inputs, 16 hidden units and 2 outputs.

    Args:
        activation: a name in ACTIVATIONS, between layers; `last_activation` after the last.
        bias: whether layers have biases; without them a network of odd activations is odd, and zero at zero.
        input_bias: add a trained number to each input, as in NeuralSim (sizes (5, 10, 10) then have 175 numbers).
        zero_last: begin with a last layer of zeros: no effect at the start, a gradient that is not zero.
    """

    weights: tuple[Float[Array, "out in"], ...]
    biases: tuple[Float[Array, " out"] | None, ...]
    shift: Float[Array, " in"] | None  # of the inputs
    sizes: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)
    last_activation: str = eqx.field(static=True)
    bias: bool = eqx.field(static=True)
    input_bias: bool = eqx.field(static=True)
    zero_last: bool = eqx.field(static=True)

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str = "tanh",
        *,
        key: PRNGKeyArray,
        last_activation: str = "identity",
        bias: bool = True,
        input_bias: bool = False,
        zero_last: bool = True,
    ):
        self.sizes = checked_sizes("MLP: sizes", sizes, least=2)
        self.activation = checked_activation("MLP: activation", activation)
        self.last_activation = checked_activation("MLP: last_activation", last_activation)
        self.bias, self.input_bias, self.zero_last = bool(bias), bool(input_bias), bool(zero_last)
        layers = [
            _layer(k, i, o) for k, (i, o) in zip(_keys(key, self.sizes), itertools.pairwise(self.sizes), strict=True)
        ]
        if zero_last:
            layers[-1] = jax.tree.map(jnp.zeros_like, layers[-1])
        self.weights = tuple(weight for weight, _ in layers)
        self.biases = tuple(offset if bias else None for _, offset in layers)
        self.shift = jnp.zeros(self.sizes[0]) if input_bias else None

    @property
    def starts_at_zero(self) -> bool:
        return self.zero_last and self.last_activation not in POSITIVE_AT_ZERO

    def __call__(self, x: Float[Array | np.ndarray, " in"]) -> Float[Array, " out"]:
        x = checked_input(self, x, self.sizes[0])
        weights, biases, shift = as_type_of(x, (self.weights, self.biases, self.shift))
        x = x if shift is None else x + shift
        names = [self.activation] * (len(weights) - 1) + [self.last_activation]
        for weight, offset, name in zip(weights, biases, names, strict=True):
            x = ACTIVATIONS[name](weight @ x if offset is None else weight @ x + offset)
        return jnp.asarray(x)


@register
class Linear(Network):
    """A matrix, and maybe an offset, that begin at zero; Linear(1, 1) is the model of one weight."""

    weight: Float[Array, "out in"]
    offset: Float[Array, " out"] | None
    inputs: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    bias: bool = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, bias: bool = False, *, key: PRNGKeyArray | None = None):
        self.inputs, self.outputs = checked_sizes("Linear: inputs, outputs", (inputs, outputs), least=2)
        self.bias = bool(bias)
        self.weight = jnp.zeros((self.outputs, self.inputs))
        self.offset = jnp.zeros(self.outputs) if bias else None

    starts_at_zero = True

    def __call__(self, x: Float[Array | np.ndarray, " in"]) -> Float[Array, " out"]:
        x = checked_input(self, x, self.inputs)
        weight, offset = as_type_of(x, (self.weight, self.offset))
        return weight @ x if offset is None else weight @ x + offset


@register
class Polynomial(Network):
    """A polynomial of the inputs with coefficients that begin at zero.

    Args:
        degree: the highest; terms are sorted by degree.
        cross: whether there are products of different inputs, else powers only.
        constant: whether there is a term of degree zero.
    """

    coefficients: Float[Array, "out term"]
    inputs: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    degree: int = eqx.field(static=True)
    cross: bool = eqx.field(static=True)
    constant: bool = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        degree: int,
        *,
        cross: bool = True,
        constant: bool = False,
        key: PRNGKeyArray | None = None,
    ):
        self.inputs, self.outputs = checked_sizes("Polynomial: inputs, outputs", (inputs, outputs), least=2)
        (self.degree,) = checked_sizes("Polynomial: degree", (degree,), least=1)
        self.cross, self.constant = bool(cross), bool(constant)
        products = self.inputs * self.degree  # no more than there are terms, and quick to know
        if products > MOST_TERMS or (cross and math.comb(self.inputs + self.degree, self.degree) > MOST_TERMS):
            raise ValueError(f"Polynomial: {inputs} inputs of degree {degree} have more than {MOST_TERMS} terms")
        self.coefficients = jnp.zeros((self.outputs, len(self.terms)))

    starts_at_zero = True

    @property
    def terms(self) -> tuple[tuple[int, ...], ...]:
        """The inputs that each term multiplies: (0, 0, 1) is x0^2 x1."""
        columns = range(self.inputs)
        found = []
        for degree in range(0 if self.constant else 1, self.degree + 1):
            if self.cross or degree == 0:
                found += itertools.combinations_with_replacement(columns, degree)
            else:
                found += [(i,) * degree for i in columns]
        return tuple(found)

    def __call__(self, x: Float[Array | np.ndarray, " in"]) -> Float[Array, " out"]:
        x = checked_input(self, x, self.inputs)
        values: dict[tuple[int, ...], Array] = {(): jnp.ones((), x.dtype)}
        for term in self.terms:
            if term:
                values[term] = values[term[:-1]] * x[term[-1]]
        return as_type_of(x, self.coefficients) @ jnp.stack([values[term] for term in self.terms])


Made = TypeVar("Made")


def each(count: int, make: Callable[[PRNGKeyArray], Made], key: PRNGKeyArray) -> Made:
    """`count` networks of one structure as one, arrays stacked along a first axis: for `Augment(share="each")`."""
    (count,) = checked_sizes("each: count", (count,), least=1)
    return eqx.filter_vmap(make)(jax.random.split(key, count))


def checked_sizes(where: str, sizes: Sequence[int], least: int) -> tuple[int, ...]:
    """Positive whole numbers, at least so many."""
    whole = [isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in sizes]
    if len(whole) < least or not all(whole):
        raise ValueError(f"{where} must be {least} or more positive whole numbers, got {tuple(sizes)}")
    return tuple(int(size) for size in sizes)


def checked_activation(where: str, name: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"{where} must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return name


def checked_input(network: Network, x, size: int) -> Array:
    x = jnp.asarray(x)
    if x.shape != (size,):
        raise ValueError(f"{type(network).__name__} takes a vector of {size} inputs, got shape {x.shape}")
    return x


def _keys(key: PRNGKeyArray, sizes: tuple[int, ...]) -> PRNGKeyArray:
    return jax.random.split(key, len(sizes) - 1)


def _layer(key: PRNGKeyArray, inputs: int, outputs: int) -> tuple[Array, Array]:
    """Weights and biases, uniform in +-1/sqrt(inputs)."""
    limit = 1 / np.sqrt(inputs)
    for_weight, for_bias = jax.random.split(key)
    weight = jax.random.uniform(for_weight, (outputs, inputs), minval=-limit, maxval=limit)
    return weight, jax.random.uniform(for_bias, (outputs,), minval=-limit, maxval=limit)
