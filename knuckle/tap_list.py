"""Which quantities of a step have names."""

from __future__ import annotations

from typing import NamedTuple

import jax

from knuckle.contact.default import Contact, chosen_contact
from knuckle.integrate import Integrator, SemiImplicitEuler
from knuckle.model.model import Model
from knuckle.simulate import as_arrays, tap_values
from knuckle.taps import meaning_of


class Tap(NamedTuple):
    """A quantity that networks can act on or read."""

    name: str
    shape: tuple[int, ...]
    unit: str
    meaning: str
    read_only: bool


class TapList(tuple[Tap, ...]):
    """Taps in the order in which a step reaches them; prints as a table."""

    def __repr__(self) -> str:
        rows = [("tap", "shape", "unit", "meaning")]
        rows += [(t.name, str(t.shape), t.unit, t.meaning + (" (read only)" if t.read_only else "")) for t in self]
        widths = [max(len(row[k]) for row in rows) for k in range(3)]
        return "\n".join(
            "  ".join((*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]))
            for row in rows
        )

    def __getitem__(self, key):
        if isinstance(key, str):
            found = [tap for tap in self if tap.name == key]
            if not found:
                raise KeyError(f"there is no tap {key!r}; there are {', '.join(tap.name for tap in self)}")
            return found[0]
        return super().__getitem__(key)


def list_taps(model: Model, *, contact: Contact = "default", integrator: Integrator = SemiImplicitEuler()) -> TapList:
    """The quantities of a step of this model that networks can act on, and read if they come later, in order."""
    contact = chosen_contact(model, contact)
    order: list[str] = []

    def values(state):
        found = tap_values(model, state, dt=1e-3, contact=contact, integrator=integrator)
        order.extend(found)
        return found

    state = as_arrays(model.state())
    shapes = jax.eval_shape(values, contact.begin(model, state) if contact is not None else state)
    return TapList(_tap(name, shapes[name].shape) for name in order)


def _tap(name: str, shape: tuple[int, ...]) -> Tap:
    _, unit, meaning, read_only = meaning_of(name)
    return Tap(name, shape, unit, meaning, read_only)
