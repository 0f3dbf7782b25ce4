"""Gradients of a few steps of a scene: finite, wherever the steps are solved."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from contact_scenes.draw import CATEGORIES, Scene
from knuckle import native

STEPS = 5
SAMPLED = (
    ("box", "newton"),
    ("box", "compliant"),
    ("box", "smooth"),
    ("two spheres", "passive"),
    ("hinged box", "newton"),
)
assert set(SAMPLED) <= set(CATEGORIES)


def _end(free, model: kn.Model, dt, contact):
    """Coordinates and speeds after a few steps, weighted, as a function of the start, masses, sizes and friction."""
    q, qd, mass, size, friction = free
    places = lambda m: (m.inertia.mass, m.geometry.size, m.geometry.friction)  # noqa: E731
    model = eqx.tree_at(places, model, (mass, size, friction))
    run: Any = kn.rollout(model, kn.State(q, qd), dt=dt, steps=STEPS, contact=contact)
    last = jnp.concatenate([run.q[-1], run.qd[-1]])
    return jnp.sum(last * jnp.cos(jnp.arange(last.size).astype(last.dtype))), run.contact.converged


_value_and_grad = native.jit(jax.value_and_grad(_end, has_aux=True))


def gradient_is_finite(scene: Scene) -> bool:
    """Whether all entries are, or a step was marked as not solved."""
    model = scene.model
    free = scene.q, scene.qd, model.inertia.mass, model.geometry.size, model.geometry.friction
    free = tuple(np.asarray(x, float) for x in free)
    (value, solved), slopes = _value_and_grad(free, model, scene.dt, scene.contact)
    finite = all(np.all(np.isfinite(x)) for x in (value, *jax.tree.leaves(slopes)))
    return bool(finite or not np.all(solved))
