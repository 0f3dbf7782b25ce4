"""The page of a discovery, and its section in other reports."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from knuckle.sysid.discovery.pictures import force_pictures, network_picture
from knuckle.sysid.discovery.result import Discovery
from knuckle.sysid.report.html import listed, pictures, section, table
from knuckle.sysid.report.style import STYLE

SHOWN = 20


def discovery_section(found: Discovery, states: tuple | None = None) -> str:
    """What is missing: the answer, candidates by what they buy, errors on held-out data, networks and curves.

    states: coordinates and velocities that were recorded, for the curves.
    """
    formulas = "".join(f"<p><code>{escape(k)} += {escape(v)}</code></p>" for k, v in found.formula().items())
    parts = [listed(found.answer()), formulas]
    if found.held_out:
        rows = [(escape(e.what), f"{e.error:.3g}") for e in found.held_out]
        parts.append(f"<p>Held-out segments, predicted over {found.horizon:.2g} s:</p>")
        parts.append(table(("with", "error / noise"), rows, "tn"))
    head = ("effect", "tap", "inputs", "unknown numbers", "chi-square alone", "beside the chosen", "of resamples")
    rows = [
        (
            f"<b>{escape(r.name)}</b>" if r.chosen else escape(r.name), escape(r.tap), escape(", ".join(r.inputs)),
            str(r.cost), f"{r.alone:.1f}", f"{r.given:.1f}", f"{r.stability:.0%}",
        )
        for r in found.rows[:SHOWN]
    ]  # fmt: skip
    parts.append("<p>Candidates, by the chi-square that each predicts in cross-validation:</p>")
    parts.append(table(head, rows, "tttnnnn"))
    shown = []
    if found.network is not None:
        shown.append(("networks after the lasso: inputs that are not needed are gone", network_picture(found.network)))
        shown += [] if states is None else force_pictures(found, *states)
    return section("What the model is missing", *parts, pictures(shown), listed(found.notes))


def page(found: Discovery, title: str, logs: Sequence[str], states: tuple | None = None) -> str:
    """A page of its own."""
    about = escape(", ".join(logs))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><main>'
        f"<header><h1>{escape(title)}</h1><p>{about}</p></header>{discovery_section(found, states)}"
        "</main></body></html>"
    )
