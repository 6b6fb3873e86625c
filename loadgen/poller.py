"""Waiting for sockets or for a point in time, whichever comes first, to a few microseconds."""

from __future__ import annotations

import ctypes
import importlib
import select
import sys
from typing import Any


# Locust replaces the standard library's sockets and polling by gevent's, which go through an event loop whose
# timers are whole milliseconds. The load itself runs on the originals.
def original(module: str, name: str) -> Any:
    """The standard library's own `module.name`, whether or not gevent has replaced it in this process."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original(module, name)
    return getattr(importlib.import_module(module), name)


def give_way() -> None:
    """Let other greenlets run, in a process that has them: one sends the heartbeat of a worker."""
    if "gevent.monkey" in sys.modules:
        sys.modules["gevent"].sleep(0.001)  # with 0, gevent looks at its timers only every so many times


READ = select.EPOLLIN
WRITE = select.EPOLLOUT
_MAX_EVENTS = 64  # few enough that a due send never waits long behind answers
_COARSE_NS = 2_000_000
GIVE_WAY_NS = 250_000_000  # so often, waits that belong to no load give way
_PR_SET_TIMERSLACK = 29


class Poller:
    """An epoll with waits that end on time: the kernel's own epoll_wait rounds up to a millisecond."""

    def __init__(self) -> None:
        self._epoll = original("select", "epoll")()
        self._select = original("select", "select")
        self.sleep = original("time", "sleep")
        self._fd = [self._epoll.fileno()]
        self.add = self._epoll.register
        self.change = self._epoll.modify
        self.remove = self._epoll.unregister

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        """(file descriptor, events) of what is ready; empty after `timeout_ns` at the latest, 0 or less is now.

        A long wait ends a millisecond early: the kernel may delay a wait by 0.1 % of its length.
        """
        ready: list[tuple[int, int]] = self._epoll.poll(0, _MAX_EVENTS)
        if ready or timeout_ns <= 0:
            return ready
        if timeout_ns > _COARSE_NS:
            timeout_ns -= 1_000_000
        if not self._select(self._fd, (), (), timeout_ns * 1e-9)[0]:
            return []
        again: list[tuple[int, int]] = self._epoll.poll(0, _MAX_EVENTS)
        return again

    def close(self) -> None:
        """Give the file descriptor back."""
        self._epoll.close()


def precise_timers() -> None:
    """Let waits of this thread end within a microsecond instead of the usual fifty. No effect outside Linux."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
