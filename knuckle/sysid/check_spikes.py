"""Single samples far from their neighbours."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from knuckle.sysid.draft import Draft
from knuckle.sysid.findings import Report

NEIGHBOURS = 9
ALONE = 3  # of these may be outliers
RANGES, NOISES, STEPS = 3.0, 15.0, 10.0  # ranges of the neighbours, deviations of the noise, usual steps
LEAST = {"tau": 0.25}  # of the channel's range; a force may be noisy
LEAST_OF_OTHERS = 0.1
SMALLEST = {"q": 0.01, "qd": 0.1, "pose": 0.01, "point": 0.01, "tau": 0.0}  # [rad, m, rad/s, m/s]
MOST = 0.02  # share of the samples: more are no outliers but how the channel is
CHECKED = ("q", "qd", "pose", "point", "tau")


def check_spikes(draft: Draft, report: Report) -> None:
    """Samples far outside the range of their neighbours are left out, of motions and of measured forces."""
    for channel in (key for key in draft.values if key.split("/")[0] in CHECKED):
        for j in range(draft.values[channel].shape[1]):
            x = draft.values[channel][:, j]
            good = np.flatnonzero(np.isfinite(x))
            if len(good) < 20:
                continue
            kind = channel.split("/")[0]
            far = outliers(x[good], LEAST.get(kind, LEAST_OF_OTHERS), SMALLEST[kind])
            hits = good[far & beyond_range(x[good], LEAST[kind])] if kind in LEAST else good[far]
            if 0 < len(hits) <= MOST * len(good):
                k = int(hits[0])
                near = float(np.nanmedian(x[max(k - 4, 0) : k + 5]))
                detail = f"first at {draft.time[k]:.6g} s: {x[k]:.4g} beside {near:.4g}"
                draft.say(report, "spikes", draft.place(channel, j), len(hits), "left out", detail)
                x[hits] = np.nan


def outliers(x: np.ndarray, least: float, smallest: float) -> np.ndarray:
    """Samples beyond the range of their neighbours by several such ranges, by the noise, and by a share of all.

    smallest: by which it must be beyond, in the unit of the channel.
    """
    around = np.sort(sliding_window_view(np.pad(x, NEIGHBOURS // 2, mode="edge"), NEIGHBOURS), axis=1)
    low, high, middle = around[:, ALONE - 1], around[:, -ALONE], around[:, NEIGHBOURS // 2]
    noise = 1.4826 * float(np.median(np.abs(x - middle)))
    usual = float(np.percentile(np.abs(np.diff(x)), 90))
    span = float(np.subtract(*np.percentile(x, [98, 2])))
    margin = RANGES * (high - low) + max(NOISES * noise, STEPS * usual, least * span, smallest)
    return (x > high + margin) | (x < low - margin) if span > 0 else np.zeros(len(x), bool)


def beyond_range(x: np.ndarray, share: float) -> np.ndarray:
    """Samples outside the range of nearly all, by a share of it: forces may alternate fast within it."""
    low, high = np.percentile(x, [1, 99])
    return (x < low - share * (high - low)) | (x > high + share * (high - low))
