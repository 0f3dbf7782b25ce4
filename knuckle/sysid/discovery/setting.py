"""Recordings as segments to judge candidates by, and simulators of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from knuckle.contact.resolve import ContactModel
from knuckle.integrate import Integrator
from knuckle.model.model import Model
from knuckle.sysid.discovery.library import Motion
from knuckle.sysid.discovery.segments import apart
from knuckle.sysid.entries import single_joints
from knuckle.sysid.noise import counted_once
from knuckle.sysid.noise_kinds import ChannelNoise
from knuckle.sysid.parameters import Parameters
from knuckle.sysid.recording import Recording
from knuckle.sysid.resolution import longest_step
from knuckle.sysid.selection import spread_out
from knuckle.sysid.shooting import Observe, Simulator
from knuckle.sysid.shots import Drive, Shots, choose_shots
from knuckle.sysid.starts import located
from knuckle.taps import Blueprint

LEAST_SEGMENT, SAMPLES = 0.3, 25  # [s], and samples of a segment at least
LONGER = 3.0  # segments of the last refinement over those of the screening
MOST_SEGMENTS = 400


@dataclass(frozen=True)
class Setting:
    """How recordings are cut and simulated."""

    model: Model
    contact: ContactModel | None
    integrator: Integrator
    noise: Mapping[str, ChannelNoise]
    period: float
    segment: float | None
    step: float | None
    drive: Drive | None
    observe: Mapping[str, Observe]

    def length(self) -> float:
        """Seconds of a segment."""
        return self.segment or max(LEAST_SEGMENT, SAMPLES * self.period)

    def shots(self, recordings: Sequence[Recording], factor: float = 1.0) -> Shots:
        """Segments that are not tied to each other; `factor`: so many times longer."""
        made, _, _ = choose_shots(
            self.model, recordings, length=factor * self.length(), noise=self.noise, drive=self.drive
        )
        if not all("q" in r.channels for r in recordings):
            made = located(self.simulator(made, Parameters(), Blueprint()), made)
        return spread_out(apart(counted_once(made)), MOST_SEGMENTS)

    def simulator(self, shots: Shots, parameters: Parameters, blueprint: Blueprint | None) -> Simulator:
        longest = self.step or longest_step(self.model, self.integrator)
        substeps = max(1, int(np.ceil(shots.longest / longest * (1 - 1e-9))))
        return Simulator(self.model, parameters, self.contact, self.integrator, blueprint, substeps, dict(self.observe))

    def motion(self, shots: Shots) -> Motion:
        """Scales of the terms, from measured positions where there are some, else from initial states."""
        model = self.model
        q, qd = np.asarray(shots.q), np.asarray(shots.qd)
        spread = np.ones(model.nv)
        for _, at, v in single_joints(model):
            values = q[:, at]
            if "q" in shots.measured:
                seen = np.asarray(shots.weight["q"])[..., at] > 0
                values = np.asarray(shots.measured["q"])[..., at][seen] if seen.any() else values
            spread[v] = max(float(np.std(values)), 1e-6)
        return Motion(spread, np.sqrt(np.mean(qd**2, axis=0)))
