"""What a fit finds of the measuring itself: offsets, gains and delays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import equinox as eqx
import numpy as np

from knuckle.hybrid.calibration import Calibration
from knuckle.model.model import Model
from knuckle.sysid.entries import POSE_PREFIX
from knuckle.sysid.objective import INSTRUMENTS, Objective
from knuckle.sysid.shooting import Instruments
from knuckle.sysid.shots import Shots
from knuckle.sysid.uncertainty import Certainty, Estimate, verdict

if TYPE_CHECKING:
    from knuckle.sysid.fit import Fit

FARTHER = 4.0  # deviations of an instrument that a start may be off


def chosen_instruments(model: Model, shots: Shots, offsets, gains, delays) -> Instruments:
    for what, keys in (("offsets", offsets), ("gains", gains)):
        unknown = [str(key) for key in keys if key not in shots.measured]
        if unknown:
            there = ", ".join(shots.measured)
            raise ValueError(f"{what} must be of channels that are compared ({there}), got {', '.join(unknown)}")
    if not set(delays) <= {"sensor", "actuator"}:
        raise ValueError(f"delays must be 'sensor' or 'actuator', got {', '.join(map(str, delays))}")
    if {"sensor", "actuator"} <= set(delays):
        raise ValueError("delays: a late sensor and a late actuator look alike, only their sum shows: free one of them")
    turned = [key for key in gains if key.startswith(POSE_PREFIX) or (key == "q" and model.nq != model.nv)]
    if turned:
        raise ValueError(f"gains: {turned[0]} holds quaternions, which have no scale")

    def sized(channels) -> tuple[tuple[str, int], ...]:
        return tuple((key, model.nv if key == "q" else shots.measured[key].shape[-1]) for key in channels)

    return Instruments(sized(offsets), "sensor" in delays, "actuator" in delays, sized(gains))


def instrument_estimates(objective: Objective, z: np.ndarray, sure: Certainty) -> list[Estimate]:
    """Offsets, gains and delays with their intervals."""
    first, instruments = objective.simulator.parameters.size, objective.simulator.instruments
    found = []
    for k, (name, kind) in enumerate(zip(instruments.labels, instruments.kinds, strict=True), start=first):
        before = 1.0 if kind == "gain" else 0.0
        unit = {"gain": "1", "delay": "s"}.get(kind, "of the channel")
        value, deviation = before + float(z[k]), float(np.sqrt(sure.covariance[k, k]))
        ends = value - 1.96 * deviation, value + 1.96 * deviation
        told = verdict(deviation, float(objective.prior[k]))
        found.append(Estimate(name, unit, before, value, deviation, *ends, told))
    return found


def fitted_calibration(fit: Fit, drive_gains: Mapping[str, float]) -> Calibration:
    """Offsets, gains and delays that a fit found, and the drive gains by which its logs were read."""
    if fit.regression is not None:
        return Calibration.of(effort_delay=fit.regression.delay, drive_gains=drive_gains)
    instruments, found = fit.simulator.instruments, {e.name: float(e.value) for e in fit.estimates}

    def values(what: str, channels: tuple[tuple[str, int], ...]) -> dict[str, list[float]]:
        return {key: [found[f"sensor.{key}.{what}[{k}]"] for k in range(count)] for key, count in channels}

    return Calibration.of(
        offsets=values("offset", instruments.offsets),
        gains=values("gain", instruments.gains),
        drive_gains=drive_gains,
        sensor_delay=found.get("sensor.delay", 0.0),
        actuator_delay=found.get("actuator.delay", 0.0),
    )


def seen_through(shots: Shots, instruments: Instruments) -> Shots:
    """Starts are known less well through unknown instruments; what a late sensor saw before a start is left out."""
    if not instruments.size:
        return shots
    stamps = shots.period * np.arange(shots.samples)[None] if shots.stamps is None else shots.sample_stamps
    latest = shots.history * shots.period if instruments.sensor_delay else 0.0
    there = np.asarray(stamps) >= latest - 1e-6 * shots.period
    weight = {key: np.asarray(w) * there[..., None] for key, w in shots.weight.items()}
    known = 10 * np.asarray(shots.known) + _hidden(shots, instruments, latest)
    return eqx.tree_at(lambda s: (s.weight, s.known), shots, (weight, known))


def _hidden(shots: Shots, instruments: Instruments, latest: float) -> np.ndarray:
    """How far starts may be from where they are seen, so much that they tell next to nothing of the instruments."""
    speed, nv = np.abs(np.asarray(shots.qd)), np.asarray(shots.qd).shape[1]
    usual = np.sqrt(np.mean(speed**2, axis=0, keepdims=True))
    place = latest * (speed + usual)
    if "q" in dict(instruments.offsets):
        place = place + FARTHER * INSTRUMENTS["offset"]
    if "q" in dict(instruments.gains):
        place = place + FARTHER * INSTRUMENTS["gain"] * np.abs(np.asarray(shots.q))[:, :nv]
    return np.concatenate([place, (latest > 0) * usual + 0 * speed], axis=1)
