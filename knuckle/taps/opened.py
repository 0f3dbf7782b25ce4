"""What a step calls at each of its quantities: `taps(name, value)` is the value as used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.taps.augment import CONSTANT, PREVIOUS, Augment, Value
from knuckle.taps.blueprint import Blueprint, state_key
from knuckle.taps.catalogue import meaning_of


class Tangent(NamedTuple):
    """How something is added to a quantity that is not a vector (coordinates with quaternions)."""

    size: int
    add: Callable[[Array, Array], Array]
    onto: Callable[[Array], Array]  # from any entries to valid ones


class Taps:
    """A step without networks: every quantity is used as it is."""

    def wanted(self, name: str) -> bool:
        """Whether anything acts on this quantity or reads it."""
        return False

    def __call__(self, name: str, value, *, axis: str | None = None, tangent: Tangent | None = None):
        return value

    def shifted(self, name: str, value):
        """As called; when a step computes the quantity once more (`again`), the same change is added."""
        return value

    def moved_to(self, q, qd) -> None:
        """Within a step, an integrator evaluates forces at other coordinates and velocities: networks read those."""

    def damping(self) -> Float[Array, " nv"] | None:
        """At least as much damping at each joint as networks that only take energy give: for implicit integration."""
        return None

    def again(self) -> Taps:
        """For computing once more what was computed in this step: no network is evaluated twice."""
        return self

    def closed(self) -> dict[str, Any] | None:
        """What the next step must know."""
        return None


PLAIN = Taps()


class OpenTaps(Taps):
    """A step with the networks of a blueprint."""

    def __init__(self, blueprint: Blueprint, memory: dict[str, Any], time: Float[Array, ""], record: bool = False):
        self.blueprint, self.memory, self.record = blueprint, memory, record
        self.seen = {"time": Value(jnp.asarray(time), None)}
        self.reached = ["time"]
        self.change: dict[str, Array] = {}
        self.states: dict[str, Any] = {}
        self.dampings: dict[str, Array] = {}
        inputs = {item for _, _, augment in blueprint for item in augment.inputs if not item.startswith(CONSTANT)}
        read = {item.removeprefix(PREVIOUS) for item in inputs}
        self.touched = read | set(blueprint.augments)

    def wanted(self, name):
        if name not in self.reached:
            self.reached.append(name)
        return self.record or name in self.touched

    def __call__(self, name, value, *, axis=None, tangent=None):
        if not self.wanted(name):
            return value
        axis = axis or meaning_of(name).axis
        self.seen[name] = Value(value, axis)
        for place, augment in enumerate(self.blueprint.augments.get(name, ())):
            try:
                value = self._augmented(name, place, augment, value, axis, tangent)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{self._description(name, augment)}: {error}") from error
            self.seen[name] = Value(value, axis)
        return value

    def shifted(self, name, value):
        if not self.wanted(name):
            return value
        after = self(name, value)
        self.change[name] = after - value
        return after

    def moved_to(self, q, qd):
        for name, value in (("q", q), ("qd", qd)):
            if name in self.seen:
                self.seen[name] = self.seen[name]._replace(array=value)

    def damping(self):
        return sum(self.dampings.values()) if self.dampings else None

    def again(self):
        return Again(self)

    def closed(self):
        missed = [name for name in sorted(self.touched) if name not in self.seen]
        if missed:
            raise ValueError(f"blueprint: this step has no {', '.join(missed)}; it has {', '.join(self.reached)}")
        read = {i.removeprefix(PREVIOUS) for _, _, a in self.blueprint for i in a.inputs if i.startswith(PREVIOUS)}
        kept = {PREVIOUS + name: self.seen[name].array for name in sorted(read)}
        return {**kept, **self.states}

    def _augmented(self, name, place, augment: Augment, value, axis, tangent: Tangent | None):
        shape, add, onto = value.shape, jnp.add, None
        if tangent is not None:
            if augment.mode == "scale" or augment.rows is not None:
                raise ValueError(
                    "coordinates with quaternions can be added to (in the tangent space) or replaced whole"
                )
            add, onto = tangent.add, tangent.onto
            shape = (tangent.size,) if augment.mode == "add" else shape
        values = [self._read(augment, item, value.dtype) for item in augment.inputs]
        key = state_key(name, place)
        output, state = augment.output(values, axis, shape, self.memory.get(key))
        if state is not None:
            self.states.setdefault(key, state)
        if hasattr(augment.network, "damping_matrix"):
            D = augment.network.damping_matrix(augment.read(values, axis, shape))  # pyright: ignore[reportFunctionMemberAccess]
            self.dampings[key] = jnp.sum(jnp.abs(D), axis=1)  # a diagonal that D cannot exceed (Gershgorin)
        result = augment.applied(value, output, add)
        return onto(result) if onto is not None and augment.mode == "replace" else result

    def _read(self, augment: Augment, item: str, dtype) -> Value:
        array, axis = self._known(augment, item)
        return Value(array.astype(dtype), axis)

    def _known(self, augment: Augment, item: str) -> Value:
        if item.startswith(CONSTANT):
            return Value(augment.constants[int(item.removeprefix(CONSTANT))], None)
        if item.startswith(PREVIOUS):
            return Value(self.memory[item], meaning_of(item.removeprefix(PREVIOUS)).axis)
        if item not in self.seen:
            known = ", ".join(name for name in self.reached if name != item)
            raise ValueError(
                f"input {item!r} is not yet known at this point of the step (known: {known}); "
                f"kn.previous({item!r}) is its value in the step before"
            )
        return self.seen[item]

    def _description(self, name: str, augment: Augment) -> str:
        def shape(item):
            known = self.memory.get(item) if item.startswith(PREVIOUS) else getattr(self.seen.get(item), "array", None)
            return item if known is None else f"{item} {tuple(known.shape)}"

        value = self.seen[name].array
        return f"blueprint: {name!r} of shape {tuple(value.shape)} with inputs {', '.join(map(shape, augment.inputs))}"


class Again(Taps):
    """The values of a step once more, when a part of it is computed again."""

    def __init__(self, first: OpenTaps):
        self.first = first

    def wanted(self, name):
        return self.first.wanted(name)

    def __call__(self, name, value, *, axis=None, tangent=None):
        return self.first.seen[name].array if name in self.first.seen else value

    def damping(self):
        return self.first.damping()

    def shifted(self, name, value):
        return value + self.first.change[name] if name in self.first.change else value

    def again(self):
        return self
