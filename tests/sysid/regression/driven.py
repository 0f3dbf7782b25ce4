"""Logs of driven robots with known parameters: joints follow Fourier series, torques are those of inverse dynamics."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
from scipy.signal import lfilter

from knuckle import native
from knuckle.dynamics import rnea
from knuckle.model.model import Model
from knuckle.sysid import Recording


def fourier(model: Model, time: np.ndarray, seed: int, speed: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, velocities and accelerations of joints with one coordinate each."""
    rng = np.random.default_rng(seed)
    q, qd, qdd = np.zeros((3, len(time), model.nv))
    for harmonic in range(1, 6):
        w = 2 * np.pi * 0.1 * harmonic
        a, b = rng.normal(size=(2, model.nv)) * speed / (w * 5**0.5)
        phase = w * time[:, None]
        q += a * np.sin(phase) - b * np.cos(phase)
        qd += w * (a * np.cos(phase) + b * np.sin(phase))
        qdd += w**2 * (b * np.cos(phase) - a * np.sin(phase))
    return q + np.asarray(model.reference), qd, qdd


def rubbing(model: Model, armature: float = 0.1, damping: float = 0.5, friction: float = 0.4) -> Model:
    """The model with rotor inertia, damping and Coulomb friction at all joints."""
    parts = tuple(np.full(model.nv, x) for x in (armature, damping, friction, 0.01))
    return eqx.tree_at(lambda m: (m.armature, m.damping, m.friction, m.friction_speed), model, parts)


def torques(model: Model, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
    """Inverse dynamics with the friction of the model."""
    with jax.enable_x64(True):
        rigid = np.asarray(native.vmap(lambda *x: rnea(model, *x))(q, qd, qdd))
    dry = np.asarray(model.friction) * np.tanh(qd / np.asarray(model.friction_speed))
    return rigid + np.asarray(model.damping) * qd + dry


def log(
    model: Model,
    seed: int = 0,
    seconds: float = 20.0,
    rate: float = 100.0,
    noise: float = 0.0,
    correlation: float = 0.0,
    speed: float = 1.0,
    time: np.ndarray | None = None,
) -> Recording:
    """A log with noise of the effort (share of its root mean square), white or correlated over some seconds."""
    time = np.arange(round(seconds * rate)) / rate if time is None else time
    q, qd, qdd = fourier(model, time, seed, speed)
    tau = torques(model, q, qd, qdd)
    rng = np.random.default_rng(1000 + seed)
    white = rng.normal(size=tau.shape)
    if correlation:
        keep = np.exp(-1 / (rate * correlation))
        white = np.asarray(lfilter([np.sqrt(1 - keep**2)], [1, -keep], white, axis=0))
    tau = tau + noise * np.sqrt(np.mean(tau**2, axis=0)) * white
    q = q + 1e-5 * (noise > 0) * rng.normal(size=q.shape)
    qd = qd + 1e-4 * (noise > 0) * rng.normal(size=q.shape)
    return Recording.of(model, time, q=q, qd=qd, tau=tau, name=f"run {seed}")
