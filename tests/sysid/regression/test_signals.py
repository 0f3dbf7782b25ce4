"""Signals of a regression: slopes and even times that lose nothing of the motion, and ends that spoil nothing."""

from __future__ import annotations

import equinox as eqx
import numpy as np
import pytest

from knuckle import robots, sysid
from knuckle.sysid import Recording
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.design import make_stretch
from knuckle.sysid.regression.signals import prepare, slope

from .driven import rubbing, torques

MODEL = robots.load("double_pendulum")
TRUE = rubbing(eqx.tree_at(lambda m: m.inertia.mass, MODEL, 1.2 * np.asarray(MODEL.inertia.mass)))
SWING = 2 * np.pi * 1.5 * np.array([1.0, 0.7])  # [rad/s]


def motion(time: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Swings about 1.5 Hz with a slow change of amplitude."""
    phase, slow = SWING * time[:, None], 0.6 * np.sin(0.5 * time[:, None])
    q = 0.5 * np.sin(phase) + slow
    qd = 0.5 * SWING * np.cos(phase) + 0.3 * np.cos(0.5 * time[:, None])
    return q, qd, -0.5 * SWING**2 * np.sin(phase) - 0.25 * slow


def test_slopes_lose_nothing_that_would_be_added_to_inertia():
    """2 Hz at 50 Hz: w dt = 0.25, so a cubic spline loses w^4 dt^4 / 180 = 2e-5; central differences lose 1 %."""
    time = np.arange(200) / 50
    found, true = slope(time, np.sin(4 * np.pi * time)), 4 * np.pi * np.cos(4 * np.pi * time)
    inner = slice(20, -20)
    gain = found[inner] @ true[inner] / (true[inner] @ true[inner])
    assert abs(gain - 1) < 4e-5
    central = np.gradient(np.sin(4 * np.pi * time), time)
    assert abs(central[inner] @ true[inner] / (true[inner] @ true[inner]) - 1) > 5e-3


@pytest.mark.parametrize("uneven", [0.0, 0.5])
def test_inertia_from_positions_alone_at_50_hz_is_not_biased(uneven):
    """No noise, no velocities: two central differences would add 1.2 % to inertia, straight lines more."""
    rng = np.random.default_rng(0)
    time = (np.arange(600) + uneven * rng.uniform(-0.5, 0.5, 600)) / 50
    q, qd, qdd = motion(time)
    found = sysid.regress(MODEL, Recording.of(MODEL, time, q=q, tau=torques(TRUE, q, qd, qdd), name="run"), terms=())
    pi = np.concatenate([np.asarray(inertial(TRUE)), np.asarray(TRUE.armature)])
    inertias = [k for k, b in enumerate(found.base) if b.unit == "kg m^2" and b.verdict == "determined"]
    assert inertias
    for k in inertias:
        true = float(found.base_parameters.matrix[k] @ pi)
        assert abs(found.base[k].value / true - 1) < 5e-3, found.base[k]


def test_noise_at_the_ends_of_a_log_stays_there():
    """An end sample of the position that is off by 1 mrad moves no feature by 3 % of its size; if ends stayed, 15 %."""
    time = np.arange(2000) / 500
    q, qd, qdd = motion(time)
    tau = torques(TRUE, q, qd, qdd)
    bumped = q.copy()
    bumped[-1] += 1e-3
    stretches = []
    for positions in (q, bumped):
        (signals,) = prepare(MODEL, [Recording.of(MODEL, time, q=positions, tau=tau, name="run")])
        stretches.append(make_stretch(MODEL, signals, 10.0, np.full(MODEL.nv, 0.01)))
    for dof in range(MODEL.nv):
        a, b = (s.inertial[dof][s.valid[:, dof]] for s in stretches)
        scale = np.sqrt(np.mean(a**2, axis=0)) + 1e-9
        assert np.abs((a - b) / scale).max() < 0.03
