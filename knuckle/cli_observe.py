"""Functions of a Python file that say what a channel measures: `knuckle fit --observe pixels=camera.py:marker`."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import knuckle as kn
from knuckle.cli_parse import pairs

if TYPE_CHECKING:
    from knuckle.sysid import Recording

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
    try:
        exec(compile(observed.source, observed.path, "exec"), module.__dict__)
    except Exception as error:
        raise ValueError(f"--observe: {observed.path} cannot be run: {_in_words(error, observed.path)}") from error
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


def check_observed(model: kn.Model, recordings: Sequence[Recording], observe: Mapping[str, Observed]) -> None:
    """Each channel that is compared has a meaning, and each function gives as many numbers as were measured."""
    from knuckle.sysid.drives import DRIVES
    from knuckle.sysid.entries import POINT_PREFIX, POSE_PREFIX

    compared = {key: channel for r in recordings for key, channel in r.channels.items() if key not in DRIVES}
    for key, function in observe.items():
        if key not in compared or key in ("q", "qd") or key.startswith(POSE_PREFIX):
            own = [name for name in compared if name not in ("q", "qd") and not name.startswith(POSE_PREFIX)]
            raise ValueError(
                f"--observe: {key} is no channel of one's own; the logs have {', '.join(own) or 'none'} "
                f"(--column 'NAME={key} ENTRY' makes one of a column)"
            )
        _check_shape(model, key, function, len(compared[key].names))
    for key in compared:
        if key not in observe and key not in ("q", "qd") and not key.startswith((POSE_PREFIX, POINT_PREFIX)):
            raise ValueError(
                f"nothing says what the channel {key} measures: give --observe {key}=FILE.py:FUNCTION, a "
                f"function(model, state), or leave its columns out by --ignore"
            )


def _check_shape(model: kn.Model, key: str, function: Observed, entries: int) -> None:
    try:
        given = jax.eval_shape(function, *jax.tree.map(jnp.asarray, (model, model.state())))
    except Exception as error:
        raise ValueError(f"--observe: {function} fails: {_in_words(error, function.path)}") from error
    shape = getattr(given, "shape", None)
    if shape != (entries,) and not (shape == () and entries == 1):
        got = type(given).__name__ if shape is None else f"shape {shape}"
        raise ValueError(f"--observe: {function} must give the {entries} numbers of {key} as one array, got {got}")


def _in_words(error: Exception, path: str) -> str:
    """The error, and the line of the file where it came up."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}{f': {text}' if text else ''}{f' (line {lines[-1]})' if lines else ''}"
