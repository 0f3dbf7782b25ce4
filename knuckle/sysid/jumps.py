"""Whether a model carries on from piece to piece, or must begin anew in each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from knuckle.optim.chain_quadratic import Quadratic
from knuckle.sysid.objective import Objective

FIRMEST = 1e4  # ties of pieces that are as good as one
SURE = 7.0  # of the logarithm of a ratio of probabilities: 540 fits of right models to noisy logs stayed below 4


def tied(objective: Objective) -> bool:
    """Whether some pieces follow each other."""
    return not objective.fixed_starts and bool(np.any(np.asarray(objective.shots.joined)))


def beginning_anew(objective: Objective, x: np.ndarray) -> float:
    """How much more probable the data are if pieces may begin a little off where the last ended (a logarithm).

    Both probabilities are those near x, where the fit came to; ties there are as firm as makes the data most probable.
    """
    if not tied(objective):
        return 0.0
    residuals, jacobian = objective.told(x)
    data, ties, alone, own = jacobian.split(residuals)
    count = 2 * objective.nv * np.count_nonzero(np.asarray(objective.shots.joined))

    def log_probability(firmer: float) -> float:
        parts = {name: firmer * getattr(jacobian, name) for name in ("tie_by_shared", "tie_by_own", "tie_by_next")}
        rows = np.concatenate([data.reshape(-1), firmer * ties.reshape(-1), alone, own.reshape(-1)])
        return Quadratic.of(rows, replace(jacobian, **parts)).log_probability() + count * np.log(firmer)

    return log_probability(1.0) - log_probability(FIRMEST / objective.continuity)


def jumps_in_words(objective: Objective, x: np.ndarray) -> list[str]:
    """What there is to say of jumps from piece to piece."""
    if not beginning_anew(objective, x) > SURE:
        return []
    seconds = (objective.shots.samples - 1) * objective.shots.period
    return [f"segments of {seconds:.2g} s do not begin where the last one ended, by more than noise explains"]
