"""How much longer than alone a process takes here and now: for tests that bound wall time."""

from __future__ import annotations

import time


def contention(seconds: float = 0.1) -> float:
    """Wall time over processor time of a busy loop; 1 on a quiet machine."""
    wall, busy = time.perf_counter(), time.thread_time()
    while time.thread_time() - busy < seconds:
        pass
    return max((time.perf_counter() - wall) / seconds, 1.0)


class Watch:
    """Wall time of what is done in a block, and the contention just before or after it, the larger one."""

    def __enter__(self) -> Watch:
        self.contention, self._began = contention(), time.monotonic()
        return self

    def __exit__(self, *_) -> None:
        self.seconds = time.monotonic() - self._began
        self.contention = max(self.contention, contention())

    def within(self, limit: float, work: float) -> bool:
        """Whether it took no longer than a limit of time and so many seconds of work beside it."""
        return self.seconds < limit + work * self.contention
