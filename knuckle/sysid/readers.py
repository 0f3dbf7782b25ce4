"""Logs of any format into recordings of a model, with a report of all that was found."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from knuckle.model.model import Model
from knuckle.sysid import read_csv, read_hdf5, read_mcap, read_npz, read_parquet, read_rosbag
from knuckle.sysid.assemble import drafts_of
from knuckle.sysid.check_efforts import check_efforts
from knuckle.sysid.check_motion import Units, check_units, check_velocities
from knuckle.sysid.check_rotation import check_quaternions
from knuckle.sysid.check_torques import check_torques
from knuckle.sysid.check_values import check_finite, check_frozen, check_spikes, check_wrapped, jumps
from knuckle.sysid.draft import Draft
from knuckle.sysid.drives import check_drives
from knuckle.sysid.entries import CHANNELS, names_of
from knuckle.sysid.files import LIMIT, is_saved, load_saved
from knuckle.sysid.findings import RecordingError, Report, listed
from knuckle.sysid.match import is_ignored
from knuckle.sysid.raw import Run
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


class Recordings(Sequence[Recording]):
    """Recordings that were read together, and the report of what was found in them."""

    def __init__(self, recordings: Sequence[Recording], report: Report):
        self._recordings, self.report = tuple(recordings), report

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
    max_bytes: int = LIMIT,
) -> Recordings:
    """Recordings of a model from logs: CSV, NPZ, HDF5, Parquet, MCAP, ROS bags, or folders of them.

    Columns are matched to joints, actuators, links and frames by name. Faults are repaired, left out or reported; see
    the `report` of the result.

    Args:
        columns: what columns are, where their name does not say so: {"enc_a": "q shoulder", "clk [ms]": "time"}.
        ignore: names or patterns (`camera/*`) of columns or topics to leave out.
        units: of angles without a unit in their header; None finds out.
        quaternion: order of quaternions in columns that do not name their entries; None finds out.
        rate: samples per second [Hz], where there are no times.
        max_bytes: refuse files that hold more, unpacked.

    Raises:
        RecordingError: a ValueError that names the file, the place in it, and what was expected.
    """
    paths = [source] if isinstance(source, str | Path) else list(source)
    ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    report, found, seen = Report(), [], set()
    for path in (p for given in paths for p in _files(Path(given))):
        if path.is_file() and is_saved(path):
            found.append(_checked(path, load_saved(path, max_bytes), model))
            continue
        runs = _read(path, max_bytes, ignore, seen)
        _check_mapping(path, runs, columns or {})
        with np.errstate(all="ignore"):
            drafts = [d for run in runs for d in drafts_of(path, run, model, columns or {}, ignore, rate, report)]
            found += [draft.finished() for draft in _examined(drafts, report, units, quaternion)]
    for pattern in (p for p in ignore if not any(is_ignored(name, [p]) for name in seen)):
        report.add("ignored", pattern, 0, "suspect", "no column or topic has this name")
    return Recordings(found, report)


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


def _check_mapping(path: Path, runs: Sequence[Run], columns: Mapping[str, str]) -> None:
    there = {name for run in runs for c in run.columns for name in (c.name, c.title)}
    missing = [name for name in columns if name not in there]
    if missing:
        raise RecordingError(
            path, f"columns= (--column) names {listed(missing)}; columns found: {listed(sorted(there))}"
        )


def _examined(drafts: list[Draft], report: Report, units: Units | None, quaternion: str | None) -> list[Draft]:
    """All checks, in an order in which each can rely on those before it."""
    for draft in drafts:
        check_finite(draft, report)
        check_drives(draft, report)
    check_units(drafts, report, units)
    for draft in drafts:
        check_quaternions(draft, report, quaternion)
        check_wrapped(draft, report)
        check_spikes(draft, report)
        check_frozen(draft, report)
    drafts = [part for draft in drafts for part in _parts(draft, jumps(draft, report))]
    for draft in drafts:
        check_velocities(draft, report)
        check_torques(draft, report)
        check_efforts(draft, report)
        report_gaps(draft.time, report, draft.name)
    return drafts


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
