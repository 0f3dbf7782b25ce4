"""How well a fit agrees with its data: root mean squares of residuals by channel and unit, beside the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from knuckle.model.model import Model
from knuckle.sysid.entries import CHANNELS, POINT_PREFIX, POSE_PREFIX, entry_units, names_of
from knuckle.sysid.fit import Fit
from knuckle.sysid.held_out import OUTLIERS, HeldOut, diverges
from knuckle.sysid.noise_kinds import ChannelNoise, of_unit
from knuckle.sysid.recording import Recording
from knuckle.sysid.task import parts_of as parts

WHAT = {"q": "position", "qd": "velocity", "qdd": "acceleration", "tau": "torque"}
TURNED = ("px", "py", "pz", "rotation x", "rotation y", "rotation z")


class Quality(NamedTuple):
    """Root mean squares of one channel, or of its entries of one unit; NaN: unknown."""

    channel: str
    unit: str  # "": that of the channel
    noise: float  # as the log shows it
    training: float  # residuals of the fit
    before: float  # held-out prediction with the description
    after: float  # with the fitted model
    worst: str  # the entry with the largest error
    worst_error: float
    spread: float = math.nan  # standard deviation of what was measured on held-out data

    @property
    def error(self) -> float:
        """On held-out data if there are some, else on training data."""
        return self.training if math.isnan(self.after) else self.after

    @property
    def ratio(self) -> float:
        """The error over the noise."""
        return self.error / self.noise if self.noise > 0 else math.nan

    def text(self, error: float) -> str:
        """An error in three digits, or "diverges": beyond ten times the spread of the data."""
        if math.isnan(error):
            return ""
        lost = math.isinf(error) or (not math.isnan(self.spread) and diverges(error, self.spread))
        return "diverges" if lost else f"{error:.3g}"

    @property
    def change(self) -> str:
        """The error of predictions before and after the fit, in words."""
        after = self.text(self.after)
        unit = f" {self.unit}" if self.unit and after != "diverges" else ""
        ratio = "" if math.isnan(self.ratio) or after == "diverges" else f" ({rounded(self.ratio)} x noise)"
        return f"{self.channel} {self.text(self.before)} -> {after}{unit}{ratio}"

    @property
    def title(self) -> str:
        """In words: `q (position)`."""
        return f"{self.channel} ({WHAT[self.channel]})" if self.channel in WHAT else self.channel


def entry_names(model: Model, key: str, count: int) -> tuple[str, ...]:
    """Names of the entries of differences of a channel, of which rotations have three."""
    if key.startswith(POSE_PREFIX):
        return TURNED[:count]
    if key == "q" and model.nq != model.nv and count == model.nv:
        return names_of(model, "qd")
    known = key in CHANNELS or key.startswith(POINT_PREFIX)
    return names_of(model, key) if known else tuple(map(str, range(count)))


def differences(fit: Fit) -> dict[str, np.ndarray]:
    """Simulated less measured on training data (segment, sample, entry), in units of the channels; NaN: unknown."""
    with jax.enable_x64(True):
        return {
            key: part / np.where(weight > 0, weight, np.nan)
            for key, part in fit.residuals.items()
            for weight in [fit.objective.weights(key)]
        }


def noise_of_logs(fit: Fit, recordings: Sequence[Recording]) -> dict[str, ChannelNoise]:
    """Noise of each channel as given or as the recordings alone show it; without them what the fit found."""
    if not recordings:
        return dict(fit.column_noise)
    return fit.column_noise | fit.task.first_noise(parts(list(recordings), fit.task.held_out, fit.task.seed)[0])


def qualities(fit: Fit, noise: Mapping[str, ChannelNoise]) -> list[Quality]:
    """Rows of a table, one for each channel and unit."""
    training = differences(fit)
    share = 1.0 if fit.task.robust == "squares" else 1 - OUTLIERS
    counts = {key: off.shape[-1] for key, off in (training or _held_out(fit.held_out)).items()}
    found = []
    for key, count in counts.items():
        names, units = entry_names(fit.model, key, count), entry_units(fit.model, key, count)
        for unit in dict.fromkeys(units):
            entries = [k for k, own in enumerate(units) if own == unit]
            row = _quality(fit, key, unit, entries, names, training, share)
            found.append(row._replace(noise=of_unit(fit.model, key, noise.get(key, math.nan), entries)))
    return found


def _held_out(held_out: HeldOut | None) -> Mapping[str, np.ndarray]:
    return {} if held_out is None else held_out.off_after


def _quality(fit: Fit, key: str, unit: str, entries: list[int], names, training, share: float) -> Quality:
    seen = training[key][..., entries] if key in training else np.zeros((0, 0, len(entries)))
    judged, before, after, spread = seen, math.nan, math.nan, math.nan
    if fit.held_out is not None and key in fit.held_out.off_after:
        offs = [off[key][:, fit.held_out.seen :, entries] for off in (fit.held_out.off_before, fit.held_out.off_after)]
        judged, before, after = offs[1], rms(offs[0], share), rms(offs[1], share)
        spread = _spread(fit.held_out, key, entries)
    own = [rms(judged[..., k], share) for k in range(len(entries))]
    worst = int(np.argmax(np.where(np.isnan(own), -1.0, own)))
    return Quality(key, unit, math.nan, rms(seen), before, after, names[entries[worst]], own[worst], spread)


def _spread(held_out: HeldOut, key: str, entries: list[int]) -> float:
    """Standard deviation of the entries that are measured as they are compared; NaN of rotations."""
    measured = np.asarray(held_out.shots.measured[key])
    if measured.shape[-1] != held_out.off_after[key].shape[-1]:
        return math.nan
    values, weight = measured[..., entries], np.asarray(held_out.shots.weight[key])[..., entries] > 0
    return float(np.std(values[weight])) if weight.any() else math.nan


def rounded(value: float) -> str:
    """Two digits, or more before the point."""
    return f"{value:.0f}" if 10 <= value < 1e6 else f"{value:.2g}"


def rms(values: np.ndarray, share: float = 1.0) -> float:
    """Root mean square of what was measured; `share`: of the smallest only. Infinite if a simulation diverged."""
    known = np.sort(np.abs(values[~np.isnan(values)]))
    known = known[: max(int(share * len(known)), 1)]
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(known**2))) if len(known) else math.nan
