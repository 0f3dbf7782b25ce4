"""HDF5 files: datasets by path; names of columns may stand in an attribute `columns` or `names`."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import Run, check_size, need
from knuckle.sysid.read_arrays import runs_of

MOST_DATASETS = 100_000
MOST_DEPTH = 20
MOST_AXES = 3
MOST_TEXTS = 10_000  # entries of text that are read as names of columns
MOST_ATTRIBUTE = 1 << 16  # bytes


def read(path: Path, max_bytes: int, skip=lambda key: False) -> list[Run]:
    h5py = need("h5py", path, "HDF5 files")
    arrays: dict[str, np.ndarray] = {}
    titles: dict[str, list[str]] = {}
    links: list[str] = []
    left = max_bytes
    check_size(path, path.stat().st_size, max_bytes)
    with h5py.File(path, "r", locking=False) as file:
        for key, dataset in _datasets(path, file, h5py, links):
            if skip(key):
                continue
            _check_storage(path, key, dataset)
            left -= _decoded_bytes(dataset)
            check_size(path, max_bytes - left, max_bytes, "unpacked, it")
            arrays[key] = _array(path, key, dataset, h5py)
            names = next((_attribute(dataset, a) for a in ("columns", "names") if a in dataset.attrs), None)
            if names is not None and arrays[key].ndim == 2 and np.shape(names) == arrays[key].shape[1:]:
                titles[key] = [n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names]
        for key in file.attrs:
            value = _attribute(file, key)
            if value is not None and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf":
                arrays.setdefault(key, np.asarray(value))
    notes = [("link", key, 1, "a link to another place; not followed") for key in links if not skip(key)]
    runs = runs_of(path, arrays, titles)
    return [replace(runs[0], notes=(*runs[0].notes, *notes)), *runs[1:]]


def _check_storage(path: Path, key: str, dataset) -> None:
    """Refuse data that lie in other files: a log must not read what its sender cannot."""
    if dataset.is_virtual:
        raise RecordingError(
            path, "a virtual dataset, made of other files, is not read; leave it out with ignore=", key
        )
    if dataset.external:
        name = str(dataset.external[0][0])[:100]
        raise RecordingError(path, f"its data lie in another file ({name!r}), which is not read", key)


def _decoded_bytes(dataset) -> int:
    """Bytes of a dataset, or of one of its chunks if that is more."""
    chunk = int(np.prod(dataset.chunks, dtype=object)) if dataset.chunks else 0
    return max(dataset.size or 0, chunk) * dataset.dtype.itemsize


def _attribute(item, name: str):
    """An attribute of moderate size; None for any other."""
    found = item.attrs.get_id(name)
    size = int(np.prod(found.shape, dtype=object)) * found.dtype.itemsize
    return item.attrs[name] if size <= MOST_ATTRIBUTE else None


def _datasets(path: Path, file, h5py, links: list[str]):
    """Datasets with their path; soft and external links are not followed, and go to `links`."""
    waiting, seen, count = deque([("", file)]), {h5py.h5o.get_info(file.id).addr}, 0
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
                links.append(key)
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
        return _texts(path, key, dataset)
    if dataset.dtype.hasobject:
        raise RecordingError(path, f"type {dataset.dtype} is not read; leave it out with ignore=", key)
    if len(dataset.shape or ()) > MOST_AXES:
        raise RecordingError(
            path, f"an array of {len(dataset.shape)} axes is no channel; leave it out with ignore=", key
        )
    return np.asarray(dataset[()])


def _texts(path: Path, key: str, dataset) -> np.ndarray:
    """Text, entry by entry: entries may all stand for one long text. What is too much for names of columns is blank."""
    if (dataset.size or 0) > MOST_TEXTS or len(dataset.shape or ()) > 1:
        return np.full(dataset.shape or (), "", "U1")
    if not dataset.shape:
        return np.array(_text(dataset[()])[:MOST_ATTRIBUTE])
    found, left = [], MOST_ATTRIBUTE
    for i in range(dataset.shape[0]):
        found.append(_text(dataset[i]))
        left -= len(found[-1])
        if left < 0:
            return np.full(dataset.shape, "", "U1")
    return np.array(found, str).reshape(dataset.shape)


def _text(item) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
