"""Encode the outcome of a request in one byte: a log holds ten million of them."""

from __future__ import annotations

import errno
from collections.abc import Mapping

OK = 0
TIMED_OUT = 1
NOT_CONNECTED = 2
CLOSED = 3
MALFORMED = 4
CLIENT_LIMIT = 5
UNFINISHED = 6
STREAM_ERROR = 7
CUT_OFF = 8
TOO_SHORT = 9
TOO_LONG = 10
NO_STREAM = 11
REFUSED = 12
_OTHER_STATUS = 19
_OUT_OF = (errno.ENFILE, errno.EMFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS)

# HTTP statuses use the numbers that remain in a byte: (first status, count, first number).
_STATUS_RANGES = ((300, 20, 20), (400, 60, 40), (500, 50, 100), (200, 27, 150))
_OF_HTTP = {first + at: base + at for first, count, base in _STATUS_RANGES for at in range(count)}
_GRPC_BASE = 200
_PASSING = ("http 429", "http 502", "http 503", "http 504", "grpc UNAVAILABLE")
_GRPC_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


NAMES: Mapping[int, str] = {
    OK: "ok",
    TIMED_OUT: "time-out",
    NOT_CONNECTED: "no connection",
    CLOSED: "connection closed",
    MALFORMED: "malformed answer",
    CLIENT_LIMIT: "client out of files or ports",
    UNFINISHED: "unfinished",  # only in the log of a run that is still going on
    STREAM_ERROR: "error in the stream",
    CUT_OFF: "no finish reason",
    TOO_SHORT: "fewer tokens than asked for",
    TOO_LONG: "more tokens than asked for",
    NO_STREAM: "no stream",
    REFUSED: "refused (--refuse-above)",
    _OTHER_STATUS: "http other",
    **{number: f"http {status}" for status, number in _OF_HTTP.items()},
    **{_GRPC_BASE + number: f"grpc {name}" for number, name in enumerate(_GRPC_NAMES) if number},
}
"""Every outcome's name for users: `time-out`, `http 503`, `grpc UNAVAILABLE`."""


def outcome_of_http(status: int) -> int:
    """Return 0 for status 200, the number of the failure for any other."""
    return OK if status == 200 else _OF_HTTP.get(status, _OTHER_STATUS)


def outcome_of_grpc(status: int) -> int:
    """Return 0 for gRPC status 0, the number of the failure for any other."""
    return OK if status == 0 else _GRPC_BASE + (status if status < len(_GRPC_NAMES) else 2)


def outcome_of_connect_error(error: OSError) -> int:
    """Return CLIENT_LIMIT if this machine could not open a connection, NOT_CONNECTED if the server took none."""
    return CLIENT_LIMIT if error.errno in _OUT_OF else NOT_CONNECTED


def is_passing(outcome: int) -> bool:
    """True if the same request may succeed soon: the server, or a gateway before it, is only starting or full."""
    return outcome == CLOSED or outcome_name(outcome) in _PASSING


def outcome_name(number: int) -> str:
    """Return the outcome's name, see `NAMES`."""
    return NAMES[number]
