"""The mass matrix: the composite-rigid-body algorithm (RBDA, Table 6.2), in each tree's root frame."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from knuckle import spatial
from knuckle.kinematics import Articulation, articulation
from knuckle.model.model import Model
from knuckle.tree import inward_sum, rows

Vec = Float[Array | np.ndarray, " n"]


def joint_inertias(model: Model, body: Articulation) -> Float[Array, " dof"]:
    """The diagonal of the mass matrix: what each joint moves if the others are held, armature included."""
    topology = model.topology
    composite = rows(inward_sum(topology.links, body.inertia), topology.dof_link)
    return spatial.dot(body.axes, spatial.apply(composite, body.axes)) + jnp.asarray(model.armature)


def crba(model: Model, q: Vec) -> Float[Array, "dof dof"]:
    """The joint-space mass matrix M, armature included; entries of different branches are exactly zero."""
    return mass_matrix(model, articulation(model, q))


def mass_matrix(model: Model, body: Articulation) -> Float[Array, "dof dof"]:
    """`crba` on axes and inertias that are known already."""
    topology = model.topology
    composite = inward_sum(topology.links, body.inertia)
    F = spatial.apply(rows(composite, topology.dof_link), body.axes)
    products = jnp.sum(body.axes[:, None, :] * F[None, :, :], axis=-1)  # S_i . F_j
    above = topology.dofs.ancestors  # i is j or one of its ancestors
    upper = jnp.where(above, products, jnp.zeros_like(products))
    strict = jnp.where(jnp.eye(model.nv, dtype=bool), jnp.zeros_like(upper), upper)
    return upper + strict.T + jnp.diag(jnp.asarray(model.armature))
