"""Contact models as JSON and arrays: one, or several by rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from knuckle.contact import Compliant, Impulse, InteriorPoint, PerPair, Rule
from knuckle.contact.resolve import ContactModel
from knuckle.hybrid.arrays import Arrays
from knuckle.hybrid.container import Members
from knuckle.hybrid.fields import decoded, decoded_fields, encoded, encoded_fields, field_values

CONTACTS = {kind.__name__: kind for kind in (Compliant, Impulse, InteriorPoint)}
COUNTS = ("most_contacts", "most_iterations", "substeps")
OPTIONS = tuple(field.name for field in dataclasses.fields(ContactModel))
RULE = {"name", "pairs", "model"}


def encoded_choice(value: Any, place: str, kinds: Mapping[str, type], arrays: Arrays) -> dict[str, Any] | None:
    """The name and the fields of one of several kinds."""
    if value is None:
        return None
    name = type(value).__name__
    if kinds.get(name) is not type(value):
        raise ValueError(f"{place}: a file holds no code: it can name {', '.join(kinds)}, not {name}")
    return {"class": name, "fields": encoded_fields(value, place, arrays)}


def decoded_choice(node: Any, place: str, kinds: Mapping[str, type], members: Members) -> Any:
    if node is None:
        return None
    if not isinstance(node, dict) or set(node) != {"class", "fields"} or not isinstance(node["class"], str):
        members.fail(place, f"expected class and fields, got {node!r:.200}")
    if node["class"] not in kinds:
        members.fail(place, f"expected one of {', '.join(kinds)}, got {node['class']!r:.200}")
    return decoded_fields(kinds[node["class"]], node["fields"], place, members, floats_or_arrays=True)


def encoded_contact(contact: ContactModel | None, arrays: Arrays) -> dict[str, Any] | None:
    if type(contact) is not PerPair:
        return encoded_choice(contact, "contact", CONTACTS | {"PerPair": PerPair}, arrays)
    rules = [
        {
            "name": name,
            "pairs": list(rule.pairs),
            "model": encoded_choice(rule.model, f"contact/{name}", CONTACTS, arrays),
        }
        for name, rule in zip(contact.names, contact.rules, strict=True)
    ]
    options = {name: encoded(getattr(contact, name), f"contact/{name}", arrays) for name in OPTIONS}
    rest = encoded_choice(contact.rest, "contact/rest", CONTACTS, arrays)
    return {"class": "PerPair", "fields": {**options, "rules": rules, "rest": rest}}


def decoded_contact(node: Any, members: Members) -> ContactModel | None:
    if not isinstance(node, dict) or node.get("class") != "PerPair":
        return decoded_choice(node, "contact", CONTACTS | {"PerPair": PerPair}, members)
    fields = node.get("fields")
    if set(node) != {"class", "fields"} or not isinstance(fields, dict) or not {"rules", "rest"} <= set(fields):
        members.fail("contact", f"expected class and fields with rules and rest, got {node!r:.200}")
    given = {name: value for name, value in fields.items() if name not in ("rules", "rest")}
    options = field_values(ContactModel, given, "contact", members, floats_or_arrays=True)
    rules = _rules(fields["rules"], members)
    rest = decoded_choice(fields["rest"], "contact/rest", CONTACTS, members)
    try:
        return PerPair(rest=rest, **rules, **options)
    except (ValueError, TypeError) as error:
        members.fail("contact", str(error))


def _rules(nodes: Any, members: Members) -> dict[str, Rule]:
    if not isinstance(nodes, list):
        members.fail("contact/rules", f"expected a list of rules, got {nodes!r:.200}")
    rules: dict[str, Rule] = {}
    for number, node in enumerate(nodes):
        place = f"contact/rules/{number}"
        if not isinstance(node, dict) or set(node) != RULE:
            members.fail(place, f"expected {', '.join(sorted(RULE))}, got {node!r:.200}")
        name = decoded(str, node["name"], f"{place}/name", members)
        if not name.isidentifier() or name in rules or name in (*OPTIONS, "rest"):
            members.fail(f"{place}/name", f"expected a name of its own, got {name!r:.200}")
        pairs = decoded(tuple[str, ...], node["pairs"], f"{place}/pairs", members)
        model = decoded_choice(node["model"], f"contact/{name}", CONTACTS, members)
        try:
            rules[name] = Rule(pairs, model)
        except ValueError as error:
            members.fail(place, str(error))
    return rules


def check_contact(contact: ContactModel | None) -> None:
    """Raise ValueError where a count or a number cannot be meant."""
    models = {"contact": contact}
    if isinstance(contact, PerPair):
        models |= {f"contact/{name}": model for name, model in contact.models.items()}
    for place, model in models.items():
        for name in COUNTS:
            count = getattr(model, name, None)
            if count is not None and count < 1:
                raise ValueError(f"{place}/{name}: expected a positive number, got {count}")
    for leaf in jax.tree.leaves(contact):
        if np.ndim(leaf) > 1 or np.asarray(leaf).dtype.kind not in "fiu" or not np.all(np.isfinite(leaf)):
            raise ValueError(f"contact: expected one finite number, or one per contact, got {leaf!r:.200}")
