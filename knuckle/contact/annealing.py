"""Contact that hardens: a sequence of smoothed contact models for searches by gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from knuckle.contact.compliant import Compliant
from knuckle.contact.per_pair import PerPair
from knuckle.contact.resolve import ContactModel
from knuckle.contact.rules import Rule

M = TypeVar("M", bound=ContactModel)


def anneal(contact: M, *, widest: float = 1.0, narrowest: float = 1e-3, levels: int = 6) -> Iterator[M]:
    """The contact model with `smoothing` [m/s] that shrinks by one factor per level, from `widest` to `narrowest`.

    A search by gradients starts each level where the last one ended: early levels feel contacts that are not there
    yet, the last one is nearly rigid. Smoothing is a number of the model, so that one compiled function that takes the
    contact model as an argument serves all levels. Of `PerPair` the rules with `Impulse` are smoothed.
    """
    if levels < 1 or not 0 < narrowest <= widest < np.inf:
        raise ValueError(
            f"anneal: expected widest >= narrowest > 0 and levels >= 1, got {widest}, {narrowest}, {levels}"
        )
    for width in np.geomspace(widest, narrowest, levels):
        yield _smoothed(contact, np.asarray(width))


def _smoothed(contact: Any, width: np.ndarray) -> Any:
    if isinstance(contact, PerPair):
        smooth = lambda own: own if isinstance(own, Compliant) else _smoothed(own, width)  # noqa: E731
        rules = {
            name: Rule(rule.pairs, smooth(rule.model)) for name, rule in zip(contact.names, contact.rules, strict=True)
        }
        options = {field.name: getattr(contact, field.name) for field in dataclasses.fields(ContactModel)}
        return PerPair(**options, **rules, rest=None if contact.rest is None else smooth(contact.rest))
    if not hasattr(contact, "smoothing"):
        raise ValueError(
            f"anneal: expected a contact model with smoothing, such as Impulse, got {type(contact).__name__}"
        )
    return dataclasses.replace(contact, smoothing=width)
