"""Sections that reports of roll-out fits and of torque regressions share: answer, torques, parameters, findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from knuckle.sysid.findings import Finding, together
from knuckle.sysid.regression.result import TorqueError
from knuckle.sysid.report import plots
from knuckle.sysid.report.answer import Answer, error_after, percent
from knuckle.sysid.report.html import folded, interval, judged, listed, pictures, section, table
from knuckle.sysid.report.quality import rounded
from knuckle.sysid.report.style import STYLE
from knuckle.sysid.torque_errors import TorqueCurve
from knuckle.sysid.uncertainty import NOT_CONVERGED, Estimate, digits

MANY_FINDINGS = 200
FIRST_WARNINGS, FIRST_CURVES, MANY_ROWS = 5, 6, 40  # of the page; what is more is folded
ROUNDING = 1e-12  # of a description: below, it is 0
UNSURE = ("not determined", "rests on the prior", NOT_CONVERGED)


def frame(title: str, header: str, parts: Sequence[str], version: str = "") -> str:
    """A page that needs nothing from outside."""
    name = escape(title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}: fit</title><style>{STYLE}</style></head><body><main>
<header><h1>{name}</h1><p>{header}</p></header>
{"".join(parts)}
<footer>{f"Knuckle {escape(version)}. " if version else ""}All numbers are in fit.json.</footer>
</main></body></html>
"""


def source_of(about: Mapping[str, Any], otherwise: str) -> str:
    """Which logs a fit saw, and how much that is."""
    logs = ", ".join(escape(Path(log).name) for log in about.get("logs", ())) or otherwise
    runs = about.get("recordings", ())
    count = f"{len(runs)} recording{'s' if len(runs) != 1 else ''}"
    return logs + (f", {count}, {sum(r['samples'] for r in runs)} samples" if runs else "")


def answer_section(answer: Answer) -> str:
    """Verdict, warnings, and what was left out."""
    lines = [escape(line).replace("N m", "N&nbsp;m") for line in [*answer.sentences, answer.counts()] if line]
    first, *rest = [f"<p>{line}</p>" for line in lines]
    warnings, more = answer.warnings[:FIRST_WARNINGS], answer.warnings[FIRST_WARNINGS:]
    warned = f"<h3>Warnings</h3>{listed(warnings)}{folded(f'{len(more)} more', listed(more))}" if warnings else ""
    left = f"<h3>Left out</h3>{listed(answer.left_out)}" if answer.left_out else ""
    inside = f"<h2>{answer.verdict}</h2>{first}{warned}{''.join(rest)}{left}"
    return f'<section class="answer {answer.level}">{inside}</section>\n'


def torque_section(errors: Sequence[TorqueError], curves: Sequence[TorqueCurve], words: str) -> str:
    """Torque errors by joint beside the effort, and the worst seconds of each joint."""
    if not errors:
        return ""
    rows = [
        (_with_unit(e.joint, e.unit), f"<b>{_three(error_after(e))}</b>", _three(e.described), _share(e),
         _three(e.training), _three(e.effort))
        for e in errors
    ]  # fmt: skip
    unseen = all(not math.isnan(e.held_out) for e in errors)
    head = ("joint", "held out" if unseen else "error", "described", "error / effort", "training", "effort")
    shown = plots.torque_pictures(curves)
    return section(
        "Torque error by joint",
        table(head, rows, "tnnnnn"),
        f'<p class="note">{words}</p>',
        pictures(shown[:FIRST_CURVES]),
        folded(f"{len(shown) - FIRST_CURVES} more joints", pictures(shown[FIRST_CURVES:])),
    )


def _with_unit(name: str, unit: str) -> str:
    return f"{escape(name)} <span class='note'>[{escape(unit)}]</span>" if unit else escape(name)


def _three(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


def _share(error: TorqueError) -> str:
    return percent(100 * error_after(error) / error.size) if error.effort > 0 or error.forces > 0 else ""


def base_section(answer: Answer) -> str:
    """Combinations that forces depend on, the determined ones first."""
    if not answer.base:
        return ""
    words = (
        "Combinations of masses (m), first moments (mx, my, mz) and moments of inertia about the link's origin (Ixx "
        "... Iyz) on which forces depend. Single parameters may be undetermined where these are not."
    )
    scale = (
        f"<p>The data determine ratios only: S = {escape(answer.scale)}. No measured force sets the scale.</p>"
        if answer.scale
        else ""
    )
    return section("Base parameters", f"<p>{words}</p>", scale, estimates_table(answer.base, "combination", "wnnnt"))


def parameters_section(answer: Answer) -> str:
    """Single parameters; those that no motion depends on in one line."""
    nothing = answer.no_effect
    line = (
        f'<p class="note">{len(nothing)} parameters have no effect on any motion of this robot and are not listed: '
        f"{escape(', '.join(nothing))}.</p>"
        if nothing
        else ""
    )
    if not answer.parameters:
        return section("Single parameters", line or "<p>Only networks were fitted.</p>")
    known = [e for e in answer.parameters if e.verdict not in UNSURE] or answer.parameters
    picture = folded("change from the description, drawn", pictures([plots.interval_picture(known)]))
    return section("Single parameters", estimates_table(answer.parameters, "parameter", "tnnnt"), line, picture)


def estimates_table(rows: Sequence[Estimate], what: str, kinds: str) -> str:
    """Estimates with intervals; what the data do not determine is folded if there is much of it."""
    sure = [e for e in rows if e.verdict not in UNSURE]
    rest = [e for e in rows if e.verdict in UNSURE]
    if len(rows) <= MANY_ROWS // 2 or not rest:
        return _estimates([*sure, *rest], what, kinds)
    unknown = all(e.verdict == NOT_CONVERGED for e in rest)
    title = f"{len(rest)} values without intervals" if unknown else f"{len(rest)} more that the data do not determine"
    return (_estimates(sure, what, kinds) if sure else "") + folded(title, _estimates(rest, what, kinds))


def _estimates(rows: Sequence[Estimate], what: str, kinds: str) -> str:
    cells = [
        (judged(e.name, e.verdict), f"<b>{e.value:.{digits(e.lower, e.upper)}g}</b>",
         interval(e._asdict()) if e.has_interval else "unknown", _described(e.before), escape(e.unit))
        for e in rows
    ]  # fmt: skip
    return table((what, "after", "95 % interval", "before", "unit"), cells, kinds)


def _described(value: float) -> str:
    return f"{0.0 if abs(value) < ROUNDING else value:.4g}"


def findings_section(findings: Sequence[Finding]) -> str:
    """What was found in the logs, one item each, so that nothing is cut on a narrow screen."""
    if not findings:
        return section("Found in the logs", "<p>No findings.</p>")
    alike = together(findings)
    items = "".join(
        f"<li><b>{escape(f.what)}</b> ({f.count}), {escape(f.action)}: {escape(f.detail)} "
        f'<span class="note">{escape(", ".join(part for part in (f.place, f.recording) if part))}</span></li>'
        for f in alike[:MANY_FINDINGS]
    )
    more = len(alike) - MANY_FINDINGS
    return section("Found in the logs", f"<ul>{items}</ul>", f"<p>{more} more are in fit.json.</p>" if more > 0 else "")


def notes_section(notes: Sequence[str]) -> str:
    return section("Notes", listed(notes)) if notes else ""


def quality_section(answer: Answer, words: str, title: str = "Fit quality") -> str:
    """Errors of each channel in its own unit beside the noise."""
    if not answer.quality:
        return ""
    seen = any(not math.isnan(q.training) for q in answer.quality)  # training data were simulated
    rows = [
        (_with_unit(q.title, q.unit), f"<b>{q.text(q.error)}</b>", q.text(q.before), _three(q.noise),
         "" if math.isnan(q.ratio) else rounded(q.ratio), *([_three(q.training)] if seen else []),
         f"{escape(q.worst)} {q.text(q.worst_error)}")
        for q in answer.quality
    ]  # fmt: skip
    unseen = all(not math.isnan(q.after) for q in answer.quality)
    named = ("before the fit", "noise", "error / noise", *(["training"] if seen else []), "largest")
    head = ("channel", "held out" if unseen else "error", *named)
    kinds = "tnnnnnt" if seen else "tnnnnt"
    return section(title, table(head, rows, kinds), f'<p class="note">{words}</p>')
