"""Where the pieces of a fit start: as fitted, and which recording and time [s] each belongs to."""

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
from knuckle.sysid.task import parts_of


def starts_found(fit: Fit, recordings: Sequence[Recording] = ()) -> dict[str, Any] | None:
    """Coordinates and velocities with which each piece starts; None where starts are taken as measured.

    With the recordings that were given to the fit, each piece also has the name of its own.
    """
    if fit.objective.fixed_starts:
        return None
    shots, nv, change = fit.shots, fit.model.nv, fit.objective.starts(fit.result.x)
    with jax.enable_x64(True):
        q = jax.vmap(lambda q, by: retract(fit.model, q, by))(jnp.asarray(shots.q), jnp.asarray(change[:, :nv]))
    train = parts_of(list(recordings), fit.task.held_out, fit.task.seed)[0] if recordings else []
    return {
        "recording": [train[int(number)].name for number in np.asarray(shots.run)] if train else None,
        "time": np.asarray(shots.begin),
        "q_names": names_of(fit.model, "q"),
        "q": np.asarray(q),
        "qd_names": names_of(fit.model, "qd"),
        "qd": np.asarray(shots.qd) + change[:, nv:],
    }
