"""Ctrl-C where Python ignores exceptions: it is neither lost nor printed."""

from __future__ import annotations

import gc
import signal
import sys
import time

import pytest

from knuckle.interrupt import interrupts


class Finalised:
    """An object during whose finalisation Ctrl-C comes."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)  # to this thread: another one would leave the sleep below as it is
        time.sleep(0)


def finalise() -> None:
    Finalised()


def collect() -> None:
    def callback(*_) -> None:
        gc.callbacks.remove(callback)
        Finalised.__del__(None)  # type: ignore[arg-type]

    gc.callbacks.append(callback)
    gc.collect()


@pytest.mark.parametrize("ignoring", [finalise, collect])
def test_an_interrupt_that_python_ignores_is_raised_again(ignoring, capfd):
    hook = sys.unraisablehook
    with interrupts() as stop:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), stop.anywhere():
            ignoring()
            time.sleep(600)
        assert time.monotonic() - began < 120  # the wait was cut short; collecting the heap of a long run takes a while
        assert stop.count == 1
    assert sys.unraisablehook is hook
    told = capfd.readouterr().err  # other threads may say something
    assert "KeyboardInterrupt" not in told and "ignored" not in told
