"""What a reader could not use of a file, and the error that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn


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
        listed = f" {problems}" if isinstance(problems, str) else "".join(f"\n  {p}" for p in self.problems)
        super().__init__(f"cannot load {source}:{listed}")


class LoadWarning(UserWarning):
    """What was mended or left out of a model that did load."""


def refuse(source: str, problems: Sequence[Omission] | str) -> NoReturn:
    """Raise the error that names the source and every problem in it."""
    raise LoadError(source, problems)
