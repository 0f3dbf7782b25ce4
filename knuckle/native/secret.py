"""A random number of the user's own, by which the user's processes know the files that they wrote."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from knuckle.native.private_folder import private_folder

NAME = "cache.key"
BYTES = 32


def state_folder() -> Path:
    """The folder of the user's that holds the secret: never the cache, which may be shared."""
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError(f"there is no folder for the user's secret: {error}") from error
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "knuckle state"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "knuckle"
    return Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "knuckle"


def user_secret(create: bool = False) -> bytes:
    """The user's secret; made on first use if `create` is set, by one of several processes for all of them.

    Raises OSError if there is none, or if somebody else could have read or written it.
    """
    place = state_folder()
    try:
        with private_folder(place, create) as folder:
            if create:
                try:
                    return _checked(folder.read(NAME, BYTES, secret=True), folder.path)
                except FileNotFoundError:
                    folder.write(NAME, secrets.token_bytes(BYTES), replace=False)
            return _checked(folder.read(NAME, BYTES, secret=True), folder.path)
    except PermissionError as error:
        raise OSError(f"the user's secret cannot be kept in {place} ({error}): XDG_STATE_HOME names another") from error


def _checked(secret: bytes, folder: Path) -> bytes:
    if len(secret) != BYTES:
        raise OSError(f"{folder / NAME} is not a secret of {BYTES} bytes: remove it")
    return secret
