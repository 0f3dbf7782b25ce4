"""Ctrl-C while something long runs: the first asks it to end with the best so far, the second stops it at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_active: list[Interrupts] = []
AGAIN = 0.01  # seconds after which an interrupt is raised again where Python had to ignore it


class Interrupts:
    """What was asked for by Ctrl-C."""

    def __init__(self):
        self.count, self.at_once = 0, False
        self.unraisable_before = sys.unraisablehook

    def heard(self, *_) -> None:
        self.count += 1
        if self.count > 1 or self.at_once:
            raise KeyboardInterrupt

    def unheard(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Python ignores exceptions inside finalisers and callbacks of its garbage collector: interrupt once more."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self.count -= 1
            again = threading.Timer(AGAIN, _interrupt_main_thread)
            again.daemon = True
            again.start()
        else:
            self.unraisable_before(unraisable)

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


def _interrupt_main_thread() -> None:
    """A signal to that thread, so that it ends waits too."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


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
    sys.unraisablehook = listener.unheard
    try:
        yield listener
    finally:
        _active.remove(listener)
        sys.unraisablehook = listener.unraisable_before
        signal.signal(signal.SIGINT, before)
