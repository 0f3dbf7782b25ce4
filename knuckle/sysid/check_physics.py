"""Degrees or radians by the model's own accelerations, for angles that nothing else tells."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
from scipy.signal import savgol_filter

from knuckle import forces
from knuckle.dynamics import aba
from knuckle.model.model import Model
from knuckle.sysid.compare import even
from knuckle.sysid.draft import Draft
from knuckle.sysid.units import DEGREE

SAMPLES = 200
AGREES, BETTER = 0.5, 0.3  # correlation in degrees, and by how much it must beat that in radians


def degrees_by_acceleration(draft: Draft) -> tuple[float, float] | None:
    """Correlation of accelerations with those of the model, if angles are in degrees and in radians, where it decides.

    The nominal model need not be right: the sine of an angle in the wrong unit has nothing to do with the motion.
    """
    model, q = draft.model, draft.values["q"]
    if model.nq != model.nv or not np.isfinite(q).any(axis=0).all() or set(model.topology.kind) != {"revolute"}:
        return None
    tau = draft.values.get("tau", np.zeros_like(q))
    spaced = even(draft.time, *q.T, *np.where(np.isfinite(tau), tau, 0.0).T)
    if spaced is None:
        return None
    dt, signals = spaced
    angle, torque = np.array(signals[: model.nq]), np.array(signals[model.nq :])
    window = min(int(np.clip(round(0.03 / dt), 5, 51)) | 1, (angle.shape[1] - 1) | 1)
    speed, change = (np.asarray(savgol_filter(angle, window, 3, deriv=k, delta=dt)) for k in (1, 2))
    rows = np.linspace(window, angle.shape[1] - window - 1, SAMPLES).astype(int)
    motion = [x[:, rows].T for x in (angle, speed, change, torque)]
    score = {scale: _agreement(model, [scale * x for x in motion[:3]], motion[3]) for scale in (DEGREE, 1.0)}
    if score[DEGREE] > AGREES and score[DEGREE] > score[1.0] + BETTER:
        return score[DEGREE], score[1.0]
    return None


def _agreement(model: Model, motion: list[np.ndarray], tau: np.ndarray) -> float:
    """Correlation of measured accelerations with those of the model, the median over its joints."""
    q, qd, qdd = motion
    with jax.enable_x64(True):
        wanted = np.asarray(_accelerations()(model, q, qd, tau))
    a, b = wanted - wanted.mean(0), qdd - qdd.mean(0)
    size = np.linalg.norm(a, axis=0) * np.linalg.norm(b, axis=0)
    return float(np.median(np.where(size > 0, np.sum(a * b, axis=0) / np.where(size > 0, size, 1), 0.0)))


@cache
def _accelerations():
    """Accelerations of a model at many states, as native code that is made once for a mechanism."""
    from knuckle import native

    def acceleration(model, q, qd, tau):
        return aba(model, q, qd, tau + forces.passive_force(model, q, qd))

    return native.vmap(acceleration, in_axes=(None, 0, 0, 0))
