"""What a fit found, on the console: the answer first, then errors, base parameters, single parameters and notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from knuckle.cli_common import columns, out, plain
from knuckle.cli_results import note, warn

if TYPE_CHECKING:
    from knuckle.sysid import Fit
    from knuckle.sysid.regression import TorqueError
    from knuckle.sysid.report import Answer
    from knuckle.sysid.uncertainty import Estimate

COLOURS = {"good": "green", "care": "yellow", "bad": "red"}
FEW_ROWS, MOST_ROWS, LONGEST = 12, 40, 60  # rows of a table and characters of a name; all are in the report
UNSURE = ("not determined", "rests on the prior", "not converged")


def show(found: Fit, answer: Answer) -> None:
    """A fit: how it was made, the answer, tables and notes."""
    from knuckle.sysid.report import failures_in_words, unidentified

    _lead(answer)
    out.print(plain(found.method))
    _tables(answer)
    regression = found.regression
    if regression is not None:
        blocks = f"{regression.blocks} blocks of {regression.block:.2g} s"
        out.print(f"cut-off {regression.cutoff:.3g} Hz, {blocks}, {found.result.seconds:.1f} s")
        lines = [line for line in found.remarks() if line not in answer.warnings]
    else:
        if found.blueprint is not None:
            out.print(plain(repr(found.blueprint)))
        out.print(f"{found.result.status} after {found.result.iterations} iterations")
        lines = [*found.notes, *found.missing(), *unidentified(found, answer.no_effect, most=10)]
    for line in lines:
        note(line)
    if found.result.failures:
        note(failures_in_words(found.result.failures))


def _lead(answer: Answer) -> None:
    """Verdict, warnings, and what was left out."""
    sentences = " ".join([*answer.sentences, answer.counts()])
    out.print(f"[bold {COLOURS[answer.level]}]{answer.verdict}.[/] {plain(sentences)}")
    for line in answer.warnings:
        warn(line)
    for line in answer.left_out:
        note(f"left out: {line}")


def _tables(answer: Answer) -> None:
    if answer.quality:
        head = ("channel", "unit", "held out", "before the fit", "noise", "error / noise", "training", "largest")
        numbers = [(q.noise, q.ratio, q.training) for q in answer.quality]
        rows = [
            (q.channel, q.unit, q.text(q.after), q.text(q.before), *map(_three, values),
             f"{q.worst} {q.text(q.worst_error)}")
            for q, values in zip(answer.quality, numbers, strict=True)
        ]  # fmt: skip
        out.print(columns(head, rows))
    if answer.torques is not None:
        out.print(f"torque errors below {answer.torques.cutoff:.3g} Hz, root mean squares")
        head = ("joint", "held out", "described", "training", "effort", "unit")
        out.print(columns(head, [torque_row(e) for e in answer.torques.errors]))
    if answer.scale:
        out.print(plain(f"ratios of base parameters, S = {answer.scale}"))
    _estimates("base parameter", answer.base)
    _estimates("parameter", answer.parameters)
    if answer.no_effect:
        out.print(plain(f"{len(answer.no_effect)} parameters have no effect on any motion: {_few(answer.no_effect)}"))


def torque_row(error: TorqueError) -> tuple[str, ...]:
    """Cells of one joint."""
    return (error.joint, *map(_three, (error.held_out, error.described, error.training, error.effort)), error.unit)


def _three(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


def _estimates(what: str, rows: Sequence[Estimate]) -> None:
    """What the data determine, and the rest if that is little."""
    if not rows:
        return
    sure = [e for e in rows if e.verdict not in UNSURE]
    shown = rows if len(rows) <= FEW_ROWS else sure[:MOST_ROWS] or rows[:FEW_ROWS]
    cells = [(_short(e.name), *e.texts, e.verdict, e.unit) for e in shown]
    out.print(columns((what, "before", "value", "95 % interval", "verdict", "unit"), cells))
    if len(rows) > len(shown):
        rest = "that the data do not determine " if len(shown) == len(sure) else ""
        out.print(f"{len(rows) - len(shown)} more {what}s {rest}are in the report")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 3] + "..."


def _few(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
