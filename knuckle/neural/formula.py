"""A sum of physical terms with trained coefficients, as a network: it can be read, saved and exported to C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from knuckle.neural.networks import checked_input
from knuckle.neural.registry import Network, as_type_of, register

EVERY = -1  # as the output of a term: all outputs alike


class Kind(NamedTuple):
    """A basis function of one or two inputs and of scales, the last of which is trained on demand."""

    inputs: int
    scales: int
    shaped: bool  # whether the last scale can be trained
    function: Callable[..., Any]


def _dead_zone(x, gap):
    return x - gap * jnp.tanh(x / gap)


def _stribeck(v, width, speed):
    return jnp.tanh(v / width) * jnp.exp(-jnp.square(v / speed))


KINDS: dict[str, Kind] = {
    "constant": Kind(0, 0, False, lambda: jnp.ones(())),
    "linear": Kind(1, 0, False, lambda x: x),
    "cubic": Kind(1, 0, False, lambda x: x**3),
    "quadratic drag": Kind(1, 0, False, lambda v: v * jnp.abs(v)),
    "coulomb": Kind(1, 1, True, lambda v, width: jnp.tanh(v / width)),
    "stribeck": Kind(1, 2, True, _stribeck),
    "dead zone": Kind(1, 1, True, _dead_zone),
    "sine": Kind(1, 1, False, lambda x, order: jnp.sin(order * x)),
    "cosine": Kind(1, 1, False, lambda x, order: jnp.cos(order * x)),
    "product": Kind(2, 0, False, lambda x, y: x * y),
    "coulomb times": Kind(2, 1, False, lambda x, v, width: x * jnp.tanh(v / width)),
    "coulomb times sine": Kind(2, 1, False, lambda x, v, width: jnp.sin(x) * jnp.tanh(v / width)),
    "coulomb times cosine": Kind(2, 1, False, lambda x, v, width: jnp.cos(x) * jnp.tanh(v / width)),
    "coulomb times load": Kind(2, 1, False, lambda f, v, width: jnp.abs(f) * jnp.tanh(v / width)),
}


class Term(NamedTuple):
    """One term: a kind, the output that it is added to (EVERY: all), its inputs by number, and its scales."""

    kind: str
    output: int
    inputs: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()


@register
class Formula(Network):
    """The sum over terms of coefficient times basis function; it begins at zero.

    Args:
        terms: each (kind, output, inputs, scales) with a kind of KINDS; see `Term`.
        inputs, outputs: how many numbers it reads and gives.
        shapes: whether widths and speeds of terms (their last scale, where a kind has one) are trained too: each is its
            scale times exp(shape).
    """

    coefficient: Float[Array, " term"]
    shape: Float[Array, " shaped"]
    terms: tuple[tuple[str, int, tuple[int, ...], tuple[float, ...]], ...] = eqx.field(static=True)
    inputs: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    shapes: bool = eqx.field(static=True)

    def __init__(
        self,
        terms: Sequence[Sequence[Any]],
        inputs: int,
        outputs: int,
        shapes: bool = False,
        *,
        key: PRNGKeyArray | None = None,
    ):
        self.inputs, self.outputs, self.shapes = int(inputs), int(outputs), bool(shapes)
        self.terms = tuple(_checked(term, self.inputs, self.outputs) for term in terms)
        self.coefficient = jnp.zeros(len(self.terms))
        self.shape = jnp.zeros(len(self.shaped))

    starts_at_zero = True
    plain_values = True

    @property
    def shaped(self) -> tuple[int, ...]:
        """Terms whose last scale is trained."""
        return tuple(k for k, term in enumerate(self.terms) if self.shapes and KINDS[term[0]].shaped)

    def scales(self, index: int) -> tuple[Any, ...]:
        """Scales of a term as they are used."""
        own = self.terms[index][3]
        if index not in self.shaped:
            return own
        return (*own[:-1], own[-1] * jnp.exp(self.shape[self.shaped.index(index)]))

    def __call__(self, x: Float[Array | np.ndarray, " in"]) -> Float[Array, " out"]:
        x = checked_input(self, x, self.inputs)
        law = as_type_of(x, self)
        y = jnp.zeros(self.outputs, x.dtype)
        for k, (kind, output, reads, _) in enumerate(self.terms):
            value = KINDS[kind].function(*(x[i] for i in reads), *law.scales(k))
            value = law.coefficient[k] * jnp.asarray(value, x.dtype)
            y = y + value if output == EVERY else y.at[output].add(value)
        return y


def _checked(term: Sequence[Any], inputs: int, outputs: int) -> tuple[str, int, tuple[int, ...], tuple[float, ...]]:
    kind, output, reads, scales = Term(*term)
    if kind not in KINDS:
        raise ValueError(f"Formula: there is no kind {kind!r} of term; there are {', '.join(KINDS)}")
    reads, scales = tuple(int(i) for i in reads), tuple(float(s) for s in scales)
    wanted = KINDS[kind]
    if len(reads) != wanted.inputs or len(scales) != wanted.scales:
        raise ValueError(
            f"Formula: a term {kind!r} has {wanted.inputs} inputs and {wanted.scales} scales, got {reads} and {scales}"
        )
    if not all(0 <= i < inputs for i in reads) or not (output == EVERY or 0 <= output < outputs):
        raise ValueError(
            f"Formula: term {kind!r}: inputs {reads} must be below {inputs}, its output {output} below {outputs}"
        )
    if not all(np.isfinite(s) and s > 0 for s in scales):
        raise ValueError(f"Formula: term {kind!r}: scales must be positive, got {scales}")
    return kind, int(output), reads, scales
