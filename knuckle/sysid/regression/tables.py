"""A regression as text: torque errors, base parameters, parameters of joints, notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from knuckle.sysid.uncertainty import digits

if TYPE_CHECKING:
    from knuckle.sysid.regression.result import Quantity, Regression


def text(found: Regression) -> str:
    """Everything, as `print` shows it."""
    parts = [
        f"torque regression of {found.model.name}: cut-off {found.cutoff:.3g} Hz, efforts "
        f"{1e3 * abs(found.delay):.1f} ms {'early' if found.delay < 0 else 'late'}, "
        f"{found.blocks} blocks of {found.block:.2g} s",
        table(("joint", "described", "training", "held out", "effort", "unit"), error_rows(found)),
        "base parameters: combinations on which forces depend",
        table(("combination", "described", "value", "95 % interval", "verdict", "unit"), rows(found.base)),
        "joints",
        table(("parameter", "described", "value", "95 % interval", "verdict", "unit"), rows(joint_parameters(found))),
    ]
    return "\n".join([*parts, *(f"note: {line}" for line in found.notes)])


def joint_parameters(found: Regression) -> list[Quantity]:
    return list(found.parameters[found.layout.inertial :])


def error_rows(found: Regression) -> list[tuple[str, ...]]:
    return [
        (e.joint, f"{e.described:.3g}", f"{e.training:.3g}", f"{e.held_out:.3g}", f"{e.effort:.3g}", e.unit)
        for e in found.errors
    ]


def rows(quantities: Sequence[Quantity], short: bool = True) -> list[tuple[str, ...]]:
    """Cells of a table; `short` cuts long names."""
    found = []
    for q in quantities:
        sure = np.isfinite(q.lower) and np.isfinite(q.upper)
        places = digits(q.lower, q.upper) if sure else 4
        interval = f"{q.lower:.{places}g} .. {q.upper:.{places}g}" if sure else ""
        name = q.name if len(q.name) <= 60 or not short else q.name[:57] + "..."
        found.append((name, f"{q.described:.4g}", f"{q.value:.{places}g}", interval, q.verdict, q.unit))
    return found


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Columns with two spaces between."""
    lines = [tuple(head), *map(tuple, body)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
