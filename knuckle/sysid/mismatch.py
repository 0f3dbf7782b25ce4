"""The error for columns that belong nowhere: both sides, and options to type that fit what the columns look like."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from knuckle.sysid.compare import compare
from knuckle.sysid.entries import body_names, names_of
from knuckle.sysid.findings import listed
from knuckle.sysid.match import CURRENT, Lexicon
from knuckle.sysid.raw import Column, Run
from knuckle.sysid.words import channel_of, is_time, title_and_unit, tokens

STRANGE = frozenset(
    [
        "temperature",
        "temp",
        "voltage",
        "volt",
        "volts",
        "status",
        "mode",
        "error",
        "errors",
        "flag",
        "seq",
        "mass",
        "gain",
    ]
)
AGREES = 0.9  # correlation of increments with integrals from which on a column is the velocity of another


def mismatch(run: Run, lost: Sequence[Column], lexicon: Lexicon) -> str:
    """The message: what was found on either side, and what to type."""
    model = lexicon.model
    kinds = {c.name: "text" if c.text else f"{c.values.shape[1]} wide" for c in lost if c.text or c.values.ndim == 2}
    names = [f"{c.name} ({kinds[c.name]})" if c.name in kinds else c.name for c in lost]
    lines = [
        f"no place for {len(lost)} of {len(run.columns)} columns: {listed(names)}",
        f"columns found: {listed(c.name for c in run.columns)}",
        f"joints of the model: {listed(model.joint_names)} (nq = {model.nq}, nv = {model.nv})",
        f"actuators: {listed(model.actuators.names)}",
        f"links and frames: {listed(body_names(model))}",
        *(_without_header(run, lexicon) if _headless(run) else _advice(run, lost, lexicon)),
    ]
    return "\n  ".join(lines)


def _headless(run: Run) -> bool:
    return all(c.name.isdigit() for c in run.columns)


def _advice(run: Run, lost: Sequence[Column], lexicon: Lexicon) -> list[str]:
    """What to type for the first column that belongs nowhere."""
    first, meaning = lost[0], _meaning(run, lost[0], lexicon)
    if meaning is None:
        return [
            f"leave out what is not needed with ignore=[{first.name!r}]; on the command line --ignore '{first.name}';",
            "say what a column is with columns=, such as {'NAME': 'q JOINT [rad]'} (--column 'NAME=q JOINT [rad]')",
        ]
    return [
        f"say what a column is with columns={{{first.name!r}: {meaning!r}}}, or leave it out with "
        f"ignore=[{first.name!r}];",
        f"on the command line --column '{first.name}={meaning}' or --ignore '{first.name}'",
    ]


def _meaning(run: Run, column: Column, lexicon: Lexicon) -> str | None:
    """What a column may be, by the words in its name; None if they speak of something that no channel holds."""
    if not any(is_time(c.title) for c in run.columns):
        return "time [s]"
    words = tokens(title_and_unit(column.title)[0])
    said = [channel for word in words if (channel := channel_of((word,)))]
    joint = (lexicon.model.joint_names or ("joint",))[0]
    if CURRENT in said:
        return f"{CURRENT} {joint} [A]"
    if STRANGE & set(words) or column.text:
        return None
    return f"{said[0] if said else 'q'} {joint}"


def _without_header(run: Run, lexicon: Lexicon) -> list[str]:
    """Options for a table without a header, guessed from its values: times, positions, their derivatives, the rest."""
    options = " ".join(f"--column '{channel}={names}'" for channel, names in _layout(run, lexicon))
    head = "the log has no header: say what the columns are, counted from 1, both ends of a range included;"
    if not options:
        example = f"--column 'time=1' --column 'q=2:{1 + lexicon.model.nq}'"
        return [head, f"on the command line such as {example} (columns={{'time': '1', ...}} in Python)"]
    return [head, f"its values look like {options} (columns={{'time': '1', ...}} in Python)"]


def _layout(run: Run, lexicon: Lexicon) -> list[tuple[str, str]]:
    """Channels and ranges of columns, if the table is times and blocks as wide as the model."""
    model, values = lexicon.model, [c.values for c in run.columns]
    if model.nq != model.nv or any(v.ndim != 1 or not np.isfinite(v).all() for v in values) or len(values[0]) < 40:
        return []
    timed = bool(np.all(np.diff(values[0]) > 0))
    blocks, rest = divmod(len(values) - timed, model.nv)
    if not timed or rest or not 1 <= blocks <= 3:
        return []
    starts = [1 + k * model.nv for k in range(blocks)]
    ranges = [f"{s + 1}:{s + model.nv}" if model.nv > 1 else f"{s + 1}" for s in starts]
    found = [("time", "1"), ("q", ranges[0])]
    for start, where in zip(starts[1:], ranges[1:], strict=True):
        derivative = _is_derivative(values[0], values[1 : 1 + model.nv], values[start : start + model.nv])
        taken = {channel for channel, _ in found}
        channel = "qd" if derivative and "qd" not in taken else "tau" if "tau" not in taken else None
        if channel is None or not names_of(model, channel):
            return []
        found.append((channel, where))
    return found


def _is_derivative(time: np.ndarray, positions: Sequence[np.ndarray], speeds: Sequence[np.ndarray]) -> bool:
    fits = [compare(time, x, v) for x, v in zip(positions, speeds, strict=True)]
    return any(fit is not None and fit.agreement > AGREES for fit in fits)
