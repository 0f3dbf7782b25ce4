"""Logs of any format into recordings of a model, with a report of all that was found."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from knuckle.deadline import Deadline, OutOfTime, bounded
from knuckle.model.model import Model
from knuckle.sysid import read_csv, read_hdf5, read_mcap, read_npz, read_parquet, read_rosbag
from knuckle.sysid.assemble import drafts_of
from knuckle.sysid.check_efforts import check_efforts
from knuckle.sysid.check_frozen import check_frozen, check_stationary
from knuckle.sysid.check_motion import Units, check_units, check_velocities
from knuckle.sysid.check_rotation import check_quaternions
from knuckle.sysid.check_spikes import check_spikes
from knuckle.sysid.check_torques import check_torques
from knuckle.sysid.check_values import (
    check_absurd,
    check_finite,
    check_wrapped,
    jumps,
)
from knuckle.sysid.columns import check_named
from knuckle.sysid.currents import DriveGains
from knuckle.sysid.draft import Draft
from knuckle.sysid.drives import check_drives
from knuckle.sysid.entries import CHANNELS, names_of
from knuckle.sysid.files import is_saved, load_saved
from knuckle.sysid.findings import RecordingError, Report, listed
from knuckle.sysid.match import is_ignored
from knuckle.sysid.raw import Run, allowed_bytes
from knuckle.sysid.recording import Recording
from knuckle.sysid.times import report_gaps

MAGIC = (
    (b"PK\x03\x04", "npz"),
    (b"PK\x05\x06", "npz"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"PAR1", "parquet"),
    (b"\x89MCAP", "mcap"),
    (b"#ROSBAG", "bag"),
    (b"SQLite format 3", "bag"),
)
SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".dat", ".log"), "csv"),
    ".npz": "npz",
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), "hdf5"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".mcap": "mcap",
    **dict.fromkeys((".bag", ".db3"), "bag"),
}
READERS: dict[str, Callable[..., list[Run]]] = {
    "csv": lambda path, most, skip: read_csv.read(path, most),
    "npz": read_npz.read,
    "hdf5": read_hdf5.read,
    "parquet": read_parquet.read,
    "mcap": read_mcap.read,
    "bag": read_rosbag.read,
}


class PlacedColumn(NamedTuple):
    """What a column of a file was taken for."""

    file: str
    column: str
    channel: str
    entry: str | None  # None: all entries, in the model's order
    unit: str | None


class Recordings(Sequence[Recording]):
    """Recordings that were read together, the report of what was found in them, and what their columns are."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        report: Report,
        columns: Sequence[PlacedColumn] = (),
        drive_gains: Mapping[str, float] | None = None,
    ):
        self._recordings, self.report, self.columns = tuple(recordings), report, tuple(columns)
        self.drive_gains = dict(drive_gains or {})  # N m/A of joints whose currents were read

    def __getitem__(self, index):
        return self._recordings[index]

    def __len__(self) -> int:
        return len(self._recordings)

    def __iter__(self) -> Iterator[Recording]:
        return iter(self._recordings)

    def __repr__(self) -> str:
        return f"Recordings({len(self)} runs, {sum(map(len, self))} samples, {len(self.report)} findings)"


def read_recordings(
    source: str | Path | Sequence[str | Path],
    model: Model,
    *,
    columns: Mapping[str, str] | None = None,
    ignore: str | Sequence[str] = (),
    units: Units | None = None,
    quaternion: Literal["wxyz", "xyzw"] | None = None,
    rate: float | None = None,
    max_bytes: int | None = None,
    gains: Mapping[str, float] | None = None,
    currents: bool = False,
    deadline: Deadline | None = None,
) -> Recordings:
    """Recordings of a model from logs: CSV, NPZ, HDF5, Parquet, MCAP, ROS bags, or folders of them.

    Columns are matched to joints, actuators, links and frames by name. Faults are repaired, left out or reported; see
    the `report` of the result.

    Args:
        columns: what columns are, where their name does not say so: {"enc_a": "q shoulder", "clk [ms]": "time"}.
            Several at once by a range, counted from 1 with both ends included, or a pattern: {"q": "2:8"},
            {"q": "joint_*_pos"}.
        ignore: names or patterns (`camera/*`) of columns or topics to leave out.
        units: of angles without a unit in their header; None finds out.
        quaternion: order of quaternions in columns that do not name their entries; None finds out.
        rate: samples per second [Hz], where there are no times.
        max_bytes: refuse files that hold more, unpacked; by default 256 MiB or 200 times the file, at most 2 GiB.
        gains: torque per motor current of joints [N m/A or N/A], for columns that hold currents.
        currents: columns of torques without a unit hold motor currents [A].
        deadline: after which forces are not compared with the motion any more.

    Raises:
        RecordingError: a ValueError that names the file, the place in it, and what was expected.
    """
    paths = [source] if isinstance(source, str | Path) else list(source)
    ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    drive_gains = DriveGains(dict(gains or {}), currents).checked(model)
    report, found, seen, placed = Report(), [], set(), []
    for path in (p for given in paths for p in _files(Path(given))):
        most = allowed_bytes(path) if max_bytes is None else max_bytes
        if path.is_file() and is_saved(path):
            found.append(_checked(path, load_saved(path, most), model))
            continue
        runs = _read(path, most, ignore, seen)
        check_named(path, runs, columns or {})
        with np.errstate(all="ignore"):
            parts = [drafts_of(path, r, model, columns or {}, ignore, rate, report, drive_gains) for r in runs]
            placed += [PlacedColumn(str(path), n, p.channel, p.entry, p.unit) for _, d in parts for n, p in d.items()]
            drafts = [draft for made, _ in parts for draft in made]
            drafts = _examined(drafts, report, units, quaternion, deadline or Deadline())
            found += [draft.finished() for draft in drafts]
    for pattern in (p for p in ignore if not any(is_ignored(name, [p]) for name in seen)):
        report.add("ignored", pattern, 0, "suspect", "no column or topic has this name")
    used = {joint: gain for joint, gain in drive_gains.gains.items() if report.of("currents")}
    return Recordings(found, report, placed, used)


def _files(path: Path) -> list[Path]:
    """A file, a bag, or the logs in a folder in order of their names."""
    if not path.exists():
        raise RecordingError(path, "there is no such file")
    if path.is_file() or (path / "metadata.yaml").exists():
        return [path]
    found = sorted(
        p for p in path.iterdir() if p.suffix.lower() in SUFFIXES and p.suffix.lower() not in (".txt", ".log")
    )
    if not found:
        raise RecordingError(path, f"no logs in this folder; read are {listed(SUFFIXES)}")
    return found


def format_of(path: Path) -> str:
    """The format of a file by its first bytes, else by its suffix."""
    if path.is_dir():
        return "bag"
    with path.open("rb") as file:
        first = file.read(16)
    by_magic = next((name for magic, name in MAGIC if first.startswith(magic)), None)
    by_suffix = SUFFIXES.get(path.suffix.lower())
    if by_magic is None and by_suffix is None:
        raise RecordingError(path, f"format not known; read are {listed(SUFFIXES)}")
    return by_magic or by_suffix or ""


def _read(path: Path, max_bytes: int, ignore: Sequence[str], seen: set[str]) -> list[Run]:
    """The runs in a file; whatever a library says about a broken one becomes one kind of error. `seen`: gets names."""
    kind = format_of(path)

    def skipped(key: str) -> bool:
        seen.add(key)
        return is_ignored(key, ignore)

    try:
        runs = READERS[kind](path, max_bytes, skipped)
        seen.update(name for run in runs for column in run.columns for name in (column.name, column.title))
        return runs
    except RecordingError:
        raise
    except Exception as error:
        raise RecordingError(path, f"cannot be read as {kind}: {type(error).__name__}: {error}") from error


def _examined(
    drafts: list[Draft], report: Report, units: Units | None, quaternion: str | None, deadline: Deadline
) -> list[Draft]:
    """All checks, in an order in which each can rely on those before it."""
    for draft in drafts:
        check_absurd(draft, report)
        check_finite(draft, report)
        check_drives(draft, report)
    check_units(drafts, report, units)
    for draft in drafts:
        check_quaternions(draft, report, quaternion)
        check_wrapped(draft, report)
        check_spikes(draft, report)
        check_stationary(draft, report)
        check_frozen(draft, report)
    drafts = [part for draft in drafts for part in _parts(draft, jumps(draft, report))]
    for draft in drafts:
        check_velocities(draft, report)
        for check in (check_torques, check_efforts):
            _check_forces(check, draft, report, deadline)
        report_gaps(draft.time, report, draft.name)
    return drafts


def _check_forces(check: Callable[[Draft, Report], None], draft: Draft, report: Report, deadline: Deadline) -> None:
    """A check that needs code for the model, which compiles for some seconds the first time."""

    def checked() -> Report:
        found = Report()
        with np.errstate(all="ignore"):
            check(draft, found)
        return found

    try:
        report.extend(bounded(checked, deadline))
    except OutOfTime:
        draft.say(report, "not checked", "forces", 1, "note", "whether they fit the motion: the time was over")
    except np.linalg.LinAlgError as error:
        draft.say(report, "not checked", "forces", 1, "note", f"whether they fit the motion: {error}")


def _parts(draft: Draft, cuts: Sequence[int]) -> list[Draft]:
    edges = [0, *cuts, len(draft.time)]
    spans = [(a, b) for a, b in itertools.pairwise(edges) if b - a >= 2]
    return [draft] if not cuts else [draft.at(a, b, f"{draft.name}:{i}") for i, (a, b) in enumerate(spans)]


def _checked(path: Path, recording: Recording, model: Model) -> Recording:
    for key, channel in recording.channels.items():
        if key in CHANNELS and channel.names != names_of(model, key):
            raise RecordingError(
                path,
                f"recorded of another model: it has {listed(channel.names)}, the model {listed(names_of(model, key))}",
                key,
            )
    return recording
