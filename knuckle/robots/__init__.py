"""Robots that come with the package, written for it: names, files, and models."""

from __future__ import annotations

from pathlib import Path

from knuckle.model.load import load as _load
from knuckle.model.model import Model

_FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The built-in robots."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.xml")))


def path(name: str) -> Path:
    """The MJCF file of a built-in robot."""
    if name not in names():
        raise ValueError(f"no built-in robot {name!r}; there are {', '.join(names())}")
    return _FOLDER / f"{name}.xml"


def load(name: str, *, floating: bool | None = None) -> Model:
    """A built-in robot; `floating` frees or fixes its base, None takes it as its file has it."""
    return _load(path(name), floating=floating)
