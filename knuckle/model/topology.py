"""What of a model is not a number: names, kinds, who hangs on whom, and where coordinates stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from knuckle.model.description import JointKind
from knuckle.tree import Tree

COORDINATES: dict[JointKind, int] = {"revolute": 1, "prismatic": 1, "planar": 3, "ball": 4, "free": 7}
FREEDOMS: dict[JointKind, int] = {"revolute": 1, "prismatic": 1, "planar": 3, "ball": 3, "free": 6}


@dataclass(frozen=True)
class Ground:
    """A mocap body, or a body or frame that hangs on one without joints."""

    name: str
    parent: str  # the body that it hangs on, or the world
    mocap: bool = False
    carries_joint: bool = False  # whether a link hangs on it by a joint


@dataclass(frozen=True)
class Topology:
    """Links in depth-first order, each with one joint; a body with several joints has links without mass before it."""

    name: str
    parent: tuple[int, ...]  # of each link; -1 is the world
    kind: tuple[JointKind, ...]
    link_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    excludes: tuple[tuple[str, str], ...] = ()
    keyframes: tuple[tuple[str, tuple[float, ...]], ...] = ()
    keyframe_velocities: tuple[tuple[str, tuple[float, ...]], ...] = ()  # of those that move
    keyframe_controls: tuple[tuple[str, tuple[float, ...]], ...] = ()  # of those that give them
    limited: tuple[int, ...] = ()  # degrees of freedom that were described with a limit
    rubbing: tuple[int, ...] = ()  # and with dry friction
    weightless_tips: bool = False  # whether a joint was described that moves no mass
    timestep: float | None = None  # that the file asks for [s]; None: it asks for none
    integrator: str | None = None  # that the file asks for, in MuJoCo's words
    self_collision: bool = False  # whether links of one tree touch each other by default
    parents_collide: bool = False  # whether a link and its parent touch, where links of one tree do
    ground: tuple[Ground, ...] = ()  # what mocap bodies move, parents first
    prescribed: tuple[int, ...] = ()  # degrees of freedom that follow a path: impulses do not move them
    ground_mass: float = field(default=0.0, compare=False)  # of what is welded to the world [kg]; moves nothing

    def __hash__(self):
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.parent, self.kind, self.link_names, self.joint_names))

    @cached_property
    def links(self) -> Tree:
        return Tree(self.parent)

    @cached_property
    def dofs(self) -> Tree:
        """Degrees of freedom, one after the other within a joint, then along the links."""
        parent = []
        for link, up in enumerate(self.parent):
            before = int(self.v_stop[up]) - 1 if up >= 0 else -1
            for dof in range(int(self.v_start[link]), int(self.v_stop[link])):
                parent.append(before)
                before = dof
        return Tree(tuple(parent))

    @cached_property
    def q_start(self) -> np.ndarray:
        return np.cumsum([0, *(COORDINATES[k] for k in self.kind)])[:-1]

    @cached_property
    def v_start(self) -> np.ndarray:
        return np.cumsum([0, *(FREEDOMS[k] for k in self.kind)])[:-1]

    @cached_property
    def v_stop(self) -> np.ndarray:
        return np.cumsum([0, *(FREEDOMS[k] for k in self.kind)])[1:]

    @cached_property
    def nq(self) -> int:
        return sum(COORDINATES[k] for k in self.kind)

    @cached_property
    def nv(self) -> int:
        return sum(FREEDOMS[k] for k in self.kind)

    @cached_property
    def dof_link(self) -> np.ndarray:
        """The link that each degree of freedom moves."""
        return np.repeat(np.arange(len(self.kind)), [FREEDOMS[k] for k in self.kind])

    @cached_property
    def dof_follows_parent(self) -> np.ndarray:
        """Whether a degree of freedom's axis is fixed in the parent (translations of free and planar joints)."""
        marks = {"free": [True] * 3 + [False] * 3, "planar": [True, True, False]}
        return np.array([m for k in self.kind for m in marks.get(k, [False] * FREEDOMS[k])], bool)

    @cached_property
    def last_dof(self) -> np.ndarray:
        """Whether a degree of freedom is the last of its link, the one that carries its inertia."""
        return np.isin(np.arange(self.nv), self.v_stop - 1)

    @cached_property
    def is_prescribed(self) -> np.ndarray:
        """Whether each degree of freedom follows a path."""
        return np.isin(np.arange(self.nv), self.prescribed)

    @cached_property
    def is_driven(self) -> np.ndarray:
        """Whether each link moves by prescribed joints only, so that no impulse moves it."""
        moves = self.links.ancestors[self.dof_link[~self.is_prescribed]]
        return np.logical_not(np.any(moves, axis=0))

    @cached_property
    def mocap(self) -> tuple[str, ...]:
        """Bodies on the world that were described as moved from outside."""
        return tuple(body.name for body in self.ground if body.mocap)

    def standing_on(self, body: str) -> frozenset[str]:
        """A mocap body, and the bodies and frames that hang on it without joints."""
        found = {body}
        for other in self.ground:
            if other.parent in found:
                found.add(other.name)
        return frozenset(found)

    def displacement(self, q: np.ndarray) -> np.ndarray:
        """Coordinates as a tangent vector from zero, as actuators measure them: a free joint has no length."""
        q, moved = np.asarray(q, float), np.zeros(self.nv)
        for kind in ("revolute", "prismatic", "planar"):
            moved[self.v_index(kind)] = q[self.q_index(kind)]
        for at, to in zip(self.q_index("ball"), self.v_index("ball"), strict=True):
            w, axis = q[at[0]], q[at[1:]]
            sine = np.linalg.norm(axis)
            angle = 2 * np.arctan2(np.copysign(sine, w), np.abs(w))
            moved[to] = angle * axis / sine if sine > 0 else 0.0
        return moved

    def of_kind(self, *kinds: JointKind) -> np.ndarray:
        """The links whose joint is of one of these kinds."""
        return np.array([i for i, k in enumerate(self.kind) if k in kinds], int)

    def q_index(self, kind: JointKind) -> np.ndarray:
        """Coordinates of all joints of a kind, one row per joint."""
        return self.q_start[self.of_kind(kind)][:, None] + np.arange(COORDINATES[kind])

    def v_index(self, kind: JointKind) -> np.ndarray:
        """Degrees of freedom of all joints of a kind, one row per joint."""
        return self.v_start[self.of_kind(kind)][:, None] + np.arange(FREEDOMS[kind])

    def link(self, name: str) -> int:
        return _find(name, self.link_names, "link")

    def joint(self, name: str) -> int:
        return _find(name, self.joint_names, "joint")


def _find(name: str, names: tuple[str, ...], what: str) -> int:
    if name not in names:
        raise ValueError(f"no {what} {name!r}; there are {', '.join(names) or 'none'}")
    return names.index(name)
