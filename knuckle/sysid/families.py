"""What of a model can be fitted, under which names, and how each stays physically possible."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.model.model import Model
from knuckle.sysid.entries import dimensions, unit_at

Kind = Literal["positive", "zero or more", "any", "moments"]
ROWS, COLUMNS = np.array([0, 1, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 2, 2])
FLAT = 1e-4  # share of its size that a body without thickness gets, so that its moments can be fitted


class Family(NamedTuple):
    """Parameters of one sort: one for each link, joint or actuator."""

    owner: Literal["link", "joint", "dof", "actuator", "world", "contact"]
    find: Callable[[Any], Any]  # the array in a model, or the value in a contact model
    unit: str
    kind: Kind
    spread: float  # typical size of an unknown change: relative (positive, moments), else in units of `scale`
    scale: float  # typical size where the value itself is zero
    put: Callable[[Model, Any, Any], Model] | None = None  # model, place, value; None: the value is what `find` finds

    def placed(self, model: Model, place: Any, value: Float[Array, "..."]) -> Model:
        """The model with a value at a place."""
        if self.put is not None:
            return self.put(model, place, value)
        array = jnp.asarray(self.find(model))
        return eqx.tree_at(self.find, model, array.at[place].set(value.astype(array.dtype)))


def _no_turn(model: Model) -> np.ndarray:
    return np.zeros((len(model.joint_names), 3))


def _turned(model: Model, place, value) -> Model:
    """Frames of joints turned from where they are, by a rotation vector in their own axes."""
    turn = jnp.zeros((len(model.joint_names), 3), value.dtype).at[place].set(value)
    turned = spatial.quaternion_product(jnp.asarray(model.rotation), spatial.quaternion_exp(turn))
    return eqx.tree_at(lambda m: m.rotation, model, turned)


def _with_actuators(model: Model, place, gain, column: int, bias) -> Model:
    gains, biases = jnp.asarray(model.actuators.gain), jnp.asarray(model.actuators.bias)
    gains = gains if gain is None else gains.at[place].set(gain)
    return eqx.tree_at(
        lambda m: (m.actuators.gain, m.actuators.bias), model, (gains, biases.at[place, column].set(bias))
    )


def _stiffer(model: Model, place, kp) -> Model:
    return _with_actuators(model, place, kp, 1, -kp)


def _damped(model: Model, place, kv) -> Model:
    return _with_actuators(model, place, None, 2, -kv)


def _faster(model: Model, place, kv) -> Model:
    return _with_actuators(model, place, kv, 2, -kv)


def _damping_of_servos(model: Model) -> Float[Array | np.ndarray, " actuator"]:
    return -model.actuators.bias[:, 2]


FAMILIES = {
    "mass": Family("link", attrgetter("inertia.mass"), "kg", "positive", 1.0, 1.0),
    "com": Family("link", attrgetter("inertia.com"), "m", "any", 1.0, 0.1),
    "inertia": Family("link", attrgetter("inertia.moment"), "kg m^2", "moments", 1.0, 1.0),
    "placement": Family("joint", attrgetter("position"), "m", "any", 1.0, 0.1),
    "rotation": Family("joint", _no_turn, "rad", "any", 1.0, 0.1, _turned),
    "damping": Family("dof", attrgetter("damping"), "N m s/rad or N s/m", "zero or more", 10.0, 0.1),
    "friction": Family("dof", attrgetter("friction"), "N m or N", "zero or more", 10.0, 0.1),
    "stiffness": Family("dof", attrgetter("stiffness"), "N m/rad or N/m", "zero or more", 10.0, 1.0),
    "armature": Family("dof", attrgetter("armature"), "kg m^2 or kg", "zero or more", 10.0, 0.01),
    "gain": Family("actuator", attrgetter("actuators.gain"), "of the actuator", "positive", 1.0, 1.0),
    "bias": Family("actuator", attrgetter("actuators.bias"), "N m or N", "any", 10.0, 0.1),
    "gravity": Family("world", attrgetter("gravity"), "m/s^2", "any", 1.0, 0.1),
}
POSITION_SERVO = {  # force kp (u - length) - kv velocity
    "kp": Family("actuator", attrgetter("actuators.gain"), "N m/rad or N/m", "positive", 1.0, 1.0, _stiffer),
    "kv": Family("actuator", _damping_of_servos, "N m s/rad or N s/m", "zero or more", 10.0, 1.0, _damped),
}
VELOCITY_SERVO = {  # force kv (u - velocity)
    "kv": Family("actuator", attrgetter("actuators.gain"), "N m s/rad or N s/m", "positive", 1.0, 1.0, _faster)
}
CONTACT_FAMILIES = {
    "friction": Family("contact", attrgetter("friction"), "1", "zero or more", 10.0, 0.5),
    "restitution": Family("contact", attrgetter("restitution"), "1", "zero or more", 2.0, 0.5),
    "stiffness": Family("contact", attrgetter("stiffness"), "N/m^p", "positive", 3.0, 1e5),
    "dissipation": Family("contact", attrgetter("dissipation"), "s/m", "zero or more", 10.0, 0.5),
    "transition": Family("contact", attrgetter("transition"), "m/s", "positive", 1.0, 0.01),
    "alpha": Family("contact", attrgetter("alpha"), "1/s", "positive", 1.0, 200.0),
    "beta": Family("contact", attrgetter("beta"), "1/s", "positive", 1.0, 200.0),
    "mixing": Family("contact", attrgetter("mixing"), "1", "positive", 3.0, 1e-5),
}


def places(model: Model, name: str, family: Family) -> dict[str, Any]:
    """Full names of a family's parameters in a model, each with where it stands in the array."""
    topology = model.topology
    if family.owner == "world":
        return {f"world.{name}": slice(None)}
    if family.owner == "link":
        heavy = np.asarray(model.inertia.mass) > 0
        return {f"{link}.{name}": i for i, link in enumerate(topology.link_names) if heavy[i]}
    if family.owner == "joint":
        return {f"{joint}.{name}": i for i, joint in enumerate(topology.joint_names)}
    if family.owner == "actuator":
        constant = name == "bias"  # of a bias that also grows with length and velocity
        return {f"{actuator}.{name}": (i, 0) if constant else i for i, actuator in enumerate(model.actuators.names)}
    starts, stops = topology.v_start, topology.v_stop
    return {f"{joint}.{name}": slice(int(starts[i]), int(stops[i])) for i, joint in enumerate(topology.joint_names)}


def units(model: Model, family: Family, place: Any, count: int) -> tuple[str, ...]:
    """The unit of each entry of a parameter, by whether its joint turns or slides there."""
    kinds = dimensions(model, "tau")
    if family.owner == "dof":
        return tuple(unit_at(family.unit, kind) for kind in kinds[place])
    if family.owner == "actuator":
        actuator = place[0] if isinstance(place, tuple) else place
        acts = model.actuators
        moved = [kinds[dof] for dof, k in zip(acts.entry_dof, acts.entry_actuator, strict=True) if k == actuator]
        return (unit_at(family.unit, moved[0] if moved else "angle"),) * count
    return (family.unit,) * count


def servo_gains(model: Model) -> dict[str, tuple[Family, int]]:
    """kp and kv of the actuators that are servos by their gain and bias, with where they stand."""
    gain, bias, found = np.asarray(model.actuators.gain), np.asarray(model.actuators.bias), {}
    for i, name in enumerate(model.actuators.names):
        by_length, by_speed = (gain[i] > 0 and np.isclose(bias[i, k], -gain[i], rtol=1e-9) for k in (1, 2))
        damped = by_length and bias[i, 2] <= 0
        families = POSITION_SERVO if damped else VELOCITY_SERVO if by_speed and bias[i, 1] == 0 else {}
        found |= {f"{name}.{key}": (family, i) for key, family in families.items()}
    return found


def to_value(kind: Kind, start: Float[np.ndarray, "..."], scale: float, z: Float[Array, " n"]) -> Float[Array, "..."]:
    """The value at free numbers z, where z = 0 is the value that the description has."""
    if kind == "positive":
        return jnp.asarray(start, z.dtype) * jnp.exp(z.reshape(start.shape))
    if kind == "moments":
        return _moments_of(_factor(start), z)
    return jnp.asarray(start, z.dtype) + scale * z.reshape(start.shape)


def free_bounds(kind: Kind, start: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the free numbers that keep a value physically possible."""
    size = start.size
    if kind == "zero or more":
        return -start.reshape(-1) / scale, np.full(size, np.inf)
    widest = np.full(size, 6.0 if kind in ("positive", "moments") else np.inf)
    return -widest, widest


def to_free(kind: Kind, start: np.ndarray, scale: float, value: np.ndarray) -> np.ndarray:
    """Free numbers of a value: the inverse of `to_value`, for all kinds but moments."""
    if kind == "positive":
        with np.errstate(divide="ignore"):  # a lower bound of 0 is none
            return np.log(value / start).reshape(-1)
    if kind == "moments":
        raise ValueError("moments of inertia have no bounds entry by entry: give a spread")
    return ((value - start) / scale).reshape(-1)


def _factor(moment: np.ndarray) -> np.ndarray:
    """Upper triangular U of Sigma = U U^T, Sigma = tr(I)/2 - I (log-Cholesky; Rucker and Wensing 2022)."""
    xx, yy, zz, xy, xz, yz = moment
    inertia = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    sigma = np.trace(inertia) / 2 * np.eye(3) - inertia
    size = max(np.trace(sigma), 1e-12)
    values, vectors = np.linalg.eigh(sigma)
    thick = (vectors * np.maximum(values, FLAT * size)) @ vectors.T
    turned = np.linalg.cholesky(thick[::-1, ::-1])  # lower; turned back it is upper
    return turned[::-1, ::-1]


def _moments_of(U: np.ndarray, z: Float[Array, " 6"]) -> Float[Array, " 6"]:
    """Moments of Sigma = (U V)(U V)^T with V upper triangular, the exponential of z on its diagonal."""
    V = jnp.zeros((3, 3), z.dtype).at[ROWS, COLUMNS].set(jnp.concatenate([jnp.exp(z[:3]), z[3:]]))
    UV = jnp.asarray(U, z.dtype) @ V
    sigma = UV @ UV.T
    inertia = jnp.trace(sigma) * jnp.eye(3, dtype=z.dtype) - sigma
    return inertia[ROWS, COLUMNS]
