"""The contact model of a robot for which none is chosen."""

from __future__ import annotations

from typing import Literal

from knuckle.contact.impulse import Impulse
from knuckle.contact.pairs import contact_pairs
from knuckle.contact.resolve import ContactModel
from knuckle.model.model import Model

Contact = ContactModel | Literal["default"] | None


def default_contact(model: Model) -> Impulse | None:
    """`Impulse()` if a model was described with something that only a contact model holds, else None.

    That is: pairs of shapes that may touch, active equalities, joint limits or dry joint friction. What was described
    counts, not what parameters are now, so that it is the same whether or not they are traced.
    """
    topology = model.topology
    held = topology.limited or topology.rubbing or any(model.equalities.active)
    return Impulse() if held or contact_pairs(model) else None


def chosen_contact(model: Model, contact: Contact) -> ContactModel | None:
    """A given contact model, None for no contact, or that of the model where none is chosen."""
    if isinstance(contact, str) and contact == "default":
        return default_contact(model)
    if contact is None or isinstance(contact, ContactModel):
        return contact
    wanted = "a contact model such as kn.contact.Impulse(), None for no contact, or 'default'"
    raise TypeError(f"contact: expected {wanted}, got {contact!r:.200}")
