"""Ctrl-C at a terminal: the first asks the run to finish with what it has, the second stops it now."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether the user has asked to finish; a callable, as the search wants it."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once: str | None = None
        """The signal that asked to stop now."""

    def __call__(self) -> bool:
        """Whether to finish. Raises KeyboardInterrupt where that was asked for and has been lost.

        Python drops what a signal's handler raises while it cleans up an object.
        """
        if self.at_once is not None:
            raise KeyboardInterrupt(self.at_once)
        return self.asked


@contextmanager
def finish_on_first_interrupt(announce: Callable[[], None]) -> Iterator[Stop]:
    """Until the block ends, the first SIGINT or SIGTERM sets `Stop` and calls `announce`; the second raises.

    SIGTERM is treated alike, so that a scheduler that ends the job gets the best answer so far.
    """
    stop = Stop()

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.asked:
            stop.at_once = signal.Signals(number).name
            raise KeyboardInterrupt(stop.at_once)
        stop.asked = True
        announce()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_first_interrupt() -> Iterator[None]:
    """Until the block ends, SIGINT and SIGTERM raise at once, within `finish_on_first_interrupt` too.

    For work before there is any result that a run could finish with. In a thread other than the main one, which
    no signal reaches, it changes nothing.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        raise KeyboardInterrupt(signal.Signals(number).name)

    heeded = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, on_signal) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
