"""Compiled code kept on disk between processes.

One file per program, named by a hash of the program, the processor, LLVM and this package's own source. Files are
written under another name and renamed, and the least recently used ones go when the folder grows beyond its bound. The
folder is $KNUCKLE_CACHE (empty: no cache), else `knuckle` in the user's cache folder.

What is read here is executed. So the folder and its files must belong to the user and be closed to writing by others,
and each file carries a keyed checksum (HMAC-SHA256) by a secret of the user, which lies elsewhere. The bytes that were
checked are the bytes that are loaded. A file that fails a check counts as absent. A folder that fails one, or trouble
with the disk, costs one warning and the benefit of the cache, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import sys
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from knuckle.native.compile import Compiled, codegen_level, compile_jaxpr
from knuckle.native.fingerprint import program_key
from knuckle.native.private_folder import UNFINISHED, PrivateFolder, UnsafeFile, private_folder
from knuckle.native.secret import user_secret

MAGIC = b"knuckle native 2\n"
DIGEST_BYTES = 32
SUFFIX = ".native"
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
        """The program kept under the key; None if there is none, or one that this user did not write."""
        try:
            with private_folder(self.folder) as folder:
                return self._read(folder, f"{key}{SUFFIX}", key)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None

    def put(self, key: str, entry: Entry) -> None:
        """Keeps the program, if the disk lets us."""
        try:
            with private_folder(self.folder, create=True) as folder:
                folder.write(f"{key}{SUFFIX}", _pack(entry, key, user_secret(create=True)))
                self._evict(folder)
        except OSError as error:
            self._warn(error)

    def _read(self, folder: PrivateFolder, name: str, key: str) -> Entry | None:
        try:
            data = folder.read(name, self.limit_bytes)
        except UnsafeFile:
            data = b""
        entry = _unpack(data, key, user_secret()) if data else None
        with contextlib.suppress(OSError):
            if entry is None:
                folder.remove(name)
            else:
                folder.touch(name)  # the age that eviction goes by
        return entry

    def _evict(self, folder: PrivateFolder) -> None:
        items = folder.items()
        for item in items:
            if item.name.endswith(UNFINISHED) and time.time() - item.age > ABANDONED_SECONDS:
                with contextlib.suppress(OSError):
                    folder.remove(item.name)
        files = sorted((item.age, item.size, item.name) for item in items if item.name.endswith(SUFFIX))
        excess = sum(size for _, size, _ in files) - self.limit_bytes
        if excess <= 0:
            return
        excess += self.limit_bytes * (1 - KEPT_SHARE)
        for _, size, name in files:
            if excess <= 0:
                return
            with contextlib.suppress(OSError):
                folder.remove(name)
            excess -= size

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"compiled code is not kept in {self.folder}: {error}; continuing without a cache", stacklevel=3
            )


def _pack(entry: Entry, key: str, secret: bytes) -> bytes:
    header = json.dumps({"key": key, "info": entry.info}).encode()
    payload = len(header).to_bytes(8, "little") + header + entry.object_code
    return MAGIC + _checksum(payload, secret) + payload


def _checksum(payload: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, payload, hashlib.sha256)


def _unpack(data: bytes, key: str, secret: bytes) -> Entry | None:
    start = len(MAGIC) + DIGEST_BYTES
    payload = data[start:]
    if not data.startswith(MAGIC) or not hmac.compare_digest(_checksum(payload, secret), data[len(MAGIC) : start]):
        return None
    end = 8 + int.from_bytes(payload[:8], "little")
    try:
        header = json.loads(payload[8:end])
        return Entry(payload[end:], dict(header["info"])) if header["key"] == key else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


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


def compile_cached(jaxpr: Any, batch: tuple[bool, ...] | None = None, *, fresh: bool = False) -> Compiled:
    """Machine code of a closed jaxpr, from the disk if it was compiled before; arguments as for `compile_jaxpr`.

    `fresh` compiles again and replaces what is kept.
    """
    store = default_store()
    key = None if store is None else program_key(jaxpr, batch=batch, level=codegen_level())
    if store is None or key is None:
        return compile_jaxpr(jaxpr, batch=batch)
    entry = None if fresh else store.get(key)
    if entry is not None and _is_whole(entry.info):
        avals = {"in_avals": tuple(jaxpr.in_avals), "out_avals": tuple(jaxpr.out_avals)}
        return Compiled(object_code=entry.object_code, batch=batch, **avals, **entry.info)
    compiled = compile_jaxpr(jaxpr, batch=batch)
    store.put(key, Entry(compiled.object_code, {name: getattr(compiled, name) for name in KEPT}))
    return compiled


KEPT = {"symbol": str, "workspace_bytes": int, "lanes": int, "operations": dict, "kinds": dict, "seconds": dict}


def _is_whole(info: dict[str, Any]) -> bool:
    """Whether the description of machine code has every field, of its type, and no other."""
    return info.keys() == KEPT.keys() and all(type(info[name]) is kind for name, kind in KEPT.items())


def is_cached(function: Any, *args: Any) -> bool:
    """Whether the machine code that `native.jit` needs for these arguments is kept on disk; only traces."""
    program, store = function._version(args, {})[0], default_store()
    key = None if store is None else program_key(program.jaxpr, batch=program.batched, level=codegen_level())
    return store is not None and key is not None and store.get(key) is not None
