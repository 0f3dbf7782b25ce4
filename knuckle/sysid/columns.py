"""Columns that the user names: one by its name, several by a range of their numbers or a pattern of their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from knuckle.sysid.findings import RecordingError, listed
from knuckle.sysid.match import SPECIAL, Lexicon, Place, counted_by_number, entry_in, target_place
from knuckle.sysid.raw import Column, Run
from knuckle.sysid.words import title_and_unit

RANGE = re.compile(r"\s*(\d{1,5})\s*:\s*(\d{1,5})\s*")
IN_ORDER = "in the order of the columns"


def check_named(path: Path, runs: Sequence[Run], mapping: Mapping[str, str]) -> None:
    """An error for what names no column of any run."""
    missing = [key for key, value in mapping.items() if not any(_columns(run.columns, key, value)[0] for run in runs)]
    if missing:
        there = sorted({name for run in runs for c in run.columns for name in (c.name, c.title)})
        width = max(len(run.columns) for run in runs)
        names = listed(f"{key}={mapping[key]}" if is_group(mapping[key]) else key for key in missing)
        ranged = any(RANGE.fullmatch(text) for key in missing for text in (key, mapping[key]))
        more = f" (columns are counted from 1 to {width}, both ends included)" if ranged else ""
        raise RecordingError(path, f"columns= (--column) names {names}; columns found: {listed(there)}{more}")


def named_places(path: Path, run: Run, mapping: Mapping[str, str], lexicon: Lexicon) -> dict[str, Place]:
    """Places of the columns that the user names, by column."""
    found: dict[str, Place] = {}
    for key, value in mapping.items():
        columns, names, meaning = _columns(run.columns, key, value)
        if not columns:
            continue
        try:
            given = target_place(meaning, lexicon)
        except ValueError as error:
            raise RecordingError(path, str(error), names) from error
        places = _group(path, columns, given, names, lexicon) if is_group(names) else [given]
        for column, place in zip(columns, places, strict=True):
            if column.name in found:
                raise RecordingError(path, f"columns= (--column) says twice what it is: {key}={value}", column.name)
            unit = given.unit if given.unit is not None else title_and_unit(column.title)[1]
            found[column.name] = Place(place.channel, place.entry, unit, place.guessed)
    return found


def is_group(text: str) -> bool:
    """Whether a text names several columns: a range such as 2:8, or a pattern with * or ?."""
    return bool(RANGE.fullmatch(text)) or "*" in text or "?" in text


def _columns(columns: Sequence[Column], key: str, value: str) -> tuple[list[Column], str, str]:
    """Columns that a pair speaks of, the text that names them and the one that says what they are.

    Either side may name the columns: `enc_a=q elbow`, `joint_*_pos=q`, `q=joint_*_pos`, `q=2:8`, `time=1`.
    """
    exact = [c for c in columns if key in (c.name, c.title)]
    if exact and not is_group(value):
        return exact, key, value
    for names, meaning in ((value, key), (key, value)):
        if is_group(names):
            return _matching(columns, names), names, meaning
    return [c for c in columns if value in (c.name, c.title)], value, key


def _matching(columns: Sequence[Column], names: str) -> list[Column]:
    """Columns of a range, which counts them from 1 with both ends included, or those of a pattern."""
    ends = RANGE.fullmatch(names)
    if ends is None:
        return [c for c in columns if fnmatchcase(c.name, names) or fnmatchcase(c.title, names)]
    first, last = int(ends[1]), int(ends[2])
    return list(columns[first - 1 : last]) if 1 <= first <= last <= len(columns) else []


def _group(path: Path, columns: list[Column], given: Place, names: str, lexicon: Lexicon) -> list[Place]:
    """Entries of a channel for several columns: by the joints in their names, by their numbers, else in order."""
    told = f"columns= (--column): {names} matches {len(columns)} columns ({listed((c.name for c in columns), 12)})"
    if given.entry is not None or (given.channel in SPECIAL and len(columns) > 1):
        if len(columns) == 1:
            return [given]
        raise RecordingError(path, f"{told}; {given.channel} {given.entry or ''} takes one")
    if len(columns) == 1 and columns[0].values.ndim == 2:
        return [given]
    entries = lexicon.names.get(given.channel)
    if entries is None:  # a pose, a point, or a channel of the user's own
        return [Place(given.channel, c.title) for c in columns]
    headless = all(c.title.isdigit() for c in columns)
    own = [None if headless else entry_in(c, given.channel, lexicon) for c in columns]
    if all(own) and len(set(own)) == len(own):
        return [Place(given.channel, entry) for entry in own]
    numbered = counted_by_number(columns, given.channel, lexicon)
    if numbered is not None:
        return numbered
    if any(own) or len(columns) != len(entries):
        named = [f"{c.name} is {entry}" for c, entry in zip(columns, own, strict=True) if entry]
        some = f"; of these {', '.join(named[:6])}" if named else ""
        raise RecordingError(path, f"{told}{some}; {given.channel} has {len(entries)} entries: {listed(entries)}")
    return [Place(given.channel, entry, guessed=IN_ORDER) for entry in entries]
