"""The page of a roll-out fit, and `fit.json` beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from knuckle.deadline import Deadline, OutOfTime, bounded
from knuckle.sysid.entries import entry_units
from knuckle.sysid.findings import Finding
from knuckle.sysid.fit import Fit
from knuckle.sysid.learned import Learned, learned
from knuckle.sysid.numbers import as_text, numbers
from knuckle.sysid.recording import Recording
from knuckle.sysid.report import plots
from knuckle.sysid.report.answer import NETWORK, Answer, unidentified
from knuckle.sysid.report.files import write_whole
from knuckle.sysid.report.html import beside, folded, listed, number, pictures, section, table
from knuckle.sysid.report.more import networks_section, next_section, posterior_section
from knuckle.sysid.report.regression import write_regression
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
from knuckle.sysid.report.summary import summarise
from knuckle.sysid.torque_errors import TorqueCheck

FIRST_LINES = 8  # of directions that are not identified; others are folded
FIRST_CURVES = 4  # entries that are drawn at once; others are folded
Search = Sequence[tuple[float, float]]  # seconds, half the sum of squares


def write_report(
    folder: str | Path,
    fit: Fit,
    *,
    findings: Sequence[Finding] = (),
    search: Search = (),
    recordings: Sequence[Recording] = (),
    about: Mapping[str, Any] | None = None,
    deadline: Deadline | None = None,
    answer: Answer | None = None,
) -> list[Path]:
    """Write `fit.json` and `report.html` into a folder, each whole or not at all.

    Args:
        findings: what was found in the logs. search: seconds and half the sum of squares of each evaluation.
        recordings: those given to the fit; without them there are no torque errors, and segments have no names.
        about: more for the JSON file. The page names "robot" and "logs", and shows "notes", "posterior" and
            "next_experiment" if they are there.
        deadline: after which pictures are left out, and the page says so.
        answer: as `summarise` made it, if that was done before.
    """
    if fit.regression is not None:
        return write_regression(folder, fit.regression, fit=fit, findings=findings, about=about)
    deadline = Deadline() if deadline is None else deadline
    residuals = fit.residuals
    answer = summarise(fit, recordings, deadline) if answer is None else answer
    try:
        networks = bounded(lambda: learned(fit), deadline.share(0.5)) if fit.evaluated else []
    except OutOfTime:
        deadline.leave_out("what the networks learned, in the report: the time was over")
        networks = []
    found = {"residuals": residuals, "networks": networks, "findings": findings, "search": search, "answer": answer}
    data = numbers(fit, **found, recordings=recordings, about=about)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        folder / "fit.json": as_text(data),
        folder / "report.html": page(fit, answer, data, residuals, networks, findings, search, deadline),
    }
    for path, text in texts.items():
        write_whole(path, text)
    return list(texts)


def page(
    fit: Fit,
    answer: Answer,
    data: Mapping[str, Any],
    residuals: Mapping[str, np.ndarray],
    networks: Sequence[Learned],
    findings: Sequence[Finding],
    search: Search,
    deadline: Deadline,
) -> str:
    """The page as text: answer, quality, torques, curves, base parameters, parameters, then the rest."""
    with plots.until(deadline):
        parts = [
            answer_section(answer),
            quality_section(answer, _quality_words(fit)),
            _torques(answer),
            section("Worst and median segments", _segments(fit, answer)) if answer.segments else "",
            networks_section(networks),
            base_section(answer),
            parameters_section(answer),
            posterior_section(data.get("posterior")),
            next_section(data.get("next_experiment")),
            section("Residuals", _residuals(fit, data, residuals)) if residuals else "",
            beside(_identifiability(fit, answer.no_effect), _search(fit, search)),
            notes_section([note for note in data["notes"] if note not in fit.notes or NETWORK not in note]),
            findings_section(findings),
        ]
    header = f"fitted to {source_of(data, f'{fit.shots.count} segments of recordings')}"
    return frame(fit.model.name, header, parts, str(data.get("knuckle", "")))


def _quality_words(fit: Fit) -> str:
    words = "Root mean squares. Noise: standard deviation as the log itself shows it. Training: residuals of the fit."
    if fit.held_out is None:
        return f"{words} No data were held out, or there was no time for them."
    return (
        f"{words} Held out: {fit.held_out.pieces} segments, each predicted over {fit.held_out.horizon:.3g} s from an "
        "initial state that was estimated from its first quarter."
    )


def _torques(answer: Answer) -> str:
    if answer.torques is None:
        return ""
    return torque_section(answer.torques.errors, answer.torques.curves, torque_words(answer.torques))


def torque_words(torques: TorqueCheck) -> str:
    """How the torque errors of a roll-out fit were computed."""
    efforts = "efforts are commands of motors" if torques.is_commanded else "efforts were measured"
    when = "late" if torques.delay > 0 else "early"
    late = f", taken {1e3 * abs(torques.delay):.3g} ms {when}" if torques.delay else ""
    return (
        f"Root mean squares below {torques.cutoff:.3g} Hz, by inverse dynamics of the simulator along the recorded "
        f"motion; {efforts}{late}. Described: before the fit, on the same data. Effort: its standard deviation."
    )


def _segments(fit: Fit, answer: Answer) -> str:
    held_out = fit.held_out
    known = 0.0 if held_out is None else (held_out.seen - 1) * held_out.shots.period
    shown = plots.segment_pictures(answer.curves, answer.segments, known)
    rows = [(s.source, s.label, escape(s.recording), f"{s.begin:.2f}", f"{s.error:.3g}") for s in answer.segments]
    words = "<p>The entries with the largest error over the noise come first."
    words += " Grey: samples from which the initial state was estimated.</p>" if held_out is not None else "</p>"
    growth = [] if held_out is None else plots.error_growth(held_out, fit.noise, _channel_units(fit))
    first, more = shown[:FIRST_CURVES], shown[FIRST_CURVES:]
    some = f'<p class="note">{len(shown)} of {answer.entries} entries are shown.</p>'
    head = ("data", "segment", "recording", "from [s]", "error / noise")
    return (
        words
        + pictures(first)
        + folded(f"{len(more)} more entries", pictures(more))
        + (some if len(shown) < answer.entries else "")
        + folded("which segments these are", table(head, rows, "ttwnn"))
        + folded("error over time since the start of a segment", pictures(growth))
    )


def _channel_units(fit: Fit) -> dict[str, str]:
    """The unit of each channel in brackets; of channels with several units all of them."""
    held_out, found = fit.held_out, {}
    for key, off in (held_out.off_after if held_out is not None else {}).items():
        units = [unit for unit in dict.fromkeys(entry_units(fit.model, key, off.shape[-1])) if unit]
        found[key] = f" [{', '.join(units)}]" if units else ""
    return found


def _identifiability(fit: Fit, no_effect: Sequence[str]) -> str:
    sure = fit.certainty
    if not (sure.is_known and fit.converged):
        unknown = "Unknown: the search did not converge, or its Jacobian is not finite."
        return section("Identifiability", f"<p>{unknown}</p>")
    if not sure.labels:
        return section("Identifiability", "<p>No physical parameters were fitted.</p>")
    lines = unidentified(fit, no_effect)
    words = listed(lines[:FIRST_LINES]) or "<p>The data identify all free parameters.</p>"
    words += folded(f"{len(lines) - FIRST_LINES} more", listed(lines[FIRST_LINES:]))
    explained = (
        "<p class='note'>Each direction is a combination of free parameters: above 10 the data say much more than the "
        "prior, below 1 the prior decides.</p>"
    )
    return section("Identifiability", words, pictures([plots.singular_picture(sure)]), explained)


def _residuals(fit: Fit, data: Mapping[str, Any], residuals) -> str:
    rows = [
        (escape(key), number(s["deviation"], ".3g"), number(s["within_95"], ".1%"), number(s["correlation"], ".2f"))
        for key, s in data["residuals"].items()
    ]
    words = (
        "<p>Residuals of the training data over the noise. If the model explains the data, they are normal and white: "
        "a correlation of neighbours near 1 is a sign that the model lacks something.</p>"
    )
    words += listed(data["missing"])
    head = ("channel", "standard deviation", "within 95 % band", "correlation of neighbours")
    shown = plots.residual_pictures(residuals)
    return words + table(head, rows, "tnnn") + pictures(shown, 2 * len(residuals), "pictures of channels are")


def _search(fit: Fit, search: Search) -> str:
    result = fit.result
    spent = f"{len(search)} evaluations, {search[-1][0]:.1f} s" if search else f"{result.iterations} iterations"
    words = (
        f"<p>{escape(str(result.status))}: {spent}. Noise and continuity constraints are updated between rounds, so "
        "the value may jump.</p>"
    )
    made = result.searches
    if made is not None:
        ended = np.sort(made.value[np.isfinite(made.value)])
        best = (
            f"; the best ended at {ended[0]:.6g}, half of them at {np.median(ended):.6g} or below" if len(ended) else ""
        )
        words += f"<p>{len(made)} local searches{best}. Where each began and ended is in fit.json.</p>"
    words += f"<p>{escape(failures_in_words(result.failures))}.</p>" if result.failures else ""
    return section("Search", words, pictures([plots.convergence_picture(search, fit)]))


def failures_in_words(failures: Sequence[str]) -> str:
    """How many tasks of a global search failed, and why the first did."""
    last = failures[0].strip().splitlines()[-1]
    return f"{len(failures)} tasks of the global search failed and gave nothing; the first so: {last}"
