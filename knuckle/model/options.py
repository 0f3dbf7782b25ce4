"""Keyword arguments that a function passes on to a class, spelled out in its signature."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def spelled_out(cls: type, without: tuple[str, ...] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """In place of `**options`, the fields of a dataclass in the signature, for `help` and for completion.

    A keyword that is none of them raises TypeError with the names that there are.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = {p.name for p in own} | set(without)
        parameters = own + [_keyword(field) for field in dataclasses.fields(cls) if field.name not in taken]
        known = [p.name for p in parameters]
        name = getattr(function, "__name__", "function")

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for key in kwargs:
                if key not in known:
                    near = get_close_matches(key, known, 1)
                    hint = f"did you mean {near[0]}? " if near else ""
                    raise TypeError(f"{name}: no argument {key!r}; {hint}there are {', '.join(known)}")
            return function(*args, **kwargs)

        checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return checked

    return decorate


def _keyword(field: dataclasses.Field) -> inspect.Parameter:
    default = field.default
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty if field.default_factory is dataclasses.MISSING else field.default_factory()
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)
