"""Addresses of servers: parsed, made safe to show, and checked for being on this machine."""

from __future__ import annotations

import re
import socket
from urllib.parse import SplitResult, urlsplit

NOT_SHOWN = "*** (not shown: it may hold a password)"

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_HOST = re.compile(r"[A-Za-z0-9_.,-]+|[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?")
_PATH = re.compile(r"[A-Za-z0-9_./~%:+,-]*")
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9_.-]+:[0-9]{1,5}")


def parsed_address(url: str) -> SplitResult | None:
    """Return the parts of an address that has a scheme and a host; None if they are ambiguous.

    `user:pass/word@host` has the host `user` for a parser, and an @ where none belongs.
    """
    if not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    later = parts.path + parts.query + parts.fragment
    known = host and _HOST.fullmatch(host) and _SCHEME.fullmatch(parts.scheme)
    return parts if known and "@" not in later else None


def plain_address(url: str) -> str | None:
    """Return `scheme://host:port/path` of an address, without user, password, parameters and fragment.

    None if the text is no such address: any part of it may then be a password.
    """
    parts = parsed_address(url)
    if parts is None or not _PATH.fullmatch(parts.path):
        return None
    host, port = parts.hostname or "", parts.port
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}{parts.path}"


def shown_address(url: str) -> str:
    """Return the plain address for a message; `***` stands for all that was left out."""
    plain = plain_address(url)
    if plain is None:
        return url if _HOST_AND_PORT.fullmatch(url) else NOT_SHOWN  # `//` is missing most often
    parts = urlsplit(url)
    scheme, _, rest = plain.partition("://")
    user = "***@" if "@" in parts.netloc else ""
    return f"{scheme}://{user}{rest}{'?***' if parts.query or parts.fragment else ''}"


def is_on_this_machine(host: str) -> bool:
    """True if every address that `host` resolves to is one of ours; an unknown name is not ours.

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
