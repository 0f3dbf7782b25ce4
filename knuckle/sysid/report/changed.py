"""What changed, for `fit.json` and for the page of a report."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from knuckle.sysid.changes.result import Change, Changes
from knuckle.sysid.changes.words import ERROR_HEAD, answer, drift_lines, gain_lines
from knuckle.sysid.report.html import listed, section, table


def data(found: Changes) -> dict[str, Any]:
    """Every number of a comparison as plain data; what is not determined is None."""
    return {
        "answer": answer(found),
        "changes": [_plain(c) for c in found.changes],
        "drifts": [_plain(c) for c in found.drifts],
        "drift_lines": drift_lines(found),
        "gains": [
            {"joint": g.joint, "scale": g.scale, "lower": _number(g.lower), "upper": _number(g.upper)}
            for g in found.gains
        ],
        "gain_lines": gain_lines(found),
        "torque_residuals": [
            {"joint": joint, "before": a, "after": b, "after_if_nothing_had_changed": c}
            for joint, (a, b, c) in found.errors.items()
        ],
        "excluded_payload": None if found.excluded is None else {"link": found.excluded[0], "mass": found.excluded[1]},
        "notes": list(found.notes),
        "blocks": list(found.blocks),
        "block": found.block,
    }


def _plain(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "place": change.place,
        "share": change.share,
        "size": _number(change.size),
        "alternatives": list(change.alternatives),
        "quantities": [
            {key: _number(x) if isinstance(x, float) else x for key, x in q._asdict().items()}
            for q in change.quantities
        ],
    }


def _number(x: float) -> float | None:
    return float(x) if np.isfinite(x) else None


def changed_section(changed: Mapping[str, Any] | None) -> str:
    """The section of a report from what `data` gives; empty without a comparison."""
    if not changed:
        return ""
    parts = [f"<p>{escape(line)}</p>" for line in changed["answer"]]
    if changed["drift_lines"]:
        parts += ["<p>Small drifts of friction and offsets:</p>", listed(changed["drift_lines"])]
    if changed["gain_lines"]:
        parts += ["<p>True effort over recorded effort, by the known load:</p>", listed(changed["gain_lines"])]
    rows = [
        (escape(row["joint"]), *(f"{x:.3g}" for k, x in row.items() if k != "joint"))
        for row in changed["torque_residuals"]
    ]
    parts += [
        "<p>Torque residuals, root mean squares (N m of hinges, N of slides):</p>",
        table(ERROR_HEAD, rows, "tnnn"),
    ]
    return section("What changed", *parts, listed(changed["notes"]))
