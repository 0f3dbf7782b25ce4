"""Named quantities of a step, and networks that act there; it knows no physics."""

from knuckle.taps.augment import Augment, previous
from knuckle.taps.blueprint import Blueprint
from knuckle.taps.catalogue import CATALOGUE, Quantity, meaning_of, of_rule, quantity
from knuckle.taps.opened import PLAIN, OpenTaps, Tangent, Taps

__all__ = [
    "CATALOGUE",
    "PLAIN",
    "Augment",
    "Blueprint",
    "OpenTaps",
    "Quantity",
    "Tangent",
    "Taps",
    "meaning_of",
    "of_rule",
    "previous",
    "quantity",
]
