"""Open connections to all addresses of a target's name, which is looked up again while new ones are needed."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from loadgen.spec.target import Target
from loadgen.wire.poller import original
from loadgen.wire.sockets import Stream, addresses_of

_LOOK_UP_AGAIN_S = 2.0
_AVOID_S = 10.0  # after an address took no connection, others get the new ones
_PLACES_MAX = 254  # the place of each request takes a byte

LookUp = Callable[[], list[tuple[Any, ...]]]


class Addresses:
    """Each connection goes to the address that has the fewest: in turn, as long as none closes.

    The name is looked up again, in a thread of its own, if the last time is over 2 s ago when a connection is
    opened. `names` are the addresses seen so far, by the `place` of the streams; a target with an IP address has
    one. Construction raises TargetUnreachable for an unknown name.
    """

    def __init__(self, target: Target, look_up: LookUp | None = None) -> None:
        self._known = addresses_of(target)[:_PLACES_MAX]
        self.names = [str(address.sockaddr[0]) for address in self._known]
        self._current = list(range(len(self._known)))
        self._connections = [0] * len(self._known)
        self._avoid_until_s = [0.0] * len(self._known)
        self._found: list[tuple[Any, ...]] | None = None
        self._looked_up_s = time.monotonic()
        # One that blocks: gevent's own would need the loop of the thread that sends.
        getaddrinfo, kind = original("socket", "getaddrinfo"), original("socket", "SOCK_STREAM")
        usual = partial(getaddrinfo, target.host, target.port, type=kind)
        self._look_up: LookUp | None = None if _is_ip(target.host) else look_up or usual

    @property
    def may_be_several(self) -> bool:
        """True if the target has a name, which may have other addresses later."""
        return self._look_up is not None

    @property
    def connections_min(self) -> int:
        """The connections needed to reach all of several addresses; 0 if there is one."""
        return len(self._current) if len(self._current) > 1 else 0

    def open(self) -> Stream:
        """Return a stream that begins to connect. Raises OSError if it cannot begin."""
        now_s = time.monotonic()
        if self._look_up is not None:
            self._renew(now_s)
        usable = [place for place in self._current if self._avoid_until_s[place] <= now_s]
        place = min(usable or self._current, key=self._connections.__getitem__)
        try:
            stream = self._known[place].open()
        except OSError:
            self._avoid_until_s[place] = now_s + _AVOID_S
            raise
        stream.place = place
        self._connections[place] += 1
        return stream

    def closed(self, stream: Stream, *, was_ready: bool) -> None:
        """Note that a stream was closed; `was_ready`: it had been connected."""
        self._connections[stream.place] -= 1
        if not was_ready:
            self._avoid_until_s[stream.place] = time.monotonic() + _AVOID_S

    def _renew(self, now_s: float) -> None:
        """Take what the last look-up found, and begin the next if it is time for it."""
        found, self._found = self._found, None
        if found:
            self._current = [self._place_of(sockaddr) for sockaddr in found]
        if now_s - self._looked_up_s >= _LOOK_UP_AGAIN_S:
            self._looked_up_s = now_s
            original("_thread", "start_new_thread")(self._ask, ())

    def _ask(self) -> None:
        family = self._known[0].family
        with contextlib.suppress(OSError, UnicodeError):  # the old addresses stay
            assert self._look_up is not None
            self._found = [entry[4] for entry in self._look_up() if entry[0] == family][:_PLACES_MAX]

    def _place_of(self, sockaddr: tuple[Any, ...]) -> int:
        """Return the place of an address, a new one if it was not seen before."""
        for place, known in enumerate(self._known):
            if known.sockaddr == sockaddr:
                return place
        if len(self._known) >= _PLACES_MAX:
            return 0
        self._known.append(replace(self._known[0], sockaddr=sockaddr))
        self.names.append(str(sockaddr[0]))
        self._connections.append(0)
        self._avoid_until_s.append(0.0)
        return len(self._known) - 1


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
