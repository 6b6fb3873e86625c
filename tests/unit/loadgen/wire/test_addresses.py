"""Connections to a name with several addresses: 127.0.0.1, .2 and .3 are replicas on one port."""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from waiting import wait_until

from loadgen.spec.target import Target
from loadgen.wire import addresses as module
from loadgen.wire.addresses import Addresses
from loadgen.wire.sockets import Stream

ONE, TWO, THREE = "127.0.0.1", "127.0.0.2", "127.0.0.3"


class Fleet:
    """Listens on its addresses; `found` is the answer of the resolver."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listeners: dict[str, socket.socket] = {}
        self.port = 0
        for ip in (ONE, TWO):
            self.start(ip)
        self.found = [ONE, TWO]

    def start(self, ip: str) -> None:
        self.listeners[ip] = self._stack.enter_context(socket.create_server((ip, self.port), backlog=64))
        self.port = self.listeners[ip].getsockname()[1]

    def opened(self, addresses: Addresses, count: int) -> list[Stream]:
        streams = [addresses.open() for _ in range(count)]
        for stream in streams:
            self._stack.callback(stream.close)
        return streams

    def look_up(self, *_args: object, **_more: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, 1, 6, "", (ip, self.port)) for ip in self.found]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    with ExitStack() as stack:
        made = Fleet(stack)
        monkeypatch.setattr("loadgen.wire.sockets.socket_names.getaddrinfo", made.look_up)
        yield made


def addresses_of(fleet: Fleet) -> Addresses:
    return Addresses(Target(url=f"http://fleet.test:{fleet.port}", model_name="m"), look_up=fleet.look_up)


def shares(addresses: Addresses, streams: list[Stream]) -> dict[str, int]:
    return dict(Counter(addresses.names[stream.place] for stream in streams))


def test_connections_go_to_all_addresses_in_turn(fleet: Fleet) -> None:
    addresses = addresses_of(fleet)
    streams = fleet.opened(addresses, 8)
    assert shares(addresses, streams) == {ONE: 4, TWO: 4}
    for stream in streams[0:8:2]:  # those of one address
        stream.close()
        addresses.closed(stream, was_ready=True)
    assert shares(addresses, fleet.opened(addresses, 4)) == {ONE: 4}, (
        "the address that lost its connections gets the new"
    )
    assert addresses.may_be_several


def test_an_address_that_takes_no_connection_gets_no_more_while_others_do(fleet: Fleet) -> None:
    addresses = addresses_of(fleet)
    fleet.listeners[TWO].close()
    streams = fleet.opened(addresses, 2)
    with contextlib.suppress(OSError):
        wait_until(streams[1].connected)
    addresses.closed(streams[1], was_ready=False)
    assert shares(addresses, fleet.opened(addresses, 4)) == {ONE: 4}


def test_a_name_is_looked_up_again_for_new_connections(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = addresses_of(fleet)
    fleet.start(THREE)
    fleet.found = [THREE]
    assert set(shares(addresses, fleet.opened(addresses, 4))) == {ONE, TWO}, "not yet"
    monkeypatch.setattr(module, "_LOOK_UP_AGAIN_S", 0.0)
    wait_until(lambda: set(shares(addresses, fleet.opened(addresses, 1))) == {THREE})
    fleet.found = []  # the resolver has lost the name
    time.sleep(0.05)
    assert set(shares(addresses, fleet.opened(addresses, 4))) == {THREE}


def test_an_ip_address_is_one_address(fleet: Fleet) -> None:
    fleet.found = [ONE]
    addresses = Addresses(Target(url=f"http://{ONE}:{fleet.port}", model_name="m"))
    assert (addresses.connections_min, addresses.names, addresses.may_be_several) == (0, [ONE], False)
