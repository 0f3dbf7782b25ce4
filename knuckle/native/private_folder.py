"""A folder that nobody but its user can write, and files in it that are read and written without following links.

Checks are made on open descriptors, and names are resolved relative to the checked folder, so that nothing can be
swapped between the check and the use. POSIX owners and permission bits are checked; access control lists are not. On
Windows the folder's own protection is relied upon.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

CHECKED = os.name == "posix"
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO
READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
UNFINISHED = ".part"


class UnsafeFile(OSError):
    """A file or folder that somebody else could have written."""


class Item(NamedTuple):
    name: str
    age: float  # time of last use [s since 1970]
    size: int


class PrivateFolder:
    """An open folder of the user's own."""

    def __init__(self, path: Path, descriptor: int | None):
        self.path, self._descriptor = path, descriptor

    def read(self, name: str, most: int, secret: bool = False) -> bytes:
        """The content of a regular file of the user's; a secret one must be closed to others."""
        descriptor = os.open(self._at(name), READ | getattr(os, "O_NONBLOCK", 0), dir_fd=self._descriptor)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise UnsafeFile(f"{self.path / name} is not a regular file")
            _check_owner(self.path / name, found, OPEN_TO_OTHERS if secret else WRITABLE_BY_OTHERS)
            if found.st_size > most:
                raise UnsafeFile(f"{self.path / name} holds {found.st_size} bytes, expected at most {most}")
            return file.read(most)

    def write(self, name: str, data: bytes, replace: bool = True) -> None:
        """Writes the whole file or nothing; without `replace`, a file that is there stays."""
        unfinished = self._unfinished(data)
        try:
            if replace:
                os.replace(self._at(unfinished), self._at(name), **self._folders())
            else:
                self._link(unfinished, name)
        finally:
            with contextlib.suppress(OSError):
                self.remove(unfinished)

    def touch(self, name: str) -> None:
        if self._descriptor is None:
            os.utime(self._at(name))
        else:
            os.utime(name, dir_fd=self._descriptor, follow_symlinks=False)

    def remove(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def items(self) -> list[Item]:
        found = []
        with os.scandir(self.path if self._descriptor is None else self._descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process may have removed it
                    status = entry.stat(follow_symlinks=False)
                    found.append(Item(entry.name, status.st_mtime, status.st_size))
        return found

    def _at(self, name: str) -> str:
        return name if self._descriptor is not None else str(self.path / name)

    def _folders(self) -> dict[str, Any]:
        return {"src_dir_fd": self._descriptor, "dst_dir_fd": self._descriptor}

    def _unfinished(self, data: bytes) -> str:
        """A new file of a name that nobody can foresee, readable by the user alone."""
        name = f"{secrets.token_hex(8)}{UNFINISHED}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | (READ & ~os.O_RDONLY)
        descriptor = os.open(self._at(name), flags, 0o600, dir_fd=self._descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if CHECKED:
                    os.fchmod(descriptor, 0o600)  # whatever the umask
                file.write(data)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(name)
            raise
        return name

    def _link(self, unfinished: str, name: str) -> None:
        """Puts the file under its name unless there is one; where the disk has no hard links, the last writer wins."""
        try:
            os.link(self._at(unfinished), self._at(name), **self._folders())
        except FileExistsError:
            return
        except OSError:
            os.replace(self._at(unfinished), self._at(name), **self._folders())


@contextmanager
def private_folder(path: Path, create: bool = False) -> Iterator[PrivateFolder]:
    """The folder, if it is the user's own, no symbolic link, and closed to writing by others; else UnsafeFile.

    A folder is made only below one that belongs to the user or to the administrator.
    """
    path = path.absolute()
    if create and not os.path.lexists(path):
        _make(path)
    if not CHECKED:
        yield PrivateFolder(path, None)
        return
    if path.is_symlink():
        raise UnsafeFile(f"{path} is a symbolic link")
    descriptor = os.open(path, READ | os.O_DIRECTORY)
    try:
        _check_owner(path, os.fstat(descriptor), WRITABLE_BY_OTHERS)
        yield PrivateFolder(path, descriptor)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    above = next(folder for folder in path.parents if folder.exists())
    if CHECKED and (owner := above.stat().st_uid) not in (0, os.geteuid()):
        raise UnsafeFile(f"{above} belongs to user {owner}, not to user {os.geteuid()}: no folder is made below it")
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)


def _check_owner(path: Path, found: os.stat_result, closed: int) -> None:
    if not CHECKED:
        return
    if found.st_uid != os.geteuid():
        raise UnsafeFile(f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()}")
    if found.st_mode & closed:
        which, how = ("write to", "go-w") if closed == WRITABLE_BY_OTHERS else ("use", "go=")
        raise UnsafeFile(
            f"{path} lets other users {which} it (mode {stat.S_IMODE(found.st_mode):o}): run `chmod {how}` on it, "
            f"if nobody else has"
        )
