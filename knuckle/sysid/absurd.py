"""Finite values that nothing measures: faults of a sensor, of a unit, or of memory that was never written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knuckle.sysid.recording import Recording

LARGEST = {"q": 1e6, "qd": 1e6, "pose": 1e6, "point": 1e6}  # [rad, m, rad/s, m/s]
LARGEST_OTHER = 1e9  # forces, accelerations, and channels of one's own
LARGE, FACTOR = 1e4, 1e6  # beyond both, the second times the usual size of its entry, a value is no measurement


def absurd(channel: str, values: np.ndarray) -> np.ndarray:
    """Which values of one entry of a channel cannot be measurements; what is not finite is none of them."""
    size = np.abs(values)
    usual = size[np.isfinite(size) & (size > 0)]
    relative = FACTOR * float(np.median(usual)) if len(usual) else np.inf
    with np.errstate(invalid="ignore"):
        beyond = (size > LARGEST.get(channel.split("/")[0], LARGEST_OTHER)) | ((size > LARGE) & (size > relative))
    return beyond & np.isfinite(values)


def check_sizes(recordings: Sequence[Recording]) -> None:
    """An error for the first value of a recording that cannot be a measurement."""
    for recording in recordings:
        for key, channel in recording.channels.items():
            for j, name in enumerate(channel.names):
                bad = absurd(key, channel.values[:, j]) & channel.valid[:, j]
                if bad.any():
                    k = int(np.argmax(bad))
                    raise ValueError(
                        f"recording {recording.name!r}: {key} {name} is {channel.values[k, j]:.4g} at "
                        f"{recording.time[k]:.6g} s ({bad.sum()} such): nothing measures that; NaN: not measured"
                    )
