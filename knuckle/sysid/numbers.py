"""Every number of a fit as JSON data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from knuckle.sysid.findings import Finding
from knuckle.sysid.fit import Fit
from knuckle.sysid.learned import Learned
from knuckle.sysid.left import residual_statistics
from knuckle.sysid.pieces import starts_found
from knuckle.sysid.recording import Recording

if TYPE_CHECKING:
    from knuckle.sysid.report.answer import Answer

CURVE_DIGITS, START_DIGITS = 6, 10


def numbers(
    fit: Fit,
    *,
    answer: Answer,
    residuals: Mapping[str, np.ndarray],
    networks: Sequence[Learned] = (),
    findings: Sequence[Finding] = (),
    search: Sequence[tuple[float, float]] = (),
    recordings: Sequence[Recording] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A dictionary of plain JSON data; what is not finite is null. `search`: seconds and value of each evaluation.

    Curves and initial states of segments, of which there may be many, have as many digits as CURVE_DIGITS and
    START_DIGITS.
    """
    held_out, sure, result = fit.held_out, fit.certainty, fit.result
    data = {
        **answer_data(answer),
        **(about or {}),
        "notes": [*fit.notes, *(about or {}).get("notes", ())],
        "status": str(result.status),
        "converged": fit.converged,
        "next_step_in_standard_deviations": fit.next_step,
        "contradictions": fit.contradictions,
        "implausible": fit.implausible,
        "iterations": result.iterations,
        "seconds": result.seconds,
        "half_sum_of_squares": result.value,
        "parameters": [e._asdict() for e in fit.estimates],
        "noise": fit.noise,
        "held_out": None
        if held_out is None
        else {
            "before": held_out.before,
            "after": held_out.after,
            "horizon": held_out.horizon,
            "pieces": held_out.pieces,
            "segments": [segment._asdict() for segment in answer.segments],
            "curves": [_rounded(curve._asdict(), CURVE_DIGITS) for curve in answer.curves],
        },
        "starts": _rounded(starts_found(fit, recordings), START_DIGITS),
        "missing": fit.missing(),
        "residuals": {key: residual_statistics(values) for key, values in residuals.items()},
        "identifiability": {
            "free_numbers": sure.labels,
            "singular_values": sure.singular_values,
            "directions": sure.directions,
            "covariance": sure.covariance if fit.converged else None,
            "entries": sure.entries,
            "entries_by_free_numbers": sure.by_free,
            "effects": sure.effects,
            "untold": sure.untold(),
        },
        "networks": [network_data(network) for network in networks],
        "findings": [asdict(finding) for finding in findings],
        "search": {"seconds": [s for s, _ in search], "half_sum_of_squares": [v for _, v in search]},
        "searches": _searches(fit),
        "failures": result.failures,
    }
    return plain_data(data)


def answer_data(answer: Answer) -> dict[str, Any]:
    """What leads: verdict, warnings, errors by channel and joint, base parameters."""
    torques = answer.torques
    return {
        "verdict": {"level": answer.level, "words": [answer.verdict, *answer.sentences, answer.counts()]},
        "warnings": answer.warnings,
        "left_out": answer.left_out,
        "quality": [q._asdict() | {"error_over_noise": q.ratio} for q in answer.quality],
        "torque_errors": [] if torques is None else [e._asdict() for e in torques.errors],
        "torque_filter": None if torques is None else {"cutoff": torques.cutoff, "delay": torques.delay},
        "base_parameters": [e._asdict() for e in answer.base],
        "base_parameters_divided_by": answer.scale or None,
        "parameters_without_effect": answer.no_effect,
    }


def network_data(network: Learned) -> dict[str, Any]:
    parts = {"curves": network.curves, "series": network.series}
    return network._asdict() | {
        key: [_rounded(part._asdict(), CURVE_DIGITS) for part in rows] for key, rows in parts.items()
    }


def _searches(fit: Fit) -> dict[str, Any] | None:
    """The local searches of a global one, without the starts of pieces and weights of networks, which follow."""
    made, known = fit.result.searches, fit.simulator.physical
    if made is None:
        return None
    return {
        "free_numbers": fit.objective.labels[:known],
        "start": _rounded(made.start[:, :known], START_DIGITS),
        "end": _rounded(made.x[:, :known], START_DIGITS),
        "half_sum_of_squares": made.value,
        "status": made.status,
        "evaluations": made.evaluations,
    }


def _rounded(value: Any, digits: int) -> Any:
    """With arrays of so many digits."""
    if isinstance(value, dict):
        return {key: _rounded(item, digits) for key, item in value.items()}
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    with np.errstate(all="ignore"):
        size = np.where(value == 0, 0.0, np.floor(np.log10(np.abs(value))))
        scale = 10.0 ** (digits - 1 - size)
        return np.where(np.isfinite(value), np.round(value * scale) / scale, value)


def as_text(value: Any, indent: str = "") -> str:
    """Plain data as JSON text: a line for each entry of a dictionary or list, but lists of single values on one."""
    nested = isinstance(value, dict | list) and bool(value)
    if not nested or (isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)):
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    deeper = f"{indent} "
    if isinstance(value, list):
        rows, ends = [as_text(item, deeper) for item in value], "[]"
    else:
        rows, ends = [f"{json.dumps(k, ensure_ascii=False)}: {as_text(v, deeper)}" for k, v in value.items()], "{}"
    return f"{ends[0]}\n{deeper}" + f",\n{deeper}".join(rows) + f"\n{indent}{ends[1]}"


def plain_data(value: Any) -> Any:
    """Lists, dictionaries, text and finite numbers; what is none of these becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain_data(value.tolist())
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    if isinstance(value, np.generic):
        return plain_data(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)
