"""Compiled code kept on disk between processes.

One file per program, named by a hash of the program, the processor, LLVM and this package's own source. Files are
written under another name and renamed, carry a checksum, and the least recently used ones go when the folder grows
beyond its bound. Trouble with the disk costs one warning and the benefit of the cache, nothing else. The folder is
$KNUCKLE_CACHE (empty: no cache), else `knuckle` in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from knuckle.native.compile import Compiled, codegen_level, compile_jaxpr
from knuckle.native.fingerprint import program_key

MAGIC = b"knuckle native 1\n"
DIGEST_BYTES = 32
SUFFIX = ".native"
UNFINISHED = ".part"
ABANDONED_SECONDS = 3600  # after which an unfinished file has no writer any more
LIMIT_BYTES = 512 * 2**20
KEPT_SHARE = 0.8  # of the bound, once it is exceeded


class Entry(NamedTuple):
    """Object code and what is known about it, as JSON."""

    object_code: bytes
    info: dict[str, Any]


class Store:
    """A folder of compiled programs."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES):
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._warned = False

    def get(self, key: str) -> Entry | None:
        """The program kept under the key; None if there is none or the file is damaged."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        entry = _unpack(data, key)
        with contextlib.suppress(OSError):
            if entry is None:
                path.unlink()
            else:
                os.utime(path)  # the age that eviction goes by
        return entry

    def put(self, key: str, entry: Entry) -> None:
        """Keeps the program, if the disk lets us."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._path(key), _pack(entry, key))
            self._evict()
        except OSError as error:
            self._warn(error)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _write(self, path: Path, data: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _evict(self) -> None:
        files = []
        for item in os.scandir(self.folder):
            with contextlib.suppress(OSError):  # another process may have removed it
                age, size = item.stat().st_mtime, item.stat().st_size
                if item.name.endswith(SUFFIX):
                    files.append((age, size, item.path))
                elif item.name.endswith(UNFINISHED) and time.time() - age > ABANDONED_SECONDS:
                    os.unlink(item.path)
        excess = sum(size for _, size, _ in files) - self.limit_bytes
        if excess <= 0:
            return
        excess += self.limit_bytes * (1 - KEPT_SHARE)
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            excess -= size

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"compiled code cannot be kept in {self.folder}: {error}; continuing without", stacklevel=3)


def _pack(entry: Entry, key: str) -> bytes:
    header = json.dumps({"key": key, "info": entry.info}).encode()
    payload = len(header).to_bytes(8, "little") + header + entry.object_code
    return MAGIC + hashlib.sha256(payload).digest() + payload


def _unpack(data: bytes, key: str) -> Entry | None:
    start = len(MAGIC) + DIGEST_BYTES
    payload = data[start:]
    if not data.startswith(MAGIC) or hashlib.sha256(payload).digest() != data[len(MAGIC) : start]:
        return None
    end = 8 + int.from_bytes(payload[:8], "little")
    header = json.loads(payload[8:end])
    return Entry(payload[end:], header["info"]) if header["key"] == key else None


def default_folder() -> Path | None:
    """Where compiled code is kept; None for nowhere."""
    chosen = os.environ.get("KNUCKLE_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "knuckle"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "knuckle"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "knuckle"


@cache
def _store_in(folder: Path) -> Store:
    return Store(folder)


def default_store() -> Store | None:
    folder = default_folder()
    return None if folder is None else _store_in(folder)


def compile_cached(jaxpr: Any, batch: tuple[bool, ...] | None = None) -> Compiled:
    """Machine code of a closed jaxpr, from the disk if it was compiled before; arguments as for `compile_jaxpr`."""
    store = default_store()
    key = None if store is None else program_key(jaxpr, batch=batch, level=codegen_level())
    if store is None or key is None:
        return compile_jaxpr(jaxpr, batch=batch)
    entry = store.get(key)
    if entry is not None:
        avals = {"in_avals": tuple(jaxpr.in_avals), "out_avals": tuple(jaxpr.out_avals)}
        return Compiled(object_code=entry.object_code, batch=batch, **avals, **entry.info)
    compiled = compile_jaxpr(jaxpr, batch=batch)
    beside = {"object_code", "batch", "in_avals", "out_avals"}
    fields = [field.name for field in dataclasses.fields(compiled) if field.name not in beside]
    store.put(key, Entry(compiled.object_code, {name: getattr(compiled, name) for name in fields}))
    return compiled
