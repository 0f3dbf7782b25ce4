"""Parts of the page of a report: sections, tables, pictures."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from knuckle.sysid.report.plots import FEW, VERDICTS, Picture
from knuckle.sysid.uncertainty import digits

Cells = Sequence[str]
MOST_TERMS = 3  # of a sum that is written in full


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>\n"


def beside(*sections: str) -> str:
    """Sections side by side, where there is room."""
    return f'<div class="beside">{"".join(sections)}</div>'


def table(head: Cells, rows: Iterable[Cells], kinds: str) -> str:
    """A table that scrolls in its own frame; `kinds`: t (text), n (number) or w (words) by column. Cells are HTML."""

    def line(tag: str, cells: Cells) -> str:
        return "".join(f'<{tag} class="{c}">{cell}</{tag}>' for c, cell in zip(kinds, cells, strict=True))

    body = "".join(f"<tr>{line('td', cells)}</tr>" for cells in rows)
    return f'<div class="scroll"><table><thead><tr>{line("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def pictures(shown: Sequence[Picture], of: int | None = None, what: str = "") -> str:
    """Pictures side by side; `of`: how many there would be in all, which is said if not all are shown."""
    if not shown:
        return ""
    given, shown = len(shown), [picture for picture in shown if picture[1]]
    images = "".join(
        f'<img alt="{escape(about)}" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'
        for about, svg in shown
    )
    if given > len(shown):
        missing = f"{given - len(shown)} of {given} pictures are left out: no time was left, or values are not finite."
        return f'<div class="pictures">{images}</div><p class="note">{missing}</p>'
    small = " small" if len(shown) > FEW else ""
    less = of is not None and len(shown) < of
    said = f'<p class="note">{len(shown)} of {of} {what} shown.</p>' if less else ""
    return f'<div class="pictures{small}">{images}</div>{said}'


def folded(title: str, inside: str) -> str:
    """Something that opens on a click; nothing if there is nothing inside."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>" if inside else ""


def listed(lines: Iterable[str]) -> str:
    """A list of sentences, if there are any."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def judged(name: str, verdict: str) -> str:
    """A name with its verdict beside it, or on phones below; a long sum opens on a click."""
    badge = f'<span class="badge" style="background:{VERDICTS[verdict]}">{verdict}</span>'
    return f'<div class="judged"><span>{_named(name)}</span>{badge}</div>'


def _named(name: str) -> str:
    """A sum of many terms by its first one."""
    terms = re.split(r" (?=[+-] )", name)
    if len(terms) <= MOST_TERMS:
        return escape(name)
    first = escape(f"{terms[0].lstrip('(')} and {len(terms) - 1} terms")
    return f"<details><summary>{first}</summary>{escape(name)}</details>"


def between(lower: float, upper: float, many: int) -> str:
    return f"{lower:.{many}g} &hellip; {upper:.{many}g}"


def interval(estimate: Mapping[str, Any]) -> str:
    """The interval of an estimate, with digits that tell its ends apart."""
    ends = estimate["lower"], estimate["upper"]
    return between(*ends, digits(*ends))


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
