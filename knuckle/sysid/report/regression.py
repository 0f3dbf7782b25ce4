"""The report of a torque regression: `fit.json` with every number and one page that opens offline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knuckle.sysid.findings import Finding
from knuckle.sysid.learned import Learned, learned_on_torques
from knuckle.sysid.numbers import answer_data, as_text, network_data, plain_data
from knuckle.sysid.regression.checks import UNEXPLAINED, error_notes, scale_notes
from knuckle.sysid.regression.result import Quantity, Regression
from knuckle.sysid.report.answer import Answer, Level, motion_warnings, torque_sentence
from knuckle.sysid.report.changed import changed_section
from knuckle.sysid.report.files import write_whole
from knuckle.sysid.report.more import networks_section
from knuckle.sysid.report.quality import Quality, qualities
from knuckle.sysid.report.sections import (
    answer_section,
    base_section,
    findings_section,
    frame,
    notes_section,
    parameters_section,
    quality_section,
    source_of,
    torque_section,
)
from knuckle.sysid.torque_errors import TorqueCheck, TorqueCurve, worst_window
from knuckle.sysid.uncertainty import Estimate

if TYPE_CHECKING:
    from knuckle.sysid.fit import Fit


def write_regression(
    folder: str | Path,
    found: Regression,
    *,
    fit: Fit | None = None,
    findings: Sequence[Finding] = (),
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write `fit.json` and `report.html`.

    Args:
        fit: that the regression is part of, with its roll-outs. findings: about the logs. about: more for the JSON.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    said, answer = dict(about or {}), summarise_regression(found, fit)
    notes = [*(found.notes if fit is None else fit.remarks()), *said.pop("notes", ())]
    notes = [note for note in dict.fromkeys(notes) if note not in answer.warnings]
    networks = learned_on_torques(found)
    more = {
        "findings": [asdict(f) for f in findings],
        "networks": [network_data(n) for n in networks],
        **({} if fit is None else _of_fit(fit)),
        **said,
        "notes": notes,
    }
    texts = {
        folder / "fit.json": as_text(plain_data(data(found, answer) | more)),
        folder / "report.html": page(found, answer, fit, notes, findings, said, networks),
    }
    for path, text in texts.items():
        write_whole(path, text)
    return list(texts)


def summarise_regression(found: Regression, fit: Fit | None = None) -> Answer:
    """Verdict, warnings, errors and parameters of a regression, and of the roll-outs of the fit that it is part of."""
    warnings = [*scale_notes(found.problem.design, found.layout), *error_notes(found.errors)]
    unexplained = sum(e.held_out > UNEXPLAINED * e.size for e in found.errors)
    lost = unexplained == len(found.errors)
    sentences, quality = [torque_sentence(found.errors)], []
    sentences += [] if fit is None else [f"T{n[1:]}." for n in fit.notes if n.startswith("the network at ")]
    if fit is not None:
        warnings = list(dict.fromkeys([*fit.warnings(), *motion_warnings(fit), *warnings]))
        lost = lost or fit.is_doubtful
        quality = [] if fit.held_out is None else qualities(fit, fit.noise)
        sentences.append(_motion_sentence(fit, quality))
    level: Level = "bad" if lost else "care" if warnings else "good"
    friction = {term for terms in found.terms.values() for term in terms}
    chosen = f"Cross-validation chose friction with {', '.join(sorted(friction))}." if friction else ""
    repaired = "" if found.consistent else "The linear solution was not physically consistent and was projected."
    torques = TorqueCheck(found.errors, tuple(_curves(found)), found.cutoff, found.delay, False)
    listed = {q.name for q in found.base}
    known = [q for q in found.parameters if q.name not in listed and not _is_unseen(found, q.name)]
    return Answer(
        level,
        [line for line in (*sentences, chosen, repaired) if line],
        warnings,
        [] if fit is None else fit.left_out,
        quality=quality,
        torques=torques,
        base=[estimate(q) for q in found.base],
        parameters=[estimate(q) for q in known],
        no_effect=[q.name for q in found.parameters if _is_unseen(found, q.name)],
    )


def _motion_sentence(fit: Fit, quality: Sequence[Quality]) -> str:
    if fit.held_out is None:
        return ""
    errors = ", ".join(row.change for row in quality)
    return f"Roll-outs over {fit.held_out.horizon:.3g} s of held-out data, error before -> after: {errors}."


def _is_unseen(found: Regression, name: str) -> bool:
    base = found.base_parameters
    return name in {base.names[k] for k in base.unseen}


def estimate(q: Quantity) -> Estimate:
    """A quantity as reports show all of them."""
    deviation = q.deviation / 1.96
    return Estimate(q.name, q.unit, q.described, q.value, deviation, q.lower, q.upper, q.verdict)


def data(found: Regression, answer: Answer | None = None) -> dict[str, Any]:
    """Every number of a regression as plain data."""
    lead = answer_data(summarise_regression(found) if answer is None else answer)
    return lead | {
        "loss": "torque",
        "torque_errors": [e._asdict() for e in found.errors],
        "base_parameters": [_plain(q) for q in found.base],
        "parameters": [_plain(q) for q in found.parameters],
        "friction_terms": {joint: list(terms) for joint, terms in found.terms.items()},
        "friction": {
            found.errors[k].joint: {"width": f.width, "reach": f.reach, "stribeck_speed": f.stribeck_speed}
            for k, f in enumerate(found.layout.friction)
        },
        "cutoff": found.cutoff,
        "delay": found.delay,
        "block": found.block,
        "blocks": found.blocks,
        "linear_solution_consistent": found.consistent,
        "refined": found.refined,
        "notes": list(found.notes),
    }


def _of_fit(fit: Fit) -> dict[str, Any]:
    held_out = fit.held_out
    return {
        "method": fit.method,
        "status": str(fit.result.status),
        "seconds": fit.result.seconds,
        "warnings": fit.warnings(),
        "left_out": fit.left_out,
        "noise": fit.noise,
        "held_out": None
        if held_out is None
        else {
            "before": held_out.before,
            "after": held_out.after,
            "diverges": {
                when: [key for key, error in errors.items() if held_out.diverges(key, error)]
                for when, errors in (("before", held_out.before), ("after", held_out.after))
            },
            "horizon": held_out.horizon,
            "pieces": held_out.pieces,
            "initial_states": held_out.initial_states,
        },
    }


def _plain(quantity: Quantity) -> dict[str, Any]:
    ends = {key: None if np.isnan(getattr(quantity, key)) else getattr(quantity, key) for key in ("lower", "upper")}
    return quantity._asdict() | ends | {"verdict": quantity.verdict}


def page(
    found: Regression,
    answer: Answer,
    fit: Fit | None,
    notes: Sequence[str],
    findings: Sequence[Finding],
    about: Mapping[str, Any],
    networks: Sequence[Learned] = (),
) -> str:
    """Answer, torque errors and curves, motion errors, base parameters, single parameters, then notes and findings."""
    assert answer.torques is not None
    words = (
        f"Root mean squares below {found.cutoff:.3g} Hz. Held out: by cross-validation over blocks, or on held-out "
        f"logs. Described: before the fit, on training data. {_lateness(found.delay)}Effort: its "
        f"standard deviation. Intervals: block jackknife, {found.blocks} blocks of {found.block:.2g} s."
    )
    parts = [
        answer_section(answer),
        changed_section(about.get("changed")),
        torque_section(found.errors, answer.torques.curves, escape(words)),
        "" if fit is None else _motion(fit, answer),
        networks_section(networks, "What the networks add to the forces at the joints along the recorded motion."),
        base_section(answer),
        parameters_section(answer),
        notes_section(notes),
        findings_section(findings),
    ]
    header = f"torque regression on {source_of(about, 'recordings')}"
    return frame(found.model.name, header, parts, str(about.get("knuckle", "")))


def _lateness(delay: float) -> str:
    if not delay:
        return ""
    return f"Efforts are stamped {1e3 * abs(delay):.3g} ms {'late' if delay > 0 else 'early'}, which is set right. "


def _motion(fit: Fit, answer: Answer) -> str:
    """Errors of roll-outs on held-out data."""
    held_out = fit.held_out
    if held_out is None:
        return ""
    words = (
        f"Root mean squares of {held_out.pieces} segments of {held_out.horizon:.3g} s, simulated with the measured "
        f"torques from {escape(held_out.initial_states)}, by the description and by the fit. Noise: standard deviation "
        "as the log itself shows it."
    )
    return quality_section(answer, words, "Motion error on held-out data")


def _curves(found: Regression) -> list[TorqueCurve]:
    """Measured and predicted torque of each joint over the ten seconds with the largest error."""
    design, shown, forces = found.problem.design, [], found.problem.design.network_forces(found.layout)
    for k, error in enumerate(found.errors):
        dof, worst = found.layout.joints[k], (-math.inf, None)
        for number, stretch in enumerate(design.stretches):
            measured = stretch.effort_after(found.delay)[:, dof]
            predicted = design.features(stretch, found.layout, k, found.theta) @ found.theta[found.layout.columns(k)]
            predicted = predicted if forces is None else predicted - forces[number][:, dof]
            off = np.where(stretch.valid[:, dof], measured - predicted, 0.0)
            squares, part = worst_window(stretch.time, off)
            if squares > worst[0]:
                values = stretch.name, stretch.time[part], measured[part], predicted[part]
                worst = squares, TorqueCurve(error.joint, error.unit, *values, is_held_out=False)
        assert worst[1] is not None
        shown.append(worst[1])
    return shown
