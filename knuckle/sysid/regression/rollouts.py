"""Roll-outs of regressed robots over segments of recordings: one compiled program for all robots of one structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import equinox as eqx
import numpy as np
from scipy.interpolate import CubicSpline

from knuckle.dynamics import crba
from knuckle.integrate import RK4, Integrator
from knuckle.model.model import Model
from knuckle.native import vmap
from knuckle.sysid.drives import DRIVES
from knuckle.sysid.noise_kinds import ChannelNoise
from knuckle.sysid.objective import Objective, Regularise
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.filters import WIDE
from knuckle.sysid.regression.fitted import fitted_robot
from knuckle.sysid.regression.result import Regression
from knuckle.sysid.regression.signals import LEAST_SAMPLES, prepare, smoothed
from knuckle.sysid.regression.whole import whole_numbers, whole_parameters, without_effect
from knuckle.sysid.shooting import Simulator
from knuckle.sysid.shots import Drive, Shots, choose_shots
from knuckle.sysid.split import stretches
from knuckle.taps import Blueprint

MOTION = ("q", "qd")
MOST_SEGMENTS = 120  # of more, so many are used, spread over the recordings


class Rollouts:
    """Segments of recordings, each simulated from filtered positions and velocities with the measured efforts."""

    def __init__(
        self,
        found: Regression,
        recordings: Sequence[Recording],
        *,
        noise: Mapping[str, ChannelNoise],
        segment: float,
        step: float | None = None,
        integrator: Integrator | None = None,
        drive: Drive | None = None,
    ):
        self.found, model = found, found.described
        runs = [r.replace(**{key: None for key in r.channels if key not in (*MOTION, *DRIVES)}) for r in recordings]
        made, self.available, _ = choose_shots(
            model, runs, length=segment, noise=noise, drive=drive, most=MOST_SEGMENTS
        )
        self.shots = _with_filtered_states(model, runs, made, found.cutoff)
        self.parameters = whole_parameters(model)
        longest = min(step or np.inf, found.step)
        substeps = max(1, int(np.ceil(self.shots.longest / longest * (1 - 1e-9))))
        stepped = RK4() if integrator is None else integrator
        simulator = Simulator(model, self.parameters, None, stepped, found.blueprint, substeps, {})
        self.objective = Objective(simulator, self.shots, regularise=Regularise(spread=np.inf))
        self.silent = False  # whether networks of the regression have no effect
        self._masses = vmap(lambda z, q: crba(self.parameters.applied(model, None, z)[0], q), (None, 0))

    def numbers(self, model: Model, blueprint: Blueprint | None) -> np.ndarray:
        """A robot as the argument of the program."""
        return whole_numbers(self.parameters, model, blueprint)

    @property
    def described(self) -> np.ndarray:
        """The robot as it was described."""
        return self.numbers(self.found.described, without_effect(self.found.blueprint))

    def of(self, theta: np.ndarray) -> np.ndarray:
        """The robot with parameters of the regression."""
        model, blueprint = fitted_robot(self.found.described, self.found.layout, theta)
        return self.numbers(model, without_effect(blueprint, laws=False) if self.silent else blueprint)

    def differences(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """Simulated less measured by channel (segment, sample, entry); infinite: diverged, NaN: not measured."""
        found = {}
        for key, part in self.objective.by_channel(np.concatenate([z, np.zeros(self.objective.start_size)])).items():
            weight = self.objective.weights(key)
            part = np.where(np.isfinite(part) | (weight == 0), part, np.inf)
            found[key] = np.divide(part, weight, out=np.full(part.shape, np.nan), where=weight > 0)
        return found

    def mass_matrices(self, z: np.ndarray) -> np.ndarray:
        """In the middle of each segment, (segment, dof, dof)."""
        middle = np.asarray(self.shots.measured["q"])[:, self.shots.samples // 2]
        return np.asarray(self._masses(z, middle))


def _with_filtered_states(model: Model, runs: Sequence[Recording], shots: Shots, cutoff: float) -> Shots:
    """Initial states from positions and velocities below the band of the regression's features."""
    q, qd, number, begin = np.array(shots.q), np.array(shots.qd), np.asarray(shots.run), np.asarray(shots.begin)
    for k, run in enumerate(runs):
        for stretch in stretches(run):
            if len(stretch) < LEAST_SAMPLES:
                continue
            (signals,) = prepare(model, [stretch])
            low, _ = smoothed(signals, WIDE * cutoff)
            own = np.flatnonzero((number == k) & (begin >= stretch.time[0] - 1e-9) & (begin <= low.time[-1] + 1e-9))
            qd[own] = _at(begin[own], low.time, low.qd)
            if model.nq == model.nv:
                q[own] = _at(begin[own], low.time, low.q)
    return eqx.tree_at(lambda s: (s.q, s.qd), shots, (q, qd))


def _at(times: np.ndarray, time: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.asarray(CubicSpline(time, values)(np.clip(times, time[0], time[-1])))
