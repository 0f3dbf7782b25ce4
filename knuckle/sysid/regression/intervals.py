"""What a regression says of parameters and of functions of the robot, in the terms of any fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import norm

from knuckle.model.model import Model
from knuckle.sysid.regression.fitted import fitted_robot
from knuckle.sysid.regression.result import Regression
from knuckle.sysid.uncertainty import Estimate, Interval

SMALL = 0.05  # of a standard deviation, for derivatives along the directions of the covariance


def estimates_of(found: Regression) -> list[Estimate]:
    """Every single parameter with its jackknife interval."""
    width = float(norm.ppf(0.975))
    return [
        Estimate(q.name, q.unit, q.described, q.value, q.deviation / width, q.lower, q.upper, q.verdict)
        for q in found.parameters
    ]


def regression_interval(found: Regression, function: Callable[[Model], Any], level: float = 0.95) -> Interval:
    """Any vector function of the model with its interval, by its slope along the covariance (the delta method)."""

    def value(theta: np.ndarray) -> np.ndarray:
        return np.ravel(np.asarray(function(fitted_robot(found.described, found.layout, theta)[0]), float))

    centre = value(found.theta)
    slopes = [
        (value(found.theta + SMALL * d) - value(found.theta - SMALL * d)) / (2 * SMALL) for d in found.directions.T
    ]
    deviation = np.sqrt(np.sum(np.square(slopes), axis=0))
    width = float(norm.ppf(0.5 + level / 2)) * deviation
    return Interval(centre, deviation, centre - width, centre + width)
