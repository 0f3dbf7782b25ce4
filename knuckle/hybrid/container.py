"""The file itself: a zip of one JSON text and plain arrays, nothing compressed, every array with its checksum.

Nothing is unpacked to disk, unpickled or evaluated. Members are stored, so none is larger than the file, and arrays are
taken only if their bytes are exactly those of the .npy header that the JSON text promises and as many numbers.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

MANIFEST = "manifest.json"
MOST_BYTES = 2**30  # of a file
MOST_TEXT = 2**24  # bytes of the manifest
MOST_MEMBERS = 100_000
MOST_NESTING = 60  # of the manifest
DTYPES = ("<f2", "<f4", "<f8", "<i4", "<i8", "<u4", "|u1", "|b1")
DATE = (1980, 1, 1, 0, 0, 0)  # the same content gives the same bytes


class HybridFileError(ValueError):
    """A file that is damaged, of another kind or newer, or that holds what no model can have: says where."""

    def __init__(self, path: str | Path, place: str, message: str):
        self.path, self.place = Path(path), _shown(place or "file", 200)
        super().__init__(f"{path}: {self.place}: {_shown(message, 1000)}")


def _shown(text: str, most: int) -> str:
    """Text of a file that may be shown on a terminal."""
    text = text if len(text) <= most else text[:most] + "..."
    return "".join(character if character.isprintable() else "?" for character in text)


class Members:
    """The arrays of a file by place; each is taken once."""

    def __init__(self, path: str | Path, text: bytes, arrays: dict[str, bytes]):
        self.path, self.arrays = path, arrays
        self.manifest = self._parsed(text)

    def fail(self, place: str, message: str) -> NoReturn:
        raise HybridFileError(self.path, place, message)

    def _parsed(self, text: bytes) -> Any:
        def distinct(pairs):
            keys = [key for key, _ in pairs]
            if len(set(keys)) != len(keys):
                raise ValueError("a name stands twice in an object")
            return dict(pairs)

        def refused(name):
            raise ValueError(f"{name} is no JSON number")

        try:
            data = json.loads(text.decode("utf-8"), object_pairs_hook=distinct, parse_constant=refused)
        except (ValueError, RecursionError) as error:
            self.fail(MANIFEST, f"expected JSON text: {error}")
        return data if _depth(data) <= MOST_NESTING else self.fail(MANIFEST, f"nested over {MOST_NESTING} deep")

    def take(self, place: str, dtype: str, shape: tuple[int, ...], digest: str) -> np.ndarray:
        """The array at a place, after all that can be said against it."""
        data = self.arrays.pop(place, None)
        if data is None:
            self.fail(place, "the file lacks this array")
        if dtype not in DTYPES:
            self.fail(place, f"expected numbers of type {', '.join(DTYPES)}, got {dtype!r}")
        if hashlib.sha256(data).hexdigest() != digest:
            self.fail(place, "the array is damaged: its checksum does not fit")
        header, count = npy_header(dtype, shape), 1
        for size in shape:
            count *= size
        if not data.startswith(header) or len(data) != len(header) + count * np.dtype(dtype).itemsize:
            self.fail(place, f"expected a .npy array of type {dtype} and shape {shape}, stored row by row")
        return np.frombuffer(data, dtype, offset=len(header)).reshape(shape).copy()

    def finish(self) -> None:
        """Nothing may be left over."""
        if self.arrays:
            self.fail(sorted(self.arrays)[0], "the file holds an array that belongs to nothing")


def _depth(data: Any) -> int:
    """How deep JSON data are nested, as far as that is permitted."""
    level, depth = [data], 0
    while level and depth <= MOST_NESTING:
        inner = [x.values() if isinstance(x, dict) else x for x in level if isinstance(x, dict | list)]
        level, depth = [item for items in inner for item in items], depth + 1
    return depth


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of a .npy file, version 1.0, as the format's specification has it."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape!r}, }}"
    padding = -(10 + len(text) + 1) % 64
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + padding + 1) + text.encode() + b" " * padding + b"\n"


def npy_bytes(array: np.ndarray) -> bytes:
    return npy_header(array.dtype.str, array.shape) + array.tobytes()


def packed(manifest: dict[str, Any], arrays: dict[str, bytes]) -> bytes:
    """The bytes of a file."""
    buffer = io.BytesIO()
    text = json.dumps(manifest, allow_nan=False).encode()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, data in ((MANIFEST, text), *((f"{place}.npy", data) for place, data in arrays.items())):
            file.writestr(zipfile.ZipInfo(name, DATE), data)
    return buffer.getvalue()


def unpacked(path: str | Path, data: bytes) -> Members:
    """The members of a file, whole and of permitted size."""

    def fail(place: str, message: str) -> NoReturn:
        raise HybridFileError(path, place, message)

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = file.infolist()
            _check_members(members, len(data), fail)
            found = {member.filename: file.read(member) for member in members}
    except HybridFileError:
        raise
    except Exception as error:  # zipfile raises many kinds of errors at damaged files
        fail("file", f"not a whole .knuckle file ({type(error).__name__}: {error})")
    text = found.pop(MANIFEST)
    return Members(path, text, {name.removesuffix(".npy"): content for name, content in found.items()})


def _check_members(members: list[zipfile.ZipInfo], size: int, fail) -> None:
    names = [member.filename for member in members]
    if len(names) > MOST_MEMBERS or len(set(names)) != len(names):
        fail("file", f"expected at most {MOST_MEMBERS} members, each of another name, got {len(names)}")
    if MANIFEST not in names:
        fail(MANIFEST, "the file lacks it: not a .knuckle file")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            fail(member.filename, "members must be stored, not compressed (zip -0)")
        if member.filename != MANIFEST and not member.filename.endswith(".npy"):
            fail(member.filename, f"expected {MANIFEST} and arrays (.npy) only")
        if member.filename == MANIFEST and member.file_size > MOST_TEXT:
            fail(MANIFEST, f"expected at most {MOST_TEXT} bytes, got {member.file_size}")
    if sum(member.file_size for member in members) > size:
        fail("file", f"the members claim more bytes than the {size} of the file")


def read_bytes(path: str | Path) -> bytes:
    """All of a regular file of permitted size."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise HybridFileError(path, "file", "expected a regular file")
    if status.st_size > MOST_BYTES:
        raise HybridFileError(path, "file", f"expected at most {MOST_BYTES} bytes, got {status.st_size}")
    with open(path, "rb") as file:
        return file.read(MOST_BYTES + 1)


def write_whole(path: Path, data: bytes) -> None:
    """Put the bytes in the file's place, whole or not at all."""
    path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save_hybrid {str(path)!r}: there is no folder {str(path.parent)!r}")
    handle, name = tempfile.mkstemp(suffix=".part", prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode(path))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, or of a new one."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
