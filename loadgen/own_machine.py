"""Whether an address is on this machine: load goes elsewhere only when the user says so."""

from __future__ import annotations

import socket


def is_on_this_machine(host: str) -> bool:
    """Whether every address that `host` resolves to is one of ours; an unknown name is not ours.

    The kernel is asked: only an own address can be bound.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: tuple[str | int, ...] | tuple[int, bytes]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return True
