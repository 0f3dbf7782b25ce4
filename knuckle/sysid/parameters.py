"""Free parameters of a fit: chosen by pattern, as one vector of free numbers, each with bounds or a prior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import native
from knuckle.contact.per_pair import PerPair
from knuckle.contact.resolve import ContactModel
from knuckle.contact.surfaces import surfaces
from knuckle.model.model import Model
from knuckle.sysid.families import (
    CONTACT_FAMILIES,
    FAMILIES,
    POSITION_SERVO,
    VELOCITY_SERVO,
    Family,
    free_bounds,
    places,
    servo_gains,
    to_free,
    to_value,
    units,
)

MOMENTS = ("xx", "yy", "zz", "xy", "xz", "yz")
DEFAULT = ("*.mass", "*.com", "*.inertia", "*.damping", "*.friction")


class Prior(NamedTuple):
    """What is known beforehand: bounds of the value, and how far it may be from the description (one deviation).

    `spread` is relative for masses, moments and other positive numbers (0.1: about 10 %), else in the value's unit.
    """

    lower: float | None = None
    upper: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class Parameter:
    """One parameter of the fit and its place among the free numbers."""

    name: str
    family: Family
    place: Any
    start: np.ndarray  # value in the description
    scale: float
    free: slice
    lower: np.ndarray  # of the free numbers
    upper: np.ndarray
    deviation: np.ndarray  # of the prior on the free numbers
    reach: np.ndarray  # how far a global search looks: between bounds that were given, or four deviations
    units: tuple[str, ...]  # of the entries

    @property
    def of_contact(self) -> bool:
        return self.family.owner == "contact"

    @property
    def entries(self) -> tuple[str, ...]:
        """A name for each number of the value."""
        if self.start.size == 1:
            return (self.name,)
        if self.family.kind == "moments":
            return tuple(f"{self.name}.{entry}" for entry in MOMENTS)
        if self.family.kind == "any" and self.start.shape == (3,):
            return tuple(f"{self.name}.{axis}" for axis in "xyz")
        return tuple(f"{self.name}[{k}]" for k in range(self.start.size))

    def value(self, z: Float[Array, " free"]) -> Float[Array, "..."]:
        return to_value(self.family.kind, self.start, self.scale, z[self.free])


class Parameters(tuple[Parameter, ...]):
    """The free parameters of a fit, in the order of the free numbers."""

    @property
    def size(self) -> int:
        return self[-1].free.stop if self else 0

    @property
    def lower(self) -> np.ndarray:
        return np.concatenate([p.lower for p in self]) if self else np.zeros(0)

    @property
    def upper(self) -> np.ndarray:
        return np.concatenate([p.upper for p in self]) if self else np.zeros(0)

    @property
    def deviation(self) -> np.ndarray:
        return np.concatenate([p.deviation for p in self]) if self else np.zeros(0)

    @property
    def reach(self) -> np.ndarray:
        return np.concatenate([p.reach for p in self]) if self else np.zeros(0)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each free number: that of an entry, but for moments, which are free by factors (log-Cholesky)."""
        factors = [f"factor[{k}]" for k in range(len(MOMENTS))]
        return tuple(
            label
            for p in self
            for label in ([f"{p.name}.{f}" for f in factors] if p.family.kind == "moments" else p.entries)
        )

    @property
    def entries(self) -> tuple[str, ...]:
        """A name for each number of all values; there are as many as free numbers."""
        return tuple(name for p in self for name in p.entries)

    def entries_by_free(self, z: Float[np.ndarray, " free"]) -> Float[np.ndarray, "entry free"]:
        """Change of the entries by the free numbers, both in units of what was known before."""
        if not self:
            return np.zeros((0, 0))
        slope = np.asarray(self.values_and_slopes(z)[1]) * self.deviation
        return slope / np.linalg.norm(slope, axis=1, keepdims=True)

    @cached_property
    def values_and_slopes(self) -> Callable:
        """Compiled: from the free numbers to all values one after the other, and their derivative."""
        values = lambda z: jnp.concatenate([jnp.ravel(p.value(z)) for p in self])  # noqa: E731
        return native.jit(lambda z: (values(z), native.jacfwd(values)(z)))

    def __reduce__(self):
        return Parameters, (tuple(self),)  # not what is compiled

    def put(self, model: Model, contact: ContactModel | None, z: Float[np.ndarray, " free"]):
        """The same as `applied` of numbers, without a compiled operation for each of them."""
        values, at = np.asarray(self.values_and_slopes(np.asarray(z))[0]) if self else np.zeros(0), 0
        for p in self:
            value, at = values[at : at + p.start.size].reshape(p.start.shape), at + p.start.size
            if p.of_contact:
                contact = _with_contact_value(contact, p.name, jnp.asarray(value))
            elif p.family.put is None:
                array = np.array(p.family.find(model))
                array[p.place] = value
                model = eqx.tree_at(p.family.find, model, jnp.asarray(array))
            else:
                model = p.family.placed(model, p.place, jnp.asarray(value))
        return model, contact

    def applied(self, model: Model, contact: ContactModel | None, z: Float[Array, " free"]):
        """The model and the contact model with these free numbers."""
        for p in self:
            if p.of_contact:
                contact = _with_contact_value(contact, p.name, p.value(z))
                continue
            model = p.family.placed(model, p.place, p.value(z))
        return model, contact


def _contact_owner(contact: ContactModel | None, name: str) -> Any:
    """The contact model that has a parameter: "contact.friction", or "contact.push.friction" of the rule "push"."""
    rule = name.split(".")[1:-1]
    return contact[rule[0]] if rule and isinstance(contact, PerPair) else contact


def _with_contact_value(contact: ContactModel | None, name: str, value: Array) -> ContactModel | None:
    find = lambda c: getattr(_contact_owner(c, name), name.rpartition(".")[2])  # noqa: E731
    return eqx.tree_at(find, contact, value, is_leaf=lambda x: x is None)


def fittable(model: Model, contact: ContactModel | None = None) -> dict[str, tuple[Family, Any]]:
    """Everything that can be fitted: full name, family and place."""
    found = {
        full: (family, place)
        for name, family in FAMILIES.items()
        for full, place in places(model, name, family).items()
    } | servo_gains(model)
    for rule, (own, pairs) in ({} if contact is None else contact.by_rule(model)).items():
        prefix = f"contact.{rule}" if rule else "contact"
        there = {name: family for name, family in CONTACT_FAMILIES.items() if pairs and hasattr(own, name)}
        found |= {f"{prefix}.{name}": (family, None) for name, family in there.items()}
    return found


def _components(model: Model, name: str, family: Family, place) -> list[tuple[str, tuple[Family, Any]]]:
    """Names and places of the single coordinates of a vector in space."""
    if family.owner == "contact" or family.kind != "any" or np.shape(np.asarray(family.find(model))[place]) != (3,):
        return []
    whole = () if isinstance(place, slice) else (place,)
    return [(f"{name}.{axis}", (family, (*whole, k))) for k, axis in enumerate("xyz")]


def choose(
    model: Model,
    free: Sequence[str] | Mapping[str, Prior | tuple[float, float] | None] | None = None,
    contact: ContactModel | None = None,
) -> Parameters:
    """Parameters by patterns such as "*.mass", "elbow.damping" or "*.com.z", with a prior or (lower, upper) each.

    Without a choice: masses, centres of mass, moments, damping and friction of all joints, with wide priors.
    """
    whole = fittable(model, contact)
    there = whole | {part: found for name, place in whole.items() for part, found in _components(model, name, *place)}
    free = [free] if isinstance(free, str) else free
    wanted = free if isinstance(free, Mapping) else dict.fromkeys(DEFAULT if free is None else free)
    chosen: dict[str, Prior] = {}
    for pattern, prior in wanted.items():
        names = [name for name in there if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(f"free: nothing is called {pattern!r}; there are {_listed(whole)}")
        chosen |= dict.fromkeys(names, _prior(pattern, prior))
    twice = [name for name in chosen if name not in whole and name.rpartition(".")[0] in chosen]
    if twice:
        raise ValueError(f"free: {', '.join(twice)} would be free twice: by itself and as part of the whole")
    _check_servos(chosen, there)
    made, at = [], 0
    for name in (name for name in there if name in chosen):
        parameter = _parameter(name, *there[name], model, contact, chosen[name], at)
        made.append(parameter)
        at = parameter.free.stop
    return Parameters(made)


def _check_servos(chosen: Iterable[str], there: Mapping[str, tuple[Family, Any]]) -> None:
    """The gain of a servo is its kp or kv, with which its bias goes."""
    for name in chosen:
        gain = f"{name.rpartition('.')[0]}.gain"
        if there[name][0] in (POSITION_SERVO["kp"], VELOCITY_SERVO["kv"]) and gain in chosen:
            raise ValueError(
                f"free: {gain} and {name} are one number of a servo: free {name}, or else {gain} by itself"
            )


def _listed(names: Iterable[str]) -> str:
    """Names that can be free, in few words: those of each link, joint and actuator once."""
    kinds: dict[str, list[str]] = {}
    for owner, _, kind in (name.rpartition(".") for name in names):
        kinds.setdefault(owner, []).append(kind)
    owners: dict[tuple[str, ...], list[str]] = {}
    for owner, there in kinds.items():
        owners.setdefault(tuple(there), []).append(owner)
    return "; ".join(f"{', '.join(there)} of {', '.join(group)}" for there, group in owners.items())


def _prior(pattern: str, prior) -> Prior:
    if prior is None:
        return Prior()
    if isinstance(prior, Prior):
        if prior.spread is not None and not 0 < prior.spread < np.inf:
            raise ValueError(f"free: the spread of {pattern!r} must be positive, got {prior.spread}")
        return prior
    if isinstance(prior, tuple) and len(prior) == 2:
        return Prior(*map(float, prior))
    raise ValueError(f"free: {pattern!r} needs kn.Prior(...), (lower, upper) or None, got {prior!r}")


def _friction_of_shapes(model: Model, contact: ContactModel, name: str) -> float:
    """What contacts have where their model has no friction of its own, as one number."""
    _, pairs = contact.by_rule(model)[".".join(name.split(".")[1:-1])]
    if not pairs:
        return 1.0
    with jax.enable_x64(True):
        return float(np.mean(surfaces(model.geometry, [p.a for p in pairs], [p.b for p in pairs]).friction))


def _parameter(name: str, family: Family, place, model: Model, contact, prior: Prior, at: int) -> Parameter:
    value = family.find(_contact_owner(contact, name) if family.owner == "contact" else model)
    if value is None:
        value = _friction_of_shapes(model, contact, name)
    start = np.array(value if place is None else np.asarray(value)[place], float)
    size = 6 if family.kind == "moments" else max(start.size, 1)
    scale = float(np.abs(start).max()) if family.kind == "zero or more" and np.any(start) else family.scale
    lower, upper = free_bounds(family.kind, start, scale)
    if family.kind == "positive" and ((prior.lower or 0.0) < 0 or (prior.upper is not None and prior.upper <= 0)):
        raise ValueError(f"free: {name} is positive, so its bounds must be too, got {prior.lower} and {prior.upper}")
    if prior.lower is not None:
        lower = np.maximum(lower, to_free(family.kind, start, scale, np.full(start.shape, prior.lower)))
    if prior.upper is not None:
        upper = np.minimum(upper, to_free(family.kind, start, scale, np.full(start.shape, prior.upper)))
    if np.any(lower >= upper):
        raise ValueError(f"free: {name} must have lower < upper, got {prior.lower} and {prior.upper}")
    spread = family.spread
    if prior.spread is not None:
        spread = prior.spread / (1.0 if family.kind in ("positive", "moments") else scale)
    deviation = np.full(size, spread)
    given = prior.lower is not None and prior.upper is not None
    reach = upper - lower if given else np.minimum(upper - lower, 4 * deviation)
    own = units(model, family, place, start.size)
    return Parameter(name, family, place, start, scale, slice(at, at + size), lower, upper, deviation, reach, own)
