"""The contact model of a robot for which none is chosen."""

from __future__ import annotations

from knuckle.contact.impulse import Impulse
from knuckle.contact.pairs import contact_pairs
from knuckle.model.model import Model


def default_contact(model: Model) -> Impulse | None:
    """`Impulse()` if a model was described with something that only a contact model holds, else None.

    That is: pairs of shapes that may touch, active equalities, joint limits or dry joint friction. What was described
    counts, not what parameters are now, so that it is the same whether or not they are traced.
    """
    topology = model.topology
    held = topology.limited or topology.rubbing or any(model.equalities.active)
    return Impulse() if held or contact_pairs(model) else None
