"""Functions of a Python file that say what a channel measures: `knuckle fit --observe pixels=camera.py:marker`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import knuckle as kn
from knuckle.cli_parse import pairs

if TYPE_CHECKING:
    pass

FORM = "CHANNEL=FILE.py:FUNCTION"


@dataclass(frozen=True)
class Observed:
    """A function of a file. It carries the text of the file, so that workers, here or elsewhere, can call it too."""

    path: str
    name: str
    source: str = field(repr=False)

    def __call__(self, model: kn.Model, state: kn.State) -> Any:
        return loaded(self)(model, state)

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


@functools.cache
def loaded(observed: Observed) -> Callable[..., Any]:
    """The function itself; the file runs once in each process."""
    module = ModuleType(f"{Path(observed.path).stem} (--observe)")
    module.__file__ = observed.path
    sys.modules[module.__name__] = module  # dataclasses look there
    from knuckle.sysid.compared import in_words

    try:
        exec(compile(observed.source, observed.path, "exec"), module.__dict__)
    except Exception as error:
        raise ValueError(f"--observe: {observed.path} cannot be run: {in_words(error)}") from error
    found = getattr(module, observed.name, None)
    if not callable(found):
        functions = [name for name, item in vars(module).items() if callable(item) and not name.startswith("_")]
        raise ValueError(
            f"--observe: {observed.path} has no function {observed.name!r}; it has {', '.join(functions) or 'none'}"
        )
    return found


def observers(texts: Sequence[str] | None) -> dict[str, Observed]:
    """Functions by channel."""
    found = {}
    for channel, place in pairs(texts, "--observe", FORM).items():
        path, _, name = place.rpartition(":")
        if not path or not name.isidentifier():
            raise ValueError(f"--observe takes {FORM}, got {f'{channel}={place}'!r}")
        if not Path(path).is_file():
            raise ValueError(f"--observe: there is no file {path}")
        found[channel] = Observed(path, name, Path(path).read_text(encoding="utf-8"))
        loaded(found[channel])
    return found
