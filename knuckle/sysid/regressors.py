"""Regressors of inverse dynamics at many samples, in native code."""

from __future__ import annotations

import jax
import numpy as np

from knuckle.dynamics.regressor import carried_columns, regressor
from knuckle.model.model import Model
from knuckle.native import jit

MOST_ROWS = 4096  # samples of one call: one compiled program serves recordings of any length

_over = jit(lambda model, samples: jax.lax.map(lambda s: regressor(model, *s), samples))


def regressors(model: Model, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> list[np.ndarray]:
    """`regressor` of many samples in native code: of each degree of freedom (sample, its `carried_columns`)."""
    columns = carried_columns(model)
    parts: list[list[np.ndarray]] = [[] for _ in columns]
    with jax.enable_x64(True):
        for start in range(0, len(q), MOST_ROWS):
            chunk = [np.asarray(x[start : start + MOST_ROWS], float) for x in (q, qd, qdd)]
            count = len(chunk[0])
            padded = tuple(np.concatenate([x, np.repeat(x[-1:], MOST_ROWS - count, axis=0)]) for x in chunk)
            Y = np.asarray(_over(model, padded))[:count]
            for dof, own in enumerate(columns):
                parts[dof].append(Y[:, dof, own])
    return [np.concatenate(part) for part in parts]
