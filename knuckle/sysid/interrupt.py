"""Ctrl-C while something long runs: the first asks it to end with the best so far, the second stops it at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_active: list[Interrupts] = []


class Interrupts:
    """What was asked for by Ctrl-C."""

    def __init__(self):
        self.count, self.at_once = 0, False

    def heard(self, *_) -> None:
        self.count += 1
        if self.count > 1 or self.at_once:
            raise KeyboardInterrupt

    @property
    def asked(self) -> bool:
        return self.count > 0

    def end_if_asked(self) -> None:
        """A place where it may end."""
        if self.asked:
            raise KeyboardInterrupt

    @contextmanager
    def anywhere(self) -> Iterator[None]:
        """Code that may end anywhere, on the first Ctrl-C already: it waits for others."""
        self.end_if_asked()
        self.at_once = True
        try:
            yield
        finally:
            self.at_once = False


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Listen to Ctrl-C, one for all that is nested; outside the main thread, where there are no signals, to nothing."""
    if _active:
        yield _active[-1]
        return
    listener = Interrupts()
    try:
        before = signal.signal(signal.SIGINT, listener.heard)
    except ValueError:
        yield listener
        return
    _active.append(listener)
    try:
        yield listener
    finally:
        _active.remove(listener)
        signal.signal(signal.SIGINT, before)
