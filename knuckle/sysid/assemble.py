"""Streams of a run brought to one clock, each column at its place: drafts of recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid import units
from knuckle.sysid.check_rotation import check_quaternions
from knuckle.sysid.check_values import check_wrapped
from knuckle.sysid.columns import named_places
from knuckle.sysid.currents import DriveGains
from knuckle.sysid.draft import Draft
from knuckle.sysid.entries import CHANNELS, POINT_PREFIX, POSE_PREFIX, dimensions, names_of
from knuckle.sysid.findings import RecordingError, Report, listed
from knuckle.sysid.match import Lexicon, Place, indexed, is_ignored, place
from knuckle.sysid.mismatch import mismatch
from knuckle.sysid.raw import Column, Run, Stream
from knuckle.sysid.recording import Channel
from knuckle.sysid.split import interpolated
from knuckle.sysid.times import LONG_AGO, Clock, clock, in_order, pieces, without_duplicates
from knuckle.sysid.words import is_derived

LATEST = 1e12  # times beyond this [s] are none
ROW_NUMBERS = ("index", "row", "unnamed: 0", "1")


def drafts_of(
    path: Path,
    run: Run,
    model: Model,
    mapping: Mapping[str, str],
    ignore: Sequence[str],
    rate: float | None,
    report: Report,
    drive_gains: DriveGains = DriveGains(),
) -> tuple[list[Draft], dict[str, Place]]:
    """One draft for each stretch of a run in which time runs on, and where its columns belong."""
    for what, where, count, detail in run.notes:
        report.add(what, where, count, "note", detail, run.name)
    places = drive_gains.applied(path, _places(path, run, model, mapping, ignore, report), model, run.name, report)
    streams = [s for s in run.streams if any(c.name in places and places[c.name].channel != "time" for c in s.columns)]
    if not streams:
        raise RecordingError(
            path, f"nothing to use but times in {run.name}; columns: {listed(c.name for c in run.columns)}"
        )
    clocks = [_clock(path, stream, places, run, rate, report) for stream in streams]
    first = min(clocks, key=lambda c: c.start)
    origin = first if abs(first.start) > LONG_AGO else None
    if origin is not None:
        detail = f"counted from the first, {origin.start:.3f} s of the epoch"
        report.add("calendar times", "time", 1, "note", detail, run.name)
    cut = [_cut(s, c.seconds(origin), places, run, report) for s, c in zip(streams, clocks, strict=True)]
    if len({len(parts) for parts in cut}) > 1:
        counts = ", ".join(f"{_title(s, places)}: {len(parts)}" for s, parts in zip(streams, cut, strict=True))
        raise RecordingError(path, f"clocks of {run.name} go back a different number of times ({counts})")
    drafts = []
    for i, parts in enumerate(zip(*cut, strict=True)):
        name = run.name if len(cut[0]) == 1 else f"{run.name}#{i}"
        singles = [_draft(path, name, model, s, part, places) for s, part in zip(streams, parts, strict=True)]
        drafts.append(_merged(singles, report))
    if not drafts:
        raise RecordingError(path, f"fewer than two samples with a time in {run.name}")
    return drafts, places


def _places(path: Path, run: Run, model: Model, mapping: Mapping[str, str], ignore: Sequence[str], report: Report):
    """Where each column belongs; an error that lists both sides for those that belong nowhere."""
    lexicon = Lexicon(model)
    found: dict[str, Place] = {}
    waiting: list[Column] = []
    given = named_places(path, run, mapping, lexicon)
    for column in run.columns:
        if is_ignored(column.name, ignore) or is_ignored(column.title, ignore):
            report.add("ignored", column.name, 1, "note", "as asked", run.name)
            continue
        if column.name in given:
            found[column.name] = given[column.name]
            continue
        own = place(column, lexicon)
        if own is None:
            waiting.append(column)
        else:
            found[column.name] = own
    taken = {(p.channel, p.entry) for p in found.values()}
    counted = {k: p for k, p in indexed(waiting, lexicon).items() if (p.channel, p.entry) not in taken}
    found |= counted
    lost = [c for c in waiting if c.name not in counted and not _needless(c, report, run)]
    if lost:
        raise RecordingError(path, mismatch(run, lost, lexicon))
    _check_twice(path, found)
    for name, p in found.items():
        if p.guessed:
            report.add("matched", name, 1, "note", f"{p.channel} {p.entry or ''}: {p.guessed}", run.name)
    return _points(found)


def _needless(column: Column, report: Report, run: Run) -> bool:
    """Row numbers and energies are left out without asking, and reported."""
    if is_derived(column.title):
        report.add("derived", column.name, 1, "note", "follows from the state; not read", run.name)
        return True
    numbers = column.values
    counts = numbers.ndim == 1 and not column.text and len(numbers) > 1 and bool(np.all(np.diff(numbers) == 1))
    if column.title.lower() in ROW_NUMBERS and counts:
        report.add("row numbers", column.name, 1, "note", "not read", run.name)
        return True
    return False


def _check_twice(path: Path, found: Mapping[str, Place]) -> None:
    seen: dict[tuple[str, str | None], str] = {}
    whole = {p.channel: name for name, p in found.items() if p.entry is None and p.channel not in ("time", "episode")}
    for name, p in found.items():
        if p.channel in ("time", "episode") or (p.entry is None and p.channel not in CHANNELS):
            continue
        other = seen.setdefault((p.channel, p.entry), name)
        other = whole.get(p.channel, other) if p.entry is not None else other
        if other != name:
            raise RecordingError(
                path,
                f"columns {other!r} and {name!r} both are {p.channel} {p.entry or ''}; "
                "leave one out with ignore= (--ignore)",
            )


def _points(found: dict[str, Place]) -> dict[str, Place]:
    """Positions without rotations are points."""
    turned = {p.channel for p in found.values() if p.entry is None or p.entry.startswith("q")}
    result = {}
    for name, p in found.items():
        if p.channel.startswith(POSE_PREFIX) and p.channel not in turned:
            p = Place(POINT_PREFIX + p.channel.removeprefix(POSE_PREFIX), p.entry, p.unit, p.guessed, p.scale)
        result[name] = p
    return result


def _title(stream: Stream, places: Mapping[str, Place]) -> str:
    return next(c.name for c in stream.columns if c.name in places)


def _clock(path: Path, stream: Stream, places, run: Run, rate: float | None, report: Report) -> Clock:
    times = [c for c in stream.columns if c.name in places and places[c.name].channel == "time"]
    if len(times) == 2:
        pair = _seconds_and_rest(times, places)
        if pair is not None:
            return pair
    if len(times) > 1:
        names = listed(c.name for c in times)
        raise RecordingError(path, f"several columns of times: {names}; leave all but one out with ignore= (--ignore)")
    if not times:
        given = rate or run.rate
        if not given:
            raise RecordingError(
                path, f"no column of times in {run.name}; say how often it was sampled with rate= (--rate) [Hz]"
            )
        report.add("no times", run.name, len(stream), "note", f"sampled at {given:.6g} Hz", run.name)
        return Clock(np.arange(len(stream)) / given, 1.0)
    if times[0].values.ndim != 1:
        raise RecordingError(path, f"times must have one axis, got shape {times[0].values.shape}", times[0].name)
    found = clock(times[0].values, places[times[0].name].unit, times[0].name, report, run.name)
    if found is None:
        raise RecordingError(
            path, f"unit {places[times[0].name].unit!r} is none of time; there are {listed(units.TIME)}", times[0].name
        )
    return found


def _seconds_and_rest(times: Sequence[Column], places) -> Clock | None:
    """Whole seconds and nanoseconds in two columns."""
    factors = [units.time_factor(places[c.name].unit or "") for c in times]
    if sorted(f or 0.0 for f in factors) != [1e-9, 1.0] or any(c.values.ndim != 1 for c in times):
        return None
    whole, rest = times if factors[0] == 1.0 else times[::-1]
    if not all(np.isfinite(c.values).all() and np.abs(c.values).max(initial=0) < 1e10 for c in times):
        return None
    return Clock(whole.values.astype(np.int64) * 1_000_000_000 + rest.values.astype(np.int64), 1e-9)


def _cut(stream: Stream, time: np.ndarray, places, run: Run, report: Report) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of the stream and their times, for each stretch."""
    place_name = _title(stream, places)
    time = np.where(np.abs(time) < LATEST, time, np.nan)
    rows = in_order(time, place_name, report, run.name)
    episode = next((c for c in stream.columns if c.name in places and places[c.name].channel == "episode"), None)
    numbers = episode.values[rows] if episode is not None and episode.values.ndim == 1 else None
    found = []
    for start, stop in pieces(time[rows], numbers, place_name, report, run.name):
        kept, t = without_duplicates(time[rows[start:stop]], place_name, report, run.name)
        if len(t) >= 2:
            found.append((rows[start:stop][kept], t))
    return found


def _draft(
    path: Path,
    name: str,
    model: Model,
    stream: Stream,
    part: tuple[np.ndarray, np.ndarray],
    places: Mapping[str, Place],
) -> Draft:
    """One stretch of a stream."""
    rows, time = part
    draft = Draft(name, str(path), model, time, {}, {})
    for column in stream.columns:
        p = places.get(column.name)
        if p is None or p.channel in ("time", "episode"):
            continue
        _place_column(path, draft, column, p, np.asarray(column.values[rows], float))
        if column.order == "wxyz" or (p.entry or "").endswith(("qw", ".w")):
            draft.order_known.add(p.channel)
    return draft


def _place_column(path, draft: Draft, column: Column, p: Place, values: np.ndarray) -> None:
    """Values in SI into their entry of their channel; what no column fills stays NaN."""
    if p.channel in CHANNELS or p.channel.startswith((POSE_PREFIX, POINT_PREFIX)):
        names, kinds = names_of(draft.model, p.channel), dimensions(draft.model, p.channel)
    else:
        width = values.shape[1] if values.ndim == 2 else 1
        names = (p.entry or column.title,) if width == 1 else tuple(f"{column.title}[{i}]" for i in range(width))
        names = (*draft.names.get(p.channel, ()), *names)
        kinds = ("number",) * len(names)
        old = draft.values.get(p.channel, np.zeros((len(draft.time), 0)))
        draft.values[p.channel] = np.column_stack([old, values])
        draft.names[p.channel] = names
        return
    block = draft.values.setdefault(p.channel, np.full((len(draft.time), len(names)), np.nan))
    draft.names[p.channel] = names
    chosen = list(range(len(names))) if p.entry is None else [names.index(p.entry)]
    values = values[:, None] if values.ndim == 1 else values
    if values.shape[1] != len(chosen):
        raise RecordingError(path, f"{p.channel} has {len(chosen)} entries, the column {values.shape[1]}", column.name)
    for source, j in enumerate(chosen):
        factor = 1.0 if p.unit is None else units.factor(p.unit, p.channel, kinds[j])
        if factor is None:
            known = listed(units.known(p.channel, kinds[j]))
            raise RecordingError(
                path, f"unit {p.unit!r} is none of {p.channel} {names[j]}; there are {known}", column.name
            )
        block[:, j] = factor * p.scale[source % len(p.scale)] * values[:, source]
        if p.unit:
            draft.units_known.add((p.channel, names[j]))


def _merged(drafts: Sequence[Draft], report: Report) -> Draft:
    """All channels on the clock of the positions, or else of the stream with most samples."""
    if len(drafts) == 1:
        return drafts[0]
    for draft in drafts:
        check_quaternions(draft, report, None)
        check_wrapped(draft, report)
    main = max(drafts, key=lambda d: ("q" in d.values, len(d.time)))
    for draft in drafts:
        if draft is main:
            continue
        same = len(draft.time) == len(main.time) and np.array_equal(draft.time, main.time)
        if not same:
            what = ", ".join(draft.values)
            period = float(np.median(np.diff(draft.time)))
            detail = f"a clock of its own (step {period:.4g} s); interpolated to the times of {', '.join(main.values)}"
            main.say(report, "own clock", what, len(draft.time), "repaired", detail)
        for channel, values in draft.values.items():
            moved = values if same else _moved(draft.time, values, draft.names[channel], main.time, channel)
            old = main.values.get(channel)
            main.values[channel] = moved if old is None else np.where(np.isfinite(old), old, moved)
            main.names[channel] = draft.names[channel]
        main.units_known |= draft.units_known
        main.order_known |= draft.order_known
    return main


def _moved(old: np.ndarray, values: np.ndarray, names: tuple[str, ...], new: np.ndarray, channel: str) -> np.ndarray:
    if len(old) < 2:
        return np.full((len(new), values.shape[1]), np.nan)
    valid = np.isfinite(values)
    found = interpolated(old, Channel(np.where(valid, values, 0.0), valid, names), new, channel)
    return np.where(found.valid, found.values, np.nan)
