"""Effects that a model may lack, each as columns of free numbers: terms at taps, and parameters of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from knuckle.contact.resolve import ContactModel
from knuckle.model.model import Model
from knuckle.neural.formula import EVERY, Formula, Term
from knuckle.sysid.entries import names_of, single_joints
from knuckle.sysid.families import servo_gains
from knuckle.sysid.parameters import Parameters, choose, fittable
from knuckle.tap_list import list_taps
from knuckle.taps import Augment, Blueprint

FORCE, FRICTION = "joint/force", "contact/friction"
SAME_SUM = ("joint/passive_force", "actuator/force")  # what is added there is added to joint/force too
HARMONICS = (2, 3, 4, 6, 8, 12)  # of cogging, per turn
STRIBECK_SPEEDS = (0.1, 0.4)  # over the root mean square of the speed
GAPS = (0.5, 1.5)  # of a dead zone, over the standard deviation of the coordinate
FEW = 4  # degrees of freedom up to which joints are tried as inputs of each other


class Candidate(NamedTuple):
    """An effect that may be missing."""

    name: str
    effect: str
    place: str  # joint, link or actuator
    tap: str
    inputs: tuple[str, ...]  # what it is a function of
    columns: tuple[int, ...]  # of the free numbers
    cost: int  # unknown numbers that it brings
    ties: tuple[str, ...] = ()  # taps that add into the same sum: no data can tell these apart


@dataclass(frozen=True)
class Library:
    """All candidates of a model, and the simulator's free numbers that they are made of."""

    candidates: tuple[Candidate, ...]
    parameters: Parameters
    blueprint: Blueprint
    always: np.ndarray  # columns that are free in any case
    terms: dict[int, tuple[str, Term]]  # by column: the tap and the term

    @property
    def size(self) -> int:
        return self.parameters.size + self.blueprint.size


def rounded(value: float) -> float:
    """To 1, 2 or 5 times a power of ten: recordings that are alike share compiled programs."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(min((1.0, 2.0, 5.0, 10.0), key=lambda x: abs(np.log(x * power / value))) * power)


class Motion(NamedTuple):
    """How far and how fast each degree of freedom moves in the recordings: scales of the terms."""

    spread: np.ndarray  # standard deviation of single joints' coordinates, by degree of freedom
    speed: np.ndarray  # root mean square


class _Effect(NamedTuple):
    effect: str
    inputs: tuple[str, ...]
    terms: tuple[Term, ...]
    cost: int


def make_library(
    model: Model, motion: Motion, *, free: Sequence[str] = (), contact: ContactModel | None = None
) -> Library:
    """Candidates for every joint, link and actuator; `free`: parameters that are estimated beside each of them."""
    effects = [(name, effect) for v, name in enumerate(names_of(model, "qd")) for effect in _at_joint(model, v, motion)]
    terms = list(dict.fromkeys(term for _, effect in effects for term in effect.terms))
    inputs = ("q", "qd", "actuator/force") if model.nu else ("q", "qd")
    width = model.nq + model.nv * (len(inputs) - 1)
    augments = {FORCE: Augment(Formula(terms, width, model.nv), inputs)}
    ground = _of_contact(model, contact)
    if ground:
        count = list_taps(model, contact=contact)[FRICTION].shape[0]
        own = [term for effect in ground for term in effect.terms]
        augments[FRICTION] = Augment(Formula(own, model.nq, count), "q")
    blueprint = Blueprint(augments)
    parameters, groups = _parameters(model, free, contact)
    places = _term_columns(blueprint, parameters.size)
    found = [_candidate_of_terms(name, effect, FORCE, places) for name, effect in effects]
    found += [_candidate_of_terms("contact", effect, FRICTION, places) for effect in ground]
    own = {p.name: tuple(range(p.free.start, p.free.stop)) for p in parameters}
    found += [group._replace(columns=tuple(c for n in names for c in own[n])) for group, names in groups]
    chosen = {name for p in choose(model, list(free), contact) for name in [p.name]} if free else set()
    always = np.array([c for name in own if name in chosen for c in own[name]], int)
    by_column = {column: (tap, term) for (tap, term), column in places.items()}
    return Library(tuple(found), parameters, blueprint, always, by_column)


def _term_columns(blueprint: Blueprint, first: int) -> dict[tuple[str, Term], int]:
    """The free number of each term."""
    flat, unravel = ravel_pytree(blueprint.weights)
    numbers = unravel(jnp.arange(len(flat), dtype=float))
    found = {}
    for tap, (augment,) in blueprint.augments.items():
        weights = next(value for key, value in numbers.items() if key.partition(" ")[0] == tap)[0]
        for term, number in zip(augment.rest.terms, np.asarray(weights.coefficient), strict=True):
            found[tap, Term(*term)] = first + int(number)
    return found


def _candidate_of_terms(place: str, effect: _Effect, tap: str, places: dict[tuple[str, Term], int]) -> Candidate:
    columns = tuple(places[tap, term] for term in effect.terms)
    ties = SAME_SUM if tap == FORCE else ()
    return Candidate(
        f"{effect.effect} at {place}", effect.effect, place, tap, effect.inputs, columns, effect.cost, ties
    )


def _at_joint(model: Model, v: int, motion: Motion) -> list[_Effect]:
    """Forces on one degree of freedom as functions of coordinates, velocities and the actuators' force."""
    names, singles = names_of(model, "qd"), {at: (name, q) for name, q, at in single_joints(model)}
    speed, width = model.nq + v, float(np.asarray(model.friction_speed)[v])
    qd, most = (f"qd_{names[v]}",), max(float(motion.speed[v]), 1e-6)
    found = [
        _Effect("constant force", (), (Term("constant", v),), 1),
        _Effect("viscous damping", qd, (Term("linear", v, (speed,)),), 1),
        _Effect("Coulomb friction", qd, (Term("coulomb", v, (speed,), (width,)),), 1),
        _Effect("quadratic drag", qd, (Term("quadratic drag", v, (speed,)),), 1),
    ]
    for share in STRIBECK_SPEEDS:
        dry = Term("coulomb", v, (speed,), (width,)), Term("stribeck", v, (speed,), (width, rounded(share * most)))
        found.append(_Effect("Stribeck friction", qd, dry, 3))
    if model.nu and _driven(model, v):
        load = Term("coulomb times load", v, (model.nq + model.nv + v, speed), (width,))
        found.append(_Effect("friction by load", (f"force_{names[v]}", *qd), (load,), 1))
    if v in singles:
        found += _of_position(model, v, *singles[v], motion)
    if model.nv <= FEW:
        for other, name in enumerate(names):
            if other != v:
                cross = (Term("linear", v, (model.nq + other,)),)
                found.append(_Effect(f"damping by the speed of {name}", (f"qd_{name}",), cross, 1))
                if other in singles:
                    spring = (Term("linear", v, (singles[other][1],)),)
                    found.append(_Effect(f"spring by the position of {name}", (f"q_{name}",), spring, 1))
    return found


def _of_position(model: Model, v: int, name: str, at: int, motion: Motion) -> list[_Effect]:
    speed, width = model.nq + v, float(np.asarray(model.friction_speed)[v])
    q, both = (f"q_{name}",), (f"q_{name}", f"qd_{name}")
    spread = max(float(motion.spread[v]), 1e-6)
    found = [
        _Effect("spring", q, (Term("linear", v, (at,)),), 1),
        _Effect("cubic spring", q, (Term("cubic", v, (at,)),), 1),
        _Effect("position-dependent damping", both, (Term("product", v, (at, speed)),), 1),
    ]
    for gap in GAPS:
        found.append(_Effect("backlash", q, (Term("dead zone", v, (at,), (rounded(gap * spread),)),), 2))
    index = list(model.topology.joint_names).index(name)
    if model.topology.kind[index] != "revolute":
        found.append(
            _Effect("position-dependent friction", both, (Term("coulomb times", v, (at, speed), (width,)),), 1)
        )
        return found
    waves = tuple(Term(f"coulomb times {wave}", v, (at, speed), (width,)) for wave in ("sine", "cosine"))
    found.append(_Effect("position-dependent friction", both, waves, 2))
    for order in (1, *HARMONICS):
        effect = "force like gravity" if order == 1 else f"cogging, {order} per turn"
        pair = tuple(Term(wave, v, (at,), (float(order),)) for wave in ("sine", "cosine"))
        found.append(_Effect(effect, q, pair, 2 if order == 1 else 3))
    return found


def _driven(model: Model, v: int) -> bool:
    return v in set(np.asarray(model.actuators.entry_dof, int).tolist())


def _of_contact(model: Model, contact: ContactModel | None) -> list[_Effect]:
    """The coefficient of sliding friction as a function of the coordinates."""
    if contact is None or FRICTION not in [tap.name for tap in list_taps(model, contact=contact)]:
        return []
    found = [_Effect("contact friction", (), (Term("constant", EVERY),), 1)]
    for k, name in enumerate(names_of(model, "q")[:FEW]):
        found.append(_Effect(f"contact friction along {name}", (f"q_{name}",), (Term("linear", EVERY, (k,)),), 1))
    return found


def _parameters(model: Model, free: Sequence[str], contact: ContactModel | None):
    """Parameters that are candidates or free in any case, and groups of their names."""
    there = fittable(model, contact)
    taken = {p.name for p in choose(model, list(free), contact)} if free else set()
    groups: list[tuple[Candidate, tuple[str, ...]]] = []

    def add(effect: str, place: str, tap: str, names: Sequence[str], cost: int, ties: tuple[str, ...] = ()) -> None:
        kept = tuple(name for name in names if name in there and name not in taken)
        if kept:
            groups.append((Candidate(f"{effect} of {place}", effect, place, tap, (), (), cost, ties), kept))

    for link in model.link_names:
        add("mass", link, "link/mass", [f"{link}.mass"], 1)
        add("payload", link, "link/mass", [f"{link}.mass", f"{link}.com", f"{link}.inertia"], 4,
            ("link/com", "link/inertia"))  # fmt: skip
    for joint in model.joint_names:
        add("rotor inertia", joint, "joint/acceleration", [f"{joint}.armature"], 1)
    if np.any(np.asarray(model.gravity)):
        add("gravity", "the world", "gravity", ["world.gravity"], 2)
    servos = {name.rpartition(".")[0] for name in servo_gains(model)}
    for actuator in model.actuators.names:
        if actuator not in servos:
            add("motor constant", actuator, "actuator/force", [f"{actuator}.gain"], 1, ("control",))
    wanted = list(dict.fromkeys([*taken, *(name for _, names in groups for name in names)]))
    return (choose(model, wanted, contact) if wanted else Parameters()), groups
