"""What a fit compares, checked before anything is compiled: noise and functions are of channels that are there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from knuckle.model.model import Model, State
from knuckle.sysid.drives import DRIVES
from knuckle.sysid.entries import CHANNELS, POINT_PREFIX, POSE_PREFIX
from knuckle.sysid.findings import listed
from knuckle.sysid.noise_kinds import Given, given_noise
from knuckle.sysid.recording import Channel, Recording


def check_compared(
    model: Model,
    recordings: Sequence[Recording],
    observe: Mapping[str, Callable[[Model, State], Any]],
    noise: Mapping[str, Given],
) -> None:
    """Each channel that is compared has a meaning, each function gives as many numbers as were measured."""
    compared = {key: channel for r in recordings for key, channel in r.channels.items() if key not in DRIVES}
    for key, value in noise.items():
        if key not in compared:
            raise ValueError(f"noise: {key} is not compared; compared are {listed(compared) or 'no channels'}")
        given_noise(model, key, len(compared[key].names), value)
    for key, function in observe.items():
        if key not in compared or key in CHANNELS or key.startswith(POSE_PREFIX):
            own = listed([name for name in compared if name not in CHANNELS and not name.startswith(POSE_PREFIX)])
            raise ValueError(f"observe: {key} is no channel of one's own; the recordings have {own or 'none'}")
        _check_shape(model, key, function, compared[key])
    for key in compared:
        if key not in observe and key not in CHANNELS and not key.startswith((POSE_PREFIX, POINT_PREFIX)):
            raise ValueError(meaningless(key))


def meaningless(key: str) -> str:
    return (
        f"nothing says what {key!r} observes: give observe={{{key!r}: function(model, state)}}, or leave it out; "
        f"on the command line --observe {key}=FILE.py:FUNCTION, or --ignore its columns"
    )


def _check_shape(model: Model, key: str, function: Callable, channel: Channel) -> None:
    name, entries = getattr(function, "__name__", str(function)), len(channel.names)
    try:
        with jax.enable_x64(True):
            given = jax.eval_shape(function, *jax.tree.map(jnp.asarray, (model, model.state())))
    except Exception as error:
        raise ValueError(f"observe: {name} fails: {in_words(error)}") from error
    shape = getattr(given, "shape", None)
    if shape != (entries,) and not (shape == () and entries == 1):
        got = type(given).__name__ if shape is None else f"shape {shape}"
        raise ValueError(f"observe: {name} must give the {entries} numbers of {key} as one array, got {got}")


def in_words(error: BaseException) -> str:
    """An error in one line, and where it came up."""
    last, text = traceback.extract_tb(error.__traceback__)[-1], str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}{f': {text}' if text else ''} ({last.filename}, line {last.lineno})"
