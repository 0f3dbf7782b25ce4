"""Arrays by path, as NPZ and HDF5 files hold them, sorted into runs.

A run is a folder that holds times, with all that lies below it; an array whose columns are named and include the time
is a run of its own; without times, a folder after words such as `obs` and `actions` were taken off its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError, listed
from knuckle.sysid.raw import Column, Run, Stream, check_columns
from knuckle.sysid.words import FILLERS, KINDS, is_time, tokens

RATES = {
    "fps": 1.0,
    "rate": 1.0,
    "hz": 1.0,
    "frequency": 1.0,
    "freq": 1.0,
    "dt": -1.0,
    "timestep": -1.0,
    "period": -1.0,
}
TITLES = ("#cols", "#columns", "_columns", "_names", "/columns", "/names")


def runs_of(path: Path, arrays: Mapping[str, np.ndarray], titles: Mapping[str, list[str]] | None = None) -> list[Run]:
    """Runs from arrays by path; `titles` are names of the columns of an array."""
    titles = {**_titles(arrays), **(titles or {})}
    scalars = {key: array for key, array in arrays.items() if array.ndim == 0 or array.size == 1}
    numeric = {k: a for k, a in arrays.items() if (k not in scalars and a.dtype.kind in "biufMm") or a.dtype.names}
    columns = [c for key, array in numeric.items() for c in _columns(path, key, array, titles.get(key))]
    check_columns(path, len(columns))
    if not columns:
        raise RecordingError(path, f"no array of numbers over time; there are {listed(arrays)}")
    unread = [k for k in arrays if k not in numeric and k not in scalars and not _is_title(k, arrays)]
    notes = [("text", key, arrays[key].size, "an array of text; not read") for key in unread]
    groups: dict[str, list[Column]] = {}
    clocks = _clock_folders(columns)
    for column in columns:
        groups.setdefault(_run_folder(column.name, clocks), []).append(column)
    return [_run(path, folder, group, _rate(scalars, folder), notes) for folder, group in groups.items()]


def _titles(arrays: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    """Names of the columns of an array, from the array of text beside it."""
    found: dict[str, list[str]] = {}
    for key, array in arrays.items():
        beside = [arrays[key + end] for end in TITLES if key + end in arrays]
        folder = key.rpartition("/")[0]
        beside += [arrays[k] for k in (f"{folder}/columns" if folder else "columns",) if k in arrays]
        for names in beside:
            if names.dtype.kind in "US" and array.ndim == 2 and names.shape == array.shape[1:]:
                found.setdefault(key, [_word(name) for name in names])
    return found


def _is_title(key: str, arrays: Mapping[str, np.ndarray]) -> bool:
    return key.rpartition("/")[2] == "columns" or any(
        key.endswith(end) and key[: -len(end)] in arrays for end in TITLES
    )


def _word(name) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _columns(path: Path, key: str, array: np.ndarray, names: list[str] | None) -> list[Column]:
    if array.dtype.names:
        if array.ndim != 1:
            raise RecordingError(path, f"an array of records must have one axis, got shape {array.shape}", key)
        return [c for name in array.dtype.names for c in _columns(path, f"{key}/{name}", array[name], None)]
    if array.dtype.kind not in "biufMm":
        raise RecordingError(path, f"expected numbers, got {array.dtype}", key)
    if array.dtype.kind in "Mm":
        array = array.astype("datetime64[ns]" if array.dtype.kind == "M" else "timedelta64[ns]").astype("int64")
    if array.ndim > 2:
        array = array.reshape(len(array), -1)
    if names is not None and array.ndim == 2:
        return [Column(f"{key}/{name}", _plain(array[:, j])) for j, name in enumerate(names)]
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    return [Column(key, _plain(array))]


def _plain(array: np.ndarray) -> np.ndarray:
    """float64, or int64 where rounding would spoil stamps."""
    exact = array.dtype.kind in "iu" and array.dtype.itemsize == 8
    return np.array(array, np.int64 if exact else float)


def _clock_folders(columns: list[Column]) -> set[str]:
    return {folder for folder, _, leaf in (c.name.rpartition("/") for c in columns) if is_time(leaf)}


def _run_folder(name: str, clocks: set[str]) -> str:
    """The nearest folder above that holds times, else the path without words that only say what an array is."""
    parts = name.split("/")[:-1]
    for depth in range(len(parts), -1, -1):
        if "/".join(parts[:depth]) in clocks:
            return "/".join(parts[:depth])
    while parts and all(word in FILLERS or word in KINDS for word in tokens(parts[-1])):
        parts.pop()
    return "/".join(parts)


def _rate(scalars: Mapping[str, np.ndarray], folder: str) -> float | None:
    for key, array in scalars.items():
        where, _, leaf = key.rpartition("/")
        power = RATES.get(leaf.lower())
        if power is not None and where in ("", folder) and array.dtype.kind in "iuf":
            value = float(array.reshape(-1)[0])
            if np.isfinite(value) and value > 0:
                return value**power
    return None


def _run(path: Path, folder: str, group: list[Column], rate: float | None, notes: list) -> Run:
    length = next((len(c.values) for c in group if is_time(c.name.rpartition("/")[2])), None)
    length = length or max(len(c.values) for c in group)
    turned, notes = [], list(notes)
    for column in group:
        values = column.values
        if len(values) != length and values.ndim == 2 and values.shape[1] == length:
            notes.append(("turned array", column.name, 1, f"shape {values.shape}: time stands in the second axis"))
            values = values.T
        if len(values) != length:
            raise RecordingError(
                path,
                f"{len(values)} rows where the times have {length}; leave it out with ignore=[{column.name!r}] "
                f"if it is not a channel",
                column.name,
            )
        leaf = column.name.removeprefix(f"{folder}/") if folder else column.name
        turned.append(Column(column.name, values, leaf))
    name = f"{path.stem}/{folder}" if folder else path.stem
    return Run(name, (Stream(tuple(turned)),), rate, tuple(notes))
