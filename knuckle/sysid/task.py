"""All that is asked of a fit, and how it is done: recordings into pieces, a search, and what it has not seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from knuckle.contact.resolve import ContactModel
from knuckle.deadline import OutOfTime, bounded
from knuckle.integrate import Integrator
from knuckle.model.model import Model
from knuckle.optim import Result, Status
from knuckle.optim.robust import Loss as Robust
from knuckle.sysid.absurd import check_sizes
from knuckle.sysid.compared import check_compared
from knuckle.sysid.drives import DRIVES
from knuckle.sysid.findings import listed
from knuckle.sysid.first_weights import is_new
from knuckle.sysid.held_out import HeldOut, held_out_errors
from knuckle.sysid.many import MANY
from knuckle.sysid.measuring import chosen_instruments, seen_through
from knuckle.sysid.noise import STATE, counted_once, from_measured_starts, noise_of
from knuckle.sysid.noise_kinds import ChannelNoise, Given, NoiseBy, column_kinds, compact, estimate_channel, given_noise
from knuckle.sysid.objective import Objective, Regularise
from knuckle.sysid.parameters import Parameters
from knuckle.sysid.recording import Recording
from knuckle.sysid.resolution import longest_step
from knuckle.sysid.saved import saved_count
from knuckle.sysid.selection import EVALUATIONS, FEWEST, most_in_memory, spread_out, subset
from knuckle.sysid.shooting import Instruments, Observe, Simulator
from knuckle.sysid.shots import Drive, Shots, choose_shots
from knuckle.sysid.solve import FAILURES, Search, solve, unmoved
from knuckle.sysid.split import split
from knuckle.sysid.starts import located
from knuckle.taps import Blueprint

Loss = Literal["multiple shooting", "single shooting", "one step", "torque"]
Answer = TypeVar("Answer")
LONGEST_DELAY = 0.1  # [s]
CUTTING, COMPILING, AFTER = 0.15, 0.9, 0.35  # shares of the time that is left; the last: for all that follows a search
WITHOUT_NETWORKS = 0.35  # share of the time for a fit to compare with
HELD_OUT_EVALUATIONS = 60  # of the slope by initial states, before and after the fit


class Found(NamedTuple):
    """What a search found, and the recordings that it saw and did not see."""

    objective: Objective
    result: Result
    noise: dict[str, ChannelNoise]
    noise_before: dict[str, ChannelNoise]  # as the data alone show it
    train: list[Recording]
    test: list[Recording]
    pace: float | None  # seconds of one segment in an evaluation of the Jacobian; None: not measured

    @property
    def evaluated(self) -> bool:
        """Whether any simulation was compared with the data."""
        return np.isfinite(self.result.value)


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
    noise: dict[str, Given]
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

    @property
    def new_networks(self) -> tuple[str, ...]:
        """Taps of networks that were not trained before."""
        blueprint = self.blueprint
        return () if blueprint is None else tuple(tap for tap in blueprint.augments if is_new(blueprint, tap))

    def without_new_networks(self) -> Task | None:
        """The same with a share of the time, to compare with; None where nothing would be free."""
        new = self.new_networks
        assert self.blueprint is not None
        kept = {tap: part for tap, part in self.blueprint.augments.items() if tap not in new}
        if not (kept or self.parameters or self.offsets or self.gains or self.delays):
            return None
        deadline = self.search.deadline.share(WITHOUT_NETWORKS)
        deadline.left_out, tell = [], self.search.progress
        told = {"progress": lambda text: tell(f"without networks: {text}"), "watch": lambda look: None}
        search = replace(self.search, deadline=deadline, save=None, resume=False, **told)
        return self._replace(blueprint=Blueprint(kept) if kept else None, search=search)

    def run(self, recordings: list[Recording], compiled: Objective | None = None) -> Found:
        if self.loss == "one step":
            _check_states(recordings, self.delays)
        train, test = parts_of(recordings, self.held_out, self.seed)
        check_sizes([*train, *test])
        check_compared(self.model, train, self.observe, self.noise)
        given, noise = set(self.noise), self.first_noise(train)
        shots, instruments, turn = self._ordered_pieces(train, noise)
        if compiled is not None and _alike(compiled.shots, shots):
            objective = compiled.on(shots)
        else:
            objective = self._objective(shots, instruments)
        free = f"{objective.size} free parameters"
        self.search.progress(f"{free}, {shots.count} segments of {shots.samples} samples, compiling")
        deadline = self.search.deadline
        before, pace = noise, None
        try:
            pace = self._prepare(objective, turn)
            about = {"loss": self.loss, "seed": str(self.seed)}
            search = replace(self.search, deadline=deadline.share(1 - AFTER))
            result, noise = solve(objective, noise, given, search, about)
        except OutOfTime:
            result = unmoved(objective, Status.TIME_LIMIT)
            deadline.leave_out("the fit itself: compiling took all the time; compiled code is kept for the next run")
        except KeyboardInterrupt:
            if self.search.stop.count > 1:
                raise
            result = unmoved(objective, Status.INTERRUPTED)
            deadline.leave_out("the fit itself: stopped by Ctrl-C while it compiled")
        return Found(objective, result, noise, before, train, test, pace)

    def _objective(self, shots: Shots, instruments: Instruments) -> Objective:
        options = {"fixed_starts": self.loss == "one step", "robust": self.robust, "regularise": self.regularise}
        return Objective(self._simulator(shots, instruments), shots, **options)

    def objective(self, recordings: Sequence[Recording], count: int) -> Objective:
        """The problem with a few segments of the training data."""
        train, _ = parts_of(list(recordings), self.held_out, self.seed)
        shots, instruments = self.pieces(train, self.first_noise(train))
        return self._objective(spread_out(shots, count), instruments)

    def first_noise(self, train: Sequence[Recording]) -> dict[str, ChannelNoise]:
        """Noise before the fit: as given, else as the recordings show it."""
        return noise_in(self.model, train, self.search.noise_by) | noise_given(self.model, train, self.noise)

    def _prepare(self, objective: Objective, turn: np.ndarray) -> float | None:
        """Compile before the deadline, and take as many segments as there is time for; returns the pace."""
        search, deadline = self.search, self.search.deadline
        if not deadline.limited:
            return None
        shots = objective.shots
        chunk = objective.chunk
        small = shots.count <= 2 * chunk
        few, more = (objective.on(shots if small else spread_out(shots, n)) for n in (chunk, 5 * chunk))

        def compiled() -> float:
            if self.parameters:
                self.parameters.values_and_slopes(np.zeros(self.parameters.size))
            more.look(more.first)
            if objective.size > MANY:
                return float("nan")
            if not few.is_compiled():
                search.progress("the cache has no code for this problem: it is compiled first, in a part of the time")
            few(few.first)
            began = time.perf_counter()
            few(few.first)
            return (time.perf_counter() - began) / few.shots.count

        pace = bounded(compiled, deadline.share(COMPILING), search.stop)
        if not np.isfinite(pace):
            return None
        wanted = int((1 - AFTER) * deadline.left / (EVALUATIONS * pace))
        wanted = wanted if wanted > 4 * chunk else chunk  # between the two it would compile once more
        if wanted < shots.count and not (small or search.resume):
            objective.shots = subset(shots, np.flatnonzero(turn < wanted))
            deadline.leave_out(
                f"data: the search uses {objective.shots.count} of {shots.count} segments "
                f"({objective.shots.count / shots.count:.1%}), spread over the recordings: the time allows no more"
            )
        return pace

    def judge(self, found: Found) -> HeldOut | None:
        """Errors on recordings that the search has not seen, before and after it; of as many as there is time for."""
        if not found.test:
            return None
        self.search.progress("simulating what the fit has not seen")
        period = float(np.median([r.period for r in found.train]))
        length, objective = self.length(period), found.objective
        longest = None if length is None else max(length, 2 * period)
        unseen, _ = self._cut(found.test, longest, found.noise, "held-out data")
        if found.pace is not None:
            share = 2 * objective.nv / (2 * objective.nv + objective.size)
            most = int(0.5 * self.search.deadline.left / (HELD_OUT_EVALUATIONS * share * found.pace))
            if most < unseen.count:
                self.search.deadline.leave_out(
                    f"held-out data: {max(most, FEWEST)} of {unseen.count} segments are used"
                )
                unseen = spread_out(unseen, max(most, FEWEST))
        ends = objective.first[: objective.size], found.result.x[: objective.size]
        return held_out_errors(objective.simulator, unseen, *ends, self.robust, objective)

    def attempt(self, what: str, part: float, function: Callable[[], Answer]) -> Answer | None:
        """What a function returns within this part of the time left; None where it fails, which is remembered."""
        deadline, stop = self.search.deadline, self.search.stop
        try:
            return bounded(function, deadline.share(part), stop)
        except OutOfTime:
            deadline.leave_out(f"{what}: the time was over")
        except KeyboardInterrupt:
            if stop.count > 1:
                raise
            deadline.leave_out(f"{what}: stopped by Ctrl-C")
        except (*FAILURES, ValueError) as error:
            deadline.leave_out(f"{what}: {error}")
        return None

    def pieces(self, recordings: Sequence[Recording], noise: Mapping[str, ChannelNoise]) -> tuple[Shots, Instruments]:
        """Recordings as this fit compares them, and what it fits of the measuring."""
        return self._ordered_pieces(recordings, noise)[:2]

    def _ordered_pieces(self, recordings: Sequence[Recording], noise: Mapping[str, ChannelNoise]):
        """The same, and which of them comes when in turn where fewer are taken."""
        length = self.length(float(np.median([r.period for r in recordings])))
        kept = saved_count(self.search.save) if self.search.resume else None
        shots, turn = self._cut(recordings, length, noise, "data", kept)
        instruments = chosen_instruments(self.model, shots, self.offsets, self.gains, self.delays)
        seen = seen_through(shots, instruments)
        seen = from_measured_starts(seen) if self.loss == "one step" else counted_once(seen)
        if not any(np.any(weight) for weight in seen.weight.values()):
            raise ValueError(f"there is nothing to compare: {self._nothing_left()}")
        return seen, instruments, turn

    def _nothing_left(self) -> str:
        if self.loss == "one step":
            return "no sample after one of which all positions and velocities were measured has any measurement"
        return "no sample has any measurement, or all are too near to the start for a delay"

    def _cut(
        self,
        recordings: Sequence[Recording],
        length: float | None,
        noise: Mapping[str, ChannelNoise],
        what: str,
        count: int | None = None,
    ) -> tuple[Shots, np.ndarray]:
        """Segments and their turns; `count`: so many, whatever time and memory say."""
        latest, steady = LONGEST_DELAY if self.delays else 0.0, self.robust != "squares"
        options = {"noise": noise, "latest": latest, "steady": steady, "drive": self.drive, "most": count}
        if count is None:
            options["most"] = self._most(recordings, length, noise)
            options["deadline"] = self.search.deadline.share(CUTTING)
        shots, available, turn = choose_shots(self.model, recordings, length=length, **options)
        if shots.count < available:
            self.search.deadline.leave_out(
                f"{what}: {shots.count} of {available} segments ({shots.count / available:.1%}) are used, spread over "
                "the recordings: all of them need more memory or time"
            )
        if all("q" in r.channels for r in recordings):
            return shots, turn
        self.search.progress("no joint positions: estimating initial states of segments")
        with self.search.stop.anywhere():
            return located(self._simulator(shots, Instruments()), shots), turn

    def _most(
        self, recordings: Sequence[Recording], length: float | None, noise: Mapping[str, ChannelNoise]
    ) -> int | None:
        """Segments whose Jacobian is not too large for the memory."""
        if length is None:
            return None
        period = float(np.median([r.period for r in recordings]))
        samples = int(np.ceil(length / period)) + 1
        entries = sum({key: len(r[key].names) for r in recordings for key in r.channels if key in noise}.values())
        weights = 0 if self.blueprint is None else self.blueprint.size
        numbers = min(self.parameters.size + weights, MANY) + 2 * self.model.nv
        return most_in_memory(samples, entries, numbers)

    def length(self, period: float) -> float | None:
        """Seconds of a segment; None: whole recordings."""
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


def parts_of(recordings, held_out, seed) -> tuple[list[Recording], list[Recording]]:
    if not recordings:
        raise ValueError("there is no recording to fit to")
    if not isinstance(held_out, float | int):
        return recordings, list(held_out)
    return (recordings, []) if held_out == 0 else split(recordings, held_out=held_out, seed=seed)


def noise_in(model: Model, recordings: Sequence[Recording], by: NoiseBy = "kind") -> dict[str, ChannelNoise]:
    """Noise of each channel as the recordings alone show it, by kind of entry."""
    found: dict[str, list[np.ndarray]] = {}
    for r in recordings:
        for key, channel in r.channels.items():
            if key not in DRIVES:
                own = (r.time, channel.values, channel.valid, by, noise_of)
                found.setdefault(key, []).append(estimate_channel(model, key, *own))
    middle = {key: np.median(values, axis=0) for key, values in found.items()}
    return {key: compact(x, column_kinds(model, key, len(x), by)) for key, x in middle.items()}


def noise_given(model: Model, recordings: Sequence[Recording], noise: Mapping[str, Given]) -> dict[str, ChannelNoise]:
    """What a user gave of channels that are there."""
    widths = {key: len(r[key].names) for r in recordings for key in r.channels}
    return {key: given_noise(model, key, widths[key], value) for key, value in noise.items() if key in widths}
