"""Several contact models in one step: rules by pair or group of geometries, all of them solved together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle.contact.collide import Contacts
from knuckle.contact.compliant import Compliant
from knuckle.contact.impulse import Impulse
from knuckle.contact.laws import Blocks
from knuckle.contact.laws_several import each_of, in_one
from knuckle.contact.laws_smooth import Springy
from knuckle.contact.narrow import shape_name
from knuckle.contact.nearest import Nearest
from knuckle.contact.newton import Newton
from knuckle.contact.pairs import Pair
from knuckle.contact.push import Push
from knuckle.contact.resolve import ContactModel
from knuckle.contact.rules import Rule
from knuckle.contact.scene import Scene, Time
from knuckle.contact.search import descend, search
from knuckle.contact.solver import Solution
from knuckle.contact.system import System, Vec
from knuckle.contact.tapped import ContactTaps, RuleTaps
from knuckle.model.model import Model
from knuckle.taps import PLAIN

Inside = Impulse | Compliant
REST = "rest"
MOST_NAMED = 12  # pairs that a message lists
OPTIONS = {field.name: field.default for field in dataclasses.fields(ContactModel)}
OF_THE_WHOLE = ("self_collision", "correction")  # what a model inside a rule has no use for


class PerPair(ContactModel):
    """Contact models by rules, `PerPair(push=Rule("tip|plate*", Impulse()), rest=Compliant())`, solved together.

    A pair is held by the first rule that matches it, else by `rest`. Limits, equalities and joint friction are held by
    `correction` and `correction_speed` given here, overlaps by `recovery_speed` of a rule's own model. All are solved
    to the smallest `tolerance` of the models. `contact["push"]` is the model of a rule.
    """

    rules: tuple[Rule, ...]
    rest: ContactModel | None
    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, *, rest: ContactModel | None = None, **rules_and_options: Any):
        for name, default in OPTIONS.items():
            setattr(self, name, rules_and_options.pop(name, default))
        self.names, self.rules, self.rest = tuple(rules_and_options), tuple(rules_and_options.values()), rest
        _check(self)

    def __getitem__(self, name: str) -> Inside:
        """The contact model of a rule, or of the rest."""
        if name not in self.models:
            raise KeyError(f"PerPair has no rule {name!r}; it has {', '.join(self.models)}")
        return self.models[name]

    @property
    def models(self) -> dict[str, Inside]:
        """Those of all rules, in order, and of the rest."""
        found: dict[str, Any] = {name: rule.model for name, rule in zip(self.names, self.rules, strict=True)}
        if self.rest is not None:
            found[REST] = self.rest
        return found

    @property
    def culls(self):
        return all(model.culls for model in self.models.values())

    def by_rule(self, model: Model) -> dict[str, tuple[ContactModel, tuple[Pair, ...]]]:
        found: dict[str, list[Pair]] = {name: [] for name in self.models}
        for pair in self.pairs(model):
            found[self._rule_of(model, pair)].append(pair)
        _check_used(model, self, found)
        return {name: (self[name], tuple(pairs)) for name, pairs in found.items() if pairs}

    def _rule_of(self, model: Model, pair: Pair) -> str:
        for name, rule in zip(self.names, self.rules, strict=True):
            if rule.matches(model, pair):
                return name
        if self.rest is None:
            raise ValueError(f"PerPair: no rule is for {_named(model, pair)}: give one, or rest=... for all others")
        return REST

    def arranged(self, model: Model, contacts: Contacts) -> Contacts:
        """The contacts of each rule together, in the order of the rules."""
        found = {pair: name for name, (_, pairs) in self.by_rule(model).items() for pair in pairs}
        of_contact = [found[Pair(a, b)] for a, b in zip(contacts.shape_a, contacts.shape_b, strict=True)]
        used = [name for name in self.models if name in of_contact]
        order = np.argsort([used.index(name) for name in of_contact], kind="stable")
        return contacts.picked(order, tuple((name, of_contact.count(name)) for name in used))

    def nearest_of(self, model: Model, contacts: Contacts, reach: Float[Array, ""] | None) -> Nearest:
        """The nearest of each rule, as many as its model solves."""
        parts = [self[name].nearest_of(model, contacts.of_rule(name), reach).index for name, _ in contacts.rules]
        if len(parts) == 1 or all(index is None for index in parts):
            return Nearest(parts[0])
        found, start = [], 0
        for index, (_, count) in zip(parts, contacts.rules, strict=True):
            found.append(start + (jnp.arange(count, dtype=jnp.int32) if index is None else index.astype(jnp.int32)))
            start += count
        return Nearest(jnp.concatenate(found), tuple(len(index) for index in found))

    def open_taps(self, contacts, taps):
        return taps if taps is PLAIN else ContactTaps(taps, contacts)

    def follows_normal(self, contacts):
        return np.concatenate([np.full(count, self[name].friction_follows) for name, count in contacts.rules])

    def sliding_friction(self, scene: Scene) -> Float[Array, " contact"]:
        return _in_one([own.sliding_friction(part) for own, part in self._parts(scene)])

    def softness(self, model: Model, scene: Scene) -> Float[Array, " near"]:
        return _in_one([own.softness(model, part) for own, part in self._parts(scene)])

    def push(self, model: Model, heavy: Model, scene: Scene, qd: Vec, v_free: Vec, dt: Time) -> Push:
        return _joined([own.push(model, heavy, part, qd, v_free, dt) for own, part in self._parts(scene)])

    def solve(self, system: System, start: Vec) -> Solution:
        models = self.models.values()
        limits: dict[str, Any] = {
            "tolerance": min(own.tolerance for own in models),
            "most_iterations": max(own.most_iterations for own in models),
        }
        if not all(isinstance(law, Springy) for law in each_of(system.laws[0])):
            return Newton().solve(system, start, **limits)
        near, steps = descend(system, start, **limits)  # as `Compliant` does; beside rigid contacts it gains nothing
        found = search(system, near, **limits)
        return found._replace(iterations=found.iterations + steps)

    def _parts(self, scene: Scene) -> Iterator[tuple[ContactModel, Scene]]:
        """The model of each rule that has contacts, and the scene with these contacts only."""
        for name, _ in scene.contacts.rules:
            part = scene if len(scene.contacts.rules) == 1 else _part(scene, name)
            yield self[name], part if scene.taps is PLAIN else part._replace(taps=RuleTaps(scene.taps, name))


def _part(scene: Scene, rule: str) -> Scene:
    """The scene with the contacts of one rule only."""
    whole, own = scene.contacts, scene.contacts.rows_of(rule)
    index = None
    if scene.near.index is not None:
        number = [name for name, _ in whole.rules].index(rule)
        start = sum(scene.near.parts[:number])
        index = scene.near.index[start : start + scene.near.parts[number]] - own.start
    return scene._replace(
        contacts=whole.of_rule(rule),
        frame=scene.frame[own],
        near=Nearest(index),
        sliding=None if scene.sliding is None else scene.sliding[own],
        turning=None if scene.turning is None else scene.turning[own],
        drift=None if scene.drift is None else scene.drift.picked(own),
        picked_frame=None,
    )


def _in_one(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def _joined(pushes: list[Push]) -> Push:
    """How the contacts of all rules push."""
    if len(pushes) == 1:
        return pushes[0]
    normal = [push.aim[:, 0] for push in pushes]
    cut = [push.rebound is not None for push in pushes]
    soft = [push.derivative_law is not None for push in pushes]
    return Push(
        law=in_one([push.law for push in pushes]),
        aim=_in_one([push.aim for push in pushes]),
        moment=_joined_moment(pushes),
        derivative_law=in_one([push.derivative_law or push.law for push in pushes]) if any(soft) else None,
        margin=_filled([push.margin for push in pushes], [jnp.full_like(x, jnp.inf) for x in normal]),
        rebound=_filled([push.rebound for push in pushes], [jnp.zeros_like(push.aim) for push in pushes]),
        cuts=np.repeat(cut, [len(x) for x in normal]) if any(cut) and not all(cut) else None,
    )


def _filled(parts: list[Array | None], otherwise: list[Array]) -> Array | None:
    """All parts in one, where at least one is there."""
    if all(part is None for part in parts):
        return None
    return _in_one([other if part is None else part for part, other in zip(parts, otherwise, strict=True)])


def _joined_moment(pushes: list[Push]) -> Callable[[Blocks], Blocks] | None:
    if all(push.moment is None for push in pushes):
        return None

    def moment(r: Blocks) -> Blocks:
        found, start = [], 0
        for push in pushes:
            own = r[start : start + len(push.aim)]
            found.append(jnp.zeros_like(own) if push.moment is None else push.moment(own))
            start += len(push.aim)
        return _in_one(found)

    return moment


def _named(model: Model, pair: Pair) -> str:
    return "|".join(shape_name(model.geometry, shape) for shape in (pair.a, pair.b))


def _check(contact: PerPair) -> None:
    if not contact.names:
        raise ValueError('PerPair: expected rules by name, such as push=Rule("tip|plate*", Impulse())')
    for name, rule in zip(contact.names, contact.rules, strict=True):
        if not isinstance(rule, Rule):
            raise ValueError(f'PerPair: {name}: expected Rule("tip|plate*", Impulse()), got {rule!r}')
    if contact.rest is not None and not isinstance(contact.rest, ContactModel):
        raise ValueError(f"PerPair: rest: expected a contact model such as Impulse(), got {contact.rest!r}")
    if contact.most_contacts is not None:
        raise ValueError("PerPair: most_contacts is for the model of a rule: Impulse(most_contacts=...)")
    for name, model in contact.models.items():
        _check_inside(name, model)


def _check_inside(name: str, model: ContactModel) -> None:
    """Refuse models that cannot be solved together with others, and what would be left without effect."""
    kind = type(model)
    if kind not in (Impulse, Compliant):
        raise ValueError(
            f"PerPair: {name}: expected Impulse or Compliant, got {kind.__name__}, whose solver is for all contacts of "
            "a step"
        )
    if isinstance(model, Impulse) and model.solver != "newton":
        raise ValueError(f"PerPair: {name}: rules are solved together by Newton's method: leave solver out")
    if isinstance(model, Compliant) and model.substeps is not None:
        raise ValueError(
            f"PerPair: {name}: Compliant(substeps=...) integrates its contacts without those of other rules: "
            "leave substeps out"
        )
    for option in OF_THE_WHOLE:
        given = getattr(model, option)
        if not isinstance(given, Tracer) and given != OPTIONS[option]:
            raise ValueError(f"PerPair: {name}: {option}={given} is for PerPair itself, not for the model of a rule")


def _check_used(model: Model, contact: PerPair, found: dict[str, list[Pair]]) -> None:
    """Refuse rules that hold no pair."""
    for name, rule in zip(contact.names, contact.rules, strict=True):
        if found[name]:
            continue
        pairs = contact.pairs(model)
        earlier = [other for other, held in found.items() if any(rule.matches(model, pair) for pair in held)]
        if earlier:
            raise ValueError(
                f"PerPair: rule {name!r}: all its pairs are held by {', '.join(earlier)}, which come first"
            )
        there = ", ".join(_named(model, pair) for pair in pairs[:MOST_NAMED]) or "none"
        more = f" and {len(pairs) - MOST_NAMED} more" if len(pairs) > MOST_NAMED else ""
        raise ValueError(
            f"PerPair: rule {name!r}: {', '.join(map(repr, rule.pairs))} matches no pair that may touch; there are "
            f"{there}{more} (links of one tree touch each other only with self_collision=True)"
        )
