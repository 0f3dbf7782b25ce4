"""What a judge needs to know of each step beside its outcome: masses, Jacobians and the motion without contact."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from contact_scenes.draw import Scene
from knuckle import native
from knuckle.contact.nearest import Nearest
from knuckle.contact.rows import contact_jacobian, inverse_masses, world_axes
from knuckle.dynamics.crba import crba
from knuckle.kinematics import articulation, poses
from knuckle.model.joints import retract

STEPS = 40


class Record(NamedTuple):
    """A scene's steps as arrays of NumPy, one row each."""

    q: np.ndarray  # after each step
    before: np.ndarray  # joint speeds before each step
    after: np.ndarray
    free: np.ndarray  # joint speeds after the step if nothing touched
    M: np.ndarray
    J: np.ndarray  # contact rows
    inverse_mass: np.ndarray  # per contact
    J_tie: np.ndarray  # rows of the points that are held in the world
    tie_error: np.ndarray  # how far they are from where they are held [m]
    q_before: np.ndarray
    outcome: Any  # `Outcome` of arrays of NumPy


def run(scene: Scene) -> kn.Trajectory:
    start = kn.State(scene.q, scene.qd)
    return kn.rollout(scene.model, start, dt=scene.dt, steps=STEPS, contact=scene.contact, native=True)


@native.jit
def _masses(model: kn.Model, q, qd, dt, contacts, frame):
    """Per step: the free velocity, the mass matrix and the Jacobians, by other routes than the solver's."""

    smooth = eqx.tree_at(lambda m: m.friction, model, jnp.zeros_like(model.friction))  # rows stand for dry friction

    def one(at):
        q, qd, contacts, frame = at
        free = kn.step(smooth, kn.State(q, qd), dt=dt, contact=None).qd
        axes = world_axes(model, articulation(model, q))
        J = contact_jacobian(model, axes, contacts, frame, Nearest(None)).reshape(-1, model.nv)
        tie, J_tie = tie_errors(model, q), jax.jacfwd(lambda x: tie_errors(model, retract(model, q, x)))
        return free, crba(model, q), J, inverse_masses(model, contacts), J_tie(jnp.zeros(model.nv)), tie

    return jax.lax.map(one, (q, qd, contacts, frame))


def tie_errors(model: kn.Model, q) -> jax.Array:
    """Where points stand against those of the world that they are connected to [m], one after another."""
    ties, pose = model.equalities, poses(model, q)
    assert all(kind == "connect" and b < 0 for kind, b in zip(ties.kind, ties.b, strict=True))
    apart = [
        pose.position[link] + pose.rotation[link] @ ties.position_a[k] - ties.position_b[k]
        for k, link in enumerate(ties.a)
    ]
    return jnp.concatenate([jnp.zeros(0), *apart])


def record(scene: Scene, trajectory: kn.Trajectory) -> Record:
    q, qd = np.asarray(trajectory.q), np.asarray(trajectory.qd)
    q_before, before = np.concatenate([scene.q[None], q[:-1]]), np.concatenate([scene.qd[None], qd[:-1]])
    outcome: Any = trajectory.contact
    found = _masses(scene.model, q_before, before, scene.dt, outcome.contacts, outcome.frame)
    free, *others = (np.asarray(x) for x in found)
    return Record(q, before, qd, free, *others, q_before=q_before, outcome=jax.tree.map(np.asarray, outcome))
