"""Models and other pytrees as constants of a program, known by their content."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


class Constant:
    """A pytree that counts as one hashable value: equal to another of the same structure and the same numbers."""

    def __init__(self, value: Any, what: str):
        leaves, self.structure = jax.tree.flatten(value)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise ValueError(
                f"{what} is traced, but a layer holds it as a constant: name what is to be free (parameters=...), or "
                "call kn.rollout, which takes any of it as an argument"
            )
        self.value = jax.tree.map(np.asarray, value)
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.value):
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        self.digest = digest.hexdigest()

    def in_precision(self, dtype: Any) -> Any:
        """The value with all floating-point numbers of one type."""
        return jax.tree.map(lambda x: x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x, self.value)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.digest == other.digest and self.structure == other.structure

    def __repr__(self) -> str:
        return repr(self.value)
