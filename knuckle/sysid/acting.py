"""What networks change inside a fitted simulator, over the pieces of recordings that it was fitted to."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from knuckle import native
from knuckle.model.joints import retract
from knuckle.model.model import State
from knuckle.simulate import advance, begin
from knuckle.sysid.entries import names_of
from knuckle.sysid.fit import Fit
from knuckle.sysid.timing import drive
from knuckle.taps import OpenTaps, meaning_of

AXES, MOMENTS = ("x", "y", "z"), ("xx", "yy", "zz", "xy", "xz", "yz")
PARTS = {  # of the rows of some quantities
    "gravity": AXES,
    "link/com": AXES,
    "link/inertia": MOMENTS,
    "link/wrench": tuple(f"{what} {axis}" for what in ("torque", "force") for axis in AXES),
}
PIECES, MOST_SAMPLES = 6, 300  # segments (more where they are short), and samples of each
LEAST_SAMPLES = 100  # of all of them
MOST_SERIES = 12  # entries that are drawn


class Series(NamedTuple):
    """One number of a quantity over some pieces, (piece, sample), without and with the network that acts on it."""

    name: str
    time: np.ndarray  # since the start of a piece [s]
    without: np.ndarray  # NaN: after the end of a piece
    used: np.ndarray


class Acted(NamedTuple):
    """What one network changes: root mean squares over all entries, and the entries that it changes most."""

    change: float
    without: float  # of the quantity as physics has it
    entries: int
    changed: int  # entries on which it has any effect
    series: list[Series]


class _Watching(OpenTaps):
    """Keeps each quantity as it was before and after each network, where a step first reaches it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.acted: dict[str, tuple] = {}

    def _augmented(self, name, place, augment, value, axis, tangent):
        after = super()._augmented(name, place, augment, value, axis, tangent)
        self.acted.setdefault(_key(name, place), (value, after))
        return after


def _key(tap: str, place: int) -> str:
    return f"{tap}#{place}"


def acting(fit: Fit) -> dict[tuple[str, int], Acted]:
    """For each network, by tap and place there, what it changes along the fitted motion of some pieces."""
    assert fit.blueprint is not None
    count = max(PIECES, LEAST_SAMPLES // fit.shots.samples)
    chosen = np.unique(np.linspace(0, fit.shots.count - 1, count).astype(int))
    shots = jax.tree.map(lambda part: np.asarray(part)[chosen], fit.shots)
    starts = fit.objective.starts(fit.result.x)[chosen]
    z = np.asarray(fit.result.x[: fit.objective.size])
    found = native.jit(lambda z, starts, shots: jax.lax.map(lambda s: _of_piece(fit, z, *s), (starts, shots)))(
        z, starts, shots
    )
    inside = np.any([(np.asarray(w) > 0).any(axis=-1) for w in shots.weight.values()], axis=0)
    inside = np.maximum.accumulate(inside[:, ::-1], axis=1)[:, ::-1][:, 1:]  # a step leads to the next sample
    pairs = {(tap, place): found[_key(tap, place)] for tap, place, _ in fit.blueprint}
    return {at: _summed(fit, at[0], np.asarray(pair[0]), np.asarray(pair[1]), inside) for at, pair in pairs.items()}


def _of_piece(fit: Fit, z, start, shot) -> dict:
    """Quantities before and after each network, at the samples of one piece."""
    simulator, n = fit.simulator, fit.simulator.substeps
    model, contact, blueprint = simulator.used(z)
    assert blueprint is not None
    first = State(jnp.asarray(retract(model, shot.q, start[: model.nv])), shot.qd + start[model.nv :])
    control, dt = drive(shot, simulator.read(z).actuator_delay, n), shot.period / n
    options = {"integrator": simulator.integrator, "contact": contact, "wrench": None}
    even = shot.period * np.arange(shot.samples)
    stamps = jnp.asarray(even if shot.sample_stamps is None else shot.sample_stamps)

    def following(state, x):
        time, span, row = x
        taps = _Watching(blueprint, state.memory or {}, shot.begin + time)
        after, _ = advance(model, state, row, dt=span, taps=taps, **options)
        return after, taps.acted

    spans = jnp.repeat(jnp.diff(stamps) / n, n)
    times = jnp.concatenate([jnp.zeros(1), jnp.cumsum(spans)[:-1]])
    _, acted = jax.lax.scan(following, begin(model, first, blueprint, dt=dt, **options), (times, spans, control))
    return jax.tree.map(lambda values: values[::n], acted)


def _summed(fit: Fit, tap: str, without: np.ndarray, used: np.ndarray, inside: np.ndarray) -> Acted:
    names = _names(fit, tap, without.shape[2:])
    if inside.shape[1] == 1:  # one step from each sample: as one piece
        without, used, inside = (np.swapaxes(part, 0, 1) for part in (without, used, inside))
    without, used = (part.reshape(*part.shape[:2], -1) for part in (without, used))
    change = np.sqrt(np.mean((used - without)[inside] ** 2, axis=0))
    order = [int(k) for k in np.argsort(-change, kind="stable") if change[k] > 0]
    every = -(-inside.shape[1] // MOST_SAMPLES)
    time = fit.shots.period * np.arange(inside.shape[1])[::every]

    def kept(values: np.ndarray, k: int) -> np.ndarray:
        return np.where(inside, values[..., k], np.nan)[:, ::every]

    series = [Series(names[k], time, kept(without, k), kept(used, k)) for k in order[:MOST_SERIES]]
    size = float(np.sqrt(np.mean(without[inside] ** 2)))
    return Acted(float(np.sqrt(np.mean(change**2))), size, len(names), len(order), series)


def _names(fit: Fit, tap: str, shape: tuple[int, ...]) -> list[str]:
    """A name for each number of a quantity."""
    model, count, axis = fit.model, int(np.prod(shape)), meaning_of(tap).axis or ""
    rows = {
        "coordinate": lambda: names_of(model, "q"),
        "dof": lambda: names_of(model, "qd"),
        "actuator": lambda: model.actuators.names,
        "link": lambda: model.link_names,
        "contact": lambda: _contacts(fit, axis.partition(".")[2]),
    }.get(axis.partition(".")[0], tuple)()
    rows = rows if rows and len(rows) == shape[0] else ("",)
    each = count // len(rows)
    parts = PARTS.get(tap, tuple(f"[{k}]" for k in range(each)) if each > 1 else ("",))
    return [f"{row} {part}".strip() for row in rows for part in parts]


def _contacts(fit: Fit, rule: str) -> tuple[str, ...]:
    """Names of all contacts, or of those of one rule."""
    if fit.contact is None:
        return ()
    contacts = fit.contact.contacts(fit.model, fit.model.reference)
    return (contacts.of_rule(rule) if rule else contacts).names
