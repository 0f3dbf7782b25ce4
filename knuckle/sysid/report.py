"""The report of a fit: one HTML page that opens offline, without scripts, and a JSON file of every number."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from knuckle.sysid import report_plots as plots
from knuckle.sysid.entries import CHANNELS, names_of
from knuckle.sysid.findings import Finding, together
from knuckle.sysid.fit import Fit
from knuckle.sysid.learned import Learned, learned
from knuckle.sysid.numbers import numbers, residuals_of
from knuckle.sysid.report_style import STYLE

UNITS = {"q": " [rad or m]", "qd": " [rad/s or m/s]", "qdd": " [rad/s^2 or m/s^2]"}
MANY_FINDINGS = 200
Cells = Sequence[str]
Search = Sequence[tuple[float, float]]  # seconds, half the sum of squares


def write_report(
    folder: str | Path,
    fit: Fit,
    *,
    findings: Sequence[Finding] = (),
    search: Search = (),
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write `fit.json` and `report.html` into a folder, each whole or not at all.

    Args:
        findings: what was found in the logs. search: seconds and half the sum of squares wherever the search looked.
        about: more for the JSON file; "robot" and "logs" are named in the page.
    """
    residuals, networks = residuals_of(fit), learned(fit)
    found = {"residuals": residuals, "networks": networks, "findings": findings, "search": search, "about": about}
    data = numbers(fit, **found)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        folder / "fit.json": json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False),
        folder / "report.html": page(fit, data, residuals, networks, search),
    }
    for path, text in texts.items():
        _write_whole(path, text)
    return list(texts)


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def page(fit: Fit, data: Mapping[str, Any], residuals, networks: Sequence[Learned], search: Search) -> str:
    """The page as text."""
    name = escape(fit.model.name)
    sections = [
        _section("Parameters", _parameters(fit)),
        _section("Before and after, on data that the fit has not seen", _held_out(fit)),
        _section("What the networks learned", _networks(networks)) if networks else "",
        _section("What the data can tell", _identifiability(fit)),
        _section("What is left", _residuals(data, residuals)),
        _section("Search", _search(fit, search)),
        _section("Found in the logs", _findings(data["findings"])),
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


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>\n"


def _table(head: Cells, rows: Iterable[Cells], kinds: str) -> str:
    """A table that scrolls in its own frame; `kinds`: t (text), n (number) or w (words) by column. Cells are HTML."""

    def line(tag: str, cells: Cells) -> str:
        return "".join(f'<{tag} class="{c}">{cell}</{tag}>' for c, cell in zip(kinds, cells, strict=True))

    body = "".join(f"<tr>{line('td', cells)}</tr>" for cells in rows)
    return f'<div class="scroll"><table><thead><tr>{line("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _pictures(pictures: Iterable[plots.Picture]) -> str:
    images = "".join(
        f'<img alt="{escape(about)}" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'
        for about, svg in pictures
    )
    return f'<div class="pictures">{images}</div>'


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
    boxes = (f'<div class="card"><p>{a}</p><strong>{b}</strong><p>{c}</p></div>' for a, b, c in cards)
    return f'<div class="cards">{"".join(boxes)}</div>'


def _parameters(fit: Fit) -> str:
    def badge(verdict: str) -> str:
        return f'<span class="badge" style="background:{plots.VERDICTS[verdict]}">{verdict}</span>'

    rows = [
        (escape(e.name), badge(e.verdict), f"<b>{e.value:.4g}</b>", f"{e.lower:.4g} &hellip; {e.upper:.4g}",
         f"{e.before:.4g}", escape(e.unit))
        for e in fit.estimates
    ]  # fmt: skip
    if not rows:
        return "<p>Only networks were fitted.</p>"
    head = ("parameter", "verdict", "after", "95 % interval", "before", "unit")
    picture = _pictures([plots.interval_picture(fit.estimates)]) if fit.estimates else ""
    return _table(head, rows, "ttnnnt") + picture


def _held_out(fit: Fit) -> str:
    held_out = fit.held_out
    if held_out is None:
        return "<p>No data were held out.</p>"
    names = {
        key: names_of(fit.model, key) if key in CHANNELS else tuple(map(str, range(values.shape[-1])))
        for key, values in held_out.shots.measured.items()
    }
    units = {key: UNITS.get(key, "") for key in held_out.off_after}
    rows = [
        (escape(key + units[key]), f"{held_out.before[key]:.4g}", f"{held_out.after[key]:.4g}", f"{fit.noise[key]:.4g}")
        for key in held_out.after
    ]
    words = (
        f"<p>{held_out.pieces} pieces. The start of each is found from its first quarter (grey), with the model as it "
        f"was and as it is; the {held_out.horizon:.3g} s that follow are foretold. Errors are root mean squares.</p>"
    )
    pictures = plots.held_out_pictures(held_out, names) + plots.error_growth(held_out, fit.noise, units)
    return words + _table(("channel", "before", "after", "noise"), rows, "tnnn") + _pictures(pictures)


def _networks(networks: Sequence[Learned]) -> str:
    rows = [
        (escape(n.tap), escape(n.network), n.mode, escape(", ".join(n.inputs)), str(n.numbers),
         "not evaluated" if n.size is None else f"{n.size:.4g}", escape(n.unit))
        for n in networks
    ]  # fmt: skip
    head = ("tap", "network", "mode", "inputs", "numbers", "output (rms)", "unit")
    pictures = [picture for n in networks for picture in plots.curve_pictures(n.tap, n.unit, n.curves)]
    return _table(head, rows, "ttttnnt") + _pictures(pictures)


def _identifiability(fit: Fit) -> str:
    sure = fit.certainty
    if not sure.labels:
        return "<p>There are no physical parameters among what was fitted.</p>"
    told = "".join(f"<li>{escape(line)}</li>" for line in sure.untold())
    words = f"<ul>{told}</ul>" if told else "<p>The data tell all free parameters apart.</p>"
    explained = (
        "<p class='note'>Each direction is a combination of free parameters. Above 10 the data say much more than was "
        "known before, below 1 they say nothing.</p>"
    )
    return words + _pictures([plots.singular_picture(sure)]) + explained


def _residuals(data: Mapping[str, Any], residuals) -> str:
    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    rows = [
        (escape(key), number(s["deviation"], ".3g"), number(s["within_95"], ".1%"), number(s["correlation"], ".2f"))
        for key, s in data["residuals"].items()
    ]
    words = (
        "<p>Residuals over the noise that the fit found. If the model explains the data, they are normal and "
        "neighbours are not correlated; a correlation near 1 says that something is still missing.</p>"
    )
    lacking = "".join(f"<li>{escape(line)}</li>" for line in data["missing"])
    words += f"<ul>{lacking}</ul>" if lacking else ""
    head = ("channel", "deviation", "within 95 % band", "correlation of neighbours")
    return words + _table(head, rows, "tnnn") + _pictures(plots.residual_pictures(residuals))


def _search(fit: Fit, search: Search) -> str:
    result = fit.result
    words = (
        f"<p>{escape(str(result.status))}: {result.iterations} iterations. The noise of the channels is set to what "
        "the fit leaves, ties between pieces become firmer, and the search goes on: so the value may jump.</p>"
    )
    return words + _pictures([plots.convergence_picture(search, fit)])


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
    return _table(("recording", "place", "finding", "count", "action", "detail"), rows, "tttntw") + rest
