"""All that is asked of a fit, and how it is done: recordings into pieces, a search, and what it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from knuckle.contact.resolve import ContactModel
from knuckle.integrate import Integrator
from knuckle.model.model import Model
from knuckle.optim import Result
from knuckle.optim.robust import Loss as Robust
from knuckle.sysid.compared import check_compared
from knuckle.sysid.drives import DRIVES
from knuckle.sysid.findings import listed
from knuckle.sysid.held_out import HeldOut, held_out_errors
from knuckle.sysid.measuring import chosen_instruments, seen_through
from knuckle.sysid.noise import STATE, counted_once, from_measured_starts, noise_of
from knuckle.sysid.objective import Objective, Regularise
from knuckle.sysid.parameters import Parameters
from knuckle.sysid.recording import Recording
from knuckle.sysid.resolution import longest_step
from knuckle.sysid.shooting import Instruments, Observe, Simulator
from knuckle.sysid.shots import Drive, Shots, make_shots
from knuckle.sysid.solve import Search, solve
from knuckle.sysid.split import split
from knuckle.sysid.starts import located
from knuckle.taps import Blueprint

Loss = Literal["multiple shooting", "single shooting", "one step"]
LONGEST_DELAY = 0.1  # [s]


class Found(NamedTuple):
    """What a search found, and how that does on data that it has not seen."""

    objective: Objective
    result: Result
    noise: dict[str, float]
    held_out: HeldOut | None


class Task(NamedTuple):
    """All that is asked of a fit but the recordings."""

    model: Model
    parameters: Parameters
    blueprint: Blueprint | None
    contact: ContactModel | None
    integrator: Integrator
    loss: Loss
    segment: float | None
    step: float | None
    noise: dict[str, float]
    observe: dict[str, Observe]
    offsets: tuple[str, ...]
    gains: tuple[str, ...]
    delays: tuple[str, ...]
    drive: Drive | None
    robust: Robust
    regularise: Regularise
    held_out: float | Sequence[Recording]
    seed: int
    search: Search

    def run(self, recordings: list[Recording], compiled: Objective | None = None) -> Found:
        if self.loss == "one step":
            _check_states(recordings, self.delays)
        train, test = _parts(recordings, self.held_out, self.seed)
        check_compared(self.model, train, self.observe, self.noise)
        given, noise = set(self.noise), {**_noise(train), **self.noise}
        period = float(np.median([r.period for r in train]))
        shots, instruments = self.pieces(train, noise)
        if compiled is not None and _alike(compiled.shots, shots):
            objective = compiled.on(shots)
        else:
            options = {"fixed_starts": self.loss == "one step", "robust": self.robust, "regularise": self.regularise}
            objective = Objective(self._simulator(shots, instruments), shots, **options)
        tell = self.search.progress
        tell(f"{objective.size} free numbers, {shots.count} pieces of {shots.samples} samples, compiling")
        result, noise = solve(objective, noise, given, self.search, {"loss": self.loss, "seed": str(self.seed)})
        errors = None
        if test:
            tell("simulating what the fit has not seen")
            length = self._length(period)
            unseen = self._cut(test, None if length is None else max(length, 2 * period), noise)
            ends = objective.first[: objective.size], result.x[: objective.size]
            errors = held_out_errors(objective.simulator, unseen, *ends, self.robust)
        return Found(objective, result, noise, errors)

    def pieces(self, recordings: Sequence[Recording], noise: Mapping[str, float]) -> tuple[Shots, Instruments]:
        """Recordings as this fit compares them, and what it fits of the measuring."""
        length = self._length(float(np.median([r.period for r in recordings])))
        shots = self._cut(recordings, length, noise)
        instruments = chosen_instruments(self.model, shots, self.offsets, self.gains, self.delays)
        seen = seen_through(shots, instruments)
        seen = from_measured_starts(seen) if self.loss == "one step" else counted_once(seen)
        if not any(np.any(weight) for weight in seen.weight.values()):
            raise ValueError(f"there is nothing to compare: {self._nothing_left()}")
        return seen, instruments

    def _nothing_left(self) -> str:
        if self.loss == "one step":
            return "no sample after one of which all positions and velocities were measured has any measurement"
        return "no sample has any measurement, or all are too near to the start for a delay"

    def _cut(self, recordings: Sequence[Recording], length: float | None, noise: Mapping[str, float]) -> Shots:
        latest, steady = LONGEST_DELAY if self.delays else 0.0, self.robust != "squares"
        options = {"noise": noise, "latest": latest, "steady": steady, "drive": self.drive}
        shots = make_shots(self.model, recordings, length=length, **options)
        if all("q" in r.channels for r in recordings):
            return shots
        self.search.progress("no joint positions: seeking where the pieces start")
        with self.search.stop.anywhere():
            return located(self._simulator(shots, Instruments()), shots)

    def _length(self, period: float) -> float | None:
        longest = self.segment or max(0.5, 25 * period)
        return {"single shooting": None, "one step": period}.get(self.loss, longest)

    def _simulator(self, shots: Shots, instruments: Instruments) -> Simulator:
        longest = self.step or longest_step(self.model, self.integrator)
        substeps = max(1, int(np.ceil(shots.longest / longest * (1 - 1e-9))))
        simulator = Simulator(
            *(self.model, self.parameters, self.contact, self.integrator, self.blueprint, substeps),
            *(self.observe, instruments),
        )
        if simulator.size == 0:
            raise ValueError("nothing is free: choose parameters by free=, or give a blueprint")
        return simulator


def _check_states(recordings: Sequence[Recording], delays: tuple[str, ...]) -> None:
    """Each sample is a start, and one whose velocity comes from the sample that it foretells says nothing."""
    if "sensor" in delays:
        raise ValueError('loss "one step" takes measured states as they are now: it goes with no delay of the sensor')
    for recording in recordings:
        for key in STATE:
            unknown = [True] if key not in recording.channels else ~recording[key].valid.any(axis=0)
            if np.any(unknown):
                of = "" if key not in recording.channels else " of " + listed(np.array(recording[key].names)[unknown])
                raise ValueError(
                    f'loss "one step" goes from each measured state to the next: recording {recording.name!r} has no '
                    f'{key}{of}; "multiple shooting" finds positions and velocities that were not measured'
                )


def _alike(a: Shots, b: Shots) -> bool:
    """Whether what is compiled for some pieces does for others."""
    return (a.period, a.history, a.longest) == (b.period, b.history, b.longest)


def _parts(recordings, held_out, seed) -> tuple[list[Recording], list[Recording]]:
    if not recordings:
        raise ValueError("there is no recording to fit to")
    if not isinstance(held_out, float | int):
        return recordings, list(held_out)
    return (recordings, []) if held_out == 0 else split(recordings, held_out=held_out, seed=seed)


def _noise(recordings: Sequence[Recording]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for r in recordings:
        for key, channel in r.channels.items():
            if key not in DRIVES:
                found.setdefault(key, []).append(noise_of(r.time, channel.values, channel.valid))
    return {key: float(np.median(values)) for key, values in found.items()}
