"""Free parameters by pattern for any optimiser, and batches of models whose parameters differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.contact.resolve import ContactModel
from knuckle.model.model import Model
from knuckle.sysid.parameters import Parameters, Prior, choose


@dataclass(frozen=True, eq=False)
class FreeParameters:
    """Parameters of a model as one vector z of free numbers, for any optimiser.

    z = 0 is the model from which they were chosen. Positive parameters (masses) are exp(z) times their value, moments
    of inertia stay those of a real body for all z, others are the value plus z times a typical size. So an optimiser
    needs no bounds but `lower` and `upper`, which hold damping and friction at zero or more, and the given bounds.
    """

    chosen: Parameters
    contact: ContactModel | None = None

    @property
    def size(self) -> int:
        return self.chosen.size

    @property
    def start(self) -> Float[np.ndarray, " free"]:
        """The free numbers of the model from which the parameters were chosen: zeros."""
        return np.zeros(self.size)

    @property
    def lower(self) -> Float[np.ndarray, " free"]:
        return self.chosen.lower

    @property
    def upper(self) -> Float[np.ndarray, " free"]:
        return self.chosen.upper

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each free number."""
        return self.chosen.labels

    def apply(self, model: Model, z: Float[Array | np.ndarray, " free"]) -> Model:
        """The model with these free numbers; differentiable."""
        return self.chosen.applied(model, self.contact, self._checked(z))[0]

    def apply_contact(self, model: Model, z: Float[Array | np.ndarray, " free"]) -> ContactModel | None:
        """The contact model with these free numbers."""
        return self.chosen.applied(model, self.contact, self._checked(z))[1]

    def values(self, z: Float[Array | np.ndarray, " free"]) -> dict[str, Float[Array, "..."]]:
        """The value of each parameter by name, in SI units."""
        z = self._checked(z)
        return {p.name: p.value(z) for p in self.chosen}

    def _checked(self, z) -> Float[Array, " free"]:
        z = jnp.asarray(z)
        if z.shape != (self.size,):
            raise ValueError(f"expected {self.size} free numbers, got shape {z.shape}")
        return z

    def __repr__(self) -> str:
        listed = ", ".join(p.name for p in self.chosen[:8])
        more = f" and {len(self.chosen) - 8} more" if len(self.chosen) > 8 else ""
        return f"FreeParameters({self.size} numbers of {listed}{more})"


def parameters(
    model: Model,
    patterns: str | Sequence[str] | Mapping[str, Prior | tuple[float, float] | None],
    contact: ContactModel | None = None,
) -> FreeParameters:
    """Parameters by patterns such as "*.mass" or "elbow.placement", with (lower, upper) each if a mapping gives them.

    The names are those of `kn.fit`. With a contact model its own are there too ("contact.friction").

    Raises:
        ValueError: says which names there are if a pattern matches none.
    """
    return FreeParameters(choose(model, patterns, contact), contact)


class Batch(eqx.Module):
    """Models that differ in some parameters: leaves of `model` with `axes` 0 have a batch axis in front, others none.

    `kn.native.vmap(f, in_axes=(batch.axes, ...))(batch.model, ...)` runs f over them, and so does `jax.vmap`.
    """

    model: Model
    axes: Any
    size: int = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    def __getitem__(self, number: int) -> Model:
        """One of the models."""
        if not -self.size <= number < self.size:
            raise IndexError(f"batch of {self.size} models has no number {number}")
        leaves, structure = jax.tree.flatten(self.model)
        axes = jax.tree.leaves(self.axes, is_leaf=lambda x: x is None)
        picked = [leaf if axis is None else leaf[number] for leaf, axis in zip(leaves, axes, strict=True)]
        return jax.tree.unflatten(structure, picked)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        batched = [
            jax.tree_util.keystr(path).lstrip(".")
            for path, axis in jax.tree_util.tree_flatten_with_path(self.axes, is_leaf=lambda x: x is None)[0]
            if axis == 0
        ]
        return (
            f"Batch({self.size} models {self.model.name!r} that differ in {', '.join(self.names[:6])}"
            f"{', ...' if len(self.names) > 6 else ''}; batched leaves {', '.join(batched)}: "
            "use kn.native.vmap(f, in_axes=(batch.axes, ...))(batch.model, ...))"
        )


def batch(model: Model, values: Mapping[str, Any]) -> Batch:
    """Models that differ in parameters given by pattern: {"*.mass": array of shape (batch,)}.

    An array of shape (batch,) is for all parameters that match; (batch, parameters) has one column for each match, in
    the order of `kn.parameters`; entries of a parameter (a centre of mass) come last. Values are checked to be
    physically possible (masses positive, friction not negative).
    """
    if not values:
        raise ValueError('batch: expected parameters by pattern, such as {"*.mass": array}')
    sizes = {pattern: np.shape(array)[0] if np.ndim(array) else None for pattern, array in values.items()}
    if None in sizes.values() or len(set(sizes.values())) != 1:
        raise ValueError(f"batch: expected arrays with one batch size as first axis, got {sizes}")
    size = int(next(iter(sizes.values())))  # type: ignore[arg-type]
    names: list[str] = []
    tables: list[tuple[Any, Any]] = []
    for pattern, array in values.items():
        chosen = choose(model, [pattern])
        tables += _columns(pattern, chosen, jnp.asarray(array, float))
        twice = [p.name for p in chosen if p.name in names]
        if twice:
            raise ValueError(f"batch: {', '.join(twice)} would be given twice")
        names += [p.name for p in chosen]

    def one(columns):
        made = model
        for (parameter, _), value in zip(tables, columns, strict=True):
            made = parameter.family.placed(made, parameter.place, value)
        return made

    columns = [column for _, column in tables]
    before, structure = jax.tree.flatten(model)
    touched = [a is not b for a, b in zip(before, jax.tree.leaves(one([c[0] for c in columns])), strict=True)]
    after = jax.tree.leaves(jax.vmap(one)(columns))
    kept = [np.asarray(many) if new else old for old, many, new in zip(before, after, touched, strict=True)]
    axes = [0 if new else None for new in touched]
    return Batch(jax.tree.unflatten(structure, kept), jax.tree.unflatten(structure, axes), size, tuple(names))


def _columns(pattern: str, chosen: Parameters, array: Float[Array, "..."]) -> list[tuple[Any, Any]]:
    """The values of each matching parameter, with the batch axis first."""
    found = []
    for k, parameter in enumerate(chosen):
        shape = parameter.start.shape
        if array.ndim == 1:
            column = jnp.broadcast_to(array.reshape(-1, *(1,) * len(shape)), (len(array), *shape))
        elif array.shape[1:] == (len(chosen), *shape):
            column = array[:, k]
        elif array.shape[1:] == (len(chosen),) and parameter.start.size == 1:
            column = array[:, k].reshape(-1, *shape)
        elif array.shape[1:] == shape:
            column = array
        else:
            wanted = f"(batch,), (batch, {len(chosen)}) or (batch, {len(chosen)}, *{shape})"
            raise ValueError(f"batch: {pattern!r} takes an array of shape {wanted}, got {array.shape}")
        _check_possible(parameter, np.asarray(column))
        found.append((parameter, column))
    return found


def _check_possible(parameter: Any, values: np.ndarray) -> None:
    kind = parameter.family.kind
    wrong = ~np.isfinite(values)
    if kind == "positive":
        wrong |= values <= 0
    if kind == "zero or more":
        wrong |= values < 0
    if wrong.any():
        wanted = {"positive": "positive", "zero or more": "zero or more"}.get(kind, "finite")
        at = int(np.argwhere(wrong)[0][0])
        raise ValueError(f"batch: {parameter.name} must be {wanted}, got {values[at]} in model {at}")
