"""The state of a search on disk: arrays and the settings they belong to, written whole or not at all."""

from __future__ import annotations

import io
import json
import os
import tempfile
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np

State = dict[str, np.ndarray]
SETTINGS = "settings"


def save(path: Path, state: State, settings: dict) -> bool:
    """Write beside the old file, then put it in its place. A disk that refuses costs a warning, not the run.

    The file beside is new, of a name that nobody can foresee, and only its owner can read it.
    """
    buffer = io.BytesIO()
    np.savez(buffer, **{SETTINGS: np.array(json.dumps(settings))}, **state)  # type: ignore[arg-type]
    beside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(suffix=".part", prefix=f".{path.name}.", dir=path.parent)
        with open(handle, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:
        with suppress(OSError):
            if beside is not None:
                os.unlink(beside)
        if not isinstance(error, OSError):
            raise
        warnings.warn(f"the search goes on, but its state could not be saved to {path}: {error}", stacklevel=2)
        return False
    return True


def saved_settings(path: Path) -> dict:
    """The settings that a saved search belongs to; none where there is no such file, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return json.loads(str(file[SETTINGS]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}


def load(path: Path, settings: dict) -> State:
    """The saved state of the same search; one of another search is refused, with what differs."""
    if not path.exists():
        raise FileNotFoundError(f"there is no saved search at {path}: run without resume to begin one")
    try:
        with np.load(path, allow_pickle=False) as file:
            state = {name: file[name] for name in file.files}
        saved = json.loads(str(state.pop(SETTINGS)))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a saved search, or is damaged: {error}") from error
    wanted = json.loads(json.dumps(settings))
    differing = sorted(name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name))
    if differing:
        each = "; ".join(f"{name} was {saved.get(name)!r}, is {wanted.get(name)!r}" for name in differing)
        raise ValueError(f"{path} is from another search: {each}")
    return state
