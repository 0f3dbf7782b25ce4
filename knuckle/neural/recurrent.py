"""Networks with a state of their own, which a roll-out carries from step to step."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from knuckle.neural.networks import MLP, checked_input, checked_sizes
from knuckle.neural.registry import Network, as_type_of, register

CELLS = ("gru", "lstm", "vanilla")


@register
class Recurrent(Network):
    """A recurrent cell of `width` units and a linear head that begins at zero.

    `cell`: "gru" (Cho et al. 2014), "lstm" (Hochreiter and Schmidhuber 1997) or "vanilla", one tanh layer (Elman 1990).
    """

    core: eqx.nn.GRUCell | eqx.nn.LSTMCell | MLP
    head: MLP
    inputs: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    cell: str = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, width: int = 16, cell: str = "gru", *, key: PRNGKeyArray):
        sizes = checked_sizes("Recurrent: inputs, outputs, width", (inputs, outputs, width), least=3)
        self.inputs, self.outputs, self.width = sizes
        if cell not in CELLS:
            raise ValueError(f"Recurrent: cell must be one of {', '.join(CELLS)}, got {cell!r}")
        self.cell = cell
        for_core, for_head = jax.random.split(key)
        if cell == "vanilla":
            both = (self.inputs + self.width, self.width)
            self.core = MLP(both, last_activation="tanh", zero_last=False, key=for_core)
        else:
            kind = eqx.nn.GRUCell if cell == "gru" else eqx.nn.LSTMCell
            self.core = kind(self.inputs, self.width, key=for_core)
        self.head = MLP((self.width, self.outputs), key=for_head)

    starts_at_zero = True

    def initial_state(self) -> Any:
        zero = jnp.zeros(self.width, self.head.weights[0].dtype)
        return (zero, zero) if self.cell == "lstm" else zero

    def __call__(self, x: Float[Array | np.ndarray, " in"], state: Any) -> tuple[Float[Array, " out"], Any]:
        x = checked_input(self, x, self.inputs)
        core, before = as_type_of(x, (self.core, state))
        after = core(jnp.concatenate([x, before])) if self.cell == "vanilla" else core(x, before)
        hidden = after[0] if self.cell == "lstm" else after
        return self.head(hidden), jax.tree.map(lambda new, old: new.astype(old.dtype), after, state)
