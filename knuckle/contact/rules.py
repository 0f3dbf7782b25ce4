"""Which pairs of geometries a rule is for, by their names and those of their links."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import equinox as eqx

from knuckle.contact.narrow import shape_name
from knuckle.contact.pairs import Pair
from knuckle.contact.resolve import ContactModel
from knuckle.model.model import Model

LINK, GEOM, WORLD = "link:", "geom:", "world"


class Rule(eqx.Module):
    """A contact model for some pairs of geometries.

    `pairs` are patterns of two sides, "tip|plate*", which match in either order; of one side, "tip", anything is the
    other. A side is a pattern of geometry names (`fnmatch`: * ? [...]), "link:foot*" of links, or "world", which is all
    that does not move.
    """

    pairs: tuple[str, ...] = eqx.field(static=True)
    model: ContactModel

    def __init__(self, pairs: str | Sequence[str], model: ContactModel):
        patterns = (pairs,) if isinstance(pairs, str) else tuple(pairs)
        if not patterns or not all(isinstance(p, str) and _sides(p) for p in patterns):
            raise ValueError(f'Rule: pairs must be patterns such as "tip|plate*" or "link:foot*|world", got {pairs!r}')
        if not isinstance(model, ContactModel):
            raise ValueError(f"Rule {patterns}: expected a contact model such as Impulse(), got {model!r}")
        self.pairs, self.model = patterns, model

    def matches(self, model: Model, pair: Pair) -> bool:
        """Whether the rule is for this pair."""
        return any(_match(model, pattern, pair) for pattern in self.pairs)


def _sides(pattern: str) -> tuple[str, str] | None:
    """The two sides of a pattern; None if it is none."""
    first, bar, second = pattern.partition("|")
    second = second if bar else "*"
    return (first, second) if first and second and "|" not in second else None


def _match(model: Model, pattern: str, pair: Pair) -> bool:
    sides = _sides(pattern)
    assert sides is not None
    orders = ((pair.a, pair.b), (pair.b, pair.a))
    return any(_is_side(model, sides[0], a) and _is_side(model, sides[1], b) for a, b in orders)


def _is_side(model: Model, side: str, shape: int) -> bool:
    geometry = model.geometry
    link = geometry.link[shape]
    if side == WORLD:
        return link < 0
    if side.startswith(LINK):
        moving = WORLD if link < 0 else model.topology.link_names[link]
        pattern = side.removeprefix(LINK)
        return any(fnmatchcase(name, pattern) for name in (moving, geometry.body[shape]))
    return fnmatchcase(shape_name(geometry, shape), side.removeprefix(GEOM))
