"""What the networks of a fitted simulator learned: their output over the states that were recorded."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.fit import Fit
from knuckle.tap_list import list_taps
from knuckle.taps import CATALOGUE, Augment
from knuckle.taps.augment import Value

MOST_STATES, POINTS = 400, 81
RANGE = (1.0, 99.0)  # percent of the recorded values that a curve spans


class Curve(NamedTuple):
    """Output of a network at one joint against that joint's own velocity, other joints at rest."""

    joint: str
    speed: np.ndarray
    output: np.ndarray  # at the coordinates in the middle of the recorded ones
    lowest: np.ndarray  # over the recorded coordinates
    highest: np.ndarray


class Learned(NamedTuple):
    """One network: where it acts, how much it does over the recorded states, and its curves if it has any."""

    tap: str
    network: str
    mode: str
    inputs: tuple[str, ...]
    numbers: int
    unit: str
    size: float | None  # root mean square of its output; None: it reads more than coordinates and velocities
    curves: list[Curve]


def learned(fit: Fit) -> list[Learned]:
    """What each network of a fit's blueprint does; networks that read only q and qd are evaluated."""
    with jax.enable_x64(True):
        return [] if fit.blueprint is None else [_of(fit, tap, augment) for tap, _, augment in fit.blueprint]


def added_shape(model: Model, tap: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of what is added to a quantity of this shape: coordinates with quaternions are moved in tangent space."""
    return {"q": (model.nv,), "next/q": (model.nv,), "next/state": (2 * model.nv,)}.get(tap, shape)


def _of(fit: Fit, tap: str, augment: Augment) -> Learned:
    count = sum(int(np.size(leaf)) for leaf in jax.tree.leaves((augment.weights, augment.gain)))
    unit = CATALOGUE[tap].unit if augment.mode != "scale" else "share"
    about = (tap, type(augment.network).__name__, augment.mode, augment.inputs, count, unit)
    if not set(augment.inputs) <= {"q", "qd"} or augment.is_recurrent:
        return Learned(*about, None, [])
    shape = list_taps(fit.model, contact=fit.contact)[tap].shape
    shape = added_shape(fit.model, tap, shape) if augment.mode == "add" else shape

    def output(q, qd):
        given = {"q": Value(q, "coordinate"), "qd": Value(qd, "dof")}
        y, _ = augment.output([given[name] for name in augment.inputs], CATALOGUE[tap].axis, shape, None)
        y = y if augment.gain is None else augment.gain * y
        return y.reshape(-1)

    outputs = jax.jit(jax.vmap(output))
    q, qd = visited(fit)
    size = float(np.sqrt(np.mean(np.asarray(outputs(q, qd)) ** 2)))
    by_joint = CATALOGUE[tap].axis == "dof" and augment.rows is None
    return Learned(*about, size, _curves(fit, outputs, q, qd) if by_joint else [])


def _curves(fit: Fit, outputs, q: np.ndarray, qd: np.ndarray) -> list[Curve]:
    topology, found = fit.model.topology, []
    places = q[np.linspace(0, len(q) - 1, min(len(q), 25)).astype(int)]
    middle = q[np.argmin(np.sum((q - np.median(q, axis=0)) ** 2, axis=1))]
    for k in range(fit.model.nv):
        low, high = np.percentile(qd[:, k], RANGE)
        speed = np.linspace(low, high, POINTS)
        rows = np.zeros((POINTS, fit.model.nv))
        rows[:, k] = speed
        over = np.stack([np.asarray(outputs(jnp.tile(at, (POINTS, 1)), rows))[:, k] for at in (middle, *places)])
        link = int(topology.dof_link[k])
        several = int(topology.v_stop[link]) - int(topology.v_start[link]) > 1
        name = topology.joint_names[link] + (f"[{k - int(topology.v_start[link])}]" if several else "")
        found.append(Curve(name, speed, over[0], over.min(axis=0), over.max(axis=0)))
    return found


def visited(fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates and velocities as recorded, velocities by differences if they were not; else where pieces start."""
    shots, model = fit.shots, fit.model
    if "q" not in shots.measured or model.nq != model.nv:
        return np.asarray(shots.q), np.asarray(shots.qd)
    q = np.asarray(shots.measured["q"])
    qd = np.asarray(shots.measured["qd"]) if "qd" in shots.measured else np.gradient(q, shots.period, axis=1)
    there = np.all(np.asarray(shots.weight["q"]) > 0, axis=-1)
    q, qd = q[there], qd[there]
    chosen = np.linspace(0, len(q) - 1, min(len(q), MOST_STATES)).astype(int)
    return q[chosen], qd[chosen]
