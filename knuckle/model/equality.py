"""Arrays of described equality constraints, on the links that remain after welding."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from knuckle.model import inertia as rigid
from knuckle.model.description import IDENTITY, ORIGIN, Connect, Equality, Mimic, Weld
from knuckle.model.model import Equalities
from knuckle.model.topology import Topology


def make_equalities(
    equalities: Sequence[Equality], topology: Topology, placed: Mapping[str, Any], moved: Container[str] = ()
) -> Equalities:
    """`placed` says on which moving link, and where, each described link stands; `moved` are those of mocap bodies."""
    rows = [_row(e, topology, placed, f"equality {e.name or number!r}") for number, e in enumerate(equalities)]
    columns = {key: [row[key] for row in rows] for key in ("pa", "ra", "pb", "rb", "polynomial", "scale", "a", "b")}
    return Equalities(
        position_a=rigid.table(columns["pa"], -1, 3),
        rotation_a=rigid.table(columns["ra"], -1, 4),
        position_b=rigid.table(columns["pb"], -1, 3),
        rotation_b=rigid.table(columns["rb"], -1, 4),
        polynomial=rigid.table(columns["polynomial"], -1, 5),
        torque_scale=rigid.table(columns["scale"], -1),
        kind=tuple(type(e).__name__.lower() for e in equalities),
        a=tuple(columns["a"]),
        b=tuple(columns["b"]),
        active=tuple(e.active for e in equalities),
        names=tuple(e.name or f"{type(e).__name__.lower()}{i}" for i, e in enumerate(equalities)),
        body_a=tuple(e.link_a if not isinstance(e, Mimic) and e.link_a in moved else "" for e in equalities),
        body_b=tuple(e.link_b if not isinstance(e, Mimic) and e.link_b in moved else "" for e in equalities),
    )


def _row(equality: Equality, topology: Topology, placed: Mapping[str, Any], where: str) -> dict[str, Any]:
    row: dict[str, Any] = {"pa": ORIGIN, "ra": IDENTITY, "pb": ORIGIN, "rb": IDENTITY, "polynomial": (0.0,) * 5}
    row["scale"] = 1.0
    if isinstance(equality, Mimic):
        row["a"] = _single(equality.joint_a, topology, where)
        row["b"] = -1 if equality.joint_b is None else _single(equality.joint_b, topology, where)
        row["polynomial"] = rigid.finite_vector(equality.polynomial, 5, f"{where}: polynomial")
        return row
    for side in ("a", "b"):
        name = getattr(equality, f"link_{side}")
        if name not in placed:
            raise ValueError(f"{where}: no link {name!r}; there are {', '.join(placed)}")
        at = placed[name]
        position, rotation = _local(equality, side, where)
        R = rigid.rotation_matrix(at.pose.quaternion)
        row[side], row[f"p{side}"] = at.link, at.pose.position + R @ position
        row[f"r{side}"] = rigid.quaternion_product(at.pose.quaternion, rotation)
    if isinstance(equality, Weld):
        row["scale"] = rigid.numbers(equality.torque_scale)
    return row


def _local(equality: Connect | Weld, side: str, where: str) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(equality, Connect):
        return rigid.finite_vector(getattr(equality, f"point_{side}"), 3, f"{where}: point_{side}"), np.array(IDENTITY)
    position = rigid.finite_vector(getattr(equality, f"position_{side}"), 3, f"{where}: position_{side}")
    rotation = rigid.finite_vector(getattr(equality, f"rotation_{side}"), 4, f"{where}: rotation_{side}")
    if not rigid.is_traced(rotation) and not np.any(rotation):
        raise ValueError(f"{where}: rotation_{side} (quaternion wxyz) must not be zero")
    return position, rotation


def _single(joint: str, topology: Topology, where: str) -> int:
    if joint not in topology.joint_names:
        raise ValueError(f"{where}: no joint {joint!r}; there are {', '.join(topology.joint_names)}")
    link = topology.joint(joint)
    if topology.kind[link] not in ("revolute", "prismatic"):
        raise ValueError(f"{where}: joint {joint!r} must be revolute or prismatic, it is {topology.kind[link]}")
    return link
