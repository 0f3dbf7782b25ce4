"""One network at one quantity: what it reads, how it is applied, and what becomes of its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.taps.catalogue import checked_name

Mode = Literal["add", "scale", "replace"]
Share = Literal["whole", "rows", "each"]
PREVIOUS = "previous "
CONSTANT = "constant "


def previous(name: str) -> str:
    """As an input: the value that a tap had in the step before; zero in the first."""
    return PREVIOUS + checked_name(name, "previous")


class Value(NamedTuple):
    """A quantity that a network reads or acts on, and what its rows belong to."""

    array: Float[Array, "..."]
    axis: str | None


class Augment(eqx.Module):
    """A network at a quantity: added to it, scaling it by 1 + output, or in its place.

    Args:
        network: an Equinox module from a vector to a vector (or to a number, where one is wanted). One with a method
            `initial_state()` is recurrent: it is called as network(x, state) -> (y, state), and a roll-out carries it.
        inputs: names of taps that the step has reached before, `previous(name)`, "time", or numbers.
        share: "whole": one network for the quantity as one vector; "rows": one for every row (joint, link, contact)
            by itself, fed by its rows of inputs of the same kind and by the other inputs as they are; "each": as
            "rows" with weights of its own for each, stacked along their first axis (`eqx.filter_vmap`).
        rows: on which rows it acts; None: on all.
        bound: the output is limited to +-bound, smoothly.
        zero_start: begin without effect, by a gain that is trained from zero; None: unless the network itself begins
            at zero (`network.starts_at_zero`) or takes the quantity's place.
    """

    weights: Any  # arrays of the network
    constants: tuple[Float[Array, "..."], ...]
    gain: Float[Array, ""] | None
    input_offset: Float[Array, " input"] | None
    input_scale: Float[Array, " input"] | None
    output_scale: Float[Array, "..."] | None
    bound: Float[Array, "..."] | None
    inputs: tuple[str, ...] = eqx.field(static=True)
    mode: Mode = eqx.field(static=True)
    share: Share = eqx.field(static=True)
    rows: tuple[int, ...] | None = eqx.field(static=True)
    rest: Any = eqx.field(static=True)  # of the network: what is not an array

    def __init__(
        self,
        network: Callable[..., Any],
        inputs: Sequence[str | float | Array | np.ndarray] | str,
        mode: Mode = "add",
        *,
        share: Share = "whole",
        rows: Sequence[int] | None = None,
        bound: float | Array | None = None,
        input_offset: float | Array | None = None,
        input_scale: float | Array | None = None,
        output_scale: float | Array | None = None,
        zero_start: bool | None = None,
    ):
        _check_choice("mode", mode, ("add", "scale", "replace"))
        _check_choice("share", share, ("whole", "rows", "each"))
        if not callable(network):
            raise ValueError(f"Augment: network must be a callable Equinox module, got {type(network).__name__}")
        self.weights, self.rest = eqx.partition(network, lambda leaf: isinstance(leaf, Array | np.ndarray))
        self.inputs, self.constants = _sorted_inputs((inputs,) if isinstance(inputs, str) else inputs)
        self.mode, self.share = mode, share
        self.rows = None if rows is None else tuple(int(row) for row in rows)
        numbers = (input_offset, input_scale, output_scale, bound)
        self.input_offset, self.input_scale, self.output_scale, self.bound = map(_array_or_none, numbers)
        if getattr(network, "plain_values", False) and (mode != "add" or any(number is not None for number in numbers)):
            raise ValueError(
                f"Augment: {type(network).__name__} obeys its law of energy only if it is added as it is: mode='add', "
                "without scales and bound"
            )
        if zero_start is None:
            zero_start = mode != "replace" and not getattr(network, "starts_at_zero", False)
        if zero_start and mode == "replace":
            raise ValueError("Augment: a network in a quantity's place has an effect from the start: no zero_start")
        self.gain = jnp.zeros(()) if zero_start else None

    @property
    def network(self) -> Callable[..., Any]:
        return eqx.combine(self.weights, self.rest)

    @property
    def is_recurrent(self) -> bool:
        return hasattr(self.network, "initial_state")

    def initial_state(self, rows: int):
        """The state that a recurrent network begins with, one for each row where it acts by rows."""
        if self.share == "whole":
            return self.network.initial_state()  # pyright: ignore[reportFunctionMemberAccess]
        if self.share == "each":
            return eqx.filter_vmap(lambda network: network.initial_state())(self.network)
        state = self.network.initial_state()  # pyright: ignore[reportFunctionMemberAccess]
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *jnp.shape(x))), state)

    def output(self, values: list[Value], axis: str | None, shape: tuple[int, ...], state):
        """What the network gives for a quantity of this shape (its rows, if only some), and a recurrent one's state."""
        acting = self._acting_shape(shape)
        x = self.read(values, axis, shape)
        if self.share == "whole":
            y, state = self._called(self.network, x, state)
        else:
            over = (0 if self.share == "each" else None, 0, None if state is None else 0)
            y, state = jax.vmap(self._of_weights, in_axes=over)(self.weights, x, state)
        if jnp.size(y) != np.prod(acting):
            raise ValueError(f"the network must give {int(np.prod(acting))} numbers in all, but gave {jnp.size(y)}")
        return jnp.reshape(y, acting), state

    def read(self, values: list[Value], axis: str | None, shape: tuple[int, ...]) -> Float[Array, "*row input"]:
        """What the network reads; by rows: for each row its rows of inputs of the same kind, and the others whole."""
        if self.share == "whole":
            return jnp.concatenate([value.array.reshape(-1) for value in values])
        if axis is None:
            raise ValueError(f"share={self.share!r} needs a quantity with rows (joints, links, contacts)")
        picked = np.arange(shape[0]) if self.rows is None else np.array(self.rows)

        def part(value: Value):
            if value.axis == axis:
                return value.array.reshape(shape[0], -1)[picked]
            return jnp.broadcast_to(value.array.reshape(-1), (len(picked), value.array.size))

        return jnp.concatenate([part(value) for value in values], axis=1)

    def applied(self, value: Array, output: Array, add: Callable[[Array, Array], Array]) -> Array:
        """The quantity, with the output added, as a factor or in its place."""
        change = output if self.gain is None else self.gain.astype(output.dtype) * output
        if self.rows is None:
            return self._combined(value, change, add)
        at = np.array(self.rows)
        return value.at[at].set(self._combined(value[at], change, jnp.add))

    def _combined(self, value, change, add):
        if self.mode == "add":
            return add(value, change)
        return change if self.mode == "replace" else value * (1 + change)

    def _acting_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.rows is None:
            return shape
        if not shape or not all(0 <= row < shape[0] for row in self.rows):
            raise ValueError(f"rows must be among the {shape[0] if shape else 0} of the quantity, got {self.rows}")
        return (len(self.rows), *shape[1:])

    def _of_weights(self, weights, x: Float[Array, " input"], state):
        return self._called(eqx.combine(weights, self.rest), x, state)

    def _called(self, network, x: Float[Array, " input"], state):
        if self.input_offset is not None:
            x = x - jax.lax.stop_gradient(self.input_offset)
        if self.input_scale is not None:
            x = x / jax.lax.stop_gradient(self.input_scale)
        y, state = (network(x), None) if state is None else network(x, state)
        if self.output_scale is not None:
            y = y * jax.lax.stop_gradient(self.output_scale)
        if self.bound is not None:
            bound = jax.lax.stop_gradient(self.bound)
            y = bound * jnp.tanh(y / bound)
        return y, state


def _sorted_inputs(inputs) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """Names, with numbers apart."""
    names, constants = [], []
    for item in inputs:
        if isinstance(item, str):
            names.append(item if item.startswith(PREVIOUS) else checked_name(item, "Augment: inputs"))
        else:
            names.append(f"{CONSTANT}{len(constants)}")
            constants.append(jnp.asarray(item))
    if not names:
        raise ValueError("Augment: inputs must name at least one tap")
    return tuple(names), tuple(constants)


def _array_or_none(value):
    return None if value is None else jnp.asarray(value)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"Augment: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
