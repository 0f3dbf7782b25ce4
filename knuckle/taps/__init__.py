"""Named quantities of a step, and networks that act there; it knows no physics."""

from knuckle.taps.augment import Augment, previous
from knuckle.taps.blueprint import Blueprint
from knuckle.taps.catalogue import CATALOGUE, Quantity
from knuckle.taps.opened import PLAIN, OpenTaps, Tangent, Taps

__all__ = ["CATALOGUE", "PLAIN", "Augment", "Blueprint", "OpenTaps", "Quantity", "Tangent", "Taps", "previous"]
