"""HDF5 files: datasets by path; names of columns may stand in an attribute `columns` or `names`."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import Run, check_size, need
from knuckle.sysid.read_arrays import runs_of

MOST_DATASETS = 100_000
MOST_DEPTH = 20
MOST_AXES = 3


def read(path: Path, max_bytes: int, skip=lambda key: False) -> list[Run]:
    h5py = need("h5py", path, "HDF5 files")
    arrays: dict[str, np.ndarray] = {}
    titles: dict[str, list[str]] = {}
    left = max_bytes
    with h5py.File(path, "r", locking=False) as file:
        for key, dataset in _datasets(path, file, h5py):
            if skip(key):
                continue
            left -= dataset.size * dataset.dtype.itemsize
            check_size(path, max_bytes - left, max_bytes, "unpacked, it")
            arrays[key] = _array(path, key, dataset, h5py)
            names = next((dataset.attrs[a] for a in ("columns", "names") if a in dataset.attrs), None)
            if names is not None and arrays[key].ndim == 2 and np.shape(names) == arrays[key].shape[1:]:
                titles[key] = [n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names]
        for key, value in file.attrs.items():
            if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf":
                arrays.setdefault(key, np.asarray(value))
    return runs_of(path, arrays, titles)


def _datasets(path: Path, file, h5py):
    """Datasets with their path; links out of the file are not followed."""
    waiting, seen, count = deque([("", file)]), set(), 0
    while waiting:
        folder, group = waiting.popleft()
        if folder.count("/") > MOST_DEPTH:
            raise RecordingError(path, f"folders nested more than {MOST_DEPTH} deep", folder)
        for name in group:
            count += 1
            if count > MOST_DATASETS:
                raise RecordingError(path, f"more than {MOST_DATASETS:,} datasets")
            key = f"{folder}/{name}" if folder else name
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                continue
            item = group[name]
            if isinstance(item, h5py.Group):
                address = h5py.h5o.get_info(item.id).addr
                if address not in seen:
                    seen.add(address)
                    waiting.append((key, item))
            elif isinstance(item, h5py.Dataset):
                yield key, item


def _array(path: Path, key: str, dataset, h5py) -> np.ndarray:
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return np.array([_text(item) for item in np.ravel(dataset[()])], str).reshape(dataset.shape)
    if dataset.dtype.hasobject:
        raise RecordingError(path, f"type {dataset.dtype} is not read; leave it out with ignore=", key)
    if len(dataset.shape or ()) > MOST_AXES:
        raise RecordingError(
            path, f"an array of {len(dataset.shape)} axes is no channel; leave it out with ignore=", key
        )
    return np.asarray(dataset[()])


def _text(item) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
