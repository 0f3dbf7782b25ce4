"""Small scenes and networks that tests of taps share."""

import equinox as eqx
import jax
import numpy as np

import knuckle as kn


class Linear(eqx.Module):
    """Any Equinox module: a matrix."""

    matrix: jax.Array

    def __call__(self, x):
        return self.matrix @ x


def sliding(model):
    return model.state(np.array([0.0, 0.0, 0.0999, 1.0, 0.0, 0.0, 0.0]), np.array([1.0, 0.5, -0.1, 0.0, 0.0, 0.0]))


def everywhere(model, contact, mode, zero_start=None):
    """A small random network at every quantity, fed by what is known from the start."""
    parts = {}
    for key, tap in zip(jax.random.split(jax.random.key(0), 99), kn.list_taps(model, contact=contact), strict=False):
        size = int(np.prod(tap.shape))
        if tap.read_only or size == 0:
            continue
        if mode == "add" and model.nq > model.nv and tap.name in ("q", "next/q", "next/state"):
            size = model.nv if tap.name != "next/state" else 2 * model.nv
        source = "q" if tap.name == "q" else "qd"
        shape = (size, model.nq if source == "q" else model.nv)
        parts[tap.name] = kn.Augment(Linear(1e-3 * jax.random.normal(key, shape)), source, mode, zero_start=zero_start)
    return kn.Blueprint(parts)
