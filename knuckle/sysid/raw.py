"""What a reader finds in a file before anything is known of the model: runs of streams of columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError

MOST_COLUMNS = 10_000
PACKAGES = {
    "h5py": "h5py",
    "pyarrow": "pyarrow",
    "mcap": "mcap",
    "mcap_ros2": "mcap-ros2-support",
    "rosbags": "rosbags",
    "zstandard": "zstandard",
    "lz4": "lz4",
}
LIMIT = 2 << 30  # bytes of a log, unpacked
EXPANSION = 200  # times as much as the file has may be in it
SMALL = 256 << 20  # bytes that any file may unpack to


@dataclass(frozen=True, eq=False)
class Column:
    """Values over the rows of a stream, (row,) or (row, entry)."""

    name: str  # unique in its run; what errors and `columns=` call it
    values: np.ndarray
    leaf: str = ""  # the part of the name that says what it is; empty: all of it
    text: bool = False  # not numbers; the values are NaN
    order: str = ""  # of the quaternion in a pose of seven entries, where the format defines it

    @property
    def title(self) -> str:
        return self.leaf or self.name


@dataclass(frozen=True, eq=False)
class Stream:
    """Columns of one length, on one clock."""

    columns: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.columns[0].values) if self.columns else 0


@dataclass(frozen=True, eq=False)
class Run:
    """What belongs together in a file; `rate` [Hz] if the file says so and has no times."""

    name: str
    streams: tuple[Stream, ...]
    rate: float | None = None
    notes: tuple[tuple[str, str, int, str], ...] = field(default=())  # what, place, count, detail

    @property
    def columns(self) -> list[Column]:
        return [column for stream in self.streams for column in stream.columns]


def need(module: str, path: Path, what: str):
    """An optional package, or the line to type."""
    try:
        return import_module(module)
    except ImportError as error:
        package = PACKAGES[module.split(".")[0]]
        raise RecordingError(
            path, f"reading {what} needs the package {package}: pip install 'knuckle[data]' (or pip install {package})"
        ) from error


class TooLarge(RecordingError):
    """A log that holds more than the limit."""


def allowed_bytes(path: Path) -> int:
    """How much a log may unpack to, where the caller sets no limit: more for larger files, so that no small one fills
    the memory."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return min(LIMIT, max(SMALL, EXPANSION * sum(file.stat().st_size for file in files)))


def check_size(path: Path, size: int, most: int, what: str = "it") -> None:
    """Refuse what would not fit."""
    if size > most:
        raise TooLarge(path, f"{what} holds {size:,} bytes, more than the limit of {most:,} (max_bytes=, --max-bytes)")


def check_columns(path: Path, count: int) -> None:
    if count > MOST_COLUMNS:
        raise RecordingError(path, f"{count:,} columns, more than the limit of {MOST_COLUMNS:,}")
