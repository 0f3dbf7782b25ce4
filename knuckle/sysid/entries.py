"""Names of the entries of q, qd, tau and control, in the order in which a model has them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle.model.model import Model

COORDINATES = {
    "planar": ("x", "y", "angle"),
    "ball": ("w", "x", "y", "z"),
    "free": ("x", "y", "z", "qw", "qx", "qy", "qz"),
}
VELOCITIES = {"planar": ("x", "y", "angle"), "ball": ("wx", "wy", "wz"), "free": ("vx", "vy", "vz", "wx", "wy", "wz")}
POSE = ("px", "py", "pz", "qw", "qx", "qy", "qz")  # of a body or marker: metres, quaternion wxyz
ACCELERATION = "qdd"
JOINT_CHANNELS = ("q", "qd", ACCELERATION, "tau")
CHANNELS = (*JOINT_CHANNELS, "control")
POSE_PREFIX, POINT_PREFIX = "pose/", "point/"
UNITS = {"q": ("rad", "m"), "qd": ("rad/s", "m/s"), "qdd": ("rad/s^2", "m/s^2"), "tau": ("N m", "N")}


def _names(model: Model, parts: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    joints = zip(model.joint_names, model.topology.kind, strict=True)
    return tuple(f"{joint}.{part}" if part else joint for joint, kind in joints for part in parts.get(kind, ("",)))


def names_of(model: Model, channel: str) -> tuple[str, ...]:
    """Entries of a channel: joints by name, with `.x` and so on where a joint has several coordinates."""
    if channel == "q":
        return _names(model, COORDINATES)
    if channel in JOINT_CHANNELS:
        return _names(model, VELOCITIES)
    if channel == "control":
        return model.actuators.names
    if channel.startswith(POSE_PREFIX):
        return POSE
    if channel.startswith(POINT_PREFIX):
        return POSE[:3]
    raise ValueError(
        f"no channel {channel!r}; there are {', '.join(CHANNELS)}, {POSE_PREFIX}NAME and {POINT_PREFIX}NAME"
    )


def body_names(model: Model) -> tuple[str, ...]:
    """Links and frames, whose poses can be observed."""
    return tuple(dict.fromkeys((*model.link_names, *model.frames.names)))


def dimensions(model: Model, channel: str) -> tuple[str, ...]:
    """angle, length, quaternion, force or number for each entry of a channel."""
    if channel == "q":
        kinds = {
            "revolute": ("angle",),
            "prismatic": ("length",),
            "planar": ("length", "length", "angle"),
            "ball": ("quaternion",) * 4,
            "free": ("length",) * 3 + ("quaternion",) * 4,
        }
    elif channel in JOINT_CHANNELS:
        kinds = {
            "revolute": ("angle",),
            "prismatic": ("length",),
            "planar": ("length", "length", "angle"),
            "ball": ("angle",) * 3,
            "free": ("length",) * 3 + ("angle",) * 3,
        }
    elif channel.startswith((POSE_PREFIX, POINT_PREFIX)):
        return (("length",) * 3 + ("quaternion",) * 4)[: len(names_of(model, channel))]
    else:
        return ("number",) * len(names_of(model, channel))
    return tuple(d for kind in model.topology.kind for d in kinds[kind])


def entry_units(model: Model, key: str, count: int) -> tuple[str, ...]:
    """Units of the entries of differences of a channel; "" of channels of one's own."""
    if key.startswith((POSE_PREFIX, POINT_PREFIX)):
        return (("m",) * 3 + ("rad",) * 3)[:count]
    if key not in JOINT_CHANNELS:
        return ("",) * count
    return tuple(UNITS[key][kind == "length"] for kind in dimensions(model, "qd"))


def channel_unit(model: Model, key: str, count: int) -> str:
    """The unit that all entries of differences of a channel share, or ""."""
    units = set(entry_units(model, key, count))
    return units.pop() if len(units) == 1 else ""


def unit_at(unit: str, dimension: str) -> str:
    """The unit where something turns or slides: `N m or N` is N m at an angle and N at a length."""
    turning, _, sliding = unit.partition(" or ")
    return sliding if sliding and dimension == "length" else turning


def single_joints(model: Model) -> list[tuple[str, int, int]]:
    """Name, coordinate and degree of freedom of each joint that has one of each."""
    topology = model.topology
    index = zip(topology.joint_names, topology.kind, topology.q_start, topology.v_start, strict=True)
    return [(name, int(q), int(v)) for name, kind, q, v in index if kind in ("revolute", "prismatic")]


def quaternion_starts(model: Model) -> list[tuple[str, int, int]]:
    """Joint, first coordinate of its quaternion and first degree of freedom of its rotation."""
    topology = model.topology
    index = zip(topology.joint_names, topology.kind, topology.q_start, topology.v_start, strict=True)
    offset = {"ball": (0, 0), "free": (3, 3)}
    return [(n, int(q) + offset[k][0], int(v) + offset[k][1]) for n, k, q, v in index if k in offset]


def limits(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper limit of each degree of freedom; infinite where none was described."""
    lower, upper = np.full(model.nv, -np.inf), np.full(model.nv, np.inf)
    limited = list(model.topology.limited)
    lower[limited], upper[limited] = np.asarray(model.lower)[limited], np.asarray(model.upper)[limited]
    return lower, upper


def weights_of_entries(model: Model, key: str, weight: Float[Array, "sample entry"]) -> Float[Array, "sample entry"]:
    """Weights of differences in the tangent space, which has fewer entries where there are quaternions."""
    if key == "q" and model.nq != model.nv:
        topology = model.topology
        columns = []
        for i, kind in enumerate(topology.kind):
            a, b = int(topology.q_start[i]), int(topology.v_start[i])
            count = int(topology.v_stop[i]) - b
            if kind == "ball":
                columns += [jnp.min(weight[:, a : a + 4], axis=1)] * 3
            elif kind == "free":
                columns += [weight[:, a + k] for k in range(3)] + [jnp.min(weight[:, a + 3 : a + 7], axis=1)] * 3
            else:
                columns += [weight[:, a + k] for k in range(count)]
        return jnp.stack(columns, axis=1)
    if key.startswith(POSE_PREFIX):
        turning = jnp.min(weight[:, 3:], axis=1, keepdims=True)
        return jnp.concatenate([weight[:, :3], jnp.repeat(turning, 3, axis=1)], axis=1)
    return weight
