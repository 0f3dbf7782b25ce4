"""What packed contacts push: links of trees, links that touch each other, or all joints as if they were one body.

Each has carriers with velocities of `width` coordinates. X of a contact are its velocities per velocity of the carriers
of its sides; a contact with what does not move has one side. Other rows are of one degree of freedom each.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from knuckle import spatial
from knuckle.contact.coupling import Coupling, Rows, joined
from knuckle.contact.coupling_graph import (
    Equations,
    GraphSpace,
    LinkMotion,
    Points,
    forces_at,
    stiffness_between,
)
from knuckle.contact.coupling_joint import JointPoints, JointSpace
from knuckle.contact.coupling_tree import Motion, TreeSpace, diagonal_at, inverse_inertias, stiffness_at_link, swept
from knuckle.contact.laws import over_blocks
from knuckle.dynamics.aba import half_solve, solve_mass_matrix
from knuckle.kinematics import Poses
from knuckle.tree import rows

GROUP = 8  # contacts of one turn of a loop
LEAST_ROWS = 11  # native code keeps arrays of this many carriers in memory

Carriers = Float[Array, "row width"]
Moving = Float[Array, "row 9"]  # angular and linear velocity, world axes, and the point that moves so
Maps = Float[Array, "side axis width"]
SideRows = Int[Array, " side"]
LaneRows = Int[Array, "lane side"]


class Moved(NamedTuple):
    """Velocities of the carriers, of the rows that are no contacts, and of all joints."""

    carrier: Carriers
    joints: Rows
    v: Float[Array, " dof"]


class PackedSpace:
    """The coupling of a step as loops over packed contacts use it."""

    width: ClassVar[int] = 6
    row_of: Int[Array, "contact side"]  # the carriers of each contact
    rows: int  # of arrays over the carriers, some perhaps unused
    nv: int  # degrees of freedom of the model
    dtype: Any

    @abstractmethod
    def X_of(self, number: Int[Array, ""]) -> Maps: ...

    @abstractmethod
    def own(self, X: Maps, row: SideRows) -> Float[Array, " axis"]:
        """Velocity of each row of a contact per impulse on it [1/kg]."""

    @abstractmethod
    def joint_own(self) -> Rows:
        """The same of the other rows."""

    @abstractmethod
    def carriers_at(self, v: Float[Array, " dof"]) -> Carriers:
        """Velocities of the carriers at velocities of the joints."""

    @abstractmethod
    def moving(self, carrier: Carriers) -> Moving:
        """How the carriers' links move in the world."""

    @abstractmethod
    def opening(self, moving: Moving) -> Float[Array, " contact"]:
        """Normal velocities of all contacts."""

    @abstractmethod
    def opening_at(self, moving: Moving, number: Int[Array, ""]) -> Float[Array, ""]:
        """That of one contact."""

    @abstractmethod
    def response(self, force: Carriers, r: Rows) -> Moved:
        """To impulses on the carriers and of the other rows."""

    def plan(self, number: Int[Array, " slot"], used: Int[Array, ""]) -> Any:
        """How Newton's steps among the packed contacts are solved, if that depends on them."""
        return None

    @abstractmethod
    def equations(self, plan: Any, K: Rows) -> tuple[Any, Any]:
        """Newton's step with springs K on the other rows, and its sums over contacts before any is added."""

    @abstractmethod
    def part(self, X: Maps, K: Float[Array, "axis axis"], g: Float[Array, " axis"]) -> Any:
        """What one contact adds to the sums."""

    @abstractmethod
    def add(self, equations: Any, sums: Any, row: LaneRows, part: Any) -> Any:
        """The sums with the contacts of one more group."""

    @abstractmethod
    def solve(self, equations: Any, sums: Any, g: Rows) -> Moved: ...

    def no_force(self) -> Float[Array, "... width"]:
        return jnp.zeros((self.rows, self.width), self.dtype)

    def add_force(
        self, sums: Float[Array, "... width"], row: LaneRows, force: Float[Array, "lane side width"]
    ) -> Array:
        for side in range(row.shape[1]):
            sums = sums.at[row[:, side]].add(force[:, side], mode="clip")
        return sums

    def force(self, sums: Float[Array, "... width"]) -> Carriers:
        """By carrier, once all groups are added."""
        return sums


class Links(PackedSpace):
    """Contacts with what does not move: sums over the contacts of each link, and one sweep along the tree."""

    def __init__(self, coupling: TreeSpace):
        self.coupling, self.dtype = coupling, coupling.factor.S.dtype
        self.nv = len(coupling.dofs.parent)
        self.dofs, row = np.unique(np.array(coupling.fixed_carrier, int), return_inverse=True)
        self.fixed_row = row.reshape(-1).astype(np.int32)
        self.row_of = jnp.asarray(self.fixed_row)[:, None]
        if coupling.carrier is not None:
            table = np.zeros(len(coupling.dofs.parent), np.int32)
            table[self.dofs] = np.arange(len(self.dofs))
            self.row_of = jnp.asarray(table)[coupling.carrier][:, None]
        self.rows = max(len(self.dofs), LEAST_ROWS)
        L, self.joint_inverse = coupling.inverse_inertias()
        self.inverse = self._picked(L)

    def X_of(self, number):
        return self.coupling.maps_at(_one_of(self.coupling.points, number))

    def carriers_at(self, v):
        return self._picked(self.coupling.dof_velocities(v))

    def own(self, X, row):
        return diagonal_at(X, jnp.take(self.inverse, row, axis=0, mode="clip"))[0]

    def joint_own(self):
        return self.coupling.of_joints(self.joint_inverse)

    def moving(self, carrier):
        root = np.zeros(self.rows, int)
        root[: len(self.dofs)] = self.coupling.dofs.root_of[self.dofs]
        return _in_world(rows(self.coupling.roots, root), carrier)

    def opening(self, moving):
        coupling, points = self.coupling, self.coupling.points
        at = self.fixed_row if coupling.carrier is None else self.row_of[:, 0]
        return (
            over_blocks(_opening, points.point, points.frame[:, 0], jnp.take(moving, at, axis=0, mode="clip"))
            * points.sign
        )

    def opening_at(self, moving, number):
        at, row = _one_of(self.coupling.points, number), jnp.take(self.row_of, number, axis=0, mode="clip")
        return (_opening(at.point, at.frame[:, 0], jnp.take(moving, row, axis=0, mode="clip")) * at.sign)[0]

    def response(self, force, r):
        S, U, D_inverse = self.coupling.factor
        on_joints = self.coupling.onto_joints(r)
        return self._moved(swept(self.coupling.dofs, S, U, U, D_inverse, self._on_dofs(force), on_joints))

    def equations(self, plan, K):
        return K, jnp.zeros((self.rows, 42), self.dtype)

    def part(self, X, K, g):
        return jnp.concatenate([stiffness_at_link(X, K[None]).reshape(-1), spatial.apply_transpose(X[0], g)])

    def add(self, equations, sums, row, part):
        return sums.at[row[:, 0]].add(part, mode="clip")

    def solve(self, equations, sums, g):
        coupling, on_dofs = self.coupling, self._on_dofs(sums)
        factors = coupling.sprung(on_dofs[:, :36].reshape(-1, 6, 6), coupling.onto_joints(equations))
        forces = {"force": on_dofs[:, 36:], "joint_force": coupling.onto_joints(g)}
        return self._moved(swept(coupling.dofs, coupling.factor.S, *factors, **forces))

    def _moved(self, motion: Motion) -> Moved:
        return Moved(self._picked(motion.link), self.coupling.of_joints(motion.joint), motion.joint)

    def _picked(self, per_dof: Float[Array, "dof ..."]) -> Float[Array, "row ..."]:
        """Of the degrees of freedom that move links with contacts; zero in rows that are left over."""
        picked = per_dof[self.dofs]
        return jnp.pad(picked, ((0, self.rows - len(picked)), *((0, 0),) * (picked.ndim - 1)))

    def _on_dofs(self, per_row: Float[Array, "row ..."]) -> Float[Array, "dof ..."]:
        everywhere = jnp.zeros((len(self.coupling.dofs.parent), *per_row.shape[1:]), per_row.dtype)
        return everywhere.at[self.dofs].set(per_row[: len(self.dofs)])


class TouchingLinks(PackedSpace):
    """Contacts between links: blocks of links, eliminated in an order that is found for the packed contacts."""

    def __init__(self, coupling: GraphSpace):
        self.coupling, self.dtype = coupling, coupling.factor.S.dtype
        self.row_of, self.rows, self.nv = coupling.link, len(coupling.inertia) + 1, coupling.topology.nv
        L, self.joint_inverse = inverse_inertias(coupling.topology.dofs, coupling.factor)
        self.inverse = coupling.at_links(L)

    def X_of(self, number):
        return self.coupling.sides(_one_of(self.coupling.points, number))[0]

    def carriers_at(self, v):
        return self.coupling.link_velocities(v)

    def own(self, X, row):
        return self.coupling.diagonal_at(X[None], row[None], self.inverse)[0]

    def joint_own(self):
        return self.coupling.of_joints(self.joint_inverse)

    def moving(self, carrier):
        return _in_world(self.coupling.root, carrier)

    def opening(self, moving):
        return _opening_between(self.coupling.points, moving)

    def opening_at(self, moving, number):
        return _opening_between(_one_of(self.coupling.points, number), moving)[0]

    def response(self, force, r):
        return self._moved(self.coupling.response(force, r))

    def plan(self, number, used):
        is_used = jnp.arange(len(number), dtype=jnp.int32) < used
        link = jnp.take(self.row_of, number, axis=0, mode="clip")
        return self.coupling.plan(jnp.where(is_used[:, None], link, jnp.asarray(self.rows - 1, link.dtype)), used)

    def equations(self, plan, K):
        equations = self.coupling.equations(plan, [part[:, :, None] for part in K])
        return equations, equations.start()

    def part(self, X, K, g):
        return stiffness_between(X[None], K[None])[0], forces_at(X[None], g[None])[0]

    def add(self, equations: Equations, sums, row, part):
        return equations.add(sums, row, *part)

    def solve(self, equations: Equations, sums, g):
        return self._moved(equations.solve(sums, g))

    def _moved(self, motion: LinkMotion) -> Moved:
        return Moved(motion.link, self.coupling.of_joints(motion.joint), motion.joint)


class Joints(PackedSpace):
    """One carrier: all degrees of freedom."""

    rows = 1

    def __init__(self, coupling: JointSpace):
        (count, _), *others = coupling.layout
        self.coupling, self.J, self.dtype = coupling, coupling.joint, coupling.joint.dtype
        self.row_of, self.counts = jnp.zeros((count, 1), jnp.int32), tuple(own for own, _ in others)
        self.width = self.nv = coupling.joint.shape[1]  # type: ignore[misc]

    def X_of(self, number):
        return self.coupling.maps_at(_one_of(self.coupling.points, number))

    def carriers_at(self, v):
        return v[None]

    def own(self, X, row):
        return jnp.stack([self._own(x) for x in X[0]])

    def joint_own(self):
        return self._split(jnp.stack([self._own(row) for row in self.J]) if len(self.J) else jnp.zeros(0, self.dtype))

    def moving(self, carrier):
        axes, topology = self.coupling.axes, self.coupling.topology
        moving = jnp.concatenate([axes.angular, axes.linear], axis=1) * carrier[0][:, None]
        moves = topology.links.ancestors[topology.dof_link].T.astype(float)  # link by degree of freedom
        of_links = spatial.compose(jnp.asarray(moves, self.dtype), moving)
        origin = rows(self.coupling.root.position, topology.links.root_of)
        return jnp.pad(jnp.concatenate([of_links, origin], axis=1), ((0, 1), (0, 0)))

    def opening(self, moving):
        return _opening_between(self.coupling.points, moving)

    def opening_at(self, moving, number):
        return _opening_between(_one_of(self.coupling.points, number), moving)[0]

    def response(self, force, r):
        v = jnp.asarray(solve_mass_matrix(self.coupling.dofs, self.coupling.factor, force[0] + self._onto_joints(r)))
        return self._moved(v)

    def equations(self, plan, K):
        return K, jnp.zeros((GROUP, self.width * (self.width + 1)), self.dtype)

    def part(self, X, K, g):
        return jnp.concatenate([stiffness_at_link(X, K[None]).reshape(-1), spatial.apply_transpose(X[0], g)])

    def add(self, equations, sums, row, part):
        return sums + part

    def solve(self, equations, sums, g):
        mass, total = self.coupling.mass, jnp.sum(sums, axis=0)
        stiffness, force = total[: self.width**2].reshape(self.width, self.width), total[self.width**2 :]
        idle = jnp.where(jnp.diagonal(mass) > 0, 0.0, 1.0)  # a joint that moves nothing stays
        own = mass + stiffness + jnp.diag(idle)
        if len(self.J):
            own = own + spatial.compose(self.J.T, joined(equations)[:, None] * self.J)
        return self._moved(jnp.linalg.solve(own, force + self._onto_joints(g)))

    def no_force(self):
        return jnp.zeros((GROUP, self.width), self.dtype)

    def add_force(self, sums, row, force):
        return sums + force[:, 0]

    def force(self, sums):
        return jnp.sum(sums, axis=0)[None]

    def _moved(self, v: Float[Array, " dof"]) -> Moved:
        return Moved(v[None], self._split(spatial.apply(self.J, v)), v)

    def _own(self, row: Float[Array, " dof"]) -> Float[Array, ""]:
        half = jnp.asarray(half_solve(self.coupling.dofs, self.coupling.factor, row))
        return spatial.dot(half * half, self.coupling.factor.D_inverse)

    def _onto_joints(self, r: Rows) -> Float[Array, " dof"]:
        return spatial.apply_transpose(self.J, joined(r)) if r else jnp.zeros(self.J.shape[1], self.dtype)

    def _split(self, x: Float[Array, " row"]) -> Rows:
        ends = np.cumsum((0, *self.counts))
        return tuple(x[start:stop, None] for start, stop in pairwise(ends))


def _one_of(table: Any, number: Int[Array, ""]) -> Any:
    """One row of each array, with its axis."""
    return jax.tree.map(lambda x: jnp.take(x, number, axis=0, mode="clip")[None], table)


def _in_world(root: Poses, carrier: Carriers) -> Moving:
    """How carriers turn and move in world axes, and the point that their linear velocities belong to."""
    angular, linear = (spatial.apply(root.rotation, part) for part in (carrier[:, :3], carrier[:, 3:]))
    return jnp.concatenate([angular, linear, root.position], axis=1)


def _opening(point, normal, moving: Moving) -> Float[Array, " contact"]:
    """Velocities of points along normals."""
    angular, linear, origin = moving[:, :3], moving[:, 3:6], moving[:, 6:]
    return spatial.dot(normal, linear + spatial.cross(angular, point - origin))


def _opening_between(at: Points | JointPoints, moving: Moving) -> Float[Array, " contact"]:
    """Normal velocities of contacts of two links, the last of which is the world."""

    def along(point, normal, a: Moving, b: Moving) -> Float[Array, " contact"]:
        return _opening(point, normal, a) - _opening(point, normal, b)

    sides = (jnp.take(moving, at.link[:, side], axis=0, mode="clip") for side in (0, 1))
    return over_blocks(along, at.point, at.frame[:, 0], *sides)


def has_packed_space(coupling: Coupling) -> bool:
    one_each = isinstance(coupling, JointSpace) and all(block == 1 for _, block in coupling.layout[1:])
    return isinstance(coupling, TreeSpace | GraphSpace) or one_each


def packed_space(coupling: Coupling) -> PackedSpace:
    """The coupling for loops over packed contacts."""
    if isinstance(coupling, TreeSpace):
        return Links(coupling)
    if isinstance(coupling, GraphSpace):
        return TouchingLinks(coupling)
    assert isinstance(coupling, JointSpace)
    return Joints(coupling)
