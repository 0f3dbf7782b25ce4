"""One deadline for all phases of a fit: each gets a share, gives up when that is over, and says what it left out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import jax

from knuckle.interrupt import Interrupts

T = TypeVar("T")
SLOWEST = 5.0  # times, that is reckoned with
POLL = 0.05  # seconds between two looks at the clock while a phase runs in a thread
_STARTED = time.monotonic() - time.process_time()
_abandoned: list[threading.Thread] = []


class OutOfTime(Exception):
    """A phase did not end before its deadline."""


class Deadline:
    """A moment of the monotonic clock, and what was left out to keep it; `seconds=None`: never."""

    def __init__(self, seconds: float | None = None, *, began: float | None = None):
        self.seconds, self.began = seconds, time.monotonic() if began is None else began
        self.end = math.inf if seconds is None else self.began + seconds
        self.left_out: list[str] = []  # in words, shared by all that were derived from this one

    def again(self) -> Deadline:
        """As many seconds from now on."""
        return Deadline(self.seconds)

    @property
    def limited(self) -> bool:
        return math.isfinite(self.end)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.0)

    @property
    def seconds_left(self) -> float | None:
        """The same as an option of solvers: None where there is no limit."""
        return self.left if self.limited else None

    @property
    def out(self) -> bool:
        return time.monotonic() >= self.end

    def earlier(self, seconds: float) -> Deadline:
        """One that ends so many seconds sooner, yet not before half of what is left."""
        return self._ending(max(self.end - seconds, self.end - 0.5 * self.left) if self.limited else self.end)

    def share(self, part: float) -> Deadline:
        """One that ends after this part of what is left."""
        return self._ending(time.monotonic() + part * self.left if self.limited else self.end)

    def _ending(self, end: float) -> Deadline:
        other = Deadline(self.seconds, began=self.began)
        other.end, other.left_out = end, self.left_out
        return other

    def leave_out(self, what: str) -> None:
        """Remember what was given up."""
        if what not in self.left_out:
            self.left_out.append(what)


def bounded(function: Callable[[], T], deadline: Deadline, stop: Interrupts | None = None) -> T:
    """What a function returns, or OutOfTime at the deadline, whatever it is doing; Ctrl-C ends it too.

    It runs in a thread of its own, so that one long call (LLVM compiles a program in one) cannot hold the rest up. A
    thread that is given up goes on, and nobody waits for it. Without a limit the function is simply called.
    """
    if not deadline.limited:
        return function()
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with jax.enable_x64(True):
                results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    asked = 0 if stop is None else stop.count
    try:
        while thread.is_alive():
            thread.join(POLL)
            if stop is not None and stop.count > asked:
                raise KeyboardInterrupt
            if deadline.out and thread.is_alive():
                raise OutOfTime
    except BaseException:
        _abandoned.append(thread)
        raise
    if errors:
        raise errors[0]
    return results[0]


def slowness() -> float:
    """How many times longer than its computing time this process has taken so far: a busy machine needs reserves."""
    spent = max(time.process_time(), 0.1)
    return min(max((time.monotonic() - _STARTED) / spent, 1.0), SLOWEST)


def still_running() -> bool:
    """Whether a thread that was given up still runs: then a process must not wait for its end."""
    return any(thread.is_alive() for thread in _abandoned)
