"""Quantities of a step as it uses them, after networks have acted on them; without networks, as they are."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from knuckle.kinematics import origin_velocities
from knuckle.model.joints import retract
from knuckle.model.model import Model, State
from knuckle.taps import Tangent, Taps


def state_as_used(model: Model, state: State, taps: Taps) -> State:
    q = taps("q", state.q, axis=_axis(model), tangent=_tangent(model))
    return State(q, taps("qd", state.qd), state.impulse, state.memory)


def parameters_as_used(model: Model, taps: Taps) -> Model:
    """The model with masses, centres of mass, moments of inertia and gravity after networks."""

    def used(name, find):
        return model if not taps.wanted(name) else eqx.tree_at(find, model, taps(name, jnp.asarray(find(model))))

    model = used("link/mass", lambda m: m.inertia.mass)
    model = used("link/com", lambda m: m.inertia.com)
    model = used("link/inertia", lambda m: m.inertia.moment)
    return used("gravity", lambda m: m.gravity)


def wrench_as_used(model: Model, state: State, wrench, taps: Taps) -> Float[Array, "link 6"] | None:
    """Wrenches on the links from outside."""
    if taps.wanted("link/position") or taps.wanted("link/velocity"):
        position, velocity = origin_velocities(model, state.q, state.qd)
        taps("link/position", position)
        taps("link/velocity", velocity)
    if not taps.wanted("link/wrench"):
        return wrench
    nothing = jnp.zeros((len(model.link_names), 6), state.qd.dtype)
    return taps("link/wrench", nothing if wrench is None else wrench)


def state_after(model: Model, after: State, taps: Taps) -> State:
    """The next state after networks, with what they keep for the step after it."""
    tangent, nq = _tangent(model), model.nq
    q = taps("next/q", after.q, axis=_axis(model), tangent=tangent)
    qd = taps("next/qd", after.qd)
    if taps.wanted("next/state"):
        both = taps("next/state", jnp.concatenate([q, qd]), tangent=tangent and _with_velocities(tangent, nq))
        q, qd = both[:nq], both[nq:]
    return State(q, qd, after.impulse, taps.closed())


def _axis(model: Model) -> str | None:
    """Coordinates are rows of the joints' freedoms where no joint has a quaternion."""
    return "dof" if model.nq == model.nv else None


def _tangent(model: Model) -> Tangent | None:
    """How coordinates are added to, where there are quaternions: nothing added leaves them to the last bit."""
    if model.nq == model.nv:
        return None

    def add(q, step):
        return q + (retract(model, q, step) - retract(model, q, jnp.zeros_like(step)))

    return Tangent(model.nv, add, lambda q: jnp.asarray(retract(model, q, jnp.zeros(model.nv, q.dtype))))


def _with_velocities(tangent: Tangent, nq: int) -> Tangent:
    """The same for coordinates and velocities as one vector."""

    def add(both, step):
        q, qd = tangent.add(both[:nq], step[: tangent.size]), both[nq:] + step[tangent.size :]
        return jnp.concatenate([q, qd])

    return Tangent(2 * tangent.size, add, lambda both: jnp.concatenate([tangent.onto(both[:nq]), both[nq:]]))
