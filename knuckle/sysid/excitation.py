"""The next experiment to run: a motion within limits that shows what the data so far do not."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.transform import Rotation

from knuckle.kinematics import frame_pose
from knuckle.model.model import State
from knuckle.sysid.colour import colours_of, widening
from knuckle.sysid.entries import ACCELERATION, POINT_PREFIX, POSE_PREFIX
from knuckle.sysid.fit import Fit
from knuckle.sysid.motion import Motion, Motions
from knuckle.sysid.recording import Channel, Recording
from knuckle.sysid.uncertainty import Certainty, Estimate, certainty, estimates

FIRST_SHARE = 0.4  # of the tries that are drawn at random; the rest vary the best
DETERMINABLE = 3.0  # singular value, over all tries together, from which on a direction can be seen at all


@dataclass(frozen=True)
class Excitation:
    """A motion to run, and how sure a fit to the data so far and to a log of it would be."""

    recording: Recording  # coordinates, velocities and controls at the samples; `sysid.save` writes it
    expected: list[Estimate]  # values as fitted, with the intervals to expect
    before: list[Estimate]
    certainty: Certainty
    worst_before: float  # deviation of the least known direction that a motion can show, over what was known at first
    worst_after: float
    tries: int

    def __repr__(self) -> str:
        rows = [("parameter", "value", "95 % interval", "after this motion", "")]
        rows += [
            (a.name, f"{a.value:.4g}", f"{a.lower:.4g} .. {a.upper:.4g}", f"{b.lower:.4g} .. {b.upper:.4g}", b.verdict)
            for a, b in zip(self.before, self.expected, strict=True)
        ]
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        gain = self.worst_before / max(self.worst_after, 1e-300)
        head = f"{self.recording!r}\nthe least known combination that a motion can show: {gain:.3g} times better known"
        return "\n".join([head, *lines])


def excite(
    fit: Fit,
    seconds: float = 5.0,
    *,
    start=None,
    speed: float | None = None,
    margin: float = 0.1,
    highest: float = 1.5,
    tries: int = 60,
    seed: int = 0,
) -> Excitation:
    """A motion that makes the least known parameters visible, with what the fit knows already taken into account.

    Motions are finite Fourier series (Swevers et al. 1997) of joint positions where each joint has an actuator of its
    own, else of the controls. Each is judged by the covariance that the data so far and a log of it would give, by the
    same Jacobians as the fit: the worst of the directions that some motion shows, and all of them. The best is varied.
    Positions, speeds and controls stay within the model's limits; joints without any go half a turn to each side (or
    as many metres). What it may bump into is not looked at.

    Args:
        start: coordinates, or the name of a keyframe, where it begins and ends at rest (ends: joint positions only).
        speed: largest joint speed [rad/s or m/s]; by default what the model states.
        margin: share of each range of position, speed and control that is left free. highest: frequency [Hz].
    """
    if fit.regression is not None:
        raise ValueError(f'excite: this fit is a {fit.method}; the next experiment needs loss="multiple shooting"')
    with jax.enable_x64(True):
        motions = Motions(fit, seconds, start, speed, margin, highest)
        search = _Search(fit, motions, np.random.default_rng(seed))
        search.run(tries)
        return search.excitation()


class _Search:
    """Random motions, then variations of the best."""

    def __init__(self, fit: Fit, motions: Motions, rng: np.random.Generator):
        self.fit, self.motions, self.rng = fit, motions, rng
        self.size = fit.simulator.physical
        self.prior = fit.objective.prior[: self.size]
        scaled = fit.certainty.covariance / np.outer(self.prior, self.prior)
        self.known = np.linalg.inv(scaled)  # information so far, in units of what was known at first
        self.colours = colours_of(fit.objective, fit.result.x, fit.objective.sensitivity(fit.result.x))
        self.tried: list[tuple[Motion, np.ndarray]] = []
        self.pooled = self.known - np.eye(self.size)

    def run(self, tries: int) -> None:
        first = max(1, round(FIRST_SHARE * tries))
        for _ in range(first):
            self._try(self.motions.random(self.rng))
        if not self.tried:
            raise ValueError(f"none of {first} motions keeps to the limits: start away from them, or give more tries")
        step = 0.5
        for _ in range(tries - first):
            best = self._best()
            self._try(self.motions.varied(best[0], step, self.rng))
            step = step * 0.9 if self._best() is best else min(step * 1.3, 0.7)

    def _try(self, motion: Motion | None) -> None:
        if motion is None:
            return
        try:
            information = self._information(motion.recording)
        except np.linalg.LinAlgError:  # the simulation of it diverges
            return
        self.tried.append((motion, information))
        self.pooled = self.pooled + information

    def _information(self, recording: Recording) -> np.ndarray:
        """What a log of this motion would add, the starts of its pieces and weights of networks counted as unknown."""
        fit = self.fit
        shots, _ = fit.task.pieces([_as_measured(fit, recording)], fit.column_noise)
        objective = fit.objective.on(shots)
        objective.continuity = fit.objective.continuity
        x = np.concatenate([fit.result.x[: objective.size], np.zeros(objective.start_size)])
        _, jacobian = objective(x)
        more = widening(objective, jacobian, self.colours)
        alone = certainty(jacobian, self.size, self.prior, objective.labels[: self.size], widening=more)
        return (alone.directions.T * alone.singular_values**2) @ alone.directions

    def _best(self) -> tuple[Motion, np.ndarray]:
        """The worst direction first, all directions second; what no motion shows is left out."""
        shown = self._shown()
        return min(self.tried, key=lambda tried: self._score(tried[1], shown))

    def _shown(self) -> np.ndarray:
        """Directions that some motion shows, as rows."""
        values, vectors = np.linalg.eigh(self.pooled)
        return vectors[:, values > DETERMINABLE**2].T

    def _score(self, information: np.ndarray, shown: np.ndarray) -> float:
        spread = np.linalg.eigvalsh(shown @ np.linalg.inv(self.known + information) @ shown.T)
        return float(np.log(spread[-1]) + np.mean(np.log(spread)))

    def excitation(self) -> Excitation:
        fit, (motion, information) = self.fit, self._best()
        shown = self._shown()
        covariance = np.linalg.inv(self.known + information)
        values, vectors = np.linalg.eigh(self.known + information - np.eye(self.size))
        singular = np.sqrt(np.maximum(values[::-1], 0.0))
        old = fit.certainty
        wide = covariance * np.outer(self.prior, self.prior)
        sure = old._replace(covariance=wide, singular_values=singular, directions=vectors.T[::-1])
        wide_before = np.linalg.inv(self.known)
        before, after = (np.sqrt(np.linalg.eigvalsh(shown @ c @ shown.T)[-1]) for c in (wide_before, covariance))
        expected = estimates(fit.parameters, fit.result.x[: fit.parameters.size], sure)
        known, worst = fit.estimates[: len(expected)], (float(before), float(after))
        return Excitation(motion.recording, expected, known, sure, worst[0], worst[1], len(self.tried))


def _as_measured(fit: Fit, recording: Recording) -> Recording:
    """The motion through the channels that the fit compares."""
    channels = {key: recording[key] for key in ("control", *fit.shots.measured) if key in recording.channels}
    for key in fit.shots.measured:
        if key not in channels:
            values = _seen(fit, key, recording)
            names = tuple(map(str, range(values.shape[1])))
            channels[key] = Channel(values, np.ones(values.shape, bool), names)
    return Recording(recording.time, channels, recording.name)


def _seen(fit: Fit, key: str, recording: Recording) -> np.ndarray:
    """What a channel other than coordinates and velocities shows along a motion."""
    q, qd, model = recording["q"].values, recording["qd"].values, fit.model
    if key == ACCELERATION:
        return np.gradient(qd, recording.time, axis=0)
    if key in fit.simulator.observe:
        see = lambda q, qd: fit.simulator.observe[key](model, State(q, qd))  # noqa: E731
        return np.asarray(jax.vmap(see)(jnp.asarray(q), jnp.asarray(qd)))
    name = key.removeprefix(POSE_PREFIX).removeprefix(POINT_PREFIX)
    pose = jax.vmap(lambda q: frame_pose(model, q, name))(jnp.asarray(q))
    if key.startswith(POINT_PREFIX):
        return np.asarray(pose.position)
    turned = Rotation.from_matrix(np.asarray(pose.rotation)).as_quat()[:, [3, 0, 1, 2]]
    return np.concatenate([np.asarray(pose.position), turned], axis=1)
