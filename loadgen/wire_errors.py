"""What a server can do to a connection, as errors of the wires: all are counted, none ends a load."""

from __future__ import annotations


class MalformedAnswer(OSError):
    """The bytes are no answer of the protocol; the connection cannot go on."""


class ClosedEarly(OSError):
    """The server closed the connection before its answer was whole."""
