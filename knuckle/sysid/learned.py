"""What the networks of a fitted simulator learned: curves over the states that were recorded, and what they change."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.acting import Acted, Series, acting
from knuckle.sysid.entries import dimensions, unit_at
from knuckle.sysid.fit import Fit
from knuckle.sysid.regression.networks import network_forces
from knuckle.sysid.regression.result import Regression
from knuckle.tap_list import list_taps
from knuckle.taps import Augment, Blueprint, meaning_of
from knuckle.taps.augment import Value

MOST_STATES, POINTS = 400, 81
RANGE = (1.0, 99.0)  # percent of the recorded values that a curve spans


class Curve(NamedTuple):
    """Output of a network at one joint against that joint's own velocity, other joints stationary."""

    joint: str
    unit: str  # of the output
    speed_unit: str
    speed: np.ndarray
    output: np.ndarray  # at the coordinates in the middle of the recorded ones
    lowest: np.ndarray  # over the recorded coordinates
    highest: np.ndarray


class Learned(NamedTuple):
    """One network: where it acts, how much it does along the recorded motion, and its curves or what it changes."""

    tap: str
    network: str
    mode: str
    inputs: tuple[str, ...]
    numbers: int
    unit: str  # of the quantity; curves of a network that scales are shares of it
    size: float  # root mean square of what it changes, over all entries
    without: float  # of the quantity without it
    entries: int
    changed: int  # entries on which it has any effect
    curves: list[Curve]  # at joints, where it reads coordinates and velocities only
    series: list[Series]  # elsewhere: the entries that it changes most


def learned(fit: Fit) -> list[Learned]:
    """What each network of a fit's blueprint does along the fitted motion of some pieces."""
    if fit.blueprint is None:
        return []
    with jax.enable_x64(True):
        acted = acting(fit)
        return [_of(fit, tap, augment, acted[tap, place]) for tap, place, augment in fit.blueprint]


def added_shape(model: Model, tap: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of what is added to a quantity of this shape: coordinates with quaternions are moved in tangent space."""
    return {"q": (model.nv,), "next/q": (model.nv,), "next/state": (2 * model.nv,)}.get(tap, shape)


def _of(fit: Fit, tap: str, augment: Augment, acted: Acted) -> Learned:
    count = sum(int(np.size(leaf)) for leaf in jax.tree.leaves((augment.weights, augment.gain)))
    names = type(augment.network).__name__, augment.mode, augment.inputs
    about = (tap, *names, count, unit_of_tap(fit.model, tap), *acted[:4])
    of_state = set(augment.inputs) <= {"q", "qd"} and not augment.is_recurrent
    if not of_state or meaning_of(tap).axis != "dof" or augment.rows is not None:
        return Learned(*about, [], acted.series)
    shape = list_taps(fit.model, contact=fit.contact)[tap].shape

    def output(q, qd):
        given = {"q": Value(q, "coordinate"), "qd": Value(qd, "dof")}
        y, _ = augment.output([given[name] for name in augment.inputs], meaning_of(tap).axis, shape, None)
        y = y if augment.gain is None else augment.gain * y
        return y.reshape(-1)

    return Learned(*about, _curves(fit.model, meaning_of(tap).unit, jax.jit(jax.vmap(output)), *visited(fit)), [])


def learned_on_torques(found: Regression) -> list[Learned]:
    """What networks that were trained on residual torques do along the recorded motion, beside the efforts."""
    networks = found.layout.networks
    if networks is None:
        return []
    stretches = found.problem.design.stretches
    q, qd, effort = (np.concatenate([getattr(s, key) for s in stretches]) for key in ("coordinates", "qd", "effort"))
    some = np.linspace(0, len(q) - 1, min(len(q), MOST_STATES)).astype(int)
    joints, rows = list(found.layout.joints), []
    with jax.enable_x64(True):
        for tap, _, augment in networks:
            alone = Blueprint({tap: augment})
            force = network_forces(alone, q, qd)[:, joints]
            changed = int(np.sum(np.any(force != 0, axis=0)))
            count = sum(int(np.size(leaf)) for leaf in jax.tree.leaves((augment.weights, augment.gain)))
            about = tap, type(augment.network).__name__, augment.mode, augment.inputs, count
            outputs = lambda q, qd, alone=alone: network_forces(alone, np.asarray(q), np.asarray(qd))  # noqa: E731
            curves = _curves(found.model, meaning_of(tap).unit, outputs, q[some], qd[some])
            sizes = unit_of_tap(found.model, tap), _root_mean_square(force), _root_mean_square(effort[:, joints])
            rows.append(Learned(*about, *sizes, len(joints), changed, curves, []))
    return rows


def _root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def unit_of_tap(model: Model, tap: str) -> str:
    """The unit of a quantity: at joints that all turn, or all slide, that of these."""
    kinds = set(dimensions(model, "qd"))
    unit = meaning_of(tap).unit
    return " and ".join(dict.fromkeys(unit_at(unit, kind) for kind in sorted(kinds))) if " or " in unit else unit


def _curves(model: Model, unit: str, outputs, q: np.ndarray, qd: np.ndarray) -> list[Curve]:
    topology, found = model.topology, []
    places = q[np.linspace(0, len(q) - 1, min(len(q), 25)).astype(int)]
    middle = q[np.argmin(np.sum((q - np.median(q, axis=0)) ** 2, axis=1))]
    for k in range(model.nv):
        low, high = np.percentile(qd[:, k], RANGE)
        speed = np.linspace(low, high, POINTS)
        rows = np.zeros((POINTS, model.nv))
        rows[:, k] = speed
        over = np.stack([np.asarray(outputs(jnp.tile(at, (POINTS, 1)), rows))[:, k] for at in (middle, *places)])
        link = int(topology.dof_link[k])
        several = int(topology.v_stop[link]) - int(topology.v_start[link]) > 1
        name = topology.joint_names[link] + (f"[{k - int(topology.v_start[link])}]" if several else "")
        kind = dimensions(model, "qd")[k]
        units = unit_at(unit, kind), unit_at("rad/s or m/s", kind)
        found.append(Curve(name, *units, speed, over[0], over.min(axis=0), over.max(axis=0)))
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
