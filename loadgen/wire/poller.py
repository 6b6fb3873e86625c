"""Wait for sockets or for a point in time, whichever comes first, exact to a few microseconds."""

from __future__ import annotations

import ctypes
import importlib
import select
import sys
from collections.abc import Callable
from typing import Any


# Locust replaces the standard library's sockets and polling by gevent's, which use an event loop with timers of
# whole milliseconds. The load itself uses the originals.
def original(module: str, name: str) -> Any:
    """Return the standard library's own `module.name`, even if gevent has replaced it in this process."""
    if "gevent.monkey" in sys.modules:
        return sys.modules["gevent.monkey"].get_original(module, name)
    return getattr(importlib.import_module(module), name)


def give_way() -> None:
    """Let other greenlets run, if the process has any: one sends the heartbeat of a worker."""
    if "gevent.monkey" in sys.modules:
        sys.modules["gevent"].sleep(0.001)  # with 0, gevent checks its timers only now and then


READ = select.EPOLLIN
WRITE = select.EPOLLOUT
_MAX_EVENTS = 64  # few, so that a due send never waits long behind responses
_COARSE_NS = 2_000_000
GIVE_WAY_NS = 250_000_000  # ns; waits outside a load give way this often
_PR_SET_TIMERSLACK = 29


class Poller:
    """An epoll whose waits end on time: the kernel's own epoll_wait rounds up to a millisecond."""

    def __init__(self) -> None:
        self._epoll = original("select", "epoll")()
        self._poll: Callable[[int, int], list[tuple[int, int]]] = self._epoll.poll
        self._select = original("select", "select")
        self.sleep = original("time", "sleep")
        self._fd = [self._epoll.fileno()]
        self.add = self._epoll.register
        self.change = self._epoll.modify
        self.remove = self._epoll.unregister

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        """Return (file descriptor, events) of ready sockets; empty after `timeout_ns`, at once for 0 or less.

        A wait of over 2 ms ends 1 ms early: the kernel may delay a wait by 0.1 % of its length.
        """
        ready = self._poll(0, _MAX_EVENTS)
        if ready or timeout_ns <= 0:
            return ready
        if timeout_ns > _COARSE_NS:
            timeout_ns -= 1_000_000
        return self._poll(0, _MAX_EVENTS) if self._select(self._fd, (), (), timeout_ns * 1e-9)[0] else []

    def close(self) -> None:
        """Close the file descriptor."""
        self._epoll.close()


def precise_timers() -> None:
    """Make waits of this thread end within 1 µs instead of the usual 50. No effect outside Linux."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
