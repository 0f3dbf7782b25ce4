"""NPZ files: never a pickle, never more than the limit."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import Run, check_size
from knuckle.sysid.read_arrays import runs_of

MOST_ARRAYS = 100_000
MOST_AXES = 3


def read(path: Path, max_bytes: int, skip=lambda key: False) -> list[Run]:
    return runs_of(path, arrays_of(path, max_bytes, skip))


def arrays_of(path: Path, max_bytes: int, skip=lambda key: False) -> dict[str, np.ndarray]:
    """The arrays of a file by name, but for those to skip."""
    check_size(path, path.stat().st_size, max_bytes)
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(".npy")]
        if len(members) > MOST_ARRAYS:
            raise RecordingError(path, f"{len(members):,} arrays, more than the limit of {MOST_ARRAYS:,}")
        check_size(path, sum(m.file_size for m in members), max_bytes, "unpacked, it")
        chosen = {m.filename.removesuffix(".npy"): m for m in members}
        return {key: _array(path, archive, key, member) for key, member in chosen.items() if not skip(key)}


def _array(path: Path, archive: zipfile.ZipFile, key: str, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise RecordingError(path, f"NPY version {version} is not known", key)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(file)
        if dtype.hasobject:
            raise RecordingError(path, "it holds Python objects (a pickle), which are never loaded", key)
        size = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize if shape else dtype.itemsize
        if size > member.file_size or any(n < 0 for n in shape):
            raise RecordingError(path, f"shape {shape} of {dtype} does not fit into {member.file_size} bytes", key)
        if len(shape) > MOST_AXES:
            raise RecordingError(path, f"an array of {len(shape)} axes is no channel; leave it out with ignore=", key)
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)
