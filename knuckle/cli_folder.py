"""The folder of a command's results: files that somebody else put there are never replaced without a word.

A hidden file, MARK, lists what commands have written into a folder. Those files are replaced by the next run; any other
file of the same name is not, unless the user says so (--force).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = ".knuckle-results.json"
MOST_BYTES = 1 << 20  # of the mark


def made_folder(folder: Path, names: Iterable[str], force: bool = False) -> Path:
    """The folder, made if it is not there; ValueError if it holds files of these names that no command wrote."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: cannot make the folder {folder} ({error.strerror})") from error
    check_not_strange(folder, names, force)
    return folder


def check_not_strange(folder: Path, names: Iterable[str], force: bool = False) -> None:
    """ValueError if the folder holds files of these names that no command wrote, unless they may be replaced."""
    strange = sorted(name for name in set(names) - written_in(folder) if os.path.lexists(folder / name))
    if strange and not force:
        raise ValueError(
            f"{folder} holds {', '.join(strange)}, not written by knuckle: choose another place, or --force to replace "
            f"{'it' if len(strange) == 1 else 'them'}"
        )


def written_in(folder: Path) -> set[str]:
    """The files of a folder that commands have written."""
    path = folder / MARK
    try:
        if path.is_symlink() or path.stat().st_size > MOST_BYTES:
            return set()
        names = json.loads(path.read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def mark_written(folder: Path, names: Iterable[str]) -> None:
    """Remember files of a folder as our own."""
    files = sorted(written_in(folder) | set(names))
    handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    with open(handle, "w", encoding="utf-8") as file:
        json.dump({"written by": "knuckle; a next run replaces these files", "files": files}, file, indent=1)
    os.replace(part, folder / MARK)


@contextmanager
def all_or_nothing(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """A folder whose files move into this one at the end, and their names; if anything goes wrong, none does."""
    part, written = None, []
    try:
        part = Path(tempfile.mkdtemp(prefix=".", suffix=".part", dir=folder))
        yield part, written
        mark_written(folder, [path.name for path in part.iterdir()])
        for path in part.iterdir():
            os.replace(path, folder / path.name)
            written.append(folder / path.name)
    except OSError as error:
        raise OSError(f"writing to {folder}: {error}; what was there before is whole") from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
