"""What of a fit a description of the robot (URDF, MJCF) can hold."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.fit import Fit

FRICTION = "contact.friction"
WIDTH = "the speed at which tanh friction saturates"
LAW = "friction with load dependence, Stribeck's curve, pre-sliding or a constant torque"


def with_contact_friction(fit: Fit) -> Model:
    """The fitted model whose shapes have the friction that the contact model has for all contacts, if it has one.

    Of two shapes the rougher counts, so all that may touch get it. Other files than MJCF have no place for it.
    """
    shapes = _rubbing(fit)
    if not shapes:
        return fit.plain_model
    assert fit.contact is not None
    friction = np.array(fit.model.geometry.friction, float)
    friction[shapes, 0] = np.ravel(fit.contact.friction)[0]  # pyright: ignore[reportAttributeAccessIssue]
    of_pairs = np.array(fit.model.geometry.pairs.friction, float)
    of_pairs[:, 0] = np.ravel(fit.contact.friction)[0]  # pyright: ignore[reportAttributeAccessIssue]
    places = lambda m: (m.geometry.friction, m.geometry.pairs.friction)  # noqa: E731
    return eqx.tree_at(places, fit.model, (friction, of_pairs))


def lacking(fit: Fit, *, friction: bool) -> list[str]:
    """What was fitted and is not among the parameters of a robot, by name; `friction`: that of contacts is written."""
    if fit.regression is not None:
        if fit.blueprint is None:
            return [WIDTH] if np.any(fit.model.friction_speed != fit.plain_model.friction_speed) else []
        networks = fit.regression.layout.networks
        return [LAW] if networks is None else [f"the network at {tap}" for tap in networks.augments]
    held = {FRICTION} if friction and _rubbing(fit) else set()
    contact = [p.name for p in fit.parameters if p.of_contact and p.name not in held]
    instruments = dict.fromkeys(label.partition("[")[0] for label in fit.simulator.instruments.labels)
    networks = [] if fit.blueprint is None else [f"the network at {tap}" for tap in fit.blueprint.augments]
    return [*networks, *contact, *instruments]


def lacking_in_words(file: str, names: Sequence[str]) -> str:
    if list(names) == [LAW]:
        return f"{file} has Coulomb friction at the mean load in place of {LAW}, which is in model.knuckle"
    if list(names) == [WIDTH]:
        return f"{file} does not hold {WIDTH}, which is in model.knuckle"
    return (
        f"{file} has the parameters of the robot only, without {', '.join(names)}: networks, contact, "
        "offsets, gains and delays are in model.knuckle, and all fitted numbers in fit.json"
    )


def _rubbing(fit: Fit) -> list[int]:
    """Shapes that may touch, if the contact model has one friction for all contacts."""
    friction = getattr(fit.contact, "friction", None)
    if fit.contact is None or friction is None or np.size(friction) != 1:
        return []
    return sorted({shape for pair in fit.contact.pairs(fit.model) for shape in (pair.a, pair.b)})
