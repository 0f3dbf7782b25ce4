"""Recordings as files of their own: NPZ and CSV that read back identical, without a model."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import LIMIT, check_size
from knuckle.sysid.read_npz import arrays_of
from knuckle.sysid.recording import Channel, Recording

MARK = "knuckle recording 1"


def save(recording: Recording, path: str | Path) -> Path:
    """Write a recording to .npz or .csv; in a CSV file empty cells were not measured."""
    path = Path(path)
    head = {
        "name": recording.name,
        "source": recording.source,
        "channels": {k: c.names for k, c in recording.channels.items()},
    }
    if path.suffix == ".npz":
        arrays: dict[str, np.ndarray] = {"time": recording.time, MARK: np.array(json.dumps(head))}
        for i, channel in enumerate(recording.channels.values()):
            arrays |= {f"values {i}": channel.values, f"valid {i}": channel.valid}
        np.savez_compressed(path, allow_pickle=False, **arrays)
    elif path.suffix == ".csv":
        _write_csv(recording, path, head)
    else:
        raise ValueError(f"{path}: recordings are saved as .npz or .csv, not {path.suffix!r}")
    return path


def _write_csv(recording: Recording, path: Path, head: dict) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {MARK} {json.dumps(head)}\n")
        writer = csv.writer(file)
        writer.writerow(["time", *(f"{key} {name}" for key, c in recording.channels.items() for name in c.names)])
        for i, t in enumerate(recording.time.tolist()):
            row = [repr(t)]
            for channel in recording.channels.values():
                row += [
                    repr(v) if ok else "" for v, ok in zip(channel.values[i].tolist(), channel.valid[i], strict=True)
                ]
            writer.writerow(row)


def is_saved(path: Path) -> bool:
    """Whether a file was written by `save`."""
    if path.suffix == ".csv":
        with path.open("rb") as file:
            return file.read(len(MARK) + 2) == f"# {MARK}".encode()
    if path.suffix == ".npz":
        with path.open("rb") as file:
            return MARK.encode() in file.read(1 << 16) or MARK.encode() in _tail(file)
    return False


def _tail(file) -> bytes:
    file.seek(0, 2)
    file.seek(max(file.tell() - (1 << 16), 0))
    return file.read()


def load_saved(path: str | Path, max_bytes: int = LIMIT) -> Recording:
    """A recording that `save` wrote."""
    path = Path(path)
    try:
        return _load_npz(path, max_bytes) if path.suffix == ".npz" else _load_csv(path, max_bytes)
    except RecordingError:
        raise
    except Exception as error:
        raise RecordingError(path, f"not a recording that was saved by Knuckle: {error}") from error


def _load_npz(path: Path, max_bytes: int) -> Recording:
    arrays = arrays_of(path, max_bytes)
    head = json.loads(str(arrays[MARK]))
    channels = {
        key: Channel(arrays[f"values {i}"], arrays[f"valid {i}"], tuple(names))
        for i, (key, names) in enumerate(head["channels"].items())
    }
    return Recording(arrays["time"], channels, head["name"], head["source"])


def _load_csv(path: Path, max_bytes: int) -> Recording:
    check_size(path, path.stat().st_size, max_bytes)
    with path.open(newline="", encoding="utf-8") as file:
        first = file.readline()
        head = json.loads(first.removeprefix(f"# {MARK} "))
        rows = list(csv.reader(file))[1:]
    table = np.array([[float(cell) if cell else np.nan for cell in row] for row in rows], float)
    channels, start = {}, 1
    for key, names in head["channels"].items():
        block = table[:, start : start + len(names)]
        channels[key] = Channel(block, np.isfinite(block), tuple(names))
        start += len(names)
    return Recording(table[:, 0], channels, head["name"], head["source"])
