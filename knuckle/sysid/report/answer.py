"""The answer that a report and the console begin with: status, verdict, warnings, errors, base parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np

from knuckle.deadline import Deadline, OutOfTime, bounded
from knuckle.sysid.fit import FAILED, Fit
from knuckle.sysid.noise_kinds import of_entries
from knuckle.sysid.recording import Recording
from knuckle.sysid.regression.result import TorqueError
from knuckle.sysid.report.combinations import Combinations, combinations
from knuckle.sysid.report.quality import Quality, noise_of_logs, qualities, rms, rounded
from knuckle.sysid.report.segments import MOST_ENTRIES, Segment, SegmentCurve, drawn_segments, segment_curves
from knuckle.sysid.task import parts_of as parts
from knuckle.sysid.torque_errors import Simulated, TorqueCheck, check_torques
from knuckle.sysid.uncertainty import NOT_CONVERGED, SILENT, Estimate

Level = Literal["good", "care", "bad"]
Made = TypeVar("Made")
VERDICTS: dict[Level, str] = {"good": "Usable", "care": "Use with care", "bad": "Do not use"}
WORSE_TORQUE = 1.2  # times the torque error of the description, from which on a fit is doubtful
NETWORK = "network"


@dataclass(frozen=True)
class Answer:
    """What a fit found, in the order in which it is shown."""

    level: Level
    sentences: list[str]  # one or two, then remarks of one each
    warnings: list[str]
    left_out: list[str] = field(default_factory=list)
    quality: list[Quality] = field(default_factory=list)
    torques: TorqueCheck | None = None
    segments: list[Segment] = field(default_factory=list)
    curves: list[SegmentCurve] = field(default_factory=list)  # of the entries with the largest errors
    entries: int = 0  # how many there are
    base: list[Estimate] = field(default_factory=list)
    scale: str = ""  # S, by which base parameters are divided
    parameters: list[Estimate] = field(default_factory=list)  # those that can matter
    no_effect: list[str] = field(default_factory=list)  # parameters on which no motion depends

    @property
    def verdict(self) -> str:
        return VERDICTS[self.level]

    def counts(self) -> str:
        """How many base and single parameters the data determine, in words."""
        if any(e.verdict == NOT_CONVERGED for e in (*self.base, *self.parameters)):
            return ""
        named = {"base parameters": self.base, "single parameters": self.parameters}
        parts_ = [f"{_determined(rows)} of {len(rows)} {what}" for what, rows in named.items() if rows]
        return f"The data determine {' and '.join(parts_)}." if parts_ else ""


def _determined(rows: Sequence[Estimate]) -> int:
    return sum(row.verdict == "determined" for row in rows)


def summarise_rollouts(fit: Fit, recordings: Sequence[Recording] = (), deadline: Deadline | None = None) -> Answer:
    """The answer of a fit by roll-outs; what there is no time for is left out, which `deadline` remembers."""
    limit = Deadline() if deadline is None else deadline
    torques = _attempt(limit, "torque errors, in the report", lambda: torque_check(fit, recordings))
    base = _attempt(limit, "base parameters, in the report", lambda: combinations(fit)) if fit.evaluated else None
    base = Combinations([], "", []) if base is None else base
    noise = noise_of_logs(fit, recordings)
    quality = qualities(fit, noise) if fit.evaluated else []
    by_entry = {key: of_entries(fit.model, key, value) for key, value in noise.items()}
    chosen = drawn_segments(fit, by_entry, recordings)
    curves = segment_curves(fit, by_entry, chosen)
    doubts = [line for line in fit.warnings() if line not in fit.implausible]
    lost = motion_warnings(fit)
    warnings = [*doubts, *lost, *_torque_warnings(torques), *fit.implausible]
    level = _level(fit, warnings, torques) if not lost else "bad"
    return Answer(
        level,
        _sentences(fit, level, quality, torques),
        warnings,
        [*fit.left_out, *(line for line in limit.left_out if line not in fit.left_out)],
        quality,
        torques,
        chosen,
        curves[:MOST_ENTRIES],
        len(curves),
        base.rows,
        base.scale,
        [e for e in fit.estimates if e.name not in base.no_effect],
        base.no_effect,
    )


def unidentified(fit: Fit, no_effect: Sequence[str], most: int | None = None) -> list[str]:
    """In words, what the data do not identify, but for parameters on which no motion depends."""
    sure = fit.certainty
    silent = {name for name, effect in zip(sure.entries, sure.effects, strict=True) if effect < SILENT}
    lines = sure.untold(most=most)
    return lines[1:] if silent and silent <= set(no_effect) else lines


def _attempt(deadline: Deadline, what: str, function: Callable[[], Made]) -> Made | None:
    """What a function returns within half of the time that is left; None where it fails, which is remembered."""
    try:
        return bounded(function, deadline.share(0.5))
    except OutOfTime:
        deadline.leave_out(f"{what}: the time was over")
    except (ArithmeticError, ValueError, TypeError, np.linalg.LinAlgError) as error:
        deadline.leave_out(f"{what}: {error}")
    return None


def torque_check(fit: Fit, recordings: Sequence[Recording]) -> TorqueCheck | None:
    """Torque errors of a fit on the recordings that were given to it; None: no efforts, contact, or no recordings."""
    if not recordings or fit.contact is not None:
        return None
    train, test = parts(list(recordings), fit.task.held_out, fit.task.seed)
    dt = fit.shots.period / fit.simulator.substeps
    options: dict[str, float] = {"delay": -sum(e.value for e in fit.estimates if e.name.endswith(".delay"))}
    described = Simulated(fit.task.model, fit.task.blueprint if not fit.task.new_networks else None, dt)
    return check_torques(described, Simulated(fit.model, fit.blueprint, dt), train, test, **options)


def motion_warnings(fit: Fit) -> list[str]:
    """Whether positions are predicted worse than by a robot that stays where the initial state was estimated."""
    held_out = fit.held_out
    if held_out is None or "q" not in held_out.off_after or fit.model.nq != fit.model.nv:
        return []
    measured, known = np.asarray(held_out.shots.measured["q"]), held_out.seen
    moved = np.where(np.isnan(held_out.off_after["q"]), np.nan, measured - measured[:, known - 1 : known])[:, known:]
    after, still = rms(held_out.off_after["q"][:, known:]), rms(moved)
    if not still < after:
        return []
    unit = f" {held_out.units['q']}" if held_out.units.get("q") else ""
    return [
        f"the predicted motion is worse than no motion at all: held-out error of q {after:.3g}{unit}, the robot itself "
        f"moves by {still:.3g}{unit} in that time"
    ]


def error_after(error: TorqueError) -> float:
    """The error on held-out data, or on training data if none were held out."""
    return error.training if math.isnan(error.held_out) else error.held_out


def _torque_warnings(torques: TorqueCheck | None) -> list[str]:
    """Joints whose torque is predicted worse than by the description."""
    worse = [
        f"{e.joint} {e.described:.3g} -> {error_after(e):.3g} {e.unit}"
        for e in (() if torques is None else torques.errors)
        if not error_after(e) <= WORSE_TORQUE * e.described
    ]
    if not worse:
        return []
    return [
        f"torques are predicted worse than by the description ({', '.join(worse)}): inertia or friction may be wrong, "
        "even if the motion agrees"
    ]


def _level(fit: Fit, warnings: Sequence[str], torques: TorqueCheck | None) -> Level:
    lost = torques is not None and any(not error_after(e) <= max(e.described, e.size) for e in torques.errors)
    if fit.is_doubtful or fit.result.status in FAILED or lost:
        return "bad"
    return "care" if warnings or not fit.converged or fit.held_out is None else "good"


def _sentences(fit: Fit, level: Level, quality: Sequence[Quality], torques: TorqueCheck | None) -> list[str]:
    status = str(fit.result.status)
    if not fit.evaluated:
        return [f"Nothing was fitted ({status}): all values are those of the description."]
    first = "Converged" if fit.converged else f"Not converged ({status}), so there are no intervals"
    judged = [q for q in quality if not math.isnan(q.after)][:2]
    changes = [q.change for q in judged]
    if changes and fit.held_out is not None:
        first += f". Held-out error over {fit.held_out.horizon:.3g} s, before -> after: {', '.join(changes)}"
    elif fit.held_out is None:
        first += ". There is no held-out error, so it is unknown how well the fit predicts"
    found = [f"{first}."]
    if torques is not None:
        found.append(torque_sentence(torques.errors))
    if fit.missing():
        covered = ", and intervals do not cover that" if fit.converged else ""
        found.append(f"Residuals are more than noise: the model lacks something{covered}.")
    return found + [f"{note[0].upper()}{note[1:]}." for note in fit.notes if NETWORK in note]


def percent(value: float) -> str:
    """A share in %."""
    return f"{rounded(value)} %"


def torque_sentence(errors: Sequence[TorqueError]) -> str:
    """The torque error in % of the effort, over all joints, before and after, and the worst joint."""

    def share(values: Sequence[float]) -> float:
        return 100 * math.sqrt(np.mean([(v / e.size) ** 2 for v, e in zip(values, errors, strict=True)]))

    unseen = not any(math.isnan(e.held_out) for e in errors)
    after = [error_after(e) for e in errors]
    worst = int(np.argmax([v / e.size for v, e in zip(after, errors, strict=True)]))
    e = errors[worst]
    before = percent(share([e.described for e in errors]))
    return (
        f"Torque error on {'held-out' if unseen else 'training'} data, mean over joints: {before} -> "
        f"{percent(share(after))} of the effort; largest at {e.joint}, {after[worst]:.3g} {e.unit}."
    )
