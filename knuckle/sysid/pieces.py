"""Where the pieces of a fit start: as fitted, and which recording and time each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.model.joints import retract
from knuckle.sysid.entries import names_of
from knuckle.sysid.fit import Fit
from knuckle.sysid.recording import Recording
from knuckle.sysid.shots import _evenly as evenly
from knuckle.sysid.split import segments
from knuckle.sysid.task import _parts as parts


def starts_found(fit: Fit, recordings: Sequence[Recording] = ()) -> dict[str, Any] | None:
    """Coordinates and velocities with which each piece starts; None where starts are taken as measured.

    With the recordings that were given to the fit, each piece also has the name of its own and its time there [s].
    """
    if fit.objective.fixed_starts:
        return None
    shots, nv, change = fit.shots, fit.model.nv, fit.objective.starts(fit.result.x)
    with jax.enable_x64(True):
        q = jax.vmap(lambda q, by: retract(fit.model, q, by))(jnp.asarray(shots.q), jnp.asarray(change[:, :nv]))
    places = _places(fit, recordings) if recordings else []
    known = len(places) == shots.count
    return {
        "recording": [name for name, _ in places] if known else None,
        "time": np.array([time for _, time in places]) if known else None,
        "q_names": names_of(fit.model, "q"),
        "q": np.asarray(q),
        "qd_names": names_of(fit.model, "qd"),
        "qd": np.asarray(shots.qd) + change[:, nv:],
    }


def _places(fit: Fit, recordings: Sequence[Recording]) -> list[tuple[str, float]]:
    """Recording and time of each piece, cut once more as the fit does."""
    train, _ = parts(list(recordings), fit.task.held_out, fit.task.seed)
    period = float(np.median([r.period for r in train]))
    length = fit.task._length(period)
    even = [evenly(r, period) for r in train]
    return [(r.name, float(piece.time[0])) for r in even for piece in segments(r, length or r.duration + period)]
