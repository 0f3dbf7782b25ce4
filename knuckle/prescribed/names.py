"""From names to paths: which joints and which mocap bodies follow one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from knuckle.model.model import Model
from knuckle.model.topology import COORDINATES, Topology
from knuckle.prescribed.path import AnyPath, Path, PathFunction, constant

Prescribed = Mapping[str, Any]  # Path, PathFunction, function of time, or constant coordinates
Paths = dict[str, AnyPath]


def as_paths(model: Model, prescribed: Prescribed | None) -> Paths:
    """Paths by the name of a joint or of a mocap body; numbers are constants, functions are of time."""
    if prescribed is None:
        return {}
    if not isinstance(prescribed, Mapping) or not all(isinstance(name, str) for name in prescribed):
        raise ValueError(f"prescribed must be a dict of names and paths, got {prescribed!r}")
    return {name: _as_path(model, name, prescribed[name]) for name in sorted(prescribed)}


def _as_path(model: Model, name: str, value) -> AnyPath:
    wanted = _sizes(model, name)
    try:
        path = value
        if not isinstance(value, Path | PathFunction):
            path = PathFunction(value) if callable(value) else constant(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"prescribed {name!r}: {error}") from error
    shape = jax.eval_shape(path, jax.ShapeDtypeStruct((), jnp.result_type(float))).shape
    if len(shape) != 1 or shape[0] not in wanted:
        of = "a position, or position and quaternion wxyz" if wanted == (3, 7) else "as in q"
        numbers = " or ".join(map(str, wanted))
        raise ValueError(f"prescribed {name!r}: the path must have {numbers} coordinates ({of}), got shape {shape}")
    return path


def _sizes(model: Model, name: str) -> tuple[int, ...]:
    """How many coordinates a path of this name may have."""
    topology = model.topology
    if name in topology.joint_names and name in topology.mocap:
        raise ValueError(f"prescribed {name!r}: both a joint and a mocap body have this name: rename one")
    if name in topology.joint_names:
        return (COORDINATES[topology.kind[topology.joint(name)]],)
    if name in topology.mocap:
        carrying = [b.name for b in topology.ground if b.carries_joint and b.name in topology.standing_on(name)]
        if carrying:
            raise ValueError(
                f"prescribed {name!r}: a joint hangs on body {carrying[0]!r}, and a mocap body carries none along: "
                "give the body a joint (free, planar, prismatic) and prescribe that"
            )
        return (3, 7)
    if name in model.link_names:
        joint = topology.joint_names[topology.link(name)]
        raise ValueError(f"prescribed {name!r}: this link moves by joint {joint!r}: prescribe the joint")
    if name in model.frames.names and model.frames.link[model.frames.names.index(name)] < 0:
        how = 'mocap="true" in MJCF, kn.Link(..., mocap=True) in Python'
        raise ValueError(f"prescribed {name!r}: this body on the world is not marked as a mocap body ({how})")
    there = f"joints {', '.join(topology.joint_names)}; mocap bodies {', '.join(topology.mocap) or 'none'}"
    raise ValueError(f"prescribed {name!r}: no joint or mocap body has this name; there are {there}")


def locked(model: Model, paths: Paths) -> Model:
    """The model in which impulses do not move the joints that follow paths."""
    topology = model.topology
    links = sorted(topology.joint(name) for name in paths if name in topology.joint_names)
    dofs = [int(dof) for link in links for dof in range(topology.v_start[link], topology.v_stop[link])]
    return replace(model, topology=_with_prescribed(topology, tuple(dofs))) if dofs else model


@lru_cache(maxsize=64)
def _with_prescribed(topology: Topology, dofs: tuple[int, ...]) -> Topology:
    return replace(topology, prescribed=dofs)


def check_span(paths: Paths, first, last) -> None:
    """Raise ValueError if a path ends before the steps do."""
    for name, path in paths.items():
        path.check_span(name, first, last)
