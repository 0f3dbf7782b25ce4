"""The coupling of a scene's rows, in the space in which Newton's step is cheapest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from knuckle.contact.coupling import Coupling, Layout, RowSpace
from knuckle.contact.coupling_graph import GraphSpace, Points
from knuckle.contact.coupling_joint import JointPoints, JointSpace
from knuckle.contact.coupling_tree import TreePoints, TreeSpace
from knuckle.contact.rows import Jacobian, moved_by, world_axes
from knuckle.dynamics.aba import Factor, factor_mass_matrix
from knuckle.dynamics.crba import mass_matrix
from knuckle.kinematics import Poses
from knuckle.model.model import Model
from knuckle.tree import rows

if TYPE_CHECKING:
    from knuckle.contact.scene import Scene

FEW_ROWS = 16  # up to here a matrix of all rows is cheapest
FEW_JOINTS = 24  # up to here a dense matrix over the degrees of freedom, if links touch each other


def couple(heavy: Model, scene: Scene, *, as_matrix: bool = False) -> Coupling:
    """Without derivative; `heavy`: the model whose mass matrix impulses meet."""
    heavy, body = jax.lax.stop_gradient((heavy, scene.body))
    factor, dofs = factor_mass_matrix(heavy, body.axes, body.inertia), heavy.topology.dofs
    layout = _layout(scene)
    count = sum(blocks * block for blocks, block in layout)
    if count > FEW_ROWS and not as_matrix:
        if fits_tree(scene):
            return _on_tree(heavy, scene, factor)
        if heavy.nv > FEW_JOINTS and not scene.ties.block and not scene.present.balls:
            return _on_graph(heavy, scene, factor)
        if count > heavy.nv:
            return _on_joints(heavy, scene, factor, layout)
    return RowSpace.of(layout, dofs, factor, all_rows(heavy, scene))


def _held(heavy: Model, mass: Float[Array, "dof dof"], *rows: Float[Array, "... dof"]) -> tuple[Array, ...]:
    """The mass matrix and rows that let impulses move no joint that follows a path."""
    if not heavy.topology.prescribed:
        return mass, *rows
    moves = ~heavy.topology.is_prescribed
    own = jnp.where(moves[:, None] & moves[None, :], mass, jnp.diag(jnp.diagonal(mass)))
    return own, *(jnp.where(moves.reshape((1,) * (J.ndim - 1) + (-1,)), J, jnp.zeros_like(J)) for J in rows)


def _layout(scene: Scene) -> Layout:
    """Contacts, then limits, equalities and joint friction, if there are any."""
    joints = (len(scene.limits.J), len(scene.ties.J), len(scene.rubbing))
    contacts = scene.near.count(len(scene.contacts)), scene.contact_rows
    return (contacts, *((count, 1) for count in joints if count))


def all_rows(heavy: Model, scene: Scene) -> Jacobian:
    """Velocities of all rows that are solved per joint speed, without derivative."""
    contact, joint = _rows_apart(heavy, scene)
    return jnp.concatenate([contact.reshape(-1, heavy.nv), joint])


def _rows_apart(heavy: Model, scene: Scene) -> tuple[Float[Array, "near axis dof"], Jacobian]:
    """Those of the contacts, and the others."""
    model, body, contacts, J_joint = jax.lax.stop_gradient((heavy, scene.body, scene.contacts, scene.J_joint))
    frame, turning, picked = jax.lax.stop_gradient((scene.frame, scene.turning, scene.picked_frame))
    fixed = scene._replace(body=body, contacts=contacts, frame=frame, turning=turning, picked_frame=picked)
    return fixed.jacobian(model, world_axes(model, body)), J_joint


def _on_joints(heavy: Model, scene: Scene, factor: Factor, layout: Layout) -> JointSpace:
    topology, near, contacts = heavy.topology, scene.near, scene.contacts
    body, point, frame, turning, J_joint = jax.lax.stop_gradient(
        (scene.body, near.pick(contacts.point), scene.near_frame, scene.turning, scene.J_joint)
    )
    moves = moved_by(heavy, contacts.link_a) - moved_by(heavy, contacts.link_b)
    if topology.prescribed:
        moves = np.where(topology.is_prescribed, 0.0, moves)
    mass, joint = _held(heavy, mass_matrix(heavy, body), J_joint)
    return JointSpace(
        points=JointPoints(
            _links(scene, len(topology.parent)),
            jnp.asarray(near.pick_fixed(moves, frame.dtype)),
            point,
            frame,
            None if turning is None else near.pick(turning),
        ),
        axes=world_axes(heavy, body),
        root=body.root,
        joint=joint,
        mass=mass,
        factor=factor,
        layout=layout,
        topology=topology,
    )


def _links(scene: Scene, world: int) -> Int[Array, "near side"]:
    """The links of the sides of contacts that are solved; `world` is what does not move."""
    links = np.array([scene.contacts.link_a, scene.contacts.link_b], int).T
    return scene.near.pick(jnp.asarray(np.where(links < 0, world, links).astype(np.int32)))


def fits_tree(scene: Scene) -> bool:
    """Whether every contact is with something fixed, and every other row is of one degree of freedom."""
    return scene.contacts.are_with_fixed and not scene.ties.block and not scene.present.balls


def _on_tree(heavy: Model, scene: Scene, factor: Factor) -> TreeSpace:
    topology = heavy.topology
    near = scene.near
    armature, body, point, frame, turning = jax.lax.stop_gradient(
        (jnp.asarray(heavy.armature), scene.body, near.pick(scene.contacts.point), scene.near_frame, scene.turning)
    )
    if topology.prescribed:
        armature = jnp.where(topology.is_prescribed, jnp.inf, armature)  # 1/D = 0
    moving = np.maximum(scene.contacts.link_a, scene.contacts.link_b).astype(int)
    sign = np.where(np.array(scene.contacts.link_a, int) >= 0, 1.0, -1.0)
    root = near.pick_fixed(topology.links.root_of[moving], np.int32)
    forwards, index = near.pick_fixed(sign, frame.dtype), near.index
    own_turning = None if turning is None else near.pick(turning)
    carrier = (topology.v_stop - 1)[moving]
    inertia = rows(body.inertia, topology.dof_link)
    return TreeSpace(
        points=TreePoints(jnp.asarray(root), point, frame, jnp.asarray(forwards), own_turning),
        roots=body.root,
        factor=factor,
        inertia=jnp.where(topology.last_dof[:, None, None], inertia, jnp.zeros_like(inertia)),
        armature=armature,
        carrier=None if index is None else jnp.asarray(carrier.astype(np.int32))[index],
        fixed_carrier=tuple(int(dof) for dof in carrier),
        joints=tuple(own for own in (scene.present.limited, scene.present.rubbing) if own),
        dofs=topology.dofs,
        weightless_tips=topology.weightless_tips,
    )


def _on_graph(heavy: Model, scene: Scene, factor: Factor) -> GraphSpace:
    topology, near, world = heavy.topology, scene.near, len(heavy.topology.parent)
    armature, body, point, frame, turning = jax.lax.stop_gradient(
        (jnp.asarray(heavy.armature), scene.body, near.pick(scene.contacts.point), scene.near_frame, scene.turning)
    )
    links = np.array([scene.contacts.link_a, scene.contacts.link_b], int).T
    R, p = rows(body.root, topology.links.root_of)
    root = np.append(topology.links.root_of, -1)[links]
    return GraphSpace(
        points=Points(_links(scene, world), point, frame, None if turning is None else near.pick(turning)),
        root=Poses(*(jnp.concatenate([x, jnp.zeros_like(x[:1])]) for x in (R, p))),
        factor=factor,
        inertia=body.inertia,
        armature=armature,
        joints=tuple(own for own in (scene.present.limited, scene.present.rubbing) if own),
        topology=topology,
        within_trees=bool(np.any((root[:, 0] == root[:, 1]) & (links.min(axis=1) >= 0))),
    )
