"""States that recordings visit, for pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.recording import Recording


def recorded_states(model: Model, recordings: Sequence[Recording]) -> tuple[np.ndarray, np.ndarray] | None:
    """Coordinates and velocities, by differences where velocities were not measured; None without coordinates."""
    if model.nq != model.nv or not all("q" in r.channels for r in recordings):
        return None
    q, qd = [], []
    for r in recordings:
        own, valid = r["q"].values, r["q"].valid.all(axis=1)
        speed = r["qd"].values if "qd" in r.channels else np.gradient(own, r.time, axis=0)
        q.append(own[valid])
        qd.append(speed[valid])
    return np.concatenate(q), np.concatenate(qd)
