"""Serial arms from Denavit-Hartenberg parameters, standard and modified, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.model.build import build
from knuckle.model.description import IDENTITY, ORIGIN, Frame, Joint, Link, Vector
from knuckle.model.inertia import COLUMNS, ROWS, arrays_for, is_traced, numbers, quaternion_product, rotation_matrix
from knuckle.model.model import Leaf, Model

Convention = Literal["standard", "modified"]
Kind = Literal["revolute", "prismatic"]
TOOL = "tool"
MISFIT = 1e-9  # [m, or of a rotation matrix]


class DH(NamedTuple):
    """One row per joint: link length a [m], twist alpha [rad], offset d [m], angle theta [rad].

    The joint's own variable adds to theta (revolute) or to d (prismatic).
    """

    a: Float[Leaf, " joint"]
    alpha: Float[Leaf, " joint"]
    d: Float[Leaf, " joint"]
    theta: Float[Leaf, " joint"]


def from_dh(
    a,
    alpha,
    d,
    theta=0.0,
    *,
    convention: Convention = "standard",
    kind: Kind | Sequence[Kind] = "revolute",
    names: Sequence[str] | None = None,
    mass: float | Vector = 1.0,
    thickness: float | Vector = 0.05,
    lower: float | Vector = -np.inf,
    upper: float | Vector = np.inf,
    base_position: Vector = ORIGIN,
    base_rotation: Vector = IDENTITY,
    gravity: Vector = (0.0, 0.0, -9.81),
    name: str = "arm",
) -> Model:
    """A serial arm whose joint i moves about (or along) z, with a frame "tool" at the end; differentiable.

    Standard: A_i = Rz(theta_i) Tz(d_i) Tx(a_i) Rx(alpha_i). Modified (Craig): A_i = Rx(alpha_i) Tx(a_i) Rz(theta_i)
    Tz(d_i), where a_i and alpha_i are those that Craig writes with i - 1. Angles in rad, lengths in m.

    Args:
        a, alpha, d, theta: one entry per joint, or one number for all. The joint's variable adds to theta or d.
        mass: of each link [kg], spread evenly along the straight line from its joint to the next, as a rod.
        thickness: radius of gyration that each link has besides that of the rod [m].
    """
    if convention not in ("standard", "modified"):
        raise ValueError(f"from_dh: convention must be 'standard' or 'modified', got {convention!r}")
    rows = _rows(a, alpha, d, theta)
    count = len(rows.a)
    kinds = (kind,) * count if isinstance(kind, str) else tuple(kind)
    if len(kinds) != count or not set(kinds) <= {"revolute", "prismatic"}:
        raise ValueError(f"from_dh: kind must be 'revolute' or 'prismatic', one for all or {count}, got {kind!r}")
    places = [_placement(rows, i, convention) for i in range(count)]
    base = (numbers(base_position), numbers(base_rotation))
    still = (np.zeros(3), np.array(IDENTITY))
    # Standard frames stand at the end of their link, ours at its joint: A_i places the next one.
    placed = [base, *places[:-1]] if convention == "standard" else [_then(base, places[0]), *places[1:]]
    ends = places if convention == "standard" else [*places[1:], still]
    names = tuple(f"link{i + 1}" for i in range(count)) if names is None else tuple(names)
    each = {k: _per_joint(v, count, k) for k, v in {"mass": mass, "thickness": thickness}.items()}
    limits = {k: _per_joint(v, count, k) for k, v in {"lower": lower, "upper": upper}.items()}
    links = [
        Link(
            names[i],
            names[i - 1] if i else "world",
            Joint(kinds[i], axis="z", lower=limits["lower"][i], upper=limits["upper"][i]),
            *placed[i],
            mass=each["mass"][i],
            com=0.5 * ends[i][0],
            inertia=_rod(each["mass"][i], ends[i][0], each["thickness"][i]),
            frames=[Frame(TOOL, *ends[i])] if i == count - 1 else (),
        )
        for i in range(count)
    ]
    return build(links, gravity=gravity, name=name)


def dh_parameters(model: Model, convention: Convention = "standard") -> DH:
    """The parameters of an arm that stands as `from_dh` builds it, with its base at the world's origin; differentiable.

    Raises:
        ValueError: names the link whose placement no DH transform makes, if values are known.
    """
    topology = model.topology
    count = len(topology.parent)
    if topology.parent != tuple(range(-1, count - 1)) or not set(topology.kind) <= {"revolute", "prismatic"}:
        raise ValueError(f"dh_parameters: model {model.name!r} is not a serial arm of revolute and prismatic joints")
    if TOOL not in model.frames.names:
        raise ValueError(f"dh_parameters: model {model.name!r} has no frame {TOOL!r} at its end")
    end = model.frames.names.index(TOOL)
    last = (jnp.asarray(model.frames.position)[end], jnp.asarray(model.frames.rotation)[end])
    placed = [(jnp.asarray(model.position)[i], jnp.asarray(model.rotation)[i]) for i in range(count)]
    transforms = [*placed[1:], last] if convention == "standard" else placed
    found = [_read(p, R, convention) for p, R in ((p, spatial.rotation_of_quaternion(r)) for p, r in transforms)]
    rows = DH(*(jnp.stack(column) for column in zip(*found, strict=True)))
    _check_fit(model, rows, transforms, convention)
    return rows


def _read(p: Float[Array, "3"], R: Float[Array, "3 3"], convention: Convention) -> tuple[Array, ...]:
    """a, alpha, d, theta of one transform."""
    if convention == "standard":
        theta, alpha = jnp.arctan2(R[1, 0], R[0, 0]), jnp.arctan2(R[2, 1], R[2, 2])
        return jnp.cos(theta) * p[0] + jnp.sin(theta) * p[1], alpha, p[2], theta
    alpha, theta = jnp.arctan2(-R[1, 2], R[2, 2]), jnp.arctan2(-R[0, 1], R[0, 0])
    return p[0], alpha, jnp.cos(alpha) * p[2] - jnp.sin(alpha) * p[1], theta


def _check_fit(model: Model, rows: DH, transforms: list, convention: Convention) -> None:
    """Refuse placements that have more than the four numbers; traced ones are not seen."""
    if any(isinstance(x, Tracer) for x in rows):
        return
    plain = DH(*(np.asarray(x, float) for x in rows))
    for i, (p, r) in enumerate(transforms):
        position, quaternion = _placement(plain, i, convention)
        turned = np.abs(rotation_matrix(quaternion) - rotation_matrix(np.asarray(r, float))).max()
        if max(turned, np.abs(position - np.asarray(p, float)).max()) > MISFIT * max(1.0, np.abs(position).max()):
            raise ValueError(
                f"dh_parameters: what follows link {model.link_names[i]!r} does not stand where a {convention} DH "
                "transform would place it: the frames of this arm are chosen otherwise"
            )


def _rows(a, alpha, d, theta) -> DH:
    """All parameters with one entry per joint."""
    values = {"a": numbers(a), "alpha": numbers(alpha), "d": numbers(d), "theta": numbers(theta)}
    counts = {value.shape[0] for value in values.values() if value.ndim == 1}
    if len(counts) != 1 or any(value.ndim > 1 for value in values.values()):
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in values.items())
        raise ValueError(f"from_dh: a, alpha, d and theta take one number, or one per joint, got {shapes}")
    (count,) = counts
    for name, value in values.items():
        if not is_traced(value) and not np.all(np.isfinite(value)):
            raise ValueError(f"from_dh: {name} must be finite, got {value}")
    return DH(*(arrays_for(value).broadcast_to(value, (count,)) for value in values.values()))


def _per_joint(value, count: int, what: str) -> Any:
    value = numbers(value)
    if value.shape not in ((), (count,)):
        raise ValueError(f"from_dh: {what} must be one number or {count}, got shape {tuple(value.shape)}")
    return arrays_for(value).broadcast_to(value, (count,))


def _turn(axis: int, angle) -> Any:
    """Quaternion of a rotation about a coordinate axis."""
    arrays = arrays_for(angle)
    entries = [arrays.cos(0.5 * angle), 0.0 * angle, 0.0 * angle, 0.0 * angle]
    entries[1 + axis] = arrays.sin(0.5 * angle)
    return arrays.stack(entries)


def _placement(rows: DH, i: int, convention: Convention) -> tuple[Any, Any]:
    """Position and quaternion of A_i with the joint's variable at zero."""
    a, alpha, d, theta = (column[i] for column in rows)
    arrays = arrays_for(rows)
    about_x, about_z = _turn(0, alpha), _turn(2, theta)
    if convention == "standard":
        position = arrays.stack([a * arrays.cos(theta), a * arrays.sin(theta), d])
        return position, quaternion_product(about_z, about_x)
    position = arrays.stack([a, -d * arrays.sin(alpha), d * arrays.cos(alpha)])
    return position, quaternion_product(about_x, about_z)


def _then(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
    position = first[0] + rotation_matrix(first[1]) @ second[0]
    return position, quaternion_product(first[1], second[1])


def _rod(mass, end, thickness) -> Any:
    """Central moments of a rod from the origin to `end` that is also a ball's: m (r^2 1 - r r^T) / 12 + m k^2."""
    arrays = arrays_for(mass, end, thickness)
    matrix = mass * ((end @ end / 12 + thickness**2) * np.eye(3) - arrays.outer(end, end) / 12)
    return matrix[ROWS, COLUMNS]


__all__ = ["DH", "Convention", "Kind", "dh_parameters", "from_dh"]
