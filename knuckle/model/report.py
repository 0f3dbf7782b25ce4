"""What a reader could not use of a file, and the error that says so."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

LISTED_IN_WARNING = 8
LISTED = 100  # in an error


@dataclass(frozen=True)
class Omission:
    """One element of a file that the model does not hold, or holds changed, and why."""

    element: str  # such as "link 'elbow'" or "joint 'knee' <mimic>"
    reason: str
    line: int | None = None

    def __str__(self) -> str:
        line = f" (line {self.line})" if self.line is not None else ""
        return f"{self.element}{line}: {self.reason}"


class LoadError(ValueError):
    """A file that cannot be read as a model; `problems` lists every offending element."""

    def __init__(self, source: str, problems: Sequence[Omission] | str):
        self.source = source
        self.problems: tuple[Omission, ...] = () if isinstance(problems, str) else tuple(problems)
        listed = f" {problems}" if isinstance(problems, str) else "".join(f"\n  {p}" for p in self.problems[:LISTED])
        if len(self.problems) > LISTED:
            listed += f"\n  and {len(self.problems) - LISTED} more (see `problems`)"
        super().__init__(f"cannot load {source}:{listed}")


class LoadWarning(UserWarning):
    """What was repaired or left out of a model that did load."""


def refuse(source: str, problems: Sequence[Omission] | str) -> NoReturn:
    """Raise the error that names the source and every problem in it."""
    raise LoadError(source, problems)


def warn_of(source: str, omissions: Sequence[Omission], stacklevel: int = 3) -> None:
    """One warning for all that was repaired or left out without stopping a strict load."""
    if not omissions:
        return
    groups: dict[str, list[Omission]] = {}
    for omission in sorted(omissions, key=lambda o: not o.reason.startswith("repaired")):
        groups.setdefault(omission.reason, []).append(omission)
    repaired = sum(reason.startswith("repaired") for reason in groups)
    shown = max(repaired, LISTED_IN_WARNING)
    listed = "".join(f"\n  {_together(group)}" for group in list(groups.values())[:shown])
    more = sum(map(len, list(groups.values())[shown:]))
    rest = f"\n  and {more} more: load with strict=False to get them all" if more else ""
    warnings.warn(f"{source}: repaired or left out:{listed}{rest}", LoadWarning, stacklevel=stacklevel)


def _together(group: Sequence[Omission]) -> str:
    """Omissions for one reason in a line, by the first of them."""
    first = str(Omission(group[0].element, "", group[0].line)).removesuffix(": ")
    others = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{first}{others}: {group[0].reason}"
