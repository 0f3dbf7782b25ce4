"""Contact: which shapes may touch, where they do, and the forces that keep them apart."""

from knuckle.contact.annealing import anneal
from knuckle.contact.closed_loops import assemble, equality_errors, equality_rows
from knuckle.contact.collide import Contacts, collide
from knuckle.contact.compliant import Compliant
from knuckle.contact.default import default_contact
from knuckle.contact.impulse import Impulse
from knuckle.contact.interior_point import InteriorPoint
from knuckle.contact.outcome import Outcome
from knuckle.contact.pairs import Pair, contact_pairs
from knuckle.contact.per_pair import PerPair
from knuckle.contact.randomized import Estimate, randomized_gradient
from knuckle.contact.rules import Rule
from knuckle.contact.touch import INACTIVE_GAP

__all__ = [
    "INACTIVE_GAP",
    "Compliant",
    "Contacts",
    "Estimate",
    "Impulse",
    "InteriorPoint",
    "Outcome",
    "Pair",
    "PerPair",
    "Rule",
    "anneal",
    "assemble",
    "collide",
    "contact_pairs",
    "default_contact",
    "equality_errors",
    "equality_rows",
    "randomized_gradient",
]
