"""The answer of any fit, by a regression on torques or by roll-outs."""

from __future__ import annotations

from collections.abc import Sequence

from knuckle.deadline import Deadline
from knuckle.sysid.fit import Fit
from knuckle.sysid.recording import Recording
from knuckle.sysid.report.answer import Answer, summarise_rollouts
from knuckle.sysid.report.regression import summarise_regression


def summarise(fit: Fit, recordings: Sequence[Recording] = (), deadline: Deadline | None = None) -> Answer:
    """The answer of a fit; what there is no time for is left out, which `deadline` remembers."""
    if fit.regression is not None:
        return summarise_regression(fit.regression, fit)
    return summarise_rollouts(fit, recordings, deadline)
