"""Every quantity of a step that has a name, in the order in which a step reaches it."""

from __future__ import annotations

import re
from typing import NamedTuple


class Quantity(NamedTuple):
    """A named quantity of a step."""

    axis: str | None  # what its rows belong to: coordinate, dof, actuator, link, contact; None: nothing
    unit: str
    meaning: str
    read_only: bool = False


CATALOGUE = {
    "time": Quantity(None, "s", "at the start of the step", read_only=True),
    "q": Quantity("coordinate", "rad or m", "coordinates at the start of the step"),
    "qd": Quantity("dof", "rad/s or m/s", "velocities at the start of the step"),
    "control": Quantity("actuator", "of the actuator", "what is asked of the actuators"),
    "link/mass": Quantity("link", "kg", "mass of each link as used"),
    "link/com": Quantity("link", "m", "centre of mass of each link as used, in link axes"),
    "link/inertia": Quantity("link", "kg m^2", "xx, yy, zz, xy, xz, yz about the centre of mass as used, in link axes"),
    "gravity": Quantity(None, "m/s^2", "acceleration of free fall as used, in the world"),
    "link/position": Quantity("link", "m", "origin of each link at the start of the step, world", read_only=True),
    "link/velocity": Quantity("link", "rad/s and m/s", "turning, and motion of its origin, world axes", read_only=True),
    "link/wrench": Quantity("link", "N m and N", "torque and force on each link from outside, world axes"),
    "actuator/force": Quantity("dof", "N m or N", "what actuators do at the joints"),
    "joint/passive_force": Quantity("dof", "N m or N", "springs, damping and friction of the joints"),
    "joint/force": Quantity("dof", "N m or N", "all forces at the joints but contact and constraints"),
    "joint/acceleration": Quantity("dof", "rad/s^2 or m/s^2", "of the joints, before contact and constraints"),
    "contact/depth": Quantity("contact", "m", "overlap; negative where shapes are apart"),
    "contact/normal": Quantity("contact", "1", "unit vector from shape b to shape a, world"),
    "contact/slip": Quantity("contact", "m/s", "velocity of a along b at the start of the step, contact frame"),
    "contact/friction": Quantity("contact", "1", "coefficient of sliding friction"),
    "contact/bias": Quantity("contact", "m/s", "least speed of separation after the step"),
    "contact/softness": Quantity("contact", "1/kg", "R of the contact (constraint force mixing)"),
    "contact/normal_force": Quantity("contact", "N", "mean over the step; acts where the contact pushes"),
    "contact/friction_force": Quantity("contact", "N", "mean over the step, contact frame; acts where it pushes"),
    "contact/impulse": Quantity("contact", "N s", "normal and tangents, contact frame; acts where it pushes"),
    "next/q": Quantity("coordinate", "rad or m", "coordinates after the step"),
    "next/qd": Quantity("dof", "rad/s or m/s", "velocities after the step"),
    "next/state": Quantity(None, "of q and qd", "coordinates and velocities after the step, one vector"),
}


OF_RULE = re.compile(r"(contact\.[^\W\d]\w*)(/\w+)")  # contacts of one rule of `contact.PerPair`


def quantity(name: str) -> Quantity | None:
    """What a name means; "contact.push/friction" is that of the contacts of the rule "push", rows of their own."""
    found = OF_RULE.fullmatch(name)
    if found is None:
        return CATALOGUE.get(name)
    whole = CATALOGUE.get("contact" + found[2])
    return None if whole is None else whole._replace(axis=found[1])


def meaning_of(name: str) -> Quantity:
    """What the name of a tap that there is means."""
    meaning = quantity(name)
    assert meaning is not None, name
    return meaning


def of_rule(name: str, rule: str) -> str:
    """The tap of one rule's contacts, by that of all contacts."""
    return name.replace("contact/", f"contact.{rule}/", 1)


def checked_name(name: str, role: str) -> str:
    """The name, if there is such a tap."""
    if quantity(name) is None:
        raise ValueError(f"{role}: there is no tap {name!r}; there are {', '.join(CATALOGUE)}")
    return name
