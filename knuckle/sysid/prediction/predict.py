"""`predict`: a roll-out or any function of a fitted model with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from knuckle.model.model import Model, State
from knuckle.sysid.prediction.draws import Draws
from knuckle.sysid.prediction.intervals import MotionPrediction, Prediction
from knuckle.sysid.prediction.sources import SPREAD, draws_of_fit, draws_of_regression, residual_noise
from knuckle.sysid.regression.result import Regression
from knuckle.sysid.smoothing import EffortNoise

if TYPE_CHECKING:
    from knuckle.sysid.fit import Fit

SAMPLES = 200


def draws(source: Fit | Regression, samples: int = SAMPLES, seed: int = 0, spread: float | None = None) -> Draws:
    """Models that data and prior leave possible, to predict from more than once."""
    if isinstance(source, Regression):
        return draws_of_regression(source, samples, seed, SPREAD if spread is None else spread)
    if spread is not None:
        raise ValueError(
            "predict: spread is for regressions; the priors of a fit (free={...: kn.Prior}) have their own"
        )
    return draws_of_fit(source, samples, seed)


def predict(
    source: Fit | Regression | Draws,
    target: State | Callable[[Model], Any],
    control=None,
    *,
    dt: float | None = None,
    steps: int | None = None,
    level: float = 0.95,
    samples: int = SAMPLES,
    seed: int = 0,
    spread: float | None = None,
    covariance: np.ndarray | None = None,
    effort_noise: EffortNoise | np.ndarray | float | bool | None = None,
    effort_error: tuple[np.ndarray, np.ndarray] | None = None,
    measurement_noise: Mapping[str, Any] | bool | None = None,
) -> Prediction | MotionPrediction:
    """A function of the model, or a roll-out from a state, with intervals over all that data and prior leave possible.

    Combinations of parameters that data do not determine count with the spread of the prior: intervals hold for every
    model that explains the data as well.

    Args:
        target: function(model), or a state to begin from (`smoothed.state(k)` remembers friction).
        control: of a roll-out: an array over steps, one control that is held, a policy(time, state), or None.
        samples: models that are drawn.
        spread: of a regression: how far the description may be off, in the metric of its prior (0.3: masses by about
            30 %).
        covariance: of the initial state, (2 nv, 2 nv) in the tangent space, as `Smoothed.covariance[k]`.
        effort_noise: errors of the effort that drives the robot; `Smoothed.effort_noise`, numbers [N m or N], or, of a
            regression, True: as its residuals have them.
        effort_error: mean and covariance of that error at the start, as `Smoothed.filtered` has them.
        measurement_noise: of "q" and "qd", as instruments would show them; of a fit, True: as it found them.
    """
    if callable(target) and not isinstance(target, State):
        rest = (control, dt, steps, covariance, effort_noise, effort_error, measurement_noise)
        if any(x is not None for x in rest):
            raise ValueError("predict: a function of the model has no control, dt, steps or noise; give a State first")
        return (source if isinstance(source, Draws) else draws(source, samples, seed, spread)).of(target, level)
    if not isinstance(target, State):
        raise TypeError(f"predict: expected a State or a function of the model, got {type(target).__name__}")
    if dt is None:
        raise ValueError("predict: dt=... [s], the step of the roll-out, is needed")
    drawn = source if isinstance(source, Draws) else draws(source, samples, seed, spread)
    return drawn.rollout(
        target, control, dt=dt, steps=steps, level=level, covariance=covariance, seed=seed + 1,
        effort_noise=_effort_noise(source, effort_noise, dt), effort_error=effort_error,
        measurement_noise=_measurement_noise(source, measurement_noise),
    )  # fmt: skip


def _effort_noise(source, given, dt: float) -> EffortNoise | None:
    if given is None or given is False:
        return None
    if isinstance(given, EffortNoise):
        return given
    if given is True:
        if isinstance(source, Regression):
            return residual_noise(source)
        raise ValueError("predict: effort_noise=True is for regressions; give sysid.smooth(...).effort_noise")
    deviation = np.asarray(given, float)
    if not np.isfinite(deviation).all() or (deviation < 0).any():
        raise ValueError(f"predict: effort_noise must be 0 or more and finite, got {given!r}")
    return EffortNoise(deviation, 0.0, dt)


def _measurement_noise(source, given) -> dict[str, Any]:
    if given is None or given is False:
        return {}
    found = getattr(source, "column_noise", None) if given is True else given
    if not isinstance(found, Mapping):
        raise ValueError("predict: measurement_noise=True is for fits; give {'q': ..., 'qd': ...}")
    return {key: found[key] for key in ("q", "qd") if key in found}
