"""The report of a fit: one HTML page that opens offline, without scripts, and a JSON file of every number."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from knuckle.sysid import report_plots as plots
from knuckle.sysid.entries import CHANNELS, POINT_PREFIX, POSE_PREFIX, names_of
from knuckle.sysid.findings import Finding, together
from knuckle.sysid.fit import Fit
from knuckle.sysid.held_out import HeldOutCurve, held_out_curves
from knuckle.sysid.learned import Learned, learned
from knuckle.sysid.numbers import as_text, numbers, residuals_of
from knuckle.sysid.recording import Recording
from knuckle.sysid.report_html import beside, interval, judged, listed, number, pictures, section, table
from knuckle.sysid.report_more import networks_section, next_section, posterior_section
from knuckle.sysid.report_style import STYLE
from knuckle.sysid.uncertainty import digits

UNITS = {"q": " [rad or m]", "qd": " [rad/s or m/s]", "qdd": " [rad/s^2 or m/s^2]"}
MANY_FINDINGS = 200
Search = Sequence[tuple[float, float]]  # seconds, half the sum of squares


def write_report(
    folder: str | Path,
    fit: Fit,
    *,
    findings: Sequence[Finding] = (),
    search: Search = (),
    recordings: Sequence[Recording] = (),
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write `fit.json` and `report.html` into a folder, each whole or not at all.

    Args:
        findings: what was found in the logs. search: seconds and half the sum of squares wherever the search looked.
        recordings: what was fitted to, by which pieces are named.
        about: more for the JSON file. The page names "robot" and "logs", and shows "notes", "posterior" and
            "next_experiment" if they are there.
    """
    residuals, networks, curves = residuals_of(fit), learned(fit), _curves(fit)
    found = {"residuals": residuals, "networks": networks, "findings": findings, "search": search, "curves": curves}
    data = numbers(fit, **found, recordings=recordings, about=about)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        folder / "fit.json": as_text(data),
        folder / "report.html": page(fit, data, residuals, networks, curves, search),
    }
    for path, text in texts.items():
        _write_whole(path, text)
    return list(texts)


def _curves(fit: Fit) -> list[HeldOutCurve]:
    if fit.held_out is None:
        return []

    def named(key: str, count: int) -> tuple[str, ...]:
        known = key in CHANNELS or key.startswith((POSE_PREFIX, POINT_PREFIX))
        return names_of(fit.model, key) if known else tuple(map(str, range(count)))

    names = {key: named(key, values.shape[-1]) for key, values in fit.held_out.shots.measured.items()}
    return held_out_curves(fit.held_out, names)[: plots.MOST_PANELS]


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def page(
    fit: Fit,
    data: Mapping[str, Any],
    residuals: Mapping[str, np.ndarray],
    networks: Sequence[Learned],
    curves: Sequence[HeldOutCurve],
    search: Search,
) -> str:
    """The page as text."""
    name = escape(fit.model.name)
    sections = [
        section("Notes", listed(data["notes"])) if data.get("notes") else "",
        section("Parameters", _parameters(fit)),
        section("Before and after, on data that the fit has not seen", _held_out(fit, curves)),
        networks_section(networks),
        posterior_section(data.get("posterior")),
        next_section(data.get("next_experiment")),
        section("What is left", _residuals(data, residuals)),
        beside(section("What the data can tell", _identifiability(fit)), section("Search", _search(fit, search))),
        section("Found in the logs", _findings(data["findings"])),
    ]
    logs = (
        ", ".join(escape(Path(log).name) for log in data.get("logs", ())) or f"{fit.shots.count} pieces of recordings"
    )
    runs = data.get("recordings", ())
    size = f", {len(runs)} recordings, {sum(r['samples'] for r in runs)} samples" if runs else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}: fit</title><style>{STYLE}</style></head><body><main>
<header><h1>{name}</h1><p>fitted to {logs}{size}</p></header>
{_cards(fit, data, search)}
{"".join(sections)}
<footer>Knuckle {escape(str(data.get("knuckle", "")))}. All numbers are in fit.json.</footer>
</main></body></html>
"""


def _cards(fit: Fit, data: Mapping[str, Any], search: Search) -> str:
    cards = []
    if fit.held_out is not None:
        for key, after in list(fit.held_out.after.items())[:2]:
            before = fit.held_out.before[key]
            times = f"{before / after:.3g} times smaller" if after < before else "not smaller"
            unit = UNITS.get(key, "")
            cards.append((f"held-out error of {escape(key)}{unit}", f"{before:.3g} &rarr; {after:.3g}", times))
    if fit.estimates:
        sure = sum(e.verdict == "determined" for e in fit.estimates)
        cards.append(("parameters determined", f"{sure} of {len(fit.estimates)}", "by these data"))
    left = ("more than noise", "the model lacks something") if data["missing"] else ("noise", "the model holds")
    cards.append(("what is left", *left))
    result = fit.result
    spent = f"{len(search)} evaluations, {search[-1][0]:.1f} s" if search else f"{result.iterations} iterations"
    cards.append(("search", escape(str(result.status)), spent))
    narrow = [card for card in cards if "&rarr;" not in card[1]]
    wide = [card for card in cards if card not in narrow[: len(narrow) // 2 * 2]]  # on phones, with two in a row
    boxes = (
        f'<div class="card{" wide" if card in wide else ""}"><p>{a}</p><strong>{b}</strong><p>{c}</p></div>'
        for card in cards
        for a, b, c in [card]
    )
    return f'<div class="cards">{"".join(boxes)}</div>'


def _parameters(fit: Fit) -> str:
    rows = [
        (judged(e.name, e.verdict), f"<b>{e.value:.{digits(e.lower, e.upper)}g}</b>", interval(e._asdict()),
         f"{e.before:.4g}", escape(e.unit))
        for e in fit.estimates
    ]  # fmt: skip
    if not rows:
        return "<p>Only networks were fitted.</p>"
    head = ("parameter", "after", "95 % interval", "before", "unit")
    picture = pictures([plots.interval_picture(fit.estimates)]) if fit.estimates else ""
    return table(head, rows, "tnnnt") + picture


def _held_out(fit: Fit, curves: Sequence[HeldOutCurve]) -> str:
    held_out = fit.held_out
    if held_out is None:
        return "<p>No data were held out.</p>"
    units = {key: UNITS.get(key, "") for key in held_out.off_after}
    rows = [
        (escape(key + units[key]), f"{held_out.before[key]:.4g}", f"{held_out.after[key]:.4g}", f"{fit.noise[key]:.4g}")
        for key in held_out.after
    ]
    drawn = len(curves[0].measured) if curves else 0
    words = (
        f"<p>{held_out.pieces} pieces. The start of each is found from its first quarter (grey), with the model as it "
        f"was and as it is; the {held_out.horizon:.3g} s that follow are foretold. Errors are root mean squares"
        f"{f'; {drawn} pieces are drawn' if drawn < held_out.pieces else ''}.</p>"
    )
    shown = plots.held_out_pictures(curves, (held_out.seen - 1) * held_out.shots.period)
    growth = plots.error_growth(held_out, fit.noise, units)
    entries = sum(off.shape[-1] for off in held_out.off_after.values())
    return (
        words
        + table(("channel", "before", "after", "noise"), rows, "tnnn")
        + pictures(shown, entries, "entries are")
        + pictures(growth, len(held_out.off_after), "channels are")
    )


def _identifiability(fit: Fit) -> str:
    sure = fit.certainty
    if not sure.labels:
        return "<p>There are no physical parameters among what was fitted.</p>"
    words = listed(sure.untold()) or "<p>The data tell all free parameters apart.</p>"
    explained = (
        "<p class='note'>Each direction is a combination of free parameters. Above 10 the data say much more than was "
        "known before, below 1 they say nothing.</p>"
    )
    return words + pictures([plots.singular_picture(sure)]) + explained


def _residuals(data: Mapping[str, Any], residuals) -> str:
    rows = [
        (escape(key), number(s["deviation"], ".3g"), number(s["within_95"], ".1%"), number(s["correlation"], ".2f"))
        for key, s in data["residuals"].items()
    ]
    words = (
        "<p>Residuals over the noise that the fit found. If the model explains the data, they are normal and "
        "neighbours are not correlated; a correlation near 1 says that something is still missing.</p>"
    )
    words += listed(data["missing"])
    head = ("channel", "deviation", "within 95 % band", "correlation of neighbours")
    shown = plots.residual_pictures(residuals)
    return words + table(head, rows, "tnnn") + pictures(shown, 2 * len(residuals), "pictures of channels are")


def _search(fit: Fit, search: Search) -> str:
    result = fit.result
    words = (
        f"<p>{escape(str(result.status))}: {result.iterations} iterations. The noise of the channels is set to what "
        "the fit leaves, ties between pieces become firmer, and the search goes on: so the value may jump.</p>"
    )
    made = result.searches
    if made is not None:
        ended = np.sort(made.value[np.isfinite(made.value)])
        best = (
            f"; the best ended at {ended[0]:.6g}, half of them at {np.median(ended):.6g} or below" if len(ended) else ""
        )
        words += f"<p>{len(made)} local searches{best}. Where each began and ended is in fit.json.</p>"
    words += f"<p>{escape(failures_in_words(result.failures))}.</p>" if result.failures else ""
    return words + pictures([plots.convergence_picture(search, fit)])


def failures_in_words(failures: Sequence[str]) -> str:
    """How many tasks of a global search gave nothing, and why the first did."""
    last = failures[0].strip().splitlines()[-1]
    return f"{len(failures)} tasks of the global search failed and gave nothing; the first so: {last}"


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    if not findings:
        return "<p>Nothing that needed a word.</p>"
    alike = together(Finding(**f) for f in findings)
    rows = [
        tuple(escape(str(getattr(f, key))) for key in ("recording", "place", "what", "count", "action", "detail"))
        for f in alike[:MANY_FINDINGS]
    ]
    more = len(alike) - MANY_FINDINGS
    rest = f"<p>{more} more are in fit.json.</p>" if more > 0 else ""
    return table(("recording", "place", "finding", "count", "action", "detail"), rows, "twtntw") + rest
